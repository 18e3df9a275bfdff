"""Push consumption on a real broker: `Consumer.run` calls a handler with batches of messages."""

import asyncio
import logging
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count

import pytest
from confluent_kafka import Message

from tests.support.waiting import wait_until
from wakeroll import Consumer, InvalidUsage, Queue
from wakeroll_model.decisions import Handover

pytestmark = pytest.mark.e2e


class Worker(threading.Thread):
    """A process of an application: a consumer, its handler, and what the handler received."""

    def __init__(self, consumer: Consumer, handler: Callable[[list[Message]], object] | None = None, **settings):
        super().__init__(name="application", daemon=True)
        self.consumer = consumer
        self.offsets: dict[int, list[int]] = defaultdict(list)
        """Queue number -> offsets of messages whose calls returned."""
        self.problem: BaseException | None = None
        self._handler = handler or (lambda _: None)
        self._settings = settings
        self._lock = threading.Lock()
        self.start()

    def run(self) -> None:
        """Consume until the consumer is stopped."""
        try:
            self.consumer.run(self._handle, **self._settings)
        except BaseException as problem:
            self.problem = problem

    def stop(self) -> None:
        """Let the calls at work return, and leave."""
        self.consumer.stop()
        self.join()
        self.consumer.close()

    def processed(self) -> int:
        """Return how many messages were processed."""
        with self._lock:
            return sum(map(len, self.offsets.values()))

    def _handle(self, messages: list[Message]) -> None:
        self._handler(messages)
        with self._lock:
            for message in messages:
                self.offsets[message.partition() or 0].append(message.offset() or 0)


class Obstacle:
    """A handler that holds the call that has one message, until it is let go."""

    def __init__(self, offset: int, partition: int = 0) -> None:
        self.call: list[int] = []
        """Offsets of the messages of that call; empty until it comes."""
        self._at = partition, offset
        self._reached, self._released = threading.Event(), threading.Event()

    def __call__(self, messages: list[Message]) -> None:
        """Handle messages."""
        if self._at in [(message.partition(), message.offset()) for message in messages]:
            self.call = [message.offset() or 0 for message in messages]
            self._reached.set()
            assert self._released.wait(300)

    def wait(self) -> None:
        """Wait until the call has come."""
        assert self._reached.wait(120)

    def let_go(self) -> None:
        """Let the call return."""
        self._released.set()


def numbers(queues: list[Queue]) -> list[int]:
    return [queue.queue_id for queue in queues]


@pytest.fixture
def consumer_of(coordinator, group_id) -> Iterator[Callable[..., Consumer]]:
    """Make consumers of one group; the first is the oldest and the first by name."""
    number = count()
    with ExitStack() as stack:

        def make(topic: str, **settings) -> Consumer:
            consumer = Consumer(
                group_id,
                [topic],
                coordinator.connection.bootstrap,
                client_id=f"c{next(number)}",
                consume_from="first",
                prefix=coordinator.connection.topics.prefix,
                **settings,
            )
            stack.callback(consumer.close)
            return consumer

        yield make


@contextmanager
def keyed(coordinator) -> Iterator[Callable[[str, bytes, int], None]]:
    """Produce messages with one key to partition 0."""
    producer = coordinator.connection.producer()

    def produce(topic: str, key: bytes, number: int) -> None:
        producer.produce(topic, str(number).encode(), key=key, partition=0)

    yield produce
    assert producer.flush(120) == 0


def test_every_message_is_processed_once_and_committed(coordinator, consumer_of, group_id):
    topic = coordinator.topic(4)
    for partition in range(4):
        coordinator.produce(topic, partition, 5_000)
    worker = Worker(consumer_of(topic))

    wait_until(lambda: worker.processed() == 20_000, "everything is processed", state=worker.processed)
    worker.stop()

    assert {number: sorted(offsets) for number, offsets in worker.offsets.items()} == {
        partition: list(range(5_000)) for partition in range(4)
    }
    wait_until(lambda: coordinator.offsets(group_id, topic) == dict.fromkeys(range(4), 5_000), "all is committed")


