"""Calls at work: a consumer lists long ones in heartbeats, and all of them for an operator who asks."""

import threading
from collections.abc import Iterator

import pytest

from tests.support.waiting import wait_until
from wakeroll import Admin, Consumer, InvalidUsage
from wakeroll.calls_at_work import Application, CallAtWork, LongCalls
from wakeroll.testing import MemoryBroker
from wakeroll_model import config
from wakeroll_model.events import LongCall
from wakeroll_model.queue import Queue

ORDERS = Queue("orders", "", 0)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(real_time=True) as broker:
        broker.create_topic("orders", queues=1)
        yield broker


def consumer_of(broker: MemoryBroker, **settings: object) -> Consumer:
    return Consumer("billing", ["orders"], broker.bootstrap, client_id="c1", consume_from="first", **settings)  # type: ignore[arg-type]


def handling(broker: MemoryBroker) -> list[LongCall]:
    with broker._log.lock:
        group = broker._coordinator.group("billing")
        return [] if group is None else group.members["c1"].handling


def call(first: int, for_ms: int, stack: str = "") -> CallAtWork:
    return CallAtWork(ORDERS, first, first, for_ms, lambda: stack)


def test_only_long_calls_are_listed_and_they_keep_their_beginning():
    """A heartbeat that is the same as the one before costs the coordinator nothing."""
    calls = LongCalls()
    assert calls.update([call(1, 29_999)]) == []
    [listed] = calls.update([call(1, 30_000), call(2, 10)])
    assert (listed.queue, listed.first_offset, listed.last_offset) == (ORDERS, 1, 1)

    assert calls.update([call(1, 95_000)]) == [listed]
    assert calls.update([]) == []
    assert calls.update([call(1, 40_000)]) != [listed]  # it is handled again


def test_of_many_long_calls_the_oldest_are_listed():
    listed = LongCalls().update([call(number, 90_000 - number) for number in range(50)])
    assert [one.first_offset for one in listed] == list(range(config.MAX_LONG_CALLS))


def test_a_report_has_a_bound_and_counts_what_it_leaves_out():
    calls = [call(number, 40_000, "x" * 1_000) for number in range(40)]
    report = Application(calls=lambda: calls).report()
    assert len(report) <= config.MAX_REPORT
    shown = report.count("since 40 s with orders-0")
    assert report.endswith(f"\nand {40 - shown} more")
    assert ", calls at work: 40\n" in report


def test_a_report_without_stacks_says_so():
    report = Application(calls=lambda: [call(7, 2_000, "secret")], shows_stacks=False).report()
    assert "it shows no stacks (inspectable=False)\nsince 2 s with orders-0, offsets 7 to 7" in report
    assert "secret" not in report


@pytest.mark.parametrize("inspectable", [True, False])
def test_a_hung_handler_is_in_heartbeats_and_in_the_answer_to_an_operator(
    broker: MemoryBroker, monkeypatch, inspectable: bool
):
    monkeypatch.setattr("wakeroll.calls_at_work.LONG_MS", 100)
    monkeypatch.setattr("wakeroll.heartbeat_thread.LOOK_S", 0.1)
    broker.send("orders", "paid", queue=0)
    goes_on, has_begun = threading.Event(), threading.Event()

    def hangs_here(_messages: object) -> None:
        has_begun.set()
        goes_on.wait()

    with consumer_of(broker, inspectable=inspectable) as consumer, Admin(broker.bootstrap) as admin:
        runs = threading.Thread(target=consumer.run, args=(hangs_here,))
        runs.start()
        try:
            has_begun.wait()
            report = admin.inspect("billing", "c1", reason="it is slow", by="mia")
            wait_until(lambda: handling(broker), "a heartbeat has the call")
            with pytest.raises(InvalidUsage, match="'c2' is no member of group 'billing'; its members: c1"):
                admin.inspect("billing", "c2")
        finally:
            goes_on.set()
            consumer.stop()
            runs.join()

    assert "calls at work: 1" in report
    assert "with orders-0, offsets 0 to 0" in report
    assert ("hangs_here" in report) == inspectable


def test_an_application_that_polls_answers_too(broker: MemoryBroker):
    broker.send("orders", "paid", queue=0)
    with consumer_of(broker) as consumer, Admin(broker.bootstrap) as admin:
        assert "it has not polled yet" in admin.inspect("billing", "c1")
        wait_until(lambda: consumer.poll(0.1), "a message")
        asks = admin.inspect("billing", "c1")
        assert "with orders-0, offsets 0 to 0:" in asks
        assert "test_an_application_that_polls_answers_too" in asks
