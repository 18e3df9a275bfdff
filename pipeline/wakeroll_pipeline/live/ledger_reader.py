"""The live model from the tables alone, without Spark: the newest snapshots, and the archived records after them."""

import heapq
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import structs

from wakeroll.connection import Topics
from wakeroll.errors import InvalidUsage
from wakeroll_model.decision_order import ERA_SQL, SHARD_SQL
from wakeroll_model.decisions import AnyDecision, Decision, Handover, Rebalance
from wakeroll_model.events import UNREADABLE
from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record, shard_of
from wakeroll_model.rows import SNAPSHOTS
from wakeroll_model.shard_state import WrongPartitions
from wakeroll_model.signing import OnRecord, Signatures
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger, duck_ledger
from wakeroll_pipeline.ledger.ledger import UnreadableTable, Value, any_of
from wakeroll_pipeline.ledger.shard_growth import Step, number_at, steps_of
from wakeroll_pipeline.ledger.stored_snapshots import SnapshotKey, intact, newest_of, read_snapshots, snapshot_keys
from wakeroll_pipeline.live.decision_feed import HISTORY_MS, MOST_DECISIONS, MOST_FAILURES, SHOWN
from wakeroll_pipeline.live.live_health import Rebuilt
from wakeroll_pipeline.live.live_model import LiveModel
from wakeroll_pipeline.live.shard_follower import ShardFollower
from wakeroll_pipeline.storage.place import Folder

log = logging.getLogger(__name__)

_WITHOUT = "%s; the live view goes on with the log of the brokers alone"
_REFRESH_MS = 5_000
"""Log time between two updates of the lags (ms): their trend and the times of commits are as exact as this."""
_LAST = 2**62
"""A time and an offset after all others."""
_LATE_MS = 3_600_000
"""Decisions that are published later than their log time by more than this (ms), because a coordinator catches up, are
not shown."""
_ALL = range(-1, _LAST)
"""Offsets of all snapshots; -1 is before the first record."""

Detail = Literal["states", "summaries", "views"]
"""Use of a model. For ``states``, only the states of the shards are needed: then the log is not followed over time, so
lags and verdicts differ from those on a page. For ``summaries``, the histories of the groups lack the decisions that no
summary needs."""

_SHOWN: Mapping[Detail, Sequence[type[Decision]]] = {
    "states": (Rebalance,),
    "summaries": (Rebalance, Handover),
    "views": SHOWN,
}
_ONLY: Mapping[Detail, str] = {
    "states": "",
    "summaries": """
            and (kind <> 'handover' or try(json_extract_string(json, '$.to')) is not null)
            window of_queue as (
                partition by kind, group_id, try(json_extract_string(json, '$.queue')) order by era desc, seq desc
            )
            qualify kind <> 'handover' or row_number() over of_queue = 1""",
    "views": f"""
            qualify kind <> 'failed'
                or row_number() over (partition by kind, group_id order by era desc, seq desc) <= {MOST_FAILURES}""",
}
"""Condition of the shown decisions: a summary needs only the newest owner of each queue; and failures of a handler must
not displace the rebalances."""

_decoder: msgspec.json.Decoder[AnyDecision] = msgspec.json.Decoder(AnyDecision)


class Snapshot(NamedTuple):
    """The state of a shard after a record."""

    era: int
    offset: int
    """Offset of the last record that it includes."""
    body: bytes


def newest_snapshots(warehouse: Folder, eras: Mapping[str, int] | None = None) -> dict[ControlPartition, Snapshot]:
    """Return the newest snapshot of each shard; none if there are no tables, or of another version of the state.

    Tables that cannot be read are ignored with a warning, because the log at the brokers contains the state too.

    Args:
        warehouse: folder of the tables.
        eras: shard, like ``groups-3`` -> its era; other eras' snapshots are skipped.  None: the newest era of each.
    """
    try:
        with duck_ledger(warehouse, only=SNAPSHOTS) as ledger:
            return _snapshots(ledger, {}, eras)
    except InvalidUsage:  # `run` has created no tables yet
        return {}
    except UnreadableTable as error:
        log.warning(_WITHOUT, error)
        return {}


