"""The SDK on a real broker, with the real machine as its coordinator: what an application sees of a group."""

import logging
import math
import os
import re
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count, pairwise
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Message

from tests.support.systems.coordinator_thread import plane_of_its_own
from tests.support.systems.member_ends import ends_of
from tests.support.waiting import wait_until
from wakeroll import Consumer, ConsumerFenced, InvalidUsage, NotReachable, Queue
from wakeroll_model.decisions import AssignedQueue, Assignment, Rejected, Start
from wakeroll_model.events import Unregister

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0


class Application:
    """A consumer and what it was handed: what an application would write down."""

    def __init__(self, coordinator, group_id: str, topic: str, **settings) -> None:
        self.coordinator = coordinator
        self.offsets: dict[int, list[int]] = defaultdict(list)
        self.work: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """Queue number -> from when to when the application was at work on a message of it, ns."""
        self.said: list[tuple[str, list[int]]] = []
        self._in_hand: tuple[int, int] | None = None
        self.consumer = Consumer(
            group_id,
            [topic],
            coordinator.connection.bootstrap,
            prefix=coordinator.connection.topics.prefix,
            on_assigned=lambda _, queues: self.said.append(("assigned", numbers(queues))),
            on_revoked=lambda _, queues: self.said.append(("revoked", numbers(queues))),
            **settings,
        )
        self.consumer.join()

    @property
    def name(self) -> str:
        """The client_id."""
        return self.consumer.client_id

    @property
    def queues(self) -> list[int]:
        """The numbers of the queues that are read now."""
        return numbers(self.consumer.assignment())

    def poll(self, timeout: float = 0.05) -> Message | None:
        """Be done with the last message, and take another, of a queue that it has."""
        self._put_down()
        message = self.consumer.poll(timeout)
        if message is not None:
            assert message.partition() in self.queues
            self.offsets[message.partition()].append(message.offset())
            self._in_hand = message.partition(), time.monotonic_ns()
        return message

    def leave(self) -> None:
        """End as a ``with`` block without an exception does: the last message is done."""
        self._put_down()
        self.consumer.__exit__(None, None, None)

    def crash(self) -> None:
        """Fall silent, as by a SIGKILL: no commit, no farewell."""
        self.consumer._control._stopping.set()
        self.consumer._control._thread.join()
        self.consumer._closed = True
        self.consumer._reader.close()

    def _put_down(self) -> None:
        if self._in_hand is not None:
            number, began_ns = self._in_hand
            self.work[number].append((began_ns, time.monotonic_ns()))
            self._in_hand = None

    def poll_until(self, done: Callable[[], object], *others: "Application") -> None:
        """Poll, and let others poll in turn, until something is so."""

        def poll() -> None:
            for application in (self, *others):
                application.poll(0.02)

        def state() -> tuple[object, dict[int, int]]:
            return self.said, {number: len(offsets) for number, offsets in self.offsets.items()}

        wait_until(done, "the application has polled what it should", between=poll, state=state)

    def taken(self) -> int:
        """Return how many messages it was handed."""
        return sum(len(offsets) for offsets in self.offsets.values())


class Traffic(threading.Thread):
    """Messages produced to two queues all the time."""

    def __init__(self, coordinator, topic: str) -> None:
        super().__init__(name="traffic", daemon=True)
        self.produced = 0
        """In each of the queues."""
        self._coordinator, self._topic = coordinator, topic
        self._stopping = threading.Event()

    def run(self) -> None:
        """Produce some hundred messages a second."""
        while not self._stopping.wait(0.01):
            for partition in (0, 1):
                self._coordinator.produce(self._topic, partition, 5)
            self.produced += 5

    def stop(self) -> int:
        """End; return how many there are in each queue."""
        self._stopping.set()
        self.join()
        return self.produced


def together(*applications: Application) -> dict[int, list[int]]:
    """Return what these were handed, sorted: queue number -> offsets."""
    found: dict[int, list[int]] = defaultdict(list)
    for application in applications:
        for number, offsets in application.offsets.items():
            found[number] = sorted(found[number] + offsets)
    return dict(found)


