"""Members of a group with different filters of a topic, as during a rolling deployment: nothing is lost."""

import logging
import random
from collections import Counter
from collections.abc import Mapping

import pytest

from tests.support.samples import sample
from wakeroll import Consumer, Sql92
from wakeroll.testing import Member, MemoryBroker
from wakeroll_model.queue import Queue

GROUP, TOPIC = "billing", "orders"
PAID, BOTH, REFUNDED = "paid", "paid || refunded", "refunded"


class World:
    """A group on a broker in memory, and the messages that were sent to it."""

    def __init__(self, broker: MemoryBroker, queues: int = 2) -> None:
        self.broker = broker
        broker.create_topic(TOPIC, queues=queues)
        self.members: dict[str, Member] = {}
        self.ends: dict[Queue, int] = {}
        """Queue -> offset after its last message."""
        self._number = 0

    def join(self, name: str, expression: str, **arguments: object) -> Member:
        """Let a member join, and wait until the others know its filter."""
        self.members[name] = self.broker.join(
            GROUP, {TOPIC: expression}, lambda _messages: None, client_id=name, **arguments
        )
        self.broker.settle()
        return self.members[name]

    def change(self, name: str, expression: str) -> None:
        """Let a member subscribe with another filter, and wait until the others know it."""
        self.members[name].consumer.subscribe({TOPIC: expression})
        self.broker.settle()

    def leave(self, name: str) -> None:
        self.members.pop(name).stop()
        self.broker.settle()

    def crash(self, name: str) -> None:
        self.members.pop(name).crash()
        self.broker.settle()

    def send(self, count: int, *tags: str) -> None:
        """Send so many messages with each of these tags, in turn, to all queues."""
        for _ in range(count):
            for tag in tags:
                self._number += 1
                key = str(self._number)
                queue, offset = self.broker.send(TOPIC, f"{tag} {key}", key=key, tags=tag, properties={"n": "1"})
                self.ends[queue] = offset + 1

    @property
    def times(self) -> Counter[str]:
        """How often each message was delivered."""
        return Counter((one.message.value() or b"").decode() for one in self.broker.deliveries(GROUP))

    @property
    def delivered(self) -> Counter[str]:
        """How many different messages of each tag were delivered; fails if one was delivered twice."""
        assert set(self.times.values()) <= {1}, [value for value, count in self.times.items() if count > 1]
        return Counter(value.split()[0] for value in self.times)

    @property
    def lag(self) -> int:
        """Messages between the committed offsets and the ends of the queues."""
        committed = self.broker.committed(GROUP)
        return sum(end - committed.get(queue, 0) for queue, end in self.ends.items())


def test_a_filter_that_is_widened_by_one_member_after_the_other_loses_nothing():
    """The members of before keep what only the new ones want, until these own the queues."""
    with MemoryBroker() as broker:
        world = World(broker)
        world.join("v1-a", PAID)
        world.join("v1-b", PAID)
        world.send(5, "paid", "shipped")
        broker.run_until_done()
        world.join("v2-a", BOTH)
        world.send(10, "paid", "refunded", "shipped")
        broker.run_until_done()
        world.leave("v1-a")
        world.send(10, "paid", "refunded", "shipped")
        broker.run_until_done()
        world.join("v2-b", BOTH)
        world.leave("v1-b")
        broker.run_until_done()

        assert world.delivered == {"paid": 25, "refunded": 20}
        assert world.lag == 0


def test_a_filter_that_is_narrowed_passes_over_a_message_only_when_nobody_wants_it():
    """The last member of before takes what it still wants; afterwards nothing is held back."""
    with MemoryBroker() as broker:
        world = World(broker)
        world.join("v1", BOTH)
        world.join("v2-a", PAID)
        world.send(10, "paid", "refunded")
        broker.run_until_done()
        assert world.delivered["paid"] == 10
        assert world.lag > 0, "the queue of v2 waits for v1"
        world.leave("v2-a")
        broker.run_until_done()
        assert world.delivered == {"paid": 10, "refunded": 10}

        world.join("v2-a", PAID)
        world.leave("v1")
        world.send(5, "paid", "refunded")
        broker.run_until_done()

        assert world.delivered == {"paid": 15, "refunded": 10}
        assert world.lag == 0


def test_a_filter_that_a_member_changes_keeps_to_the_rules_of_a_group():
    """It is as if the member left and came back with the other filter, but its queues stay with it."""
    with MemoryBroker() as broker:
        world = World(broker)
        world.join("a", PAID)
        world.join("b", PAID)
        world.send(10, "paid", "refunded")
        broker.run_until_done()
        assert world.lag == 0
        world.change("a", BOTH)
        world.send(10, "paid", "refunded")
        broker.run_until_done()
        assert world.delivered["paid"] == 20
        assert world.lag > 0, "the queue of b waits for a"
        world.change("b", BOTH)
        broker.run_until_done()

        assert world.delivered == {"paid": 20, "refunded": 20 - 10}
        assert world.lag == 0


