"""The test kit of applications, `wakeroll.testing`: real consumers on a broker in memory."""

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Message, TopicPartition

from wakeroll import (
    Admin,
    Consumer,
    DeadLetter,
    DeadLetters,
    InvalidUsage,
    NotReachable,
    Producer,
    Queue,
    Retry,
    Sql92,
    origin_of,
)
from wakeroll.connection import Connection
from wakeroll.testing import MemoryBroker
from wakeroll_model.retry_topics import DELAYS_S

GROUP, ORDERS = "billing", "orders"


def broker_with(messages: int, queues: int = 1) -> MemoryBroker:
    """A broker with a topic of messages without keys; the values are their numbers."""
    broker = MemoryBroker()
    broker.create_topic(ORDERS, queues)
    for number in range(messages):
        broker.send(ORDERS, str(number))
    return broker


def numbers(messages: list[Message]) -> list[int]:
    return [int(message.value() or b"") for message in messages]


def test_every_message_is_handled_and_committed():
    seen: list[Message] = []
    with broker_with(20, queues=4) as broker:
        member = broker.join(GROUP, [ORDERS], seen.extend, client_id="c1")
        broker.run_until_done()

        assert sorted(numbers(seen)) == list(range(20))
        assert sorted(numbers(broker.processed(GROUP))) == list(range(20))
        assert broker.failed(GROUP) == broker.dead_letters(GROUP) == []
        queues = [Queue(ORDERS, "", number) for number in range(4)]
        assert broker.committed(GROUP) == dict.fromkeys(queues, 5)
        assert broker.assignment(GROUP) == {"c1": queues}
        assert member.calls == 0


def test_a_handler_can_use_a_message_as_one_of_kafka():
    seen: list[Message] = []
    with MemoryBroker() as broker:
        broker.create_topic(ORDERS, queues=3)
        place = broker.send(
            ORDERS, "17", key="k", queue=2, tags="paid", properties={"region": "EU"}, headers=[("traceparent", b"x")]
        )
        broker.join(GROUP, {ORDERS: Sql92("region = 'EU'")}, seen.extend)
        broker.run_until_done()

    [message] = seen
    assert place == (Queue(ORDERS, "", 2), 0)
    assert (message.topic(), message.partition(), message.offset()) == (ORDERS, 2, 0)
    assert (message.key(), message.value(), len(message), message.error()) == (b"k", b"17", 2, None)
    assert message.headers() == [("TAGS", b"paid"), ("region", b"EU"), ("traceparent", b"x")]
    assert message.timestamp()[1] == 1_767_225_600_000


def test_messages_that_do_not_match_the_filter_are_not_handled_and_count_as_processed():
    with MemoryBroker() as broker:
        broker.create_topic(ORDERS)
        for tags in ("paid", "open", "paid", "open"):
            broker.send(ORDERS, b"", tags=tags)
        broker.join(GROUP, {ORDERS: "paid"}, lambda _: None)
        broker.run_until_done()

        assert [message.offset() for message in broker.processed(GROUP)] == [0, 2]
        assert broker.committed(GROUP) == {Queue(ORDERS, "", 0): 4}


def test_a_failed_message_is_retried_after_its_delay_by_the_clock_of_the_broker():
    """Ten and thirty seconds of delay take no time."""

    def handle(messages: list[Message]) -> None:
        if origin_of(messages[0]).attempt < 3:
            raise LookupError("no such order")

    began_s = time.monotonic()
    with broker_with(1) as broker:
        broker.join(GROUP, [ORDERS], handle)
        broker.run_until_done()

        deliveries = broker.deliveries(GROUP)
        assert [(one.at_s, one.number, one.origin.attempt, one.error) for one in deliveries] == [
            (0.0, 1, 1, "LookupError: no such order"),
            (10.0, 2, 2, "LookupError: no such order"),
            (40.0, 3, 3, ""),
        ]
        assert {(one.origin.topic, one.origin.offset) for one in deliveries} == {(ORDERS, 0)}
        assert [message.topic() for message in broker.processed(GROUP)] == ["retry.billing"]
    assert time.monotonic() - began_s < 9


