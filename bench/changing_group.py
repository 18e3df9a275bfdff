"""A group of consumer processes whose members change while every queue gets messages, and the groups to compare."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self

import msgspec
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from bench.consumer_logs import Change, ConsumerLogs, Kind
from bench.running_system import SteadyTraffic, make_topic, until
from wakeroll.connection import Connection
from wakeroll.errors import WakerollError
from wakeroll.last_will.executor_link import OFF, VARIABLE
from wakeroll.reader import FETCH_SETTINGS
from wakeroll_model.config import HEARTBEAT_MS, SESSION_TIMEOUT_MS
from wakeroll_model.events import Configure
from wakeroll_model.signing import DEV_KEYS
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.demo import SESSION_MS as SHORT_SESSION_MS
from wakeroll_pipeline.local.story_checks import Handled
from wakeroll_pipeline.local.traffic import configure

SHORT_HEARTBEAT_MS = 1_000
_KAFKA_SESSION_MS = 45_000
_CLASSIC_HEARTBEAT_MS = 3_000
_KIP848_HEARTBEAT_MS = 5_000
_PATIENCE_S = 30.0

BROKER_SETTINGS: Mapping[str, str | int] = {
    # By default, a broker does not allow a group of KIP-848 shorter ones than 45 s and 5 s.
    "group.consumer.min.session.timeout.ms": SHORT_SESSION_MS,
    "group.consumer.min.heartbeat.interval.ms": SHORT_HEARTBEAT_MS,
}
"""Settings that a broker needs for all cases."""


class Case(NamedTuple):
    """A kind of group."""

    name: str
    protocol: Literal["wakeroll", "classic", "consumer"]
    session_ms: int
    heartbeat_ms: int
    is_default: bool
    """Whether these are the default settings."""
    assignor: str = ""
    """Only for `classic`."""
    has_wills: bool = False
    """Whether a consumer that dies has a last will; only for `wakeroll`."""
    is_busy: bool = False
    """Whether other processes keep all cores busy."""
    kills: int = 1
    """Kills in each round; where they take a second, there are more of them."""

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of a consumer."""
        return {} if self.has_wills else {VARIABLE: OFF}

    def consumer_settings(self) -> dict[str, str]:
        """Return the settings of a consumer of Kafka's own groups."""
        settings: dict[str, str] = {"group.protocol": self.protocol}
        if self.protocol == "classic":
            settings["partition.assignment.strategy"] = self.assignor
            settings["session.timeout.ms"] = str(self.session_ms)
            settings["heartbeat.interval.ms"] = str(self.heartbeat_ms)
        if not self.is_default:
            settings |= {name: str(value) for name, value in FETCH_SETTINGS.items()}
        return settings

    def prepare(self, connection: Connection, group_id: str) -> None:
        """Configure a group before its consumers start, where the coordinator has its settings.

        Raises:
            NotReachable: the broker did not acknowledge them.
            KafkaException: the broker refused them.
        """
        if self.is_default:
            return
        if self.protocol == "wakeroll":
            event = Configure(group_id=group_id, heartbeat_ms=self.heartbeat_ms, session_timeout_ms=self.session_ms)
            configure(connection, DEV_KEYS, event)
        elif self.protocol == "consumer":
            values = {
                "consumer.session.timeout.ms": self.session_ms,
                "consumer.heartbeat.interval.ms": self.heartbeat_ms,
            }
            entries = [
                ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
                for name, value in values.items()
            ]
            resource = ConfigResource(ConfigResource.Type.GROUP, group_id, incremental_configs=entries)
            admin = connection.admin(log_level=3)  # it must live until the answer is there
            admin.incremental_alter_configs([resource])[resource].result(_PATIENCE_S)

    def arguments(self, connection: Connection) -> list[str]:
        """Return what `bench.consumers` needs to join a group of this kind."""
        if self.protocol == "wakeroll":
            return ["--prefix", connection.topics.prefix]
        return ["--kafka", msgspec.json.encode(self.consumer_settings()).decode()]


def _both(name: str, protocol: Literal["classic", "consumer"], heartbeat_ms: int, assignor: str = "") -> list[Case]:
    return [
        Case(name, protocol, _KAFKA_SESSION_MS, heartbeat_ms, True, assignor),
        Case(f"{name}, short sessions", protocol, SHORT_SESSION_MS, SHORT_HEARTBEAT_MS, False, assignor),
    ]


_DEFAULT: Final = ("wakeroll", SESSION_TIMEOUT_MS, HEARTBEAT_MS, True)
CASES = [
    Case("wakeroll", *_DEFAULT, has_wills=True, kills=30),
    Case("wakeroll, busy cores", *_DEFAULT, has_wills=True, is_busy=True, kills=10),
    Case("wakeroll, no last will", *_DEFAULT),
    Case("wakeroll, no last will, short sessions", "wakeroll", SHORT_SESSION_MS, SHORT_HEARTBEAT_MS, False),
    *_both("Kafka, eager (range)", "classic", _CLASSIC_HEARTBEAT_MS, "range"),
    *_both("Kafka, cooperative-sticky", "classic", _CLASSIC_HEARTBEAT_MS, "cooperative-sticky"),
    *_both("Kafka, KIP-848 (uniform)", "consumer", _KIP848_HEARTBEAT_MS),
]


