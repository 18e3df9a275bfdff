"""Rules that compare rows, of one table or of several: in SQL, a file each, and by asking the model.

A query selects the rows that break its rule: `at` (their key), `found` and `expected`.  Its first line says the rule.
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
"""Table -> the decisions that make its rows."""
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
"""Rules that one look answers -> the look."""


def history_rules() -> list[Rule]:
    """Return the rules of the suite, by name."""
    asked = [rows_rule(name, query.partition("\n")[0].lstrip("- ")) for name, query in QUERIES.items()]
    looked = [rule for rules, _ in _LOOKS for rule in rules]
    return sorted([*looked, *asked], key=lambda rule: rule.name)


@contextmanager
def broken_rows(spark: SparkSession, rules: Collection[Rule] | None = None) -> Iterator[DataFrame]:
    """Have the rows that break a rule, of the tables and views as this session knows them: see `Broken`.

    Args:
        spark: knows them, see `pipeline.ledger.tables.open_views`.
        rules: of `history_rules`; only for these is looked, and what is found beside them does no harm.  None: all.
    """
    decisions = spark.table("decisions")
    with_era(assignment_rows(decisions)).createOrReplaceTempView("decided_assignments")
    with_era(offset_rows(decisions)).createOrReplaceTempView("decided_offsets")
    for view in ("reach", "told"):
        spark.sql(f"create or replace temporary view {view} as {_text(f'{view}.sql')}")
    # Two rules look at it, and Python is not asked twice.
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
