"""The views of the ledger: their names, and their queries for Spark and for DuckDB.

The queries in the folder `views` are the same text for both.  The views that parse JSON are generated from the
declarations in `model`, because the engines write types and the parsing of JSON differently.
"""

from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Literal

from msgspec import Struct

from wakeroll_model import decisions
from wakeroll_model.queue import Queue, QueueId
from wakeroll_model.rows import DecisionRow
from wakeroll_pipeline.ledger.column_types import columns_of, in_spark, json_in_duckdb

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

_SQL_VIEWS = ("current_assignments", "current_offsets", "current_members", "groups", "wakes", "lag")
"""Names of the views whose queries are in the folder `views`; each may read the views before it."""

VIEWS = (*KINDS, "end_offsets", *_SQL_VIEWS)
"""Names of all views; each may read the views before it."""


def views(engine: Engine) -> Iterator[tuple[str, str]]:
    """Yield name and query of each view, in the order of `VIEWS`.

    The queries expect the column `era` in the tables with rows of decisions (`wakeroll_model.decision_order.ERA_SQL`).
    """
    for name, declared in KINDS.items():
        yield name, _view_of(declared, engine)
    yield "end_offsets", _END_OFFSETS[engine]
    for name in _SQL_VIEWS:
        yield (
            name,
            resources.files("wakeroll_pipeline.ledger").joinpath("views", f"{name}.sql").read_text(encoding="utf-8"),
        )


def _view_of(declared: type[decisions.Decision], engine: Engine) -> str:
    """Return the query of the view of one kind.

    A field that is also a column of `decisions` is read there, so that a condition on it needs no JSON.
    """
    fields = columns_of(declared)
    parsed = tuple(field for field in fields if field.name not in _COLUMNS)
    if engine == "spark":
        quote, json = "`", f"from_json(json, '{in_spark(parsed)}')"
    else:
        # A stranger's record may be no valid JSON.  Then the fields are null, as in Spark.
        quote, json = '"', f"try(from_json(json, '{json_in_duckdb(parsed)}'))"
    shown = [
        field.name if field.name in _COLUMNS else f"said.{quote}{field.name}{quote} as {quote}{field.name}{quote}"
        for field in fields
    ]
    shown.insert(shown.index("shard") + 1, "era")
    columns = ", ".join(name for name in (*_COLUMNS, "era", "published_ms") if name in shown or name == "published_ms")
    return (
        f"select {', '.join(shown)}, published_ms "
        f"from (select {columns}, {json} as said "
        f"from decisions where kind = '{declared.__struct_config__.tag}') as parsed"
    )


_COLUMNS = tuple(
    column.name
    for column in columns_of(DecisionRow)
    if column.name not in ("json", "kind", "partition", "published_ms")
)
"""Fields of a decision that the table `decisions` has as columns of the same value."""


class _RoutedEnd(Struct):
    """The fields of a `wakeroll_model.events.RoutedQueue` that say where it begins and ends."""

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
