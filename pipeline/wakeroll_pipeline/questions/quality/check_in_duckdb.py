"""The check in DuckDB, without Great Expectations: DuckDB and the model check all rows of the tables and views."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import duckdb
from deltalake.exceptions import DeltaError

from wakeroll_model.rows import TABLES
from wakeroll_pipeline.ledger.column_types import columns_of, in_duckdb
from wakeroll_pipeline.ledger.delta_files import stored_columns
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
from wakeroll_pipeline.ledger.ledger import UnreadableTable
from wakeroll_pipeline.ledger.losses import losses_of
from wakeroll_pipeline.ledger.table_damage import damage_behind
from wakeroll_pipeline.questions.quality.all_rules import all_rules, key_of, sentences
from wakeroll_pipeline.questions.quality.chain_check import ChainCheck
from wakeroll_pipeline.questions.quality.chain_rules import CHAIN_RULES
from wakeroll_pipeline.questions.quality.comparison_rules import needs_the_past
from wakeroll_pipeline.questions.quality.declared_in_duckdb import judge_rows, judge_types
from wakeroll_pipeline.questions.quality.history_in_duckdb import history_in_duckdb
from wakeroll_pipeline.questions.quality.rule import HISTORY, Rule, RuleResult


def check_in_duckdb(
    ledger: DuckLedger, names: Collection[str] | None = None, chains: ChainCheck | None = None
) -> list[RuleResult]:
    """Check the rules of a ledger, as `wakeroll_pipeline.questions.quality.all_rules.check` does in Spark.

    If a table cannot be read, the rules that read it are not checked; all others are.

    Args:
        ledger: the ledger.
        names: tables and views whose rules are checked; None: all.
        chains: checks the chains; None: without published lines.

    Returns:
        One result per rule.
    """
    chains = ChainCheck() if chains is None else chains
    chains.leave_out_checked_rows(ledger)
    return ledger.in_bounded_memory(lambda: _outcomes(ledger, names, chains))


def _outcomes(ledger: DuckLedger, names: Collection[str] | None, chains: ChainCheck) -> list[RuleResult]:
    chains.heads.clear()
    outcomes: list[RuleResult] = []
    for suite, rules in all_rules().items():
        asked = [rule for rule in rules if names is None or rule.table in names]
        if asked:
            outcomes += _history(ledger, asked, chains) if suite == HISTORY else _suite(ledger, suite, asked)
    return outcomes


def _history(ledger: DuckLedger, rules: Sequence[Rule], chains: ChainCheck) -> list[RuleResult]:
    left_out = [rule for rule in rules if chains.since and needs_the_past(rule)]
    all_of_them, rules = rules, [rule for rule in rules if rule not in left_out]
    found = history_in_duckdb(ledger.connection, rules, ledger.damage_behind, losses_of(ledger))
    for table in chains.tables_of(rules):
        try:
            found.add((one.rule, one.at, one.found, one.expected) for one in chains.broken(ledger, table))
        except UnreadableTable as damage:
            found.not_checked[CHAIN_RULES[table.name].name] = damage
        except (duckdb.Error, DeltaError) as error:
            # The lines are read beside the ledger's own connection.
            if (lost := damage_behind(error, ledger.warehouse, ledger.versions)) is None:
                raise
            found.not_checked[CHAIN_RULES[table.name].name] = lost
    skipped = {**sentences(found.left_out), **chains.skipped}
    judged = [
        RuleResult(rule, found.counts[rule.name], found.first_of(rule.name), skipped=skipped.get(rule.name, ""))
        for rule in rules
        if rule.name not in found.not_checked
    ]
    judged += [RuleResult(rule, skipped=_NEEDS_THE_PAST) for rule in left_out]
    return _in_order(all_of_them, judged, found.not_checked)


_NEEDS_THE_PAST = "it compares new rows with older ones, which --since leaves out"


def _suite(ledger: DuckLedger, suite: str, rules: Sequence[Rule]) -> list[RuleResult]:
    # The log names the columns of another table in the place of this one too.
    of_types = _types(ledger, suite, rules) if suite in ledger.versions else []
    try:
        of_rows = judge_rows(ledger.connection, suite, rules, key_of(suite))
    except duckdb.Error as error:
        if (damage := ledger.damage_behind(error)) is None:
            raise
        return _in_order(rules, of_types, dict.fromkeys((rule.name for rule in rules), damage))
    # A table that does not exist yet has the declared types.
    missing = [RuleResult(rule) for rule in rules if rule.is_of_type and not of_types]
    return _in_order(rules, [*of_types, *of_rows, *missing], {})


def _types(ledger: DuckLedger, suite: str, rules: Sequence[Rule]) -> list[RuleResult]:
    columns = columns_of(TABLES[suite].row)
    stored = stored_columns(ledger.opened.deltas[suite])
    declared = {column.name: in_duckdb(column.type) for column in columns}
    # `run` has not added each column of this release yet; they may be null.
    added = {column.name: declared[column.name] for column in columns if column.is_nullable}
    return judge_types(rules, declared, added | stored)


def _in_order(
    rules: Sequence[Rule], judged: Iterable[RuleResult], why: Mapping[str, UnreadableTable]
) -> list[RuleResult]:
    """Return the results in the order of the rules; `why` has the reason for each rule without a result."""
    by_name = {one.rule.name: one for one in judged}
    return [by_name.get(rule.name) or RuleResult(rule, not_checked=str(why[rule.name])) for rule in rules]
