"""Own dbt models beside those of wakeroll: examples/dbt as it stands, without a network; and what contracts refuse."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.engines import ENGINES
from tests.support.running_processes import run_process
from wakeroll_pipeline.ledger.view_queries import Engine
from wakeroll_pipeline.questions import marts

pytestmark = [pytest.mark.spark, pytest.mark.operate]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "dbt"
NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
"""Environment in which each request to another machine fails at once."""


@pytest.fixture(scope="module")
def acme(day: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the example in `dbt`, the day's tables in `home`, and dbt's results in `results`."""
    folder = tmp_path_factory.mktemp("acme")
    shutil.copytree(EXAMPLE, folder / "dbt", ignore=shutil.ignore_patterns("dbt_packages", "target", "logs"))
    shutil.copytree(day, folder / "home" / "warehouse")
    before = sorted(marts.PROJECT.rglob("*"))
    command = [sys.executable, "-m", "wakeroll_pipeline.cli", "marts", "--project", "../dbt", "--home", "../home"]
    (folder / "elsewhere").mkdir()

    done = run_process(
        [*command, "--results", "../results", "--docs"], folder=folder / "elsewhere", PYTHONPATH=path(), **NO_NETWORK
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "documentation: ../results/docs/static_index.html" in done.stdout
    # The package may belong to somebody else.
    assert sorted(marts.PROJECT.rglob("*")) == before
    return folder


def path() -> str:
    """Return the folders of our modules, for a process in another folder."""
    return ":".join(str(ROOT / name) for name in ("", "model", "pipeline"))


def results(folder: Path) -> dict[str, str]:
    """Return node -> status, of dbt's results in a folder."""
    found = json.loads((folder / "run_results.json").read_text(encoding="utf-8"))["results"]
    return {one["unique_id"]: one["status"] for one in found}


def test_own_models_are_marts_beside_ours(acme: Path, wakeroll):
    """Every reader of Delta finds them, with the comments of their columns."""
    mart = "select team, rebalances, moved from team_rebalances order by team"
    view = "select group_id as team, count(*) as rebalances, cast(sum(moved) as bigint) as moved from rebalances "
    table = DeltaTable(acme / "home" / "warehouse" / "marts" / "team_rebalances")

    def ask(question: str) -> tuple[int, str, str]:
        return wakeroll("sql", question, "--format", "csv", "--home", str(acme / "home"))

    # In the day's ledger, each team has one group.
    assert ask(mart) == ask(f"{view} group by all order by team")
    assert ask(mart)[1].splitlines()[-1] == "billing,7,16"
    assert table.schema().fields[0].metadata["comment"] == "first word of the names of its groups"


def test_the_results_are_where_the_user_looks(acme: Path):
    """Of both projects: models, tests, unit tests; and documentation that needs no server."""
    status = results(acme / "results")

    assert set(status.values()) <= {"success", "pass", "no-op"}
    for wanted in (
        "model.acme.team_rebalances",
        "model.wakeroll.rebalance_cost",
        "test.acme.no_rebalance_takes_an_hour",
        "unit_test.acme.team_rebalances.a_team_is_the_first_word_of_a_group",
        "unit_test.wakeroll.storms.a_storm_is_a_series_of_rebalances_close_to_each_other",
    ):
        assert wanted in status
    assert "team_rebalances" in (acme / "results" / "docs" / "static_index.html").read_text(encoding="utf-8")
    manifest = json.loads((acme / "results" / "manifest.json").read_text(encoding="utf-8"))
    own = manifest["nodes"]["model.acme.team_rebalances"]
    assert own["depends_on"]["nodes"] == ["model.wakeroll.rebalance_cost"]
    # `vars` of the user's project reach our models.
    assert "gap_s >= 30" in manifest["nodes"]["model.wakeroll.storms"]["compiled_code"]


def test_an_exposure_names_what_the_questions_read(acme: Path):
    """An analysis that reads one more mart must add it there."""
    manifest = json.loads((acme / "results" / "manifest.json").read_text(encoding="utf-8"))
    analyses = [one for one in manifest["nodes"].values() if one["resource_type"] == "analysis"]
    read = {name for one in analyses for name in one["depends_on"]["nodes"]}

    assert set(manifest["exposures"]["exposure.wakeroll.questions"]["depends_on"]["nodes"]) == read


def test_dbt_alone_builds_them_too(acme: Path):
    """With two variables, and its own command line."""
    dbt = Path(sys.executable).with_name("dbt")
    folder = acme / "dbt"
    wanted = ("--select", "team_rebalances", "--full-refresh", "--profiles-dir", str(marts.PROJECT))
    shutil.rmtree(folder / "dbt_packages")
    environment = {marts.PACKAGE: str(marts.PROJECT), "WAKEROLL_WAREHOUSE": str(acme / "home" / "warehouse")}

    installed = run_process([dbt, "deps", *wanted[-2:]], folder=folder, **environment, **NO_NETWORK)
    done = run_process([dbt, "build", *wanted], folder=folder, **environment, **NO_NETWORK)

    assert installed.returncode == 0, installed.stdout
    assert done.returncode == 0, done.stdout
    assert results(folder / "target")["model.acme.team_rebalances"] == "success"
    assert not (marts.PROJECT / ".user.yml").exists(), "dbt has written into the package"


def test_options_reach_dbt(acme: Path, wakeroll, tmp_path: Path):
    """Those that the command has, and any other after `--`."""
    options = ("--select", "+storms", "--select", "+wake_latency", "--exclude", "wake_latency")
    variables = ("--vars", '{"storm_rebalances": 8}', "--results", str(tmp_path))
    home = ("--home", str(acme / "home"), "--json")

    code, said, _ = wakeroll("marts", *options, *variables, *home, "--", "--exclude-resource-type", "test")

    outcomes = {
        one["name"]: (one["kind"], one["status"]) for one in json.loads(said)["results"] if one["kind"] != "operation"
    }
    assert (code, outcomes) == (0, dict.fromkeys(("stg_rebalances", "stg_wakes", "storms"), ("model", "success")))
    assert results(tmp_path)["model.wakeroll.storms"] == "success"
    assert DeltaTable(acme / "home" / "warehouse" / "marts" / "storms").to_pyarrow_table().num_rows == 0


@pytest.mark.parametrize("by", ENGINES)
def test_a_contract_refuses_another_type_and_a_null(engine: Any, day: Path, tmp_path: Path, by: Engine):
    """A mart that says something else than `_marts.yml` is not built, in neither engine."""
    assert engine
    shutil.copytree(day, tmp_path / "home" / "warehouse")
    project = Path(shutil.copytree(marts.PROJECT, tmp_path / "project"))
    for model, right, wrong in (
        ("storms", "cast(sum(moved) as bigint) as moved", "cast(sum(moved) as double) as moved"),
        (
            "wake_latency",
            "        reason,\n        count",
            "        nullif(reason, 'timeout') as reason,\n        count",
        ),
    ):
        file = project / "models" / "marts" / f"{model}.sql"
        sql = file.read_text(encoding="utf-8")
        assert right in sql
        file.write_text(sql.replace(right, wrong), encoding="utf-8")
    models = ("--select", "+storms", "+wake_latency", "--exclude-resource-type", "test", "unit_test")

    done = marts.build(
        tmp_path / "home" / "warehouse", tmp_path / "logs", *models, engine=by, command="build", project=project
    )

    broken = {one.name: one.message for one in done if not one.is_good}
    assert set(broken) == {"storms", "wake_latency"}
    assert "This model has an enforced contract that failed" in broken["storms"]
    assert "moved" in broken["storms"]
    assert "reason" in broken["wake_latency"]
