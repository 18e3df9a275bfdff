"""The tables of the ledger, and the columns of their rows.

Spark's schemas, the Delta tables with their column comments, NOT NULL and CHECK all come from these declarations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from wakeroll_model.chain import LineKind
from wakeroll_model.decisions import Cause, CommitEpoch, CommittedOffset, Committer, How, Kind, ShardName
from wakeroll_model.events import Mode
from wakeroll_model.queue import BrokerName, ClientId, GroupId, QueueId, SliceText, TopicName

Partition = Annotated[int, Meta(ge=0, le=2**31 - 1, description="Kafka partition of the record")]
RecordOffset = Annotated[int, Meta(ge=0, description="offset of the record in its Kafka partition")]
AtMs = Annotated[int, Meta(description="log time of the record or decision (epoch ms)")]
Seq = Annotated[int, Meta(ge=1, description="number of the decision in its shard, from 1")]
PublishedMs = Annotated[int, Meta(description="log time at which the broker appended the decision (epoch ms)")]
ChangeEpoch = Annotated[int, Meta(ge=0, description="epoch of the group at the change of owner")]
OwnedFromMs = Annotated[int, Meta(description="log time at which the ownership begins (epoch ms)")]
PreviousOwner = Annotated[ClientId | None, Meta(description="previous owner; null if the queue never had one")]
Freed = Annotated[How, Meta(description="how the queue became free: first, released, unregistered, died, expired, ...")]
ResetBy = Annotated[str | None, Meta(description="operator or `route` that reset the offset; null for a commit")]
OffsetMode = Annotated[
    Mode, Meta(description="clustering: the offset of the group; broadcasting: the offset of this client alone")
]


class EventRow(Struct, frozen=True, kw_only=True):
    """One record of a control topic, also a tick: ticks are the clock of a replay.  Key: topic, partition, offset."""

    topic: Annotated[str, Meta(description="name of the control topic")]
    partition: Partition
    offset: RecordOffset
    at_ms: AtMs
    key: Annotated[
        bytes | None, Meta(description="key of the record; null for events that are sent to every partition")
    ]
    value: Annotated[bytes | None, Meta(description="value of the record, byte for byte; null if it has none")]
    type: Annotated[str | None, Meta(description="type of the event by its own field; null if it has none")]


class DecisionRow(Struct, frozen=True, kw_only=True):
    """One decision.  Key: shard, seq."""

    shard: ShardName
    seq: Seq
    kind: Annotated[
        Kind,
        Meta(
            description="kind of the decision: assignment, fenced, membership, rebalance, handover, offset, lock, "
            "failed, wake, rejected"
        ),
    ]
    group_id: Annotated[str | None, Meta(description="group of the decision; null if not known")]
    client_id: Annotated[
        str | None, Meta(description="client of the decision; null or empty if it concerns a whole group")
    ]
    at_ms: AtMs
    cause: Annotated[Cause, Meta(description="record that led to the decision")]
    published_ms: PublishedMs
    partition: Partition
    json: Annotated[str, Meta(description="JSON of the decision, byte for byte")]


class AssignmentRow(Struct, frozen=True, kw_only=True):
    """One change of a queue's owner; it applies until the queue's next row.  Key: shard, seq."""

    shard: ShardName
    seq: Seq
    partition: Partition
    group_id: GroupId
    topic: TopicName
    broker: BrokerName
    queue_id: QueueId
    slice: SliceText = None
    client_id: Annotated[ClientId | None, Meta(description="owner from this moment on; null if nobody owns the queue")]
    epoch: ChangeEpoch
    from_ms: OwnedFromMs
    previous_client_id: PreviousOwner
    how: Freed


class OffsetRow(Struct, frozen=True, kw_only=True):
    """One advance, reset or deletion of a committed offset.  Key: shard, seq."""

    shard: ShardName
    seq: Seq
    partition: Partition
    group_id: GroupId
    topic: TopicName
    broker: BrokerName
    queue_id: QueueId
    slice: SliceText = None
    client_id: Committer
    committed_offset: Annotated[CommittedOffset, Meta(ge=0)]
    epoch: Annotated[CommitEpoch, Meta(ge=-1)]
    at_ms: AtMs
    reset_by: ResetBy
    mode: OffsetMode
    deleted: Annotated[
        bool | None,
        Meta(description="true if the offset was deleted: the queue has none any more; null otherwise"),
    ] = None


class SnapshotRow(Struct, frozen=True, kw_only=True):
    """The state of a shard at an offset of an era; the first one of a later era is the state it began with.

    Key: topic, partition, era, offset.
    """

    topic: Annotated[str, Meta(description="name of the control topic")]
    partition: Partition
    offset: Annotated[int, Meta(ge=-1, description="offset of the last record that the state includes; -1 if none")]
    era: Annotated[int, Meta(ge=1, description="era of the shard")]
    version: Annotated[int, Meta(ge=1, description="version of the machines and of the layout of the state")]
    at_ms: Annotated[int, Meta(description="clock of the shard at the snapshot (epoch ms)")]
    body: Annotated[bytes, Meta(description="bytes of the state, as in the checkpoint")]
    row_hash: Annotated[
        str | None,
        Meta(
            description="SHA-256 of topic, partition, era, offset, version, at_ms (a line feed behind each) and body, "
            "in hexadecimal; null in rows of earlier releases"
        ),
    ] = None


class DivergenceRow(Struct, frozen=True, kw_only=True):
    """A decision that differs from the one with the same identity in `decisions`.  Key: partition, offset.

    Coordinators that run at once must decide the same. Only the first differences of each pair of coordinators are
    stored.
    """

    partition: Annotated[int, Meta(ge=0, description="Kafka partition of the decisions topic")]
    offset: Annotated[int, Meta(ge=0, description="offset of this decision in that partition")]
    shard: ShardName
    seq: Seq
    published_ms: Annotated[int, Meta(description="log time at which this decision was published (epoch ms)")]
    writer: Annotated[str | None, Meta(description="process that published this decision; null if it is not known")]
    kept_writer: Annotated[
        str | None, Meta(description="process that published the decision in `decisions`; null if it is not known")
    ]
    json: Annotated[str, Meta(description="this decision, byte for byte")]


class ChainRow(Struct, frozen=True, kw_only=True):
    """One line of the hash chain of a table: the rows that were appended in a minute.  Key: table_name, number."""

    table_name: Annotated[str, Meta(description="table whose rows the line covers")]
    number: Annotated[int, Meta(ge=1, description="number of the line in the chain of its table, from 1")]
    kind: Annotated[LineKind, Meta(description="kind: begin, rows, found, gap, cut, kept, lost, unproven")]
    at_ms: Annotated[int, Meta(description="time of the recorder (epoch ms)")]
    rows: Annotated[int, Meta(ge=0, description="number of rows that the line covers; of gap or lost: of positions")]
    positions: Annotated[
        str, Meta(description="last position of each stream with rows in the line, as a JSON object, sorted by stream")
    ]
    rows_hash: Annotated[str, Meta(description="SHA-256 of the rows, in hexadecimal; empty if the kind has none")]
    reason: Annotated[str, Meta(description="reason of a gap, a cut or a loss; empty for other kinds")]
    line_hash: Annotated[str, Meta(description="SHA-256 of the line and of the one before it, in hexadecimal")]


@dataclass(frozen=True)
class Table:
    """A table of the ledger. Each row is appended once; `wakeroll_pipeline.ledger.retention` deletes old rows."""

    name: str
    row: type[Struct]
    stream: tuple[str, ...]
    """Columns that identify a sequence of rows."""
    position: str
    """Column that increases in such a sequence; a row that is not above the highest value is a repetition."""
    key: tuple[str, ...]
    """Columns that identify a row."""
    at: str = "at_ms"
    """Column with the time that retention uses, epoch ms."""
    is_optional: bool = False
    """Whether a ledger of an earlier version may lack the table; then it is read as an empty one."""
    grouped_by: str | None = None
    """Column by which a compacted file is sorted before stream and position; None: by these alone."""

    @property
    def layout(self) -> tuple[str, ...]:
        """Columns by which a compacted file is sorted."""
        first = () if self.grouped_by is None else (self.grouped_by,)
        return *first, *self.stream, self.position


_RECORD = ("topic", "partition", "offset")
DECIDED = ("shard", "seq")
"""Columns that identify a decision, and any row made from it."""

EVENTS = Table("events", EventRow, ("topic", "partition"), "offset", _RECORD, grouped_by="type")
DECISIONS = Table("decisions", DecisionRow, ("partition", "shard"), "seq", DECIDED, grouped_by="kind")
ASSIGNMENTS = Table(
    "assignments", AssignmentRow, ("partition", "shard"), "seq", DECIDED, at="from_ms", grouped_by="group_id"
)
OFFSETS = Table("offsets", OffsetRow, ("partition", "shard"), "seq", DECIDED, grouped_by="group_id")

SNAPSHOTS = Table("snapshots", SnapshotRow, ("topic", "partition"), "offset", ("topic", "partition", "era", "offset"))
DIVERGENCES = Table(
    "divergences", DivergenceRow, ("partition",), "offset", ("partition", "offset"), at="published_ms", is_optional=True
)
CHAIN = Table("chain", ChainRow, ("table_name",), "number", ("table_name", "number"), is_optional=True)

TABLES: Mapping[str, Table] = {
    table.name: table for table in (EVENTS, DECISIONS, ASSIGNMENTS, OFFSETS, SNAPSHOTS, DIVERGENCES, CHAIN)
}
READ = (CHAIN, EVENTS, DECISIONS, ASSIGNMENTS, OFFSETS, SNAPSHOTS, DIVERGENCES)
"""All tables in the order in which readers open them, so that `chain` has no line about rows that a reader does not
see."""
CHAINED = (EVENTS, DECISIONS, ASSIGNMENTS, OFFSETS, SNAPSHOTS, DIVERGENCES)
"""Tables that have a chain."""
RECORDED = (EVENTS, DECISIONS, ASSIGNMENTS, OFFSETS)
"""Tables to which every batch of `record` may append."""
