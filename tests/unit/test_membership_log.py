"""What the log says about a membership: one line per change, however many queues it has."""

import logging

import pytest

from tests.support.waiting import wait_until
from wakeroll import Admin, Consumer, ConsumerFenced
from wakeroll.membership_log import MembershipLog
from wakeroll.name_lists import names_of
from wakeroll.testing import MemoryBroker
from wakeroll_model.client_actions import Dropped
from wakeroll_model.queue import Queue


@pytest.fixture
def lines(caplog):
    """Returns the lines about one client, or about released queues."""
    caplog.set_level(logging.INFO, logger="wakeroll")

    def lines(about: str) -> list[str]:
        return [record.getMessage() for record in caplog.records if about in record.getMessage()]

    return lines


def test_the_log_tells_the_life_of_two_consumers(lines):
    with MemoryBroker() as broker:
        broker.create_topic("orders", queues=8)
        first = broker.join("billing", ["orders"], lambda _: None, client_id="one", on_error="raise")
        broker.settle()
        second = broker.join("billing", ["orders"], lambda _: None, client_id="two", on_error="raise")
        broker.settle()
        second.stop()
        broker.settle()
        first.stop()

    first_lines, second_lines = lines("client 'one'"), lines("client 'two'")
    who = "client 'one' of group 'billing'"
    assert first_lines[0].startswith(f"{who} joins as instance ")
    assert first_lines[1:] == [
        f"{who}: assigned queues: 8 (orders-0, orders-1, orders-2, orders-3, orders-4 and 3 others)",
        f"{who}: revoked queues: 4 (orders-4, orders-5, orders-6, orders-7)",
        f"{who}: assigned queues: 4 (orders-4, orders-5, orders-6, orders-7)",
        f"{who} leaves",
    ]
    who = "client 'two' of group 'billing'"
    assert second_lines[0].startswith(f"{who} joins as instance ")
    assert second_lines[1:] == [
        f"{who}: assigned queues: 4 (orders-4, orders-5, orders-6, orders-7)",
        f"{who} leaves",
    ]
    assert [line.partition(" after")[0] for line in lines("released")] == [
        "released orders-4, orders-5, orders-6, orders-7"
    ]


def test_a_consumer_that_is_fenced_says_why(lines):
    """The application gets an exception too, and may not log it."""
    with MemoryBroker() as broker:
        broker.create_topic("orders", queues=1)
        broker.join("billing", ["orders"], lambda _: None, client_id="one", on_error="raise")
        broker.settle()
        with (
            Consumer("billing", ["orders"], broker.bootstrap, client_id="two", mode="broadcasting") as other,
            pytest.raises(ConsumerFenced),
        ):
            other.poll(60)

    [line] = lines("was refused")
    assert line.startswith("client 'two' of group 'billing' was refused: mode is 'broadcasting'")
    assert line.endswith("; 0 of its queues dropped; it does not rejoin")


def test_a_consumer_that_is_kicked_says_by_whom(lines):
    """The application gets the name of the operator too; another instance learns until when it is kept out."""
    with MemoryBroker() as broker, Admin(broker.bootstrap) as admin:
        broker.create_topic("orders", queues=2)
        with Consumer("billing", ["orders"], broker.bootstrap, client_id="one") as consumer:
            wait_until(
                lambda: len(consumer.assignment()) == 2, "it has both queues", between=lambda: consumer.poll(0.05)
            )
            admin.kick("billing", "one", keep_out_ms=60_000, reason="stuck", by="mia")
            with pytest.raises(ConsumerFenced) as first:
                consumer.poll(60)
        with (
            Consumer("billing", ["orders"], broker.bootstrap, client_id="one") as again,
            pytest.raises(ConsumerFenced) as second,
        ):
            again.poll(60)

    assert [(one.value.reason, one.value.by) for one in (first, second)] == [("kicked", "mia")] * 2
    who = "client 'one' of group 'billing'"
    assert lines(f"{who} was kicked") == [f"{who} was kicked by mia; 0 of its queues dropped; it does not rejoin"]
    [turned_away] = lines(f"{who} stays out")
    assert turned_away.startswith(f"{who} stays out: client_id 'one' was kicked by mia: stuck; kept out for")


def test_ten_thousand_queues_are_one_short_line(lines):
    queues = tuple(Queue("t" * 249, "", number) for number in range(10_000))

    MembershipLog("billing", "one").ended(Dropped(queues, "silent"), "client 'one' expired")

    assert lines("client 'one'") == ["client 'one' expired; 10000 of its queues dropped; rejoining"]
    assert len(names_of(queues)) < 2_000
    assert names_of(queues[:2]) == f"{queues[0]}, {queues[1]}"
