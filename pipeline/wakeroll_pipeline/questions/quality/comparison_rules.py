"""Rules that compare rows of one or several tables: SQL queries, one file each, and checks by the model.

A query selects the rows that break its rule: `at` (their key), `found` and `expected`.  Its first line is the rule.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from wakeroll_model.decisions import Decision, Handover, Offset
from wakeroll_model.queue import slice_sql
from wakeroll_model.rows import ASSIGNMENTS, EVENTS, OFFSETS, SNAPSHOTS, TABLES, Table
from wakeroll_pipeline.ledger.column_types import columns_of, in_spark, json_in_duckdb
from wakeroll_pipeline.ledger.losses import losses_of, lost_decisions, lost_rows_query
from wakeroll_pipeline.ledger.view_queries import Engine
from wakeroll_pipeline.questions.quality.accepted_losses import left_out
from wakeroll_pipeline.questions.quality.chain_rules import CHAIN_RULES
from wakeroll_pipeline.questions.quality.model_rules import (
    RULES_OF_ASSIGNMENTS,
    RULES_OF_DECISIONS,
    RULES_OF_OFFSETS,
    Lost,
    violations_in_assignments,
    violations_in_decisions,
    violations_in_offsets,
)
from wakeroll_pipeline.questions.quality.ordered_rows import SKIPPED, Broken, found_by, in_order, never_null
from wakeroll_pipeline.questions.quality.record_types import RULES_OF_EVENTS, violations_in_types
from wakeroll_pipeline.questions.quality.rule import Rule, rows_rule
from wakeroll_pipeline.questions.quality.snapshot_rules import (
    RULES_OF_SNAPSHOTS,
    SNAPSHOTS_TO_CHECK,
    violations_in_snapshots,
)
from wakeroll_pipeline.questions.quality.unanswered_records import Awaited, answers_due

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FOLDER = resources.files("wakeroll_pipeline.questions") / "quality"


_DECIDED: Mapping[str, tuple[str, type[Decision]]] = {
    ASSIGNMENTS.name: ("hand-over", Handover),
    OFFSETS.name: ("offset", Offset),
}
"""Table -> kind of decision from which its rows are derived, in words, and its declaration."""
_COLUMNS: Mapping[str, Mapping[str, str]] = {
    ASSIGNMENTS.name: {
        "client_id": "said.{q}to{q}",
        "epoch": "said.epoch",
        "from_ms": "coalesce(said.assigned_ms, said.released_ms, said.at_ms)",
        "previous_client_id": "said.{q}from{q}",
        "how": "said.how",
    },
    OFFSETS.name: {
        "client_id": "said.client_id",
        "committed_offset": "said.{q}offset{q}",
        "epoch": "said.epoch",
        "at_ms": "said.at_ms",
        "reset_by": "said.reset_by",
        # Decisions from before the broadcasting mode existed have no mode.
        "mode": "coalesce(said.mode, 'clustering')",
        "deleted": "said.deleted",
    },
}
"""Table -> its own columns, which follow the common ones, as expressions of a decision; `q` quotes a name."""

_FIELD = {"spark": "get_json_object({text}, '$.{name}')", "duckdb": "try(json_extract_string({text}, '$.{name}'))"}
"""SQL of a field of a JSON text, by engine."""
_VALUE = {"spark": "cast(value as string)", "duckdb": "decode(value, 'replace')"}
"""SQL of the text of an event's value, by engine."""
_ROW = {"spark": "to_json(struct(*), map('ignoreNullFields', 'false'))", "duckdb": "cast(to_json({table}) as varchar)"}
"""SQL of a row as JSON with its nulls, by engine."""


