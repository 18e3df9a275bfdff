"""A stop of each service, at any moment of its life: exit code 0, no traceback, and no process is left behind."""

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.running_processes import ROOT
from tests.support.waiting import PATIENCE_S, PATIENCE_WITH_SPARK_S, wait_until

pytestmark = pytest.mark.e2e

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says what a process handles")
GRACE_S = 90.0
"""Grace period of the deployments (s)."""


class Service:
    """A running command, with its output in a file."""

    def __init__(self, words: str, folder: Path, broker: str = "") -> None:
        self.folder = folder
        self.mark = f"WAKEROLL_STOP_TEST={uuid.uuid4().hex}"
        self._output = folder / "output"
        where = ["--bootstrap", broker] if broker else []
        name, _, value = self.mark.partition("=")
        settings = {
            name: value,
            "WAKEROLL_HOME": str(folder / "home"),
            "WAKEROLL_CHECKPOINTS": str(folder / "checkpoints"),
            "WAKEROLL_PREFIX": f"stop-{value[:6]}",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "wakeroll_pipeline.cli", *words.split(), *where],
            cwd=ROOT,
            env={**os.environ, **settings},
            stdout=self._output.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def said(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace")

    def handles_signals(self) -> bool:
        """Return whether Python has reached `main`: SIGTERM is among the signals that the process handles."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except FileNotFoundError:
            return False
        handled = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
        return handled is not None and bool(int(handled[1], 16) >> (signal.SIGTERM - 1) & 1)

    def processes(self) -> dict[int, str]:
        """Return the command lines of all living processes that have our mark in their environment, by process id."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (process / "environ").read_bytes():
                    found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def jvm(self) -> int:
        """Return the process id of Spark's JVM."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        [number] = {int(child) for child in children} & {
            number for number, line in self.processes().items() if "SparkSubmit" in line
        }
        return number

    def has_jvm(self) -> bool:
        return any("SparkSubmit" in line for line in self.processes().values())

    def has_checkpoint(self) -> bool:
        return any((self.folder / "checkpoints").rglob("metadata"))

    def says(self, text: str) -> Callable[[], bool]:
        return lambda: text in self.said

    def await_moment(self, reached: Callable[[], bool]) -> None:
        wait_until(
            lambda: reached() or self.process.poll() is not None,
            "the moment of the stop",
            patience_s=PATIENCE_WITH_SPARK_S,
            state=lambda: self.said[-2_000:],
        )
        assert self.process.poll() is None, self.said

    def assert_good_end(self, code: int = 0, *, is_silent: bool = True) -> None:
        """Check the exit code, the output, and that no process is left."""
        assert self.process.wait(GRACE_S) == code, self.said
        assert not is_silent or "Traceback" not in self.said
        wait_until(lambda: not self.processes(), "no process is left", state=self.processes)


@contextmanager
def service(words: str, folder: Path, broker: str = "") -> Iterator[Service]:
    running = Service(words, folder, broker)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            os.killpg(running.process.pid, signal.SIGKILL)
            running.process.wait()


BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])


@needs_proc
@BOTH
@pytest.mark.parametrize(
    "words",
    [
        *("run", "observe", "tap orders", "serve --port 0", "up", "wake billing --exec true"),
        *("watch-kafka --groups .*", "demo"),
    ],
)
def test_a_service_that_is_still_importing_ends_with_0(tmp_path: Path, words: str, number: signal.Signals):
    """A deployment that is rolled back at once must not show a failed process."""
    with service(words, tmp_path) as running:
        wait_until(running.handles_signals, "Python has reached main", patience_s=PATIENCE_S)
        os.kill(running.process.pid, number)

        running.assert_good_end(130 if (words, number) == ("demo", signal.SIGINT) else 0)


@needs_proc
@pytest.mark.spark
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("waits for the broker", signal.SIGTERM),
        ("starts the JVM", signal.SIGTERM),
        pytest.param("starts the JVM", signal.SIGINT, marks=pytest.mark.operate),
        pytest.param("starts queries", signal.SIGTERM, marks=pytest.mark.operate),
        pytest.param("starts queries", signal.SIGINT, marks=pytest.mark.operate),
        pytest.param("runs", signal.SIGTERM, marks=pytest.mark.operate),
        pytest.param("runs", signal.SIGINT, marks=pytest.mark.operate),
    ],
)
def test_run_ends_with_0_at_each_moment_of_its_start(broker, tmp_path: Path, moment: str, number: signal.Signals):
    """The start takes from 10 s to minutes: time enough for a supervisor to change its mind."""
    address = "127.0.0.1:1" if moment == "waits for the broker" else broker.bootstrap
    with service("run --metrics-port 0", tmp_path, address) as running:
        moments = {
            "waits for the broker": running.says("development keys"),
            "starts the JVM": running.has_jvm,
            "starts queries": running.has_checkpoint,
            "runs": (tmp_path / "home" / "run.json").exists,
        }
        running.await_moment(moments[moment])
        os.kill(running.process.pid, number)

        running.assert_good_end()


@needs_proc
@pytest.mark.spark
@pytest.mark.operate
def test_a_signal_to_the_whole_process_group_is_no_failure(broker, tmp_path: Path):
    """Systemd's default, `timeout` and a shell's `kill` stop the JVM too; the next start repeats its batch."""
    with service("run", tmp_path, broker.bootstrap) as running:
        running.await_moment((tmp_path / "home" / "run.json").exists)
        os.killpg(running.process.pid, signal.SIGTERM)

        running.assert_good_end(is_silent=False)  # Spark logs which callback its end has interrupted


@needs_proc
@pytest.mark.spark
@pytest.mark.operate
@pytest.mark.parametrize("moment", ["starts the JVM", "starts queries", "runs"])
def test_a_jvm_that_was_killed_is_one_sentence(broker, tmp_path: Path, moment: str):
    """The kernel does so when a container's memory is used up; a supervisor starts the process again."""
    with service("run --metrics-port 0", tmp_path, broker.bootstrap) as running:
        moments = {
            "starts the JVM": running.has_jvm,
            "starts queries": running.has_checkpoint,
            "runs": (tmp_path / "home" / "run.json").exists,
        }
        running.await_moment(moments[moment])
        os.kill(running.jvm(), signal.SIGKILL)

        running.assert_good_end(1)
        sentence = "Spark did not start" if moment == "starts the JVM" else "the JVM of Spark was ended by SIGKILL"
        assert f"wakeroll: {sentence}" in running.said


@needs_proc
@pytest.mark.spark
@pytest.mark.parametrize("moment", ["starts the broker", pytest.param("starts the JVM", marks=pytest.mark.operate)])
def test_up_ends_with_0_before_it_is_up(tmp_path: Path, moment: str):
    with service("up", tmp_path) as running:
        reached = running.has_jvm if moment == "starts the JVM" else (tmp_path / "home" / "broker").exists
        running.await_moment(reached)
        os.kill(running.process.pid, signal.SIGTERM)

        running.assert_good_end()
