"""A small soak, with every kind of fault: `make soak` is the same with more consumers, for longer."""

import subprocess

import pytest

from bench.__main__ import main
from bench.frame import read
from bench.soak.soak_faults import FAULTS
from bench.soak.soak_run import Soak

pytestmark = [pytest.mark.operate, pytest.mark.e2e, pytest.mark.spark]


def test_every_claim_holds_with_every_fault(tmp_path):
    """Nothing is lost, no queue has two owners, a replay decides the same; and no process is left."""
    faults = len(FAULTS)
    code = main([
        "soak",
        *("--minutes", str((faults + 1) * 10 / 60), "--every", "10", "--clients", "12", "--per-process", "3"),
        *("--per-second", "50", "--seed", "7", "--folder", str(tmp_path / "soak")),
    ])  # fmt: skip

    found = read(tmp_path / "soak" / "soak.json", Soak)
    assert found is not None
    assert found.broken == []
    assert code == 0
    assert len({one.kind for one in found.faults}) == faults
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False)
    assert left.stdout == ""
