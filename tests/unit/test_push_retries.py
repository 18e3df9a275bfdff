"""Retries and dead letters, with several clients on the real coordinator in memory."""

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from random import Random

import pytest
from confluent_kafka import Message

from tests.support.systems.memory_plane import GROUP, MemoryPlane, PushClient
from tests.support.waiting import wait_until
from wakeroll import DeadLetter, InvalidUsage, Origin, Retry, origin_of
from wakeroll.push.failure_handling import RetryRules
from wakeroll.push.limits import PushLimits
from wakeroll_model.retry_topics import retry_topic_of

QUEUES = 3
MESSAGES = 60
"""Per queue."""
SHARED = RetryRules(in_place=False)
IN_ORDER = RetryRules(in_place=True, is_orderly=True)
ONE_BY_ONE = PushLimits(workers=4, batch_size=1)

Place = tuple[int, int]
"""Queue number and offset of a message in its own topic."""


class Application:
    """A handler, used by all clients: what was processed, and what failed when."""

    def __init__(self, plane: MemoryPlane, judge: Callable[[Origin, Message], object]) -> None:
        """`judge` returns the outcome of each message, or raises."""
        self.processed: Counter[Place] = Counter()
        self.attempts: dict[Place, list[Origin]] = defaultdict(list)
        self.times_s: dict[Place, list[float]] = defaultdict(list)
        self.order: dict[int, list[int]] = defaultdict(list)
        self.faults: list[str] = []
        self._judge = judge
        self._plane = plane
        self._lock = threading.Lock()
        plane.on_commit = self._check

    def __call__(self, messages: list[Message]) -> object:
        """Handle a batch: the outcome of each message that failed."""
        outcomes = []
        for message in messages:
            origin = origin_of(message)
            place = origin.partition, origin.offset
            with self._lock:
                self.attempts[place].append(origin)
                self.times_s[place].append(time.monotonic())
            outcome = self._judge(origin, message)
            with self._lock:
                if outcome is None:
                    self.processed[place] += 1
                    self.order[origin.partition].append(origin.offset)
                else:
                    outcomes.append(outcome)
        return outcomes or None

    def ended(self) -> set[Place]:
        """Return the messages that are processed, or dead."""
        # Not under the lock: `_check` takes it while the plane's is held.
        dead = {(letter.partition, letter.offset) for letter in self._plane.dead}
        with self._lock:
            return set(self.processed) | dead

    def is_complete(self) -> bool:
        """Return whether every message of every queue is processed or dead."""
        return len(self.ended()) == QUEUES * MESSAGES

    def _check(self, number: int, offset: int) -> None:
        stored = {
            (origin.partition, origin.offset) for origin in map(origin_of, self._plane.messages(retry_topic_of(GROUP)))
        }
        ended = self.ended() | stored
        missing = [at for at in range(offset) if (number, at) not in ended]
        if missing:
            self.faults.append(f"queue {number} is committed up to {offset} without {missing[:3]}")


@pytest.fixture
def plane() -> MemoryPlane:
    plane = MemoryPlane(QUEUES)
    for number in range(QUEUES):
        plane.produce(number, MESSAGES, keys=5)
    return plane


@pytest.mark.parametrize("seed", range(3))
def test_while_clients_come_and_go_every_failed_message_is_retried_until_it_is_processed_or_dead(plane, seed):
    rng = Random(seed)
    failures = {(number, at): rng.choice([0, 0, 0, 1, 2]) for number in range(QUEUES) for at in range(MESSAGES)}
    hopeless = {place for place in failures if rng.random() < 0.03}

    def judge(origin: Origin, message: Message) -> object:
        time.sleep(0.001)
        place = origin.partition, origin.offset
        if place in hopeless:
            return DeadLetter([message], "no such customer")
        return Retry(1, [message], "no such order") if origin.attempt <= failures[place] else None

    application = Application(plane, judge)
    plane.store_delay_s = lambda: rng.random() * 0.1
    limits = PushLimits(workers=3, batch_size=rng.choice([1, 8]))
    clients = [PushClient(plane, f"c{number}", application, limits, rules=SHARED) for number in range(2)]
    for number in range(2, 6):
        time.sleep(rng.random() * 0.4)  # not a wait for anything: the moment of the change is what is drawn
        clients.pop(rng.randrange(len(clients))).stop()
        clients.append(PushClient(plane, f"c{number}", application, limits, rules=SHARED))
    wait_until(application.is_complete, "every message has ended", state=application.ended)
    for client in clients:
        client.stop()

    assert application.faults == []
    assert set(application.processed.values()) == {1}
    assert {(letter.partition, letter.offset) for letter in plane.dead} == hopeless
    assert len(plane.dead) == len(hopeless)
    for place, origins in application.attempts.items():
        assert [origin.attempt for origin in origins] == list(
            range(1, failures[place] + 2 if place not in hopeless else 2)
        )
        assert {origin.topic for origin in origins} == {"orders"}
        assert len({origin.trace_id for origin in origins[1:]}) <= 1
    assert plane.offsets() == dict.fromkeys(range(QUEUES), MESSAGES)
    assert sum(one.messages for one in plane.failures if one.outcome == "retry") == sum(
        count for place, count in failures.items() if place not in hopeless
    )
    assert sum(one.messages for one in plane.failures if one.outcome == "dead") == len(hopeless)