def test_time_passes_only_when_the_test_lets_it_pass():
    with broker_with(1) as broker:
        broker.join(GROUP, [ORDERS], lambda _: Retry(level=5, reason="late"))  # 60 s
        broker.advance(0)
        counts = [len(broker.deliveries(GROUP))]
        for seconds in (59.9, 0.1, 30, 30):
            broker.advance(seconds)
            counts.append(len(broker.deliveries(GROUP)))

        assert counts == [1, 1, 2, 2, 3]


def test_after_sixteen_retries_a_message_is_a_dead_letter():
    def handle(_: list[Message]) -> None:
        raise LookupError("no such order")

    with broker_with(1) as broker:
        broker.join(GROUP, [ORDERS], handle, client_id="c1")
        broker.run_until_done()

        times_s = [one.at_s for one in broker.failed(GROUP)]
        assert [int(later - earlier) for earlier, later in pairwise(times_s)] == list(DELAYS_S[2:])
        [letter] = broker.dead_letters(GROUP)
        assert (letter.origin.queue, letter.origin.offset) == (Queue(ORDERS, "", 0), 0)
        assert (letter.origin.attempt, letter.origin.error) == (17, "LookupError: no such order")
        assert letter.origin.client_id == "c1"
        assert letter.message.value() == b"0"
        assert broker.processed(GROUP) == []


def test_dead_letters_can_be_sent_again():
    is_mended = threading.Event()

    def handle(messages: list[Message]) -> object:
        return None if is_mended.is_set() else DeadLetter(messages, "no customer yet")

    with broker_with(3) as broker:
        broker.join(GROUP, [ORDERS], handle)
        broker.run_until_done()
        assert [letter.number for letter in broker.dead_letters(GROUP)] == [0, 1, 2]
        is_mended.set()
        with DeadLetters(GROUP, broker.bootstrap) as letters:
            assert letters.drop([1]) == 1
            assert letters.resend("all") == 2
        broker.run_until_done()

        assert sorted(numbers(broker.processed(GROUP))) == [0, 2]
        assert broker.dead_letters(GROUP) == []


def test_messages_with_one_key_are_handled_one_after_the_other():
    at_work: set[bytes | None] = set()
    order: dict[bytes | None, list[int]] = defaultdict(list)
    overlaps = []
    lock = threading.Lock()

    def handle(messages: list[Message]) -> None:
        [message] = messages
        with lock:
            if message.key() in at_work:
                overlaps.append(message.key())
            at_work.add(message.key())
            order[message.key()].append(int(message.value() or b""))
        time.sleep(0.001)
        with lock:
            at_work.remove(message.key())

    with MemoryBroker() as broker:
        broker.create_topic(ORDERS, queues=2)
        for number in range(60):
            broker.send(ORDERS, str(number), key=f"customer-{number % 5}")
        broker.join(GROUP, [ORDERS], handle, batch_size=1, workers=4)
        broker.run_until_done()

    assert overlaps == []
    assert all(seen == sorted(seen) for seen in order.values())
    assert sum(map(len, order.values())) == 60


def test_in_order_a_failed_message_is_retried_in_place():
    failures = iter([True, True])

    def handle(messages: list[Message]) -> None:
        if messages[0].offset() == 1 and next(failures, False):
            raise LookupError("no such order")

    with broker_with(3) as broker:
        broker.join(GROUP, [ORDERS], handle, orderly=True, batch_size=1)
        broker.run_until_done()

        deliveries = [(one.message.offset(), one.number, one.at_s, one.failed) for one in broker.deliveries(GROUP)]
        assert deliveries == [
            (0, 1, 0.0, False),
            (1, 1, 0.0, True),
            (1, 2, 1.0, True),
            (1, 3, 2.0, False),
            (2, 1, 2.0, False),
        ]
        assert broker.committed(GROUP) == {Queue(ORDERS, "", 0): 3}


def test_a_second_member_takes_over_half_of_the_queues_while_the_handler_works():
    """The queues that the first member releases keep their order, and no message is lost or repeated."""
    may_go_on = threading.Event()

    def handle(_: list[Message]) -> None:
        may_go_on.wait(30)

    with broker_with(400, queues=4) as broker:
        first = broker.join(GROUP, [ORDERS], handle, client_id="c1", workers=2, batch_size=1)
        broker.wait_until(lambda: first.calls == 2)
        broker.join(GROUP, [ORDERS], handle, client_id="c2", workers=2, batch_size=1)
        may_go_on.set()
        broker.run_until_done()

        assert {name: len(queues) for name, queues in broker.assignment(GROUP).items()} == {"c1": 2, "c2": 2}
        assert {one.client_id for one in broker.deliveries(GROUP)} == {"c1", "c2"}
        assert sorted(numbers(broker.processed(GROUP))) == list(range(400))
        assert set(broker.committed(GROUP).values()) == {100}


