"""Runs of the dbt project in `dbt_like_sql/`: in DuckDB, or in the Spark session of this process."""

import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from wakeroll.epoch_ms import now_ms
from wakeroll.errors import InvalidUsage, WakerollError, missing_extra
from wakeroll_model.decision_order import ERA_SQL
from wakeroll_model.queue import slice_sql
from wakeroll_model.rows import CHAIN, DECIDED, EVENTS, TABLES
from wakeroll_pipeline.ledger.column_types import Column, columns_of, in_spark
from wakeroll_pipeline.ledger.view_queries import (
    IS_ABRUPT,
    VIEWS,
    Engine,
    declared_views,
    first_line,
    spark_head,
    views,
)
from wakeroll_pipeline.storage.cause_trees import in_one_line
from wakeroll_pipeline.storage.place import Folder, Place
from wakeroll_pipeline.storage.write_probes import refuse_read_only

if TYPE_CHECKING:
    from dbt.cli.main import dbtRunnerResult
    from pyspark.sql import SparkSession

_PLACES = [Path(__file__).resolve().parents[number] / "dbt_like_sql" for number in (1, 3)]
PROJECT = next((place for place in _PLACES if place.exists()), _PLACES[0])
"""Folder of the dbt project: in this package in a wheel, beside it in a checkout."""

VIEWS_MACRO = PROJECT / "macros" / "ledger_views.sql"
"""Generated dbt macros: Spark's views of the ledger, and the era that orders its rows."""

SOURCES = PROJECT / "models" / "staging" / "_sources.yml"
"""Generated file: the tables and views of the ledger as a source of dbt, with their columns."""

PACKAGE = "WAKEROLL_DBT_PACKAGE"
"""Environment variable with the folder of the dbt project, by which a user's `packages.yml` finds it."""

_NAMES: Mapping[Engine, str] = {"duckdb": "DuckDB", "spark": "Spark"}
_ADAPTERS: Mapping[Engine, str] = {"duckdb": "dbt.adapters.duckdb", "spark": "dbt.adapters.spark.session"}
_TARGETS: Mapping[Engine, str] = {"duckdb": "duckdb", "spark": "session"}
"""Engine -> target in `dbt_like_sql/profiles.yml`."""
_EXTRAS: Mapping[Engine, str] = {"duckdb": "sql", "spark": "sql-spark"}

_ENTRY = """
{{%- set definition -%}}
{head}
{query}
{{%- endset -%}}
{{%- do found.update({{'{name}': definition}}) -%}}
"""
_MACRO = """\
{{#- Made by `questions.marts.views_macro` of `ledger.view_queries` in `wakeroll_pipeline`; do not edit. -#}}

{{#- Era of a row's shard, as a number; (era, seq) is the order of decisions. -#}}
{{% macro era() %}}{era}{{% endmacro %}}


{{#- Condition of the hand-overs that the previous owner did not cause. -#}}
{{% macro is_abrupt() %}}{is_abrupt}{{% endmacro %}}


{{#- Slice of a structure with the fields of a queue, as the column `slice` has it. -#}}
{{% macro slice_of(queue) %}}{slice}{{% endmacro %}}


{{#- Views of the ledger: name -> comments and query, as `create view NAME` expects them. -#}}
{{% macro ledger_views() %}}
{{%- set found = {{}} -%}}
{entries}
{{{{- return(found) -}}}}
{{% endmacro %}}


{{#- Tables of the ledger: name -> query of no rows, for a ledger of an earlier release that lacks the table. -#}}
{{% macro empty_tables() %}}
    {{{{- return({{{tables}
    }}) -}}}}
{{% endmacro %}}
"""


_OF_INCREMENTAL_MARTS = ("ownership_timeline_has_every_change", "rebalance_cost_has_every_rebalance")
"""Tests that compare an incremental mart with its source."""
_ANEW = "--full-refresh"

log = logging.getLogger("wakeroll.marts")


class MartsFailed(WakerollError):
    """dbt could not start; the message names the reason and the log."""