def overlaps(*applications: Application) -> list[tuple[int, int, int]]:
    """Return when two of these were at work on messages of one queue: queue number, from when, to when."""
    found = []
    for number in (0, 1):
        spans = sorted(span for application in applications for span in application.work[number])
        found += [(number, after[0], before[1]) for before, after in pairwise(spans) if after[0] < before[1]]
    return found


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def numbers(queues: list[Queue]) -> list[int]:
    return [queue.queue_id for queue in queues]


@pytest.fixture
def join(coordinator, group_id) -> Iterator[Callable[..., Application]]:
    """Make applications that are closed after the test; the earlier ones come first in the group's order too."""
    number = count()
    with ExitStack() as stack:

        def make(topic: str, **settings) -> Application:
            named = {"client_id": f"c{next(number)}-{uuid.uuid4().hex[:6]}", "consume_from": "first"}
            application = Application(coordinator, group_id, topic, **{**named, **settings})
            stack.callback(application.consumer.close)
            return application

        yield make


def test_one_consumer_gets_every_message_of_every_queue(coordinator, join):
    topic = coordinator.topic(4)
    for partition in range(4):
        coordinator.produce(topic, partition, 500)
    application = join(topic)

    application.poll_until(lambda: application.taken() == 2_000)

    assert application.said == [("assigned", [0, 1, 2, 3])]
    assert dict(application.offsets) == {partition: list(range(500)) for partition in range(4)}


def test_queues_that_stay_are_read_on_while_others_go_and_come_back(coordinator, join):
    """Without a break, without a repetition - and of those that go, nothing that was fetched ahead is handed out."""
    topic = coordinator.topic(4)
    for partition in range(4):
        coordinator.produce(topic, partition, 2_500)
    one = join(topic)
    one.poll_until(lambda: one.taken() > 100)

    two = join(topic)
    one.poll_until(lambda: two.queues and two.taken() > 100, two)
    went = [len(one.offsets[partition]) for partition in (2, 3)]
    one.poll_until(lambda: one.taken() > 2_500)
    assert one.said == [("assigned", [0, 1, 2, 3]), ("revoked", [2, 3])]
    assert [len(one.offsets[partition]) for partition in (2, 3)] == went

    two.leave()
    one.poll_until(lambda: one.taken() + two.taken() == 10_000)
    assert one.said[2:] == [("assigned", [2, 3])]
    for partition in (0, 1):
        assert one.offsets[partition] == list(range(2_500))
    for partition, before in zip((2, 3), went, strict=True):
        after = before + len(two.offsets[partition])
        assert two.offsets[partition] == list(range(before, after))
        assert one.offsets[partition] == [*range(before), *range(after, 2_500)]


def test_a_queue_is_released_when_its_handler_is_done_and_heartbeats_do_not_wait_for_it(coordinator, join, group_id):
    """Being back in poll() is the sign; until then `owned` names the queue, and the session is kept."""
    coordinator.configure(group_id, heartbeat_ms=200, session_timeout_ms=10_000)
    topic = coordinator.topic(2)
    coordinator.produce(topic, 1, 10)
    one = join(topic, client_id="a-slow")
    one.poll_until(lambda: one.taken() == 1)
    began = len(coordinator.beats("a-slow"))

    join(topic)
    wait_until(lambda: len(coordinator.beats("a-slow")) > began + 12, "more than two sessions have passed")
    at_work = coordinator.beats("a-slow")[-1]
    assert numbers(at_work.owned) == [0, 1]
    assert len(coordinator.members(group_id)) == 2
    assert one.said == [("assigned", [0, 1])]

    assert one.poll(0) is None
    wait_until(lambda: numbers(coordinator.beats("a-slow")[-1].owned) == [0], "the release is heard")
    assert one.said[1:] == [("revoked", [1])]


def test_closing_gives_the_queues_to_the_others_at_once(coordinator, join):
    topic = coordinator.topic(2)
    one, two = join(topic), join(topic)
    one.poll_until(lambda: one.queues == [0] and two.queues == [1], two)

    two.consumer.close()
    two.consumer.close()

    assert two.said == [("assigned", [1]), ("revoked", [1])]
    one.poll_until(lambda: one.queues == [0, 1])
    assert [type(event) for event in coordinator.heard if getattr(event, "client_id", "") == two.consumer.client_id][
        -1
    ] is Unregister