class Recorded(NamedTuple):
    """The part of the tables that a follower of the brokers begins with."""

    snapshots: Mapping[ControlPartition, Snapshot]
    """The newest snapshot of each shard."""
    decisions: Sequence[tuple[AnyDecision, int, int]]
    """As `recent_decisions` yields them; published before `until_ms`."""
    until_ms: Mapping[int, int]
    """Partition of the decisions topic -> log time of the newest recorded publication (epoch ms); a partition without
    recent decisions is left out."""


NOT_RECORDED = Recorded({}, (), {})
"""The value if there are no tables."""


def read_recorded(warehouse: Folder, from_ms: int) -> Recorded:
    """Return the newest snapshots, and the recorded decisions that were published from a log time on (epoch ms).

    Tables that cannot be read are ignored with a warning.
    """
    try:
        with (
            duck_ledger(warehouse, only=SNAPSHOTS) as opened,
            opened.within(from_ms - _LATE_MS) as ledger,
        ):
            newest = ledger.rows(
                "select partition, max(published_ms) as newest_ms from decisions where published_ms >= $from_ms "
                "group by partition",
                from_ms=from_ms,
            )
            until_ms = {row.partition: row.newest_ms for row in newest}
            decisions = [
                one
                for one in recent_decisions(ledger, from_ms, _LAST)
                if one[2] < until_ms.get(one[1], from_ms)  # those of the same millisecond are read from the brokers
            ]
            return Recorded(_snapshots(ledger, {}, None), decisions, until_ms)
    except InvalidUsage:  # `run` has created no tables yet
        return NOT_RECORDED
    except UnreadableTable as error:
        log.warning(_WITHOUT, error)
        return NOT_RECORDED


def _snapshots(
    ledger: DuckLedger,
    reached: Mapping[ControlPartition, int],
    eras: Mapping[str, int] | None,
    ranges: Mapping[ControlPartition, range] | None = None,
) -> dict[ControlPartition, Snapshot]:
    """Return the newest snapshots of these eras that include no record above `reached`, with offsets in `ranges`.

    Damaged snapshots are left out.
    """

    def is_asked(key: SnapshotKey) -> bool:
        if key.offset > reached.get(key.place, _LAST):
            return False
        if eras is not None and key.era != eras.get(shard_of(*key.place), key.era):
            return False
        return ranges is None or key.offset in ranges.get(key.place, _ALL)

    keys = [key for key in snapshot_keys(ledger) if is_asked(key)]
    rows = intact(lambda damaged: read_snapshots(ledger, newest_of(keys, damaged)))
    return {(row.topic, row.partition): Snapshot(row.era, row.offset, row.body) for row in rows}


def recent_decisions(
    ledger: DuckLedger,
    from_ms: int,
    end_ms: int,
    group_id: str | None = None,
    detail: Detail = "views",
) -> Iterator[tuple[AnyDecision, int, int]]:
    """Yield the recorded decisions that a view shows, with their partitions and the times of their publication.

    Those are the newest `MOST_DECISIONS` of the shown kinds, and of each shard the newest one of any kind. The
    decisions of a shard are in their order.

    Args:
        ledger: the open ledger.
        from_ms: log time of the first publication (epoch ms), inclusive.
        end_ms: log time of the last publication (epoch ms), inclusive.
        group_id: the only group whose decisions are shown; None: those of all groups are.
        detail: the use of the model.
    """
    period = "published_ms >= $from_ms and published_ms <= $end"
    kinds = ", ".join(f"'{one.__struct_config__.tag}'" for one in _SHOWN[detail])
    newest = ledger.rows(
        f"select partition, shard, max(seq) as seq from decisions where {period} group by partition, shard",
        from_ms=from_ms,
        end=end_ms,
    )
    is_newest, values = any_of(("shard", "seq"), [(row.shard, row.seq) for row in newest])
    of_group = "true"
    if group_id is not None:
        of_group, values = "group_id = $group_id", {**values, "group_id": group_id}
    query = f"""
        with shown as (
            select json, partition, published_ms, era, seq
            from decisions
            where {period} and kind in ({kinds}) and {of_group} {_ONLY[detail]}
            order by published_ms desc, era desc, seq desc
            limit {MOST_DECISIONS}
        ),
        newest as (select json, partition, published_ms, era, seq from decisions where {period} and {is_newest})
        select json, partition, published_ms from (select * from shown union select * from newest) as found
        order by era, seq
    """
    for text, partition, published_ms in ledger.stream(query, from_ms=from_ms, end=end_ms, **values):
        try:
            yield _decoder.decode(text), partition, published_ms
        except UNREADABLE:  # of a newer version
            continue