class BuildResult(Struct, frozen=True):
    """The result of one dbt model or test."""

    name: str
    kind: str
    """Resource type in dbt: model, test, ...; unit_test in a user's project."""
    status: str
    """Status in dbt: success or pass, otherwise a failure."""
    message: str
    failures: int | None
    """Number of rows that a test found; None for a model."""

    @property
    def is_good(self) -> bool:
        """Whether the model was built, or the test passed."""
        return self.status in ("success", "pass")


def ensure_dbt(engine: Engine) -> None:
    """Check that dbt is installed, with its adapter for an engine.

    Raises:
        InvalidUsage: one of them is not installed; the message names the command that installs it; or dbt does not run
            on this Python.
    """
    try:
        import_module("dbt.cli.main")
        import_module(_ADAPTERS[engine])
    except ModuleNotFoundError as error:
        raise missing_extra(f"dbt in {_NAMES[engine]}", _EXTRAS[engine], error) from None
    except Exception as error:  # of a library of dbt that does not know this Python yet
        python = ".".join(map(str, sys.version_info[:2]))
        raise InvalidUsage(
            f"dbt does not run on Python {python} ({type(error).__name__}); run `marts` with Python 3.11 to 3.13"
        ) from error


def build(
    warehouse: Folder,
    logs: Path,
    *options: str,
    engine: Engine = "duckdb",
    command: str = "build",
    variables: Mapping[str, object] = MappingProxyType({}),
    project: Path = PROJECT,
    results: Path | None = None,
) -> list[BuildResult]:
    """Build the marts of a warehouse and run every test.

    If an incremental mart differs from its source, all marts are built again from the first row.

    Args:
        warehouse: folder of the ledger's tables; the marts are in its folder ``marts``.
        logs: folder for the log of dbt.
        options: further options of dbt, such as ``--full-refresh``.
        engine: where the SQL runs: in DuckDB, or in the active Spark session of this process.
        command: the dbt command.
        variables: variables of the project, such as ``storm_gap_s``, which replace its own values.
        project: folder of the dbt project; a user's project includes wakeroll's as a package (docs/sql.md).
        results: folder for the output of dbt: ``manifest.json``, ``run_results.json``, compiled SQL, documentation;
            None: the folder of the log.

    Raises:
        InvalidUsage: the warehouse has no tables, or a user's project cannot have its packages.
        UnreadableTable: a table or a mart cannot be read.
        StorageFailed: the marts cannot be written there.
        MartsFailed: dbt could not start.
    """
    place = Place.of(warehouse)
    _refuse_damage(place)
    if command == "build":
        # Otherwise dbt would report each model, and each test of one.
        refuse_read_only(place / "marts")
    run = _Run(project.absolute(), (results or logs / "dbt").absolute(), (logs / "dbt").absolute())
    # Partial parsing would reuse nothing, because the target folder differs per warehouse.
    arguments = ["--target", _TARGETS[engine], "--no-partial-parse"]
    arguments += ["--vars", json.dumps({**variables, **_variables(place, engine)})]
    if command == "build" and run.project == PROJECT and "--resource-type" not in options:
        # They judge our SQL, not the tables of a deployment.
        arguments += ["--exclude-resource-type", "unit_test"]
    try:
        done = run.invoke(*command.split(), *arguments, *options)
    finally:
        if engine == "duckdb":
            _close_duckdb()
    outcomes = list(_outcomes(done.result))
    if failed := [one.message for one in outcomes if one.status == "error"]:
        from wakeroll_pipeline.ledger.table_damage import damage_behind

        if (damage := damage_behind(MartsFailed("\n".join(failed)), place)) is not None:
            raise damage
    stale = [one.name for one in outcomes if one.name in _OF_INCREMENTAL_MARTS and not one.is_good]
    if stale and command == "build" and _ANEW not in options:
        log.warning("a mart lacks rows of its source, or has other ones (%s): building all again", ", ".join(stale))
        return build(
            warehouse, logs, *options, _ANEW, engine=engine, variables=variables, project=project, results=results
        )
    return outcomes


