"""One real fault for each kind of alert: a real Prometheus with the real rules watches a whole system."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from msgspec import structs

from tests.support.systems.fleet import CLIENTS, GROUP, PER_SECOND, Fleet
from tests.support.systems.prometheus_server import INSTALLED, NOT_INSTALLED, Prometheus, ports_in_a_row
from tests.support.systems.replicas import coordinator, pause, replica_of, wake
from tests.support.systems.web_site import served
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll import Admin, Consumer
from wakeroll.errors import RequestRefused
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.ports import free_ports

pytestmark = [
    pytest.mark.operate,
    pytest.mark.spark,
    pytest.mark.prometheus,
    pytest.mark.skipif(not INSTALLED, reason=NOT_INSTALLED),
]

MAX_GROUPS = 8
"""Groups per shard: a test fills a shard."""
SIZE = 1 << 30
"""Bytes of the disk that a test fills."""
WINDOWS = {"offset 1h": "offset 30s", '"duplicate"}[10m]': '"duplicate"}[10s]'}
"""A test need not run for an hour before it can miss what was there an hour ago, or for ten minutes to be well."""

until = partial(wait_until, patience_s=PATIENCE_WITH_SPARK_S)


class Watched:
    """Two coordinators, a recorder, an observer, the page and three consumers, and a Prometheus for them."""

    def __init__(self, bootstrap: str, folder: Path, home: Path, stack: ExitStack) -> None:
        first = ports_in_a_row(5)
        self.ports = {
            "wakeroll-run": [first, first + 2, first + 3],
            "wakeroll-observe": [first + 1],
            "wakeroll-serve": [first + 4],
        }
        self.fleet = Fleet(
            bootstrap,
            folder,
            home=str(home),
            checkpoints=str(home / "checkpoints"),
            metrics_port=first,
            standby=True,
            max_groups=MAX_GROUPS,
        )
        self.recorder = self.fleet.system.jobs = coordinator(self.fleet.settings, "--only", "record", name="record")
        self.coordinators = [
            coordinator(
                structs.replace(replica_of(self.fleet.settings, name), standby=False, metrics_port=port),
                "--only",
                "coordinate",
            )
            for name, port in zip(("a", "b"), self.ports["wakeroll-run"][1:], strict=True)
        ]
        self.prometheus = stack.enter_context(Prometheus(folder / "prometheus", self.ports, WINDOWS))
        for child in self.coordinators:
            stack.enter_context(child)
        stack.enter_context(self.fleet)
        self.observer = self.fleet.system.observer
        self._stack = stack
        self.open_page()

    def open_page(self) -> None:
        """Serve the page, until `page.close()`."""
        self.page = self._stack.enter_context(ExitStack())
        self.page.enter_context(served(self.fleet.settings, port=self.ports["wakeroll-serve"][0]))

    @contextmanager
    def more(self, job: str, command: str, *options: str, replica: str = "") -> Iterator[Child]:
        """Add a process to the deployment, and a target to Prometheus, for the time of a `with` block."""
        [port] = free_ports(1)
        settings = structs.replace(self.fleet.settings, metrics_port=port, replica=replica)
        child = Child(
            f"one more {command}",
            [sys.executable, "-m", "wakeroll_pipeline.cli", command, *options],
            log=settings.logs / f"more-{command}.log",
            env={**os.environ, **settings.environment()},
            grace_s=90,
        )
        try:
            with child:
                self.prometheus.watch({**self.ports, job: [*self.ports.get(job, []), port]})
                yield child
        finally:
            self.prometheus.watch(self.ports)

    def firing(self) -> set[str]:
        return self.prometheus.firing()

    def fires(self, alert: str, **labels: str) -> None:
        """Wait until an alert fires."""
        until(lambda: alert in self.prometheus.firing(**labels), f"{alert} fires", state=self._state)

    def ends(self, alert: str, **labels: str) -> None:
        """Wait until an alert fires no more."""
        until(lambda: alert not in self.prometheus.firing(**labels), f"{alert} ends", state=self._state)

    def wait_for(self, expression: str) -> None:
        """Wait until an expression has a value."""
        until(lambda: self.prometheus.ask(expression), expression, state=self._state)

    def all_are_ready(self) -> None:
        """Wait until Prometheus has seen each process ready."""
        self.wait_for("count(wakeroll_ready == 1) >= 5 and count(up == 1) == 5")

    def _state(self) -> str:
        ready = [(one["metric"], one["value"][1]) for one in self.prometheus.ask("wakeroll_ready")]
        tails = [child.log_tail() for child in (self.recorder, *self.coordinators, self.observer)]
        return "\n".join([str(self.firing()), str(ready), *tails])


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in a file system of its own."""
    folder = tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", folder]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture(scope="module")
