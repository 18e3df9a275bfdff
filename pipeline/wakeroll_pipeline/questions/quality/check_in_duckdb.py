"""The check in DuckDB: DuckDB and the model find the rows that break rules, Great Expectations judges these rows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from wakeroll_model.rows import TABLES
from wakeroll_pipeline.ledger.delta_files import stored_columns
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger, delta_table
from wakeroll_pipeline.questions.quality.all_rules import all_rules, key_of
from wakeroll_pipeline.questions.quality.expectation_suites import Gate, RuleResult
from wakeroll_pipeline.questions.quality.history_in_duckdb import history_in_duckdb
from wakeroll_pipeline.questions.quality.rule import HISTORY
from wakeroll_pipeline.questions.quality.suspects import suspects


def check_in_duckdb(ledger: DuckLedger, gate: Gate, names: Collection[str] | None = None) -> list[RuleResult]:
    """Check the rules of a ledger, as `wakeroll_pipeline.questions.quality.all_rules.check` does in Spark.

    Args:
        ledger: the ledger.
        gate: judges the rows that break rules; opened for the engine `duckdb`.
        names: tables and views whose rules are checked; None: all.

    Returns:
        One result per rule.
    """
    outcomes: list[RuleResult] = []
    connection = ledger.connection
    for suite, rules in all_rules().items():
        asked = [rule for rule in rules if names is None or rule.table in names]
        if not asked:
            continue
        key: Sequence[str]
        counts: Mapping[str, int]
        if suite == HISTORY:
            found = history_in_duckdb(connection, asked)
            rows, counts, key = found.frame(), found.counts, ("at", "found", "expected")
        else:
            key = key_of(suite)
            types = None
            if suite in ledger.versions:
                types = stored_columns(delta_table(ledger.warehouse, TABLES[suite], ledger.versions[suite]))
            rows, counts = suspects(connection, suite, asked, key, types)
        for one in gate.check(suite, asked, rows, key):
            # Great Expectations has seen some rows of a rule that many rows break.
            all_broken = max(one.broken, counts.get(one.rule.name, 0)) if one.broken else 0
            outcomes.append(replace(one, broken=all_broken))
    return outcomes