def look_after_marts(warehouse: Folder, keep_versions_ms: int) -> None:
    """Combine the small files of all marts, and delete files that only expired versions need; a failure is a warning.

    Each run of `build` stores every mart again.

    Args:
        warehouse: folder of the ledger's tables.
        keep_versions_ms: how long an earlier version of a mart can be read (ms).
    """
    from deltalake.exceptions import DeltaError

    from wakeroll_pipeline.ledger.stored_marts import look_after_mart, mart_paths
    from wakeroll_pipeline.storage.small_files import StorageFailed

    for name, path in mart_paths(warehouse).items():
        try:
            look_after_mart(path, keep_versions_ms, now_ms())
        except (DeltaError, StorageFailed, OSError) as error:
            log.warning("cannot clean the mart %s, and the next run will try again: %s", name, in_one_line(error))


class _Run(Struct, frozen=True):
    """The folders of a run of dbt."""

    project: Path
    results: Path
    logs: Path

    def invoke(self, *arguments: str) -> "dbtRunnerResult":
        """Run dbt with wakeroll's profile, after the installation of the packages of a user's project.

        Raises:
            MartsFailed: dbt could not start.
        """
        from dbt.cli.main import dbtRunner

        folders = ["--project-dir", str(self.project), "--profiles-dir", str(PROJECT), "--log-path", str(self.logs)]
        folders += ["--quiet", "--no-send-anonymous-usage-stats"]
        with _environment(PACKAGE, str(PROJECT)):
            if (self.project / "packages.yml").exists():
                self._checked(dbtRunner().invoke(["deps", *folders]))
            return self._checked(dbtRunner().invoke([*arguments, *folders, "--target-path", str(self.results)]))

    def _checked(self, done: "dbtRunnerResult") -> "dbtRunnerResult":
        if done.exception is not None:
            raise MartsFailed(f"dbt could not start: {done.exception}; read its log, {self.logs}/dbt.log")
        return done


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable during a block, because dbt's `packages.yml` can read only these."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _refuse_damage(warehouse: Place) -> None:
    """Refuse tables and marts with lost files: dbt would report each model that reads them.

    Raises:
        InvalidUsage, UnreadableTable: as `build`.
    """
    from wakeroll_pipeline.ledger.duck_ledger import find_table
    from wakeroll_pipeline.ledger.stored_marts import mart_paths, mart_query
    from wakeroll_pipeline.ledger.table_damage import problem_in

    for table in TABLES.values():
        delta = find_table(warehouse, table)
        if delta is not None and (problem := problem_in(table, delta, warehouse / table.name)) is not None:
            raise problem
    for path in mart_paths(warehouse).values():
        mart_query(path)


def _close_duckdb() -> None:
    """Close dbt's DuckDB, which would stay open for this process: the next run must read the stored marts again."""
    from dbt.adapters.duckdb.connections import DuckDBConnectionManager

    DuckDBConnectionManager.close_all_connections()  # type: ignore[no-untyped-call]


def _variables(warehouse: Place, engine: Engine) -> dict[str, object]:
    """Return the variables of the dbt project that name the tables."""
    from wakeroll_pipeline.ledger.duck_ledger import duck_ledger, whole_versions
    from wakeroll_pipeline.ledger.losses import losses_of, lost_rows_query

    with duck_ledger(warehouse, only=CHAIN) as ledger:
        losses = losses_of(ledger)
    named: dict[str, object] = {"warehouse": warehouse.for_spark()}
    if losses:
        named["lost_rows"] = lost_rows_query(losses)
    if engine == "spark":  # in DuckDB, `dbt_plugin` opens the tables
        named["versions"] = whole_versions(warehouse)
    if warehouse.is_s3:
        named |= {f"s3_{name}": str(value) for name, value in structs.asdict(warehouse.s3).items()}
    return named


def open_marts(spark: "SparkSession", warehouse: Folder) -> list[str]:
    """Register the built marts and the daily facts in this session's SQL; return their names."""
    from wakeroll_pipeline.ledger.stored_marts import derived_paths

    paths = derived_paths(warehouse)
    for name, path in paths.items():
        spark.read.format("delta").load(path.for_spark()).createOrReplaceTempView(name)
    return list(paths)


def _outcomes(result: Any) -> Iterator[BuildResult]:
    for one in result if isinstance(result, Iterable) else ():
        kind = str(one.node.resource_type)
        if kind != "exposure":  # it is not built
            yield BuildResult(one.node.name, kind, str(one.status), one.message or "", one.failures)


