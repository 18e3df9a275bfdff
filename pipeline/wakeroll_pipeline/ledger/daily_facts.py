"""Daily facts: a small Delta table with one row per group and day (UTC), which outlives the rows it was computed from.

A day is written once, when every stream has recorded more than an hour of the next day. Retention waits for it. The
facts are not part of the hash chain: while the rows of a day exist, `facts_of` can compute the day again.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

from arro3.core import RecordBatchReader, Table
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from duckdb import DuckDBPyRelation

from wakeroll_model.rows import ASSIGNMENTS, DECISIONS, EVENTS, OFFSETS, TABLES
from wakeroll_model.rows import Table as LedgerTable
from wakeroll_model.slices import MOST
from wakeroll_pipeline.ledger.column_types import Column, Simple, in_duckdb
from wakeroll_pipeline.ledger.delta_files import (
    bounds_of,
    failing_query,
    is_delta,
    literal,
    open_delta,
    quoted,
    reading,
)
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger, duck_ledger
from wakeroll_pipeline.ledger.ledger import UnreadableTable
from wakeroll_pipeline.ledger.losses import Loss, losses_of
from wakeroll_pipeline.ledger.openings import (
    Opening,
    begin_of,
    forget_opening,
    opening_of,
    read_opening,
    write_opening,
)
from wakeroll_pipeline.ledger.stored_marts import DAILY_FACTS, look_after_mart, mart_query, path_of_facts, with_comments
from wakeroll_pipeline.ledger.stream_names import values_of
from wakeroll_pipeline.ledger.view_queries import IS_ABRUPT
from wakeroll_pipeline.storage.place import Folder, Place

COMMENT = "The facts about one group on one day (UTC), kept when the rows of the day are deleted."

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_MARGIN_MS = _HOUR_MS
"""Time before and after a day whose rows are used for it (ms): reports of end offsets, expirations and fences of
members. A day is complete when every stream has records of more than this time of the next day."""


class Fact(NamedTuple):
    """A column of the table."""

    type: Simple
    comment: str


FACTS: Mapping[str, Fact] = {
    "day": Fact("date", "the day, in UTC"),
    "group_id": Fact("string", "the group"),
    "rebalances": Fact("bigint", "number of rebalances"),
    "rebalances_by_trigger": Fact(
        "string", "JSON object of the number of rebalances by trigger, sorted by trigger; {} if there were none"
    ),
    "handed_over": Fact("bigint", "number of queues that were handed over to a member"),
    "handed_over_abruptly": Fact("bigint", "those of handed_over that the previous owner did not release itself"),
    "total_pause_ms": Fact(
        "bigint", "sum of the times that handed-over queues were not read, with the silence of expired owners (ms)"
    ),
    "longest_pause_ms": Fact("bigint", "longest of these times (ms)"),
    "repeats_possible": Fact("bigint", "upper bound of the messages that abrupt hand-overs may have repeated"),
    "lag_at_end_messages": Fact(
        "bigint", "lag at the end of the day; null if no end offset of its queues was reported, or the group forgotten"
    ),
    "lag_max_messages": Fact("bigint", "highest lag, as far as recorded; null as for lag_at_end_messages"),
    "unowned_queue_ms": Fact("bigint", "sum over the queues of the time without an owner (ms)"),
    "members_min": Fact("bigint", "lowest number of members, as its rebalances count them; null if not known"),
    "members_max": Fact("bigint", "highest number of members, as its rebalances count them; null if not known"),
    "members_at_end": Fact(
        "bigint", "number of members after the last rebalance until the end of the day; null if not known"
    ),
    "owners": Fact("bigint", "number of clients that owned a queue at some time"),
    "rejected_events": Fact("bigint", "number of rejected events"),
    "answered_pulls": Fact("bigint", "number of pulls that were answered, each with a wake"),
    "held_ms": Fact("bigint", "sum of the times that these pulls were held (ms)"),
    "is_forgotten": Fact("boolean", "whether the group was forgotten at the end of the day"),
    "is_whole": Fact(
        "boolean", "false if the archived log begins within the day, or rows of the day are lost: the facts lack these"
    ),
}
"""Column -> its type and description."""


def columns_of_facts() -> tuple[Column, ...]:
    """Return the columns of the table, in the form of the declared columns of the ledger."""
    return tuple(Column(name, fact.type, "null" in fact.comment, fact.comment) for name, fact in FACTS.items())


def query_of_facts(warehouse: Folder) -> str:
    """Return DuckDB's query of the table; without a table it has no rows, and it fails if it cannot be read."""
    path, columns = path_of_facts(warehouse), [(name, in_duckdb(fact.type)) for name, fact in FACTS.items()]
    try:
        if is_delta(path):
            return mart_query(path)
    except UnreadableTable as damage:
        return failing_query(columns, damage)
    return reading(None, path, columns)


