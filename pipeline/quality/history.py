"""Rules that compare rows, of one table or of several: in SQL, a file each, and by asking the model.

A query selects the rows that break its rule: `at` (their key), `found` and `expected`.  Its first line says the rule.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from importlib.resources.abc import Traversable

from pyspark.sql import DataFrame, SparkSession

from pipeline.operators.ledger import assignment_rows, offset_rows
from pipeline.quality.asked import ASKED_RULES, broken_assignments, broken_decisions, broken_growth
from pipeline.quality.awaited import awaited
from pipeline.quality.rule import Rule, rows_rule

_FOLDER = resources.files("pipeline") / "quality"
_QUERIES = sorted((_FOLDER / "rules").iterdir(), key=lambda file: file.name)


def history_rules() -> list[Rule]:
    """Return the rules of the suite, by name."""
    rules = [*ASKED_RULES, *(rows_rule(_name(file), _text(file).partition("\n")[0].lstrip("- ")) for file in _QUERIES)]
    return sorted(rules, key=lambda rule: rule.name)


@contextmanager
def broken_rows(spark: SparkSession) -> Iterator[DataFrame]:
    """Have the rows that break a rule, of the tables and views as this session knows them: see `Broken`."""
    decisions, memberships = spark.table("decisions"), spark.table("memberships")
    assignment_rows(decisions).createOrReplaceTempView("decided_assignments")
    offset_rows(decisions).createOrReplaceTempView("decided_offsets")
    spark.sql(f"create or replace temporary view reach as {_text(_FOLDER / 'reach.sql')}")
    # Two rules look at it, and Python is not asked twice.
    answers = awaited(spark.table("events")).persist()
    answers.createOrReplaceTempView("awaited")
    found = broken_decisions(decisions)
    found = found.unionByName(broken_assignments(spark.table("assignments"), memberships))
    found = found.unionByName(broken_growth(spark.table("offsets"), memberships))
    for file in _QUERIES:
        found = found.unionByName(spark.sql(f"select '{_name(file)}' as rule, * from ({_text(file)})"))
    found = found.persist()
    try:
        yield found
    finally:
        found.unpersist()
        answers.unpersist()


def _name(file: Traversable) -> str:
    return file.name.removesuffix(".sql")


def _text(file: Traversable) -> str:
    return file.read_text(encoding="utf-8")
