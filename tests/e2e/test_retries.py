"""Retries and dead letters on a real broker: topics, headers, and what happens when a process dies."""

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Message, TopicPartition
from confluent_kafka.admin import NewTopic

from tests.support.systems.coordinator_thread import Coordinator
from tests.support.waiting import wait_until
from wakeroll import Consumer, DeadLetter, Origin, Retry, WakerollError, origin_of
from wakeroll_model.decisions import FailedMessages
from wakeroll_model.retry_topics import DELAYS_S, dead_letter_topic_of, retry_topic_of

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0


class Runner(threading.Thread):
    """Runs a handler of single messages, until it is stopped."""

    def __init__(self, consumer: Consumer, judge: Callable[[Origin, Message], object], **settings) -> None:
        super().__init__(daemon=True)
        self.consumer = consumer
        self.seen: list[tuple[Origin, Message]] = []
        """Messages of calls that began."""
        self.problem: BaseException | None = None
        self._judge = judge
        self._settings = settings
        self.start()

    def run(self) -> None:
        try:
            self.consumer.run(self._handle, batch_size=1, **self._settings)
        except BaseException as problem:
            self.problem = problem

    def stop(self) -> None:
        """Let the calls at work return, and leave."""
        self.consumer.stop()
        self.join()
        self.consumer.close()

    def _handle(self, messages: list[Message]) -> object:
        [message] = messages
        origin = origin_of(message)
        self.seen.append((origin, message))
        return self._judge(origin, message)


@pytest.fixture
def consumer_of(coordinator, group_id) -> Iterator[Callable[..., Consumer]]:
    with ExitStack() as stack:

        def make(topic: str, **settings) -> Consumer:
            consumer = Consumer(
                group_id,
                [topic],
                coordinator.connection.bootstrap,
                consume_from="first",
                commit_interval=0.2,
                prefix=coordinator.connection.topics.prefix,
                **settings,
            )
            stack.callback(consumer.close)
            consumer.join()
            return consumer

        yield make


def stored_in(coordinator: Coordinator, topic: str) -> list[Message]:
    """Return the messages of partition 0 of a topic."""
    consumer = coordinator.connection.consumer()
    try:
        first, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S)
        consumer.assign([TopicPartition(topic, 0, first)])
        found: list[Message] = []
        while len(found) < end - first:
            found += [message for message in consumer.consume(100, 1.0) if message.error() is None]
        return found
    finally:
        consumer.close()


def test_a_failed_message_comes_again_when_it_is_due_with_all_that_it_had(coordinator, consumer_of, group_id):
    topic = coordinator.topic(2)
    producer = coordinator.connection.producer()
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = [("traceparent", f"00-{trace}-00f067aa0ba902b7-01".encode()), ("twice", b"1"), ("twice", b"2")]
    producer.produce(topic, b"\x00value", key=b"\xffkey", partition=1, headers=headers)
    producer.flush(PATIENCE_S)

    def judge(origin: Origin, _: Message) -> object:
        if origin.attempt == 1:
            return Retry(level=1, reason="no such customer")
        return None

    runner = Runner(consumer_of(topic), judge)
    wait_until(lambda: len(runner.seen) == 2, "the message comes again")
    wait_until(lambda: coordinator.offsets(group_id, topic).get(1) == 1, "the failed message counts as processed")
    wait_until(lambda: coordinator.offsets(group_id, retry_topic_of(group_id)).get(0) == 1, "so does its retry")
    runner.stop()

    (first, original), (second, retried) = runner.seen
    assert first == Origin(topic, 1, 0, original.timestamp()[1], 1, "", trace, "")
    assert second == first._replace(attempt=2, error="no such customer", client_id=runner.consumer.client_id)
    assert (retried.value(), retried.key()) == (b"\x00value", b"\xffkey")
    assert retried.headers()[:3] == headers
    assert (retried.topic(), retried.partition()) == (retry_topic_of(group_id), 0)
    [report] = [one for one in coordinator.decided if isinstance(one, FailedMessages) and one.group_id == group_id]
    assert (str(report.queue), report.first_offset, report.messages, report.attempt, report.outcome, report.level) == (
        f"{topic}-1",
        0,
        1,
        1,
        "retry",
        1,
    )


