"""All data quality rules, and the check of a session's tables and views against them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from wakeroll_model.rows import DECIDED, TABLES
from wakeroll_pipeline.ledger.view_queries import KINDS
from wakeroll_pipeline.questions.quality.chain_rules import CHAIN_RULES
from wakeroll_pipeline.questions.quality.comparison_rules import broken_rows, history_rules
from wakeroll_pipeline.questions.quality.ordered_rows import Broken
from wakeroll_pipeline.questions.quality.rule import HISTORY, Rule, RuleResult
from wakeroll_pipeline.questions.quality.schema_rules import declared_rules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wakeroll_pipeline.questions.quality.expectation_suites import Gate


def all_rules() -> Mapping[str, Sequence[Rule]]:
    """Return suite -> its rules."""
    return {**declared_rules(), HISTORY: history_rules()}


def check(
    spark: "SparkSession",
    gate: "Gate",
    names: Collection[str] | None = None,
    chains: Callable[[Collection[Rule]], Iterable[Broken]] | None = None,
) -> list[RuleResult]:
    """Check the rules.

    Args:
        spark: session with the tables and views: see `wakeroll_pipeline.ledger.tables.open_views`.
        gate: runs the rules.
        names: tables and views whose rules are checked; None: all.
        chains: returns the violations of those rules that are about chains; None: these rules are left out.

    Returns:
        One result per rule.
    """
    from wakeroll_pipeline.ledger.tables import read_once

    outcomes: list[RuleResult] = []
    with read_once(spark, (*TABLES, *KINDS)) if names is None else nullcontext():
        for suite, rules in all_rules().items():
            asked = [rule for rule in rules if names is None or rule.table in names]
            if chains is None:
                asked = [rule for rule in asked if rule not in CHAIN_RULES.values()]
            if asked:
                outcomes += _outcomes(spark, gate, suite, asked, () if chains is None else chains(asked))
    return outcomes


def _outcomes(
    spark: "SparkSession",
    gate: "Gate",
    suite: str,
    rules: Sequence[Rule],
    others: Iterable[Broken],
) -> list[RuleResult]:
    if suite == HISTORY:
        with broken_rows(spark, rules, others) as rows:
            return gate.check(suite, rules, rows, ("at", "found", "expected"))
    return gate.check(suite, rules, spark.table(suite), key_of(suite))


def key_of(suite: str) -> Sequence[str]:
    """Return the columns that identify a row of the table or view of a suite."""
    return TABLES[suite].key if suite in TABLES else DECIDED