def test_a_message_is_not_retried_before_it_is_due(plane):
    application = Application(
        plane, lambda origin, message: Retry(1, [message]) if origin.offset < 5 and origin.attempt == 1 else None
    )
    client = PushClient(plane, "c0", application, PushLimits(), rules=SHARED)
    wait_until(application.is_complete, "every message is processed")
    client.stop()

    waits_s = [later - first for first, *rest in application.times_s.values() for later in rest]
    assert len(waits_s) == 5 * QUEUES
    assert min(waits_s) >= 0.99  # the clock of timestamps has milliseconds


def test_after_the_last_retry_a_message_is_a_dead_letter(plane):
    def judge(origin: Origin, message: Message) -> object:
        if origin.offset == 7:
            if origin.attempt < 3:
                return Retry(1, [message])
            raise LookupError("no such order")
        return None

    application = Application(plane, judge)
    client = PushClient(plane, "c0", application, ONE_BY_ONE, rules=RetryRules(in_place=False, max_retries=2))
    wait_until(application.is_complete, "every message has ended")
    client.stop()

    assert sorted((letter.partition, letter.offset) for letter in plane.dead) == [
        (number, 7) for number in range(QUEUES)
    ]
    assert {(letter.attempt, letter.error) for letter in plane.dead} == {(3, "LookupError: no such order")}
    assert {letter.client_id for letter in plane.dead} == {"c0"}


def test_in_order_the_queue_waits_for_a_failed_message_and_other_queues_do_not(plane):
    is_mended = threading.Event()

    def judge(origin: Origin, _: Message) -> object:
        if (origin.partition, origin.offset) == (0, 10) and not is_mended.is_set():
            raise LookupError("no such order")
        return None

    application = Application(plane, judge)
    client = PushClient(plane, "c0", application, PushLimits(batch_size=4), orderly=True, rules=IN_ORDER)
    wait_until(lambda: len(application.attempts[0, 10]) > 1, "the message is retried")
    wait_until(lambda: len(application.order[1]) == MESSAGES, "another queue goes on")
    blocked = max(application.order[0])
    is_mended.set()
    wait_until(application.is_complete, "every message is processed")
    client.stop()

    assert blocked < 10 or blocked == 9
    assert application.faults == []
    # A call that fails is repeated as a whole; so the first occurrence of each offset is what is in order.
    assert list(dict.fromkeys(application.order[0])) == list(range(MESSAGES))
    assert plane.dead == []
    assert plane.offsets() == dict.fromkeys(range(QUEUES), MESSAGES)


def test_in_order_only_the_messages_from_the_first_failed_one_on_are_repeated(plane):
    application = Application(
        plane,
        lambda origin, message: (
            Retry(1, [message]) if origin.offset == 2 and len(application.attempts[origin.partition, 2]) == 1 else None
        ),
    )
    client = PushClient(plane, "c0", application, PushLimits(batch_size=4), orderly=True, rules=IN_ORDER)
    wait_until(application.is_complete, "every message is processed")
    client.stop()

    for number in range(QUEUES):
        assert application.order[number] == [0, 1, 3, 2, 3, *range(4, MESSAGES)]


def test_in_order_a_dead_letter_does_not_block_its_queue(plane):
    def judge(origin: Origin, message: Message) -> object:
        return DeadLetter([message], "cannot be parsed") if origin.offset == 2 else None

    application = Application(plane, judge)
    client = PushClient(plane, "c0", application, PushLimits(batch_size=4), orderly=True, rules=IN_ORDER)
    wait_until(application.is_complete, "every message has ended")
    client.stop()

    for number in range(QUEUES):
        assert application.order[number] == [at for at in range(MESSAGES) if at != 2]
    assert len(plane.dead) == QUEUES