def missing_days(warehouse: Folder) -> list[date]:
    """Return the complete days with records that are not written yet, the earliest first.

    Raises:
        UnreadableTable: `events` or the table itself cannot be read.
        StorageFailed: the store did not answer.
    """
    if not is_delta(Place.of(warehouse) / EVENTS.name):
        return []
    with duck_ledger(warehouse) as ledger:
        written = _rows_before(ledger, date.max)
        after = max((row["day"] for row in written), default=None)
        from_ms = None if after is None else begin_of(after) + _DAY_MS
        with ledger.within(from_ms) as newer:
            ends = newer.rows(
                "select at_ms // $day_ms as day, topic, partition, max(at_ms) as last_ms from events "
                "where at_ms >= $from_ms group by all",
                day_ms=_DAY_MS,
                from_ms=from_ms or 0,
            )
    last_ms: dict[tuple[str, int], int] = {}
    streams: dict[int, set[tuple[str, int]]] = {}
    for row in ends:
        stream = (row.topic, row.partition)
        last_ms[stream] = max(last_ms.get(stream, 0), row.last_ms)
        streams.setdefault(row.day, set()).add(stream)
    newest_ms = max(last_ms.values(), default=0)

    def is_complete(day: int) -> bool:
        end_ms = (day + 1) * _DAY_MS
        # A stream that ended for good is not waited for longer than a day.
        return newest_ms >= end_ms + _DAY_MS or all(last_ms[one] >= end_ms + _MARGIN_MS for one in streams[day])

    days = []
    for day in sorted(streams):
        if not is_complete(day):
            break
        days.append(datetime.fromtimestamp(day * _DAY_MS / 1_000, UTC).date())
    return days


def write_day(warehouse: Folder, day: date, keep_versions_ms: int, now_ms: int) -> None:
    """Compute the facts of a day and store them, in place of stored facts of this day.

    If another process has written at the same time, nothing is stored; the day is missing then, or was written by it.

    Args:
        warehouse: folder of the tables.
        day: a complete day; all days before it must be written.
        keep_versions_ms: how long an earlier version of the table can be read (ms).
        now_ms: this machine's time (epoch ms).

    Raises:
        UnreadableTable: a table cannot be read.
        DeltaError: the table cannot be written.
        StorageFailed: the store did not answer.
    """
    path = path_of_facts(warehouse)
    # Opened before the facts are computed: then a commit of another process in the meantime is a conflict.
    table = open_delta(path) if is_delta(path) else None
    known = read_opening(path)
    with duck_ledger(warehouse) as ledger:
        opening = opening_of(ledger, day, known)
        store(path, table, day, facts_of(ledger, day, opening))
    if known is not None and known.day > day:  # the rows of an earlier day may have changed
        forget_opening(path)
    else:
        write_opening(path, opening)
    look_after_mart(path, keep_versions_ms, now_ms)


def store(path: Place, table: DeltaTable | None, day: date, facts: RecordBatchReader) -> bool:
    """Store the facts of a day; return False if a write of another process prevented that.

    Args:
        path: folder of the table.
        table: the table as it was before the facts were computed; None if there was none.
        day: the day.
        facts: its rows.

    Raises:
        DeltaError: the table cannot be written.
    """
    location, options = path.for_deltalake()
    comments = {name: fact.comment for name, fact in FACTS.items()}
    rows = with_comments(facts, comments)
    try:
        if table is None:
            write_deltalake(
                location,
                rows,
                storage_options=options,
                mode="error",
                name=DAILY_FACTS,
                description=COMMENT,
                # Other readers cannot read tables with deletion vectors.
                configuration={"delta.enableDeletionVectors": "false"},
            )
        else:
            write_deltalake(table, rows, mode="overwrite", predicate=f"day = DATE '{day.isoformat()}'")
    except (CommitFailedError, DeltaError) as error:
        if isinstance(error, CommitFailedError) or (table is None and is_delta(path)):
            return False
        raise
    return True


