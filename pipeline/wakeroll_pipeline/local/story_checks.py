"""The checks of the demo: they compare the published decisions with the consumers' own logs."""

import threading
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from confluent_kafka import OFFSET_END, TopicPartition

from wakeroll.connection import Connection
from wakeroll_model.decisions import AnyDecision, Assignment, Handover, Membership, Rebalance, Rejected

_decode = msgspec.json.Decoder(AnyDecision).decode


@dataclass
class GroupView:
    """The state of one group according to its decisions so far."""

    owners: dict[int, Handover] = field(default_factory=dict)
    """queue_id -> hand-over to its current owner; queues without an owner are left out."""
    rebalances: list[Rebalance] = field(default_factory=list)
    members: dict[str, int] = field(default_factory=dict)
    """client_id -> log time of its join, epoch ms."""
    grants: Counter[int] = field(default_factory=Counter)
    """queue_id -> number of times that the queue was assigned."""
    rejections: list[Rejected] = field(default_factory=list)
    published_ms: dict[int, int] = field(default_factory=dict)
    """Epoch -> time at which the broker appended its last assignment, epoch ms."""

    @property
    def shares(self) -> list[int]:
        """Number of queues of each owner, largest first."""
        return sorted(Counter(handover.to for handover in self.owners.values()).values(), reverse=True)


class Watcher(threading.Thread):
    """Reads the decisions about one group from now on."""

    def __init__(self, connection: Connection, group_id: str) -> None:
        super().__init__(name="watcher", daemon=True)
        self._group_id = group_id
        self._changed = threading.Condition()
        self._view = GroupView()
        self._ended = threading.Event()
        self._consumer = connection.consumer()
        topic = connection.topics.decisions
        partitions = self._consumer.list_topics(topic, timeout=10).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, partition, OFFSET_END) for partition in partitions])

    def run(self) -> None:
        """Read until `close`."""
        while not self._ended.is_set():
            for message in self._consumer.consume(500, timeout=0.1):
                if message.error() is None and message.key() == self._group_id.encode():
                    self._learn(_decode(message.value() or b""), message.timestamp()[1])
        self._consumer.close()

    def close(self) -> None:
        """Stop reading."""
        self._ended.set()
        self.join()

    def view(self) -> GroupView:
        """Return a copy of the current state."""
        with self._changed:
            view = self._view
            return deepcopy(view)

    def _learn(self, decision: AnyDecision, published_ms: int) -> None:
        with self._changed:
            view = self._view
            match decision:
                case Handover(to=None):
                    view.owners.pop(decision.queue.queue_id, None)
                case Handover():
                    view.owners[decision.queue.queue_id] = decision
                    view.grants[decision.queue.queue_id] += 1
                case Rebalance():
                    view.rebalances.append(decision)
                case Membership(change="joined"):
                    view.members[decision.client_id] = decision.at_ms
                case Membership(change="left" | "died" | "expired" | "kicked"):
                    view.members.pop(decision.client_id, None)
                case Rejected():
                    view.rejections.append(decision)
                case Assignment():
                    view.published_ms[decision.epoch] = published_ms
                case _:
                    pass


@dataclass(frozen=True)
class Handled:
    """One message that a consumer handled."""

    client_id: str
    queue_id: int
    offset: int
    start_ns: int
    end_ns: int


def read_handled(logs: Mapping[str, Path]) -> list[Handled]:
    """Read the consumers' logs, client_id -> file; skip a line that is incomplete because of a kill."""
    handled = []
    for client_id, path in logs.items():
        if not path.exists():
            continue
        for line in path.read_text(encoding="ascii").splitlines(keepends=True):
            if line.endswith("\n"):
                queue_id, offset, start_ns, end_ns = map(int, line.split(","))
                handled.append(Handled(client_id, queue_id, offset, start_ns, end_ns))
    return sorted(handled, key=lambda one: one.start_ns)


@dataclass(frozen=True)
class Balance:
    """Counts of produced, consumed, repeated and lost messages."""

    produced: int
    consumed: int
    """Distinct messages that were handled at least once."""
    repeated: int
    """Number of times that a message was handled again."""
    lost: int


def repeats(handled: list[Handled], since_ns: int) -> int:
    """Count the messages that were handled again after a moment (ns of this machine's clock)."""
    seen: set[tuple[int, int]] = set()
    again = 0
    for one in handled:
        at = (one.queue_id, one.offset)
        again += at in seen and one.start_ns >= since_ns
        seen.add(at)
    return again


@dataclass(frozen=True)
class Takeover:
    """The continuation of a killed consumer's queues at other consumers."""

    first_s: float
    """From the kill to the first message of the first of its queues at another consumer (s)."""
    last_s: float
    """From the kill to the first message of the last of its queues at another consumer (s)."""
    repeated: int
    """Number of messages that it had handled and others handled again."""


def takeover(handled: list[Handled], client_id: str, queues: set[int], killed_ns: int) -> Takeover:
    """Return how the queues of a consumer continued after it was killed, at this machine's time.

    Args:
        handled: handled messages, sorted by start, with a message of each of its queues at another consumer after the
            kill.
        client_id: the consumer.
        queues: the queues that it had.
        killed_ns: when it was killed.
    """
    its = {(one.queue_id, one.offset) for one in handled if one.client_id == client_id}
    others = [one for one in handled if one.client_id != client_id and one.start_ns >= killed_ns]
    firsts = [min(one.start_ns for one in others if one.queue_id == queue_id) - killed_ns for queue_id in queues]
    repeated = sum((one.queue_id, one.offset) in its for one in others)
    return Takeover(min(firsts) / 1e9, max(firsts) / 1e9, repeated)


def doubly_owned(handled: list[Handled], grants: Mapping[int, int]) -> set[int]:
    """Return the queues that two clients owned at the same time, according to their logs.

    They did if messages of a queue, handled by two clients, overlap in time, or if the client of a queue changed more
    often than the queue was assigned.
    """
    found: set[int] = set()
    last: dict[int, Handled] = {}
    turns: Counter[int] = Counter()
    for one in handled:
        before = last.get(one.queue_id)
        if before is None or before.client_id != one.client_id:
            turns[one.queue_id] += 1
            if before is not None and before.end_ns > one.start_ns:
                found.add(one.queue_id)
        last[one.queue_id] = one
    return found | {queue_id for queue_id, times in turns.items() if times > grants.get(queue_id, 0)}


def balance(produced: set[tuple[int, int]], handled: list[Handled]) -> Balance:
    """Compare the messages that the broker acknowledged, as (queue_id, offset), with those that consumers handled."""
    seen = {(one.queue_id, one.offset) for one in handled}
    return Balance(len(produced), len(seen), len(handled) - len(seen), len(produced - seen))
