"""The gate: Great Expectations runs the suites over tables and views, and says which rules are broken, and by what.

A first look asks all rules of a suite in one Spark job and keeps no rows; only what is broken is looked at again.
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
"""Rows of a broken rule that are kept."""
_SITE = "local_site"
_ALL = "all rows"


@dataclass(frozen=True)
class RuleResult:
    """What came of a rule."""

    rule: Rule
    broken: int = 0
    """Rows that break it; 1 where it is about a table as a whole."""
    rows: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """The first of them: their key, and what is found."""


class Gate:
    """Suites, and a place for what came of them."""

    def __init__(self, docs: Path | None = None) -> None:
        """Open a gate.

        Args:
            docs: folder for Data Docs, and for the project that they are made from; None: nothing is kept.
        """
        with _quiet():
            self._context = _context(docs)
            self._source = self._context.data_sources.add_or_update_spark(name="ledger", persist=False)

    def check(self, suite: str, rules: Sequence[Rule], rows: DataFrame, key: Sequence[str]) -> list[RuleResult]:
        """Ask the rules of one suite.

        Args:
            suite: its name.
            rules: all of the suite.
            rows: of the table or view; for the suite `HISTORY` those that break its rules.
            key: columns that name a row of them.

        Returns:
            An outcome a rule, in their order.
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
        """Make the Data Docs of all that was checked here, and return their first page."""
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
        # About the table as a whole, or the question itself failed, as it does without the column that it is about.
        found = said.get("observed_value", _failure(result))
        return RuleResult(rule, 1, [{"found": found}])
    rows = said.get("partial_unexpected_index_list") or []
    if rule.compares:
        rows = [{name: value for name, value in row.items() if name != "rule"} for row in rows]
    return RuleResult(rule, said["unexpected_count"], rows[:SHOWN])


def _failure(result: ExpectationValidationResult) -> str:
    """Return why a question failed; Great Expectations tells it for each metric, or of the whole."""
    told = result.exception_info or {}
    of_metrics = [one for one in told.values() if isinstance(one, dict)]
    messages = [str(one["exception_message"]).strip() for one in (told, *of_metrics) if one.get("exception_message")]
    return messages[0] if messages else "it cannot be asked"


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
    """Keep the warnings of Great Expectations about its own future from the terminal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
