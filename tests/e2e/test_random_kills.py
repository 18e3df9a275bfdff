"""Members of a group that are killed at random, under load: by their own logs, nothing is lost and no queue is shared.

``KILLS=1000`` kills more often; ``SEED`` repeats the choices of another run.
"""

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from tests.support.running_processes import ROOT
from tests.support.systems.coordinator_thread import Coordinator
from tests.support.waiting import wait_until
from wakeroll.keys import key_to_sign, new_signer
from wakeroll_model import feature_levels
from wakeroll_model.decisions import Handover, Membership
from wakeroll_model.events import Level
from wakeroll_model.signing import DEV_KEYS
from wakeroll_pipeline.local.story_checks import Handled, doubly_owned, read_handled

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.operate,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the end of a process"),
]

KILLS = int(os.environ.get("KILLS", "12"))
MEMBERS, QUEUES, PER_SECOND = 4, 8, 200
SESSION_MS = 10_000
DEATHS = (signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, None)
"""None: as if the power failed, process and executor are killed together, the executor first."""


class Group:
    """Processes that consume one topic."""

    def __init__(self, coordinator: Coordinator, group_id: str, folder: Path) -> None:
        self.coordinator, self.group_id, self._folder = coordinator, group_id, folder
        self.topic = coordinator.topic(QUEUES)
        coordinator.configure(group_id, session_timeout_ms=SESSION_MS, heartbeat_ms=500)
        self.running: dict[str, Popen[bytes]] = {}
        self._lives: Counter[str] = Counter()
        self.logs: dict[str, Path] = {}
        """One per life."""
        self.produced = 0
        """Messages per queue."""
        self._stopping = threading.Event()
        self._producer = threading.Thread(target=self._produce)
        self._producer.start()

    def _produce(self) -> None:
        while not self._stopping.wait(QUEUES / PER_SECOND):
            for queue in range(QUEUES):
                self.coordinator.produce(self.topic, queue, 1)
            self.produced += 1

    def start(self, name: str) -> str:
        """Start a life of a member; return its name."""
        self._lives[name] += 1
        life = f"{name}.{self._lives[name]}"
        self.logs[life] = self._folder / life
        connection = self.coordinator.connection
        command = [
            *(sys.executable, "-m", "wakeroll_pipeline.local.worker"),
            *("--bootstrap", connection.bootstrap, "--prefix", connection.topics.prefix),
            *("--group", self.group_id, "--client", f"{self.group_id}-{name}", "--topic", self.topic),
            *("--log", str(self.logs[life])),
        ]
        environment = {**os.environ, "MARK": f"{self.group_id}-{name}-"}
        with self._words(life).open("w") as words:
            self.running[name] = Popen(command, cwd=ROOT, env=environment, stderr=words)
        return life

    def _words(self, life: str) -> Path:
        return self._folder / f"{life}.stderr"

    def lost_its_membership(self, life: str) -> bool:
        """Whether a life was removed while it lived, by its own log: then its will is that of a later instance."""
        return "rejoining" in self._words(life).read_text()

    def kill(self, name: str, how: signal.Signals | None) -> None:
        """End the process of a member, and wait until it has ended."""
        process = self.running.pop(name)
        if how is None:
            for executor in self._executors(name):
                os.kill(executor, signal.SIGKILL)
        process.send_signal(how or signal.SIGKILL)
        process.wait()

    def _executors(self, name: str) -> list[int]:
        mark, found = f"MARK={self.group_id}-{name}-\0".encode(), []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                is_executor = b"executor.py" in (folder / "cmdline").read_bytes()
                if is_executor and mark in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def handled(self) -> list[Handled]:
        return read_handled(self.logs)

    def end(self) -> None:
        self._stopping.set()
        self._producer.join()
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait()


@pytest.fixture
def group(coordinator: Coordinator, group_id: str, tmp_path: Path) -> Iterator[Group]:
    coordinator.everywhere(Level(level=feature_levels.NEWEST), new_signer(key_to_sign(DEV_KEYS, "operator")))
    wait_until(lambda: set(coordinator.levels.values()) == {feature_levels.NEWEST}, "the newest level is in force")
    its = Group(coordinator, group_id, tmp_path)
    yield its
    its.end()


@pytest.mark.timeout(240 + 30 * KILLS)
def test_processes_that_are_killed_at_random_lose_nothing_and_share_nothing(group: Group):
    seed = int(os.environ.get("SEED", str(random.randrange(10**6))))
    print(f"KILLS={KILLS} SEED={seed}")
    dice, names = random.Random(seed), [f"c{number}" for number in range(MEMBERS)]
    with_will: set[str] = set()
    """Lives whose executor could do its work."""
    lives = {name: group.start(name) for name in names}

    def all_at_work(since_ns: int) -> bool:
        at_work = {one.client_id for one in group.handled() if one.start_ns > since_ns}
        return set(lives.values()) <= at_work

    for _ in range(KILLS):
        since_ns = time.time_ns()
        wait_until(lambda since=since_ns: all_at_work(since), "all consume", state=lambda: (lives, seed))
        name, how = dice.choice(names), dice.choice(DEATHS)
        group.kill(name, how)
        if how is not None:
            with_will.add(lives[name])
        lives[name] = group.start(name)
    since_ns = time.time_ns()
    wait_until(lambda: all_at_work(since_ns), "all consume at the end")
    group._stopping.set()
    group._producer.join()
    everything = {(queue, offset) for queue in range(QUEUES) for offset in range(group.produced)}
    wait_until(
        lambda: everything == {(one.queue_id, one.offset) for one in group.handled()},
        "each message is handled",
        state=lambda: sorted(everything - {(one.queue_id, one.offset) for one in group.handled()})[:5],
    )

    handled = group.handled()
    grants = Counter(
        decision.queue.queue_id
        for decision in group.coordinator.decided.copy()
        if isinstance(decision, Handover) and decision.group_id == group.group_id and decision.to is not None
    )
    assert doubly_owned(handled, grants) == set()
    first: dict[tuple[int, int], str] = {}
    repeated: Counter[str] = Counter()
    for one in handled:
        before = first.setdefault((one.queue_id, one.offset), one.client_id)
        repeated[before] += before != one.client_id
    kept = {life for life in with_will if not group.lost_its_membership(life)}
    again = +repeated
    print(f"lives with a will: {len(with_will)}; of these, members to their end: {len(kept)}; repeated: {again}")
    assert len(kept) > len(with_will) // 2
    assert {life: again[life] for life in kept if again[life] > 1} == {}, "at most the message in its hands"
    died = [
        decision
        for decision in group.coordinator.decided.copy()
        if isinstance(decision, Membership) and decision.group_id == group.group_id and decision.change == "died"
    ]
    assert len(died) >= len(with_will)
