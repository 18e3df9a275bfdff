"""The dbt project as its own users run it: `dbt`, in a process of its own, with nothing of ours in it."""

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tests.support.running_processes import run_process
from wakeroll_pipeline.questions import marts

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]


def dbt(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run dbt as its user does, in a process of its own; what it leaves goes to a folder."""
    program = Path(sys.executable).with_name("dbt")
    command = [program, *arguments, "--target-path", folder, "--log-path", folder]
    return run_process(command, folder=marts.PROJECT, **environment)


def statuses(folder: Path, kind: str) -> dict[str, str]:
    """Return name -> status, of the nodes of a kind in dbt's results."""
    found = json.loads((folder / "run_results.json").read_text(encoding="utf-8"))["results"]
    return {
        one["unique_id"].rpartition(".")[2]: one["status"] for one in found if one["unique_id"].startswith(f"{kind}.")
    }


@pytest.mark.operate
def test_plain_dbt_builds_in_a_spark_of_its_own(day: Path, tmp_path: Path):
    """With nothing of ours in its process, as docs/sql.md says; what it makes, others than Spark can read."""
    shutil.copytree(day, tmp_path / "warehouse")
    wanted = ("--select", "+current_ownership", "--indirect-selection", "cautious")

    done = dbt(
        tmp_path / "dbt", "build", "--target", "session", *wanted, WAKEROLL_WAREHOUSE=str(tmp_path / "warehouse")
    )

    assert done.returncode == 0, done.stdout
    # Spark too judges the SQL of the model, before it builds it.
    assert statuses(tmp_path / "dbt", "unit_test") == {"an_owner_of_an_earlier_era_owns_nothing": "pass"}
    owned = DeltaTable(tmp_path / "warehouse" / "marts" / "current_ownership").to_pyarrow_table().to_pylist()
    assert len(owned) == 24
    assert {row["client_id"] for row in owned if row["group_id"] == "billing"} == {"c3"}


@pytest.mark.operate
def test_plain_dbt_builds_in_duckdb(day: Path, tmp_path: Path):
    """By default, as docs/sql.md says: without Java; what it makes, a later run and Spark take up."""
    shutil.copytree(day, tmp_path / "warehouse")

    for number in range(2):
        done = dbt(tmp_path / "dbt", "build", WAKEROLL_WAREHOUSE=str(tmp_path / "warehouse"))
        assert done.returncode == 0, (number, done.stdout)
    assert set(statuses(tmp_path / "dbt", "unit_test").values()) == {"pass"}

    owned = DeltaTable(tmp_path / "warehouse" / "marts" / "current_ownership").to_pyarrow_table().to_pylist()
    assert {row["client_id"] for row in owned if row["group_id"] == "billing"} == {"c3"}
    # The second run has found nothing new.
    assert DeltaTable(tmp_path / "warehouse" / "marts" / "ownership_timeline").version() == 0


def test_freshness_is_that_of_the_newest_record(day: Path, tmp_path: Path):
    """The thresholds are variables: a user's CI may ask whether a deployment has stopped."""
    thresholds = '{"ledger_warn_after_minutes": 1, "ledger_error_after_minutes": 1000000000}'

    done = dbt(tmp_path, "source", "freshness", "--vars", thresholds, WAKEROLL_WAREHOUSE=str(day))

    assert done.returncode == 0, done.stdout
    [found] = json.loads((tmp_path / "sources.json").read_text(encoding="utf-8"))["results"]
    newest = pc.max(DeltaTable(day / "events").to_pyarrow_table()["at_ms"]).as_py()
    assert (found["unique_id"], found["status"]) == ("source.wakeroll.ledger.events", "warn")
    assert datetime.fromisoformat(found["max_loaded_at"]) == datetime.fromtimestamp(newest / 1_000, UTC)


def test_the_target_for_clusters_wants_the_driver_that_the_page_names(tmp_path: Path):
    """It is not what the extra `sql-spark` installs."""
    done = dbt(tmp_path, "parse", "--target", "thrift", WAKEROLL_THRIFT_HOST="thrift.example")

    assert 'profile "wakeroll", target "thrift"' in done.stdout
    assert "pip install dbt-spark[PyHive]" in done.stdout
    assert "pip install 'dbt-spark[PyHive]'" in (ROOT / "docs" / "sql.md").read_text(encoding="utf-8")
