"""A handler and its tests, without a broker: `wakeroll.testing` has topics and a coordinator in memory.

The delays of retries take no time, because the tests decide how the time of the broker in memory passes.

    pytest examples/handler_with_tests.py
"""

import json
import threading

from confluent_kafka import Message

from wakeroll import DeadLetter
from wakeroll.testing import MemoryBroker

# --- the application ---


class Billing:
    """Writes an invoice for each order; an order that is delivered again changes nothing."""

    def __init__(self) -> None:
        """Begin without invoices."""
        self.invoices: dict[int, int] = {}
        self.service_is_down = False

    def handle(self, messages: list[Message]) -> list[DeadLetter] | None:
        """Process orders of one queue.

        Raises:
            ConnectionError: the service for taxes is down.
        """
        wrong = []
        for message in messages:
            try:
                order = json.loads(message.value() or b"")
                number, amount = order["number"], order["amount"]
            except (ValueError, KeyError):
                wrong.append(message)
                continue
            if self.service_is_down:
                raise ConnectionError("no taxes")
            self.invoices[number] = amount * 119 // 100
        return [DeadLetter(wrong, "not an order")] if wrong else None


# --- its tests ---


def order(number: int, amount: int = 100) -> bytes:
    """Return the value of a message."""
    return json.dumps({"number": number, "amount": amount}).encode()


def test_an_order_has_an_invoice():
    """The simplest test: send, join, run, look."""
    billing = Billing()
    with MemoryBroker() as broker:
        broker.create_topic("orders", queues=4)
        broker.send("orders", order(1, amount=200), key="customer-7")
        broker.join("billing", ["orders"], billing.handle)
        broker.run_until_done()

    assert billing.invoices == {1: 238}


def test_what_is_no_order_is_a_dead_letter():
    """The orders beside it are processed."""
    billing = Billing()
    with MemoryBroker() as broker:
        broker.create_topic("orders")
        for value in (order(1), b"?", order(2)):
            broker.send("orders", value)
        broker.join("billing", ["orders"], billing.handle)
        broker.run_until_done()

        [letter] = broker.dead_letters("billing")
        assert (letter.origin.offset, letter.origin.error) == (1, "not an order")
    assert sorted(billing.invoices) == [1, 2]


def test_while_the_service_is_down_orders_are_retried():
    """The first delays are 10 s and 30 s."""
    billing = Billing()
    billing.service_is_down = True
    with MemoryBroker() as broker:
        broker.create_topic("orders")
        broker.send("orders", order(1))
        broker.join("billing", ["orders"], billing.handle)
        broker.advance(39)
        assert [one.error for one in broker.failed("billing")] == ["ConnectionError: no taxes"] * 2
        billing.service_is_down = False
        broker.advance(1)

        assert [one.at_s for one in broker.deliveries("billing")] == [0, 10, 40]
    assert sorted(billing.invoices) == [1]


def test_after_a_crash_the_invoices_are_the_same():
    """The first member dies before it commits; the second one receives its orders again."""
    billing, is_dead = Billing(), threading.Event()

    def handle_and_hang(messages: list[Message]) -> None:
        billing.handle(messages)
        is_dead.wait()

    with MemoryBroker() as broker:
        broker.create_topic("orders", queues=2)
        for number in range(20):
            broker.send("orders", order(number))
        first = broker.join("billing", ["orders"], handle_and_hang)
        broker.wait_until(lambda: billing.invoices)
        first.crash()
        is_dead.set()
        broker.join("billing", ["orders"], billing.handle)
        broker.run_until_done()

        assert sorted(broker.committed("billing").values()) == [10, 10]
    assert billing.invoices == dict.fromkeys(range(20), 119)
