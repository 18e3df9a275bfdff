"""Rules that compare rows of one or several tables: SQL queries, one file each, and checks by the model.

A query selects the rows that break its rule: `at` (their key), `found` and `expected`.  Its first line is the rule.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from importlib import resources

from pyspark.sql import DataFrame, SparkSession

from model.rows import ASSIGNMENTS, OFFSETS
from pipeline.ledger.tables import with_era
from pipeline.operators.ledger_rows import assignment_rows, offset_rows
from pipeline.questions.quality.model_rules import (
    RULES_OF_ASSIGNMENTS,
    RULES_OF_DECISIONS,
    RULES_OF_OFFSETS,
    broken_assignments,
    broken_decisions,
    broken_growth,
)
from pipeline.questions.quality.rule import Rule, rows_rule
from pipeline.questions.quality.unanswered_records import awaited
from pipeline.questions.quality.view_rules import VIEW_RULES, broken_views

_FOLDER = resources.files("pipeline.questions") / "quality"


def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


_DECIDED = {ASSIGNMENTS.name: "hand-over", OFFSETS.name: "offset"}
"""Table -> kind of decision that makes its rows, in words."""
QUERIES: Mapping[str, str] = {
    **{f"{table}.decided": _text("decided.sql").format(table=table, decision=said) for table, said in _DECIDED.items()},
    **{file.name.removesuffix(".sql"): file.read_text(encoding="utf-8") for file in (_FOLDER / "rules").iterdir()},
}
"""Rule -> its query."""

_LOOKS: Sequence[tuple[Sequence[Rule], Callable[[SparkSession], DataFrame]]] = (
    (RULES_OF_DECISIONS, lambda spark: broken_decisions(spark.table("told"))),
    (
        RULES_OF_ASSIGNMENTS,
        lambda spark: broken_assignments(spark.table("assignments"), spark.table("memberships")),
    ),
    (RULES_OF_OFFSETS, lambda spark: broken_growth(spark.table("offsets"), spark.table("memberships"))),
    (VIEW_RULES, broken_views),
)
"""Pairs of rules and the function that returns the rows that break them."""


def history_rules() -> list[Rule]:
    """Return the rules of the suite `HISTORY`, sorted by name."""
    asked = [rows_rule(name, query.partition("\n")[0].lstrip("- ")) for name, query in QUERIES.items()]
    looked = [rule for rules, _ in _LOOKS for rule in rules]
    return sorted([*looked, *asked], key=lambda rule: rule.name)


@contextmanager
def broken_rows(spark: SparkSession, rules: Collection[Rule] | None = None) -> Iterator[DataFrame]:
    """Provide the rows of the session's tables and views that break a rule: see `Broken`.

    Args:
        spark: session with the tables and views, see `pipeline.ledger.tables.open_views`.
        rules: rules of `history_rules` to check; None: all.  The result may hold rows that break other rules too.
    """
    decisions = spark.table("decisions")
    with_era(assignment_rows(decisions)).createOrReplaceTempView("decided_assignments")
    with_era(offset_rows(decisions)).createOrReplaceTempView("decided_offsets")
    for view in ("reach", "told"):
        spark.sql(f"create or replace temporary view {view} as {_text(f'{view}.sql')}")
    # Two rules read this view; the cache avoids a second run of its Python function.
    answers = awaited(spark.table("events"), decisions).persist()
    answers.createOrReplaceTempView("awaited")
    spark.sql(f"create or replace temporary view unanswered as {_text('unanswered.sql')}")
    wanted = {rule.name for rule in (history_rules() if rules is None else rules)}
    looks = [look(spark) for its_rules, look in _LOOKS if any(rule.name in wanted for rule in its_rules)]
    queries = {name: query for name, query in QUERIES.items() if name in wanted}
    looks += [spark.sql(f"select '{name}' as rule, * from ({query})") for name, query in queries.items()]
    found = reduce(DataFrame.unionByName, looks).persist()
    try:
        yield found
    finally:
        found.unpersist()
        answers.unpersist()
