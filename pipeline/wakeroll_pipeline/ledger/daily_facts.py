"""Daily facts: a small Delta table with one row per group and day (UTC), which outlives the rows it was computed from.

A day is written once, when every stream has recorded more than an hour of the next day.  Retention waits for it.  The
facts are no part of the chain of hashes: while the rows of a day exist, `facts_of` computes the day again.
"""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from arro3.core import RecordBatchReader, Table
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from wakeroll_model.rows import ASSIGNMENTS, DECISIONS, EVENTS, OFFSETS, TABLES
from wakeroll_pipeline.ledger.column_types import Simple, in_duckdb
from wakeroll_pipeline.ledger.delta_files import is_delta, literal, open_delta, quoted
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger, duck_ledger
from wakeroll_pipeline.ledger.losses import Loss, losses_of
from wakeroll_pipeline.ledger.stored_marts import DAILY_FACTS, look_after_mart, mart_query, path_of_facts, with_comments
from wakeroll_pipeline.ledger.stream_names import values_of
from wakeroll_pipeline.storage.place import Folder, Place

COMMENT = "The facts about one group on one day (UTC), kept when the rows of the day are deleted."

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_SETTLED_MS = _HOUR_MS
"""How much of the next day every stream must have recorded before a day is complete (ms)."""
_LOOK_BACK_MS = _HOUR_MS
"""How long before a day reports count for its begin: end offsets, and silences of expired members (ms)."""


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
        from_ms = None if after is None else _begin_of(after) + _DAY_MS
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
        return newest_ms >= end_ms + _DAY_MS or all(last_ms[one] >= end_ms + _SETTLED_MS for one in streams[day])

    days = []
    for day in sorted(streams):
        if not is_complete(day):
            break
        days.append(datetime.fromtimestamp(day * _DAY_MS / 1_000, UTC).date())
    return days


def write_day(warehouse: Folder, day: date, keep_versions_ms: int, now_ms: int) -> None:
    """Compute the facts of a day and store them, in place of those that the table has of it.

    If another process has written at the same time, nothing is stored; the day is missing then, or was written by it.

    Args:
        warehouse: folder of the tables.
        day: a complete day; those before it are written.
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
    with duck_ledger(warehouse) as ledger:
        store(path, table, day, facts_of(ledger, day))
    look_after_mart(path, keep_versions_ms, now_ms)


def store(path: Place, table: DeltaTable | None, day: date, facts: RecordBatchReader) -> bool:
    """Store the facts of a day; return whether it was done, and not prevented by a write of another process.

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


def facts_of(ledger: DuckLedger, day: date) -> RecordBatchReader:
    """Return the facts of a day, one row per group that exists on it, sorted by group.

    The work grows with the rows of the day, and with those of `assignments` and `offsets` before it: owners and
    committed offsets at its begin may be of any age.

    Args:
        ledger: the ledger.
        day: the day.

    Raises:
        UnreadableTable: a table cannot be read.
    """
    begin_ms = _begin_of(day)
    end_ms = begin_ms + _DAY_MS
    known = _rows_before(ledger, day)
    newest = max((row["day"] for row in known), default=None)
    before = [row for row in known if row["day"] == newest and not row["is_forgotten"]]
    with ledger.within(begin_ms - _LOOK_BACK_MS, end_ms) as its, ledger.within(0, begin_ms) as earlier:
        times: dict[str, int | str] = {"begin_ms": begin_ms, "end_ms": end_ms}
        alive = "true"
        if newest is None:
            alive = (
                "group_id not in (select group_id from memberships where change in ('joined', 'forgotten') "
                "and at_ms < $begin_ms and group_id is not null "
                "group by group_id having arg_max(change, (era, seq)) = 'forgotten')"
            )
        else:
            alive = f"group_id in ({', '.join(literal(row['group_id']) for row in before) or 'null'})"
        connection = its.connection
        for name, sql in _OPENING.items():
            found = earlier.connection.sql(sql.format(alive=alive), params={"begin_ms": begin_ms}).to_arrow_table()
            connection.register("arrived", found)
            connection.execute(f"create temp table {name} as select * from arrived")
            connection.unregister("arrived")
        connection.execute("create temp table before (group_id varchar, members bigint)")
        if before:
            connection.executemany(
                "insert into before values (?, ?)", [(row["group_id"], row["members_at_end"]) for row in before]
            )
        whole = _is_whole(its, earlier, begin_ms, end_ms, losses_of(ledger))
        types = ", ".join(
            f"cast({quoted(name)} as {in_duckdb(fact.type)}) as {quoted(name)}" for name, fact in FACTS.items()
        )
        named = f"select date {literal(day.isoformat())} as day, {str(whole).lower()} as is_whole, * from final"
        sql = f"{_DAY} select {types} from ({named}) order by group_id"
        table = Table(connection.sql(sql, params=times).to_arrow_table())
    return RecordBatchReader.from_batches(table.schema, table.to_batches())


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


def _begin_of(day: date) -> int:
    return (day - date(1970, 1, 1)) // timedelta(milliseconds=1)