def test_what_goes_and_comes_back_in_good_order_is_handed_out_once(coordinator, join):
    """The promise of a cooperative hand-over: no message twice, none missed, no queue read by two - under traffic."""
    topic = coordinator.topic(2)
    traffic = Traffic(coordinator, topic)
    traffic.start()
    one = join(topic)
    one.poll_until(lambda: one.taken() > 200)
    two = join(topic)
    one.poll_until(lambda: two.taken() > 200, two)
    assert (one.queues, two.queues) == ([0], [1])

    two.leave()
    taken = one.taken()
    one.poll_until(lambda: one.queues == [0, 1] and one.taken() > taken + 200)
    produced = traffic.stop()
    one.poll_until(lambda: one.taken() + two.taken() >= 2 * produced)

    assert together(one, two) == {0: list(range(produced)), 1: list(range(produced))}
    assert overlaps(one, two) == []
    assert one.said == [("assigned", [0, 1]), ("revoked", [1]), ("assigned", [1])]
    one.leave()
    wait_until(
        lambda: coordinator.offsets(one.consumer.group_id, topic) == {0: produced, 1: produced},
        "the final commits are on record",
    )
    assert not [decision for decision in coordinator.decided if isinstance(decision, Rejected) and not decision.raw]


def test_a_crash_repeats_what_was_not_committed_and_nothing_else(coordinator, join, group_id):
    coordinator.configure(group_id, heartbeat_ms=200, session_timeout_ms=10_000)
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 100)
    one = join(topic, commit_interval=60)
    one.poll_until(lambda: one.taken() == 60)
    assert one.consumer.commit(PATIENCE_S)
    one.poll_until(lambda: one.taken() == 100)

    one.crash()
    two = join(topic)
    two.poll_until(lambda: two.taken() == 40)

    assert two.offsets[0] == list(range(60, 100))


def test_what_is_done_is_committed_in_between_and_nothing_is_said_twice(coordinator, join, group_id):
    """So a crash repeats an interval; and an idle group costs no commits."""
    coordinator.configure(group_id, heartbeat_ms=200, session_timeout_ms=10_000)
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 10)
    one = join(topic, commit_interval=0.1)
    one.poll_until(lambda: one.taken() == 10)
    wait_until(lambda: coordinator.offsets(group_id, topic) == {0: 9}, "all but the one in hand are done")
    one.poll_until(lambda: coordinator.offsets(group_id, topic) == {0: 10})

    commits, began = len(coordinator.commits(one.name)), len(coordinator.beats(one.name))
    one.poll_until(lambda: len(coordinator.beats(one.name)) > began + 5)
    assert len(coordinator.commits(one.name)) == commits


@pytest.mark.parametrize("end", [Application.leave, Application.crash])
def test_a_restart_under_the_same_name_goes_on_at_the_committed_offset(coordinator, group_id, join, end):
    """After a crash, the new life takes over when the session of the old one has ended."""
    coordinator.configure(group_id, heartbeat_ms=200, session_timeout_ms=10_000)
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 100)
    one = join(topic, client_id=f"c-{uuid.uuid4().hex[:6]}", commit_interval=60)
    one.poll_until(lambda: one.taken() == 70)
    assert one.consumer.commit(PATIENCE_S)
    one.poll_until(lambda: one.taken() == 80)

    end(one)
    again = join(topic, client_id=one.name)
    first = 80 if end is Application.leave else 70
    again.poll_until(lambda: again.taken() == 100 - first)

    assert again.offsets[0] == list(range(first, 100))


