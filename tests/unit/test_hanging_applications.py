"""Members whose application hangs leave, so that others get their queues, and come back when it reads again."""

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.waiting import wait_until
from wakeroll import Consumer, InvalidUsage
from wakeroll.testing import MemoryBroker
from wakeroll_model.queue import Queue

QUEUES = [Queue("orders", "", number) for number in range(4)]


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(real_time=True) as broker:
        broker.create_topic("orders", queues=len(QUEUES))
        yield broker


def owners(broker: MemoryBroker) -> dict[str, list[Queue]]:
    return {client_id: queues for client_id, queues in broker.assignment("billing").items() if queues}


def consumer_of(broker: MemoryBroker, client_id: str, **settings: object) -> Consumer:
    return Consumer("billing", ["orders"], broker.bootstrap, client_id=client_id, consume_from="first", **settings)  # type: ignore[arg-type]


# --- poll ---


def test_an_application_that_does_not_poll_loses_its_queues_until_it_does(broker: MemoryBroker, caplog):
    for queue in QUEUES:
        broker.send("orders", "paid", queue=queue.queue_id)
    with caplog.at_level(logging.WARNING, logger="wakeroll"), consumer_of(broker, "c1", poll_timeout=1) as hangs:
        message = wait_until(lambda: hangs.poll(0.1), "a message")
        wait_until(lambda: not owners(broker), "it has left")
        [line] = [said.getMessage() for said in caplog.records if "leaves until" in said.getMessage()]
        assert "client 'c1' of group 'billing'" in line
        assert "it has not polled for" in line
        assert f"its last message is offset 0 of orders-{message.partition()}" in line
        assert "test_an_application_that_does_not_poll" in line  # its stack

        with consumer_of(broker, "c2") as other:
            wait_until(lambda: other.poll(0.1) is not None and len(owners(broker)["c2"]) == 4, "the other has them")
            hangs.poll(0)
            wait_until(
                lambda: len(owners(broker).get("c1", [])) == 2, "it is back", between=lambda: poll_both(hangs, other)
            )


def poll_both(*consumers: Consumer) -> None:
    for consumer in consumers:
        consumer.poll(0.05)


def test_an_application_in_a_long_poll_does_not_hang(broker: MemoryBroker):
    with consumer_of(broker, "c1", poll_timeout=1) as consumer:
        assert consumer.poll(3) is None
        assert set(owners(broker)) == {"c1"}


def test_an_application_that_fetches_does_not_hang(broker: MemoryBroker):
    with consumer_of(broker, "c1", poll_timeout=1) as consumer:
        wait_until(lambda: owners(broker), "it has its queues")
        began = time.monotonic()
        assert consumer.fetch(QUEUES[0], 0, 3).messages == []
        assert time.monotonic() - began >= 3
        assert set(owners(broker)) == {"c1"}


def test_without_a_poll_timeout_a_member_stays(broker: MemoryBroker):
    with (
        consumer_of(broker, "c1", poll_timeout=None),
        Consumer("shipping", ["orders"], broker.bootstrap, client_id="c2", poll_timeout=1),
    ):
        wait_until(lambda: broker.assignment("shipping")["c2"], "the other one has queues")
        wait_until(lambda: not broker.assignment("shipping"), "the other one has left")
        assert set(owners(broker)) == {"c1"}


@pytest.mark.parametrize("timeout", [0, -1, "5", float("nan")])
def test_a_poll_timeout_is_a_number_of_seconds(broker: MemoryBroker, timeout: object):
    with pytest.raises(InvalidUsage, match="poll_timeout"):
        consumer_of(broker, "c1", poll_timeout=timeout)


# --- run ---


