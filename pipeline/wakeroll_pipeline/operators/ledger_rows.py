"""Rows of the ledger's tables, derived from the Kafka records of a batch of `record`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

import msgspec
from msgspec import Struct

from wakeroll_model.decision_order import order_of, without_era
from wakeroll_model.decisions import How, Kind
from wakeroll_model.events import Mode
from wakeroll_model.queue import text_of_slice
from wakeroll_model.rows import (
    ASSIGNMENTS,
    DECISIONS,
    EVENTS,
    OFFSETS,
    AssignmentRow,
    DecisionRow,
    EventRow,
    OffsetRow,
    Table,
)
from wakeroll_pipeline.operators.recorded_fields import (
    decode_handover,
    decode_header,
    decode_offset,
    parsed,
    text_of,
    type_of,
)

_Fields = TypeVar("_Fields")

Stream = tuple[object, ...]
"""(Topic, partition) of events; (Kafka partition, shard without its era) of decisions."""
Positions = dict[Stream, tuple[int, int]]
"""Stream -> highest (era, position) of the stream in a table. Streams of events have no eras; their era is 0."""

NOWHERE = (-1, -1)
"""(Era, position) before the first row of a stream."""


class KafkaRecord(NamedTuple):
    """A record of a control topic or of the decisions topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Time of the broker (epoch ms)."""
    key: bytes | None
    value: bytes | None
    writer: bytes | None = None
    """Header with the name of the process that published a decision; None if there is none."""


class PlacedRow(NamedTuple):
    """A row of a table, and its position."""

    stream: Stream
    position: tuple[int, int]
    """(Era, position) of the row in its stream."""
    row: Struct


class ReadDecision(NamedTuple):
    """A record of the decisions topic that is a decision."""

    row: DecisionRow
    offset: int
    """Offset of the record in the decisions topic."""
    writer: str | None
    """Process that published the decision; None if it is not known."""
    value: bytes
    stream: Stream
    position: tuple[int, int]
    """(Era, seq)."""
    is_new: bool
    """Whether (era, seq) is above those of all earlier decisions of the stream among the records given."""


def event_rows(records: Iterable[KafkaRecord]) -> Iterator[PlacedRow]:
    """Yield a row for each record of the control topics; key and value are stored byte for byte."""
    for one in records:
        row = EventRow(
            topic=one.topic,
            partition=one.partition,
            offset=one.offset,
            at_ms=one.timestamp_ms,
            key=one.key,
            value=one.value,
            type=type_of(one.value),
        )
        yield PlacedRow((one.topic, one.partition), (0, one.offset), row)


def read_decisions(records: Iterable[KafkaRecord]) -> list[ReadDecision]:
    """Parse the header of each decision. The records of a Kafka partition must be in the order of their offsets.

    A record that is not a decision is skipped: it is not JSON, or its header lacks a field or exceeds the bounds. Only
    a foreign producer can publish such a record.
    """
    read, newest = [], Positions()
    for one in records:
        header = parsed(decode_header, one.value)
        text = text_of(one.value)
        if header is None or text is None:
            continue
        stream, position = (one.partition, without_era(header.shard)), order_of(header.shard, header.seq)
        is_new = position > newest.get(stream, NOWHERE)
        if is_new:
            newest[stream] = position
        row = DecisionRow(
            shard=header.shard,
            seq=header.seq,
            kind=cast(Kind, header.kind),
            group_id=header.group_id,
            client_id=header.client_id,
            at_ms=header.at_ms,
            cause=header.cause,
            published_ms=one.timestamp_ms,
            partition=one.partition,
            json=text,
        )
        writer = None if one.writer is None else one.writer.decode(errors="replace")
        read.append(ReadDecision(row, one.offset, writer, one.value or b"", stream, position, is_new))
    return read


def decision_rows(decisions: Iterable[ReadDecision]) -> Iterator[PlacedRow]:
    """Yield the decisions without repetitions."""
    return (PlacedRow(one.stream, one.position, one.row) for one in decisions if one.is_new)


def assignment_rows(decisions: Iterable[ReadDecision]) -> Iterator[PlacedRow]:
    """Yield a row for each new hand-over: the owner of a queue from a moment on."""
    for one, decision in _decoded(decisions, "handover", decode_handover):
        times = decision.assigned_ms, decision.released_ms, one.row.at_ms
        row = AssignmentRow(
            shard=one.row.shard,
            seq=one.row.seq,
            partition=one.row.partition,
            group_id=decision.group_id,
            topic=decision.queue.topic,
            broker=decision.queue.broker,
            queue_id=decision.queue.queue_id,
            slice=text_of_slice(decision.queue.slice, decision.queue.slices),
            client_id=decision.to,
            epoch=decision.epoch,
            from_ms=next(time for time in times if time is not None),
            previous_client_id=decision.from_,
            how=cast(How, decision.how),
        )
        yield PlacedRow(one.stream, one.position, row)


def offset_rows(decisions: Iterable[ReadDecision]) -> Iterator[PlacedRow]:
    """Yield a row for each new advance, reset or deletion of a committed offset."""
    for one, decision in _decoded(decisions, "offset", decode_offset):
        row = OffsetRow(
            shard=one.row.shard,
            seq=one.row.seq,
            partition=one.row.partition,
            group_id=decision.group_id,
            topic=decision.queue.topic,
            broker=decision.queue.broker,
            queue_id=decision.queue.queue_id,
            slice=text_of_slice(decision.queue.slice, decision.queue.slices),
            client_id=decision.client_id,
            committed_offset=decision.offset,
            epoch=decision.epoch,
            at_ms=one.row.at_ms,
            reset_by=decision.reset_by,
            mode=cast(Mode, decision.mode or "clustering"),
            deleted=decision.deleted,
        )
        yield PlacedRow(one.stream, one.position, row)


def _decoded(
    decisions: Iterable[ReadDecision], kind: Kind, decoder: msgspec.json.Decoder[_Fields]
) -> Iterator[tuple[ReadDecision, _Fields]]:
    """Yield the new decisions of a kind, with their fields; skip a decision whose fields do not fit into a row."""
    for one in decisions:
        if one.is_new and one.row.kind == kind and (decision := parsed(decoder, one.value)):
            yield one, decision


def rows_of(events: Iterable[KafkaRecord], decisions: Sequence[ReadDecision]) -> Mapping[str, Iterator[PlacedRow]]:
    """Return table -> its rows, from the records of the control topics and the decisions."""
    return {
        EVENTS.name: event_rows(events),
        DECISIONS.name: decision_rows(decisions),
        ASSIGNMENTS.name: assignment_rows(decisions),
        OFFSETS.name: offset_rows(decisions),
    }


def newest_of(table: Table, highest: Mapping[Stream, int]) -> Positions:
    """Return the highest (era, position) of each stream, from the highest position of each stream and era."""
    newest: Positions = {}
    for its_stream, its_position in highest.items():
        stream, position = its_stream, (0, its_position)
        if table is not EVENTS:
            partition, shard = its_stream
            stream, position = (partition, without_era(str(shard))), order_of(str(shard), its_position)
        newest[stream] = max(newest.get(stream, position), position)
    return newest