def test_who_is_too_slow_loses_the_queue_and_its_word_does_not_count(coordinator, join, group_id, caplog):
    """The revoke timeout is the one case in which a message may be at work twice; it is seen, and it is said."""
    coordinator.configure(group_id, heartbeat_ms=200, session_timeout_ms=20_000, revoke_timeout_ms=500)
    topic = coordinator.topic(2)
    coordinator.produce(topic, 1, 10)
    one = join(topic, commit_interval=60)
    one.poll_until(lambda: one.taken() == 4)
    assert one.consumer.commit(PATIENCE_S)
    one.poll_until(lambda: one.taken() == 6)

    two = join(topic)
    two.poll_until(lambda: two.taken() == 6)
    assert two.offsets[1] == list(range(4, 10))
    assert numbers(coordinator.beats(one.name)[-1].owned) == [0, 1]

    two.poll_until(lambda: "(commit): " in caplog.text, one)
    assert one.taken() == 6
    assert one.said == [("assigned", [0, 1]), ("revoked", [1])]
    assert f"commit of {one.name!r} rejected: {topic}-1: owned by {two.name!r}" in caplog.text
    two.leave()
    wait_until(lambda: coordinator.offsets(group_id, topic).get(1) == 10, "only the owner's word counts")


def test_a_queue_asked_back_and_given_to_the_same_client_again_goes_on_where_it_was(coordinator, join, group_id):
    """Somebody came and went while the handler was at work."""
    topic = coordinator.topic(2)
    coordinator.produce(topic, 1, 10)
    one = join(topic)
    one.poll_until(lambda: one.taken() == 4)
    two = join(topic)
    wait_until(lambda: len(coordinator.members(group_id)) == 2, "two has joined")
    wait_until(lambda: coordinator.beats(one.name)[-1].epoch >= 2, "one is asked")
    two.leave()
    wait_until(lambda: len(coordinator.members(group_id)) == 1, "one should keep it after all")
    assert one.said == [("assigned", [0, 1])]

    one.poll_until(lambda: one.taken() == 10)

    assert one.said[1:] == [("revoked", [1]), ("assigned", [1])]
    assert one.offsets[1] == list(range(10))


@pytest.mark.parametrize("before", [0, 10])
def test_where_a_group_begins_is_on_record_before_any_message(coordinator, join, group_id, before):
    """Or messages produced between a crash and the next consumer's `last` would be read by nobody."""
    coordinator.configure(group_id, heartbeat_ms=200, session_timeout_ms=10_000)
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, before)
    one = join(topic, consume_from="last", commit_interval=None)
    one.poll_until(lambda: coordinator.offsets(group_id, topic) == {0: before})
    assert not one.taken()

    one.crash()
    coordinator.produce(topic, 0, 5)
    two = join(topic, consume_from="last")
    two.poll_until(lambda: two.taken() == 5)

    assert two.offsets[0] == list(range(before, before + 5))


def test_an_application_that_commits_by_itself_can_do_so_when_a_queue_goes(coordinator, join, group_id):
    """It works in batches: what is unfinished is finished in on_revoked, before anybody else gets the queue."""
    topic = coordinator.topic(2)
    coordinator.produce(topic, 1, 10)
    one = join(topic, commit_interval=None)
    committed = []
    one.poll_until(lambda: one.taken() == 7)
    wait_until(lambda: coordinator.offsets(group_id, topic) == {0: 0, 1: 0}, "the beginning is on record")

    one.consumer._on_revoked = lambda _, queues: committed.append((numbers(queues), one.consumer.commit()))
    two = join(topic, commit_interval=None)
    wait_until(lambda: coordinator.beats(one.name)[-1].epoch >= 2, "one is asked")
    one.poll_until(lambda: one.taken() + two.taken() >= 10, two)

    assert committed == [([1], True)]
    assert together(one, two) == {1: list(range(10))}
    one.leave()
    assert committed == [([1], True), ([0], True)]
    two.leave()
    assert coordinator.offsets(group_id, topic)[1] == len(one.offsets[1])


@pytest.mark.parametrize(("problem", "committed"), [(None, 5), (ZeroDivisionError(), 4)])
def test_a_message_whose_handler_failed_is_not_done(coordinator, join, group_id, problem, committed):
    """A with block that ends well is done with its last message; one that ends with an exception is not."""
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 10)
    one = join(topic)
    one.poll_until(lambda: one.taken() == 5)

    one.consumer.__exit__(None if problem is None else type(problem), problem, None)

    wait_until(lambda: not coordinator.members(group_id), "it has left")
    assert coordinator.offsets(group_id, topic) == {0: committed}


