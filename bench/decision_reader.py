"""Readers of the answers on the brokers: the coordinators' decisions, or the records that passed through the floor."""

import threading
from collections import Counter
from itertools import pairwise

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Message, TopicPartition
from msgspec import Struct, structs

from wakeroll.connection import Connection, take
from wakeroll.headers import WRITER_HEADER
from wakeroll_model.decisions import AnyDecision, Assignment, Handover, Rebalance, Wake, recipient_of
from wakeroll_model.events import AnyEvent, Arrival, Heartbeat, Pull
from wakeroll_model.queue import Queue
from wakeroll_model.slices import key_of_offset, slice_of
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.local.traffic import PROBE_GROUP

BATCH = 500
PROBED = "probe"
"""The client of `wakeroll_pipeline.local.traffic.Probe`."""

_POLL_S = 0.05
_NEWS = ("arrival", "unknown")
"""Reasons of a wake after which there may be something to read."""

PARTS = 8
"""Most slices that a measurement cuts a queue into."""
PartId = tuple[str, int, int]
"""Topic, queue, and one of the parts of a queue that may have owners of their own: its smallest slices."""

_decode_decision = msgspec.json.Decoder(AnyDecision).decode
_decode_event = msgspec.json.Decoder(AnyEvent).decode


class Answer(Struct, frozen=True):
    """What an event has led to."""

    client_id: str
    """Whom it reaches."""
    at_ms: int
    """Log time of the event, epoch ms."""
    latency_ms: int
    """From the append of the event to the append of the answer, by the broker's clock."""
    next_offset: int = 0
    """Of a wake: where to ask from next."""
    was_held: bool = False
    """Of a wake: whether the pull had to wait; if not, the event is the pull itself."""


class Listener:
    """A reader of all partitions of a topic, from now on."""

    def __init__(self, connection: Connection, topic: str, partitions: int) -> None:
        self._consumer = connection.consumer(**{"fetch.wait.max.ms": 100, "log_level": 0})
        # Not OFFSET_END, which the consumer looks up while it reads: what is written meanwhile would be missed.
        offsets = Cluster(connection).all_offsets((topic, partition) for partition in range(partitions))
        self._consumer.assign([TopicPartition(*where, end) for where, (_, end) in offsets.items()])

    def read(self, timeout_s: float) -> list[tuple[bytes, bytes, int]]:
        """Return key, value and append time (epoch ms) of what has come; wait at most so long for a record."""
        return [
            (message.key() or b"", message.value() or b"", message.timestamp()[1])
            for message in take(self._consumer, BATCH, timeout_s)
            if message.error() is None
        ]

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()


class Decided:
    """Hears the coordinator, as clients do: in the inbox."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def assignments(self, timeout_s: float) -> list[Answer]:
        """Return the probes' assignments."""
        return [answer for answer in self._answers(Assignment, timeout_s) if answer.client_id == PROBED]

    def wakes(self, timeout_s: float) -> list[Answer]:
        """Return the wakes that tell of a message; after any other, clients ask again."""
        return self._answers(Wake, timeout_s)

    def _answers(self, kind: type[Assignment | Wake], timeout_s: float) -> list[Answer]:
        found = []
        for _, value, published_ms in self._listener.read(timeout_s):
            said = _decode_decision(value)
            assert recipient_of(said), "nothing else stands in the inbox"
            if not isinstance(said, kind) or (isinstance(said, Wake) and said.reason not in _NEWS):
                continue
            assert isinstance(said, Assignment | Wake), "it is of this kind"
            answer = Answer(said.client_id, said.at_ms, published_ms - said.at_ms)
            if isinstance(said, Wake):
                answer = structs.replace(answer, next_offset=said.next_offset, was_held=said.held_ms > 0)
            found.append(answer)
        return found


class Passed:
    """Hears the floor, and does with what passed the least that a coordinator would: it knows who waits for what.

    So both are asked the same, at the same rates.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._waiting: dict[Queue, list[str]] = {}
        self._ends: dict[Queue, int] = {}

    def assignments(self, timeout_s: float) -> list[Answer]:
        """Return the probes' heartbeats."""
        return [
            Answer(event.client_id, at_ms, latency_ms)
            for event, at_ms, latency_ms in self._events(timeout_s)
            if isinstance(event, Heartbeat)
        ]

    def wakes(self, timeout_s: float) -> list[Answer]:
        """Return an answer for each client that an arrival reaches, or that finds one there already."""
        found = []
        for event, at_ms, latency_ms in self._events(timeout_s):
            if isinstance(event, Pull):
                woken = [event.client_id]
                if self._ends.get(event.queue, 0) <= event.from_offset:
                    self._waiting.setdefault(event.queue, []).append(event.client_id)
                    continue
            elif isinstance(event, Arrival):
                self._ends[event.queue] = max(self._ends.get(event.queue, 0), event.next_offset)
                woken = self._waiting.pop(event.queue, [])
            else:
                continue
            end = self._ends[event.queue]
            was_held = isinstance(event, Arrival)
            found += [Answer(client_id, at_ms, latency_ms, end, was_held) for client_id in woken]
        return found

    def _events(self, timeout_s: float) -> list[tuple[AnyEvent, int, int]]:
        """Return event, log time and latency of what has passed."""
        return [
            (_decode_event(value), int(key), published_ms - int(key))
            for key, value, published_ms in self._listener.read(timeout_s)
        ]