def test_in_order_a_queue_has_one_call_at_a_time(coordinator, consumer_of):
    topic = coordinator.topic(2)
    for partition in range(2):
        coordinator.produce(topic, partition, 2_000)
    at_work: Counter[int] = Counter()
    most: Counter[int] = Counter()

    def handle(messages: list[Message]) -> None:
        number = messages[0].partition() or 0
        at_work[number] += 1
        most[number] = max(most[number], at_work[number])
        time.sleep(0.001)  # lets other threads go on: an error would show
        at_work[number] -= 1

    worker = Worker(consumer_of(topic, orderly=True), handle)
    wait_until(lambda: worker.processed() == 4_000, "everything is processed")
    worker.stop()

    assert worker.offsets == {0: list(range(2_000)), 1: list(range(2_000))}
    assert most == {0: 1, 1: 1}


def test_messages_with_the_same_key_stay_in_order_and_others_do_not_wait(coordinator, consumer_of):
    topic = coordinator.topic(1)
    with keyed(coordinator) as produce:
        for number in range(600):
            produce(topic, f"key-{number % 7}".encode(), number)
    seen: dict[bytes, list[int]] = defaultdict(list)
    met = threading.Event()
    both = threading.Barrier(2, action=met.set)

    def handle(messages: list[Message]) -> None:
        if not met.is_set():
            both.wait(60)  # two calls are at work at once, or this raises
        for message in messages:
            seen[message.key() or b""].append(int(message.value() or b""))

    worker = Worker(consumer_of(topic), handle, workers=2)
    wait_until(lambda: worker.processed() == 600, "everything is processed")
    worker.stop()

    assert len(seen) == 7
    assert all(offsets == sorted(offsets) for offsets in seen.values())


def test_an_async_handler_has_many_calls_at_once_in_one_thread(coordinator, consumer_of):
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 200)
    threads: set[int] = set()
    at_work, most, done = 0, 0, 0

    async def handle(messages: list[Message]) -> None:
        nonlocal at_work, most, done
        threads.add(threading.get_ident())
        at_work += 1
        most = max(most, at_work)
        while most < 16 and done == 0:  # all workers are at work at once, or this does not end
            await asyncio.sleep(0.01)
        at_work -= 1
        done += len(messages)

    consumer = consumer_of(topic)
    thread = threading.Thread(target=consumer.run, args=(handle,), kwargs={"workers": 16, "batch_size": 4})
    thread.start()
    wait_until(lambda: done == 200, "everything is processed", state=lambda: (done, most))
    consumer.stop()
    thread.join()

    assert (len(threads), most) == (1, 16)


def test_an_unfinished_message_is_not_passed_by_a_commit(coordinator, consumer_of, group_id):
    """Others are processed meanwhile; after a crash they would be delivered again, and nothing would be missing."""
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 100)
    obstacle = Obstacle(40)
    worker = Worker(consumer_of(topic, commit_interval=0.1), obstacle, batch_size=10)
    obstacle.wait()
    first = obstacle.call[0]
    wait_until(lambda: worker.processed() == 100 - len(obstacle.call), "the others are processed")
    wait_until(lambda: coordinator.offsets(group_id, topic) == {0: first}, "what is below is committed")
    assert worker.consumer.commit(60)
    assert coordinator.offsets(group_id, topic) == {0: first}

    obstacle.let_go()
    wait_until(lambda: coordinator.offsets(group_id, topic) == {0: 100}, "all is committed")
    worker.stop()


def test_a_slow_handler_holds_the_reading_back_and_only_of_its_queue(coordinator, consumer_of):
    topic = coordinator.topic(2)
    for partition in range(2):
        coordinator.produce(topic, partition, 5_000)
    obstacle = Obstacle(10)
    worker = Worker(consumer_of(topic, orderly=True), obstacle, prefetch=100)
    obstacle.wait()
    wait_until(lambda: len(worker.offsets[1]) == 5_000, "the other queue is processed")
    work = worker.consumer._loop._work  # nothing else shows what was read ahead
    most = max(one.messages for one in work.values())
    obstacle.let_go()
    wait_until(lambda: worker.processed() == 10_000, "both are processed")
    worker.stop()

    assert 0 < most <= 100
    assert worker.offsets == {0: list(range(5_000)), 1: list(range(5_000))}


