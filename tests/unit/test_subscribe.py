"""Topics that change while a consumer lives: `subscribe` and `subscription`."""

import asyncio
import re
import threading
from collections.abc import Iterator

import pytest

from tests.support.waiting import wait_until
from wakeroll import AsyncConsumer, Consumer, InvalidUsage, Queue, Sql92, Subscribed
from wakeroll.pattern_choice import NO_PATTERN
from wakeroll.testing import MemoryBroker
from wakeroll.topic_subscriptions import TopicSubscriptions
from wakeroll_model.events import Subscription

GROUP = "billing"
ORDERS, RETURNS = Queue("orders", "", 0), Queue("returns", "", 0)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        for topic in ("orders", "returns"):
            broker.create_topic(topic)
        yield broker


def consumer_of(broker: MemoryBroker, topics, **settings) -> Consumer:
    return Consumer(GROUP, topics, broker.bootstrap, consume_from="first", **settings)


def values(consumer: Consumer, many: int) -> list[str]:
    """Poll until so many messages have come."""
    found: list[str] = []

    def one() -> bool:
        if (message := consumer.poll(0.1)) is not None:
            found.append((message.value() or b"").decode())
        return len(found) >= many

    wait_until(one, f"{many} messages")
    return found


def test_other_topics_are_read_and_the_former_ones_are_handed_over(broker):
    """As in a hand-over: what is processed is committed, and `on_revoked` is called, before others may have it."""
    told: list[tuple[str, list[Queue]]] = []
    broker.send("orders", "o1")
    broker.send("returns", "r1")
    with consumer_of(
        broker,
        ["orders"],
        on_assigned=lambda _, queues: told.append(("assigned", queues)),
        on_revoked=lambda _, queues: told.append(("revoked", queues)),
    ) as consumer:
        assert values(consumer, 1) == ["o1"]
        consumer.subscribe(["returns"])
        assert consumer.subscription() == Subscribed({"returns": "*"})

        assert values(consumer, 1) == ["r1"]
        assert consumer.assignment() == [RETURNS]
        assert told == [("assigned", [ORDERS]), ("revoked", [ORDERS]), ("assigned", [RETURNS])]
        assert broker.committed(GROUP)[ORDERS] == 1


def test_a_member_takes_a_topic_that_another_one_leaves(broker):
    """So the topics of a group may change member by member, and no message is lost or comes twice."""
    for number in range(4):
        broker.send("orders", f"o{number}")
    with consumer_of(broker, ["orders"]) as one, consumer_of(broker, ["returns"]) as other:
        assert values(one, 2) == ["o0", "o1"]
        one.subscribe(["returns"])
        other.subscribe(["orders"])
        last = []  # until the queue is revoked, its owner reads on

        def is_released() -> bool:
            if (message := one.poll(0.05)) is not None:
                last.append(message.value().decode())
            return ORDERS not in one.assignment()

        wait_until(is_released, "the queue is released")

        assert [*last, *values(other, 2 - len(last))] == ["o2", "o3"]


def test_subscribe_takes_effect_while_run_works(broker):
    seen: list[str] = []
    consumer = consumer_of(broker, ["orders"])
    runner = threading.Thread(
        target=consumer.run, args=(lambda messages: seen.extend(one.value().decode() for one in messages),)
    )
    runner.start()
    try:
        broker.send("orders", "o1")
        wait_until(lambda: seen == ["o1"], "the first message")
        consumer.subscribe({"orders": "*", "returns": "*"})
        broker.send("returns", "r1")
        wait_until(lambda: seen == ["o1", "r1"], "the second message")
        assert consumer.assignment() == [ORDERS, RETURNS]
    finally:
        consumer.stop()
        runner.join()
        consumer.close()


def test_an_async_consumer_subscribes_other_topics(broker):
    broker.send("returns", "r1")

    async def main() -> None:
        async with AsyncConsumer(GROUP, ["orders"], broker.bootstrap, consume_from="first") as consumer:
            await consumer.subscribe({"returns": Sql92("amount > 1 OR amount IS NULL")})
            assert consumer.subscription() == Subscribed({"returns": "amount > 1 OR amount IS NULL"})
            while (message := await consumer.poll(0.1)) is None:
                pass
            assert message.value() == b"r1"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("topics", "problem"),
    [
        ([], "topics is empty; name at least one topic"),
        ("orders", r"topics is 'orders'; it must be a list of names"),
        (["or ders"], r"a topic is 'or ders'"),
        ({"returns": Sql92("amount >")}, "cannot parse the expression of returns"),
        ([f"t{number}" for number in range(1_001)], "topics is .*1,?000"),
    ],
)
def test_a_wrong_argument_leaves_the_topics_as_they_are(broker, topics, problem):
    with consumer_of(broker, ["orders"]) as consumer:
        with pytest.raises(InvalidUsage, match=problem):
            consumer.subscribe(topics)

        assert consumer.subscription() == Subscribed({"orders": "*"})


