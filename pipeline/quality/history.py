"""Rules that compare rows, of one table or of several: in SQL, a file each, and by asking the model.

A query selects the rows that break its rule: `at` (their key), `found` and `expected`.  Its first line says the rule.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources

from pyspark.sql import DataFrame, SparkSession

from model.rows import ASSIGNMENTS, OFFSETS
from pipeline.operators.ledger import assignment_rows, offset_rows
from pipeline.quality.asked import ASKED_RULES, broken_assignments, broken_decisions, broken_growth
from pipeline.quality.awaited import awaited
from pipeline.quality.rule import Rule, rows_rule
from pipeline.quality.views import VIEW_RULES, broken_views

_FOLDER = resources.files("pipeline") / "quality"


def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


_DECIDED = {ASSIGNMENTS.name: "hand-over", OFFSETS.name: "offset"}
"""Table -> the decisions that make its rows."""
QUERIES: Mapping[str, str] = {
    **{f"{table}.decided": _text("decided.sql").format(table=table, decision=said) for table, said in _DECIDED.items()},
    **{file.name.removesuffix(".sql"): file.read_text(encoding="utf-8") for file in (_FOLDER / "rules").iterdir()},
}
"""Rule -> its query."""


def history_rules() -> list[Rule]:
    """Return the rules of the suite, by name."""
    asked = [rows_rule(name, query.partition("\n")[0].lstrip("- ")) for name, query in QUERIES.items()]
    return sorted([*ASKED_RULES, *VIEW_RULES, *asked], key=lambda rule: rule.name)


@contextmanager
def broken_rows(spark: SparkSession) -> Iterator[DataFrame]:
    """Have the rows that break a rule, of the tables and views as this session knows them: see `Broken`."""
    decisions, memberships = spark.table("decisions"), spark.table("memberships")
    assignment_rows(decisions).createOrReplaceTempView("decided_assignments")
    offset_rows(decisions).createOrReplaceTempView("decided_offsets")
    for view in ("reach", "told"):
        spark.sql(f"create or replace temporary view {view} as {_text(f'{view}.sql')}")
    # Two rules look at it, and Python is not asked twice.
    answers = awaited(spark.table("events")).persist()
    answers.createOrReplaceTempView("awaited")
    spark.sql(f"create or replace temporary view unanswered as {_text('unanswered.sql')}")
    found = broken_decisions(spark.table("told"))
    found = found.unionByName(broken_assignments(spark.table("assignments"), memberships))
    found = found.unionByName(broken_growth(spark.table("offsets"), memberships))
    found = found.unionByName(broken_views(spark))
    for name, query in QUERIES.items():
        found = found.unionByName(spark.sql(f"select '{name}' as rule, * from ({query})"))
    found = found.persist()
    try:
        yield found
    finally:
        found.unpersist()
        answers.unpersist()
