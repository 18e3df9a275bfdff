"""Push consumption on a machine whose clock is set back by an hour, as NTP or an operator may do."""

import mmap
import multiprocessing
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message

from tests.support.waiting import wait_until
from wakeroll import Consumer, Retry, origin_of

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.operate,
    pytest.mark.skipif(shutil.which("cc") is None, reason="the clock of a process is set by a library written in C"),
]

SOURCE = Path(__file__).parents[1] / "support" / "systems" / "shifted_clock.c"
HOUR_S = 3_600
DELAY_S = 10
"""Delay of retries at level 3."""
BUSY_S = 40.0
"""How much later than on an idle machine something may happen (s)."""


def _handle(bootstrap: str, prefix: str, group_id: str, topic: str, log: Path) -> None:
    """Handle messages; those with an odd offset fail once. Write down each call, and the wall clock."""
    with log.open("a", buffering=1) as file:

        def handle(messages: list[Message]) -> object:
            [message] = messages
            origin = origin_of(message)
            where = f"{origin.partition} {origin.offset} {origin.attempt}"
            file.write(f"{where} {time.monotonic()} {time.time()}\n")
            return Retry(level=3) if origin.attempt == 1 and origin.offset % 2 else None

        with Consumer(
            group_id, [topic], bootstrap, client_id=group_id, consume_from="first", prefix=prefix, commit_interval=0.2
        ) as consumer:
            signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
            consumer.run(handle, workers=4, batch_size=1)


class Handled:
    """What a process has handled so far."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def calls(self) -> list[tuple[int, int, int, float, float]]:
        """Return queue number, offset, attempt, monotonic time and wall-clock time (s) of each call."""
        lines = [line.split() for line in self._log.read_text().splitlines() if line.count(" ") == 4]
        return [(int(a), int(b), int(c), float(d), float(e)) for a, b, c, d, e in lines]

    def at(self) -> dict[tuple[int, int, int], float]:
        """Return (queue number, offset, attempt) -> monotonic time."""
        return {(number, offset, attempt): at for number, offset, attempt, at, _ in self.calls()}


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """The library that shifts the clock of a process."""
    library = tmp_path_factory.mktemp("clock") / "shifted_clock.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-pthread"], check=True)
    return library


@pytest.fixture
def set_clock(library, tmp_path, monkeypatch) -> Iterator[Callable[[int], None]]:
    """Shifts the wall clock of the processes that the test starts; the argument is in seconds."""
    shift = tmp_path / "shift"
    shift.write_bytes(struct.pack("q", 0))
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("SHIFTED_CLOCK", str(shift))
    with shift.open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:

        def set_clock(seconds: int) -> None:
            shared[:] = struct.pack("q", seconds)

        yield set_clock


def test_a_clock_that_is_set_back_by_an_hour_delays_nothing(coordinator, group_id, set_clock, tmp_path):
    """Kafka's client waits until a time of the wall clock: a wait of 50 ms would last an hour and 50 ms."""
    coordinator.configure(group_id, session_timeout_ms=10_000, heartbeat_ms=500)
    topic = coordinator.topic(2)
    for partition in range(2):
        coordinator.produce(topic, partition, 100)
    log = tmp_path / "log"
    log.touch()
    handled = Handled(log)
    names = (coordinator.connection.bootstrap, coordinator.connection.topics.prefix, group_id, topic)
    process = multiprocessing.get_context("spawn").Process(target=_handle, args=(*names, log))
    process.start()
    try:
        first = [(number, offset, 1) for number in range(2) for offset in range(100)]
        wait_until(lambda: sorted(handled.at()) == first, "all messages have their first attempt")
        wait_until(lambda: coordinator.offsets(group_id, topic) == {0: 100, 1: 100}, "all is committed")
        set_clock(-HOUR_S)
        second = [(number, offset, 2) for number in range(2) for offset in range(1, 100, 2)]
        wait_until(lambda: set(second) <= handled.at().keys(), "all retries are delivered", state=handled.calls)
        # It is idle now: only its heartbeats keep it a member.
        beats = len(coordinator.beats(group_id))
        wait_until(lambda: len(coordinator.beats(group_id)) > beats + 25, "more heartbeats than in a session")
        produced_at = time.monotonic()
        for partition in range(2):
            coordinator.produce(topic, partition, 10)
        wait_until(lambda: coordinator.offsets(group_id, topic) == {0: 110, 1: 110}, "the new messages are committed")
        late = [(number, offset, 2) for number in range(2) for offset in range(101, 110, 2)]
        wait_until(lambda: set(late) <= handled.at().keys(), "the new messages are retried", state=handled.calls)
        process.terminate()
        process.join(60)
        assert process.exitcode == 0
        wait_until(lambda: coordinator.members(group_id) == [], "it has left")
    finally:
        process.kill()
        process.join()

    at = handled.at()
    waits = [at[number, offset, 2] - at[number, offset, 1] for number, offset, attempt in at if attempt == 2]
    assert min(waits) > DELAY_S - 0.5
    assert max(waits) < DELAY_S + BUSY_S
    assert max(at[number, offset, 1] for number in range(2) for offset in range(100, 110)) < produced_at + BUSY_S
    assert len(handled.calls()) == len(at), "nothing is delivered twice"
    assert len({beat.instance_id for beat in coordinator.beats(group_id)}) == 1, "its session never ended"
    walls = [wall for *_, wall in handled.calls()]
    assert max(walls) - walls[-1] > HOUR_S / 2, "its clock was set back"