class Difference(NamedTuple):
    """A stored fact that differs from the one that is computed from the rows of its day."""

    day: date
    group_id: str
    column: str
    """Name of the column; empty if the whole row is missing, or should not be there."""
    stored: object
    """The stored value, or `no row`."""
    computed: object
    """The value that is computed from the rows, or `no row`."""


def differences(warehouse: Folder) -> Iterator[Difference]:
    """Yield the differences between the stored facts and those computed from the rows, by day, group and column.

    Days with rows that were deleted, or are recorded as lost, are left out.

    Args:
        warehouse: folder of the tables; without the table, there is nothing to yield.

    Raises:
        UnreadableTable: a table cannot be read.
        StorageFailed: the store did not answer.
    """
    path = path_of_facts(warehouse)
    if not is_delta(path):
        return
    with duck_ledger(warehouse) as ledger:
        # A stream that has ended keeps its last row. Streams from their first record on have no deleted rows.
        [begin] = ledger.rows(
            "select max(begin_ms) as of_log_ms from (select min(events.offset) as first, min(at_ms) as begin_ms "
            "from events group by topic, partition) where first > 0"
        )
        known = ledger.connection.sql(mart_query(path))
        days = known.select("day").distinct().order("day").fetchall()
        opening = None
        for (day,) in days:
            begin_ms = begin_of(day)
            if begin.of_log_ms is not None and begin_ms - _MARGIN_MS < begin.of_log_ms:
                continue
            with ledger.within(begin_ms, begin_ms + _DAY_MS) as its:
                if _has_losses(its, begin_ms, begin_ms + _DAY_MS, losses_of(ledger)):
                    continue
            stored = _by_group(Table(known.filter(f"day = date {literal(day.isoformat())}").to_arrow_table()))
            opening = opening_of(ledger, day, opening)
            computed = _by_group(Table(facts_of(ledger, day, opening).read_all()))
            for group_id in sorted({*stored, *computed}):
                yield from _differing(day, group_id, stored.get(group_id), computed.get(group_id))


def _by_group(rows: Table) -> dict[str, dict[str, object]]:
    columns = {name: rows.column(name).to_pylist() for name in rows.schema.names}
    return {
        group_id: {name: values[row] for name, values in columns.items()}
        for row, group_id in enumerate(columns["group_id"])
    }


def _differing(
    day: date, group_id: str, stored: Mapping[str, object] | None, computed: Mapping[str, object] | None
) -> Iterator[Difference]:
    if stored is None or computed is None:
        has, gives = ("no row", "a row") if stored is None else ("a row", "no row")
        yield Difference(day, group_id, "", has, gives)
        return
    for name in FACTS:
        if stored.get(name) != computed[name]:
            yield Difference(day, group_id, name, stored.get(name), computed[name])


def facts_of(ledger: DuckLedger, day: date, opening: Opening | None = None) -> RecordBatchReader:
    """Return the facts of a day, one row per group that exists on it, sorted by group.

    The result is the same however the files of the tables are merged. The work grows with the rows of the day.

    Args:
        ledger: the ledger.
        day: the day.
        opening: result of `opening_of` for the day; None: it is computed from all rows before the day.

    Raises:
        UnreadableTable: a table cannot be read.
    """
    begin_ms = begin_of(day)
    end_ms = begin_ms + _DAY_MS
    opening = opening_of(ledger, day) if opening is None else opening
    assert opening.day == day, f"the facts of {day} do not begin with the opening of {opening.day}"
    known = _rows_before(ledger, day)
    newest = max((row["day"] for row in known), default=None)
    before = [row for row in known if row["day"] == newest and not row["is_forgotten"]]
    with ledger.within(begin_ms - _MARGIN_MS, end_ms + _MARGIN_MS) as its:
        whole = _is_whole(ledger, its, begin_ms, end_ms, losses_of(ledger))
        margins = (begin_ms - _MARGIN_MS, end_ms + _MARGIN_MS)
        connection = its.connection
        connection.register("opening", opening.rows)
        alive = "true"
        if newest is not None:
            alive = f"group_id in ({', '.join(literal(row['group_id']) for row in before) or 'null'})"
        _restrict(its, EVENTS, *margins)
        _restrict(its, DECISIONS, *margins)
        for table, sql in _OPENED.items():
            _restrict(its, TABLES[table], begin_ms, margins[1])
            _add_rows(its, TABLES[table], connection.sql(f"{sql} and {alive}", params={"begin_ms": begin_ms}))
        _add_demands(ledger, its, margins[0])
        connection.execute("create temp table before (group_id varchar, members bigint)")
        if before:
            connection.executemany(
                "insert into before values (?, ?)", [(row["group_id"], row["members_at_end"]) for row in before]
            )
        types = ", ".join(
            f"cast({quoted(name)} as {in_duckdb(fact.type)}) as {quoted(name)}" for name, fact in FACTS.items()
        )
        named = f"select date {literal(day.isoformat())} as day, {str(whole).lower()} as is_whole, * from final"
        is_cut = bool(its.rows("select 1 from offsets where slice is not null limit 1"))
        text = _DAY.replace("{is_abrupt}", IS_ABRUPT).replace("{lowest}", _lowest() if is_cut else _AS_COMMITTED)
        sql = f"{text} select {types} from ({named}) order by group_id"
        times = {"begin_ms": begin_ms, "end_ms": end_ms}
        rows = its.in_bounded_memory(lambda: Table(connection.sql(sql, params=times).to_arrow_table()))
    return RecordBatchReader.from_batches(rows.schema, rows.to_batches())


