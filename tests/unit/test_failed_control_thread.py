"""The thread that receives decisions fails: calls that wait for it end with its exception, not with their timeout."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.waiting import wait_until
from wakeroll import Consumer, WakerollError
from wakeroll.testing import MemoryBroker

LONG_S = 600.0
"""Longer than a test may take."""


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        broker.create_topic("orders")
        broker.send("orders", b"1")
        yield broker


@pytest.fixture
def consumer(broker: MemoryBroker) -> Iterator[Consumer]:
    """A consumer that has a message, and receives no acknowledgement any more."""
    consumer = Consumer("billing", ["orders"], broker.bootstrap, consume_from="first", commit_interval=None)
    wait_until(lambda: consumer.poll(0.1) is not None, "a message")
    broker._log.receipt_delay_s = lambda _topic: LONG_S
    yield consumer
    consumer.close(0)


def fail(consumer: Consumer) -> None:
    """Let the control thread fail at its next step, as by a fault of ours or a fatal error of Kafka's client."""

    def broken(_timeout: float) -> Any:
        raise MemoryError("no memory for decisions")

    consumer._control._inbox.poll = broken


def in_a_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    problems: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, problems


def test_a_commit_under_way_fails_at_once(consumer):
    """Nobody would hear its acknowledgement, and its caller would wait for the whole timeout."""
    consumer._polled.confirm()  # as `commit` does, which only the thread that polls may call
    thread, problems = in_a_thread(lambda: consumer._control.commit(LONG_S))
    wait_until(lambda: bool(consumer._control._waiting), "the commit waits")

    fail(consumer)

    wait_until(lambda: not thread.is_alive(), "the commit has ended")
    assert [str(problem) for problem in problems] == [
        "the control thread failed: MemoryError('no memory for decisions')"
    ]
    assert isinstance(problems[0], WakerollError)
    assert isinstance(problems[0].__cause__, MemoryError)


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: consumer.commit(LONG_S),
        lambda consumer: consumer.poll(LONG_S),
        lambda consumer: consumer.run(print),
        lambda consumer: consumer.fetch(("orders", 0), 1, LONG_S),
    ],
    ids=["commit", "poll", "run", "fetch"],
)
def test_a_later_call_fails_at_once_too(consumer, call):
    fail(consumer)
    wait_until(lambda: consumer._control._failure is not None, "the control thread has failed")

    with pytest.raises(WakerollError, match=r"^the control thread failed: "):
        call(consumer)