def test_after_a_crash_messages_that_were_not_committed_are_delivered_again():
    may_end = threading.Event()

    def work(_: list[Message]) -> None:
        may_end.wait(30)

    with broker_with(10, queues=2) as broker:
        first = broker.join(GROUP, [ORDERS], work, client_id="c1", workers=2, batch_size=1)
        broker.wait_until(lambda: first.calls == 2)
        second = broker.join(GROUP, [ORDERS], lambda _: None, client_id="c2")
        first.crash()
        broker.run_until_done()
        may_end.set()

        assert {name: len(queues) for name, queues in broker.assignment(GROUP).items()} == {"c2": 2}
        assert sorted(numbers(broker.processed(GROUP))) == list(range(10))
        assert {one.client_id for one in broker.deliveries(GROUP)} == {"c2"}
        second.stop()


@pytest.mark.parametrize("others", [1, 35], ids=["a crash", "many joins and crashes"])
def test_a_crash_takes_no_time_from_healthy_members(others):
    """A member that drains a revoked queue keeps its revoke timeout, whoever joins or crashes meanwhile."""
    may_end = threading.Event()

    def work(_: list[Message]) -> None:
        may_end.wait(60)

    def has_receipt() -> bool:
        group = broker._coordinator.group(GROUP)
        revoking = group.members["c1"].revoking.values()
        return bool(revoking) and all(one.shown_ms >= 0 for one in revoking)

    with broker_with(4, queues=4) as broker:
        first = broker.join(GROUP, [ORDERS], work, client_id="c1", workers=4, batch_size=1)
        broker.wait_until(lambda: first.calls == 4)
        for number in range(others):
            other = broker.join(GROUP, [ORDERS], lambda _: None, client_id=f"x{number}")
            if not number:
                broker.wait_until(has_receipt)
            other.crash()
        broker.join(GROUP, [ORDERS], lambda _: None, client_id="c2")

        assert {name: len(queues) for name, queues in broker.assignment(GROUP).items()} == {"c1": 4, "c2": 0}
        may_end.set()
        broker.run_until_done()
        assert sorted(numbers(broker.processed(GROUP))) == list(range(4))


def test_all_is_done_only_when_resumed_queues_are_read():
    """Messages of paused queues are not waited for; those of resumed ones are, also right after `resume`."""
    with broker_with(0) as broker:
        member = broker.join(GROUP, [ORDERS], lambda _: None)
        broker.settle()
        for number in range(20):
            member.consumer.pause(member.assignment)
            broker.run_until_done()
            broker.send(ORDERS, str(number).encode())
            broker.run_until_done()
            assert numbers(broker.processed(GROUP)) == list(range(number))
            member.consumer.resume(member.assignment)
            broker.run_until_done()

            assert numbers(broker.processed(GROUP)) == list(range(number + 1))


def test_a_group_that_is_set_back_receives_its_messages_again():
    with broker_with(4, queues=2) as broker:
        broker.join(GROUP, [ORDERS], lambda _: None)
        broker.run_until_done()
        broker.redeliver(GROUP)
        broker.run_until_done()
        broker.redeliver(GROUP, (ORDERS, 0), offset=1)
        broker.run_until_done()

        counts = Counter((one.message.partition(), one.message.offset()) for one in broker.deliveries(GROUP))
        assert counts == {(0, 0): 2, (0, 1): 3, (1, 0): 2, (1, 1): 2}
        assert [one.number for one in broker.deliveries(GROUP)][-1] == 3


def test_a_handler_may_be_asynchronous():
    async def handle(messages: list[Message]) -> None:
        await asyncio.sleep(0)
        if origin_of(messages[0]).attempt == 1:
            raise LookupError("no such order")

    class Handler:
        async def __call__(self, messages: list[Message]) -> None:
            await handle(messages)

    with broker_with(4, queues=2) as broker:
        broker.join(GROUP, [ORDERS], handle)
        broker.join("audit", [ORDERS], Handler())
        broker.run_until_done()

        for group in (GROUP, "audit"):
            assert sorted(numbers(broker.processed(group))) == [0, 1, 2, 3]
            assert [one.at_s for one in broker.deliveries(group)] == [0.0] * 8 + [10.0] * 4


