"""Exceptions of a signal handler at random moments, on a real broker at full speed: no message is lost."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from types import CodeType, FrameType

import pytest
from confluent_kafka import Message

from tests.support.systems.coordinator_thread import Coordinator
from wakeroll import Consumer
from wakeroll.push.outcomes import Handler

pytestmark = [pytest.mark.e2e, pytest.mark.operate]

POLLS = 8_000
"""Interrupts of `poll`."""
RUNS = 2_000
"""Interrupts of `run`."""
MESSAGES = 300_000
"""Messages of each topic; an interrupted consumer reads some again and again."""
QUEUES = 4


class AlarmError(Exception):
    """Raised by the signal handler."""


class Alarms:
    """A timer whose signals raise an exception in the main thread, at random moments of a program."""

    def __init__(self, shortest_s: float, longest_s: float) -> None:
        self.count = 0
        self._rng = Random(1)
        self._bounds = shortest_s, longest_s
        self._code: CodeType | None = None
        """The program that may be interrupted."""

    def interrupt(self, program: Callable[[], None]) -> None:
        """Run a program again and again, until it returns."""
        former = signal.signal(signal.SIGALRM, self._ring)
        self._code = program.__code__
        self._set()
        while True:
            try:
                program()
                break
            except AlarmError:
                continue
        self._code = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)

    def _set(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._rng.uniform(*self._bounds))

    def _ring(self, _: int, frame: FrameType | None) -> None:
        self._set()
        while frame is not None:
            if frame.f_code is self._code:
                self.count += 1
                raise AlarmError
            frame = frame.f_back


class Processed:
    """The messages that an application has processed; any thread may note some."""

    def __init__(self) -> None:
        self.offsets: list[set[int]] = [set() for _ in range(QUEUES)]
        self.total = 0
        self._lock = threading.Lock()

    def note(self, messages: list[Message]) -> None:
        with self._lock:
            for message in messages:
                self.offsets[message.partition() or 0].add(message.offset() or 0)
            self.total += len(messages)

    def is_complete(self) -> bool:
        return sum(map(len, self.offsets)) == MESSAGES

    def missing_below(self, committed: dict[int, int]) -> list[tuple[int, int]]:
        """Return the messages that are committed and were not processed."""
        return [
            (queue, offset)
            for queue, end in committed.items()
            for offset in range(end)
            if offset not in self.offsets[queue]
        ]


@pytest.fixture
def topic(coordinator) -> Iterator[str]:
    name = coordinator.topic(QUEUES)
    for queue in range(QUEUES):
        coordinator.produce(name, queue, MESSAGES // QUEUES)
    return name


def member(coordinator: Coordinator, group_id: str, topic: str) -> Consumer:
    connection = coordinator.connection
    prefix = connection.topics.prefix
    return Consumer(group_id, [topic], connection.bootstrap, prefix=prefix, consume_from="first", commit_interval=0.2)


def test_poll(coordinator, topic):
    alarms = Alarms(0.0005, 0.01)
    again, began_s = 0, time.monotonic()
    for number in count():
        processed = Processed()
        with member(coordinator, f"polls-{topic}-{number}", topic) as consumer:
            is_in_hand = False

            def poll(consumer: Consumer = consumer, processed: Processed = processed) -> None:
                nonlocal is_in_hand
                while not processed.is_complete() and alarms.count < POLLS:
                    if is_in_hand:
                        consumer.put_back()
                    is_in_hand = True
                    message = consumer.poll(0.2)
                    if message is not None:
                        processed.note([message])
                    is_in_hand = False

            alarms.interrupt(poll)
            assert not processed.missing_below(coordinator.offsets(consumer.group_id, topic))
            while not processed.is_complete():
                if (message := consumer.poll(1)) is not None:
                    processed.note([message])
        assert not processed.missing_below(coordinator.offsets(consumer.group_id, topic))
        again += processed.total - MESSAGES
        if alarms.count >= POLLS:
            break
    seconds = time.monotonic() - began_s
    print(
        f"poll: {alarms.count} interrupts in {seconds:.0f} s; of {MESSAGES * (number + 1)} messages {again} came again"
    )


def test_run(coordinator, topic):
    alarms = Alarms(0.001, 0.04)
    again, began_s = 0, time.monotonic()
    for number in count():
        processed = Processed()
        with member(coordinator, f"runs-{topic}-{number}", topic) as consumer:

            def handle(
                messages: list[Message], consumer: Consumer = consumer, processed: Processed = processed
            ) -> None:
                processed.note(messages)
                if processed.is_complete():
                    consumer.stop()

            def run(consumer: Consumer = consumer, processed: Processed = processed, handle: Handler = handle) -> None:
                while not processed.is_complete() and alarms.count < RUNS:
                    consumer.run(handle, workers=4)

            alarms.interrupt(run)
            assert not processed.missing_below(coordinator.offsets(consumer.group_id, topic))
            if not processed.is_complete():
                consumer.run(handle)
        assert not processed.missing_below(coordinator.offsets(consumer.group_id, topic))
        again += processed.total - MESSAGES
        if alarms.count >= RUNS:
            break
    assert not [one.name for one in threading.enumerate() if consumer.client_id in one.name]
    seconds = time.monotonic() - began_s
    print(
        f"run: {alarms.count} interrupts in {seconds:.0f} s; of {MESSAGES * (number + 1)} messages {again} came again"
    )