def test_a_with_statement_leaves_on_an_exception_too(coordinator, group_id):
    topic = coordinator.topic(1)

    consumer = Application(coordinator, group_id, topic).consumer

    def work() -> None:
        with consumer:
            wait_until(lambda: coordinator.members(group_id), "the consumer has joined")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()

    wait_until(lambda: not coordinator.members(group_id), "the consumer has left")
    with pytest.raises(InvalidUsage, match=r"this Consumer is closed; create a new one"):
        consumer.poll()


def test_a_second_consumer_of_the_same_name_does_not_disturb_the_first(coordinator, group_id, join):
    """It waits for the end of the first one; when that proves to live on, the second one says so and stops."""
    topic = coordinator.topic(1)
    for session_ms in (10_000, 60_000):
        coordinator.configure(group_id, heartbeat_ms=200, session_timeout_ms=session_ms)
        name = f"twin-{session_ms}"
        one = join(topic, client_id=name)
        wait_until(lambda one=one: one.queues, "the first one has the queue", between=one.poll)
        two = join(topic, client_id=name)
        try:
            wait_until(lambda two=two: two.queues, "the second one is a member", between=two.poll)
        except ConsumerFenced as error:
            fenced = error
            break
        # A busy machine stops all threads of a process for 10 s and more. Then the first one has indeed ended.
        assert ("expired", "") in ends_of(coordinator, name), "two members of one name"
        one.consumer.close()
        two.consumer.close()
    else:
        pytest.fail("this process stood still for longer than a session, twice")

    assert re.search(f"client '{name}' .* uses the same client_id", str(fenced))
    assert fenced.reason == "duplicate"
    one.consumer.poll(0)
    assert (one.queues, two.said) == ([0], [])


def test_a_full_group_refuses(coordinator, join, group_id):
    coordinator.configure(group_id, max_members=1)
    topic = coordinator.topic(1)
    one = join(topic)
    one.poll_until(lambda: one.queues)
    two = join(topic)

    with pytest.raises(ConsumerFenced, match=r"max_members") as raised:
        two.poll_until(lambda: False)

    assert raised.value.reason == "refused"


@pytest.mark.parametrize(("consume_from", "first"), [("first", 0), ("last", 20), ("timestamp", 10)])
def test_a_queue_starts_where_it_is_told_to(coordinator, join, consume_from, first):
    """And what is produced after on_assigned is read, also from the end on."""
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 10)
    after_ms = now_ms()
    wait_until(lambda: now_ms() > after_ms + 50, "the clock shows another time")
    between_ms = now_ms()
    coordinator.produce(topic, 0, 10)
    at = {"consume_from_ms": between_ms} if consume_from == "timestamp" else {}
    application = join(topic, consume_from=consume_from, **at)

    application.poll_until(lambda: application.said)
    coordinator.produce(topic, 0, 10)
    application.poll_until(lambda: 29 in application.offsets[0])

    assert application.offsets[0] == list(range(first, 30))


def test_a_time_after_the_last_message_is_the_end(coordinator, join):
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 10)
    application = join(topic, consume_from="timestamp", consume_from_ms=2**42)

    application.poll_until(lambda: application.said)
    coordinator.produce(topic, 0, 10)
    application.poll_until(lambda: application.taken() == 10)

    assert application.offsets[0] == list(range(10, 20))


def test_a_position_that_is_gone_is_no_end(coordinator, join, caplog):
    """An offset beyond the end, of a log that lost its tail: the queue goes on at its end, and repeats nothing."""
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 10)
    application = join(topic)
    application.poll_until(lambda: application.taken() == 10)
    # Only what is newer than what it has is obeyed: what it has stands in its receipt.
    application.poll_until(lambda: coordinator.beats(application.consumer.client_id)[-1].epoch > 0)
    beat = coordinator.beats(application.consumer.client_id)[-1]
    elsewhere = Assignment(
        shard="elsewhere",
        seq=1,
        group_id=beat.group_id,
        client_id=beat.client_id,
        instance_id=beat.instance_id,
        epoch=beat.epoch,
        queues=[AssignedQueue(Queue(topic, "", 0), beat.epoch + 1, Start(offset=99))],
        revoke=[],
        state="stable",
        heartbeat_ms=10_000,
        session_timeout_ms=45_000,
        revoke_timeout_ms=30_000,
    )

    coordinator.tell(beat.client_id, msgspec.json.encode(elsewhere))
    application.poll_until(
        lambda: f"{topic}-0 lost its messages from 10 on; continuing there, not at 99" in caplog.text
    )
    coordinator.produce(topic, 0, 5)
    application.poll_until(lambda: application.taken() == 15)

    assert application.offsets[0] == [*range(15)]


