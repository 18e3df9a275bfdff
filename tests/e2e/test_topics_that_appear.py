"""Topics that do not exist yet when a group subscribes them, with a real broker and an observer of its own."""

import os
import re
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import NewTopic

from tests.support.systems.coordinator_thread import Coordinator
from tests.support.waiting import wait_until
from wakeroll import Consumer
from wakeroll.connection import Connection, Topics
from wakeroll.headers import headers_of
from wakeroll.keys import key_to_sign, new_signer
from wakeroll_model import feature_levels
from wakeroll_model.decisions import Assignment, Rebalance
from wakeroll_model.events import Level
from wakeroll_model.signing import DEV_KEYS
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.local.child_process import Child

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0


@pytest.fixture
def coordinator(broker) -> Iterator[Coordinator]:
    """A coordinator at the newest level that needs an observer."""
    connection = Connection(broker.bootstrap, topics=Topics(f"plane-{uuid.uuid4().hex[:6]}"))
    ensure_topics(connection)
    thread = Coordinator(connection, observes=False)
    thread.start()
    thread.everywhere(Level(level=feature_levels.NEWEST), new_signer(key_to_sign(DEV_KEYS, "operator")))
    wait_until(lambda: set(thread.levels.values()) == {feature_levels.NEWEST}, "the level is raised")
    yield thread
    thread.stop()


@pytest.fixture
def observer(coordinator, tmp_path) -> Iterator[Child]:
    connection = coordinator.connection
    command = [sys.executable, "-m", "wakeroll_pipeline.cli", "observe", "--bootstrap", connection.bootstrap]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WAKEROLL_")}
    with Child(
        "the observer",
        [*command, "--prefix", connection.topics.prefix],
        log=tmp_path / "observer.log",
        env=environment,
        folder=ROOT,
    ) as child:
        yield child


@pytest.mark.parametrize("mode", ["clustering", "broadcasting"])
def test_a_topic_that_is_created_after_its_subscription_loses_no_message(coordinator, observer, group_id, mode):
    """`last` is the default: it skips what was sent before the subscription, and nothing that was sent after it."""
    connection = coordinator.connection
    known, later = f"known-{uuid.uuid4().hex[:6]}", f"later-{uuid.uuid4().hex[:6]}"
    admin, producer = connection.admin(), connection.producer()

    def send(topic: str, *values: str) -> None:
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(PATIENCE_S) == 0

    admin.create_topics([NewTopic(known, 1, 1)])[known].result(PATIENCE_S)
    send(known, "before the subscription")
    seen: list[str] = []
    prefix = connection.topics.prefix
    with Consumer(group_id, [known, later], connection.bootstrap, prefix=prefix, mode=mode) as consumer:

        def reads(*values: str) -> bool:
            if (message := consumer.poll(0.05)) is not None:
                seen.append((message.value() or b"").decode())
            return len(seen) >= len(values)

        wait_until(lambda: consumer.poll(0.05) or consumer.assignment(), "it has the topic that exists")
        wait_until(
            lambda: consumer.poll(0.05) or f"{later} does not exist" in observer.log_tail(), "the other is missed"
        )
        admin.create_topics([NewTopic(later, 2, 1)])[later].result(PATIENCE_S)
        numbers = [str(number) for number in range(20)]
        send(later, *numbers)
        send(known, "after it")
        wait_until(lambda: reads("after it", *numbers), "all is read", state=lambda: f"{seen}; {observer.log_tail()}")

    assert sorted(seen) == sorted(["after it", *numbers])


def test_topics_that_match_a_pattern_are_read_when_they_appear_and_left_when_they_vanish(
    coordinator, observer, group_id
):
    """One rebalance for the group per topic, however many members it has. Internal topics never match."""
    connection = coordinator.connection
    admin, producer = connection.admin(), connection.producer()
    family = f"family-{uuid.uuid4().hex[:6]}"
    first, later, other = f"{family}.a", f"{family}.b", f"other-{family}"

    def make(topic: str) -> None:
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(PATIENCE_S)

    def send(topic: str, *values: str) -> None:
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0

    def rebalances() -> int:
        return sum(isinstance(one, Rebalance) and one.group_id == group_id for one in list(coordinator.decided))

    def matched() -> list[str]:
        return [one.detail for one in list(coordinator.decided) if getattr(one, "change", "") == "matched"]

    make(first)
    make(other)
    seen: list[str] = []
    with ExitStack() as stack:
        members = [
            stack.enter_context(
                Consumer(
                    group_id, None, connection.bootstrap, prefix=connection.topics.prefix, pattern=f"{family}[.].*"
                )
            )
            for _ in range(2)
        ]

        def poll() -> None:
            received = [member.poll(0.02) for member in members]
            seen.extend((one.value() or b"").decode() for one in received if one is not None)

        def owned() -> list[str]:
            poll()
            return sorted(str(queue) for member in members for queue in member.assignment())

        wait_until(lambda: owned() == [f"{first}-0", f"{first}-1"], "the topic is read", state=observer.log_tail)
        wait_until(lambda: not poll() and all(len(member.assignment()) == 1 for member in members), "both have one")
        before = rebalances()
        make(later)
        send(later, *(str(number) for number in range(20)))
        wait_until(
            lambda: not poll() and len(seen) >= 20, "the new topic is read from its first message", state=lambda: seen
        )
        assert sorted(seen, key=int) == [str(number) for number in range(20)]
        assert rebalances() == before + 1
        assert owned() == [f"{topic}-{number}" for topic in (first, later) for number in range(2)]

        admin.delete_topics([later])[later].result(PATIENCE_S)
        wait_until(lambda: not poll() and f"-{later}" in matched()[-1], "the topic leaves the pattern")
        wait_until(lambda: owned() == [f"{first}-0", f"{first}-1"], "its queues are released")
        assert rebalances() == before + 2
        changes = (f"+{first}", f"+{later}", f"-{later}")
        assert matched() == [f"{change} by pattern '{family}[.].*'" for change in changes]


