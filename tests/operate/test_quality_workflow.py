"""The reusable workflow that judges a ledger on a pull request: its steps are run as GitHub runs them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from tests.support.delta_tables import write_assignments, write_tables
from tests.support.ledgers import a_day
from tests.support.running_processes import ROOT

pytestmark = pytest.mark.operate

WORKFLOW = ROOT / ".github" / "workflows" / "quality.yml"
OUTPUT = re.compile(r"\$\{\{ steps\.(\S+) \}\}")
PAGE = ROOT / "docs" / "quality.md"


class Job(NamedTuple):
    """What a run of the job leaves."""

    is_green: bool
    log: str
    summary: str
    reports: Path


def run_job(home: Path, folder: Path) -> Job:
    """Run the steps of the job that have commands, in order and in one folder, except for the installation."""
    job = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]["quality"]
    outputs: dict[str, str] = {}
    summary, log, is_green = folder / "summary.md", "", True
    for number, step in enumerate(job["steps"]):
        if "run" not in step or step["name"] == "Install" or not (is_green or step.get("if") == "always()"):
            continue
        output = folder / f"output-{number}"
        script = folder / f"step-{number}"
        script.write_text(step["run"], encoding="utf-8")
        output.touch()
        given = {name: OUTPUT.sub(lambda found: outputs[found[1]], its) for name, its in step.get("env", {}).items()}
        program = [sys.executable] if step.get("shell") == "python" else ["bash", "-eo", "pipefail"]
        done = subprocess.run(
            [*program, script],
            cwd=folder,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "WAKEROLL_HOME": str(home),
                "RUN_NAME": "pull request 7",
                "GITHUB_OUTPUT": str(output),
                "GITHUB_STEP_SUMMARY": str(summary),
                **given,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        log += done.stdout + done.stderr
        is_green = is_green and done.returncode == 0
        for line in output.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition("=")
            outputs[f"{step['id']}.outputs.{name}"] = value
    return Job(is_green, log, summary.read_text(encoding="utf-8"), folder / "reports")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    write_tables(home / "warehouse", a_day())
    write_assignments(home / "warehouse", a_day())
    return home


def folder_in(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    return folder


def test_a_good_ledger_makes_the_job_green(home: Path, tmp_path: Path):
    job = run_job(home, folder_in(tmp_path))

    assert job.is_green, job.log
    assert re.search(r"^\| wakeroll check \| 0 \| \d{3} \|  \|$", job.summary, flags=re.MULTILINE)
    assert re.search(r"^\| wakeroll marts \| 0 \| \d+ \|  \|$", job.summary, flags=re.MULTILINE)
    for command in ("check", "marts"):
        assert ElementTree.parse(job.reports / f"{command}.xml").getroot().get("failures") == "0"
        assert (
            json.loads((job.reports / f"{command}.json").read_text(encoding="utf-8"))["run"]["name"] == "pull request 7"
        )


def test_a_lost_row_makes_it_red_and_the_summary_names_the_rules(home: Path, tmp_path: Path):
    """Both commands run, so one look shows all that is broken."""
    path = str(home / "warehouse" / "events")
    rows = DeltaTable(path).to_pyarrow_table().sort_by([("topic", "ascending"), ("offset", "ascending")])
    write_deltalake(path, pa.concat_tables([rows[:50], rows[51:]]), mode="overwrite")

    job = run_job(home, folder_in(tmp_path))

    assert not job.is_green
    assert "wakeroll check: exit code 1; wakeroll marts: exit code" in job.log
    [broken] = re.findall(r"^\| wakeroll check \| 1 \| \d+ \| (.+) \|$", job.summary, flags=re.MULTILINE)
    answer = json.loads((job.reports / "check.json").read_text(encoding="utf-8"))
    names = [rule["name"] for rule in answer["rules"] if rule["status"] == "broken"]
    assert names
    assert re.findall(r"`([^`]+)`", broken) == names[:10]


def test_a_ledger_that_is_not_there_makes_it_red(tmp_path: Path):
    job = run_job(tmp_path / "nowhere", folder_in(tmp_path))

    assert not job.is_green
    assert "wakeroll check: exit code 2; wakeroll marts: exit code 2" in job.log


def test_the_page_calls_it_with_inputs_that_it_has():
    caller = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)[0])
    [job] = caller["jobs"].values()
    called = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))[True]["workflow_call"]

    assert job["uses"].partition("@")[0].endswith(".github/workflows/quality.yml")
    assert job["with"].keys() <= called["inputs"].keys()
    assert {name for name, its in called["inputs"].items() if its.get("required")} <= job["with"].keys()
    assert job.get("secrets", {}).keys() <= called["secrets"].keys()
