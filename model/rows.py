"""The tables of the ledger, and the columns of their rows.

Spark's schemas, the Delta tables with their column comments, NOT NULL and CHECK all come from these declarations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from model.decisions import Cause, How, Kind
from model.events import Mode
from model.queue import BrokerName, ClientId, GroupId, QueueId, TopicName

Partition = Annotated[int, Meta(ge=0, le=2**31 - 1, description="Kafka partition the record stands in")]
RecordOffset = Annotated[int, Meta(ge=0, description="offset of the record in its Kafka partition")]
AtMs = Annotated[int, Meta(description="log time of the broker, epoch ms")]
Seq = Annotated[int, Meta(ge=1, description="number of the decision in its shard, from 1")]
ShardName = Annotated[str, Meta(description="shard that decided: topic-partition.era, like groups-3.1")]


class EventRow(Struct, frozen=True, kw_only=True):
    """One record of a control topic, with the ticks: they are the clock of a replay.  Key: topic, partition, offset."""

    topic: Annotated[str, Meta(description="control topic")]
    partition: Partition
    offset: RecordOffset
    at_ms: AtMs
    key: Annotated[bytes | None, Meta(description="record key; null for events of every partition")]
    value: Annotated[bytes | None, Meta(description="record value, byte for byte")]
    type: Annotated[str | None, Meta(description="type of the event as it says itself; null where it does not")]


class DecisionRow(Struct, frozen=True, kw_only=True):
    """One decision.  Key: shard, seq."""

    shard: ShardName
    seq: Seq
    kind: Annotated[
        Kind, Meta(description="assignment, fenced, membership, rebalance, handover, offset, lock, wake, rejected")
    ]
    group_id: Annotated[str | None, Meta(description="group it is about; null where unknown")]
    client_id: Annotated[str | None, Meta(description="client it is about; null or empty for a whole group")]
    at_ms: AtMs
    cause: Annotated[Cause, Meta(description="record that the decision follows from")]
    published_ms: Annotated[int, Meta(description="when the broker appended the decision, epoch ms")]
    partition: Partition
    json: Annotated[str, Meta(description="the decision, byte for byte")]


class AssignmentRow(Struct, frozen=True, kw_only=True):
    """One change of a queue's owner; it applies until the queue's next row.  Key: shard, seq."""

    shard: ShardName
    seq: Seq
    partition: Partition
    group_id: GroupId
    topic: TopicName
    broker: BrokerName
    queue_id: QueueId
    client_id: Annotated[ClientId | None, Meta(description="owner from now on; null: nobody")]
    epoch: Annotated[int, Meta(ge=0, description="epoch of the group in which the queue changed hands")]
    from_ms: Annotated[int, Meta(description="log time since when, epoch ms")]
    previous_client_id: Annotated[ClientId | None, Meta(description="last owner before; null: none ever")]
    how: Annotated[How, Meta(description="how the queue came free: first, released, unregistered, expired, ...")]


class OffsetRow(Struct, frozen=True, kw_only=True):
    """One advance or reset of a committed offset.  Key: shard, seq."""

    shard: ShardName
    seq: Seq
    partition: Partition
    group_id: GroupId
    topic: TopicName
    broker: BrokerName
    queue_id: QueueId
    client_id: Annotated[str, Meta(description="who committed")]
    committed_offset: Annotated[int, Meta(ge=0, description="the next message to consume")]
    epoch: Annotated[int, Meta(ge=-1, description="epoch that the commit was made in")]
    at_ms: AtMs
    reset_by: Annotated[str | None, Meta(description="who reset it; null: a commit")]
    mode: Annotated[Mode, Meta(description="clustering; broadcasting: the offset is this client's own")]


class SnapshotRow(Struct, frozen=True, kw_only=True):
    """The state of a shard at an offset of an era; the first one of a later era is the state it began with.

    Key: topic, partition, era, offset.
    """

    topic: Annotated[str, Meta(description="control topic")]
    partition: Partition
    offset: Annotated[int, Meta(ge=-1, description="of the last record applied")]
    era: Annotated[int, Meta(ge=1, description="era of the shard")]
    version: Annotated[int, Meta(ge=1, description="of the machines and of the state's layout")]
    at_ms: Annotated[int, Meta(description="the shard's clock, epoch ms")]
    body: Annotated[bytes, Meta(description="the state, as the checkpoint holds it")]


@dataclass(frozen=True)
class Table:
    """A table of the ledger. Each row is appended once; old rows are deleted by `pipeline.ledger.retention`."""

    name: str
    row: type[Struct]
    stream: tuple[str, ...]
    """Columns that identify a sequence of rows."""
    position: str
    """Column that counts up in such a sequence; a row that is not above the highest is a repetition."""
    key: tuple[str, ...]
    """Columns that identify a row."""
    at: str = "at_ms"
    """Column with the time that retention uses, epoch ms."""


_RECORD = ("topic", "partition", "offset")
DECIDED = ("shard", "seq")
"""Columns that identify a decision, and any row made from it."""

EVENTS = Table("events", EventRow, ("topic", "partition"), "offset", _RECORD)
DECISIONS = Table("decisions", DecisionRow, ("partition", "shard"), "seq", DECIDED)
ASSIGNMENTS = Table("assignments", AssignmentRow, ("partition", "shard"), "seq", DECIDED, at="from_ms")
OFFSETS = Table("offsets", OffsetRow, ("partition", "shard"), "seq", DECIDED)

SNAPSHOTS = Table("snapshots", SnapshotRow, ("topic", "partition"), "offset", ("topic", "partition", "era", "offset"))

TABLES: Mapping[str, Table] = {table.name: table for table in (EVENTS, DECISIONS, ASSIGNMENTS, OFFSETS, SNAPSHOTS)}
RECORDED = (EVENTS, DECISIONS, ASSIGNMENTS, OFFSETS)
"""Tables to which every batch of `record` may append."""