def test_in_order_a_queue_with_a_failed_message_is_handed_over_at_once(plane):
    """The next owner tries it again: the failing client must not keep the queue for as long as its handler fails."""
    fails = {"c0"}

    def handler_of(name: str) -> Callable[[list[Message]], object]:
        def handle(messages: list[Message]) -> object:
            if name in fails:
                raise LookupError("the disk of this machine is full")
            return application(messages)

        return handle

    application = Application(plane, lambda _origin, _message: None)
    first = PushClient(plane, "c0", handler_of("c0"), PushLimits(), orderly=True, rules=IN_ORDER)
    wait_until(lambda: len(plane.failures) >= QUEUES, "the first client fails")
    second = PushClient(plane, "c1", handler_of("c1"), PushLimits(), orderly=True, rules=IN_ORDER)
    wait_until(lambda: application.order, "the second client has a queue and processes it")
    first.stop()
    wait_until(application.is_complete, "every message is processed")
    second.stop()

    assert all(offsets == list(range(MESSAGES)) for offsets in application.order.values())


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_call_that_never_returns_counts_as_failed_and_does_not_stop_the_others(plane, kind):
    """Its messages are retried; the worker that has it is replaced, so that one worker is enough."""
    let_go = threading.Event()

    def judge(origin: Origin, _: Message) -> object:
        if origin.offset == 3 and origin.attempt == 1:
            let_go.wait(60)
        return None

    application = Application(plane, judge)

    async def handle(messages: list[Message]) -> object:
        if any(origin.offset == 3 and origin.attempt == 1 for origin in map(origin_of, messages)):
            await asyncio.sleep(3_600)
        return application(messages)

    handler = application if kind == "threads" else handle
    rules = RetryRules(in_place=False, handle_timeout=0.2)
    # Three calls block, one per queue: as many workers as that leaves one of the replacements to go on.
    limits = PushLimits(workers=3, batch_size=1)
    client = PushClient(plane, "c0", handler, limits, rules=rules)
    wait_until(lambda: len(plane.failures) >= QUEUES, "the calls count as failed")
    others = {(number, at) for number in range(QUEUES) for at in range(MESSAGES)} - {(n, 3) for n in range(QUEUES)}
    wait_until(lambda: others <= set(application.processed), "the other messages are processed", state=plane.offsets)
    wait_until(lambda: plane.offsets() == dict.fromkeys(range(QUEUES), MESSAGES), "the offsets pass them")
    let_go.set()
    client.stop()

    assert {one.error for one in plane.failures} == {"the call did not return within 0.2 s"}
    assert application.faults == []


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (False, "the handler returned False; it must return None, Retry, DeadLetter, or a list of these"),
        ([Retry(), 7], "the handler returned 7; it must return None, Retry, DeadLetter, or a list of these"),
        (Retry(messages=[Message(offset=3)]), "a message in it is not of this call"),
        ([Retry(), DeadLetter()], "twice, as failed"),
    ],
)
def test_a_result_that_means_nothing_ends_the_run_with_an_error(plane, result, problem):
    """To take `False` for success would lose messages, to take a count for failure would retry them all."""
    client = PushClient(plane, "c0", lambda _: result, PushLimits(), rules=SHARED)
    wait_until(lambda: not client.is_alive(), "the run has ended")
    client.stop()

    assert isinstance(client.problem, InvalidUsage)
    assert problem in str(client.problem)
    assert plane.offsets() == dict.fromkeys(range(QUEUES), 0)


class Unreadable(Exception):
    """An exception whose text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("problem", "error"),
    [
        (Unreadable(), "Unreadable: its text cannot be read"),
        (LookupError("\ud800"), "LookupError: ?"),
        (LookupError("x" * 10_000), "LookupError: " + "x" * 1_011),
        (LookupError(), "LookupError"),
    ],
)
def test_whatever_the_text_of_an_exception_is_its_message_is_retried(plane, problem, error):
    def judge(origin: Origin, _: Message) -> object:
        if origin.attempt == 1 and origin.offset == 0:
            raise problem
        return None

    application = Application(plane, judge)
    client = PushClient(plane, "c0", application, ONE_BY_ONE, rules=RetryRules(in_place=False, max_retries=0))
    wait_until(application.is_complete, "every message has ended")
    client.stop()

    assert client.problem is None
    assert {letter.error for letter in plane.dead} == {error}
    assert {one.error for one in plane.failures} == {error[:256]}  # a report has no room for more


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Retry(19), "level is 19; it must be 1 to 18, or 0 to choose by the attempt"),
        (lambda: Retry("high"), "level is 'high'"),
        (lambda: Retry(messages=7), "messages is 7; it must be a list of messages, or None"),
        (lambda: DeadLetter(messages=iter([])), "it must be a list of messages, or None"),
        (lambda: DeadLetter(reason=b"no"), "reason is b'no'"),
    ],
)
def test_an_outcome_that_cannot_be_is_refused_where_it_is_made(make, sentence):
    with pytest.raises(InvalidUsage) as refused:
        make()

    assert sentence in str(refused.value)