@pytest.mark.parametrize("end", ["leave", "crash"])
def test_disjoint_filters_take_turns(end):
    """Neither loses a message of its own, whoever owns which queue, and how often that changes."""
    with MemoryBroker() as broker:
        world = World(broker)
        world.join("a", PAID)
        for turn in range(3):
            world.join(f"b{turn}", REFUNDED)
            world.send(10, "paid", "refunded")
            broker.run_until_done()
            getattr(world, end)(f"b{turn}")
            world.join(f"b{turn} again".replace(" ", "-"), REFUNDED)
            world.leave(f"b{turn}-again")
            world.send(3, "paid")
            broker.run_until_done()
        world.join("all", "*")
        world.leave("a")
        broker.run_until_done()

        times = world.times
        assert Counter(value.split()[0] for value in times)["paid"] == 39
        if end == "leave":
            assert set(times.values()) == {1}


def test_three_filters_one_of_them_a_condition():
    """Tags and SQL92 are filters alike; each message is delivered once."""
    with MemoryBroker() as broker:
        world = World(broker, queues=3)
        world.join("tags", PAID)
        world.join("condition", Sql92("TAGS = 'refunded' AND n = 1"))
        world.join("other", "shipped")
        world.send(12, "paid", "refunded", "shipped", "lost")
        broker.run_until_done()
        world.join("tags-2", PAID)
        world.join("condition-2", Sql92("TAGS = 'refunded' AND n = 1"))
        world.join("other-2", "shipped")
        broker.run_until_done()
        world.join("all", "*")
        for name in ("tags", "condition", "other", "tags-2", "condition-2", "other-2"):
            world.leave(name)
        broker.run_until_done()

        delivered = world.delivered
        assert {tag: delivered[tag] for tag in ("paid", "refunded", "shipped")} == dict.fromkeys(
            ("paid", "refunded", "shipped"), 12
        )


def test_equal_filters_hold_nothing_back():
    """A commit has one offset then, as it always had."""
    with MemoryBroker() as broker:
        world = World(broker)
        world.join("a", PAID)
        world.join("b", PAID)
        world.send(10, "paid", "refunded")
        broker.run_until_done()

        assert world.delivered == {"paid": 10}
        assert world.lag == 0


def test_a_member_that_leaves_frees_what_was_kept_for_it():
    """The rollout was cancelled: the queues are not read again, and the commits pass what nobody wants any more."""
    with MemoryBroker() as broker:
        world = World(broker)
        world.join("v1", PAID)
        world.join("v2", BOTH)
        world.send(10, "paid", "refunded")
        broker.run_until_done()
        assert world.lag > 0, "the queue of v1 waits for v2"
        world.leave("v2")
        broker.run_until_done()

        assert world.lag == 0
        assert world.delivered["paid"] == 10


def test_messages_that_were_read_and_not_committed_count_for_the_new_filter():
    """A member has passed over a message and committed nothing yet: it reads again when another one wants that."""
    with MemoryBroker() as broker:
        world = World(broker, queues=1)
        world.join("v1", PAID, commit_interval=60.0)
        world.send(10, "refunded", "paid")
        broker.wait_until(lambda: len(world.times) == 10)
        world.join("v2", BOTH)
        world.leave("v1")
        broker.run_until_done()

        assert world.delivered == {"paid": 10, "refunded": 10}
        assert world.lag == 0


def test_a_queue_that_is_revoked_with_the_news_of_a_filter_is_not_committed_beyond_it():
    """The assignment that revokes a queue is the first one with the new filter: nothing of the queue is read again."""
    with MemoryBroker() as broker:
        world = World(broker, queues=2)
        world.join("v1", PAID, commit_interval=60.0)
        world.send(10, "refunded", "paid")
        broker.wait_until(lambda: len(world.times) == 10)
        world.join("v2", BOTH)
        broker.run_until_done()
        world.leave("v1")
        broker.run_until_done()

        assert world.delivered == {"paid": 10, "refunded": 10}
        assert world.lag == 0


def test_an_exception_in_a_callback_leaves_the_offsets_right():
    """After it, the consumer reads again from its committed offset, and delivers nothing that is processed."""
    problems = [ValueError("once")]

    def raise_once(_consumer: Consumer, _queues: list[Queue]) -> None:
        if problems:
            raise problems.pop()

    with MemoryBroker() as broker:
        world = World(broker)
        polled: list[str] = []
        with Consumer(
            GROUP, {TOPIC: PAID}, broker.bootstrap, client_id="v1", consume_from="first", on_revoked=raise_once
        ) as consumer:

            def poll() -> bool:
                try:
                    message = consumer.poll(0.05)
                except ValueError:
                    return True
                if message is not None:
                    polled.append((message.value() or b"").decode())
                return not problems

            broker.wait_until(lambda: consumer.poll(0) or len(consumer.assignment()) == 2)
            world.send(10, "paid", "refunded")
            broker.wait_until(lambda: [poll(), len(polled) >= 5][1])
            world.members["v2"] = broker.join(GROUP, {TOPIC: BOTH}, lambda _messages: None, client_id="v2")
            broker.wait_until(poll)
            world.send(10, "paid", "refunded")
            broker.wait_until(lambda: [poll(), len(consumer.assignment()) == 1][1])
            broker.wait_until(lambda: consumer.poll(0.05) is None and not any(consumer.lag().values()))
        broker.run_until_done()

        assert world.delivered["refunded"] == 20
        assert world.lag == 0