def _restrict(ledger: DuckLedger, of: LedgerTable, from_ms: int, to_ms: int) -> None:
    """Restrict a table of a ledger to the rows of a period; its files may have other rows too.

    Args:
        ledger: the ledger.
        of: the table.
        from_ms: begin of the period (epoch ms), inclusive.
        to_ms: end of the period (epoch ms), exclusive.
    """
    ledger.begin_behind(of, f"{of.at} < {from_ms} or {of.at} >= {to_ms}")


def _add_rows(ledger: DuckLedger, of: LedgerTable, opening: DuckDBPyRelation) -> None:
    """Add rows to a table of a ledger; they may lack columns, which are null then."""
    name, of_the_day = f"opening_{of.name}", f"{of.name}_of_the_day"
    ledger.connection.register("arrived", opening.to_arrow_table())
    ledger.connection.execute(f"create table {name} as from arrived")
    ledger.connection.unregister("arrived")
    ledger.connection.execute(f"alter view {of.name} rename to {of_the_day}")
    ledger.connection.execute(f"create view {of.name} as from {of_the_day} union all by name from {name}")


def _add_demands(ledger: DuckLedger, its: DuckLedger, begin_ms: int) -> None:
    """Add the last assignment before a day of each member that lost a queue on the day: it has the heartbeat interval.

    The opening has the assignments of owners. The others lost a queue earlier, which had no owner since.

    Args:
        ledger: the ledger.
        its: the ledger of the day, with the opening.
        begin_ms: begin of the decisions in the ledger of the day (epoch ms).
    """
    connection = its.connection
    connection.execute(
        "create table lost as select distinct group_id, handovers.from as client_id from handovers "
        "where how in ('expired', 'eager') and handovers.from is not null"
    )
    connection.execute(
        "create table demands as select group_id, client_id, json, 'assignment' as kind, 0 as era, 0 as seq "
        "from opening semi join lost using (group_id, client_id) where table_name = 'decisions'"
    )
    for from_ms in (*ledger.periods(begin_ms), 0):
        lost = connection.sql("from lost anti join demands using (group_id, client_id)").to_arrow_table()
        if not lost.num_rows:
            break
        with ledger.within(from_ms, begin_ms) as period:
            period.connection.register("lost", lost)
            found = period.connection.sql(
                "select group_id, client_id, max_by(json, (era, seq)) as json "
                "from decisions semi join lost using (group_id, client_id) "
                "where kind = 'assignment' and at_ms >= $from_ms and at_ms < $begin_ms group by group_id, client_id",
                params={"from_ms": from_ms, "begin_ms": begin_ms},
            ).to_arrow_table()
        connection.register("found", found)
        connection.execute("insert into demands select *, 'assignment', 0, 0 from found")
        connection.unregister("found")
    _add_rows(its, DECISIONS, connection.sql("from demands"))


