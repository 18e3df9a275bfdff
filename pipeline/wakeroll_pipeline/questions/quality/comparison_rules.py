"""Rules that compare rows of one or several tables: SQL queries, one file each, and checks by the model.

A query selects the rows that break its rule: `at` (their key), `found` and `expected`.  Its first line is the rule.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from importlib import resources
from typing import TYPE_CHECKING

import msgspec

from wakeroll_model.rows import ASSIGNMENTS, OFFSETS, TABLES
from wakeroll_pipeline.ledger.losses import losses_of, lost_decisions, lost_rows_query
from wakeroll_pipeline.ledger.view_queries import Engine
from wakeroll_pipeline.questions.quality.accepted_losses import left_out
from wakeroll_pipeline.questions.quality.chain_rules import CHAIN_RULES
from wakeroll_pipeline.questions.quality.model_rules import (
    RULES_OF_ASSIGNMENTS,
    RULES_OF_DECISIONS,
    RULES_OF_OFFSETS,
    Lost,
    broken_assignments,
    broken_decisions,
    broken_growth,
)
from wakeroll_pipeline.questions.quality.ordered_rows import SKIPPED, Broken
from wakeroll_pipeline.questions.quality.record_types import RULES_OF_EVENTS, broken_types
from wakeroll_pipeline.questions.quality.rule import Rule, rows_rule
from wakeroll_pipeline.questions.quality.snapshot_rules import RULES_OF_SNAPSHOTS, SNAPSHOTS_TO_CHECK, broken_snapshots
from wakeroll_pipeline.questions.quality.unanswered_records import awaited

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FOLDER = resources.files("wakeroll_pipeline.questions") / "quality"


_DECIDED = {ASSIGNMENTS.name: "hand-over", OFFSETS.name: "offset"}
"""Table -> kind of decision that makes its rows, in words."""

_FIELD = {
    "spark": "get_json_object(cast(value as string), '$.{name}')",
    "duckdb": "try(json_extract_string(decode(value, 'replace'), '$.{name}'))",
}
"""Field of the JSON of an event."""
_ROW = {"spark": "to_json(struct(*), map('ignoreNullFields', 'false'))", "duckdb": "cast(to_json({table}) as varchar)"}
"""A row as JSON, with its nulls."""


def text_of(name: str) -> str:
    """Return the text of a file of this folder."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def queries(engine: Engine) -> Mapping[str, str]:
    """Return rule -> its query, in the SQL of an engine."""
    fields = {name: _FIELD[engine].format(name=name) for name in ("client_id", "request_id")}
    found = {}
    for table, said in _DECIDED.items():
        rows = {
            "row_as_json": _ROW[engine].format(table=table),
            "decided_as_json": _ROW[engine].format(table=f"decided_{table}"),
        }
        found[f"{table}.decided"] = text_of("decided.sql").format(table=table, decision=said, **rows)
    for file in (_FOLDER / "rules").iterdir():
        found[file.name.removesuffix(".sql")] = file.read_text(encoding="utf-8").format(**fields)
    return found


_LOOKS: Sequence[tuple[Sequence[Rule], Callable[["SparkSession", Lost], "DataFrame"]]] = (
    (RULES_OF_DECISIONS, lambda spark, lost: broken_decisions(spark.table("told"), lost)),
    (
        RULES_OF_ASSIGNMENTS,
        lambda spark, lost: broken_assignments(spark.table("assignments"), spark.table("memberships"), lost),
    ),
    (
        RULES_OF_OFFSETS,
        lambda spark, lost: broken_growth(spark.table("offsets"), spark.table("memberships"), lost),
    ),
    (RULES_OF_EVENTS, lambda spark, _: broken_types(spark.table("events"))),
    (RULES_OF_SNAPSHOTS, lambda spark, _: broken_snapshots(spark.sql(SNAPSHOTS_TO_CHECK))),
)
"""Pairs of rules and the function that returns the rows that break them."""


def history_rules() -> list[Rule]:
    """Return the rules of the suite `HISTORY`, sorted by name."""
    asked = [rows_rule(name, query.partition("\n")[0].lstrip("- ")) for name, query in queries("spark").items()]
    looked = [rule for rules, _ in _LOOKS for rule in rules]
    return sorted([*looked, *asked, *CHAIN_RULES.values()], key=lambda rule: rule.name)


def needs_the_past(rule: Rule) -> bool:
    """Return whether a rule compares new rows with older ones, so that it cannot be checked without these."""
    return rule.table not in TABLES or rule.name in _WITH_OLDER_ROWS


_WITH_OLDER_ROWS = ("decisions.caused", "decisions.derived", "events.answered", "events.refused")


@contextmanager
def broken_rows(
    spark: "SparkSession", rules: Collection[Rule] | None = None, others: Iterable[Broken] = ()
) -> Iterator["DataFrame"]:
    """Provide the rows of the session's tables and views that break a rule: see `Broken`.

    Args:
        spark: session with the tables and views, see `wakeroll_pipeline.ledger.tables.open_views`.
        rules: rules of `history_rules` to check; None: all.  The result may hold rows that break other rules too.
        others: violations that were found elsewhere, and are in the result too.
    """
    from wakeroll_pipeline.ledger.schemas import schema_of
    from wakeroll_pipeline.ledger.spark_ledger import SparkLedger
    from wakeroll_pipeline.ledger.tables import with_era
    from wakeroll_pipeline.questions.quality.decided_rows import assignment_rows, offset_rows

    losses = losses_of(SparkLedger(spark))
    spark.sql(f"create or replace temporary view lost_rows as {lost_rows_query(losses)}")
    decisions = spark.table("decisions")
    with_era(assignment_rows(decisions)).createOrReplaceTempView("decided_assignments")
    with_era(offset_rows(decisions)).createOrReplaceTempView("decided_offsets")
    for view in ("reach", "told"):
        spark.sql(f"create or replace temporary view {view} as {text_of(f'{view}.sql')}")
    # Two rules read this view; the cache avoids a second run of its Python function.
    answers = awaited(spark.table("events"), decisions).persist()
    answers.createOrReplaceTempView("awaited")
    spark.sql(f"create or replace temporary view unanswered as {text_of('unanswered.sql')}")
    wanted = {rule.name for rule in (history_rules() if rules is None else rules)}
    looks = [
        look(spark, lost_decisions(losses))
        for its_rules, look in _LOOKS
        if any(rule.name in wanted for rule in its_rules)
    ]
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