def watched(broker, disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with ExitStack() as stack:
        system = Watched(broker.bootstrap, tmp_path_factory.mktemp("watched"), disk, stack)
        system.all_are_ready()
        yield system


def test_nothing_fires_while_all_is_well(watched: Watched):
    """Else the tests below would find alerts that fire for another reason."""
    watched.fleet.wait_for_more(300)
    until(lambda: not watched.firing(), "nothing fires", state=watched.firing)


def test_a_coordinator_that_ends_is_a_lost_reserve_and_both_are_an_outage(watched: Watched):
    """The recorder has the same job, and answers."""
    first, second = watched.coordinators
    second.kill()
    watched.fires("WakerollReplicaLost", role="coordinator")
    watched.fires("WakerollProcessUnready")
    assert "WakerollCoordinatorAbsent" not in watched.firing()

    first.kill()
    watched.fires("WakerollCoordinatorAbsent")
    assert "WakerollRecorderAbsent" not in watched.firing()

    for child in watched.coordinators:
        child.start()
    watched.all_are_ready()
    for alert in ("WakerollCoordinatorAbsent", "WakerollProcessUnready", "WakerollReplicaLost"):
        watched.ends(alert)


def test_a_recorder_that_is_killed_is_missed(watched: Watched):
    watched.recorder.kill()
    watched.fires("WakerollRecorderAbsent")
    assert "WakerollCoordinatorAbsent" not in watched.firing()
    watched.recorder.start()
    watched.ends("WakerollRecorderAbsent")
    watched.all_are_ready()


def test_a_page_that_ends_is_missed(watched: Watched):
    """Only of a deployment that has had one."""
    watched.page.close()
    watched.fires("WakerollRoleAbsent", role="page")
    watched.open_page()
    watched.ends("WakerollRoleAbsent", role="page")
    watched.all_are_ready()


def test_a_tap_that_is_killed_is_missed(watched: Watched):
    with watched.more("wakeroll-tap", "tap", watched.fleet.topic) as tap:
        watched.wait_for('wakeroll_ready{role="tap"} == 1')
        tap.kill()
        watched.fires("WakerollRoleAbsent", role="tap")
        tap.start()
        watched.ends("WakerollRoleAbsent", role="tap")


def test_a_mirror_that_is_killed_is_missed_although_an_observer_is_left(watched: Watched):
    """The other observer ticks, so nobody would notice that offsets are no longer copied to Kafka."""
    with watched.more("wakeroll-observe", "observe", "--mirror-offsets", ".*") as mirror:
        watched.wait_for('wakeroll_ready{role="mirror"} == 1')
        mirror.kill()
        watched.fires("WakerollRoleAbsent", role="mirror")
        assert "WakerollObserverAbsent" not in watched.firing()
        mirror.start()
        watched.ends("WakerollRoleAbsent", role="mirror")


def test_recorders_without_a_reserve_are_seen(watched: Watched):
    """The one that stood by writes the tables in the place of the killed one; the next fault would stop them."""
    with watched.more("wakeroll-run", "run", "--only", "record", replica="reserve"):
        watched.wait_for('wakeroll_ready{role="standby"} offset 30s == 1')
        watched.recorder.kill()
        watched.fires("WakerollReplicaLost", role="standby")
        watched.ends("WakerollRecorderAbsent")
        watched.recorder.start()
        watched.wait_for('wakeroll_ready{role="standby"} == 1')
        watched.ends("WakerollReplicaLost", role="standby")
    watched.wait_for('wakeroll_ready{role="recorder"} == 1')
    watched.all_are_ready()


def test_coordinators_that_are_suspended_decide_late(watched: Watched):
    """Their decisions come when they go on: the promise of the product was broken meanwhile."""
    for child in watched.coordinators:
        pause(child)
    try:
        enough = len(watched.fleet.traffic.produced) + PER_SECOND * 60
        until(lambda: len(watched.fleet.traffic.produced) >= enough, "a minute's messages are produced")
    finally:
        for child in watched.coordinators:
            wake(child)
    watched.fires("WakerollDecisionsLate")
    watched.all_are_ready()
    watched.ends("WakerollDecisionsLate")


def test_an_observer_that_hangs_stops_the_clock(watched: Watched):
    """Its process runs, and the port does not answer."""
    os.kill(watched.observer.pid, signal.SIGSTOP)
    try:
        watched.fires("WakerollNoTick")
        watched.fires("WakerollObserverAbsent")
    finally:
        os.kill(watched.observer.pid, signal.SIGCONT)
    watched.ends("WakerollNoTick")
    watched.ends("WakerollObserverAbsent")


def test_a_crash_loop_is_seen_although_its_port_answers_each_time(watched: Watched):
    """Prometheus sees a process that has just started, each time."""
    [port] = watched.ports["wakeroll-observe"]  # the mirror, which another test has killed, has the same job
    for number in range(1, 5):
        watched.observer.kill()
        watched.observer.start()
        watched.wait_for(f'changes(process_start_time_seconds{{instance="127.0.0.1:{port}"}}[30m]) >= {number}')
    watched.fires("WakerollRestarting", job="wakeroll-observe")


def test_queues_that_a_strategy_assigns_to_nobody_are_seen(watched: Watched):
    """An operator has chosen a strategy that takes its queues from a list, and has named no list."""
    settings = watched.fleet.settings
    with Admin(settings.bootstrap, prefix=settings.connection.topics.prefix) as admin:
        admin.configure(GROUP, strategy="CONFIG", timeout=PATIENCE_WITH_SPARK_S)
        watched.fires("WakerollGroupUnwell", group=GROUP, verdict="unowned")
        watched.fires("WakerollQueuesUnowned", group=GROUP)
        admin.configure(GROUP, strategy="AVG", timeout=PATIENCE_WITH_SPARK_S)
    watched.ends("WakerollQueuesUnowned", group=GROUP)
    watched.ends("WakerollGroupUnwell", group=GROUP, verdict="unowned")


def test_two_processes_with_one_client_id_are_seen(watched: Watched):
    """The second one waits; a second set of consumers was started with the names of the first one."""
    settings, prefix = watched.fleet.settings, watched.fleet.settings.connection.topics.prefix
    with Consumer(GROUP, [watched.fleet.topic], settings.bootstrap, client_id=CLIENTS[0], prefix=prefix):
        watched.fires("WakerollGroupUnwell", group=GROUP, verdict="duplicate")
    watched.ends("WakerollGroupUnwell", group=GROUP, verdict="duplicate")


def test_a_flood_of_bad_records_is_seen(watched: Watched):
    connection = watched.fleet.settings.connection
    producer = connection.producer()

    def send() -> None:
        for _ in range(20):
            producer.produce(connection.topics.groups, b"not json", partition=0)
        assert producer.flush(60) == 0

    firing = partial(watched.prometheus.firing, rule="json")
    until(lambda: "WakerollRejections" in firing(), "WakerollRejections fires", between=send)


def test_a_shard_that_is_nearly_full_is_seen(watched: Watched):
    """Before its limit refuses a group; here, the next one."""
    settings, number = watched.fleet.settings, count()
    with Admin(settings.bootstrap, prefix=settings.connection.topics.prefix) as admin:

        def add_a_group() -> bool:
            """Return whether a shard has refused one more group."""
            try:
                admin.configure(f"small-{next(number)}", session_timeout_ms=30_000)
            except RequestRefused as refusal:
                return refusal.rule == "limit"
            return False

        until(add_a_group, "a shard is full", between=lambda: None)
    watched.fires("WakerollStateNearLimit")


def test_a_disk_that_is_nearly_full_is_seen(watched: Watched, disk: Path):
    file = disk / "ballast"
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    with file.open("wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, free - SIZE // 12)
    try:
        watched.fires("WakerollDiskSpace", folder="home")
    finally:
        file.unlink()
    watched.ends("WakerollDiskSpace", folder="home")


def test_groups_with_a_problem_are_named(watched: Watched):
    """Consumers that commit nothing, and then consumers that are away while messages wait."""
    settings = watched.fleet.settings
    for client in CLIENTS:
        watched.fleet.let_leave(client)
    watched.fires("WakerollGroupNotRead", group=GROUP, verdict="abandoned")

    idle = Consumer(GROUP, [watched.fleet.topic], settings.bootstrap, prefix=settings.connection.topics.prefix)
    with idle:
        watched.fires("WakerollGroupNotRead", group=GROUP, verdict="stalled")
