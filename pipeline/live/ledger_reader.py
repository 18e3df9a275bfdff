"""The live model from the tables alone, without Spark: the newest snapshots, and the archived records behind them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import msgspec
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from model.decisions import AnyDecision, Rejected
from model.partitioner import ControlPartition
from model.records import UNREADABLE, Record, kind_of_topic
from model.rows import DECISIONS, EVENTS, SNAPSHOTS, Table
from model.shard import VERSION
from model.signing import OnRecord, Signatures
from pipeline.live.decision_feed import HISTORY_MS
from pipeline.live.live_model import LiveModel
from pipeline.live.shard_follower import ShardFollower
from wakeroll.connection import Topics
from wakeroll.errors import InvalidUsage

_ERA = "try_cast(split_part(shard, '.', -1) as int)"
_SHARD = "split_part(shard, '.', 1)"
_FETCHED = 10_000
_LAST = 2**62
"""A time and an offset after all others."""

_decode: msgspec.json.Decoder[AnyDecision] = msgspec.json.Decoder(AnyDecision)


class Snapshot(NamedTuple):
    """The state of a shard behind a record."""

    era: int
    offset: int
    """Offset of the last record that it includes."""
    body: bytes


def newest_snapshots(warehouse: Path, eras: Mapping[str, int] | None = None) -> dict[ControlPartition, Snapshot]:
    """Return the newest snapshot of each shard; none if there are no tables, or of another version of the state.

    Args:
        warehouse: folder of the tables.
        eras: shard, like ``groups-3`` -> its era; other eras' snapshots are skipped.  None: the newest era of each.
    """
    return _snapshots(warehouse, {}, eras)


def _snapshots(
    warehouse: Path, reached: Mapping[ControlPartition, int], eras: Mapping[str, int] | None
) -> dict[ControlPartition, Snapshot]:
    """Return the newest snapshots of these eras that include no record above `reached`."""
    newest: dict[ControlPartition, tuple[int, int]] = {}
    for topic, partition, era, offset in _rows(
        warehouse, SNAPSHOTS, f'select topic, partition, era, "offset" from snapshots where version = {VERSION}'
    ):
        place = (topic, partition)
        if offset > reached.get(place, _LAST) or (eras is not None and era != eras.get(_name(place), era)):
            continue
        newest[place] = max((era, offset), newest.get(place, (0, -2)))
    found = {}
    for (topic, partition), (era, offset) in newest.items():
        condition = 'topic = $topic and partition = $partition and era = $era and "offset" = $offset'
        values = {"topic": topic, "partition": partition, "era": era, "offset": offset}
        for (body,) in _rows(warehouse, SNAPSHOTS, f"select body from snapshots where {condition} limit 1", values):
            found[topic, partition] = Snapshot(era, offset, bytes(body))
    return found


def read_ledger(warehouse: Path, topics: Topics, partitions: int, until_ms: int | None = None) -> LiveModel:
    """Return a model of the groups at the end of the archived log, or at an earlier moment.

    Args:
        warehouse: folder of the tables.
        topics: names of the control topics.
        partitions: number of partitions of each.
        until_ms: log time (epoch ms); records after it are not applied.  None: the end of the archived log.

    Raises:
        InvalidUsage: there are no tables in this folder.
    """
    if not (warehouse / EVENTS.name).is_dir():
        raise InvalidUsage(f"no tables in {warehouse}; name the --home of a deployment, or its brokers by --bootstrap")
    end_ms = _LAST if until_ms is None else until_ms
    model = LiveModel(topics, partitions, "ledger")
    ends = _rows(
        warehouse,
        EVENTS,
        'select topic, partition, max("offset"), max(at_ms), min("offset") from events '
        "where at_ms <= $end group by 1, 2",
        {"end": end_ms},
    )
    reached, first, last_ms = {}, {}, 0
    for topic, partition, offset, at_ms, first_offset in ends:
        reached[topic, partition], first[topic, partition] = offset, first_offset
        last_ms = max(last_ms, at_ms)
    eras = _eras(warehouse, end_ms)
    snapshots = _snapshots(warehouse, reached, eras)
    refused = _refused(warehouse)
    for place in ((topic, partition) for topic in topics.control for partition in range(partitions)):
        era = eras.get(_name(place), 1)
        signatures = OnRecord(refused.get(place, {}))
        model.put_shard(first_follower(place, partitions, signatures, snapshots.get(place), era, first.get(place, 0)))
    for decision, partition, published_ms in _decisions(warehouse, last_ms - HISTORY_MS, end_ms):
        model.note_decision(partition, decision, published_ms)
    for place, follower in model.shards.items():
        for record in _records(warehouse, place, follower.next_offset, end_ms):
            model.apply(record, 0.0)
    model.refresh()
    return model


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
        place: its control partition.
        partitions: number of partitions of its topic.
        signatures: verify signed records.
        snapshot: its newest snapshot; None if there is none.
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


def _eras(warehouse: Path, end_ms: int) -> dict[str, int]:
    """Return shard -> the newest era that decided until a moment."""
    query = f"select {_SHARD}, max({_ERA}) from decisions where published_ms <= $end group by 1"
    return {name: era for name, era in _rows(warehouse, DECISIONS, query, {"end": end_ms}) if era is not None}


def _refused(warehouse: Path) -> dict[ControlPartition, dict[int, str]]:
    """Return place -> offset -> detail, for the records that the coordinator rejected by the rule `signature`."""
    refused: dict[ControlPartition, dict[int, str]] = {}
    query = "select json from decisions where kind = 'rejected' and contains(json, '\"rule\":\"signature\"')"
    for (text,) in _rows(warehouse, DECISIONS, query):
        decision = _decision(text)
        if isinstance(decision, Rejected) and decision.rule == "signature":
            cause = decision.cause
            refused.setdefault((cause.topic, cause.partition), {})[cause.offset] = decision.detail
    return refused


def _decisions(warehouse: Path, from_ms: int, end_ms: int) -> Iterator[tuple[AnyDecision, int, int]]:
    query = (
        f"select json, partition, published_ms, {_ERA} as era from decisions "
        "where published_ms >= $from and published_ms <= $end order by era, seq"
    )
    for text, partition, published_ms, _ in _rows(warehouse, DECISIONS, query, {"from": from_ms, "end": end_ms}):
        if (decision := _decision(text)) is not None:
            yield decision, partition, published_ms


def _decision(text: str) -> AnyDecision | None:
    try:
        return _decode.decode(text)
    except UNREADABLE:
        return None


def _records(warehouse: Path, place: ControlPartition, first: int, end_ms: int) -> Iterator[Record]:
    """Yield the archived records of a partition from an offset on."""
    query = (
        'select "offset", at_ms, key, value from events where topic = $topic and partition = $partition '
        'and "offset" >= $first and at_ms <= $end order by "offset"'
    )
    values = {"topic": place[0], "partition": place[1], "first": first, "end": end_ms}
    for offset, at_ms, key, value in _rows(warehouse, EVENTS, query, values):
        yield Record(*place, offset, at_ms, _bytes(key), _bytes(value))


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _name(place: ControlPartition) -> str:
    return f"{kind_of_topic(place[0])}-{place[1]}"


def _rows(
    warehouse: Path, table: Table, query: str, values: Mapping[str, Any] | None = None
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query on the newest version of one table; none if there is no such table, or no file."""
    try:
        files = DeltaTable(str(warehouse / table.name)).file_uris()
    except TableNotFoundError:
        return
    if not files:
        return
    with duckdb.connect() as connection:
        listed = ", ".join("'" + name.replace("'", "''") + "'" for name in files)
        connection.execute(f"create view {table.name} as select * from read_parquet([{listed}], union_by_name = true)")
        found = connection.execute(query, dict(values or {}))
        while rows := found.fetchmany(_FETCHED):
            yield from rows
