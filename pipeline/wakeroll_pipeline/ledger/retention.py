"""Retention: which rows are deleted, and which are kept so that replays have a starting snapshot.

- `events`: rows up to the starting snapshot of a replay are deleted.  Without such a snapshot nothing is deleted.
- `decisions`: a row is deleted with the record that caused it, unless it is the latest decision before that snapshot
  about a queue, offset, member or group that still exists.  So the tables show the state at the snapshot, and every
  change since.
- `assignments` and `offsets`: a row is deleted with its decision.
- `divergences`: no row is deleted; there are few.
- `chain`: no line is deleted.
- `snapshots`: rows before the starting snapshot are deleted. Of those older than `keep_snapshots_ms`, the last of each
  day is kept, the last of each `SNAPSHOT_SPAN` records, the snapshot with which an era began, and the newest
  `keep_snapshots` of each shard. A damaged snapshot is never a starting snapshot, so the records before it are still
  needed.

The highest row of a stream is never deleted, because it shows the position up to which a table is complete.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from msgspec import Struct

from wakeroll_model import config
from wakeroll_model.decisions import Handover, Membership, Offset, Rebalance
from wakeroll_model.rows import (
    ASSIGNMENTS,
    CHAIN,
    DECISIONS,
    DIVERGENCES,
    EVENTS,
    OFFSETS,
    SNAPSHOTS,
    SnapshotRow,
    Table,
)
from wakeroll_model.shard_state import READABLE
from wakeroll_pipeline.ledger.delta_files import literal, quoted
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger, duck_ledger
from wakeroll_pipeline.ledger.file_rewrites import MOST_IN_MEMORY, DataFile, NotRewritten, Rewrite, data_files
from wakeroll_pipeline.ledger.row_hashes import stream_columns, stream_of
from wakeroll_pipeline.ledger.stored_snapshots import SnapshotKey, intact, key_of, read_snapshots
from wakeroll_pipeline.storage.place import Folder

DAY_MS = 24 * 3_600_000
_PRESENT = ("joined", "resubscribed", "described", "replaced")
"""Values of the last `change` of a client that is a member; ledgers before protocol version 2 have `replaced`."""
_GONE = ("left", "died", "expired", "gone", "kicked")
"""Values of the last `change` of a client that is not a member any more. Other changes, such as `conflict` or
`leaving`, do not show whether it is one."""


class Past(Struct, frozen=True):
    """Bounds of the rows that are old enough to delete."""

    begins: Mapping[tuple[str, int], int]
    """(topic, partition) of a control topic -> offset of the snapshot after which its archived log will begin."""
    events_before_ms: int
    """Log time (epoch ms) before which events are old; always a midnight (UTC), so that a file is rewritten at
    most once a day."""
    decisions_before_ms: int
    """Log time (epoch ms) before which decisions are old; always a midnight (UTC)."""
    keep_snapshots_ms: int = config.KEEP_SNAPSHOTS_MS
    """Age below which all snapshots are kept (ms)."""
    keep_snapshots: int = config.KEEP_SNAPSHOTS
    """Number of the newest snapshots of each shard that are kept, however old they are."""


def past_of(
    warehouse: Folder,
    now_ms: int,
    keep_events_ms: int,
    keep_decisions_ms: int,
    *,
    keep_snapshots_ms: int = config.KEEP_SNAPSHOTS_MS,
    keep_snapshots: int = config.KEEP_SNAPSHOTS,
) -> Past:
    """Return the bounds of old rows.

    Args:
        warehouse: folder of the tables.
        now_ms: this machine's time (epoch ms); rows with a later log time are not old.
        keep_events_ms: minimum retention of `events` (ms).
        keep_decisions_ms: minimum retention of the other tables (ms); at least `keep_events_ms` is used.
        keep_snapshots_ms: age below which all snapshots are kept (ms).
        keep_snapshots: number of the newest snapshots of each shard that are kept, however old they are.

    Raises:
        UnreadableTable: `events` or `snapshots` cannot be read.
        StorageFailed: the store did not answer.
    """
    events_before_ms = kept_from(EVENTS, now_ms, keep_events_ms, keep_decisions_ms)
    # The age is that of the records, because a shard's clock lags behind them by all the time that was dark.  The
    # newest snapshot is never chosen: then records follow the chosen one, among them the highest of the stream.
    query = f"""
        with old as (
            select topic, partition, max("offset") as old_offset from events where {EVENTS.at} < $before group by all
        ), states as (
            select topic, partition, era, "offset", max("offset") over (partition by topic, partition) as newest
            from snapshots where version between $first and $last
        )
        select distinct topic, partition, era, "offset" from states join old using (topic, partition)
        where "offset" < newest and "offset" <= old_offset
    """
    with duck_ledger(warehouse, only=SNAPSHOTS) as opened, opened.within(0, events_before_ms) as ledger:
        rows = list(ledger.stream(query, before=events_before_ms, first=READABLE[0], last=READABLE[-1]))
    return Past(
        begins=_begins(warehouse, [SnapshotKey(*row) for row in rows]),
        events_before_ms=events_before_ms,
        decisions_before_ms=kept_from(DECISIONS, now_ms, keep_events_ms, keep_decisions_ms),
        keep_snapshots_ms=keep_snapshots_ms,
        keep_snapshots=keep_snapshots,
    )


def kept_from(table: Table, now_ms: int, keep_events_ms: int, keep_decisions_ms: int) -> int:
    """Return the midnight (UTC, epoch ms) before which rows of `events`, or of another table, are old.

    Args:
        table: the table.
        now_ms: as for `past_of`.
        keep_events_ms: as for `past_of`.
        keep_decisions_ms: as for `past_of`.
    """
    keep_ms = keep_events_ms if table is EVENTS else max(keep_events_ms, keep_decisions_ms)
    return (now_ms - keep_ms) // DAY_MS * DAY_MS


def _begins(warehouse: Folder, old: Sequence[SnapshotKey]) -> dict[tuple[str, int], int]:
    """Return the place of each shard with old snapshots -> the highest offset of an undamaged one."""
    if not old:
        return {}

    def choose(damaged: Set[SnapshotKey]) -> list[SnapshotRow]:
        highest: dict[tuple[str, int], SnapshotKey] = {}
        for key in sorted({*old} - damaged, key=lambda one: (one.offset, one.era)):
            highest[key.place] = key
        return read_snapshots(ledger, list(highest.values()))

    with duck_ledger(warehouse) as ledger:
        return {key.place: key.offset for key in map(key_of, intact(choose))}


Rewriting = Callable[[Table, Mapping[str, int]], AbstractContextManager[object]]
"""Context of a deletion; it receives the table, and the highest position of each stream with deleted rows."""


def forget(
    warehouse: Folder,
    table: Table,
    past: Past,
    rewriting: Rewriting = lambda _table, _ends: nullcontext(),
) -> None:
    """Delete the old rows of one table in one commit; make no commit if there are none.

    Call it in the order of `wakeroll_model.rows.TABLES`: records before their decisions, decisions before their rows.
    Then a query between two calls, or after a crash, may find more rows than needed, but never fewer.

    Raises:
        NotRewritten: another program has committed at the same time, or enabled a feature of Delta for the table that
            is not known here.
        UnreadableTable: a table cannot be read.
        StorageFailed, OSError: the store did not answer, or a file cannot be written.
    """
    if table in (CHAIN, DIVERGENCES) or (not past.begins and table is not SNAPSHOTS):
        return
    with duck_ledger(warehouse) as ledger:
        _Deletion(ledger, table, past).carry_out(rewriting)


class _Deletion:
    """The deletion of the old rows of a table; see `forget`."""

    def __init__(self, ledger: DuckLedger, table: Table, past: Past) -> None:
        """Find the rows: the view or table `gone` of the ledger's connection has their keys, streams and times."""
        self._ledger, self._table = ledger, table
        self._connection = ledger.connection
        using = f"using ({', '.join(map(quoted, table.key))})"
        self._of_kept = f"anti join gone {using}"
        """Last part of a query of a file's keys, which selects the kept rows."""
        if table is EVENTS:  # a simple condition is quicker than a look for each key
            is_old = _up_to(past, "topic", "partition", '"offset"')
            self._of_kept = f"where not {is_old}"
            self._connection.execute(
                f"create temporary view gone as select {_columns(table)} from events where {is_old}"
            )
            return
        query = {
            DECISIONS.name: _decisions,
            ASSIGNMENTS.name: _undecided,
            OFFSETS.name: _undecided,
            SNAPSHOTS.name: _snapshots,
        }[table.name](table, past)
        ledger.in_bounded_memory(lambda: self._connection.execute(f"create or replace temporary table gone as {query}"))

    def carry_out(self, rewriting: Rewriting) -> None:
        """Replace the files that have old rows.

        Raises:
            NotRewritten: the table must not lose rows.
        """
        ends, last_ms = self._ends()
        if not ends:
            return
        rewrite = Rewrite(self._ledger.warehouse / self._table.name, self._table)
        if rewrite.delta.metadata().configuration.get("delta.appendOnly") == "true":
            raise NotRewritten(f"{self._table.name} keeps its old rows: its property delta.appendOnly is true")
        with rewriting(self._table, ends):
            self._replace_files(rewrite, last_ms)
            rewrite.commit("DELETE", {"predicate": '["older than the retention"]'}, changes_data=True)

    def _ends(self) -> tuple[dict[str, int], int]:
        """Return stream -> the highest position of a deleted row; and the newest time of these rows."""
        names = stream_columns(self._table)
        columns = (*map(quoted, names), f"max({quoted(self._table.position)})", f"max({quoted(self._table.at)})")
        rows = self._connection.execute(f"select {', '.join(columns)} from gone group by all").fetchall()
        ends = {stream_of(self._table, dict(zip(names, row, strict=False))): row[-2] for row in rows}
        return ends, max((row[-1] for row in rows), default=0)

    def _replace_files(self, rewrite: Rewrite, last_ms: int) -> None:
        """Replace the files; the kept rows of files that are old as a whole are merged into common files.

        A file with rows that are not old is replaced separately, so that a query of these rows does not open the
        others.
        """
        parts: list[pa.Table] = []
        was_full = False
        for file in data_files(rewrite.delta, self._table):
            if file.first_ms > last_ms or not self._has_old_rows(rewrite, file):
                continue
            rewrite.remove([file])
            rows = rewrite.rows_in(file)
            left = rows.take(self._kept(rows))
            if file.last_ms > last_ms:
                _add(rewrite, [left], is_full=file.is_full)
                continue
            parts.append(left)
            was_full |= file.is_full
            if sum(part.nbytes for part in parts) >= MOST_IN_MEMORY:
                _add(rewrite, parts, is_full=True)
                parts.clear()
        _add(rewrite, parts, is_full=was_full)

    def _has_old_rows(self, rewrite: Rewrite, file: DataFile) -> bool:
        keys = rewrite.rows_in(file, self._table.key)
        return len(self._kept(keys)) < len(keys)

    def _kept(self, rows: pa.Table) -> pa.Array:
        """Return the numbers of the rows that are not deleted."""
        keys = rows.select(list(self._table.key)).append_column("number", pa.array(range(len(rows)), pa.int64()))
        self._connection.register("keys_of_file", keys)
        try:
            query = f"select number from keys_of_file {self._of_kept} order by number"
            found: Mapping[str, Any] = self._connection.execute(query).fetchnumpy()
        finally:
            self._connection.unregister("keys_of_file")
        return pa.array(found["number"], pa.int64())