def test_a_dead_letter_is_kept_with_the_reason(coordinator, consumer_of, group_id):
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 3)

    def judge(origin: Origin, _: Message) -> object:
        if origin.offset == 1:
            raise LookupError("no such customer")
        return DeadLetter(reason="cannot be parsed") if origin.offset == 2 else None

    told: list[tuple[Origin, BaseException | None]] = []
    runner = Runner(
        consumer_of(topic),
        judge,
        max_retries=0,
        on_dead_letter=lambda _, origin, problem: told.append((origin, problem)),
    )
    wait_until(lambda: coordinator.offsets(group_id, topic) == {0: 3}, "all has ended")
    runner.stop()

    letters = sorted(map(origin_of, stored_in(coordinator, dead_letter_topic_of(group_id))))
    assert [(origin.offset, origin.attempt, origin.error, origin.error_type) for origin in letters] == [
        (1, 1, "LookupError: no such customer", "LookupError"),
        (2, 1, "cannot be parsed", ""),
    ]
    assert sorted((origin, type(problem)) for origin, problem in told) == [
        (letters[0], LookupError),
        (letters[1], type(None)),
    ]


def test_a_delay_that_is_no_level_is_spent_in_several_queues(coordinator, consumer_of, group_id):
    """3 s are three times 1 s: each queue of the retry topic has one delay, so that none waits behind a longer one."""
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 1)
    runner = Runner(
        consumer_of(topic), lambda origin, _: Retry() if origin.attempt == 1 else None, retry_delays=[3], max_retries=1
    )
    wait_until(lambda: len(runner.seen) == 2, "the message comes again")
    wait_until(lambda: coordinator.offsets(group_id, retry_topic_of(group_id)).get(0) == 3, "all copies are processed")
    runner.stop()

    copies = stored_in(coordinator, retry_topic_of(group_id))
    waits = [dict(message.headers()).get("wakeroll-wait-s") for message in copies]
    assert waits == [b"2", b"1", None]
    assert {origin_of(message).attempt for message in copies} == {2}
    assert runner.seen[1][1].offset() == 2
    stored_ms = [message.timestamp()[1] for message in copies]
    assert all(later - earlier >= 1_000 for earlier, later in pairwise(stored_ms))


def _run_until_killed(bootstrap: str, prefix: str, group_id: str, topic: str, processed: Path) -> None:
    """Process messages, of which every third fails at first, and write down each that is processed."""
    with processed.open("a", buffering=1) as file:

        def handle(messages: list[Message]) -> object:
            [message] = messages
            origin = origin_of(message)
            time.sleep(0.01)  # so that there is something to kill it in
            if origin.offset % 3 == 0 and origin.attempt == 1:
                return Retry(level=1)
            file.write(f"{origin.partition} {origin.offset}\n")
            return None

        with Consumer(
            group_id, [topic], bootstrap, consume_from="first", prefix=prefix, commit_interval=0.2
        ) as consumer:
            consumer.run(handle, batch_size=1)