@contextmanager
def whole_ledger(warehouse: Folder) -> Iterator[DuckLedger]:
    """Provide the ledger of a folder at one moment of all tables, for `model_of`.

    Raises:
        InvalidUsage: there are no tables in this folder, or they are of another number of partitions or another prefix.
        UnreadableTable: a table that is read during the block cannot be read.
    """
    with duck_ledger(warehouse, at_one_moment=True, only=SNAPSHOTS) as ledger:
        try:
            yield ledger
        except WrongPartitions as error:
            raise InvalidUsage(str(error)) from None


def read_ledger(warehouse: Folder, topics: Topics, partitions: int, until_ms: int | None = None) -> LiveModel:
    """Return a model of the groups at the end of the archived log, or at an earlier moment.

    Args:
        warehouse: folder of the tables.
        topics: names of the control topics.
        partitions: number of partitions of each.
        until_ms: log time (epoch ms); records after it are not applied.  None: the end of the archived log.

    Raises:
        InvalidUsage: there are no tables in this folder, or they are of another number of partitions or another prefix.
        UnreadableTable: a table cannot be read.
    """
    with whole_ledger(warehouse) as ledger:
        return model_of(ledger, topics, partitions, until_ms)


def model_of(
    ledger: DuckLedger,
    topics: Topics,
    partitions: int,
    until_ms: int | None = None,
    before_record: Callable[[], None] = lambda: None,
    group_id: str | None = None,
    *,
    detail: Detail = "views",
) -> LiveModel:
    """Return a model of the groups at the end of an open ledger's log, or at an earlier moment.

    Each shard is replayed from its nearest snapshot, up to its last record that is not after the moment. Files with
    older records only are not opened, so the time does not grow with the age of the ledger.

    Args:
        ledger: the open ledger; of its tables, only `snapshots` is queried.
        topics: names of the control topics.
        partitions: number of partitions of each.
        until_ms: the moment in log time (epoch ms), inclusive; None: the end of the archived log.
        before_record: called before each record is applied; an exception that it raises ends the work.
        group_id: the only group with a summary and a view in the model; None: all groups.
        detail: the use of the model.
    """
    began_s, records = time.monotonic(), 0

    def counted() -> None:
        nonlocal records
        before_record()
        records += 1

    model = _model_of(ledger, topics, partitions, until_ms, counted, group_id, detail=detail)
    if until_ms is not None:
        took_s = time.monotonic() - began_s
        model.facts = structs.replace(model.facts, rebuilt=Rebuilt(at_ms=int(until_ms), records=records, took_s=took_s))
    return model


def _model_of(
    ledger: DuckLedger,
    topics: Topics,
    partitions: int,
    until_ms: int | None,
    before_record: Callable[[], None],
    group_id: str | None,
    *,
    detail: Detail,
) -> LiveModel:
    end_ms = _LAST if until_ms is None else until_ms
    steps = steps_of(ledger)
    partitions = number_at(steps, partitions, until_ms)
    ranges = _with_number(steps, partitions)
    for from_ms in ledger.periods(until_ms):
        with ledger.within(from_ms, until_ms) as near:
            begin = _begin_of(near, topics, partitions, ranges, end_ms)
            if begin.is_complete:
                model = LiveModel(topics, partitions, "ledger", group_id)
                return _follow(near, model, begin, end_ms, before_record, detail=detail)
    with ledger.within() as whole:
        begin = _begin_of(whole, topics, partitions, ranges, end_ms)
        model = LiveModel(topics, partitions, "ledger", group_id)
        return _follow(whole, model, begin, end_ms, before_record, detail=detail)


def archived_shards(
    ledger: DuckLedger, topics: Topics, partitions: int
) -> Iterator[tuple[ShardFollower, Iterator[Record]]]:
    """Yield each shard as of its newest snapshot, and the archived records after it.

    Args:
        ledger: the open ledger.
        topics: names of the control topics.
        partitions: number of partitions of each.
    """
    begin = _begin_of(ledger, topics, partitions, _with_number(steps_of(ledger), partitions), _LAST)
    for place, (follower, last) in begin.shards.items():
        yield follower, _records(ledger, place, follower.next_offset, last)