def test_a_revoked_queue_is_released_when_its_calls_have_returned(coordinator, consumer_of, caplog):
    """What was only read ahead goes to the next owner; no message is handled twice, and none is missed."""
    caplog.set_level(logging.INFO, logger="wakeroll")
    topic = coordinator.topic(2)
    for partition in range(2):
        coordinator.produce(topic, partition, 500)
    obstacle = Obstacle(20, partition=1)
    revoked: list[list[int]] = []
    consumer = consumer_of(topic, orderly=True, on_revoked=lambda _, queues: revoked.append(numbers(queues)))
    one = Worker(consumer, obstacle, batch_size=10)
    obstacle.wait()
    two = Worker(consumer_of(topic, orderly=True))
    wait_until(lambda: one.consumer.assignment() == [Queue(topic, "", 0)], "the queue is not read any more")
    wait_until(lambda: len(one.offsets[0]) == 500, "the queue that stays is read on")
    assert (revoked, two.processed()) == ([], 0)

    obstacle.let_go()
    end = obstacle.call[-1] + 1
    wait_until(lambda: two.processed() == 500 - end, "the next owner has the rest", state=two.processed)
    one.stop()
    two.stop()

    assert (one.offsets[1], two.offsets[1]) == (list(range(end)), list(range(end, 500)))
    assert revoked[0] == [1]
    assert f"released {Queue(topic, '', 1)}" in caplog.text


def test_a_call_that_takes_too_long_is_given_up_and_its_messages_come_again(coordinator, consumer_of, group_id, caplog):
    """Before the revoke timeout ends, and with the offset that was reached: only that call's messages are repeated."""
    coordinator.configure(group_id, heartbeat_ms=500, session_timeout_ms=20_000, revoke_timeout_ms=8_000)
    topic = coordinator.topic(2)
    coordinator.produce(topic, 1, 100)
    obstacle = Obstacle(50, partition=1)
    one = Worker(consumer_of(topic), obstacle, batch_size=10)
    obstacle.wait()
    first = obstacle.call[0]
    wait_until(lambda: one.processed() == 100 - len(obstacle.call), "the others are processed")
    two = Worker(consumer_of(topic))
    wait_until(lambda: two.processed() == 100 - first, "the next owner has the rest", state=two.processed)

    assert f"gave up {Queue(topic, '', 1)}" in caplog.text
    lost = [
        one
        for one in coordinator.decided
        if isinstance(one, Handover) and (one.from_, one.group_id, one.queue.topic) == ("c0", group_id, topic)
    ]
    assert [decision.how for decision in lost] == ["released"]
    obstacle.let_go()
    one.stop()
    two.stop()
    assert sorted(two.offsets[1]) == list(range(first, 100))


def test_a_queue_that_was_paused_is_read_again_when_it_comes_back(coordinator, consumer_of):
    topic = coordinator.topic(2)
    for partition in range(2):
        coordinator.produce(topic, partition, 500)
    obstacle = Obstacle(10, partition=1)
    one = Worker(consumer_of(topic, orderly=True), obstacle, batch_size=10, prefetch=40)
    obstacle.wait()
    wait_until(lambda: Queue(topic, "", 1) in one.consumer._loop._paused, "the queue is paused")
    two = Worker(consumer_of(topic, orderly=True), workers=1, batch_size=1)
    wait_until(lambda: one.consumer.assignment() == [Queue(topic, "", 0)], "the queue is revoked")
    obstacle.let_go()
    wait_until(lambda: two.processed() > 0, "the next owner has it")
    two.stop()
    coordinator.produce(topic, 1, 500)

    wait_until(lambda: one.processed() + two.processed() == 1_500, "all is processed", state=one.processed)
    one.stop()
    assert sorted(one.offsets[1] + two.offsets[1]) == list(range(1_000))


def test_an_async_handler_that_never_returns_is_given_up_without_an_error(coordinator, consumer_of):
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 1)
    at_work = threading.Event()

    async def handle(_: list[Message]) -> None:
        at_work.set()
        await asyncio.sleep(3_600)

    consumer = consumer_of(topic)
    ended: list[BaseException | None] = []

    def consume() -> None:
        try:
            consumer.run(handle, stop_timeout=0.5)
            ended.append(None)
        except BaseException as problem:
            ended.append(problem)

    thread = threading.Thread(target=consume)
    thread.start()
    assert at_work.wait(120)
    consumer.stop()
    thread.join(60)

    assert ended == [None]


