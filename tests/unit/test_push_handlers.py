"""Handlers that do what nobody expects, and what becomes of their messages and of `run`."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Message

from tests.support.systems.memory_plane import MemoryPlane, PushClient
from tests.support.waiting import wait_until
from wakeroll import DeadLetter, Retry, WakerollError, origin_of
from wakeroll.push.dispatch import Dispatch
from wakeroll.push.failure_handling import RetryRules
from wakeroll.push.limits import PushLimits
from wakeroll.push.queue_work import Part, QueueWork
from wakeroll.push.workers import workers_for
from wakeroll.retry_clock import SYSTEM_CLOCK
from wakeroll_model.client_actions import Give
from wakeroll_model.decisions import Start
from wakeroll_model.queue import Queue

MESSAGES = 20
SHARED = RetryRules(in_place=False)
IN_ORDER = RetryRules(in_place=True, is_orderly=True)


@pytest.fixture
def plane() -> MemoryPlane:
    plane = MemoryPlane(1)
    plane.produce(0, MESSAGES)
    return plane


@pytest.fixture
def let_go() -> Iterator[threading.Event]:
    """Lets blocked handlers return when the test ends."""
    event = threading.Event()
    yield event
    event.set()


def new_work() -> QueueWork:
    give = Give(Queue("orders", "", 0), Start("last", 0, None), 1, "i1")
    return QueueWork(give, 0, batch_size=1, lanes=4, orderly=False)


def messages(count: int) -> list[Message]:
    return [Message(topic="orders", partition=0, offset=offset, value=b"v") for offset in range(count)]


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_handler_may_take_its_list_apart(plane, kind):
    """`while messages: process(messages.pop(0))` is common; the messages of a failed call must not be forgotten."""
    processed: Counter[int] = Counter()

    def handle(batch: list[Message]) -> None:
        while batch:
            origin = origin_of(batch.pop(0))
            if origin.offset == 3 and origin.attempt == 1:
                raise LookupError("no such order")
            processed[origin.offset] += 1

    async def handle_async(batch: list[Message]) -> None:
        handle(batch)

    limits = PushLimits(workers=1, batch_size=4, prefetch=8)
    rules = RetryRules(in_place=False, max_retries=0)
    client = PushClient(plane, "c0", handle if kind == "threads" else handle_async, limits, rules=rules)
    wait_until(lambda: len(processed) == MESSAGES - 1 and plane.dead, "all others are processed", patience_s=20)
    client.stop()

    assert 3 in {letter.offset for letter in plane.dead}
    assert plane.offsets() == {0: MESSAGES}


def test_an_async_call_that_blocks_its_event_loop_does_not_cost_a_worker(plane):
    """It cannot be cancelled; when it returns at last, its only task ends, and another one must be there."""
    processed: set[int] = set()

    async def handle(batch: list[Message]) -> None:
        origin = origin_of(batch[0])
        if origin.offset == 3 and origin.attempt == 1:
            time.sleep(1.0)  # it is the mistake that this test is about
        processed.add(origin.offset)

    rules = RetryRules(in_place=False, max_retries=0, handle_timeout=0.2)
    client = PushClient(plane, "c0", handle, PushLimits(workers=1, batch_size=1), rules=rules)
    wait_until(lambda: len(processed) == MESSAGES, "the others are processed", state=lambda: processed, patience_s=20)
    client.stop()

    assert plane.offsets() == {0: MESSAGES}


def test_a_call_that_outlives_its_queue_is_overdue_too():
    """Its messages are not stored, because the next owner has them; but its worker must be replaced."""
    work, mine = new_work(), True
    dispatch = Dispatch(lambda _: mine, lambda *_: None, SYSTEM_CLOCK)
    dispatch.add(work, messages(1), 1)
    batch = dispatch.next(None, wait=False)
    assert batch is not None
    mine = False

    assert dispatch.overdue(-1.0) == [(batch, False)]
    assert (batch.is_overdue, batch.state, dispatch.overdue(-1.0)) == (True, "abandoned", [])


def test_a_worker_whose_call_became_overdue_as_it_returned_ends():
    """Another one has its place: otherwise each such call would add a thread."""
    work = new_work()
    dispatch = Dispatch(lambda _: True, lambda *_: None, SYSTEM_CLOCK)
    dispatch.add(work, messages(2), 2)
    batch = dispatch.next(None, wait=True)
    assert batch is not None
    dispatch.overdue(-1.0)

    assert dispatch.next(batch, wait=True) is None


def test_many_calls_that_do_not_return_do_not_delay_the_end(let_go):
    """The time to wait for threads is for all together, not for each."""
    count = 8
    dispatch = Dispatch(lambda _: True, lambda *_: None, SYSTEM_CLOCK)
    dispatch.add(new_work(), messages(count), count)
    workers = workers_for(lambda _: let_go.wait(60), count, dispatch, lambda *_: None, "w")
    workers.start()
    wait_until(lambda: len(dispatch.overdue(-1.0)) == count, "all are at work")
    dispatch.close()

    before_s = time.monotonic()
    workers.join()

    assert time.monotonic() - before_s < 4


def _handle(_: list[Message]) -> None: ...


async def _handle_async(_: list[Message]) -> None: ...


@pytest.mark.parametrize("handler", [_handle, _handle_async])
def test_workers_that_start_after_their_end_end(handler):
    """Another thread starts them, perhaps only after `run` was interrupted."""
    dispatch = Dispatch(lambda _: True, lambda *_: None, SYSTEM_CLOCK)
    workers = workers_for(handler, 2, dispatch, lambda *_: None, "late-worker")
    dispatch.close()
    workers.end()

    workers.start()

    wait_until(lambda: not [one for one in threading.enumerate() if "late-worker" in one.name], "no thread is left")


def test_no_batch_is_handed_out_after_an_error():
    dispatch = Dispatch(lambda _: True, lambda *_: None, SYSTEM_CLOCK)
    dispatch.end(SystemExit())
    dispatch.add(new_work(), messages(1), 1)

    assert dispatch.next(None, wait=False) is None


def test_a_handler_that_cancels_all_tasks_ends_the_run(plane):
    """Without its tasks the consumer would keep its queues and process nothing."""

    async def handle(_: list[Message]) -> None:
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(0)

    client = PushClient(plane, "c0", handle, PushLimits(workers=2), rules=SHARED)
    wait_until(lambda: not client.is_alive(), "the run has ended", patience_s=20)
    client.stop()

    assert isinstance(client.problem, WakerollError)
    assert plane.offsets() == {0: 0}


def test_an_idle_task_that_is_cancelled_ends_the_run(plane):
    async def handle(_: list[Message]) -> None:
        me = asyncio.current_task()
        for task in asyncio.all_tasks():
            if task is not me and "_work_until_closed" not in repr(task.get_coro()):
                task.cancel()

    client = PushClient(plane, "c0", handle, PushLimits(workers=3, batch_size=100), rules=SHARED)
    wait_until(lambda: not client.is_alive(), "the run has ended", patience_s=20)
    client.stop()

    assert "a task of run() was cancelled" in str(client.problem)


def test_system_exit_in_a_task_of_the_handler_ends_the_run(plane):
    """It ends the event loop, and must not do so silently."""
    started = []

    async def leave() -> None:
        raise SystemExit(3)

    async def handle(_: list[Message]) -> None:
        started.append(asyncio.create_task(leave()))
        await asyncio.sleep(30)

    client = PushClient(plane, "c0", handle, PushLimits(), rules=SHARED)
    wait_until(lambda: not client.is_alive(), "the run has ended", patience_s=20)
    client.stop()

    assert isinstance(client.problem, SystemExit)


def test_a_handler_that_waits_for_a_cancelled_task_has_failed(plane):
    """Nobody cancelled the call itself: it is an error like any other."""
    processed: set[int] = set()

    async def handle(batch: list[Message]) -> None:
        origin = origin_of(batch[0])
        if origin.offset == 3:
            other = asyncio.create_task(asyncio.sleep(30))
            other.cancel()
            await other
        processed.add(origin.offset)

    rules = RetryRules(in_place=False, max_retries=0)
    client = PushClient(plane, "c0", handle, PushLimits(batch_size=1), rules=rules)
    wait_until(lambda: plane.offsets() == {0: MESSAGES}, "every message has ended", patience_s=20)
    client.stop()

    assert client.problem is None
    assert [(letter.offset, letter.error) for letter in plane.dead] == [(3, "CancelledError")]
    assert processed == set(range(MESSAGES)) - {3}


def test_a_hand_over_in_order_repeats_nothing_before_the_failed_message(plane):
    """Messages of the call before it are processed or dead: they must be neither processed nor dead twice."""
    processed: Counter[int] = Counter()
    fails = {"c0"}

    def handler_of(name: str):
        def handle(batch: list[Message]) -> object:
            outcomes: list[Retry | DeadLetter] = []
            for message in batch:
                offset = origin_of(message).offset
                if offset == 1 or (offset == 3 and name not in fails):
                    outcomes.append(DeadLetter([message], "hopeless"))
                elif offset >= 2 and name in fails:
                    outcomes.append(Retry(18, [message]) if offset == 2 else DeadLetter([message], "hopeless"))
                else:
                    processed[offset] += 1
            return outcomes

        return handle

    limits = PushLimits(batch_size=8)
    first = PushClient(plane, "c0", handler_of("c0"), limits, orderly=True, rules=IN_ORDER)
    wait_until(lambda: plane.failures, "the first client fails")
    first.stop()
    second = PushClient(plane, "c1", handler_of("c1"), limits, orderly=True, rules=IN_ORDER)
    wait_until(lambda: plane.offsets() == {0: MESSAGES}, "every message has ended", patience_s=20)
    second.stop()

    assert set(processed.values()) == {1}
    assert Counter(letter.offset for letter in plane.dead) == {1: 1, 3: 1}


def test_a_batch_that_waits_for_its_next_attempt_does_not_hide_another_one():
    """Its first message is now a later one; the oldest unprocessed message is that of the other batch."""
    work = QueueWork(new_work().give, 0, batch_size=4, lanes=1, orderly=False)
    keyed = [Message(topic="orders", offset=at, key=b"k" if at in (0, 5) else None, value=b"v") for at in range(6)]
    first, second = work.add(keyed, 6)
    for batch in (first, second):
        work.begin(batch)
    work.fail(first)

    assert len(work.divide(first, [Part([keyed[5]], 2)])) == 1
    assert work.position == 1
    work.finish(second)
    assert work.position == 5