def _rows_before(ledger: DuckLedger, day: date) -> list[dict[str, Any]]:
    """Return the day, group, members and end of each written row of the newest day before a day."""
    path = path_of_facts(ledger.warehouse)
    if not is_delta(path):
        return []
    query = mart_query(path)
    sql = (
        f"with facts as ({query}) select day, group_id, members_at_end, is_forgotten from facts "
        f"where day = (select max(day) from facts where day < date {literal(day.isoformat())})"
    )
    found = ledger.connection.execute(sql)
    names = [column[0] for column in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def _is_whole(ledger: DuckLedger, its: DuckLedger, begin_ms: int, end_ms: int, losses: list[Loss]) -> bool:
    """Return whether the log begins before the day, and the chain has no loss of rows of the day."""
    events = ledger.opened.deltas.get(EVENTS.name)
    bounds = None if events is None else bounds_of(events, EVENTS.at)
    if bounds is None:
        begins_before = bool(ledger.rows("select 1 from events where at_ms < $begin_ms limit 1", begin_ms=begin_ms))
    else:
        begins_before = bounds[0] < begin_ms
    return begins_before and not _has_losses(its, begin_ms, end_ms, losses)


def _has_losses(its: DuckLedger, begin_ms: int, end_ms: int, losses: list[Loss]) -> bool:
    """Return whether the chain has a loss of rows of a day."""
    for loss in losses:
        table = TABLES[loss.table]
        if not loss.stream or table not in (EVENTS, DECISIONS, ASSIGNMENTS, OFFSETS):
            continue
        values = values_of(loss.stream, table)
        same = " and ".join(f"{quoted(name)} = {literal(value)}" for name, value in values.items() if name != "era")
        [row] = its.rows(
            f"select min({quoted(table.position)}) as low, max({quoted(table.position)}) as high from {table.name} "
            f"where {same} and {table.at} >= $begin_ms and {table.at} < $end_ms",
            begin_ms=begin_ms,
            end_ms=end_ms,
        )
        if row.low is not None and loss.first <= row.high + 1 and loss.last >= row.low - 1:
            return True
    return False


_OPENED = {
    ASSIGNMENTS.name: """
        select group_id, topic, broker, queue_id, slice, client_id, how, $begin_ms as from_ms, 0 as era, 0 as seq
        from opening
        where table_name = 'assignments'
    """,
    OFFSETS.name: """
        select group_id, topic, broker, queue_id, slice, committed_offset, null::boolean as deleted,
            'clustering' as mode, $begin_ms - 1 as at_ms, 0 as era, 0 as seq
        from opening
        where table_name = 'offsets'
    """,
}
"""Table -> the newest row of each queue before a day, as the first row of the day."""

_PARTITION = "group_id, topic, broker, queue_id"


_AS_COMMITTED = "committed as (select * exclude (slice) from committed_by_slice),"
"""SQL of `committed` of a day on which no partition is cut."""


def _lowest() -> str:
    """Return the SQL of `committed`: over time, the lowest committed offset of the slices of each partition.

    Level by level, each slice receives the lowest offset of itself and of its two halves; level 1 is the whole
    partition. The work grows with the number of commits only, and partitions that are not cut have none.
    """
    levels = [f"lowest_{MOST} as (select * exclude (slices) from of_slices where slices = {MOST})"]
    number = MOST // 2
    while number:
        levels.append(
            f"""lowest_{number} as (
    select
        {_PARTITION}, slice, at_ms, era, seq,
        least(
            last_value(own_offset ignore nulls) over until_then,
            last_value(low_offset ignore nulls) over until_then,
            last_value(high_offset ignore nulls) over until_then
        ) as committed_offset
    from (
        select * exclude (slices, committed_offset), committed_offset as own_offset from of_slices
        where slices = {number}
        union all by name
        select
            * exclude (slice, committed_offset),
            slice // 2 as slice,
            case when slice % 2 = 0 then committed_offset end as low_offset,
            case when slice % 2 = 1 then committed_offset end as high_offset
        from lowest_{2 * number}
    )
    window until_then as (
        partition by {_PARTITION}, slice order by at_ms, era, seq rows between unbounded preceding and current row
    )
)"""
        )
        number //= 2
    return f"""cut as materialized (select distinct {_PARTITION} from committed_by_slice where slice is not null),
of_slices as materialized (
    select
        * exclude (slice),
        coalesce(split_part(slice, '/', 1)::int, 0) as slice,
        coalesce(split_part(slice, '/', 2)::int, 1) as slices
    from committed_by_slice semi join cut using ({_PARTITION})
),
{", ".join(levels)},
committed as (
    select * exclude (slice) from committed_by_slice anti join cut using ({_PARTITION})
    union all by name
    select * exclude (slice) from lowest_1
),"""


_DAY = """
with forgettings as (
    select group_id, arg_max(at_ms, (era, seq)) as at_ms, max((era, seq)) as place from memberships
    where change = 'forgotten' and at_ms >= $begin_ms and at_ms < $end_ms
    group by group_id
),
-- Owners of each queue in the order of decisions; a forgotten group has no queues until it comes back.
owner_changes as (
    select group_id, topic, broker, queue_id, slice, client_id, how, from_ms as at_ms, era, seq
    from assignments
    where from_ms < $end_ms
),
gone as (
    select distinct
        group_id, topic, broker, queue_id, slice, null::varchar as client_id, 'removed' as how, forgettings.at_ms,
        forgettings.place
    from owner_changes inner join forgettings using (group_id)
    where (owner_changes.era, owner_changes.seq) < forgettings.place
),
-- The clock of a new leader may be behind, but the order of decisions stays: no period begins before the previous one.
begun as (
    select
        * exclude (at_ms),
        max(at_ms) over (
            partition by group_id, topic, broker, queue_id, slice order by place
            rows between unbounded preceding and current row
        ) as at_ms
    from (select * exclude (era, seq), (era, seq) as place from owner_changes union all by name select * from gone)
),
owner_periods as (
    select
        *,
        lead(at_ms, 1, $end_ms) over (partition by group_id, topic, broker, queue_id, slice order by place) - at_ms
            as lasts_ms
    from begun
),
owned as (
    select
        group_id,
        sum(case when client_id is null and how not in ('removed', 'cut') then lasts_ms else 0 end) as unowned_queue_ms,
        count(distinct client_id) as owners
    from owner_periods
    group by group_id
),
rebalanced as (
    select * from rebalances where at_ms >= $begin_ms and at_ms < $end_ms
),
by_trigger as (
    select group_id, trigger, count(*) as number from rebalanced group by group_id, trigger
),
triggers as (
    select
        group_id,
        sum(number) as rebalances,
        '{' || string_agg(to_json(trigger)::varchar || ':' || number, ',' order by trigger) || '}'
            as rebalances_by_trigger
    from by_trigger
    group by group_id
),
member_counts as (
    select group_id, members, $begin_ms as at_ms, 0 as era, 0 as seq from before
    union all
    select group_id, clients, at_ms, era, seq from rebalanced
    union all
    select group_id, 0, at_ms, era, seq from memberships
    where change in ('emptied', 'forgotten') and at_ms >= $begin_ms and at_ms < $end_ms
),
members as (
    select
        group_id,
        min(members) as members_min,
        max(members) as members_max,
        arg_max(members, (era, seq)) as members_at_end
    from member_counts
    group by group_id
),
each_move as (
    select
        group_id, "to" as to_client_id, {is_abrupt} as is_abrupt,
        case
            when to_client_id is not null
                then assigned_ms - coalesce(released_ms, assigned_ms) + coalesce(silent_ms, 0)
        end as pause_ms,
        repeats_possible
    from handovers
    left join (select shard, seq, silent_ms from silences) as silences using (shard, seq)
    left join (
        -- Slices of one partition may change hands together: the messages that are read again are counted once.
        select
            shard,
            seq,
            case
                when slice is null or row_number() over (
                    partition by group_id, topic, broker, queue_id, at_ms order by repeats_possible desc, era, seq
                ) = 1 then repeats_possible
            end as repeats_possible
        from repeats
    ) as repeats using (shard, seq)
    where at_ms >= $begin_ms and at_ms < $end_ms
),
handed as (
    select
        group_id,
        count(to_client_id) as handed_over,
        count(case when is_abrupt then to_client_id end) as handed_over_abruptly,
        sum(pause_ms) as total_pause_ms,
        max(pause_ms) as longest_pause_ms,
        sum(repeats_possible) as repeats_possible
    from each_move
    group by group_id
),
committed_by_slice as (
    select group_id, topic, broker, queue_id, slice, at_ms,
        -- An offset that was deleted has no lag.
        case when deleted then 9223372036854775807 else committed_offset end as committed_offset, era, seq
    from offsets
    where mode = 'clustering' and at_ms < $end_ms
),
{lowest}
ends as (
    select topic, broker, queue_id, at_ms, end_offset, first_offset from end_offsets where at_ms < $end_ms
),
consumed as (select distinct group_id, topic, broker, queue_id from committed),
said as (
    select group_id, topic, broker, queue_id, greatest(at_ms, $begin_ms - 1) as at_ms, era, seq, committed_offset,
        null::bigint as end_offset, null::bigint as first_offset
    from committed
    union all
    select group_id, topic, broker, queue_id, ends.at_ms, 0, 0, null, end_offset, first_offset
    from ends inner join consumed using (topic, broker, queue_id)
),
known as (
    select
        group_id, topic, broker, queue_id, at_ms, era, seq,
        last_value(committed_offset ignore nulls) over until_then as committed_offset,
        last_value(end_offset ignore nulls) over until_then as end_offset,
        last_value(first_offset ignore nulls) over until_then as first_offset
    from said
    window until_then as (
        partition by group_id, topic, broker, queue_id order by at_ms, era, seq
        rows between unbounded preceding and current row
    )
),
behind as (
    select
        *, greatest(end_offset - greatest(committed_offset, coalesce(first_offset, 0)), 0) as lag_messages
    from known
    where committed_offset is not null and end_offset is not null
),
grows as (
    select
        group_id,
        greatest(at_ms, $begin_ms) as at_ms,
        lag_messages - lag(lag_messages, 1, 0) over (
            partition by group_id, topic, broker, queue_id order by at_ms, era, seq
        ) as by_messages
    from behind
),
sums as (select group_id, at_ms, sum(by_messages) as by_messages from grows group by group_id, at_ms),
steps as (
    select group_id, at_ms, sum(by_messages) over (partition by group_id order by at_ms) as lag_messages from sums
),
lags as (
    select group_id, arg_max(lag_messages, at_ms) as lag_at_end_messages, max(lag_messages) as lag_max_messages
    from steps
    group by group_id
),
rejected as (
    select group_id, count(*) as rejected_events from rejections
    where at_ms >= $begin_ms and at_ms < $end_ms
    group by group_id
),
pulled as (
    select group_id, count(*) as answered_pulls, sum(held_ms) as held_ms from wake_decisions
    where at_ms >= $begin_ms and at_ms < $end_ms
    group by group_id
),
came_back as (
    select forgettings.group_id, coalesce(bool_or(coming.place > forgettings.place), false) as is_back
    from forgettings
    left join (
        select group_id, (era, seq) as place from memberships where change = 'joined' and at_ms < $end_ms
    ) as coming
        on forgettings.group_id = coming.group_id
    group by forgettings.group_id
),
all_groups as (
    select group_id from before
    union select group_id from owned
    union select group_id from members
    union select group_id from handed
    union select group_id from rejected
    union select group_id from pulled
    union select group_id from committed
),
final as (
    select
        all_groups.group_id,
        coalesce(rebalances, 0) as rebalances,
        coalesce(rebalances_by_trigger, '{}') as rebalances_by_trigger,
        coalesce(handed_over, 0) as handed_over,
        coalesce(handed_over_abruptly, 0) as handed_over_abruptly,
        coalesce(total_pause_ms, 0) as total_pause_ms,
        coalesce(longest_pause_ms, 0) as longest_pause_ms,
        coalesce(repeats_possible, 0) as repeats_possible,
        case when came_back.is_back is not false then lag_at_end_messages end as lag_at_end_messages,
        lag_max_messages,
        coalesce(unowned_queue_ms, 0) as unowned_queue_ms,
        members_min,
        members_max,
        members_at_end,
        coalesce(owners, 0) as owners,
        coalesce(rejected_events, 0) as rejected_events,
        coalesce(answered_pulls, 0) as answered_pulls,
        coalesce(held_ms, 0) as held_ms,
        coalesce(not came_back.is_back, false) as is_forgotten
    from all_groups
    left join owned using (group_id)
    left join triggers using (group_id)
    left join members using (group_id)
    left join handed using (group_id)
    left join lags using (group_id)
    left join rejected using (group_id)
    left join pulled using (group_id)
    left join came_back using (group_id)
    where all_groups.group_id is not null
)
"""