def test_without_retries_a_handler_that_raises_ends_run_and_its_messages_come_again(coordinator, consumer_of, group_id):
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 100)
    consumer = consumer_of(topic, orderly=True)
    seen: list[int] = []
    failed: list[int] = []

    def handle(messages: list[Message]) -> None:
        offsets = [message.offset() or 0 for message in messages]
        if 30 in offsets and not failed:
            failed.extend(offsets)
            raise LookupError("no such order")
        seen.extend(offsets)
        if seen[-1] == 99:
            consumer.stop()

    with pytest.raises(LookupError, match="no such order"):
        consumer.run(handle, batch_size=10, on_error="raise")
    assert seen == list(range(failed[0]))
    consumer.run(handle, batch_size=10, on_error="raise")

    assert seen == list(range(100))
    wait_until(lambda: coordinator.offsets(group_id, topic) == {0: 100}, "all is committed")


def test_system_exit_in_a_handler_reaches_the_application(coordinator, consumer_of):
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 1)

    def handle(_: list[Message]) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit) as raised:
        consumer_of(topic).run(handle)
    assert raised.value.code == 3


def test_poll_goes_on_where_run_ended(coordinator, consumer_of):
    """What run() had read ahead is not lost."""
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 300)
    consumer = consumer_of(topic, orderly=True)
    seen: list[int] = []

    def handle(messages: list[Message]) -> None:
        seen.extend(message.offset() or 0 for message in messages)
        if len(seen) >= 50:
            consumer.stop()

    consumer.run(handle, batch_size=10)
    while len(seen) < 300:
        if (message := consumer.poll()) is not None:
            seen.append(message.offset() or 0)
    assert seen == list(range(300))


def test_close_in_another_thread_ends_run_and_commits(coordinator, consumer_of, group_id):
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 50)
    worker = Worker(consumer_of(topic))
    wait_until(lambda: worker.processed() == 50, "everything is processed")

    worker.consumer.close(30)
    worker.join(60)

    assert (worker.is_alive(), worker.problem) == (False, None)
    wait_until(lambda: coordinator.offsets(group_id, topic) == {0: 50}, "all is committed")


def test_stop_does_not_wait_for_ever_for_a_handler_that_never_returns(coordinator, consumer_of, caplog):
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 1)
    obstacle = Obstacle(0)
    worker = Worker(consumer_of(topic), obstacle, stop_timeout=0.5)
    obstacle.wait()
    worker.consumer.stop()
    worker.join(60)

    assert not worker.is_alive()
    assert "calls of the handler are at work" in caplog.text
    obstacle.let_go()


def test_stop_may_wait_without_a_limit(coordinator, consumer_of):
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 1)
    obstacle = Obstacle(0)
    worker = Worker(consumer_of(topic), obstacle, stop_timeout=math.inf)
    obstacle.wait()
    worker.consumer.stop()
    later = threading.Timer(1, obstacle.let_go)  # `run` waits meanwhile
    later.start()
    worker.join(60)
    later.join()

    assert (worker.is_alive(), worker.problem) == (False, None)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"workers": 0}, "workers is 0; it must be 1 or more"),
        ({"workers": 1_001}, "workers is 1001; it must be at most 1000"),
        ({"batch_size": "many"}, "batch_size is 'many'"),
        ({"prefetch": -1}, "prefetch is -1; it must be 1 or more"),
        ({"stop_timeout": -1}, "stop_timeout is -1; it must be 0 or more seconds"),
    ],
)
def test_what_is_not_valid_is_named(coordinator, consumer_of, settings, sentence):
    topic = coordinator.topic(1)
    consumer = consumer_of(topic)
    with pytest.raises(InvalidUsage, match=sentence):
        consumer.run(print, **settings)
    with pytest.raises(InvalidUsage, match="it must be a function of a list of messages"):
        consumer.run("print")