def test_another_filter_counts_for_messages_that_were_not_handed_out(broker):
    """Also for those that were read ahead and passed over; what was handed out does not come again."""
    told: list[tuple[str, list[Queue]]] = []
    for number, tag in enumerate(["paid", "refunded", "paid", "refunded", "paid"], 1):
        broker.send("orders", f"o{number}", tags=tag)
    with consumer_of(
        broker,
        {"orders": "paid"},
        commit_interval=60.0,
        on_assigned=lambda _, queues: told.append(("assigned", queues)),
        on_revoked=lambda _, queues: told.append(("revoked", queues)),
    ) as consumer:
        assert values(consumer, 2) == ["o1", "o3"]
        consumer.subscribe({"orders": "paid || refunded"})
        assert consumer.subscription() == Subscribed({"orders": "paid || refunded"})

        assert values(consumer, 3) == ["o2", "o4", "o5"]
        consumer.subscribe({"orders": "refunded"})
        broker.send("orders", "o6", tags="paid")
        broker.send("orders", "o7", tags="refunded")
        assert values(consumer, 1) == ["o7"]
    assert told == [(change, [ORDERS]) for change in ("assigned", "revoked") * 3]
    assert broker.committed(GROUP) == {ORDERS: 7}


def test_a_filter_that_changes_twice_at_once_is_the_last_one(broker):
    broker.send("orders", "o1", tags="paid")
    with consumer_of(broker, {"orders": "paid"}) as consumer:
        assert values(consumer, 1) == ["o1"]
        for tag in ("refunded", "shipped", "paid", "lost"):
            consumer.subscribe({"orders": tag})
        for number, tag in enumerate(["paid", "refunded", "lost"], 2):
            broker.send("orders", f"o{number}", tags=tag)

        assert values(consumer, 1) == ["o4"]


def test_another_filter_counts_while_run_works(broker):
    """Messages that are being handled are finished; the handler need not be interrupted."""
    handled: list[str] = []
    for number in range(1, 7):
        broker.send("orders", f"o{number}", tags="paid" if number % 2 else "refunded")
    with consumer_of(broker, {"orders": "paid"}, commit_interval=60.0) as consumer:

        def handle(messages):
            handled.extend(message.value().decode() for message in messages)
            if len(handled) == 2:
                consumer.subscribe({"orders": "paid || refunded"})
            elif len(handled) == 6:
                consumer.stop()

        consumer.run(handle, batch_size=1, prefetch=2)

    assert sorted(handled) == ["o1", "o2", "o3", "o4", "o5", "o6"]
    assert broker.committed(GROUP)[ORDERS] == 6


def test_a_topic_that_was_left_keeps_its_filter_until_its_queues_are_released(broker):
    """The application must not receive what it never wanted, while the coordinator revokes the queues."""
    broker.send("orders", "o1", tags="paid")
    with consumer_of(broker, {"orders": "paid"}) as consumer:
        assert values(consumer, 1) == ["o1"]
        broker.send("orders", "o2", tags="refunded")
        broker.send("returns", "r1")
        consumer.subscribe(["returns"])
        assert values(consumer, 1) == ["r1"]


def test_an_expression_that_cannot_be_parsed_leaves_the_filter_as_it_is(broker):
    with consumer_of(broker, {"orders": "paid"}) as consumer:
        with pytest.raises(InvalidUsage, match=r"^cannot parse the expression of orders: "):
            consumer.subscribe({"orders": Sql92("amount >")})

        assert consumer.subscription() == Subscribed({"orders": "paid"})


def test_another_filter_has_a_higher_version():
    """The coordinator ignores a filter whose version is not higher, because its heartbeat may be an old one."""
    topics = TopicSubscriptions([Subscription(topic="orders")], "retry.billing")
    topics.change([Subscription(topic="returns")], NO_PATTERN)
    topics.change([Subscription(topic="orders", expression="paid")], NO_PATTERN)

    assert topics.own == [Subscription(topic="orders", expression="paid", version=2)]
    assert topics.take_retries(with_retries=True)[0][1:] == [Subscription(topic="retry.billing")]


# --- patterns ---


