"""Rows that are missing in `events` and `decisions`, and whose records Kafka still has: they are read by offset."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from confluent_kafka import Message

from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.rows import DECISIONS, EVENTS, DecisionRow, EventRow
from wakeroll_pipeline.jobs.repair_plan import Change, RepairPlan, findings_of
from wakeroll_pipeline.kafka.log_spans import Span, read_spans
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.ledger.archived_log import cut_logs, gaps_of
from wakeroll_pipeline.ledger.ledger import Ledger
from wakeroll_pipeline.ledger.repair_findings import Finding
from wakeroll_pipeline.ledger.stored_snapshots import snapshot_keys
from wakeroll_pipeline.operators.ledger_rows import (
    NOWHERE,
    KafkaRecord,
    Positions,
    event_rows,
    read_decisions,
)
from wakeroll_pipeline.recovery.checkpoint_state import latest_recording, progress_of
from wakeroll_pipeline.settings import Settings

_SOURCE = "Kafka's log"
_AT_ONCE = 20_000
"""Number of decisions that are compared with the table at once."""


def plan_from_kafka(settings: Settings, ledger: Ledger) -> RepairPlan:
    """Return the plan for the rows that Kafka still has.

    Records after those that `record` has read are not missing: it will read them. A record is used only if its
    neighbours in the log are the neighbouring rows of the table. Otherwise the topic was created again, or has lost
    records.

    Args:
        settings: settings of the deployment.
        ledger: the open ledger, which no process writes meanwhile.

    Raises:
        NotReachable: no broker answered, or a log lost records meanwhile.
    """
    missing = _missing_events(settings, ledger)
    events, event_findings = _events(settings, ledger, missing)
    appended, replaced, decision_findings = _decisions(settings, ledger)
    changes = [Change(EVENTS, [], events), Change(DECISIONS, replaced, appended)]
    return RepairPlan([*event_findings, *decision_findings], [one for one in changes if one.deleted or one.appended])


class _Missing(NamedTuple):
    """Missing records of a control partition, in ranges, and the range that Kafka has."""

    ranges: Sequence[Span]
    log: Span


def _missing_events(settings: Settings, ledger: Ledger) -> dict[ControlPartition, _Missing]:
    topics = settings.connection.topics.control
    places = [(topic, partition) for topic in topics for partition in range(settings.partitions)]
    logs = Cluster(settings.connection).all_offsets(places)
    progress = progress_of(settings.checkpoint(latest_recording(settings)))
    read = {} if progress is None else progress.next
    extents = {
        (topic, partition): Span(first, last + 1)
        for topic, partition, first, last in ledger.stream(
            "select topic, partition, min(events.offset), max(events.offset) from events group by topic, partition"
        )
    }
    causes = {
        (topic, partition): last + 1
        for topic, partition, last in ledger.stream(
            "select cause.topic, cause.partition, max(cause.offset) from decisions "
            "group by cause.topic, cause.partition"
        )
    }
    states = {(key.place, key.offset) for key in snapshot_keys(ledger)}
    gaps: dict[ControlPartition, list[Span]] = {}
    for place, before, after in gaps_of(ledger):
        gaps.setdefault(place, []).append(Span(before + 1, after))
    found = {}
    for place in places:
        log = Span(*logs[place])
        extent = extents.get(place, Span(0, 0))
        end = min(max(read.get(place, 0), extent.end, causes.get(place, 0)), log.end)
        # Retention deletes the records up to a snapshot; other records before the first one are missing.
        is_cut = (place, extent.begin - 1) in states
        begin = extent.begin if is_cut else min(log.begin, extent.begin) if extent.end else log.begin
        ranges = [Span(begin, extent.begin), *gaps.get(place, []), Span(extent.end, end)]
        if not extent.end:
            ranges = [Span(begin, end)]
        if ranges := [one for one in ranges if one.begin < one.end]:
            found[place] = _Missing(ranges, log)
    return found


def _events(
    settings: Settings, ledger: Ledger, missing: Mapping[ControlPartition, _Missing]
) -> tuple[list[EventRow], list[Finding]]:
    """Return the missing rows that Kafka has, and the findings about all that are missing."""
    spans = {
        place: Span(
            max(its.log.begin, its.ranges[0].begin - 1), max(its.log.begin, min(its.log.end, its.ranges[-1].end + 1))
        )
        for place, its in missing.items()
    }
    rows: dict[ControlPartition, list[EventRow]] = {place: [] for place in missing}
    others: set[ControlPartition] = set()
    for message in read_spans(settings.connection, spans):
        record = _record_of(message)
        place = (record.topic, record.partition)
        [placed] = event_rows([record])
        row = placed.row
        assert isinstance(row, EventRow), "event_rows yields rows of events"
        ranges = missing[place].ranges
        if any(one.begin <= row.offset < one.end for one in ranges):
            rows[place].append(row)
        elif any(row.offset in (one.begin - 1, one.end) for one in ranges) and not _is_recorded(ledger, row):
            others.add(place)
    findings: list[Finding] = []
    for place, its in missing.items():
        name = f"{place[0]}-{place[1]}"
        if place in others:
            rows[place] = []
        there = {row.offset for row in rows[place]}
        findings += findings_of(EVENTS, [(name, offset, "missing") for offset in sorted(there)], _SOURCE)
        lost = [offset for one in its.ranges for offset in range(one.begin, one.end) if offset not in there]
        why = (
            "The records beside them differ from Kafka's: the topic was created again, or has lost records"
            if place in others
            else f"Kafka's log begins at {its.log.begin}"
        )
        findings += findings_of(EVENTS, [(name, offset, "missing") for offset in lost], "", why)
    return [row for its in rows.values() for row in its], findings


def _is_recorded(ledger: Ledger, row: EventRow) -> bool:
    """Return whether the table has this record, or none at its offset."""
    found = ledger.rows(
        "select at_ms, value from events where topic = $topic and partition = $partition and events.offset = $place",
        topic=row.topic,
        partition=row.partition,
        place=row.offset,
    )
    return all((one.at_ms, one.value) == (row.at_ms, row.value) for one in found)


def _decisions(settings: Settings, ledger: Ledger) -> tuple[list[DecisionRow], list[DecisionRow], list[Finding]]:
    """Return the decisions to append, one for each key that is deleted first, and the findings."""
    topic = settings.connection.topics.decisions
    logs = Cluster(settings.connection).all_offsets([(topic, number) for number in range(settings.partitions)])
    archived = cut_logs(ledger)
    newest = Positions()
    missing: dict[tuple[str, int], DecisionRow] = {}
    wrong: dict[tuple[str, int], DecisionRow] = {}
    messages = read_spans(settings.connection, {place: Span(*offsets) for place, offsets in logs.items()})
    while some := list(islice(messages, _AT_ONCE)):
        fresh: dict[tuple[str, int], DecisionRow] = {}
        for one in read_decisions(map(_record_of, some)):
            if one.position <= newest.get(one.stream, NOWHERE):
                continue
            newest[one.stream] = one.position
            cause = one.row.cause
            if cause.offset >= archived.get((cause.topic, cause.partition), 0):
                fresh[one.row.shard, one.row.seq] = one.row
        recorded = _recorded(ledger, fresh)
        for key, row in fresh.items():
            there = recorded.get(key)
            if there is None:
                missing[key] = row
            elif there != row.json:
                wrong[key] = row
    known = {(row.shard, row.seq) for row in ledger.rows("select distinct shard, seq from divergences")}
    wrong = {key: row for key, row in wrong.items() if key not in known}
    findings = [
        *findings_of(DECISIONS, [(*key, "missing") for key in sorted(missing)], _SOURCE),
        *findings_of(DECISIONS, [(*key, "wrong") for key in sorted(wrong)], _SOURCE),
    ]
    replaced = [wrong[key] for key in sorted(wrong)]
    return [*(missing[key] for key in sorted(missing)), *replaced], replaced, findings


def _recorded(ledger: Ledger, wanted: Mapping[tuple[str, int], DecisionRow]) -> dict[tuple[str, int], str]:
    """Return key -> JSON of those decisions that are in the table."""
    ranges: dict[str, list[int]] = {}
    for shard, seq in wanted:
        ranges.setdefault(shard, []).append(seq)
    return {
        (shard, seq): json
        for shard, numbers in ranges.items()
        for seq, json in ledger.stream(
            "select seq, json from decisions where shard = $shard and seq between $first and $last",
            shard=shard,
            first=min(numbers),
            last=max(numbers),
        )
    }


def _record_of(message: Message) -> KafkaRecord:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None, "a message that was read has a topic"
    assert partition is not None, "a message that was read has a partition"
    assert offset is not None, "a message that was read has an offset"
    key, value = (one.encode() if isinstance(one, str) else one for one in (message.key(), message.value()))
    return KafkaRecord(topic, partition, offset, message.timestamp()[1], key, value)