def test_a_topic_may_come_later(coordinator, join, caplog):
    """An application may start before its producer does; it says what it waits for."""
    name = f"later-{uuid.uuid4().hex[:6]}"
    application = join(name)
    warnings = [record for record in caplog.records if record.name == "wakeroll" and record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warnings] == [
        f"no topic {name} at {coordinator.connection.bootstrap} yet; waiting for it to be created"
    ]

    coordinator.topic(2, name)
    coordinator.produce(name, 1, 1)

    application.poll_until(lambda: application.taken() == 1)


@pytest.mark.parametrize("junk", [b"", b"\xff", b"[" * 100_000, b'{"kind": "party"}', b'{"kind": "assignment"}', b"{}"])
def test_nothing_in_the_inbox_stops_a_client(coordinator, join, junk):
    """A newer coordinator may say what this version does not know; anybody may write to a topic."""
    topic = coordinator.topic(1)
    application = join(topic, client_id=f"calm-{uuid.uuid4().hex[:6]}")
    coordinator.tell(application.consumer.client_id, junk)
    coordinator.produce(topic, 0, 1)

    application.poll_until(lambda: application.taken() == 1)


def test_a_refused_event_is_logged_once_a_rule(coordinator, join, caplog):
    topic = coordinator.topic(1)
    application = join(topic, client_id=f"odd-{uuid.uuid4().hex[:6]}")
    for seq in range(1, 4):
        refusal = Rejected(shard="x", seq=seq, rule="mode", detail="no", client_id=application.consumer.client_id)
        coordinator.tell(application.consumer.client_id, msgspec.json.encode(refusal))

    application.poll_until(lambda: application.queues and "(mode): no" in caplog.text)

    assert caplog.text.count("(mode): no") == 1


def test_a_broker_without_a_control_plane_is_named(broker):
    with pytest.raises(
        NotReachable, match=r"no topic nothing\.groups at .*; is the control plane running\? .*`wakeroll up`"
    ):
        Consumer("billing", ["orders"], broker.bootstrap, prefix="nothing")


def test_threads_poll_one_after_the_other(coordinator, join):
    """Being back in poll() means that the last message is done: at once, two threads would say so for each other."""
    application = join(coordinator.topic(1))
    application.poll()
    said = []

    def poll() -> None:
        try:
            application.consumer.poll(60)
        except InvalidUsage as problem:
            said.append(str(problem))

    second = threading.Thread(target=poll, name="second")
    second.start()
    wait_until(application.consumer._polling.locked, "the second thread polls")
    with pytest.raises(InvalidUsage, match=r"^thread 'MainThread' called poll\(\) while thread 'second' is in a call"):
        application.consumer.poll(0)
    application.consumer.close()
    second.join()

    assert said == ["this Consumer is closed; create a new one"]


def test_a_consumer_may_be_closed_by_another_thread(coordinator, join):
    """A worker thread polls, the main thread ends the program: the worker hears of it at once."""
    application = join(coordinator.topic(1))
    said = []

    def work() -> None:
        try:
            while True:
                application.consumer.poll(math.inf)
        except InvalidUsage as problem:
            said.append(str(problem))

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: application.said, "the worker polls")
    application.consumer.close()
    worker.join(PATIENCE_S)

    assert said == ["this Consumer is closed; create a new one"]
    assert application.said == [("assigned", [0]), ("revoked", [0])]


def test_a_callback_may_not_poll_or_close(coordinator, group_id):
    topic = coordinator.topic(1)
    said = []

    def meddle(*_: object) -> None:
        for call in (consumer.poll, consumer.close):
            try:
                call()
            except InvalidUsage as problem:
                said.append(str(problem))

    at = coordinator.connection
    with Consumer(group_id, [topic], at.bootstrap, prefix=at.topics.prefix, on_assigned=meddle) as consumer:
        wait_until(lambda: consumer.poll(0.05) or said, "queues have come")

    assert said == [
        "poll() was called by a callback of poll(), consume() or run(); call it when that has returned",
        "close() was called during poll() or run(), by a callback or a signal handler; call it when that has returned; "
        "stop() lets run() return",
    ]