def _is_whole(its: DuckLedger, earlier: DuckLedger, begin_ms: int, end_ms: int, losses: list[Loss]) -> bool:
    """Return whether the log begins before the day, and no row of the day is lost as far as the chain says."""
    [first] = earlier.rows("select count(*) as records from events where at_ms < $begin_ms", begin_ms=begin_ms)
    if not first.records:
        return False
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
            return False
    return True


_OPENING = {
    "opening_owners": """
        select group_id, topic, broker, queue_id, arg_max_null(client_id, (era, seq)) as client_id,
            max_by(how, (era, seq)) as how
        from assignments
        where from_ms < $begin_ms and {alive}
        group by all
    """,
    "opening_committed": """
        select group_id, topic, broker, queue_id, max_by(committed_offset, (era, seq)) as committed_offset
        from offsets
        where at_ms < $begin_ms and mode = 'clustering' and {alive}
        group by all
    """,
}
"""State at the begin of a day, from the rows before it."""

_DAY = """
with forgettings as (
    select group_id, arg_max(at_ms, (era, seq)) as at_ms, max((era, seq)) as place from memberships
    where change = 'forgotten' and at_ms >= $begin_ms and at_ms < $end_ms
    group by group_id
),
-- Owners of each queue in the order of decisions; a forgotten group has no queues until it comes back.
owner_changes as (
    select group_id, topic, broker, queue_id, client_id, how, $begin_ms as at_ms, 0 as era, 0 as seq
    from opening_owners
    union all
    select group_id, topic, broker, queue_id, client_id, how, from_ms, era, seq
    from assignments
    where from_ms >= $begin_ms and from_ms < $end_ms
),
gone as (
    select distinct
        group_id, topic, broker, queue_id, null::varchar as client_id, 'removed' as how, forgettings.at_ms,
        forgettings.place
    from owner_changes inner join forgettings using (group_id)
    where (owner_changes.era, owner_changes.seq) < forgettings.place
),
-- The clock of a new leader may be behind, but the order of decisions stays: no period begins before the previous one.
begun as (
    select
        * exclude (at_ms),
        max(at_ms) over (
            partition by group_id, topic, broker, queue_id order by place
            rows between unbounded preceding and current row
        ) as at_ms
    from (select * exclude (era, seq), (era, seq) as place from owner_changes union all by name select * from gone)
),
owner_periods as (
    select
        *,
        lead(at_ms, 1, $end_ms) over (partition by group_id, topic, broker, queue_id order by place) - at_ms as lasts_ms
    from begun
),
owned as (
    select
        group_id,
        sum(case when client_id is null and how <> 'removed' then lasts_ms else 0 end) as unowned_queue_ms,
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
moved as (
    select
        shard, era, seq, group_id, queue.topic as topic, queue.broker as broker, queue.queue_id as queue_id,
        handovers.from as from_client_id, handovers.to as to_client_id, how, at_ms, released_ms, assigned_ms,
        how not in ('first', 'released', 'unregistered', 'removed') as is_abrupt
    from handovers
    where at_ms >= $begin_ms and at_ms < $end_ms
),
committed as (
    select group_id, topic, broker, queue_id, $begin_ms - 1 as at_ms, committed_offset, 0 as era, 0 as seq
    from opening_committed
    union all
    select group_id, topic, broker, queue_id, at_ms, committed_offset, era, seq
    from offsets
    where mode = 'clustering' and at_ms >= $begin_ms and at_ms < $end_ms
),
ends as (
    select topic, broker, queue_id, at_ms, end_offset, first_offset from end_offsets where at_ms < $end_ms
),
committed_then as (
    select moved.shard, moved.seq, arg_max(committed.committed_offset, (committed.era, committed.seq)) as committed
    from moved
    inner join committed
        on
            moved.group_id = committed.group_id
            and moved.topic = committed.topic
            and moved.broker = committed.broker
            and moved.queue_id = committed.queue_id
            and (committed.era, committed.seq) < (moved.era, moved.seq)
    where moved.is_abrupt and moved.from_client_id is not null
    group by moved.shard, moved.seq
),
ended_then as (
    select moved.shard, moved.seq, ends.end_offset
    from moved
    asof inner join ends
        on
            moved.topic = ends.topic
            and moved.broker = ends.broker
            and moved.queue_id = ends.queue_id
            and moved.at_ms >= ends.at_ms
    where moved.is_abrupt and moved.from_client_id is not null
),
each_move as (
    select
        moved.*,
        case
            when to_client_id is not null
                then assigned_ms - coalesce(released_ms, assigned_ms) + coalesce(silent_ms, 0)
        end as pause_ms,
        greatest(ended_then.end_offset - committed_then.committed, 0) as repeats
    from moved
    left join (select shard, seq, silent_ms from silences) as silences using (shard, seq)
    left join committed_then using (shard, seq)
    left join ended_then using (shard, seq)
),
handed as (
    select
        group_id,
        count(to_client_id) as handed_over,
        count(case when is_abrupt then to_client_id end) as handed_over_abruptly,
        sum(pause_ms) as total_pause_ms,
        max(pause_ms) as longest_pause_ms,
        sum(repeats) as repeats_possible
    from each_move
    group by group_id
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