QUEUES = 12
"""So that three consumers have four each, and four have three."""
PER_SECOND = 300
STABLE_S = 2.0
"""A group is settled when its queues have been distributed evenly for so long (s)."""


class ChangingGroup(ExitStack):
    """A group during a `with` block, with traffic; its processes end with the block."""

    def __init__(self, connection: Connection, case: Case, group_id: str, folder: Path, limit_s: float) -> None:
        """Prepare.

        Args:
            connection: the broker.
            case: the kind of group.
            group_id: its name, and the name of its topic.
            folder: of its logs; created.
            limit_s: longest duration of a step (s).
        """
        super().__init__()
        self._connection = connection
        self._case = case
        self._name = group_id
        self._folder = folder
        self._limit_s = limit_s
        self._children: dict[str, Child] = {}
        self._logs: dict[Path, str] = {}
        self._tail = ConsumerLogs()
        self._queues = [(group_id, number) for number in range(QUEUES)]
        self._traffic = SteadyTraffic(connection, self._queues, PER_SECOND)

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        make_topic(self._connection, self._name, QUEUES)
        self._case.prepare(self._connection, self._name)
        self._traffic.start()
        self.callback(self._traffic.close)
        for number in range(os.cpu_count() or 1) if self._case.is_busy else ():
            busy = Child(
                f"process {number} that keeps a core busy",
                [sys.executable, "-c", "while True: pass"],
                log=self._folder / "busy.output",
                env=os.environ,
            )
            busy.start()
            self.callback(busy.kill)
        return self

    @property
    def handed(self) -> list[Handled]:
        """All messages that were handed out so far, in order of time."""
        return self._tail.in_order()

    def start(self, client_ids: Iterable[str]) -> None:
        """Start the first consumers, and wait until the group is settled."""
        for client_id in client_ids:
            self._launch(client_id)
        self._settle("the first consumers share the queues", time.monotonic_ns())

    def join(self, client_id: str) -> Change:
        """Let a consumer join; return when the group is settled."""
        log = self._launch(client_id)
        self._until("the new consumer runs", lambda: log in self._tail.began)
        return self._change("join", client_id, self._tail.began[log])

    def leave(self, client_id: str) -> Change:
        """Let a consumer leave in good order; return when the group is settled."""
        log = next(path for path, name in reversed(self._logs.items()) if name == client_id)
        child = self._children.pop(client_id)
        child.stop()
        self._until("the consumer leaves", lambda: log in self._tail.leaving)
        return self._change("leave", client_id, self._tail.leaving[log])

    def crash(self, client_id: str, after_s: float) -> Change:
        """Kill a consumer after a time; return when the group is settled."""
        time.sleep(after_s)
        child = self._children.pop(client_id)
        killed_ns = time.monotonic_ns()
        child.kill()
        return self._change("crash", client_id, killed_ns)

    def finish(self) -> int:
        """Stop the traffic, let the consumers handle all messages, and stop them; return how many are missing."""
        self._traffic.close()
        logs = Cluster(self._connection).all_offsets(self._queues)
        ends = {queue: end for queue, (_, end) in logs.items()}
        try:
            self._until("every message is consumed", lambda: not self._tail.missing(ends))
        except WakerollError as problem:
            print(problem, flush=True)  # the number of lost messages is the result
        for child in self._children.values():
            child.stop()
        self._tail.follow(self._logs)
        return sum(self._tail.missing(ends).values())

    def _launch(self, client_id: str) -> Path:
        log = self._folder / f"{client_id}.{len(self._logs)}"
        child = Child(
            f"consumer {client_id} of {self._name}",
            [
                *(
                    sys.executable,
                    "-m",
                    "bench.consumers",
                    "--bootstrap",
                    self._connection.bootstrap,
                    "--log",
                    str(log),
                ),
                *self._case.arguments(self._connection),
                f"{client_id}={self._name}",
            ],
            log=self._folder / f"{client_id}.output",
            env={**os.environ, **self._case.variables},
        )
        self._logs[log] = client_id
        self._children[client_id] = child
        child.start()
        self.callback(child.stop)
        return log

    def _change(self, kind: Kind, client_id: str, began_ns: int) -> Change:
        self._settle(f"the group is settled after the {kind} of {client_id}", began_ns)
        return Change(kind, client_id, began_ns, time.monotonic_ns())

    def _settle(self, what: str, since_ns: int) -> None:
        """Wait until the consumers that run have handed out messages of equally many queues for a while."""
        most, fewest = -(-QUEUES // len(self._children)), QUEUES // len(self._children)
        held: dict[int, str] = {}
        held_since = 0.0

        def is_settled() -> bool:
            nonlocal held, held_since
            now = {one.queue_id: one.client_id for one in self._tail.last.values() if one.start_ns >= since_ns}
            shares = [list(now.values()).count(client_id) for client_id in self._children]
            is_even = len(now) == QUEUES == sum(shares) and fewest <= min(shares) and max(shares) <= most
            if not is_even or now != held:
                held, held_since = now, time.monotonic()
            return is_even and time.monotonic() - held_since >= STABLE_S

        self._until(what, is_settled)

    def _until(self, what: str, true: Callable[[], bool]) -> None:
        def is_true() -> bool:
            self._tail.follow(self._logs)
            for child in self._children.values():
                child.check()
            return true()

        until(f"{self._case.name}: {what}", is_true, self._limit_s, self._folder)