def part_of(offset: int) -> int:
    """Return the part of its queue that has a message without key."""
    return slice_of(key_of_offset(offset), PARTS)


def parts_of(queue: Queue) -> list[PartId]:
    """Return the parts of a queue: all of a whole one, those of a slice."""
    many = PARTS // queue.slices
    return [(queue.topic, queue.queue_id, part) for part in range(queue.slice * many, (queue.slice + 1) * many)]


Ears = Decided | Passed
"""Hears answers, each once; waits at most so long for a record to come."""


class PublishedDecisions(threading.Thread):
    """Reads the decisions topic from its start; of a decision that several coordinators publish, the first counts."""

    def __init__(self, connection: Connection, partitions: int) -> None:
        super().__init__(name="published-decisions", daemon=True)
        # With "error", a partition is no longer read after its offset did not exist, as when a killed broker is back.
        # Decisions that are read again are known by their seq.
        self._consumer = connection.consumer(
            **{"fetch.wait.max.ms": 20, "log_level": 0, "auto.offset.reset": "earliest"}
        )
        topic = connection.topics.decisions
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        self._lock = threading.Lock()
        self._newest: dict[str, int] = {}
        self._grants: Counter[PartId] = Counter()
        self._probed: list[tuple[int, int]] = []
        """Append time of each assignment of the probe (epoch ms), and its latency (ms)."""
        self._taken = 0
        self._last_ms: dict[str, int] = {}
        self._triggers: Counter[str] = Counter()
        self._ended = threading.Event()

    def run(self) -> None:
        """Read until `close`."""
        while not self._ended.is_set():
            messages = take(self._consumer, BATCH, _POLL_S)
            with self._lock:
                for message in messages:
                    if message.error() is None:
                        self._learn(message)
        self._consumer.close()

    def close(self) -> None:
        """Stop reading."""
        self._ended.set()
        self.join()

    def last_ms(self, replica: str) -> int:
        """Return when a replica last published a decision (epoch ms); 0 if it never did."""
        with self._lock:
            return self._last_ms.get(replica, 0)

    def next_after(self, moment_ms: int) -> int | None:
        """Return when the first assignment of the probe after a moment was published (epoch ms); None: not yet."""
        with self._lock:
            return next((at_ms for at_ms, _ in self._probed if at_ms > moment_ms), None)

    def take_latencies_ms(self) -> list[int]:
        """Return the times from a heartbeat's append to that of its assignment since the last call (ms)."""
        with self._lock:
            found = [latency_ms for _, latency_ms in self._probed[self._taken :]]
            self._taken = len(self._probed)
            return found

    def gaps_ms(self, since_ms: int) -> list[int]:
        """Return the times between two successive assignments of the probe (ms) that end after a moment (epoch ms)."""
        with self._lock:
            return [after - before for (before, _), (after, _) in pairwise(self._probed) if after >= since_ms]

    def grants(self) -> dict[PartId, int]:
        """Return how often each part of a queue was assigned."""
        with self._lock:
            return dict(self._grants)

    def triggers(self) -> dict[str, int]:
        """Return how many rebalances each trigger has caused."""
        with self._lock:
            return dict(sorted(self._triggers.items()))

    def _learn(self, message: Message) -> None:
        at_ms = message.timestamp()[1]
        writer = dict(message.headers() or [])[WRITER_HEADER]
        assert isinstance(writer, bytes), "a coordinator names itself"
        replica = writer.decode().partition("@")[0]
        self._last_ms[replica] = max(at_ms, self._last_ms.get(replica, 0))
        decision = _decode_decision(message.value() or b"")
        if decision.seq <= self._newest.get(decision.shard, 0):
            return
        self._newest[decision.shard] = decision.seq
        match decision:
            case Assignment(group_id=group_id) if group_id == PROBE_GROUP:
                self._probed.append((at_ms, at_ms - decision.at_ms))
            case Handover(queue=queue, to=str()):
                self._grants.update(parts_of(queue))
            case Rebalance(group_id=group_id) if group_id != PROBE_GROUP:
                self._triggers[decision.trigger] += 1
            case _:
                pass