def test_a_topic_that_appears_and_matches_is_read_from_its_first_message(broker):
    """Internal topics and those of failed messages match no pattern."""
    for topic in ("order-log", "__order", "dlq.order", "retry.order"):
        broker.create_topic(topic)
    with Consumer(GROUP, re.compile(".*ORDER.*", re.IGNORECASE), broker.bootstrap) as consumer:
        wait_until(lambda: [consumer.poll(0.05), len(consumer.assignment()) == 2][1], "both topics are read")
        assert consumer.subscription() == Subscribed({}, "(?i).*ORDER.*")
        broker.create_topic("reorder")
        broker.send("reorder", "r1")

        assert values(consumer, 1) == ["r1"]
        assert [queue.topic for queue in consumer.assignment()] == ["order-log", "orders", "reorder"]
        assert [one.value() for one in consumer.fetch(("reorder", 0), 0, 0).messages] == [b"r1"]


def test_the_topics_of_a_pattern_may_have_a_filter_which_changes(broker):
    """Also those that appear later; a topic that is named keeps its own filter."""
    for tag in ("paid", "refunded"):
        broker.send("orders", f"o-{tag}", tags=tag)
        broker.send("returns", f"r-{tag}", tags=tag)
    topics = {re.compile("o.*|late"): "paid", "returns": "*"}
    with consumer_of(broker, topics, commit_interval=60.0) as consumer:
        assert consumer.subscription() == Subscribed({"returns": "*"}, "o.*|late", "paid")
        assert sorted(values(consumer, 3)) == ["o-paid", "r-paid", "r-refunded"]
        assert consumer.fetch(("orders", 0), 0, 0).messages[0].value() == b"o-paid"

        consumer.subscribe({re.compile("o.*|late"): Sql92("TAGS = 'refunded'"), "returns": "*"})
        assert values(consumer, 1) == ["o-refunded"]
        broker.create_topic("late")
        for tag in ("paid", "refunded"):
            broker.send("late", f"l-{tag}", tags=tag)
        assert values(consumer, 1) == ["l-refunded"]

        consumer.subscribe({re.compile("o.*|late|returns"): "lost"})
        for topic in ("returns", "late", "orders"):
            broker.send(topic, f"{topic} last", tags="lost")
            broker.send(topic, f"{topic} other", tags="paid")
        assert sorted(values(consumer, 3)) == ["late last", "orders last", "returns last"]


def test_a_pattern_and_names_may_be_combined_and_changed(broker):
    """A topic that is named has its filter, also if the pattern matches it."""
    with consumer_of(broker, {"orders": "paid"}, pattern="o.*") as consumer:
        broker.send("orders", "o1", tags="refunded")
        broker.send("orders", "o2", tags="paid")
        assert values(consumer, 1) == ["o2"]

        consumer.subscribe(pattern="r.*")
        broker.send("returns", "r1")
        assert values(consumer, 1) == ["r1"]
        assert consumer.subscription() == Subscribed({}, "r.*")
        consumer.subscribe(["orders"])
        wait_until(lambda: [consumer.poll(0.05), consumer.assignment() == [ORDERS]][1], "only the named one is left")


@pytest.mark.parametrize(
    ("topics", "pattern", "problem"),
    [
        (re.compile("a"), "b", "^topics and pattern are both patterns; pass one of them$"),
        ({re.compile("a"): "*"}, "b", "^topics and pattern are both patterns; pass one of them$"),
        (
            {re.compile("a"): "*", re.compile("b"): "*"},
            None,
            "^topics has 2 patterns; a member has one: join them with |",
        ),
        ({re.compile("a"): 7}, None, "^the expression of a pattern is 7"),
        ({re.compile("a"): "x" * 4_097}, None, "^the expression of a pattern is .*4,?096"),
        ({re.compile("a"): Sql92("n >")}, None, "^cannot parse the expression of pattern 'a': "),
        (None, "", "^pattern is empty; it must be a regular expression of topics' names$"),
        (None, "(", r"^pattern is '\('; it must be a regular expression \(missing \), unterminated"),
        (None, "a" * 1_025, "^pattern is .* 1,?024"),
        (None, 7, "^pattern is 7; it must be text, or a compiled pattern of text$"),
        (re.compile(b"a"), None, "^pattern is b'a'; it must be text, or a compiled pattern of text$"),
        (
            re.compile("a", re.VERBOSE),
            None,
            "^pattern has the flags re.VERBOSE; those that it may have are I, M and S$",
        ),
        (None, None, "^topics is empty; name at least one topic$"),
        ([], "a", "^topics is empty; name at least one topic$"),
    ],
)
def test_a_wrong_pattern_is_refused(broker, topics, pattern, problem):
    with pytest.raises(InvalidUsage, match=problem):
        Consumer(GROUP, topics, broker.bootstrap, pattern=pattern)
