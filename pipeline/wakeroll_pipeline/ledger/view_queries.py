"""The views of the ledger: their names, columns and comments, and their queries for Spark and for DuckDB.

The queries in the folder `views` are the same text for both.  The views that parse JSON are generated from the
declarations in `model`, because the engines write types and the parsing of JSON differently.

Each view has the columns of its declaration and, after each time in epoch ms, the same time as a TIMESTAMP in UTC, for
tools that draw charts: after `x_ms` the column `x_at`; after `at_ms` `log_time`, after `as_of_ms` `as_of`.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import Literal, NamedTuple

from msgspec import Struct

from wakeroll_model import decisions
from wakeroll_model.queue import Queue, QueueId, slice_sql
from wakeroll_model.rows import DECIDED, DecisionRow
from wakeroll_pipeline.ledger.column_types import Column, ListOf, Type, columns_of, in_duckdb, in_spark, json_in_duckdb
from wakeroll_pipeline.ledger.view_rows import VIEW_ROWS, Era

Engine = Literal["duckdb", "spark"]
"""Program that runs the SQL."""

KINDS: Mapping[str, type[decisions.Decision]] = {
    "memberships": decisions.Membership,
    "rebalances": decisions.Rebalance,
    "handovers": decisions.Handover,
    "locks": decisions.LockAnswer,
    "failed_messages": decisions.FailedMessages,
    "wake_decisions": decisions.Wake,
    "rejections": decisions.Rejected,
    "fencings": decisions.Fenced,
}
"""View -> kind of decision that it shows, with one column per field and the column `era`."""

IS_ABRUPT = f"how not in ({', '.join(map(repr, decisions.ORDERLY))})"
"""SQL condition of the hand-overs that the previous owner did not cause, for a view or table with the column `how`. The
queries in the folder `views` refer to it as ``{is_abrupt}``."""

SLICE = slice_sql("queue")
"""SQL of the column `slice` for a view or decision with the column `queue`; the files refer to it as ``{slice}``."""

VIEWS = (*KINDS, *VIEW_ROWS)
"""Names of all views; each may read the views before it."""


class _Placed(Struct):
    era: Era


[ERA] = columns_of(_Placed)
"""The column that follows `shard` in tables and views."""


class View(NamedTuple):
    """A view of the ledger."""

    name: str
    comment: str
    """One sentence about the meaning of a row."""
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """Columns that identify a row."""


def declared_views() -> Iterator[View]:
    """Yield each view, in the order of `VIEWS`."""
    for name, declared in KINDS.items():
        yield View(name, first_line(declared), _with_times(_of_kind(declared)), DECIDED)
    for name, (row, key) in VIEW_ROWS.items():
        yield View(name, first_line(row), _with_times(columns_of(row)), key)


@functools.cache
def views(engine: Engine) -> tuple[tuple[str, str], ...]:
    """Return name and query of each view, in the order of `VIEWS`.

    The queries expect the column `era` in the tables with rows of decisions (`wakeroll_model.decision_order.ERA_SQL`).
    """
    kinds = [(name, _shown(_of_kind(one), _query_of(one, engine), engine)) for name, one in KINDS.items()]
    files = [
        (name, _shown(columns_of(row), _END_OFFSETS[engine] if name == "end_offsets" else _sql_of(name), engine))
        for name, (row, _) in VIEW_ROWS.items()
    ]
    return (*kinds, *files)


def spark_head(view: View) -> str:
    """Return the part of Spark's `create view` between the name and the query: the columns and their comments."""
    columns = ", ".join(f"`{column.name}` comment {_in_quotes(column.comment)}" for column in view.columns)
    return f"({columns}) comment {_in_quotes(view.comment)} as"


def first_line(declared: type[Struct]) -> str:
    """Return the sentence about the meaning of a row."""
    return (declared.__doc__ or "").partition("\n")[0].partition("  Key:")[0]