def test_filters_of_a_pattern_change_at_run_time_one_member_after_the_other(coordinator, observer, group_id):
    """Each message is handled as the rules say: once by those that want it when it is sent, or not at all."""
    connection = coordinator.connection
    admin, producer = connection.admin(), connection.producer()
    family = f"family-{uuid.uuid4().hex[:6]}"
    first, later, pattern = f"{family}.a", f"{family}.b", re.compile(f"{family}[.].*")
    seen: Counter[str] = Counter()
    lock = threading.Lock()

    def handle(messages: list[Message]) -> None:
        with lock:
            seen.update((one.value() or b"").decode() for one in messages)

    def make(topic: str) -> None:
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(PATIENCE_S)

    def send(batch: str, *topics: str) -> None:
        for topic in topics:
            for number in range(60):
                tag = ("paid", "refunded", "shipped")[number % 3]
                value = f"{batch} {topic} {tag} {number}"
                producer.produce(topic, value, partition=number // 3 % 2, headers=headers_of(tag, {}))
        assert producer.flush(PATIENCE_S) == 0

    def of(batch: str, *tags: str, topics: tuple[str, ...]) -> set[str]:
        numbers = [(("paid", "refunded", "shipped")[number % 3], number) for number in range(60)]
        return {f"{batch} {topic} {tag} {number}" for topic in topics for tag, number in numbers if tag in tags}

    def is_told(member: Consumer, *filters: str) -> bool:
        told = [one for one in list(coordinator.decided) if getattr(one, "client_id", "") == member.client_id]
        others = [one.others or [] for one in told if isinstance(one, Assignment)]
        return bool(others) and {other.expression for other in others[-1]} == set(filters)

    def owns(*topics: str) -> bool:
        owned = sorted(str(queue) for member, _ in members for queue in member.assignment())
        return owned == [f"{topic}-{number}" for topic in topics for number in range(2)]

    make(first)
    members: list[tuple[Consumer, threading.Thread]] = []
    try:
        for _ in range(2):
            consumer = Consumer(
                group_id, {pattern: "paid"}, connection.bootstrap, prefix=connection.topics.prefix, consume_from="first"
            )
            members.append((consumer, threading.Thread(target=consumer.run, args=(handle,))))
            members[-1][1].start()
        (a, _), (b, _) = members
        wait_until(
            lambda: owns(first) and a.assignment() and b.assignment(), "both have a queue", state=observer.log_tail
        )
        send("alike", first)
        must = of("alike", "paid", topics=(first,))
        wait_until(lambda: must <= seen.keys(), "all that both want is handled")

        a.subscribe({pattern: "paid || refunded"})
        wait_until(lambda: is_told(b, "paid || refunded") and is_told(a, "paid"), "each knows the other's filter")
        send("differing", first)
        must |= of("differing", "paid", topics=(first,))
        wait_until(lambda: must <= seen.keys(), "what both want is handled")
        b.subscribe({pattern: "paid || refunded"})
        must |= of("differing", "refunded", topics=(first,))
        wait_until(
            lambda: must <= seen.keys(), "what b has kept is handled", state=lambda: sorted(must - seen.keys())[:5]
        )

        wait_until(lambda: is_told(a) and is_told(b), "both want the same again")
        make(later)
        send("new topic", first, later)
        must |= of("new topic", "paid", "refunded", topics=(first, later))
        wait_until(lambda: must <= seen.keys(), "a topic appears", state=lambda: sorted(must - seen.keys())[:5])

        for consumer, _ in members:
            consumer.subscribe({first: "shipped"})
        wait_until(lambda: owns(first), "the other topic is left")
        wait_until(lambda: is_told(a) and is_told(b), "both want the same again")
        send("a list", first, later)
        must |= of("a list", "shipped", topics=(first,))
        wait_until(lambda: must <= seen.keys(), "the list is read", state=lambda: sorted(must - seen.keys())[:5])
    finally:
        for consumer, thread in members:
            consumer.stop()
            thread.join(PATIENCE_S)
            consumer.close()

    # What was sent before a filter came and was not committed then may be handled for it, too.
    may = of("alike", "refunded", topics=(first,)) | of("new topic", "shipped", topics=(first,))
    may |= of("alike", "shipped", topics=(first,)) | of("differing", "shipped", topics=(first,))
    assert set(seen) - must <= may
    assert set(seen.values()) == {1}