def test_nothing_is_lost_when_processes_are_killed_between_the_two_writes(coordinator, group_id, tmp_path):
    """Failed messages are stored before the offset passes them: a kill at any moment repeats some and loses none."""
    coordinator.configure(group_id, session_timeout_ms=10_000, heartbeat_ms=500)
    topic = coordinator.topic(2)
    file = tmp_path / "processed"
    file.touch()
    arguments = (coordinator.connection.bootstrap, coordinator.connection.topics.prefix, group_id, topic, file)
    context = multiprocessing.get_context("spawn")

    def processed() -> Counter[str]:
        return Counter(file.read_text().splitlines())

    expected = 0
    for _ in range(2):
        for partition in range(2):
            coordinator.produce(topic, partition, 300)
        expected += 600
        process = context.Process(target=_run_until_killed, args=arguments)
        process.start()
        enough = len(processed()) + 50
        wait_until(lambda enough=enough: len(processed()) > enough, "the process is at work")
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    survivor = context.Process(target=_run_until_killed, args=arguments)
    survivor.start()
    try:
        wait_until(lambda: len(processed()) == expected, "every message is processed", state=lambda: len(processed()))
    finally:
        os.kill(survivor.pid, signal.SIGKILL)
        survivor.join()

    assert set(processed()) == {f"{partition} {at}" for partition in range(2) for at in range(expected // 2)}


def test_a_member_that_polls_is_given_no_message_that_waits_for_its_retry(coordinator, consumer_of, group_id):
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 1)
    consumer = consumer_of(topic)
    runner = Runner(consumer, lambda *_: Retry(level=3))
    wait_until(lambda: coordinator.offsets(group_id, topic) == {0: 1}, "the message has failed")
    consumer.stop()
    runner.join()

    polled: list[str | None] = []

    def poll() -> None:
        coordinator.produce(topic, 0, 1) if not polled else None
        if (message := consumer.poll(0.2)) is not None:
            polled.append(message.topic())

    # `poll` belongs to the thread that ran the handler, which has ended: another consumer polls.
    consumer.close()
    consumer = consumer_of(topic)
    coordinator.produce(topic, 0, 1)
    wait_until(lambda: bool(polled), "a message is polled", between=poll)

    assert set(polled) == {topic}


def test_a_retry_topic_with_too_few_partitions_is_an_error(coordinator, consumer_of, group_id):
    topic = coordinator.topic(1)
    admin = coordinator.connection.admin()
    admin.create_topics([NewTopic(retry_topic_of(group_id), 3, 1)])[retry_topic_of(group_id)].result(PATIENCE_S)

    with pytest.raises(WakerollError) as refused:
        consumer_of(topic).run(lambda _: None)

    assert str(refused.value) == (
        f"topic {retry_topic_of(group_id)} has 3 partitions; it must have {len(DELAYS_S)}, one per delay level"
    )


def test_a_foreign_message_in_the_retry_topic_is_delivered_as_it_is(coordinator, consumer_of, group_id):
    """Anybody may write there; what nobody failed to process has itself as its origin."""
    topic = coordinator.topic(1)
    runner = Runner(consumer_of(topic), lambda *_: None)
    wait_until(lambda: runner.consumer.assignment(), "the consumer reads")
    producer = coordinator.connection.producer()
    retries = retry_topic_of(group_id)
    headers = [("wakeroll-topic", b"\xff"), ("wakeroll-attempt", b"many"), ("wakeroll-offset", b"-1")]
    producer.produce(retries, b"1", partition=0)
    producer.produce(retries, None, partition=0, headers=headers)
    numbers = [("wakeroll-partition", b"0"), ("wakeroll-offset", b"0"), ("wakeroll-attempt", b"2")]
    producer.produce(retries, b"3", partition=0, headers=[("wakeroll-topic", b"no topic"), *numbers])
    late = [("wakeroll-topic", b"orders"), *numbers, ("wakeroll-attempt", b"2147483648")]
    producer.produce(retries, b"4", partition=0, headers=late)
    producer.flush(PATIENCE_S)
    wait_until(lambda: len(runner.seen) == 4, "all are delivered")
    runner.stop()

    assert sorted((origin.topic, origin.partition, origin.offset, origin.attempt) for origin, _ in runner.seen) == [
        (retries, 0, 0, 1),
        (retries, 0, 1, 1),
        (retries, 0, 2, 1),
        (retries, 0, 3, 1),
    ]


def test_a_message_as_large_as_its_topic_allows_can_be_retried(coordinator, consumer_of):
    """The headers of a retry make it larger than its own topic would accept."""
    topic = coordinator.topic(1)
    producer = coordinator.connection.producer(**{"message.max.bytes": 2_000_000})
    for size in range(1_048_400, 1_048_576, 8):  # as large as the broker accepts
        producer.produce(topic, b"x" * size, partition=0)
    producer.flush(PATIENCE_S)
    runner = Runner(consumer_of(topic), lambda origin, _: Retry(level=1) if origin.attempt == 1 else None)

    def retried() -> int:
        return max((len(message) for origin, message in list(runner.seen) if origin.attempt == 2), default=0)

    wait_until(lambda: len({origin.offset for origin, _ in list(runner.seen) if origin.attempt == 2}) > 1, "retried")
    largest = max(len(message) for _, message in list(runner.seen))
    wait_until(lambda: retried() == largest, "the largest is retried too")
    runner.stop()

    assert runner.problem is None


def test_a_poll_between_two_runs_does_not_skip_a_message_that_waits(coordinator, consumer_of):
    """`poll` reads the queues of the retry topic until they are revoked, and delivers nothing of them."""
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 1)
    consumer = consumer_of(topic)
    attempts: list[int] = []

    def handle(messages: list[Message]) -> object:
        [message] = messages
        attempts.append(origin_of(message).attempt)
        if attempts == [1]:
            return Retry(level=2)
        consumer.stop()
        return None

    def stop_when_it_waits() -> None:
        wait_until(lambda: attempts, "the message is delivered")
        wait_until(lambda: consumer.position((topic, 0)) == 1, "it is in the retry topic")
        consumer.stop()

    stopper = threading.Thread(target=stop_when_it_waits, daemon=True)
    stopper.start()
    consumer.run(handle)
    stopper.join()
    assert consumer.poll(0.4) is None
    alarm = threading.Timer(20, consumer.stop)  # a skipped message would never come
    alarm.start()
    consumer.run(handle)
    alarm.cancel()

    assert attempts == [1, 2]
