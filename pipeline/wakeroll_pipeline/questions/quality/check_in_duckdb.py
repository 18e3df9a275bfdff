"""The check in DuckDB: DuckDB and the model find the rows that break rules, Great Expectations judges these rows."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import duckdb

from wakeroll_model.rows import TABLES
from wakeroll_pipeline.ledger.column_types import columns_of, in_duckdb
from wakeroll_pipeline.ledger.delta_files import stored_columns
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger, delta_table
from wakeroll_pipeline.ledger.ledger import UnreadableTable
from wakeroll_pipeline.questions.quality.all_rules import all_rules, key_of
from wakeroll_pipeline.questions.quality.chain_check import ChainCheck
from wakeroll_pipeline.questions.quality.chain_rules import CHAIN_RULES
from wakeroll_pipeline.questions.quality.expectation_suites import Gate, RuleResult
from wakeroll_pipeline.questions.quality.history_in_duckdb import history_in_duckdb
from wakeroll_pipeline.questions.quality.rule import HISTORY, Rule
from wakeroll_pipeline.questions.quality.suspects import frame_of_types, suspects


def check_in_duckdb(
    ledger: DuckLedger, gate: Gate, names: Collection[str] | None = None, chains: ChainCheck | None = None
) -> list[RuleResult]:
    """Check the rules of a ledger, as `wakeroll_pipeline.questions.quality.all_rules.check` does in Spark.

    A table that cannot be read leaves the rules that read it unchecked; the others are checked.

    Args:
        ledger: the ledger.
        gate: judges the rows that break rules; opened for the engine `duckdb`.
        names: tables and views whose rules are checked; None: all.
        chains: checks the chains; None: without published lines.

    Returns:
        One result per rule.
    """
    outcomes: list[RuleResult] = []
    chains = ChainCheck() if chains is None else chains
    for suite, rules in all_rules().items():
        asked = [rule for rule in rules if names is None or rule.table in names]
        if asked:
            outcomes += (
                _history(ledger, gate, asked, chains) if suite == HISTORY else _suite(ledger, gate, suite, asked)
            )
    return outcomes


def _history(ledger: DuckLedger, gate: Gate, rules: Sequence[Rule], chains: ChainCheck) -> list[RuleResult]:
    found = history_in_duckdb(ledger.connection, rules, ledger.damage_behind)
    for table in chains.tables_of(rules):
        try:
            found.add((one.rule, one.at, one.found, one.expected) for one in chains.broken(ledger, table))
        except duckdb.Error as error:
            if (damage := ledger.damage_behind(error)) is None:
                raise
            found.not_checked[CHAIN_RULES[table.name].name] = damage
    judged = [rule for rule in rules if rule.name not in found.not_checked]
    by_name = {
        one.rule.name: replace(_counted(one, found.counts), skipped=chains.skipped.get(one.rule.name, one.skipped))
        for one in (gate.check(HISTORY, judged, found.frame(), ("at", "found", "expected")) if judged else ())
    }
    return [by_name.get(rule.name) or RuleResult(rule, not_checked=str(found.not_checked[rule.name])) for rule in rules]


def _suite(ledger: DuckLedger, gate: Gate, suite: str, rules: Sequence[Rule]) -> list[RuleResult]:
    key, types = key_of(suite), _types_in_files(ledger, suite)
    try:
        rows, counts = suspects(ledger.connection, suite, rules, key, types)
    except duckdb.Error as error:
        if (damage := ledger.damage_behind(error)) is None:
            raise
        # The log names the columns of another table in the place of this one.
        of_types = [rule for rule in rules if rule.is_of_type]
        judged = gate.check(suite, of_types, frame_of_types(types), key) if types else ()
        return _in_order(rules, judged, dict.fromkeys((rule.name for rule in rules), damage))
    return [_counted(one, counts) for one in gate.check(suite, rules, rows, key)]


def _types_in_files(ledger: DuckLedger, suite: str) -> dict[str, str] | None:
    """Return declared column -> its type in the files of a table; None for a view, or if the log cannot be read.

    `run` has not added each column of this release yet.  The columns of a newer one have no rules.
    """
    if suite not in ledger.versions:
        return None
    stored = stored_columns(delta_table(ledger.warehouse, TABLES[suite], ledger.versions[suite]))
    return {
        column.name: stored.get(column.name, in_duckdb(column.type))
        for column in columns_of(TABLES[suite].row)
        if column.name in stored or column.is_nullable
    }


def _counted(one: RuleResult, counts: Mapping[str, int]) -> RuleResult:
    """Return a result with the number of all broken rows: Great Expectations has seen some of many rows."""
    return replace(one, broken=max(one.broken, counts.get(one.rule.name, 0)) if one.broken else 0)


def _in_order(
    rules: Sequence[Rule], judged: Iterable[RuleResult], why: Mapping[str, UnreadableTable]
) -> list[RuleResult]:
    """Return the results in the order of the rules; `why` has the reason for each rule without one."""
    by_name = {one.rule.name: one for one in judged}
    return [by_name.get(rule.name) or RuleResult(rule, not_checked=str(why[rule.name])) for rule in rules]
