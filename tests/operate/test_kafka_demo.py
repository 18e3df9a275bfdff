"""`make run ARGS="--kafka"`: groups of Kafka's own are killed and restarted, and their record is Kafka's."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.running_processes import ROOT, run_process
from tests.support.waiting import wait_until
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.settings import Settings

pytestmark = [pytest.mark.operate, pytest.mark.e2e]

WAKEROLL = Path(sys.executable).with_name("wakeroll")
GROUPS = ("eager", "cooperative", "kip-848")
PATIENCE_S = 600.0


def test_make_run_shows_kafkas_own_groups_and_their_record():
    """The second thing that anybody does; the first kill is on record although it was before the watch."""
    command = ["make", "run", "ARGS=--kafka"]
    done = run_process(command, without=("MAKEFLAGS", "MFLAGS", "ARGS"), patience_s=PATIENCE_S, COLUMNS="120")
    assert done.returncode == 0, done.stdout + done.stderr

    counts = re.findall(r"^│ (\S+) +│ +(\d+) │ +(\d+) │ +(\d+) │ +\d+ │ +(\w+) │$", done.stdout, flags=re.MULTILINE)
    assert [name for name, *_ in counts] == list(GROUPS)
    for _, produced, consumed, lost, agrees in counts:
        assert int(produced) == int(consumed) > 500
        assert (lost, agrees) == ("0", "yes")
    home = ROOT / ".wakeroll" / "kafka-demo"
    with duck_ledger(Settings(home=str(home)).warehouse) as ledger:
        rows = ledger.rows("select group_id, trigger, at_ms from rebalances order by group_id, epoch")
    [*_, created] = sorted((home / "warehouse" / "decisions" / "_delta_log").glob("*.json"), reverse=True)
    for group in GROUPS:
        its = [row for row in rows if row.group_id == group]
        triggers = [row.trigger for row in its if row.trigger != "released"]
        # Three join; the kill; two restarts, each a leave and a join; the suspension, and its end. Then all leave.
        assert triggers[:10] == ["join"] * 3 + ["gone"] + ["gone", "join"] * 3
        [killed] = [row for row in its if row.trigger == "gone"][:1]
        assert killed.at_ms / 1_000 < created.stat().st_mtime, "the watch made its tables after the kill"


def test_ctrl_c_stops_it_and_leaves_no_process(tmp_path: Path):
    command = [str(WAKEROLL), "demo", "--kafka", "--home", str(tmp_path / "home")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        log = tmp_path / "home" / "kafka-demo" / "logs" / "kip-848-c1.log"
        wait_until(log.exists, "members are started", patience_s=PATIENCE_S)
        demo.send_signal(signal.SIGINT)
        said, _ = demo.communicate(timeout=PATIENCE_S)

    assert demo.returncode == 130, said
    assert "Traceback" not in said
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert [line for line in found.splitlines() if str(tmp_path) in line and not line.startswith("ps ")] == []


def test_a_broker_of_ones_own_is_refused(tmp_path: Path):
    done = run_process([WAKEROLL, "demo", "--kafka", "--bootstrap", "host:9092", "--home", tmp_path])

    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "wakeroll: --kafka starts a broker of its own, and --bootstrap is 'host:9092'; leave it out"
    ]
