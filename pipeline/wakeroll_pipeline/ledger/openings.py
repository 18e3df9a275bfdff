"""The opening of a day: the part of the rows before it that the facts of the day need.

It has one row per queue whose owner or committed offset was ever recorded, of any age. Without an earlier opening, all
rows before the day are needed; with the opening of an earlier day, only the rows since. `write_opening` stores the
opening of the newest day beside the daily facts. The file may be deleted at any time.
"""

import tempfile
from datetime import date, timedelta
from pathlib import Path
from typing import NamedTuple

import duckdb
from arro3.core import Table

from wakeroll_pipeline.ledger.delta_files import literal
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.place import Place

_FILE = "_opening-2.parquet"
"""Name of the file; readers of Delta tables ignore names with this prefix. The number is the version of its columns."""


class Opening(NamedTuple):
    """The part of the rows before a day that its facts need."""

    day: date
    rows: Table
    """The newest row of each queue in `assignments` and `offsets`, and of each owner's assignment in `decisions`.
    Its columns are those of `_NOTHING`; rows of a group before it was forgotten are left out."""


def begin_of(day: date) -> int:
    """Return the begin of a day (epoch ms)."""
    return (day - date(1970, 1, 1)) // timedelta(milliseconds=1)


def opening_of(ledger: DuckLedger, day: date, known: Opening | None = None) -> Opening:
    """Return the opening of a day.

    Args:
        ledger: the ledger.
        day: the day.
        known: the opening of the same day or an earlier one; that of a later day is not used. None: all rows are read.

    Raises:
        UnreadableTable: a table cannot be read.
    """
    if known is not None and known.day > day:
        known = None
    from_ms, to_ms = 0 if known is None else begin_of(known.day), begin_of(day)
    with ledger.within(from_ms, to_ms) as its:
        if known is not None:
            its.connection.register("known", known.rows)
        sql = _OPENING.format(known=_NOTHING if known is None else "from known", begin=from_ms, end=to_ms)
        return Opening(day, its.in_bounded_memory(lambda: Table(its.connection.sql(sql).to_arrow_table())))


def read_opening(folder: Place) -> Opening | None:
    """Return the stored opening; None if there is none, or it is damaged.

    Raises:
        StorageFailed: the store did not answer.
    """
    body = small_files.read(folder / _FILE)
    if body is None:
        return None
    with tempfile.TemporaryDirectory() as temporary, duckdb.connect() as connection:
        path = Path(temporary) / _FILE
        path.write_bytes(body)
        try:
            rows = connection.sql(f"from {literal(path)}")
            [(day,)] = rows.select("day").distinct().fetchall()
            return Opening(day, Table(rows.select("* exclude (day)").to_arrow_table()))
        except (duckdb.Error, ValueError):  # it is damaged, or of a day without rows
            return None


def write_opening(folder: Place, opening: Opening) -> None:
    """Store an opening, in place of the stored one.

    Raises:
        StorageFailed: the store did not answer.
    """
    with tempfile.TemporaryDirectory() as temporary, duckdb.connect() as connection:
        path = Path(temporary) / _FILE
        connection.register("opening", opening.rows)
        rows = f"select date {literal(opening.day.isoformat())} as day, * from opening"
        connection.execute(f"copy ({rows}) to {literal(path)} (format parquet, compression zstd)")
        small_files.write(folder / _FILE, path.read_bytes())


def forget_opening(folder: Place) -> None:
    """Delete the stored opening, because rows before its day have changed.

    Raises:
        StorageFailed: the store did not answer.
    """
    if small_files.exists(folder / _FILE):
        small_files.delete(folder / _FILE)


_NOTHING = """
select '' as table_name, '' as shard, '' as group_id, '' as topic, '' as broker, 0::bigint as queue_id,
    null::varchar as slice, null::varchar as client_id, null::varchar as how, null::bigint as committed_offset,
    null::varchar as json,
    0::bigint as era, 0::bigint as seq
where false
"""

_OPENING = """
with forgettings as (
    select group_id, shard, max((era, seq)) as place from memberships
    where change = 'forgotten' and at_ms >= {begin} and at_ms < {end}
    group by group_id, shard
),
said as (
    select 'assignments' as table_name, shard, group_id, topic, broker, queue_id, slice, client_id, how, era, seq
    from assignments
    where from_ms >= {begin} and from_ms < {end}
    union all by name
    select 'offsets' as table_name, shard, group_id, topic, broker, queue_id, slice,
        case when deleted then 9223372036854775807 else committed_offset end as committed_offset, era, seq  -- no lag
    from offsets
    where mode = 'clustering' and at_ms >= {begin} and at_ms < {end}
    union all by name
    select
        'decisions' as table_name, shard, group_id, '' as topic, '' as broker, 0 as queue_id, client_id,
        '{{' || regexp_extract(json, '"heartbeat_ms":[0-9]{{1,9}}') || '}}' as json, era, seq
    from decisions
    where kind = 'assignment' and at_ms >= {begin} and at_ms < {end}
    union all by name
    ({known})
),
latest as (
    select
        said.table_name,
        said.group_id,
        said.topic,
        said.broker,
        said.queue_id,
        said.slice,
        arg_max(
            struct_pack(
                shard := said.shard, client_id := said.client_id, how := said.how,
                committed_offset := said.committed_offset, json := said.json, era := said.era, seq := said.seq
            ),
            (said.era, said.seq)
        ) as its
    from said
    left join forgettings on said.group_id = forgettings.group_id and said.shard = forgettings.shard
    where forgettings.place is null or (said.era, said.seq) > forgettings.place
    group by
        said.table_name, said.group_id, said.topic, said.broker, said.queue_id, said.slice,
        case when said.table_name = 'decisions' then said.client_id end
),
newest as (select * exclude (its), unnest(its) from latest),
owners as (select distinct group_id, client_id from newest where table_name = 'assignments' and client_id is not null),
final as (
    select * from newest
    where table_name <> 'decisions' and how is distinct from 'cut'  -- no queue any more
    union all
    select * from newest semi join owners using (group_id, client_id) where table_name = 'decisions'
)
select
    table_name, shard, group_id, topic, broker, queue_id::bigint as queue_id, slice, client_id, how,
    committed_offset::bigint as committed_offset, json, era::bigint as era, seq::bigint as seq
from final
"""
