"""The gate: Great Expectations checks suites of rules, and reports the broken rules with sample rows.

A first run checks all rules of a suite at once, in Spark in one job, and keeps no rows.  A second run collects rows of
the broken rules only.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import great_expectations as gx
import numpy as np
import pandas as pd
from great_expectations import expectations
from great_expectations.core import ExpectationValidationResult
from great_expectations.data_context.data_context.abstract_data_context import AbstractDataContext
from great_expectations.data_context.types.base import ProgressBarsConfig

from wakeroll_pipeline.ledger.view_queries import Engine
from wakeroll_pipeline.questions.quality.rule import Rule

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN = 5
"""Maximum number of sample rows per broken rule."""
_SITE = "local_site"
_PANDAS_TYPES: Mapping[str, str] = {
    "StringType": "str",
    "IntegerType": "int32",
    "LongType": "int64",
    "BinaryType": "bytes",
    "StructType": "dict",
}
"""Type of a column in a suite -> type of the pandas column: see `wakeroll_pipeline.questions.quality.suspects`."""
_ALL = "all rows"


@dataclass(frozen=True)
class RuleResult:
    """The result of one rule."""

    rule: Rule
    broken: int = 0
    """Number of rows that break the rule; 1 if a rule about the whole table is broken."""
    rows: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """The first of these rows: their key, and the value found."""
    failure: str = ""
    """Message of an engine that failed while it checked the rule; empty if it did not."""
    not_checked: str = ""
    """Why the rule could not be checked, as a sentence; empty if it was."""
    skipped: str = ""
    """Rows that the rule left out, and why, as a sentence; empty if it looked at all of them."""


class Gate:
    """Great Expectations with its suites and results."""

    def __init__(self, docs: Path | None = None, engine: Engine = "spark") -> None:
        """Open a gate.

        Args:
            docs: folder for Data Docs, and for the project from which they are built; None: in memory only.
            engine: program that provides the rows: as frames of Spark, or from DuckDB as frames of pandas.
        """
        self._engine = engine
        with _quiet():
            # The projects of both engines have the same names, with other types.
            self._context = _context(None if docs is None else docs / engine)
            sources = self._context.data_sources
            self._source: Any = (
                sources.add_or_update_spark(name="ledger", persist=False)
                if engine == "spark"
                else sources.add_or_update_pandas(name="ledger")
            )

    def check(
        self, suite: str, rules: Sequence[Rule], rows: "DataFrame | pd.DataFrame", key: Sequence[str]
    ) -> list[RuleResult]:
        """Check the rules of one suite.

        Args:
            suite: name of the suite.
            rules: all rules of the suite.
            rows: rows of the table or view, or those that break a rule; for the suite `HISTORY`, the violations.
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
        self, name: str, rules: Sequence[Rule], rows: "DataFrame | pd.DataFrame", result_format: dict[str, Any]
    ) -> dict[str, ExpectationValidationResult]:
        asset = self._source.add_dataframe_asset(name=name)
        batch = asset.add_batch_definition_whole_dataframe(_ALL)
        suite = gx.ExpectationSuite(name=name, expectations=[_expectation(rule, self._engine) for rule in rules])
        suite = self._context.suites.add_or_update(suite)
        definition = gx.ValidationDefinition(name=name, data=batch, suite=suite)
        definition = self._context.validation_definitions.add_or_update(definition)
        done = definition.run(batch_parameters={"dataframe": rows}, result_format=result_format)
        return {one.expectation_config.meta["rule"]: one for one in done.results if one.expectation_config}


def _expectation(rule: Rule, engine: Engine) -> Any:
    made = getattr(expectations, rule.expectation)
    arguments = dict(rule.arguments)
    if engine == "duckdb" and "type_" in arguments:
        arguments["type_"] = _PANDAS_TYPES[arguments["type_"]]
    return made(**arguments, description=f"{rule.name}: {rule.says}", meta={"rule": rule.name})


def _outcome(rule: Rule, result: ExpectationValidationResult) -> RuleResult:
    said = result.result
    if "unexpected_count" not in said:
        # The rule is about the whole table, or its check failed, for example because the column is missing.
        failure = "" if "observed_value" in said else _failure(result)
        found = failure or said["observed_value"]
        found = next((name for name, in_pandas in _PANDAS_TYPES.items() if in_pandas == found), found)
        return RuleResult(rule, 1, [{"found": found}], failure=failure)
    rows = [
        {name: _plain(value) for name, value in row.items()} for row in said.get("partial_unexpected_index_list") or []
    ]
    if rule.compares:
        rows = [{name: value for name, value in row.items() if name != "rule"} for row in rows]
    return RuleResult(rule, said["unexpected_count"], rows[:SHOWN])


def _plain(value: Any) -> Any:
    """Return a value of a pandas column as Python's own; None if it is missing."""
    if isinstance(value, np.generic):
        return value.item()
    return None if value is pd.NA else value


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