def _add(rewrite: Rewrite, parts: Sequence[pa.Table], *, is_full: bool) -> None:
    """Write a file with the rows of several Arrow tables, if there are any."""
    if any(map(len, parts)):
        rewrite.add(pa.concat_tables(parts).combine_chunks(), is_full=is_full)


def _decisions(table: Table, past: Past) -> str:
    """Return the query of the decisions to delete: their records are deleted, and a newer one on the subject exists."""
    is_past = _up_to(past, "cause.topic", "cause.partition", 'cause."offset"')
    last_words = _listed(_tag(one) for one in (Membership, Rebalance, Handover, Offset))
    is_membership, is_offset = (f"kind = {literal(_tag(one))}" for one in (Membership, Offset))
    return f"""
        with said as (
            select
                *,
                json_extract_string(json, '$.change') as change,
                json_extract_string(json, '$.strategy') = '' as is_first,
                json_extract(json, '$.queue')::varchar as queue,
                case when {is_membership}
                    or ({is_offset} and json_extract_string(json, '$.mode') = 'broadcasting')
                then client_id end as client,
                coalesce(era, 0)::hugeint * {2**63} + seq as place
            from decisions where {table.at} < {past.decisions_before_ms} and {is_past}
        ), known as (
            select
                *,
                row_number() over (
                    partition by kind, group_id, client, queue, change, is_first order by place desc
                ) as newer,
                arg_max(change, place) filter (where {is_membership} and change in ({_listed((*_PRESENT, *_GONE))}))
                    over (partition by group_id, client_id) as its_last,
                max(place) filter (where change = 'forgotten') over (partition by group_id) as forgotten,
                max(seq) over (partition by {", ".join(map(quoted, table.stream))}, kind) as highest
            from said
        )
        select {_columns(table)} from known
        where seq < highest and not (
            kind in ({last_words}) and newer = 1
            and not (client is not null and coalesce(its_last not in ({_listed(_PRESENT)}), false))
            and coalesce(place > forgotten, true)
        )
    """