def test_both_members_log_which_filters_differ_and_when_they_agree_again(caplog):
    """A lag that stays has its reason in the log of the member that causes it."""
    caplog.set_level(logging.INFO, logger="wakeroll")
    with MemoryBroker() as broker:
        world = World(broker)
        world.join("v1", PAID)
        world.join("v2", BOTH)
        world.send(3, "paid")
        broker.run_until_done()
        world.leave("v1")

    said = [record.getMessage() for record in caplog.records if "filters" in record.getMessage()]
    assert sorted(line for line in said if "other filters" in line) == [
        f"client '{name}' of group 'billing': other members have other filters ({TOPIC}: TAG '{expression}'); messages "
        "that only they want are kept for them: no commit passes the first of these in a queue"
        for name, expression in (("v1", BOTH), ("v2", PAID))
    ]
    assert "client 'v2' of group 'billing': the members have the same filters; no messages are kept for others" in said


def test_a_member_that_takes_the_filter_of_another_keeps_what_a_third_one_wants():
    """No filter is new in the group, but it is new that this member does not want what the third one wants."""
    with MemoryBroker() as broker:
        world = World(broker, queues=3)
        for name, expression in (("a", "*"), ("b", "*"), ("c", PAID)):
            world.join(name, expression)
        world.change("a", PAID)
        world.send(40, "paid", "refunded")
        broker.run_until_done()
        world.leave("a")
        world.leave("c")
        broker.run_until_done()

        assert world.delivered == {"paid": 40, "refunded": 40}


def test_a_reset_counts_for_all_filters():
    """An operator that sets an offset back wants the messages again, also those that one filter has processed."""
    with MemoryBroker() as broker:
        world = World(broker, queues=1)
        world.join("v1", PAID)
        world.join("v2", BOTH)
        world.send(5, "paid", "refunded")
        broker.run_until_done()
        broker.redeliver(GROUP)
        broker.run_until_done()

        assert [count for value, count in sorted(world.times.items()) if value.startswith("paid")] == [2] * 5


TAGS = ("a", "b", "c")
FILTERS: Mapping[str, frozenset[str]] = {
    "a": frozenset("a"),
    "b": frozenset("b"),
    "c": frozenset("c"),
    "a || b": frozenset("ab"),
    "b || c": frozenset("bc"),
    "*": frozenset("abc"),
}


@pytest.mark.parametrize("seed", sample(range(12), quick=4))
def test_no_message_is_lost_that_some_member_wants_all_the_time(seed):
    """Random filters, some of which change at run time, moves, departures and crashes.

    A message must be delivered if from its sending to the end there was always a member that wants it. It is delivered
    again only after a crash.
    """
    rng = random.Random(seed)
    with MemoryBroker() as broker:
        world = World(broker, queues=3)
        wants: dict[str, frozenset[str]] = {}
        owed: dict[str, str] = {}
        """Message that must be delivered, if it is not delivered yet -> its tag."""
        crashes = joined = 0

        def join() -> None:
            nonlocal joined
            joined += 1
            expression = rng.choice(sorted(FILTERS))
            name = f"m{joined}"
            world.join(name, expression, commit_interval=rng.choice([0.1, 5.0]), batch_size=rng.choice([1, 8]))
            wants[name] = FILTERS[expression]

        join()
        for _ in range(10):
            match rng.choice(["join", "leave", "crash", "send", "send", "done", "change"]):
                case "join" if len(wants) < 4:
                    join()
                case "change":
                    name, expression = rng.choice(sorted(wants)), rng.choice(sorted(FILTERS))
                    world.change(name, expression)
                    wants[name] = FILTERS[expression]
                case "leave" | "crash" as end if len(wants) > 1:
                    name = rng.choice(sorted(wants))
                    crashes += end == "crash"
                    del wants[name]
                    getattr(world, end)(name)
                case "send":
                    before = world._number
                    world.send(rng.randint(1, 6), *TAGS)
                    for number in range(before + 1, world._number + 1):
                        owed[f"{TAGS[(number - 1) % 3]} {number}"] = TAGS[(number - 1) % 3]
                case _:
                    broker.run_until_done()
            wanted = frozenset().union(*wants.values())
            owed = {value: tag for value, tag in owed.items() if tag in wanted}
        world.join("last", "*")
        for name in sorted(wants):
            world.leave(name)
        broker.run_until_done()

        assert owed.keys() - world.times.keys() == set()
        if not crashes:
            assert set(world.times.values()) <= {1}
        assert world.lag == 0
