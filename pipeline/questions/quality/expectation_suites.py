"""The gate: Great Expectations checks suites of rules, and reports the broken rules with sample rows.

A first run checks all rules of a suite in one Spark job and keeps no rows.  A second run collects rows of the broken
rules only.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import great_expectations as gx
from great_expectations import expectations
from great_expectations.core import ExpectationValidationResult
from great_expectations.data_context.data_context.abstract_data_context import AbstractDataContext
from great_expectations.data_context.types.base import ProgressBarsConfig
from pyspark.sql import DataFrame

from pipeline.questions.quality.rule import Rule

SHOWN = 5
"""Maximum number of sample rows per broken rule."""
_SITE = "local_site"
_ALL = "all rows"


@dataclass(frozen=True)
class RuleResult:
    """The result of one rule."""

    rule: Rule
    broken: int = 0
    """Number of rows that break the rule; 1 if a rule about the whole table is broken."""
    rows: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """The first of these rows: their key, and the value found."""


class Gate:
    """Great Expectations with its suites and results."""

    def __init__(self, docs: Path | None = None) -> None:
        """Open a gate.

        Args:
            docs: folder for Data Docs, and for the project from which they are built; None: in memory only.
        """
        with _quiet():
            self._context = _context(docs)
            self._source = self._context.data_sources.add_or_update_spark(name="ledger", persist=False)

    def check(self, suite: str, rules: Sequence[Rule], rows: DataFrame, key: Sequence[str]) -> list[RuleResult]:
        """Check the rules of one suite.

        Args:
            suite: name of the suite.
            rules: all rules of the suite.
            rows: rows of the table or view; for the suite `HISTORY`, the rows that break its rules.
            key: columns that identify a row.

        Returns:
            One result per rule, in the order of `rules`.
        """
        with _quiet():
            first = self._run(suite, rules, rows, {"result_format": "BOOLEAN_ONLY"})
            wrong = [rule for rule in rules if not first[rule.name].success]
            if not wrong:
                return [RuleResult(rule) for rule in rules]
            closer = {
                "result_format": "SUMMARY",
                "partial_unexpected_count": SHOWN,
                "unexpected_index_column_names": list(key),
            }
            second = self._run(f"{suite}, what is broken", wrong, rows, closer)
        return [_outcome(rule, second[rule.name]) if rule in wrong else RuleResult(rule) for rule in rules]

    def write_docs(self) -> Path:
        """Build the Data Docs of all checks of this gate; return the path of their index page."""
        with _quiet():
            self._context.build_data_docs()
        [site] = self._context.get_docs_sites_urls(site_name=_SITE)
        return Path(str(site["site_url"]).removeprefix("file://"))

    def _run(
        self, name: str, rules: Sequence[Rule], rows: DataFrame, result_format: dict[str, Any]
    ) -> dict[str, ExpectationValidationResult]:
        asset = self._source.add_dataframe_asset(name=name)
        batch = asset.add_batch_definition_whole_dataframe(_ALL)
        suite = gx.ExpectationSuite(name=name, expectations=[_expectation(rule) for rule in rules])
        suite = self._context.suites.add_or_update(suite)
        definition = gx.ValidationDefinition(name=name, data=batch, suite=suite)
        definition = self._context.validation_definitions.add_or_update(definition)
        done = definition.run(batch_parameters={"dataframe": rows}, result_format=result_format)
        return {one.expectation_config.meta["rule"]: one for one in done.results if one.expectation_config}


def _expectation(rule: Rule) -> Any:
    made = getattr(expectations, rule.expectation)
    return made(**rule.arguments, description=f"{rule.name}: {rule.says}", meta={"rule": rule.name})


def _outcome(rule: Rule, result: ExpectationValidationResult) -> RuleResult:
    said = result.result
    if "unexpected_count" not in said:
        # The rule is about the whole table, or its check failed, for example because the column is missing.
        found = said.get("observed_value", _failure(result))
        return RuleResult(rule, 1, [{"found": found}])
    rows = said.get("partial_unexpected_index_list") or []
    if rule.compares:
        rows = [{name: value for name, value in row.items() if name != "rule"} for row in rows]
    return RuleResult(rule, said["unexpected_count"], rows[:SHOWN])


def _failure(result: ExpectationValidationResult) -> str:
    """Return why a check failed; Great Expectations reports it per metric or for the whole check."""
    told = result.exception_info or {}
    of_metrics = [one for one in told.values() if isinstance(one, dict)]
    messages = [str(one["exception_message"]).strip() for one in (told, *of_metrics) if one.get("exception_message")]
    return messages[0] if messages else "the check failed without a message"


def _context(docs: Path | None) -> AbstractDataContext:
    if docs is None:
        context: AbstractDataContext = gx.get_context(mode="ephemeral")
    else:
        docs.mkdir(parents=True, exist_ok=True)
        context = gx.get_context(mode="file", project_root_dir=docs)
        context.enable_analytics(False)
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    return context


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the deprecation warnings of Great Expectations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