def test_a_callback_that_fails_is_heard_and_the_queue_still_goes(coordinator, join, group_id):
    """The exception is the application's own; the next poll() takes up where it stopped."""
    coordinator.configure(group_id, heartbeat_ms=200, session_timeout_ms=10_000)
    topic = coordinator.topic(2)
    one = join(topic, client_id=f"a-clumsy-{uuid.uuid4().hex[:6]}")
    one.poll_until(lambda: one.queues == [0, 1])

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    one.consumer._on_revoked = fail
    two = join(topic)
    with pytest.raises(ZeroDivisionError):
        one.poll_until(lambda: False, two)

    one.consumer._on_revoked = None
    one.poll_until(lambda: two.queues == [1], two)
    assert one.queues == [0]
    one.poll_until(lambda: numbers(coordinator.beats(one.consumer.client_id)[-1].owned) == [0], two)


def test_a_forked_process_is_told_to_make_its_own(coordinator, join):
    """A fork has a copy of the consumer without its threads: it would wait for ever."""
    application = join(coordinator.topic(1))
    application.poll_until(lambda: application.queues)

    child = os.fork()
    if child == 0:
        try:
            application.consumer.poll(0)
        except InvalidUsage as problem:
            application.consumer.close()
            os._exit(7 if "is a fork: create a new one" in str(problem) else 8)
        os._exit(9)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    application.poll()


def test_a_consumer_without_a_broker_gives_up_by_itself_and_comes_back(tmp_path, group_id, caplog):
    """It cannot know what the coordinator does; after a session without an acknowledgement it must let go."""
    with plane_of_its_own(tmp_path) as (broker, coordinator):
        coordinator.configure(group_id, heartbeat_ms=200, session_timeout_ms=10_000)
        topic = coordinator.topic(1)
        coordinator.produce(topic, 0, 10)
        one = Application(coordinator, group_id, topic, consume_from="first")
        one.poll_until(lambda: one.taken() == 10)
        lives = {beat.instance_id for beat in coordinator.beats(one.consumer.client_id)}

        broker.kill()
        killed = time.monotonic()
        one.poll_until(lambda: not one.queues)
        assert time.monotonic() - killed < 10
        assert one.said == [("assigned", [0]), ("revoked", [0])]
        assert "expired: Kafka acknowledged no heartbeat for almost 10000 ms; 1 of its queues dropped" in caplog.text

        broker.start()
        one.poll_until(lambda: one.queues == [0])
        assert coordinator.beats(one.consumer.client_id)[-1].instance_id not in lives
        one.consumer.close()


@pytest.mark.operate
def test_committing_and_closing_without_a_broker_take_bounded_time(tmp_path, group_id):
    with plane_of_its_own(tmp_path) as (broker, coordinator):
        topic = coordinator.topic(1)
        one = Application(coordinator, group_id, topic)
        one.poll_until(lambda: one.queues)
        coordinator.produce(topic, 0, 1)
        one.poll_until(lambda: one.taken() == 1)

        broker.kill()
        began = time.monotonic()
        assert not one.consumer.commit(timeout=0.5)
        one.consumer.close(timeout=2)

        assert time.monotonic() - began < 5


@pytest.mark.operate
def test_a_consumer_that_closed_without_a_broker_does_not_look_for_it_for_ever(tmp_path, group_id):
    with plane_of_its_own(tmp_path) as (broker, coordinator):
        topic = coordinator.topic(1)
        before = kafka_clients()
        one = Application(coordinator, group_id, topic)
        one.poll_until(lambda: one.queues)
        assert kafka_clients() > before

        broker.kill()
        one.consumer.close(timeout=1)

        assert kafka_clients() == before


def kafka_clients() -> int:
    """Return how many clients of Kafka this process has, by their threads."""
    return sum(name.read_text() == "rdk:main\n" for name in Path("/proc/self/task").glob("*/comm"))