def test_a_call_that_hangs_is_overdue_when_time_has_passed():
    let_go = threading.Event()

    def handle(messages: list[Message]) -> None:
        if origin_of(messages[0]).attempt == 1:
            let_go.wait(30)

    with broker_with(1) as broker:
        member = broker.join(GROUP, [ORDERS], handle)
        broker.wait_until(lambda: member.calls == 1)
        broker.advance(901, wait=False)
        broker.run_until_done()
        let_go.set()

        assert [origin_of(message).error for message in broker.processed(GROUP)] == [
            "the call did not return within 900 s"
        ]


def test_a_handler_that_hangs_ends_the_wait_with_a_sentence():
    let_go = threading.Event()
    with broker_with(1) as broker:
        broker.join(GROUP, [ORDERS], lambda _: let_go.wait(30), client_id="c1")
        with pytest.raises(TimeoutError, match=r"not within 0\.5 s: all that is due is handled; c1 .* 1 calls at work"):
            broker.run_until_done(timeout=0.5)
        let_go.set()
        with pytest.raises(InvalidUsage, match="the handler returned True"):
            broker.run_until_done()


def test_an_exception_of_a_handler_without_retries_is_raised_in_the_test():
    def handle(_: list[Message]) -> None:
        raise LookupError("no such order")

    with broker_with(1) as broker:
        broker.join(GROUP, [ORDERS], handle, on_error="raise")
        with pytest.raises(LookupError, match="no such order"):
            broker.run_until_done()
        with pytest.raises(InvalidUsage, match="no member runs"):
            broker.run_until_done()

    broker = broker_with(1)
    broker.join(GROUP, [ORDERS], handle, on_error="raise")
    with pytest.raises(LookupError):
        broker.close()


def test_when_run_ends_with_an_exception_another_member_gets_the_queues():
    def handle(_: list[Message]) -> None:
        raise LookupError("no such order")

    with broker_with(6, queues=2) as broker:
        broker.join(GROUP, [ORDERS], handle, on_error="raise")
        with pytest.raises(InvalidUsage, match="batch_size is 0"):
            broker.join(GROUP, [ORDERS], handle, batch_size=0)
        with pytest.raises(LookupError):
            broker.run_until_done()
        broker.join(GROUP, [ORDERS], lambda _: None, client_id="c2")
        broker.run_until_done()

        assert list(broker.assignment(GROUP)) == ["c2"]
        assert sorted(numbers(broker.processed(GROUP))) == list(range(6))


def test_in_a_broadcasting_group_each_member_receives_every_message():
    with broker_with(4, queues=2) as broker:
        for name in ("c1", "c2"):
            broker.join(GROUP, [ORDERS], lambda _: None, client_id=name, mode="broadcasting")
        broker.run_until_done()

        assert sorted(numbers(broker.processed(GROUP))) == [0, 0, 1, 1, 2, 2, 3, 3]
        assert set(broker.committed(GROUP, "c1").values()) == {2}


def test_the_other_classes_of_the_sdk_connect_to_it():
    """`poll`, `fetch` with its long polling, `Producer` and `Admin` run unchanged."""
    with MemoryBroker() as broker:
        broker.create_topic(ORDERS)
        with Producer(broker.bootstrap) as producer:
            producer.send(ORDERS, b"17", key=b"k", tags="paid")
            assert producer.flush()
        with Consumer(GROUP, [ORDERS], broker.bootstrap, consume_from="first") as consumer:
            message = consumer.poll(10)
            assert message is not None
            assert message.value() == b"17"
            assert consumer.lag() == {Queue(ORDERS, "", 0): 0}
            threading.Timer(0.2, broker.send, [ORDERS, b"18"]).start()
            messages, next_offset = consumer.fetch((ORDERS, 0), 1, wait=20)
            assert (numbers(messages), next_offset) == ([18], 2)
        assert broker.committed(GROUP) == {Queue(ORDERS, "", 0): 1}
        with Admin(broker.bootstrap) as admin:
            admin.reset(admin.plan_reset(GROUP, "first"))
        assert broker.committed(GROUP) == {Queue(ORDERS, "", 0): 0}


