"""A paused group: its consumers keep their queues, and hand out nothing until it is resumed."""

import threading
from collections.abc import Iterator

import pytest

from tests.support.waiting import wait_until
from wakeroll import Admin, Consumer, InvalidUsage
from wakeroll.testing import MemoryBroker


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        broker.create_topic("orders", 2)
        yield broker


@pytest.fixture
def admin(broker: MemoryBroker) -> Iterator[Admin]:
    with Admin(broker.bootstrap) as admin:
        yield admin


def knows(consumer: Consumer, *, is_paused: bool) -> bool:
    return consumer._control.is_paused is is_paused


def test_poll_returns_nothing_while_the_group_is_paused(broker, admin):
    """The messages wait; the consumer keeps its queues, and a queue that is assigned meanwhile is not read either."""
    with Consumer("billing", ["orders"], broker.bootstrap, consume_from="first") as one:
        wait_until(lambda: len(one.assignment()) == 2, "it has both queues", between=lambda: one.poll(0.01))
        assert admin.pause("billing", reason="flood", by="mia") == "paused by mia: flood"
        wait_until(lambda: knows(one, is_paused=True), "it learns that", between=lambda: one.poll(0.01))
        for number in range(6):
            broker.send("orders", b"%d" % number, queue=number % 2)
        assert [one.poll(0.05) for _ in range(5)] == [None] * 5
        with Consumer("billing", ["orders"], broker.bootstrap, consume_from="first") as two:

            def both() -> None:
                assert one.poll(0.01) is None
                assert two.poll(0.01) is None

            wait_until(lambda: [len(each.assignment()) for each in (one, two)] == [1, 1], "each has one", between=both)
            for _ in range(5):
                both()
            admin.resume("billing", by="mia")
            values: list[bytes] = []

            def read() -> None:
                values.extend(message.value() for each in (one, two) if (message := each.poll(0.01)) is not None)

            wait_until(lambda: len(values) == 6, "they read the messages", between=read)
            assert sorted(values) == [b"%d" % number for number in range(6)]


def test_run_hands_nothing_to_the_handler_while_the_group_is_paused(broker, admin):
    """Messages that were read ahead wait as well; the call that is at work goes on, and nothing is handled twice."""
    handled: list[bytes] = []
    began, goes_on = threading.Event(), threading.Event()

    def handle(messages) -> None:
        began.set()
        assert goes_on.wait(30)
        handled.extend(message.value() for message in messages)

    for number in range(20):
        broker.send("orders", b"%d" % number, queue=0)
    with Consumer("billing", ["orders"], broker.bootstrap, consume_from="first") as consumer:
        running = threading.Thread(target=lambda: consumer.run(handle, workers=1, batch_size=1))
        running.start()
        try:
            wait_until(began.is_set, "the handler is at work")
            admin.pause("billing")
            wait_until(lambda: knows(consumer, is_paused=True), "it learns that")
            dispatch = consumer._loop._dispatch
            wait_until(lambda: dispatch._is_paused, "nothing is handed out")
            goes_on.set()
            wait_until(lambda: handled == [b"0"], "the call at work ends")
            broker.send("orders", b"20", queue=0)
            wait_until(lambda: not dispatch._calls, "no call is at work")
            assert handled == [b"0"]
            admin.resume("billing")
            wait_until(lambda: len(handled) == 21, "the others are handled")
            assert sorted(handled, key=int) == [b"%d" % number for number in range(21)]
        finally:
            goes_on.set()
            consumer.stop()
            running.join()


def test_fetch_returns_nothing_while_the_group_is_paused(broker, admin):
    broker.send("orders", b"1", queue=0)
    with Consumer("billing", ["orders"], broker.bootstrap) as consumer:
        wait_until(lambda: consumer.assignment(), "it is a member", between=lambda: consumer.poll(0.01))
        admin.pause("billing")
        wait_until(lambda: knows(consumer, is_paused=True), "it learns that", between=lambda: consumer.poll(0.01))
        assert consumer.fetch(("orders", 0), 0, 0.2) == ([], 0)
        admin.resume("billing")
        [message] = consumer.fetch(("orders", 0), 0, 20).messages
        assert message.value() == b"1"


def test_a_pause_that_changes_nothing_is_refused(broker, admin):
    with pytest.raises(InvalidUsage, match=r"\(pause\): there is no group 'billing'"):
        admin.pause("billing")
    with Consumer("billing", ["orders"], broker.bootstrap) as consumer:
        wait_until(lambda: consumer.assignment(), "it is a member", between=lambda: consumer.poll(0.01))
        with pytest.raises(InvalidUsage, match=r"\(pause\): group 'billing' is not paused"):
            admin.resume("billing")
        admin.pause("billing", by="mia")
        with pytest.raises(InvalidUsage, match=r"\(pause\): group 'billing' is paused already, by mia"):
            admin.pause("billing")
