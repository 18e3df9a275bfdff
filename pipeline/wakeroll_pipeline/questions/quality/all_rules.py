"""All data quality rules, and the check of a session's tables and views against them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from wakeroll_model.rows import TABLES
from wakeroll_pipeline.ledger.view_queries import KINDS
from wakeroll_pipeline.questions.quality.chain_rules import CHAIN_RULES
from wakeroll_pipeline.questions.quality.comparison_rules import broken_rows, history_rules
from wakeroll_pipeline.questions.quality.ordered_rows import SKIPPED, Broken
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
        chains: returns the violations of the rules about chains; None: these rules are left out.

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
            left_out = rows.where(f"rule like '%{SKIPPED}'").select("rule", "found").collect()
            skipped = sentences((row.rule.removesuffix(SKIPPED), row.found) for row in left_out)
            outcomes = gate.check(suite, rules, rows, ("at", "found", "expected"), skipped)
        return [replace(one, skipped=skipped.get(one.rule.name, one.skipped)) for one in outcomes]
    return gate.check(suite, rules, spark.table(suite), key_of(suite))


def sentences(left_out: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return rule -> a sentence about everything that it has left out."""
    found: dict[str, list[str]] = {}
    for rule, what in left_out:
        found.setdefault(rule, []).append(what)
    return {
        rule: f"not looked at: {'; '.join(sorted(whats)[:_NAMED])}"
        + (f"; and {len(whats) - _NAMED} more" if len(whats) > _NAMED else "")
        for rule, whats in found.items()
    }


_NAMED = 5
"""Maximum number of shards that a sentence names."""


def key_of(suite: str) -> Sequence[str]:
    """Return the columns that identify a row of the table of a suite."""
    return TABLES[suite].key