def timestamp_name(column: Column) -> str | None:
    """Return the name of the TIMESTAMP that follows a column in a view; None if the column is not a time."""
    if not column.name.endswith("_ms") or "(epoch ms)" not in column.comment:
        return None
    return {"at_ms": "log_time", "as_of_ms": "as_of"}.get(column.name, column.name.removesuffix("_ms") + "_at")


def _in_quotes(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _sql_of(name: str) -> str:
    folder = resources.files("wakeroll_pipeline.ledger").joinpath("views")
    return (
        folder.joinpath(f"{name}.sql")
        .read_text(encoding="utf-8")
        .replace("{is_abrupt}", IS_ABRUPT)
        .replace("{slice}", SLICE)
    )


def _with_times(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Return columns with the TIMESTAMP after each time."""
    shown: list[Column] = []
    for column in columns:
        shown.append(column)
        if (name := timestamp_name(column)) is not None:
            shown.append(Column(name, "timestamp", column.is_nullable, column.comment.replace("(epoch ms)", "(UTC)")))
    return tuple(shown)


def _shown(columns: tuple[Column, ...], query: str, engine: Engine) -> str:
    """Return the query of the columns of a view, from the query of its rows."""
    quote = _QUOTES[engine]
    names = []
    for column in columns:
        name = f"{quote}{column.name}{quote}"
        # The table `decisions` has the partition of the cause as a bigint, other tables have partitions as int.
        names.append(name if column.name != "cause" else f"try_cast(cause as {_TYPES[engine](column.type)}) as cause")
        if (shown := timestamp_name(column)) is not None:
            names.append(
                f"case when {name} between {_FIRST_MS} and {_LAST_MS} then {_TIMES[engine](name)} end as {shown}"
            )
    return f"select {', '.join(names)} from (\n{query.strip()}\n) as shown"


_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""Years 1 to 9999. A foreign record may have other numbers, which no program can convert to a TIMESTAMP."""
_QUOTES: Mapping[Engine, str] = {"duckdb": '"', "spark": "`"}
_TYPES: Mapping[Engine, Callable[[Type], str]] = {"duckdb": in_duckdb, "spark": in_spark}
_TIMES: Mapping[Engine, Callable[[str], str]] = {
    "duckdb": "make_timestamptz({} * 1000)".format,
    "spark": "timestamp_millis({})".format,
}


def _of_kind(declared: type[decisions.Decision]) -> tuple[Column, ...]:
    """Return the columns of the view of one kind: the fields, `era` after `shard`, and `published_ms`."""
    fields = [shown for field in _fields_of(declared) for shown in _columns_of_field(field)]
    fields.insert([field.name for field in fields].index("shard") + 1, ERA)
    return *fields, *(column for column in columns_of(DecisionRow) if column.name == "published_ms")


def _fields_of(declared: type[decisions.Decision]) -> tuple[Column, ...]:
    """Return the fields of a kind of decision, as its JSON has them."""
    return tuple(field._replace(type=_narrow(field.type, field.name)) for field in columns_of(declared))


def _columns_of_field(field: Column) -> tuple[Column, ...]:
    """Return the columns of a field: one column, or one for each part of the description of a client."""
    if field.name != _DESCRIPTION:
        return (field,)
    assert isinstance(field.type, tuple), "a description is a struct"
    return tuple(part._replace(is_nullable=True, comment=_described(part.comment)) for part in field.type)


def _described(comment: str) -> str:
    """Return the comment of a part of a description, which only some changes have."""
    return f"{comment.partition('; ')[0]}; null if not told, or if the change is not joined or described"


_DESCRIPTION = "about"
"""Field of a decision with the description of a client."""


def _narrow(of: Type, name: str) -> Type:
    """Return a type with int for the partitions in it, as in most tables; the model does not bound all of them."""
    match of:
        case "bigint" if name in ("partition", "partitions"):
            return "int"
        case str():
            return of
        case ListOf(item=item, has_nulls=has_nulls):
            return ListOf(_narrow(item, ""), has_nulls)
        case _:
            return tuple(field._replace(type=_narrow(field.type, field.name)) for field in of)


def _query_of(declared: type[decisions.Decision], engine: Engine) -> str:
    """Return the query of the rows of one kind.

    A field that is also a column of `decisions` is read there, so that a condition on it needs no JSON.
    """
    parsed = tuple(field for field in _fields_of(declared) if field.name not in _COLUMNS)
    quote = _QUOTES[engine]
    if engine == "spark":
        json = f"from_json(json, '{in_spark(parsed)}')"
    else:
        # A stranger's record may be no valid JSON.  Then the fields are null, as in Spark.
        json = f"try(from_json(json, '{json_in_duckdb(parsed)}'))"
    places = {
        column.name: f"said.{quote}{field.name}{quote}" + ("" if column == field else f".{quote}{column.name}{quote}")
        for field in parsed
        for column in _columns_of_field(field)
    }
    shown = [
        f"{places[column.name]} as {quote}{column.name}{quote}" if column.name in places else column.name
        for column in _of_kind(declared)
    ]
    columns = ", ".join(name for name in (*_COLUMNS, "era", "published_ms") if name in shown)
    return (
        f"select {', '.join(shown)} "
        f"from (select {columns}, {json} as said "
        f"from decisions where kind = '{declared.__struct_config__.tag}') as parsed"
    )


_COLUMNS = tuple(
    column.name
    for column in columns_of(DecisionRow)
    if column.name not in ("json", "kind", "partition", "published_ms")
)
"""Fields of a decision that the table `decisions` has as columns with the same values."""


class _RoutedEnd(Struct):
    """The fields of a `wakeroll_model.events.RoutedQueue` with its first and its end offset."""

    topic: str
    broker: str
    queue_id: QueueId
    max_offset: int
    min_offset: int


class _Routed(Struct):
    queues: list[_RoutedEnd]


class _Arrived(Struct):
    queue: Queue
    next_offset: int


def _end_offsets(engine: Engine) -> str:
    """Return the query of the reported end offsets: one row per queue and report, in routes and arrivals.

    A route is in every partition of its topic; the copy in partition 0 is read.
    """
    parsed = {name: columns_of(declared) for name, declared in (("route", _Routed), ("arrival", _Arrived))}
    if engine == "spark":
        text = "cast(value as string)"
        said = {name: f"from_json({text}, '{in_spark(columns)}')" for name, columns in parsed.items()}
        unnest = "explode"
    else:
        text = "decode(value, 'replace')"
        said = {name: f"try(from_json({text}, '{json_in_duckdb(columns)}'))" for name, columns in parsed.items()}
        unnest = "unnest"
    return f"""
with reports as (
    select at_ms, {unnest}({said["route"]}.queues) as said
    from events
    where type = 'route' and partition = 0
),

arrivals as (
    select at_ms, {said["arrival"]} as said
    from events
    where type = 'arrival'
),

reported as (
    -- The JSON omits an offset of 0 in a route, and an empty broker. An arrival without an offset is no valid event.
    select
        said.topic,
        said.broker,
        said.queue_id,
        coalesce(said.max_offset, 0) as end_offset,
        coalesce(said.min_offset, 0) as first_offset,
        at_ms
    from reports
    union all
    select said.queue.topic, said.queue.broker, said.queue.queue_id, said.next_offset, null, at_ms
    from arrivals
),

final as (
    select
        topic,
        coalesce(broker, '') as broker,
        queue_id,
        max(end_offset) as end_offset,
        max(first_offset) as first_offset,
        at_ms
    from reported
    where topic is not null and queue_id is not null and end_offset >= 0
    group by topic, coalesce(broker, ''), queue_id, at_ms
)

select * from final
"""


_END_OFFSETS: Mapping[Engine, str] = {"duckdb": _end_offsets("duckdb"), "spark": _end_offsets("spark")}