class _Archived(NamedTuple):
    """The archived records of a partition."""

    first: int
    last: int
    """First and last offset."""
    last_ms: int
    """Newest log time, epoch ms."""
    records: int

    def continues(self, snapshot: Snapshot) -> bool:
        """Return whether no record is missing between a snapshot and the last record."""
        is_joined = self.first <= snapshot.offset + 1 <= self.last + 1
        return is_joined and self.records == self.last - self.first + 1


class _Begin(NamedTuple):
    """The start of a model."""

    shards: Mapping[ControlPartition, tuple[ShardFollower, int]]
    """The shards, each with the offset of its last record to apply; -1 if there is none."""
    last_ms: int
    """Newest log time of a record, epoch ms."""
    is_complete: bool
    """Whether each shard has a snapshot, and all archived records after it."""


def _begin_of(
    ledger: DuckLedger, topics: Topics, partitions: int, ranges: Mapping[ControlPartition, range], end_ms: int
) -> _Begin:
    query = (
        'select topic, partition, min("offset"), max("offset"), max(at_ms), count(*) from events '
        "where at_ms <= $end group by topic, partition"
    )
    archived = {(row[0], row[1]): _Archived(*row[2:]) for row in ledger.stream(query, end=end_ms)}
    _refuse_other_topics({topic for topic, _ in archived}, topics)
    eras = _eras(ledger, end_ms)
    reached = {place: one.last for place, one in archived.items()}
    snapshots = _snapshots(ledger, reached, eras, ranges)
    refused = _refused(ledger)
    shards, is_complete = {}, True
    # A ledger is a coordinator's, or that of a watch of Kafka's own groups.
    logs = (topics.kafka,) if any(topic == topics.kafka for topic, _ in archived) else topics.control
    for place in ((topic, partition) for topic in logs for partition in range(partitions)):
        its, snapshot = archived.get(place), snapshots.get(place)
        is_complete = is_complete and its is not None and snapshot is not None and its.continues(snapshot)
        signatures = OnRecord(refused.get(place, {}))
        era = eras.get(shard_of(*place), 1 if snapshot is None else snapshot.era)
        begin = max(0 if its is None else its.first, ranges.get(place, _ALL).start + 1)
        follower = first_follower(place, partitions, signatures, snapshot, era, begin)
        shards[place] = follower, -1 if its is None else its.last
    return _Begin(shards, max((one.last_ms for one in archived.values()), default=0), is_complete)


def _refuse_other_topics(archived: Set[str], topics: Topics) -> None:
    """Refuse an archived log of another deployment; otherwise the log would seem to be empty."""
    if archived and archived.isdisjoint((*topics.control, topics.kafka)):
        prefix = min(archived).rpartition(".")[0]
        raise InvalidUsage(f"these tables are of a deployment with the prefix {prefix!r}; use --prefix {prefix}")


def _follow(
    ledger: DuckLedger,
    model: LiveModel,
    begin: _Begin,
    end_ms: int,
    before_record: Callable[[], None],
    *,
    detail: Detail,
) -> LiveModel:
    """Let an empty model apply the archived records after its start; return it."""
    from_ms = begin.last_ms - HISTORY_MS
    if detail == "states":
        for place, (follower, last) in begin.shards.items():
            for record in _records(ledger, place, follower.next_offset, last):
                before_record()
                follower.apply(record, 0.0)
            model.put_shard(follower)
        for decision, partition, published_ms in recent_decisions(ledger, from_ms, end_ms, detail=detail):
            model.note_decision(partition, decision, published_ms)
        model.refresh()
        return model
    for follower, _ in begin.shards.values():
        model.put_shard(follower)
    for decision, partition, published_ms in recent_decisions(ledger, from_ms, end_ms, model.only, detail):
        model.note_decision(partition, decision, published_ms)
    model.refresh(only_lags=True)
    refreshed_ms = model.now_ms
    logs = [_records(ledger, place, follower.next_offset, last) for place, (follower, last) in begin.shards.items()]
    for at_ms, record in heapq.merge(*map(_timed, logs), key=itemgetter(0)):
        before_record()
        if at_ms - refreshed_ms >= _REFRESH_MS:
            model.refresh(only_lags=True)
            refreshed_ms = at_ms
        model.apply(record, 0.0)
    for queue, end, at_ms in _reported_ends(ledger, begin.last_ms - _REPORTS_MS, end_ms):
        model.note_ends({queue: end}, at_ms)
    model.refresh(review_all=True)
    return model


