"""The files that GitHub and contributors read: what they call exists, and they say the same as the project."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.support.running_processes import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))


def workflow(name: str) -> dict:
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))


def commands(path: Path) -> list[str]:
    """Return the calls of make in a workflow."""
    return re.findall(r"^\s*(?:- )?run: (make .+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_targets_that_exist_and_tests_that_are_there(path: Path):
    for command in commands(path):
        assert command.split()[1] in TARGETS, command
        selected = re.search(r'ARGS="([^"]*)"', command)
        for word in selected[1].split() if selected else ():
            assert not word.startswith("tests/") or (ROOT / word).is_dir(), command


def test_public_ci_runs_what_ci_runs_here():
    """A change that is green there is green here: all targets of .ci/run, and the site and the packages."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    here = set(re.findall(r"\bmake ([a-z-]+)", re.sub(r"(?m)^#.*", "", script))) - {"jars"}
    there = {command.split()[1] for path in WORKFLOWS for command in commands(path)}

    assert here <= there
    assert {"lint", "test", "docs", "dist", "audit"} <= {command.split()[1] for command in commands(WORKFLOWS[0])}


def test_public_ci_installs_the_programs_that_ci_installs_here():
    """Tests that need one of them are skipped without it."""
    found = [
        re.findall(r"--no-install-recommends ([\w -]+)", path.read_text(encoding="utf-8"))
        for path in (ROOT / ".ci" / "run", WORKFLOWS[0])
    ]

    assert found[0] == found[1] != []


def test_the_matrix_begins_with_the_oldest_python_and_java():
    matrix = workflow("ci.yml")["jobs"]["unit"]["strategy"]["matrix"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert matrix == {"python": ["3.11", "3.12", "3.13", "3.14"], "java": ["17", "21"]}
    assert project["requires-python"] == f">={matrix['python'][0]}"


def test_no_workflow_may_write_by_default():
    """A token that may only read cannot be misused by a dependency; what needs more says so at its job."""
    assert [path.name for path in WORKFLOWS if workflow(path.name)["permissions"] != {"contents": "read"}] == []


def test_hooks_of_commits_are_the_checks_of_lint():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]

    assert [hook["id"] for hook in hooks] == ["ruff", "ruff-format", "mypy", "github"]
    assert hooks[-1]["entry"].split()[1] in TARGETS


def test_owners_of_code_own_paths_that_exist():
    for line in (ROOT / ".github" / "CODEOWNERS").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(("#", "*")):
            assert (ROOT / line.split()[0].strip("/")).exists(), line


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="needs actionlint, a program in Go")
def test_actionlint_finds_nothing():
    done = subprocess.run(["actionlint", *WORKFLOWS], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


PLACEHOLDER = re.compile(
    r"@wakeroll/[\w-]+|\b(?:OWNER|ORG|REPO)(?=/)|@TAG\b|\b(?:YOUR|MY)[-_][A-Z_-]+|<(?:owner|org|repo|your[ _-][^>]*)>"
    r"|\b(?:TODO|FIXME|TBD|CHANGEME)\b|github\.com/(?:owner|org|example|wakeroll)\b[\w/.-]*"
)


def test_names_that_the_first_publication_must_set_are_listed():
    """Nobody finds a forgotten one before a reader does."""
    text = (ROOT / "docs" / "support.md").read_text(encoding="utf-8")
    chapter = text.partition("## Names that a fork or the first publication must set\n")[2]
    listed = set(re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", chapter, flags=re.MULTILINE))
    this = Path(__file__).relative_to(ROOT).as_posix()
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = {
        (placeholder[0], name)
        for name in tracked.splitlines()
        if name not in (this, "docs/support.md") and not name.startswith("tests/golden/")
        if (ROOT / name).is_file() and b"\0" not in (content := (ROOT / name).read_bytes())
        for placeholder in PLACEHOLDER.finditer(content.decode(encoding="utf-8"))
    }

    assert found == listed
