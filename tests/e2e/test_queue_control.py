"""Pause, resume, seek, position, committed and lag of a consumer's queues, on a real broker."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Message, TopicPartition

from tests.support.waiting import wait_until
from wakeroll import Consumer, InvalidUsage, Queue, reader
from wakeroll.push import push_loop
from wakeroll.push.dispatch import Dispatch
from wakeroll.push.push_loop import PushLoop

pytestmark = pytest.mark.e2e


@pytest.fixture
def topic(coordinator) -> str:
    topic = coordinator.topic(2)
    for partition in range(2):
        coordinator.produce(topic, partition, 20)
    return topic


@pytest.fixture
def consumer_of(coordinator, group_id, topic) -> Iterator[Callable[..., Consumer]]:
    with ExitStack() as stack:

        def make(**settings) -> Consumer:
            prefix = coordinator.connection.topics.prefix
            bootstrap = coordinator.connection.bootstrap
            settings = {"topics": [topic], "consume_from": "first", "commit_interval": 0.1} | settings
            consumer = Consumer(group_id, bootstrap=bootstrap, prefix=prefix, **settings)
            stack.callback(consumer.close)
            consumer.join()
            return consumer

        yield make


def polled(consumer: Consumer, count: int) -> list[tuple[int, int]]:
    """Poll so many messages; return queue number and offset of each."""
    found: list[tuple[int, int]] = []

    def poll() -> None:
        message = consumer.poll(0.1)
        if message is not None:
            found.append((message.partition() or 0, message.offset() or 0))

    wait_until(lambda: len(found) >= count, f"{count} messages are polled", between=poll, state=lambda: found)
    return found


def silence_of(consumer: Consumer, seconds: float = 1.0) -> list[tuple[int, int]]:
    """Return what is polled in this time; nothing can be awaited, if nothing is to come."""
    end = time.monotonic() + seconds
    found = [consumer.poll(0.1) for _ in iter(lambda: time.monotonic() < end, False)]
    return [(message.partition() or 0, message.offset() or 0) for message in found if message is not None]


def test_a_paused_queue_is_not_read_until_it_is_resumed(consumer_of, coordinator, topic):
    consumer = consumer_of()
    polled(consumer, 40)
    consumer.pause([(topic, 0)])
    coordinator.produce(topic, 0, 1)
    coordinator.produce(topic, 1, 1)

    assert polled(consumer, 1) == [(1, 20)]
    assert silence_of(consumer) == []
    assert consumer.assignment() == [Queue(topic, "", 0), Queue(topic, "", 1)]
    consumer.resume([Queue(topic, "", 0)])
    assert polled(consumer, 1) == [(0, 20)]


def test_seek_reads_again_and_a_commit_does_not_go_back(consumer_of, coordinator, group_id, topic):
    consumer = consumer_of()
    polled(consumer, 40)
    consumer.poll(0)
    wait_until(lambda: coordinator.offsets(group_id, topic) == {0: 20, 1: 20}, "all is committed")
    consumer.seek((topic, 1), 15)

    assert consumer.position((topic, 1)) == 15
    assert polled(consumer, 5) == [(1, offset) for offset in range(15, 20)]
    assert consumer.position((topic, 1)) == 20
    assert coordinator.offsets(group_id, topic) == {0: 20, 1: 20}


def test_position_committed_and_lag_follow_what_is_processed(consumer_of, coordinator, topic):
    consumer = consumer_of()
    wait_until(consumer.assignment, "there are queues", between=lambda: consumer.poll(0))
    queues = consumer.assignment()
    assert [consumer.committed(queue) for queue in queues] in ([None, None], [0, 0])
    total = sum(consumer.lag().values())
    assert total in (39, 40)  # a poll may have returned a message meanwhile
    polled(consumer, total)
    consumer.poll(0)
    consumer.commit()

    assert [consumer.position(queue) for queue in queues] == [20, 20]
    assert [consumer.committed(queue) for queue in queues] == [20, 20]
    assert set(consumer.lag().values()) == {0}
    consumer.pause(queues)
    consumer.poll(0)
    coordinator.produce(topic, 1, 3)
    assert silence_of(consumer) == []
    assert consumer.lag() == {Queue(topic, "", 0): 0, Queue(topic, "", 1): 3}


def test_an_application_continues_where_its_own_store_ends(consumer_of):
    """By `seek` or by a result of `on_assigned`: what its database has is not delivered, with poll and with run."""
    store = {0: 7, 1: 12}

    def go_there(consumer: Consumer, queues: list[Queue]) -> dict[Queue, int]:
        for queue in queues[:1]:
            consumer.seek(queue, store[queue.queue_id])
        return {queue: store[queue.queue_id] for queue in queues[1:]}

    consumer = consumer_of(on_assigned=go_there)
    expected = {(0, offset) for offset in range(7, 20)} | {(1, offset) for offset in range(12, 20)}
    assert set(polled(consumer, 21)) == expected
    consumer.close()

    seen: list[tuple[int, int]] = []

    def handle(messages: list[Message]) -> None:
        seen.extend((message.partition() or 0, message.offset() or 0) for message in messages)

    store = {0: 3, 1: 19}  # the group has committed more; the application knows better
    consumer = consumer_of(on_assigned=go_there)
    thread = threading.Thread(target=consumer.run, args=(handle,), daemon=True)
    thread.start()
    wait_until(lambda: len(seen) >= 18, "all is handled")
    consumer.stop()
    thread.join()

    assert set(seen) == {(0, offset) for offset in range(3, 20)} | {(1, 19)}


def test_run_does_not_read_on_what_the_application_has_paused(consumer_of, coordinator, topic):
    """Its own pauses, of queues whose handlers are slow, do not end that of the application."""
    seen: list[tuple[int, int]] = []

    def handle(messages: list[Message]) -> None:
        seen.extend((message.partition() or 0, message.offset() or 0) for message in messages)

    consumer = consumer_of()
    thread = threading.Thread(target=consumer.run, args=(handle,), kwargs={"prefetch": 20}, daemon=True)
    thread.start()
    wait_until(lambda: len(seen) == 40, "all is handled")
    consumer.pause([(topic, 0)])
    wait_until(lambda: Queue(topic, "", 0) in consumer._reader._reader._stopped, "the loop has seen it")
    coordinator.produce(topic, 0, 20)
    coordinator.produce(topic, 1, 200)
    wait_until(lambda: len([at for number, at in seen if number == 1]) == 220, "the other queue is read")
    assert max(at for number, at in seen if number == 0) == 19
    wait_until(lambda: consumer.position((topic, 1)) == 220, "its position is behind what is processed")
    lagging = {Queue(topic, "", 0): 20, Queue(topic, "", 1): 0}.items()
    wait_until(lambda: lagging <= consumer.lag().items(), "the paused one lags", state=consumer.lag)
    consumer.resume([(topic, 0)])
    wait_until(lambda: len(seen) == 260, "the paused one is read on")
    consumer.stop()
    thread.join()


class WatchedClient:
    """Kafka's client, with a list of the partitions that were paused, resumed and sought."""

    def __init__(self, consumer: Consumer) -> None:
        self._client = consumer._reader._reader._consumer
        consumer._reader._reader._consumer = self
        self.calls: list[tuple[str, TopicPartition]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.calls += [("pause", one) for one in partitions]
        self._client.pause(partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.calls += [("resume", one) for one in partitions]
        self._client.resume(partitions)

    def seek(self, partition: TopicPartition) -> None:
        self.calls.append(("seek", partition))
        self._client.seek(partition)


def handled_slowly(consumer: Consumer, count: int) -> list[int]:
    """Run with a handler that lets the queue get full again and again; return the offsets of so many messages."""
    seen: list[int] = []

    def handle(messages: list[Message]) -> None:
        time.sleep(0.01)
        seen.extend(message.offset() or 0 for message in messages)
        if len(seen) >= count:
            consumer.stop()

    consumer.run(handle, batch_size=1, prefetch=10, workers=1)
    return seen


@pytest.fixture
def one_queue(coordinator) -> str:
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 60)
    return topic


def test_messages_read_ahead_are_not_fetched_again_while_all_queues_are_full(consumer_of, one_queue, monkeypatch):
    """To pause a queue discards what Kafka's client has read of it; that is needless if nothing is read anyway."""
    monkeypatch.setattr(reader, "REST_S", 60.0)
    consumer = consumer_of(topics=[one_queue], orderly=True)
    client = WatchedClient(consumer)

    assert handled_slowly(consumer, 60) == list(range(60))
    assert [name for name, _ in client.calls] == []


def test_a_queue_that_is_resumed_is_sought_where_it_is(consumer_of, one_queue, monkeypatch):
    """Kafka's client does not tell the thread that fetches of a resumed partition: it may sleep on for a second."""
    monkeypatch.setattr(reader, "REST_S", 0.0)
    consumer = consumer_of(topics=[one_queue], orderly=True)
    client = WatchedClient(consumer)

    assert handled_slowly(consumer, 60) == list(range(60))
    names = [name for name, _ in client.calls]
    assert names[:6] == ["pause", "resume", "seek"] * 2
    places = [(one.offset, one.leader_epoch) for name, one in client.calls if name == "seek"]
    assert places == sorted(places)
    assert all(0 < offset <= 60 and leader_epoch is not None for offset, leader_epoch in places)


def test_a_slow_queue_does_not_make_the_others_wait(consumer_of, coordinator, topic, monkeypatch):
    """A full queue gets time to make room, but not if it needed longer the last time."""
    monkeypatch.setattr(push_loop, "PATIENCE_MS", 77)
    full: list[set[int]] = []
    waits: list[set[int]] = []
    pause, wait_for = PushLoop._pause, Dispatch.wait_for

    def noted_pause(loop, works):
        full.append({work.give.queue.queue_id for work in works})
        pause(loop, works)

    def noted_wait(dispatch, condition, timeout):
        if timeout == 0.077:
            waits.append(full[-1])
        wait_for(dispatch, condition, timeout)

    monkeypatch.setattr(PushLoop, "_pause", noted_pause)
    monkeypatch.setattr(Dispatch, "wait_for", noted_wait)
    coordinator.produce(topic, 0, 100)
    handled = [0, 0]
    consumer = consumer_of()

    def handle(messages: list[Message]) -> None:
        number = messages[0].partition() or 0
        time.sleep(0.0 if number else 0.02)
        handled[number] += len(messages)
        if sum(handled) == 140:
            consumer.stop()

    consumer.run(handle, batch_size=1, prefetch=40, workers=1)

    assert full.count({0}) > waits.count({0})


def test_a_signal_handler_cannot_seek_during_run(consumer_of, topic):
    """It runs in the thread that polls, between two steps of the loop."""
    consumer, told = consumer_of(), []

    def handler(*_: object) -> None:
        try:
            consumer.seek((topic, 0), 0)
        except InvalidUsage as problem:
            told.append(str(problem))
        consumer.stop()

    def begin(_: object) -> None:
        """Ask for the signal at the first message: then `run` has begun."""
        if not told:
            signal.setitimer(signal.ITIMER_REAL, 0.1)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        consumer.run(begin)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert told == ["seek() was called during run(); call it in on_assigned, or use poll()"]


@pytest.mark.parametrize(
    ("use", "sentence"),
    [
        (lambda consumer: consumer.pause([("payments", 0)]), "this consumer does not read payments-0 now"),
        (lambda consumer: consumer.seek(("payments", 0), 0), "this consumer does not read payments-0 now"),
        (lambda consumer: consumer.position(("payments", 0)), "this consumer does not read payments-0 now"),
        (lambda consumer: consumer.seek(("payments", 0), -1), "offset is -1"),
        (lambda consumer: consumer.position("payments"), "queue is 'payments'; it must be a Queue, or a topic"),
    ],
)
def test_a_mistake_is_named(consumer_of, use, sentence):
    with pytest.raises(InvalidUsage) as refused:
        use(consumer_of())

    assert sentence in str(refused.value)


def test_a_queue_that_nobody_has_committed_has_no_committed_offset(consumer_of):
    """Of a queue that this consumer does not read, the decisions about the group are read."""
    assert consumer_of().committed(("payments", 0)) is None