_REPORTS_MS = 120_000
"""Log time (ms) in which an observer reports the end of each queue at least once: it repeats each route every 30 s."""


def _reported_ends(ledger: DuckLedger, from_ms: int, end_ms: int) -> Iterator[tuple[Queue, int, int]]:
    """Yield the queues with their newest end offsets that were reported in a period, and the times of the reports.

    The states of the shards lack some of them: a shard of queues has no ends of queues without pulls.
    """
    query = (
        "select topic, broker, queue_id, max_by(end_offset, at_ms), max(at_ms) from end_offsets "
        "where at_ms >= $from_ms and at_ms <= $end group by topic, broker, queue_id"
    )
    for topic, broker, queue_id, end, at_ms in ledger.stream(query, from_ms=from_ms, end=end_ms):
        yield Queue(topic, broker, queue_id), end, at_ms


def _with_number(steps: Mapping[ControlPartition, list[Step]], partitions: int) -> dict[ControlPartition, range]:
    """Return the offsets of the snapshots that were made with a number of partitions; a missing place has no limit."""
    ranges = {}
    for place, its in steps.items():
        begin = max((step.offset for step in its if step.after <= partitions), default=0)
        end = min((step.offset for step in its if step.before >= partitions), default=_LAST)
        ranges[place] = range(begin - 1, end - 1)
    return ranges


def _timed(records: Iterator[Record]) -> Iterator[tuple[int, Record]]:
    """Yield each record with the newest log time so far, which never steps back."""
    newest_ms = 0
    for record in records:
        newest_ms = max(newest_ms, record.timestamp_ms)
        yield newest_ms, record


def first_follower(
    place: ControlPartition,
    partitions: int,
    signatures: Signatures,
    snapshot: Snapshot | None,
    era: int,
    first: int,
) -> ShardFollower:
    """Return a shard in its state before the records that follow.

    Args:
        place: control partition of the shard.
        partitions: number of partitions of the topic.
        signatures: verify signed records.
        snapshot: newest snapshot of the shard; None if there is none.
        era: era of the newest decisions; 1 if there are none.
        first: first offset that the log still has.
    """
    if snapshot is None:
        if era == 1 and first == 0:
            return ShardFollower(place, partitions, signatures)
        return ShardFollower(place, partitions, signatures, learns_era=era, first=first)
    if snapshot.era == era and snapshot.offset + 1 >= first:
        return ShardFollower(place, partitions, signatures, body=snapshot.body)
    begin = max(snapshot.offset + 1, first)
    return ShardFollower(place, partitions, signatures, body=snapshot.body, learns_era=era, first=begin)


def _eras(ledger: DuckLedger, end_ms: int) -> dict[str, int]:
    """Return shard -> the newest era with decisions up to a moment."""
    query = (
        f"select {SHARD_SQL}, max({ERA_SQL}) "
        "from (select distinct shard from decisions where published_ms <= $end) as names group by 1"
    )
    return {name: era for name, era in ledger.stream(query, end=end_ms) if era is not None}


def _refused(ledger: DuckLedger) -> dict[ControlPartition, dict[int, str]]:
    """Return place -> offset -> detail, for the records that the coordinator rejected by the rule `signature`."""
    refused: dict[ControlPartition, dict[int, str]] = {}
    query = 'select cause.topic, cause.partition, cause."offset", detail from rejections where rule = $rule'
    for topic, partition, offset, detail in ledger.stream(query, rule="signature"):
        refused.setdefault((topic, partition), {})[offset] = detail
    return refused


def _records(ledger: DuckLedger, place: ControlPartition, first: int, last: int) -> Iterator[Record]:
    """Yield the archived records of a partition from one offset to another."""
    query = (
        'select "offset", at_ms, key, value from events where topic = $topic and partition = $partition '
        'and "offset" >= $first and "offset" <= $last order by "offset"'
    )
    values: dict[str, Value] = {"topic": place[0], "partition": place[1], "first": first, "last": last}
    for offset, at_ms, key, value in ledger.stream(query, **values):
        yield Record(*place, offset, at_ms, _bytes(key), _bytes(value))


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