class Hanging:
    """A handler that hangs with some messages until it is let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.handled: list[bytes] = []

    def __call__(self, messages: list[object]) -> None:
        [value] = [message.value() for message in messages]  # type: ignore[attr-defined]
        if value == b"poison":
            self.go_on.wait()
        self.handled.append(value)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_member_all_of_whose_workers_hang_leaves_until_one_is_free(broker: MemoryBroker, caplog, is_async: bool):
    hanging, free = Hanging(), Hanging()

    async def handle(messages: list[object]) -> None:
        hanging(messages)  # it blocks the event loop
        await asyncio.sleep(0)

    with caplog.at_level(logging.WARNING, logger="wakeroll"):
        for queue in QUEUES[:2]:
            broker.send("orders", "poison", queue=queue.queue_id)
        broker.join(
            "billing",
            ["orders"],
            handle if is_async else hanging,
            workers=1,
            batch_size=1,
            handle_timeout=0.5,
            client_id="c1",
        )
        wait_until(lambda: "leaves until" in caplog.text, "it leaves")
    assert "all its workers hang; since" in caplog.text
    assert "with orders-" in caplog.text
    assert "self.go_on.wait()" in caplog.text

    free.go_on.set()
    broker.join("billing", ["orders"], free, batch_size=1, client_id="c2")
    for number in range(40):
        broker.send("orders", str(number), queue=number % 4)
    wait_until(lambda: {b"%d" % number for number in range(40)} <= set(free.handled), "the other handles all others")

    hanging.go_on.set()
    wait_until(lambda: len(owners(broker)) == 2, "it is back")


def test_a_worker_that_was_not_replaced_is_replaced_later(broker: MemoryBroker):
    """Two calls hang, which is all that one worker may leave behind; when they return, others are handled."""
    hanging = Hanging()
    for queue in QUEUES[:2]:
        broker.send("orders", "poison", queue=queue.queue_id)
    broker.join("billing", ["orders"], hanging, workers=1, batch_size=1, handle_timeout=0.5, client_id="c1")
    wait_until(lambda: not owners(broker), "it has left")
    hanging.go_on.set()
    broker.send("orders", "paid", queue=3)
    wait_until(lambda: b"paid" in hanging.handled, "a message is handled")


def test_long_calls_beside_a_free_worker_are_no_hang(broker: MemoryBroker, caplog):
    hanging = Hanging()
    broker.send("orders", "poison", queue=0)
    with caplog.at_level(logging.WARNING, logger="wakeroll"):
        broker.join("billing", ["orders"], hanging, workers=3, batch_size=1, handle_timeout=0.5, client_id="c1")
        wait_until(lambda: "did not return within 0.5 s" in caplog.text, "the call is overdue")
        for number in range(20):
            broker.send("orders", str(number), queue=1 + number % 3)
        wait_until(lambda: len(hanging.handled) == 20, "all others are handled")
    assert "leaves until" not in caplog.text
    hanging.go_on.set()


# --- when a consumer becomes a member ---


def test_a_consumer_is_a_member_only_when_it_reads(broker: MemoryBroker):
    """A module that creates one, or a notebook's cell that runs twice, leaves none behind."""
    idle, polls = consumer_of(broker, "c1"), consumer_of(broker, "c3")
    read = [consumer_of(broker, "c2"), polls]
    read[0].join()
    read[0].join()
    with consumer_of(broker, "c4") as inside:
        wait_until(
            lambda: set(owners(broker)) == {"c2", "c3", "c4"},
            "those who read are members",
            between=lambda: poll_both(*read, inside),
        )
    read.clear()
    gc.collect()
    wait_until(lambda: set(owners(broker)) == {"c3"}, "the others have left", between=lambda: polls.poll(0.05))
    assert idle.commit()
    assert idle.assignment() == []
    idle.close()
    polls.close()


def test_a_consumer_that_never_read_closes_in_silence(broker: MemoryBroker, caplog):
    with caplog.at_level(logging.DEBUG, logger="wakeroll"):
        consumer = consumer_of(broker, "c1")
        consumer.close()
        with pytest.raises(InvalidUsage, match="closed"):
            consumer.join()
        with pytest.raises(InvalidUsage, match="closed"):
            consumer.poll(0)
    assert "joins" not in caplog.text