def text_of(name: str) -> str:
    """Return the text of a file of this folder."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def queries(engine: Engine) -> Mapping[str, str]:
    """Return rule -> its query, in the SQL of an engine."""
    fields = {name: _field(engine, _VALUE[engine], name) for name in ("client_id", "request_id")}
    found = {}
    for table, (said, _) in _DECIDED.items():
        rows = {
            "row_as_json": _ROW[engine].format(table=table),
            "decided_as_json": _ROW[engine].format(table=f"decided_{table}"),
        }
        found[f"{table}.decided"] = text_of("decided.sql").format(table=table, decision=said, **rows)
    for file in (_FOLDER / "rules").iterdir():
        found[file.name.removesuffix(".sql")] = file.read_text(encoding="utf-8").format(**fields)
    return found


def decided_views(engine: Engine) -> Mapping[str, str]:
    """Return view -> query of the rows that follow from the decisions for a table, in the SQL of an engine.

    `record` derives its rows in Python (`wakeroll_pipeline.operators.ledger_rows`), so this is a second derivation.
    """
    found = {}
    for table, (_, kind) in _DECIDED.items():
        fields = columns_of(kind)
        if engine == "spark":
            quote, parsed = "`", f"from_json(json, '{in_spark(fields)}')"
        else:
            quote, parsed = '"', f"try(from_json(json, '{json_in_duckdb(fields)}'))"
        columns = {name: f"said.{name}" for name in ("shard", "seq", "group_id")}
        columns |= {name: f"said.queue.{name}" for name in ("topic", "broker", "queue_id")}
        columns["slice"] = slice_sql("said.queue")
        columns |= {name: said.format(q=quote) for name, said in _COLUMNS[table].items()}
        order = ("shard", "era", "seq", "partition", *list(columns)[2:])
        shown = ", ".join(f"{columns.get(name, name)} as {quote}{name}{quote}" for name in order)
        found[f"decided_{table}"] = (
            f"select {shown} from (select era, partition, {parsed} as said "
            f"from decisions where kind = '{kind.__struct_config__.tag}') as parsed"
        )
    return found


class Look(NamedTuple):
    """Rules that the model checks, on rows that an engine selects and puts in order."""

    rules: Sequence[Rule]
    query: Callable[[Engine], str]
    violations: Callable[[Lost], Callable[[Iterable[Any]], Iterator[Broken]]]
    """Returns the function that yields the violations in the rows, given the losses."""
    is_in_order: bool = True
    """Whether the rows are in the order of the decisions of shards; otherwise they may come in any order."""
    fetched: int = 10_000
    """Number of rows that DuckDB passes at once."""


def _decisions(_engine: Engine) -> str:
    return """
        select shard, seq, kind, group_id, client_id, at_ms, told.cause.topic as cause_topic,
            told.cause.partition as cause_partition, told.cause.offset as cause_offset, json, is_archived
        from told
    """


def _with_forgotten(table: Table, _engine: Engine) -> str:
    """Return the query of the rows of a table, and of the memberships by which a group is forgotten."""
    names = [column.name for column in columns_of(table.row)]
    known = ("shard", "seq", "group_id", "epoch")
    forgotten = ", ".join(name if name in known else f"null as {name}" for name in names)
    return f"""
        select {", ".join(names)}, null as change from {table.name} where {is_complete(table)}
        union all
        select {forgotten}, change from memberships where change = 'forgotten'
    """


def _suspect_types(engine: Engine) -> str:
    """Return the query of the records whose column `type` seems to differ from the type in their value."""
    seems = _field(engine, _VALUE[engine], "type")
    return f"select topic, partition, events.offset, value, type from events where type is distinct from {seems}"


def _snapshots(_engine: Engine) -> str:
    return f"select * from ({SNAPSHOTS_TO_CHECK}) as snapshots where {is_complete(SNAPSHOTS)}"


def events_to_answer(engine: Engine) -> str:
    """Return the query of the records for `answers_due`.

    Records with a rejected signature have their answer already, because signatures cannot be verified here without the
    secrets.
    """
    return f"""
        select events.topic, events.partition, events.offset, events.at_ms, events.key, events.value
        from events anti join (
            select
                decisions.cause.topic as topic,
                decisions.cause.partition as partition,
                decisions.cause.offset as record
            from decisions
            where kind = 'rejected' and {_field(engine, "json", "rule")} = 'signature'
        ) as refused
            on events.topic = refused.topic and events.partition = refused.partition and events.offset = refused.record
        where {is_complete(EVENTS)}
    """


def is_complete(table: Table) -> str:
    """Return the SQL condition that a row has all values that are never null."""
    return " and ".join(f"{table.name}.{name} is not null" for name in never_null(table))


def _field(engine: Engine, text: str, name: str) -> str:
    return _FIELD[engine].format(text=text, name=name)


LOOKS = (
    Look(RULES_OF_DECISIONS, _decisions, lambda lost: partial(violations_in_decisions, lost=lost)),
    Look(
        RULES_OF_ASSIGNMENTS,
        partial(_with_forgotten, ASSIGNMENTS),
        lambda lost: partial(violations_in_assignments, lost=lost),
    ),
    Look(RULES_OF_OFFSETS, partial(_with_forgotten, OFFSETS), lambda lost: partial(violations_in_offsets, lost=lost)),
    Look(RULES_OF_EVENTS, _suspect_types, lambda _: violations_in_types, is_in_order=False),
    # One by one: a state has up to a hundred megabytes.
    Look(RULES_OF_SNAPSHOTS, _snapshots, lambda _: violations_in_snapshots, is_in_order=False, fetched=1),
)


def history_rules() -> list[Rule]:
    """Return the rules of the suite `HISTORY`, sorted by name."""
    asked = [rows_rule(name, query.partition("\n")[0].lstrip("- ")) for name, query in queries("spark").items()]
    looked = [rule for look in LOOKS for rule in look.rules]
    return sorted([*looked, *asked, *CHAIN_RULES.values()], key=lambda rule: rule.name)


def needs_the_past(rule: Rule) -> bool:
    """Return whether a rule compares new rows with older ones, so that it needs both."""
    return rule.table not in TABLES or rule.name in _WITH_OLDER_ROWS


_WITH_OLDER_ROWS = ("decisions.caused", "decisions.derived", "events.answered", "events.refused")


@contextmanager
def broken_rows(
    spark: "SparkSession", rules: Collection[Rule] | None = None, others: Iterable[Broken] = ()
) -> Iterator["DataFrame"]:
    """Provide the rows of the session's tables and views that break a rule: see `Broken`.

    Args:
        spark: session with the tables and views, see `wakeroll_pipeline.ledger.tables.open_views`.
        rules: rules of `history_rules` to check; None: all. The result may contain rows that break other rules too.
        others: further violations to include in the result.
    """
    from wakeroll_pipeline.ledger.schemas import schema_of
    from wakeroll_pipeline.ledger.spark_ledger import SparkLedger

    losses = losses_of(SparkLedger(spark))
    spark.sql(f"create or replace temporary view lost_rows as {lost_rows_query(losses)}")
    for view, query in {
        **decided_views("spark"),
        **{view: text_of(f"{view}.sql") for view in ("reach", "told")},
    }.items():
        spark.sql(f"create or replace temporary view {view} as {query}")
    # Two rules read this view; the cache avoids a second run of its Python function.
    events = in_order(spark.sql(events_to_answer("spark")), ("topic", "partition"), "offset")
    answers = found_by(answers_due, events, Awaited).persist()
    answers.createOrReplaceTempView("awaited")
    spark.sql(f"create or replace temporary view unanswered as {text_of('unanswered.sql')}")
    wanted = {rule.name for rule in (history_rules() if rules is None else rules)}
    lost = lost_decisions(losses)
    looks = []
    for look in LOOKS:
        if any(rule.name in wanted for rule in look.rules):
            rows = spark.sql(look.query("spark"))
            rows = in_order(rows, ("shard",), "seq") if look.is_in_order else rows
            looks.append(found_by(look.violations(lost), rows, Broken))
    asked = {name: query for name, query in queries("spark").items() if name in wanted}
    looks += [spark.sql(f"select '{name}' as rule, * from ({query})") for name, query in asked.items()]
    more = [*others, *(one for one in left_out(losses) if one.rule.removesuffix(SKIPPED) in wanted)]
    looks.append(spark.createDataFrame([*map(msgspec.structs.astuple, more)], schema_of(Broken)))
    found = reduce(lambda one, other: one.unionByName(other), looks).persist()
    try:
        yield found
    finally:
        found.unpersist()
        answers.unpersist()
