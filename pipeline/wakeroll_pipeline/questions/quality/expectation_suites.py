"""Great Expectations: it checks the suites of rules in Spark, and makes the Data Docs of every check.

In Spark, a first run checks all rules of a suite at once, in one job, and keeps no rows. A second run collects rows of
the broken rules only. DuckDB checks the rules itself (`check_in_duckdb`); its results are converted to Data Docs here.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import great_expectations as gx
import numpy as np
import pandas as pd
from great_expectations import expectations
from great_expectations.core import ExpectationSuiteValidationResult, ExpectationValidationResult
from great_expectations.core.run_identifier import RunIdentifier
from great_expectations.data_context.data_context.abstract_data_context import AbstractDataContext
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.data_context.types.resource_identifiers import (
    ExpectationSuiteIdentifier,
    ValidationResultIdentifier,
)

from wakeroll_pipeline.ledger.view_queries import Engine
from wakeroll_pipeline.questions.quality.rule import HISTORY, SHOWN, Rule, RuleResult
from wakeroll_pipeline.questions.tables_looked_at import TableLookedAt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SITE = "local_site"
_DUCKDB_TYPES: Mapping[str, str] = {
    "StringType": "VARCHAR",
    "IntegerType": "INTEGER",
    "LongType": "BIGINT",
    "DoubleType": "DOUBLE",
    "BooleanType": "BOOLEAN",
    "BinaryType": "BLOB",
    "StructType": "STRUCT",
}
"""Type of a column in a suite -> its name in DuckDB."""
_ALL = "all rows"


class Gate:
    """Great Expectations with its suites and results."""

    def __init__(self, docs: Path | None = None, engine: Engine = "spark", run_name: str | None = None) -> None:
        """Open a gate.

        Args:
            docs: folder for Data Docs, and for the project from which they are built; None: in memory only.
            engine: program that reads the tables.
            run_name: name of the run in the Data Docs; None: its time.
        """
        self._engine = engine
        began = datetime.now(UTC)
        # The name becomes the name of a folder.
        name = re.sub(r"[^\w.=+@ -]", "-", run_name or began.isoformat(timespec="milliseconds"))[:100]
        self._run_id = RunIdentifier(run_name=name, run_time=began)
        self._made: list[Any] = []
        """Identifiers of the suites and results of this run, which have no page yet."""
        with _quiet():
            # The projects of both engines have the same names, with other types.
            self._context = _context(None if docs is None else docs / engine)
            self._source: Any = None
            if engine == "spark":
                self._source = self._context.data_sources.add_or_update_spark(name="ledger", persist=False)

    def check(
        self,
        suite: str,
        rules: Sequence[Rule],
        rows: "DataFrame",
        key: Sequence[str],
        skipped: Mapping[str, str] = MappingProxyType({}),
    ) -> list[RuleResult]:
        """Check the rules of one suite in Spark.

        Args:
            suite: name of the suite.
            rules: all rules of the suite.
            rows: rows of the table or view; for the suite `HISTORY`, the violations.
            key: columns that identify a row.
            skipped: rule -> sentence about the rows that it leaves out.

        Returns:
            One result per rule, in the order of `rules`.
        """
        with _quiet():
            first = self._run(suite, rules, rows, {"result_format": "BOOLEAN_ONLY"}, skipped)
            wrong = [rule for rule in rules if not first[rule.name].success]
            if not wrong:
                return [RuleResult(rule) for rule in rules]
            closer = {
                "result_format": "SUMMARY",
                "partial_unexpected_count": SHOWN,
                "unexpected_index_column_names": list(key),
            }
            second = self._run(f"{suite}, what is broken", wrong, rows, closer, skipped)
        return [_outcome(rule, second[rule.name]) if rule in wrong else RuleResult(rule) for rule in rules]

    def record(self, outcomes: Sequence[RuleResult], looked_at: Sequence[TableLookedAt]) -> None:
        """Add results that DuckDB has found, for the Data Docs.

        The suite of each table begins with its number of rows, its version and its positions.

        Args:
            outcomes: the results; those of one suite are consecutive.
            looked_at: the checked tables.
        """
        tables = {one.table: one for one in looked_at}
        has_gaps = any(one.rule.name == "events.offsets" and one.skipped for one in outcomes)
        for suite, its in groupby(outcomes, lambda one: one.rule.suite):
            own = list(its)
            with _quiet():
                made = [(_expectation(one.rule, self._engine, one.skipped), *_verdict(one, tables)) for one in own]
                if suite in tables and not tables[suite].problem:
                    made.insert(0, _number_of_rows(tables[suite], has_gaps=has_gaps))
                self._store(suite, made)

    def write_docs(self) -> Path:
        """Build the pages of this gate's checks in the Data Docs; return the path of their index page."""
        with _quiet():
            # The pages of earlier runs stay as they are: to build them again takes longer with each run.
            self._context.build_data_docs(resource_identifiers=self._made)
        [site] = self._context.get_docs_sites_urls(site_name=_SITE)
        return Path(str(site["site_url"]).removeprefix("file://"))

    def forget_results(self, before_ms: int) -> int:
        """Delete the stored results of runs before a moment, with their pages; return their number.

        The index page is built again without them.

        Args:
            before_ms: the moment (epoch ms).
        """
        with _quiet():
            store: Any = self._context.validation_results_store
            old = [key for key in store.list_keys() if key.run_id.run_time.timestamp() * 1_000 < before_ms]
            for key in old:
                store.remove_key(key)
            if old:
                # No page is built, except the index: that deletes the pages of results that are gone.
                self._context.build_data_docs(resource_identifiers=[ExpectationSuiteIdentifier("")])
                self._remove_folders(old)
        return len(old)

    def _remove_folders(self, old: Sequence[Any]) -> None:
        """Remove the empty folders of deleted results and pages."""
        root = self._context.root_directory
        assert root is not None, "only a project with files has stored results"
        uncommitted = Path(root) / "uncommitted"
        for base in (uncommitted / "validations", uncommitted / "data_docs" / _SITE / "validations"):
            for key in old:
                *suite, run_name, run_time, _ = key.to_tuple()
                of_run = base.joinpath(*suite, run_name)
                for folder in (of_run / run_time, of_run):
                    with suppress(OSError):  # it has further results, or another process has removed it
                        folder.rmdir()

    def _store(self, suite: str, made: Sequence[tuple[Any, bool, dict[str, Any], str]]) -> None:
        stored = self._context.suites.add_or_update(
            gx.ExpectationSuite(name=suite, expectations=[expectation for expectation, *_ in made])
        )
        results = [
            ExpectationValidationResult(
                success=is_good,
                expectation_config=expectation.configuration,
                result=figures,
                exception_info=_exception_info(failure),
            )
            for expectation, (_, is_good, figures, failure) in zip(stored.expectations, made, strict=True)
        ]
        good = sum(bool(one.success) for one in results)
        done = ExpectationSuiteValidationResult(
            success=good == len(results),
            results=results,
            suite_name=suite,
            statistics={
                "evaluated_expectations": len(results),
                "successful_expectations": good,
                "unsuccessful_expectations": len(results) - good,
                "success_percent": 100 * good / len(results),
            },
            meta={
                "great_expectations_version": gx.__version__,
                "batch_kwargs": {"data_asset_name": f"all rows of {suite}" if suite != HISTORY else "all tables"},
                "run_id": self._run_id,
                "validation_time": self._run_id.run_time,
            },
        )
        of_suite = ExpectationSuiteIdentifier(suite)
        key = ValidationResultIdentifier(of_suite, self._run_id, f"ledger-{suite}")
        self._context.validation_results_store.set(key, done)
        self._made += [of_suite, key]

    def _run(
        self,
        name: str,
        rules: Sequence[Rule],
        rows: "DataFrame",
        result_format: dict[str, Any],
        skipped: Mapping[str, str],
    ) -> dict[str, ExpectationValidationResult]:
        asset = self._source.add_dataframe_asset(name=name)
        batch = asset.add_batch_definition_whole_dataframe(_ALL)
        made = [_expectation(rule, self._engine, skipped.get(rule.name, "")) for rule in rules]
        suite = gx.ExpectationSuite(name=name, expectations=made)
        suite = self._context.suites.add_or_update(suite)
        definition = gx.ValidationDefinition(name=name, data=batch, suite=suite)
        definition = self._context.validation_definitions.add_or_update(definition)
        done = definition.run(batch_parameters={"dataframe": rows}, result_format=result_format, run_id=self._run_id)
        of_suite = ExpectationSuiteIdentifier(name)
        self._made += [of_suite, ValidationResultIdentifier(of_suite, self._run_id, done.batch_id)]
        return {one.expectation_config.meta["rule"]: one for one in done.results if one.expectation_config}


