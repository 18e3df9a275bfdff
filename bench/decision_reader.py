"""Readers of the answers on the brokers: the coordinator's decisions, or the records that passed through the floor."""

from typing import Protocol

import msgspec
from confluent_kafka import TopicPartition
from msgspec import Struct, structs

from wakeroll.connection import Connection, take
from wakeroll_model.decisions import AnyDecision, Assignment, Wake, recipient_of
from wakeroll_model.events import AnyEvent, Arrival, Heartbeat, Pull
from wakeroll_model.queue import Queue
from wakeroll_pipeline.kafka.topic_admin import Cluster

BATCH = 500
PROBED = "probe"
"""The client of `wakeroll_pipeline.local.traffic.Probe`."""

_NEWS = ("arrival", "unknown")
"""Reasons of a wake after which there may be something to read."""

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


class Ears(Protocol):
    """Hears answers, each once."""

    def assignments(self, timeout_s: float) -> list[Answer]:
        """Return the answers to probes' heartbeats; wait at most so long for a record to come."""
        ...

    def wakes(self, timeout_s: float) -> list[Answer]:
        """Return the answers to pulls that found something to read; wait at most so long for a record to come."""
        ...


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