def views_macro() -> str:
    """Return the content of `VIEWS_MACRO`: macros that are generated from declarations.

    dbt cannot read the declarations in `model`, so this function translates them.  A test compares the file.
    """
    from wakeroll_pipeline.ledger.daily_facts import columns_of_facts
    from wakeroll_pipeline.ledger.stored_marts import DAILY_FACTS

    known = "|".join([*TABLES, *VIEWS])
    read = re.compile(rf"\b(from|join) ({known})\b")
    entries = "".join(
        _ENTRY.format(name=view.name, head=spark_head(view), query=read.sub(_from_ledger, sql).strip())
        for view, (_, sql) in zip(declared_views(), views("spark"), strict=True)
    )
    tables = [(table.name, columns_of(table.row)) for table in TABLES.values()]
    empty = ",".join(_empty_table(name, columns) for name, columns in (*tables, (DAILY_FACTS, columns_of_facts())))
    return _MACRO.format(
        era=ERA_SQL, is_abrupt=IS_ABRUPT, slice=slice_sql("{{ queue }}"), entries=entries, tables=empty
    )


def _empty_table(name: str, columns: Iterable[Column]) -> str:
    shown = ", ".join(f"cast(null as {in_spark(one.type)}) as {one.name}" for one in columns)
    return f"\n        '{name}': 'select {shown} where false'"


def declared_marts() -> str:
    """Return the YAML of the marts for dbt with Spark, where the type of a time is `timestamp`."""
    text = (PROJECT / "models" / "marts" / "_marts.yml").read_text(encoding="utf-8")
    return text.replace(_TIMESTAMP, '"timestamp"')


_TIMESTAMP = "\"{{ 'timestamptz' if target.type == 'duckdb' else 'timestamp' }}\""


def sources_file() -> str:
    """Return the content of `SOURCES`; a test compares the file."""
    from wakeroll_pipeline.ledger.daily_facts import COMMENT, columns_of_facts
    from wakeroll_pipeline.ledger.stored_marts import DAILY_FACTS

    lines = [_SOURCES]
    declared = [(table.name, first_line(table.row), columns_of(table.row)) for table in TABLES.values()]
    declared += [(view.name, view.comment, view.columns) for view in declared_views()]
    for name, comment, columns in [*declared, (DAILY_FACTS, COMMENT, columns_of_facts())]:
        lines += [f"      - name: {name}", f"        description: {_quoted(comment)}"]
        if name == EVENTS.name:
            lines.append(_FRESHNESS)
        lines.append("        columns:")
        for column in columns:
            lines += [f"          - name: {column.name}", f"            data_type: {_quoted(in_spark(column.type))}"]
            lines.append(f"            description: {_quoted(column.comment)}")
    return "\n".join(lines) + "\n"


_SOURCES = """\
# Made by `questions.marts.sources_file` of the declarations of the tables and views; do not edit.
version: 2

sources:
  - name: ledger
    description: "Tables that `wakeroll run` writes, and their views; `open_ledger` registers them."
    schema: ledger
    tables:"""
_FRESHNESS = """\
        config:
          # The observer appends a tick to each partition every second. Other tables get rows only if something happens.
          loaded_at_field: >-
            {{ 'make_timestamptz(at_ms * 1000)' if target.type == 'duckdb' else 'timestamp_millis(at_ms)' }}
          freshness:
            warn_after: {count: "{{ var('ledger_warn_after_minutes') | as_number }}", period: minute}
            error_after: {count: "{{ var('ledger_error_after_minutes') | as_number }}", period: minute}"""


def _quoted(text: str) -> str:
    """Return a text as a string of YAML."""
    return json.dumps(text, ensure_ascii=False)


def _from_ledger(read: re.Match[str]) -> str:
    """Return the relation that dbt reads for a table or view; `era` is added, because the Delta tables lack it."""
    word, name = read.groups()
    if name in TABLES and TABLES[name].key == DECIDED:
        return f"{word} (select *, {ERA_SQL} as era from ledger.{name}) as {name}"
    return f"{word} ledger.{name}"
