"""The people's tables: the dbt project in `dbt_like_sql/`, run in this process's Spark."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from pyspark.sql import SparkSession

from model.decision_order import ERA_SQL
from model.rows import DECIDED, TABLES
from pipeline.ledger.tables import views
from wakeroll.errors import InvalidUsage, WakerollError

PROJECT = Path(__file__).resolve().parents[2] / "dbt_like_sql"

VIEWS = PROJECT / "macros" / "ledger_views.sql"
"""The ledger's views and the order of its rows, for dbt."""


_ENTRY = """
{{%- set query -%}}
{query}
{{%- endset -%}}
{{%- do found.update({{'{name}': query}}) -%}}
"""
_MACRO = """\
{{#- Made by `pipeline.questions.marts.views_macro`: `model.decision_order`, `pipeline.ledger.tables`; do not edit -#}}

{{#- The era of a row's shard, as a number: (era, seq) is the order of decisions. -#}}
{{% macro era() %}}{era}{{% endmacro %}}


{{#- The ledger's views, name -> query. -#}}
{{% macro ledger_views() %}}
{{%- set found = {{}} -%}}
{entries}
{{{{- return(found) -}}}}
{{% endmacro %}}
"""


class MartsFailed(WakerollError):
    """A model could not be built, or a rule is broken; the message says which."""


class BuildResult(Struct, frozen=True):
    """What became of one model or test."""

    name: str
    kind: str
    """model or test."""
    status: str
    """success or pass, or what is wrong."""
    message: str

    @property
    def is_good(self) -> bool:
        """Whether the model was built, or no row breaks the test's rule."""
        return self.status in ("success", "pass")


def ensure_dbt() -> None:
    """See that dbt can be had.

    Raises:
        InvalidUsage: it is not installed; the message says how to.
    """
    try:
        import dbt.adapters.spark.session
        import dbt.cli.main  # noqa: F401
    except ModuleNotFoundError as error:
        raise InvalidUsage("marts need the extra `sql`; install it with: pip install 'wakeroll[sql]'") from error


def build(warehouse: Path, logs: Path, *options: str, command: str = "build") -> list[BuildResult]:
    """Build the marts of a warehouse, in the session of this process, which must be there; and ask every test.

    Args:
        warehouse: folder of the ledger's tables; the marts are in its folder ``marts``.
        logs: folder for what dbt has to say, and for the SQL it made.
        options: more for dbt, such as ``--full-refresh``.
        command: of dbt.

    Raises:
        MartsFailed: dbt could not begin.
    """
    from dbt.cli.main import dbtRunner

    own = str(logs / "dbt")
    arguments = [command, "--project-dir", str(PROJECT), "--profiles-dir", str(PROJECT), "--target", "session"]
    arguments += ["--target-path", own, "--log-path", own, "--quiet", "--no-send-anonymous-usage-stats"]
    # Each run reads all of the project: with folders of its own in it, nothing of the last one can be used.
    arguments += ["--no-partial-parse", "--vars", json.dumps({"warehouse": str(warehouse)}), *options]
    done = dbtRunner().invoke(arguments)
    if done.exception is not None:
        raise MartsFailed(f"dbt could not begin: {done.exception}; its log is {own}/dbt.log")
    return list(_outcomes(done.result))


def open_marts(spark: SparkSession, warehouse: Path) -> list[str]:
    """Make the marts that were built known to this session's SQL, each by its name; return the names."""
    folders = sorted(log.parent for log in (warehouse / "marts").glob("*/_delta_log"))
    for folder in folders:
        spark.read.format("delta").load(str(folder)).createOrReplaceTempView(folder.name)
    return [folder.name for folder in folders]


def _outcomes(result: Any) -> Iterator[BuildResult]:
    for one in result:
        yield BuildResult(one.node.name, str(one.node.resource_type), str(one.status), one.message or "")


def views_macro() -> str:
    """Return what stands in `VIEWS`: the macros `era`, and `ledger_views`, which returns name -> query.

    dbt cannot read the declarations in `model`, so it is given what is made of them; a test sees that it is so.
    """
    known = "|".join([*TABLES, *(name for name, _ in views())])
    read = re.compile(rf"\b(from|join) ({known})\b")
    entries = "".join(_ENTRY.format(name=name, query=read.sub(_from_ledger, sql).strip()) for name, sql in views())
    return _MACRO.format(era=ERA_SQL, entries=entries)


def _from_ledger(read: re.Match[str]) -> str:
    """Return what dbt reads instead of a table or view; its tables are Delta's own, without the column `era`."""
    word, name = read.groups()
    if name in TABLES and TABLES[name].key == DECIDED:
        return f"{word} (select *, {ERA_SQL} as era from ledger.{name}) as {name}"
    return f"{word} ledger.{name}"
