"""The system of a soak: a broker, two coordinators that also record, two observers, the page, and consumers.

Two groups of Kafka's own, and `watch-kafka`, work beside it.
"""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple, Self

from confluent_kafka.admin import NewPartitions
from msgspec import structs

from bench.consumer_logs import ConsumerLogs, HandledOffsets
from bench.decision_reader import PARTS, PublishedDecisions
from bench.frame import NotMeasured
from bench.page_readers import ServedPage
from bench.running_system import QueueId, SteadyTraffic, make_topic, settings_in, until
from bench.soak import watched_groups
from bench.soak.soak_processes import SoakProcesses
from wakeroll.epoch_ms import now_ms
from wakeroll_model.events import Configure
from wakeroll_model.signing import DEV_KEYS
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.local_system import LocalSystem
from wakeroll_pipeline.local.traffic import Probe, configure
from wakeroll_pipeline.runtime.deciding_queries import RECORD
from wakeroll_pipeline.runtime.run_status import read_status

REPLICAS = ("a", "b")
OBSERVERS = ("observer 1", "observer 2")
PAGE = "serve"
WATCH = "watch-kafka"
_SESSION_MS = 15_000
_SESSION_OF_BROKER_MS = 20_000
"""After it was killed, the only broker returns when this session has ended (ms); Kafka's default is 9 s."""
_LIMIT_S = 600.0
QUEUES = 32
"""Of each topic at the start."""
_GROUP_CLIENTS = 25
"""Most clients of a group at the start."""


_ONE_IS_CUT = 5
"""Of so many groups."""


