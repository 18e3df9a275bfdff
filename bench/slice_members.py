"""Members of a group in processes of their own, for `bench.sliced_groups`: a handler that takes its time."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Message

from bench.frame import NotMeasured
from wakeroll import Consumer

MOST_PROCESSES = 8
"""More members share them: each process needs 60 MiB."""
ANSWER_S = 120.0
"""How long a process may take to start, or to answer (s)."""


class Place(NamedTuple):
    """What the members join."""

    bootstrap: str
    prefix: str
    group_id: str
    topic: str


class Seen(NamedTuple):
    """What members have seen so far."""

    handled: int
    read: int
    """Messages that were read from Kafka; of Kafka's own group, those that were handled."""
    disorder: int
    """Messages that did not follow the one before of their key."""
    owned: int
    """Queues or slices that are read."""
    waits_ms: dict[bytes, list[int]]
    """Key -> how long each of its messages waited for the handler since it was sent."""

    def __add__(self, other: object) -> "Seen":
        assert isinstance(other, Seen)
        return Seen(
            self.handled + other.handled,
            self.read + other.read,
            self.disorder + other.disorder,
            self.owned + other.owned,
            self.waits_ms | other.waits_ms,  # a key has one owner
        )


class Members:
    """The members, in at most `MOST_PROCESSES` processes."""

    def __init__(self) -> None:
        self._parts: list[tuple[BaseProcess, Pipe]] = []

    def start(self, place: Place, members: int, handle_ms: float, *, kafka: bool, prefetch: int) -> None:
        """Let members join."""
        context = get_context("spawn")
        processes = min(members, MOST_PROCESSES)
        for number in range(processes):
            ours, theirs = context.Pipe()
            names = [f"m{one}" for one in range(number, members, processes)]
            process = context.Process(target=_consume, args=(theirs, place, names, handle_ms, kafka, prefetch))
            process.start()
            self._parts.append((process, ours))

    def seen(self) -> Seen:
        """Return what all members have seen so far.

        Raises:
            NotMeasured: a process does not answer.
        """
        for _, pipe in self._parts:
            pipe.send("seen")
        total = Seen(0, 0, 0, 0, {})
        for process, pipe in self._parts:
            if not pipe.poll(ANSWER_S):
                raise NotMeasured(f"the members of process {process.pid} do not answer within {ANSWER_S:g} s")
            total += pipe.recv()
        return total

    def wait_until(self, condition: Callable[[Seen], bool], what: str) -> Seen:
        """Wait until what the members have seen is enough.

        Raises:
            NotMeasured: it takes too long.
        """
        deadline = time.monotonic() + ANSWER_S
        while not condition(seen := self.seen()):
            if time.monotonic() > deadline:
                raise NotMeasured(f"not within {ANSWER_S:g} s: {what}; {seen.handled} handled, {seen.owned} owned")
            time.sleep(0.1)
        return seen

    def end(self) -> None:
        """Let them leave."""
        for process, pipe in self._parts:
            pipe.close()
            process.join(ANSWER_S)
            process.kill()
        self._parts.clear()


@contextmanager
def members_of(
    place: Place, members: int, handle_ms: float, *, kafka: bool = False, prefetch: int = 1_000
) -> Iterator[Members]:
    """Have members for the time of a ``with`` block; `kafka`: of Kafka's own group."""
    found = Members()
    try:
        found.start(place, members, handle_ms, kafka=kafka, prefetch=prefetch)
        yield found
    finally:
        found.end()


class _Notes:
    """What the members of this process see."""

    def __init__(self, handle_ms: float) -> None:
        self.read = 0
        self._handle_s = handle_ms / 1_000
        self._handled = self._disorder = 0
        self._next: dict[bytes, int] = {}
        self._waits_ms: dict[bytes, list[int]] = {}
        self._lock = threading.Lock()

    def handle(self, messages: list[Message]) -> None:
        """Work on messages: each value is the number of the message among those of its key."""
        now_ms = time.time_ns() // 1_000_000
        for message in messages:
            key, number = message.key(), int(message.value() or 0)
            assert isinstance(key, bytes)
            with self._lock:
                self._disorder += number != self._next.get(key, number)
                self._next[key] = number + 1
                self._waits_ms.setdefault(key, []).append(now_ms - message.timestamp()[1])
            time.sleep(self._handle_s)
            with self._lock:
                self._handled += 1

    def seen(self, owned: int) -> Seen:
        with self._lock:
            waits, self._waits_ms = self._waits_ms, {}
            return Seen(self._handled, self.read or self._handled, self._disorder, owned, waits)


def _consume(pipe: Pipe, place: Place, names: list[str], handle_ms: float, kafka: bool, prefetch: int) -> None:
    """Be some members, until the other end of the pipe is closed."""
    notes = _Notes(handle_ms)
    with ExitStack() as stack:
        owned = [stack.enter_context((_kafka if kafka else _ours)(place, name, notes, prefetch)) for name in names]
        try:
            while pipe.recv():
                pipe.send(notes.seen(sum(count() for count in owned)))
        except (EOFError, KeyboardInterrupt):
            pass


@contextmanager
def _ours(place: Place, name: str, notes: _Notes, prefetch: int) -> Iterator[Callable[[], int]]:
    consumer = Consumer(
        place.group_id,
        [place.topic],
        place.bootstrap,
        client_id=name,
        consume_from="first",
        orderly=True,
        prefix=place.prefix,
    )
    reader: Any = consumer._reader._reader
    take = reader.take

    def count(most: int, timeout: float) -> list[Any]:
        runs: list[Any] = take(most, timeout)
        notes.read += sum(len(messages) for _, messages in runs)
        return runs

    reader.take = count  # what is read of a partition, before its messages are handed out by slice
    settings: dict[str, Any] = {"batch_size": 1, "prefetch": prefetch, "on_error": "raise"}
    thread = threading.Thread(target=consumer.run, args=(notes.handle,), kwargs=settings)
    thread.start()
    try:
        yield lambda: len(consumer.assignment())
    finally:
        consumer.stop()
        thread.join()
        consumer.close()


@contextmanager
def _kafka(place: Place, name: str, notes: _Notes, prefetch: int) -> Iterator[Callable[[], int]]:
    settings: dict[str, Any] = {"bootstrap.servers": place.bootstrap, "group.id": place.group_id, "client.id": name}
    consumer = KafkaConsumer(settings | {"auto.offset.reset": "earliest", "queued.min.messages": prefetch})
    consumer.subscribe([place.topic])
    stopping, owned = threading.Event(), [0]

    def consume() -> None:
        while not stopping.is_set():
            message = consumer.poll(0.1)
            owned[0] = len(consumer.assignment())
            if message is not None and message.error() is None:
                notes.handle([message])
        consumer.close()

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        yield lambda: owned[0]
    finally:
        stopping.set()
        thread.join()