def _exception_info(failure: str) -> dict[str, Any]:
    return {"raised_exception": bool(failure), "exception_message": failure or None, "exception_traceback": ""}


def _expectation(rule: Rule, engine: Engine, skipped: str) -> Any:
    """Return the expectation of a rule; its description names the rows that it leaves out."""
    arguments = dict(rule.arguments)
    if engine == "duckdb" and "type_" in arguments:
        arguments["type_"] = _DUCKDB_TYPES[arguments["type_"]]
    description = f"{rule.name}: {rule.says}" + (f" (skipped: {skipped})" if skipped else "")
    return _class_of(rule.expectation)(**arguments, description=description, meta={"rule": rule.name})


def _class_of(name: str) -> Any:
    return getattr(expectations, name)


def _verdict(one: RuleResult, tables: Mapping[str, TableLookedAt]) -> tuple[bool, dict[str, Any], str]:
    """Return whether a rule holds, its figures by the names of Great Expectations, and why it was not checked."""
    if one.not_checked:
        return False, {}, one.not_checked
    if one.rule.is_of_type:
        observed = one.rows[0]["found"] if one.broken else _DUCKDB_TYPES[one.rule.arguments["type_"]]
        return not one.broken, {"observed_value": observed}, ""
    rows = one.looked_at
    if one.rule.suite == HISTORY and one.rule.table in tables:
        rows = tables[one.rule.table].rows
    # A rule about two tables may be broken by a row that its own table lacks.
    rows = max(one.broken, 0 if rows is None else rows)
    figures = {
        "element_count": rows,
        "unexpected_count": one.broken,
        "unexpected_percent": 100 * one.broken / rows if rows else 0.0,
        "partial_unexpected_list": [row.get("found", row.get(one.rule.column)) for row in one.rows],
        "partial_unexpected_index_list": list(one.rows),
    }
    return not one.broken, figures, ""


