"""Processes that write one table in turns, on a real broker, and are suspended by SIGSTOP between lease and commit."""

import os
import random
import signal
import sys
import uuid
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from tests.support.running_processes import ROOT
from tests.support.suspended_writers import rows_in
from tests.support.systems.table_writer import STEPS, make_tables, settings_of
from tests.support.waiting import wait_until
from wakeroll_model.rows import EVENTS
from wakeroll_pipeline.ledger.table_creation import path_of

SUSPENSIONS = int(os.environ.get("SUSPENSIONS", "40"))
QUICK = {"turn", "append", "done"}
"""Steps of `make test`; `tests/unit/test_suspended_writers.py` suspends a writer before each line."""


class Deployment:
    """Processes that write the same tables."""

    def __init__(self, bootstrap: str, home: Path) -> None:
        self.home, self.bootstrap = home, bootstrap
        self.settings = settings_of(bootstrap, home)
        self.running: dict[str, Popen[str]] = {}
        make_tables(self.settings)
        self.feed(0)

    def feed(self, count: int) -> None:
        """Set the number of rows that are to be written; a negative one ends the writers."""
        new = self.home / "new"
        new.write_text(str(count))
        new.replace(self.home / "source")

    def start(self, name: str, step: str = "") -> Popen[str]:
        command = [
            sys.executable,
            "-m",
            "tests.support.systems.table_writer",
            self.bootstrap,
            str(self.home),
            name,
            step,
        ]
        self.running[name] = Popen(command, cwd=ROOT, stderr=PIPE, text=True)
        return self.running[name]

    def rows(self) -> list[int]:
        return rows_in(path_of(self.settings.warehouse, EVENTS))["offset"].to_pylist()

    def writes(self, name: str) -> bool:
        log = self.home / f"{name}.log"
        return log.exists() and "writes" in log.read_text()

    def check(self) -> None:
        """Check that each row is there once, and each row whose append returned is of that process."""
        rows = rows_in(path_of(self.settings.warehouse, EVENTS))
        by = dict(zip(rows["offset"].to_pylist(), rows["key"].to_pylist(), strict=True))
        assert sorted(rows["offset"].to_pylist()) == list(range(len(by)))
        for log in self.home.glob("*.log"):
            for line in log.read_text().splitlines():
                what, *numbers = line.split()
                if what == "appended":
                    assert {by[int(number)] for number in numbers} == {log.stem.encode()}, (log.stem, line)


@pytest.fixture
def deployment(broker, tmp_path: Path) -> Iterator[Deployment]:
    home = tmp_path / uuid.uuid4().hex[:6]
    home.mkdir()
    its = Deployment(broker.bootstrap, home)
    try:
        yield its
    finally:
        for process in its.running.values():
            process.kill()
            process.wait()


def is_stopped(process: Popen[str]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=[] if step in QUICK else [pytest.mark.operate]) for step in STEPS]
)
def test_a_process_that_is_suspended_before_a_step_ends_without_harm(deployment: Deployment, step: str):
    """Another one takes the turn and writes meanwhile."""
    deployment.feed(4)
    slow = deployment.start("slow", step)
    wait_until(lambda: is_stopped(slow), f"it is suspended before {step!r}")
    quick = deployment.start("quick")
    wait_until(lambda: deployment.writes("quick"), "the other one has the turn")
    deployment.feed(8)
    wait_until(lambda: len(deployment.rows()) >= 8, "the other one has written")
    slow.send_signal(signal.SIGCONT)
    _, why = slow.communicate(timeout=60)
    assert slow.returncode == 3, why
    assert why.startswith(("Fenced", "LeaseLost")), why
    deployment.feed(10)
    wait_until(lambda: len(deployment.rows()) >= 10, "the other one goes on")
    deployment.feed(-1)
    assert quick.wait(60) == 0, quick.stderr
    deployment.check()


@pytest.mark.operate
def test_processes_that_are_suspended_at_random_write_each_row_once(deployment: Deployment):
    """SUSPENSIONS=400 suspends more often; SEED repeats the choices of another run."""
    seed = int(os.environ.get("SEED", str(random.randrange(10**6))))
    print(f"SUSPENSIONS={SUSPENSIONS} SEED={seed}")
    dice, ends, born, written = random.Random(seed), {}, count(1), 0
    stopped: set[str] = set()

    def replace_the_ended() -> None:
        for name, process in list(deployment.running.items()):
            if process.poll() is not None:
                ends[name] = process.returncode, process.communicate()[1]
                del deployment.running[name]
        while len(deployment.running) < 3:
            deployment.start(f"p{next(born)}")

    for _ in range(SUSPENSIONS):
        deployment.feed(written + dice.randrange(20, 200))
        replace_the_ended()
        awake = sorted(deployment.running.keys() - stopped)
        if len(awake) > 1:
            stopped.add(victim := dice.choice(awake))
            deployment.running[victim].send_signal(signal.SIGSTOP)
        until = written + dice.randrange(1, 15)
        wait_until(
            lambda until=until: len(deployment.rows()) >= until,
            f"{until} rows are written",
            between=replace_the_ended,
            state=lambda: (len(deployment.rows()), stopped, ends),
        )
        written = len(deployment.rows())
        for name in sorted(stopped):
            if len(stopped) > 1 or dice.random() < 0.6:
                stopped.discard(name)
                deployment.running[name].send_signal(signal.SIGCONT)
    for name in stopped:
        deployment.running[name].send_signal(signal.SIGCONT)
    deployment.feed(-1)
    for name, process in deployment.running.items():
        _, why = process.communicate(timeout=120)
        ends[name] = process.returncode, why
    deployment.check()
    print(written, "rows;", {name: (code, why[:60]) for name, (code, why) in ends.items()})
    assert {code for code, _ in ends.values()} <= {0, 3}, ends
    assert any(why.startswith(("Fenced", "LeaseLost")) for _, why in ends.values())