def test_a_handler_may_send_messages_itself():
    with broker_with(3) as broker, Producer(broker.bootstrap) as producer:
        broker.create_topic("invoices", queues=2)

        def handle(messages: list[Message]) -> None:
            for message in messages:
                producer.send("invoices", message.value())
            producer.flush()

        broker.join(GROUP, [ORDERS], handle)
        broker.join("mail", ["invoices"], lambda _: None)
        broker.run_until_done()

        assert sorted(numbers(broker.processed("mail"))) == [0, 1, 2]


def test_misuse_is_explained():
    broker = MemoryBroker()
    broker.create_topic(ORDERS, queues=2)
    for call, sentence in [
        (lambda: broker.create_topic(ORDERS), "topic 'orders' exists already"),
        (lambda: broker.create_topic("mail", 0), "queues is 0; it must be 1 or more"),
        (lambda: broker.send("ordes", b""), r"no topic 'ordes'; create_topic\(\) creates it; there are: orders"),
        (lambda: broker.send(ORDERS, b"", queue=2), "topic 'orders' has no queue 2; it has 0 to 1"),
        (lambda: broker.join(GROUP, ["ordes"], print), "no topic 'ordes'"),
        (lambda: broker.join(GROUP, [ORDERS], print, workers=0), "workers is 0"),
        (lambda: broker.join(GROUP, [ORDERS], 7), "handler is 7; it must be a function"),
        (lambda: broker.advance(-1), "seconds is -1; it must be 0 or more"),
        (lambda: broker.redeliver(GROUP, (ORDERS, 0)), "has no committed offset of orders-0"),
        (broker.run_until_done, r"no member runs; join\(\) starts one"),
    ]:
        with pytest.raises(InvalidUsage, match=sentence):
            call()
    broker.close()
    broker.close()
    for call in (
        lambda: broker.send(ORDERS, b""),
        lambda: broker.join(GROUP, [ORDERS], print),
        lambda: broker.create_topic("mail"),
        lambda: broker.dead_letters(GROUP),
        lambda: broker.advance(1),
        broker.run_until_done,
    ):
        with pytest.raises(InvalidUsage, match="this MemoryBroker is closed; create a new one"):
            call()


def test_a_member_that_has_crashed_or_left_may_come_back_under_its_name():
    with broker_with(4, queues=2) as broker:
        first = broker.join(GROUP, [ORDERS], lambda _: None, client_id="c1")
        with pytest.raises(InvalidUsage, match="member 'c1' of group 'billing' runs already"):
            broker.join(GROUP, [ORDERS], lambda _: None, client_id="c1")
        broker.run_until_done()
        first.crash()
        first.stop()
        second = broker.join(GROUP, [ORDERS], lambda _: None, client_id="c1")
        broker.settle()
        second.stop()
        broker.join(GROUP, [ORDERS], lambda _: None, client_id="c1")
        broker.send(ORDERS, b"4")
        broker.run_until_done()

        assert numbers(broker.processed(GROUP))[-1] == 4
        assert len(broker.deliveries(GROUP)) == 5


def test_nothing_is_left_when_it_is_closed():
    before = threading.active_count()
    with broker_with(1) as broker:
        broker.join(GROUP, [ORDERS], lambda _: None)
        broker.run_until_done()

    assert threading.active_count() <= before
    with pytest.raises(NotReachable):
        Consumer(GROUP, [ORDERS], broker.bootstrap, connect_timeout=0.2)


def test_it_needs_neither_pytest_nor_spark_nor_the_pipeline():
    program = (
        "import sys; import wakeroll.testing; "
        "print(sorted({'pytest', 'pyspark', 'wakeroll_pipeline', 'tests'} & set(sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )

    assert answer.stdout.strip() == "[]"


def test_a_consumer_of_kafka_that_asks_for_nothing_gets_nothing():
    """The SDK does so when it reads single messages, as of a topic with large ones: it got the end of the queue."""
    with broker_with(3) as broker:
        consumer = Connection(broker.bootstrap).consumer(**{"enable.partition.eof": True})
        consumer.assign([TopicPartition(ORDERS, 0, 0)])

        assert consumer.consume(0, 0) == []
        assert [message.offset() for message in consumer.consume(10, 0)][:3] == [0, 1, 2]
        consumer.close()