def _number_of_rows(table: TableLookedAt, *, has_gaps: bool) -> tuple[Any, bool, dict[str, Any], str]:
    """Return the expectation that a table has no more rows than its positions allow, with its result."""
    most = sum(span.last - span.first + 1 for span in table.streams)
    # The log has every record between its first and its last one, except those that are lost on record. Of old
    # decisions, only some are kept.
    least = most if table.table == "events" and not has_gaps else min(most, 1)
    spans = "; ".join(f"{span.stream}: {span.first} to {span.last}, {span.rows} rows" for span in table.streams)
    expectation = _class_of("ExpectTableRowCountToBeBetween")(
        min_value=least,
        max_value=most,
        description=f"{table.table}, version {table.version}: {table.rows} rows ({spans or 'none'})",
        meta={"rule": f"{table.table}.rows"},
    )
    return expectation, least <= table.rows <= most, {"observed_value": table.rows}, ""


def _outcome(rule: Rule, result: ExpectationValidationResult) -> RuleResult:
    said = result.result
    if "unexpected_count" not in said:
        # The rule is about the whole table, or its check failed, for example because the column is missing.
        failure = "" if "observed_value" in said else _failure(result)
        found = failure or said["observed_value"]
        return RuleResult(rule, 1, [{"found": found}], failure=failure)
    rows = [
        {name: _plain(value) for name, value in row.items()} for row in said.get("partial_unexpected_index_list") or []
    ]
    if rule.compares:
        rows = [{name: value for name, value in row.items() if name != "rule"} for row in rows]
    return RuleResult(rule, said["unexpected_count"], rows[:SHOWN])


def _plain(value: Any) -> Any:
    """Return a value of a pandas column as a plain Python value; None if it is missing."""
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
