"""Consumers that are process 1 of a container: a container beside it executes their last wills."""

import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.running_processes import ROOT
from tests.support.systems.containers import WHY_NOT, Podman
from tests.support.systems.coordinator_thread import Coordinator
from tests.support.systems.member_ends import ends_of, next_offset
from tests.support.waiting import wait_until
from wakeroll.keys import key_to_sign, new_signer
from wakeroll_model import feature_levels
from wakeroll_model.config import MAX_SESSION_MS, MIN_SESSION_MS
from wakeroll_model.events import Level
from wakeroll_model.signing import DEV_KEYS

pytestmark = [pytest.mark.container, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]

MESSAGES = 20
HANDLED = 10
"""Messages that the program has handled when it waits for its signal; it holds the next one."""

PROGRAM = """
import os, signal, sys
from wakeroll import Consumer

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
bootstrap, prefix, group_id, topic = sys.argv[1:]
consumer = Consumer(
    group_id, [topic], bootstrap, prefix=prefix, client_id=group_id, consume_from="first", commit_interval=3_600
)
while (message := consumer.poll(30)).offset() < 10:
    pass
print("ready", flush=True)
signal.sigwait([signal.SIGUSR1])
taken = [b"x" * (64 << 20) for _ in range(64)]
"""
"""It takes 4 GiB of memory when it gets the signal."""
GRACE_S = 30


class Member(NamedTuple):
    """A member of a group of its own, in a container."""

    coordinator: Coordinator
    container: str
    group_id: str
    topic: str

    @property
    def ends(self) -> list[tuple[str, str]]:
        return ends_of(self.coordinator, self.group_id)

    @property
    def next_offset(self) -> int:
        return next_offset(self.coordinator, self.group_id, self.topic, f"{self.group_id}-next")


class Pod:
    """Containers with a shared folder: one with an executor, and others with a member each."""

    def __init__(self, podman: Podman, coordinator: Coordinator, folder: Path) -> None:
        self._podman, self._coordinator, self._folder = podman, coordinator, folder
        (folder / "member.py").write_text(PROGRAM)

    def start_executor(self, *options: str) -> str:
        command = [sys.executable, "-m", "wakeroll.last_will", "--listen", self.address]
        return self._start(command, options, f"last wills are accepted at {self.address}\n", {})

    def start_member(self, *options: str, session_timeout_ms: int | None = None, **environment: str) -> Member:
        """Start a member, and wait until it has messages.

        `session_timeout_ms`: None: so long that a session does not end in a test.
        """
        connection, topic = self._coordinator.connection, self._coordinator.topic(1)
        group_id = f"billing-{uuid.uuid4().hex[:6]}"
        self._coordinator.produce(topic, 0, MESSAGES)
        session_ms = MAX_SESSION_MS if session_timeout_ms is None else session_timeout_ms
        self._coordinator.configure(group_id, heartbeat_ms=200, session_timeout_ms=session_ms)
        words = [connection.bootstrap, connection.topics.prefix, group_id, topic]
        command = [sys.executable, str(self._folder / "member.py"), *words]
        environment = {"WAKEROLL_LAST_WILL": self.address, **environment}
        return Member(self._coordinator, self._start(command, options, "ready\n", environment), group_id, topic)

    @property
    def address(self) -> str:
        return f"unix:{self._folder}/will.sock"

    def _start(self, command: Sequence[str], options: Sequence[str], line: str, environment: Mapping[str, str]) -> str:
        variables = {"PYTHONPATH": str(ROOT), **environment}
        name = self._podman.start_here(*command, folder=self._folder, environment=variables, options=options)
        logs = partial(self._podman.logs, name)
        wait_until(lambda: line in logs(), f"it prints {line!r}", state=logs)
        return name


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    with Podman(tmp_path_factory.mktemp("podman")) as podman:
        yield podman


@pytest.fixture(scope="module", autouse=True)
def newest_level(coordinator: Coordinator) -> None:
    """An older coordinator would read that the member has left."""
    coordinator.everywhere(Level(level=feature_levels.NEWEST), new_signer(key_to_sign(DEV_KEYS, "operator")))
    wait_until(lambda: set(coordinator.levels.values()) == {feature_levels.NEWEST}, "the newest level is in force")


@pytest.fixture
def pod(podman: Podman, coordinator: Coordinator, tmp_path: Path) -> Pod:
    return Pod(podman, coordinator, tmp_path)


@pytest.mark.parametrize("how", ["killed from outside", "out of memory"])
def test_the_will_of_process_1_is_executed_beside_it(podman: Podman, pod: Pod, how: str):
    """The kernel shows how a process ended only within a namespace of processes."""
    pod.start_executor("--memory", "128m", "--memory-swap", "128m")
    member = pod.start_member("--memory", "300m", "--memory-swap", "300m")
    podman("kill", "--signal", "KILL" if how == "killed from outside" else "USR1", member.container)
    wait_until(lambda: member.ends, "the coordinator knows of an end")
    assert member.ends == [("died", "")]
    assert member.next_offset == HANDLED
    assert podman("inspect", "--format", "{{.State.ExitCode}}", member.container).stdout.strip() == "137"


@pytest.mark.parametrize("executor_sees", ["the application", "the whole machine"])
def test_the_signal_is_known_to_an_executor_that_sees_the_process(podman: Podman, pod: Pod, executor_sees: str):
    """As with `shareProcessNamespace` in Kubernetes, or to a service of the machine, which knows it by another pid."""
    if executor_sees == "the application":
        member = pod.start_member("--pid", f"container:{pod.start_executor()}")
    else:
        pod.start_executor("--pid", "host")
        member = pod.start_member()
    podman("kill", "--signal", "KILL", member.container)
    wait_until(lambda: member.ends, "the coordinator knows of an end")
    assert member.ends == [("died", "SIGKILL")]


def test_one_executor_serves_several_applications_and_may_start_late_and_again(podman: Podman, pod: Pod):
    early = pod.start_member()
    first = pod.start_executor()
    podman("kill", "--signal", "KILL", first)
    second = pod.start_executor()
    late = pod.start_member()
    wait_until(lambda: podman.descriptors(second, "pidfd") == 2, "both have connected")
    for member in (early, late):
        podman("kill", "--signal", "KILL", member.container)
        wait_until(lambda member=member: member.ends, "the coordinator knows of an end")
        assert [change for change, _ in member.ends] == ["died"]
        assert member.next_offset == HANDLED
    assert podman.stop(second, GRACE_S) == 0


@pytest.mark.parametrize("beside", [True, False], ids=["a lost pod", "no executor beside it"])
def test_without_an_executor_that_survives_the_session_ends(podman: Podman, pod: Pod, beside: bool):
    """The executor goes first, as nobody decides which process of a lost node does."""
    if beside:
        executor = pod.start_executor()
        member = pod.start_member(session_timeout_ms=MIN_SESSION_MS)
        podman("kill", "--signal", "KILL", executor)
    else:
        member = pod.start_member(session_timeout_ms=MIN_SESSION_MS, WAKEROLL_LAST_WILL="")
    podman("kill", "--signal", "KILL", member.container)
    wait_until(lambda: member.ends, "the coordinator knows of an end")
    assert member.ends == [("expired", "")]
    assert member.next_offset == 0