def _undecided(table: Table, past: Past) -> str:
    """Return the query of the rows whose decisions are deleted."""
    position = quoted(table.position)
    # A row may be slightly older than its decision.
    decided_before_ms = past.decisions_before_ms + DAY_MS
    return f"""
        with old as (
            select {_columns(table)}, max({position}) over ({_stream(table)}) as highest
            from {table.name} where {table.at} < {past.decisions_before_ms}
        )
        select * exclude (highest) from old
        anti join (select shard, seq from decisions where {DECISIONS.at} < {decided_before_ms}) as made
        using (shard, seq)
        where {position} < highest
    """


def _snapshots(table: Table, past: Past) -> str:
    """Return the query of the snapshots to delete: no replay needs them, or another snapshot is near."""
    begin = "case " + "".join(
        f"when {_is_at(place, 'topic', 'partition')} then {offset} " for place, offset in past.begins.items()
    )
    begin = f"{begin} else -1 end" if past.begins else "-1"
    of_states = ", ".join([*map(quoted, table.stream), "era", "version"])
    return f"""
        with known as (
            select
                *,
                {table.at} < max({table.at}) over ({_stream(table)}) - {past.keep_snapshots_ms}
                    and dense_rank() over ({_stream(table)} order by era desc, "offset" desc) > {past.keep_snapshots}
                as is_old,
                "offset" in (
                    max("offset") over (partition by {of_states}, {table.at} // {DAY_MS}),
                    max("offset") over (partition by {of_states}, "offset" // {config.SNAPSHOT_SPAN})
                ) as is_last,
                era > 1 and "offset" = min("offset") over (partition by {of_states}) as is_begin_of_era,
                {begin} as begin
            from (select * exclude (body) from snapshots)
        )
        select {_columns(table)} from known
        where "offset" < begin or (is_old and not is_last and "offset" <> begin and not is_begin_of_era)
    """


def _columns(table: Table) -> str:
    """Return the columns that identify a row and its stream, and its time."""
    return ", ".join(map(quoted, dict.fromkeys((*table.key, *table.stream, table.at))))


def _stream(table: Table) -> str:
    return f"partition by {', '.join(map(quoted, table.stream))}"


def _up_to(past: Past, topic: str, partition: str, offset: str) -> str:
    """Return the condition that a record is before the beginning of its archived log."""
    places = (f"({_is_at(place, topic, partition)} and {offset} <= {begin})" for place, begin in past.begins.items())
    return f"({' or '.join(places)})"


def _is_at(place: tuple[str, int], topic: str, partition: str) -> str:
    return f"{topic} = {literal(place[0])} and {partition} = {place[1]}"


def _listed(texts: Iterator[str] | Sequence[str]) -> str:
    return ", ".join(map(literal, texts))


def _tag(kind: type[Struct]) -> str:
    return str(kind.__struct_config__.tag)
