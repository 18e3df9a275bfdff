"""Each measurement in small: it starts its system, measures, and writes figures from which its chapter is made."""

import signal
import subprocess
import sys

import pytest

from bench.__main__ import main
from bench.frame import read
from bench.report import BENCHES
from tests.support.running_processes import ROOT
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll_pipeline.spark.jars import ensure_jars

pytestmark = [pytest.mark.operate, pytest.mark.e2e, pytest.mark.spark]
SHORT = ("--seconds", "2", "--warmup", "1")
SMALL = {
    "path_latency": SHORT,
    "push_throughput": ("--messages", "2000"),
    "client_throughput": ("--messages", "2000"),
    "slices": ("--members", "1,2", "--messages", "2000", *SHORT),
    "group_changes": ("--only", "KIP-848 (uniform)"),
    "ledger_questions": ("--sizes", "1500,3000", "--groups", "20", "--spark-up-to", "1500"),
    "long_ledgers": ("--sizes", "1500,3000", "--groups", "20"),
    "failover": ("--kills", "1", *SHORT),
    "kafka_watch": ("--groups", "100", "--rate", "1000", *SHORT),
}
"""Measurement -> options; `test_bench.py`, `test_page_load.py` and `test_soak.py` run the others."""


def test_each_measurement_has_a_small_run():
    assert {bench.name for bench in BENCHES} == SMALL.keys() | {"core", "page_load", "soak"}


@pytest.mark.parametrize("bench", [bench for bench in BENCHES if bench.name in SMALL], ids=lambda bench: bench.name)
def test_a_small_run_makes_its_chapter(bench, tmp_path, capsys):
    """A measurement that nobody has run for a while would fail after an hour of its real run."""
    ensure_jars()
    places = ("--folder", str(tmp_path / "data")) if bench.has_folder else ()
    files = ("--json", str(tmp_path / "figures.json")) if bench.file else ()

    assert main([bench.name, *SMALL[bench.name], *places, *files]) == 0

    printed = capsys.readouterr().out
    assert "| --- | --: |" in printed
    if bench.file:
        found = read(tmp_path / "figures.json", bench.figures)
        assert all(text in printed for _, text in bench.sections(found))


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_measurement_that_is_stopped_leaves_nothing(tmp_path, stop):
    """Ctrl-C ends the broker and all processes, and no figures are written."""
    ensure_jars()
    folder, log = tmp_path / "data", tmp_path / "printed"
    options = ("--folder", str(folder), "--json", str(tmp_path / "figures.json"))
    with log.open("wb") as file:
        bench = subprocess.Popen(
            [sys.executable, "-m", "bench", "failover", *SHORT, *options], cwd=ROOT, stdout=file, stderr=file
        )
        wait_until(lambda: "one coordinator" in log.read_text(), "it measures", patience_s=PATIENCE_WITH_SPARK_S)
        bench.send_signal(stop)
        code = bench.wait(PATIENCE_WITH_SPARK_S)

    assert code == 130
    assert "stopped; everything is down, and no figures were written" in log.read_text()
    assert not (tmp_path / "figures.json").exists()
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False)
    assert left.stdout == ""