class Shape(NamedTuple):
    """How large a soak is."""

    clients: int
    """At the start."""
    per_process: int
    """Clients of a consumer process."""
    per_second: int
    """Messages of all topics together."""

    @property
    def groups(self) -> list[str]:
        """Names of the groups, each of which reads the topic of the same name."""
        return [f"soak-{number}" for number in range(-(-self.clients // _GROUP_CLIENTS))]

    @property
    def cut(self) -> list[str]:
        """Those of them whose queues are cut into slices."""
        return self.groups[::_ONE_IS_CUT]


class SoakSystem(ExitStack):
    """The processes of a soak during a `with` block; all of them end with it."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        """Prepare; the folder must be empty or missing."""
        super().__init__()
        self.shape = shape
        self.folder = folder
        # A broker that reports to its own controller too late is fenced, and disappears from the metadata of clients.
        settings = {"broker.session.timeout.ms": _SESSION_OF_BROKER_MS}
        self.broker = EmbeddedBroker(folder / "broker", heap="512m", fast_start=False, settings=settings)
        self.processes = SoakProcesses()
        self.handled = HandledOffsets()
        self.queues: list[QueueId] = [(topic, number) for topic in shape.groups for number in range(QUEUES)]
        self._clients = 0
        self._logs: list[Path] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    @property
    def consumer_processes(self) -> list[str]:
        """Names of the consumer processes that should run, in the order of their start."""
        return self.processes.wanted("consumers")

    @property
    def clients(self) -> int:
        """Number of clients whose processes should run."""
        return len(self.consumer_processes) * self.shape.per_process

    @property
    def writer(self) -> str:
        """The coordinator that writes the tables, by the latest status of both; the first one if neither does."""
        written_ms = {}
        for replica in REPLICAS:
            status = read_status(self.settings.work_folder, replica)
            if status is not None and status.pid == self.processes.children[coordinator(replica)].pid:
                written_ms[coordinator(replica)] = status.written_ms if RECORD in status.queries else 0
        return max(written_ms, key=written_ms.__getitem__, default=coordinator(REPLICAS[0]))

    def add_clients(self) -> str:
        """Start one more consumer process; return its name."""
        groups = self.shape.groups
        numbers = range(self._clients, self._clients + self.shape.per_process)
        self._clients += self.shape.per_process
        members = [f"client-{number}={groups[number % len(groups)]}" for number in numbers]
        name = f"consumers {len(self._logs)}"
        log = self.folder / "handled" / name.replace(" ", "-")
        self._logs.append(log)
        argv = [sys.executable, "-m", "bench.consumers", "--many", "--bootstrap", self.settings.bootstrap]
        argv += ["--prefix", self.settings.prefix, "--log", str(log), *members]
        self.processes.launch(
            name, Child(name, argv, log=self.settings.logs / f"{log.name}.log", env=os.environ, grace_s=60)
        )
        return name

    def watch_differs(self) -> list[str]:
        """Return what the tables of the watch say otherwise than Kafka about Kafka's own groups."""
        return watched_groups.differences(self.settings.connection.admin(), self._watched)

    def add_queues(self, topic: str, more: int) -> int:
        """Give a topic more partitions, and messages for them; return the new number."""
        before = sum(name == topic for name, _ in self.queues)
        admin = self.settings.connection.admin()
        admin.create_partitions([NewPartitions(topic, before + more)])[topic].result(60)
        added = [(topic, number) for number in range(before, before + more)]
        self.queues += added
        self.traffic.add(added)
        return before + more

    def calm_down(self) -> None:
        """Wake all suspended processes, start all that have ended, and wait until both coordinators decide again.

        Raises:
            NotMeasured: a coordinator does not decide in time.
        """
        self.processes.wake_all()
        self.broker.start()
        calm_ms = now_ms()
        for replica in REPLICAS:
            self._until_decides(replica, calm_ms)

    def read_handled(self) -> None:
        """Read what consumers have handled since the last call."""
        self.handled.follow(self._logs)

    def judged(self) -> ConsumerLogs:
        """Return what consumers have handled, with each delivery: too much for the memory of a process that runs on."""
        logs = ConsumerLogs()
        logs.follow(self._logs)
        return logs

    def ends(self) -> dict[QueueId, int]:
        """Return the end offset of each queue."""
        return Cluster(self.settings.connection).ends(self.queues)

    def until_consumed(self, limit_s: float) -> dict[QueueId, int]:
        """Produce no more, and wait until everything is handled; return the messages that are missing, by queue."""
        self.traffic.close()
        ends = self.ends()

        def done() -> bool:
            self.read_handled()
            return not self.handled.missing(ends)

        with suppress(NotMeasured):  # the number of missing messages is the result
            self._until("every message is handled", done, limit_s)
        return self.handled.missing(ends)

    def stop_all(self) -> None:
        """Stop consumers, coordinators, observers and the page in good order; the broker still runs."""
        self.probe.close()
        others = (*map(coordinator, REPLICAS), PAGE, *OBSERVERS, WATCH, *watched_groups.GROUPS)
        for name in (*self.consumer_processes, *others):
            self.processes.stop(name)

    def _start(self) -> None:
        self.callback(self.broker.stop)
        self.broker.start()
        self.settings = settings_in(self.folder, "soak", self.broker)
        (self.folder / "handled").mkdir(parents=True)
        connection, settings = self.settings.connection, self.settings
        ensure_topics(connection, partitions=settings.partitions, inbox_partitions=settings.inbox_partitions)
        for topic in self.shape.groups:
            make_topic(connection, topic, QUEUES)
        for topic in watched_groups.GROUPS:
            make_topic(connection, topic, watched_groups.QUEUES)
        self.decisions = PublishedDecisions(connection, settings.partitions)
        self.decisions.start()
        self.callback(self.decisions.close)
        self.callback(self.processes.end_all)
        for name in OBSERVERS:
            child = LocalSystem(settings).observer
            child.log = settings.logs / f"{name.replace(' ', '-')}.log"
            self.processes.launch(name, child)
        for replica in REPLICAS:
            child = LocalSystem(structs.replace(settings, replica=replica, snapshot_interval_ms=60_000)).jobs
            child.log = settings.logs / f"run-{replica}.log"
            self.processes.launch(coordinator(replica), child)
        self.processes.launch(PAGE, ServedPage(settings, settings.logs / "serve.log"))
        self._watched = structs.replace(settings, home=str(self.folder / "watch"))
        self.processes.launch(WATCH, watched_groups.watch_of(self._watched))
        for group_id in watched_groups.GROUPS:
            child = watched_groups.members_of(group_id, settings, self.folder / "handled" / group_id)
            self.processes.launch(group_id, child)
        self.probe = Probe(connection, self.shape.groups[0])
        self.probe.start()
        self.callback(self.probe.close)
        for replica in REPLICAS:
            self._until_decides(replica)
        for group_id in self.shape.groups:
            slices = {group_id: PARTS} if group_id in self.shape.cut else {}
            configure(connection, DEV_KEYS, Configure(group_id=group_id, session_timeout_ms=_SESSION_MS, slices=slices))
        for _ in range(-(-self.shape.clients // self.shape.per_process)):
            self.add_clients()
        every = {(*queue, part) for queue in self.queues for part in range(PARTS)}
        self._until("every queue has an owner", lambda: self.decisions.grants().keys() >= every)
        theirs = [(topic, number) for topic in watched_groups.GROUPS for number in range(watched_groups.QUEUES)]
        self.traffic = SteadyTraffic(connection, [*self.queues, *theirs], self.shape.per_second)
        self.callback(self.traffic.close)
        self.traffic.start()

    def _until_decides(self, replica: str, after_ms: int = 0) -> None:
        self._until(f"replica {replica} decides", lambda: self.decisions.last_ms(replica) > after_ms)

    def _until(self, what: str, done: Callable[[], bool], limit_s: float = _LIMIT_S) -> None:
        until(what, done, limit_s, self.settings.logs)


def coordinator(replica: str) -> str:
    """Return the name of the process of a replica."""
    return f"coordinator {replica}"
