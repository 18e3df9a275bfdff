"""An exception comes at any line, as that of a signal handler does: no message is lost, and nothing is left behind.

Each program runs again and again, and is interrupted a line later each time. It goes on as an application would: it
calls the interrupted method again. `INTERRUPTS_STEP=1` interrupts at every line; otherwise some of them are left out.
"""

import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Message

from tests.support.interrupts import Interrupt, Interrupted, at_every_line
from tests.support.waiting import wait_until
from wakeroll import Consumer
from wakeroll.held_locks import free
from wakeroll.testing import MemoryBroker
from wakeroll_model.queue import Queue

STEP = int(os.environ.get("INTERRUPTS_STEP", "23"))
QUEUES = [Queue("orders", "", number) for number in range(2)]
MESSAGES = 5
"""Of each queue."""
WORKERS, BATCH = 2, 2
IN_CALLS = WORKERS * BATCH
ALL = {(queue.queue_id, offset) for queue in QUEUES for offset in range(MESSAGES)}


@pytest.fixture(scope="module")
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        broker.create_topic("orders", queues=len(QUEUES))
        for queue in QUEUES:
            for offset in range(MESSAGES):
                broker.send("orders", str(offset), queue=queue.queue_id)
        yield broker


class Application:
    """A program that goes on after an interrupt, and knows which messages it has processed."""

    def __init__(self, broker: MemoryBroker, group_id: str, interrupted: Interrupted, **settings: Any) -> None:
        self.processed: set[tuple[int, int]] = set()
        self.assigned: set[Queue] = set()
        self._broker = broker
        self._interrupted = interrupted
        self._group_id = group_id
        self._lock = threading.Lock()
        self.consumer = Consumer(
            group_id,
            ["orders"],
            broker.bootstrap,
            consume_from="first",
            on_assigned=lambda _, queues: self.assigned.update(queues),
            on_revoked=lambda _, queues: self.assigned.difference_update(queues),
            **settings,
        )

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the consumer until it is not interrupted."""
        while True:
            try:
                return self._interrupted.call(getattr(self.consumer, name), *arguments, **named)
            except Interrupt:
                continue

    def poll(self) -> None:
        """Process all messages, one by one."""
        while self.processed != ALL:
            if (message := self.call("poll", 0.5)) is not None:
                self.handle([message])

    def run(self, *, is_async: bool = False, **options: Any) -> None:
        """Process all messages in calls of a handler."""
        handler = self.handle_async if is_async else self.handle
        while self.processed != ALL:
            with suppress(Interrupt):
                run = self.consumer.run
                self._interrupted.call(run, handler, workers=WORKERS, batch_size=BATCH, stop_timeout=5.0, **options)

    def handle(self, messages: list[Message]) -> None:
        assert all(Queue("orders", "", message.partition() or 0) in self.assigned for message in messages)
        with self._lock:
            self.processed.update((message.partition() or 0, message.offset() or 0) for message in messages)
            if self.processed == ALL:
                self.consumer.stop()

    async def handle_async(self, messages: list[Message]) -> None:
        self.handle(messages)

    def check(self) -> None:
        """Check that nothing is committed that was not processed."""
        for queue, offset in self._broker.committed(self._group_id).items():
            missing = {(queue.queue_id, number) for number in range(offset)} - self.processed
            assert not missing, f"{self._interrupted.where}: committed and not processed: {sorted(missing)}"

    def leave(self, *, committed: bool = True) -> None:
        self.call("close")
        self.check()
        if committed:
            assert self._broker.committed(self._group_id) == dict.fromkeys(QUEUES, MESSAGES), self._interrupted.where
        nothing_is_left(self._broker, self._group_id, self._interrupted)

    def hand_over(self) -> None:
        """Leave, and let the next member process what was in calls that the interrupt did not wait for."""
        self.leave(committed=False)
        committed = self._broker.committed(self._group_id)
        left = {(queue.queue_id, offset) for queue in QUEUES for offset in range(committed.get(queue, 0), MESSAGES)}
        assert len(left) <= IN_CALLS, self._interrupted.where
        with Consumer(self._group_id, ["orders"], self._broker.bootstrap, consume_from="first") as consumer:
            while left:
                message = wait_until(lambda: consumer.poll(0.5), "a message that was not committed")
                left.remove((message.partition(), message.offset()))


def nothing_is_left(broker: MemoryBroker, group_id: str, interrupted: Interrupted) -> None:
    where = interrupted.where
    wait_until(lambda: not broker.assignment(group_id), f"{where}: no member is left")
    wait_until(lambda: not our_threads(), f"{where}: no thread is left", state=lambda: str(our_threads()))


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("wakeroll")]


def test_poll(broker):
    """An interrupted call has returned nothing, so its message comes again."""
    for number, interrupted in enumerate(at_every_line(STEP)):
        application = Application(broker, f"poll-{number}", interrupted)
        application.poll()
        application.consumer.poll(0)
        application.leave()


def test_commit_seek_and_put_back(broker):
    """They are interrupted beside `poll`, which then delivers what the application wants."""
    for number, interrupted in enumerate(at_every_line(STEP)):
        application = Application(broker, f"commit-{number}", interrupted)
        wait_until(lambda: application.consumer.poll(0.5), "a message")  # noqa: B023 - it is called at once
        application.call("put_back")
        application.call("commit")
        application.check()
        application.poll()
        application.call("seek", QUEUES[1], 2)
        again = application.consumer.poll(5)
        assert (again.partition(), again.offset()) == (1, 2), interrupted.where
        while application.consumer.poll(0) is not None:
            pass
        assert application.call("commit")
        application.leave()


def test_run(broker):
    """Ctrl-C in the thread of `run`, also while it waits for the last calls; `run` is called again."""
    for number, interrupted in enumerate(at_every_line(STEP)):
        application = Application(broker, f"run-{number}", interrupted)
        application.run()
        application.hand_over()


def test_run_with_an_asynchronous_handler(broker):
    """The thread of its event loop may start after `run` has been interrupted."""
    for number, interrupted in enumerate(at_every_line(STEP)):
        application = Application(broker, f"async-{number}", interrupted)
        application.run(is_async=True)
        application.hand_over()


def test_run_in_order_without_retries(broker):
    for number, interrupted in enumerate(at_every_line(3 * STEP)):
        application = Application(broker, f"ordered-{number}", interrupted, orderly=True)
        application.run(on_error="raise")
        application.hand_over()


def test_poll_after_an_interrupted_run(broker):
    """The application may change over; no worker is left, and no message."""
    for number, interrupted in enumerate(at_every_line(3 * STEP)):
        application = Application(broker, f"both-{number}", interrupted)
        try:
            interrupted.call(application.consumer.run, application.handle, workers=2, batch_size=1, stop_timeout=5.0)
        except Interrupt:
            application.poll()
            application.consumer.poll(0)
        application.leave()


def test_close(broker):
    """A second Ctrl-C interrupts it; if nobody calls it again, the member leaves all the same."""
    for number, interrupted in enumerate(at_every_line(STEP)):
        application = Application(broker, f"close-{number}", interrupted)
        wait_until(lambda: application.consumer.poll(0.5), "a message")  # noqa: B023 - it is called at once
        application.leave(committed=False)


def test_the_end_of_a_with_block(broker):
    """Nobody calls `close` again, and the program goes on without the consumer."""
    for number, interrupted in enumerate(at_every_line(5 * STEP)):
        application = Application(broker, f"with-{number}", interrupted)
        with application.consumer:
            application.poll()
            entered = application.consumer
            interrupted_exit(interrupted, entered)
        del entered
        application.check()
        del application
        gc.collect()
        nothing_is_left(broker, f"with-{number}", interrupted)


def interrupted_exit(interrupted: Interrupted, consumer: Consumer) -> None:
    try:
        interrupted.call(consumer.__exit__, None, None, None)
    except Interrupt:
        consumer._has_left = True  # the program does not call it again


def test_the_constructor(broker):
    """The application has no consumer that it could close."""
    for number, interrupted in enumerate(at_every_line(3 * STEP)):
        try:
            consumer = interrupted.call(Consumer, f"new-{number}", ["orders"], broker.bootstrap)
        except Interrupt:
            consumer = None
        if consumer is not None:
            consumer.close()
        del consumer
        gc.collect()
        nothing_is_left(broker, f"new-{number}", interrupted)


def test_fetch(broker):
    """The application fetches again from the same offset; it may wait for messages meanwhile."""
    with Consumer("fetch", ["orders"], broker.bootstrap, consume_from="first") as consumer:
        for interrupted in at_every_line(STEP):
            fetched = None
            while fetched is None:
                try:
                    fetched = interrupted.call(consumer.fetch, QUEUES[0], MESSAGES - 2, 0.1)
                    messages = [message.offset() for message in fetched.messages]
                    assert (messages, fetched.next_offset) == ([MESSAGES - 2, MESSAGES - 1], MESSAGES)
                    fetched = interrupted.call(consumer.fetch, QUEUES[0], MESSAGES, 0.01)
                    assert fetched == ([], MESSAGES)
                except Interrupt:
                    fetched = None


def test_a_call_that_may_be_interrupted_leaves_the_trace_function_that_there_was():
    """`make coverage` has one: without it, the later tests of the process would count for nothing."""
    before = sys.gettrace()

    def trace(*_: object) -> None:
        pass

    sys.settrace(trace)
    try:
        Interrupted(1).call(len, "")
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)


def test_an_interrupt_leaves_no_exception_to_the_tests_behind_it():
    """One that a `with` block suppresses would be named as the reason of every later failure in this process."""
    for interrupted in at_every_line(1):
        with suppress(Interrupt):
            interrupted.call(free, threading.RLock())

        assert sys.exc_info() == (None, None, None), interrupted.where
