"""Each drill has a script, a section of the runbook and a test on a real system."""

import re
import sys

import pytest

from tests.support.running_processes import ROOT, run_process

DRILLS = sorted(path.name for path in (ROOT / "deploy" / "drills").glob("*.py") if path.name != "drill_steps.py")
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8").partition("\n## Drills\n")[2]


def test_every_drill_has_a_section_and_a_test():
    """The section has the command; the tests do every drill."""
    sections = {
        name: section
        for section in RUNBOOK.split("\n### ")[1:]
        for name in re.findall(r"deploy/drills/(\w+\.py)", section)
    }
    tests = (ROOT / "tests" / "operate" / "test_drills.py").read_text(encoding="utf-8")

    assert sorted(sections) == DRILLS
    for section in sections.values():
        heads = re.findall(r"^\*\*([\w ]+)\.?\*\*", section, flags=re.MULTILINE)
        assert heads[0] == "When", section[:40]
    assert [name for name in DRILLS if f'"{name}"' not in tests] == []


@pytest.mark.parametrize("name", DRILLS)
def test_a_drill_says_what_it_changes(name):
    """Also without a deployment."""
    done = run_process([sys.executable, ROOT / "deploy" / "drills" / name, "--help"])

    assert done.returncode == 0, done.stderr
    assert done.stdout.partition("Drill: ")[2], done.stdout
