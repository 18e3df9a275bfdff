"""The coordinator's part of patterns: bounds, routine heartbeats, and what a group remembers."""

import pytest

from tests.support.control_log import ControlLog
from wakeroll_model.config import MAX_TOPICS, UNUSED_PATTERNS, Limits
from wakeroll_model.decisions import AnyDecision, Membership, Rebalance, Rejected
from wakeroll_model.events import AnyEvent, Heartbeat, Level, Matches, Route, RoutedQueue, Subscription, Tick
from wakeroll_model.group import Group
from wakeroll_model.shard import Shard

GROUP, PATTERN = "billing", "o.*"


class Log:
    """A shard at level 4, and its records."""

    def __init__(self) -> None:
        self._log = ControlLog(1)
        self.shard = Shard("wakeroll.groups", 0, 1, raises=True)
        self._at_ms = 0
        self.say(Level(level=4))

    def say(self, event: AnyEvent) -> list[AnyDecision]:
        """Append an event two seconds after the one before; return its decisions."""
        self._at_ms += 2_000
        self.shard.apply(*self._log.append(Tick(observer="o", uptime_ms=self._at_ms), self._at_ms))
        return [one for record in self._log.append(event, self._at_ms) for one in self.shard.apply(record)]

    def matches(self, *topics: str, pattern: str = PATTERN, problem: str = "") -> list[AnyDecision]:
        return self.say(Matches(group_id=GROUP, pattern=pattern, topics=list(topics), problem=problem))

    @property
    def group(self) -> Group:
        group = self.shard.group(GROUP)
        assert group is not None
        return group


def beat(client_id: str, *topics: str, pattern: str = PATTERN, epoch: int = -1) -> Heartbeat:
    return Heartbeat(
        group_id=GROUP,
        client_id=client_id,
        instance_id=f"{client_id}-1",
        subscriptions=[Subscription(topic=topic) for topic in topics],
        pattern=pattern,
        epoch=epoch,
    )


def route(topic: str, queues: int = 1) -> Route:
    routed = [RoutedQueue(topic=topic, broker="", queue_id=number) for number in range(queues)]
    return Route(topic=topic, queues=routed, version=str(queues))


@pytest.fixture
def log() -> Log:
    log = Log()
    log.say(route("orders"))
    log.say(beat("a"))
    log.matches("orders")
    return log


def test_a_group_without_the_pattern_ignores_its_topics(log):
    """An observer of another group's pattern, or of a group that was deleted, makes no group."""
    assert log.matches("orders", pattern="other") == []
    assert log.say(Matches(group_id="nobody", pattern=PATTERN, topics=["orders"])) == []
    assert list(log.group.matches) == [PATTERN]
    assert log.shard.names() == [GROUP]


def test_one_rebalance_however_many_members_have_the_pattern(log):
    for number in range(10):
        log.say(beat(f"m{number}"))
    log.say(route("other"))
    decisions = log.matches("orders", "other")

    assert [one.change for one in decisions if isinstance(one, Membership)] == ["matched"]
    assert sum(isinstance(one, Rebalance) for one in decisions) == 1
    assert all(member.matched == ["orders", "other"] for member in log.group.members.values())


def test_a_repeated_list_leaves_routine_heartbeats_routine(log):
    """Each group with a pattern receives one every 30 s, and its members' heartbeats cost next to nothing."""
    epoch = log.group.epoch
    for _ in range(2):
        owned = sorted(log.group.members["a"].owned)
        log.say(Heartbeat(**{**_fields(beat("a", epoch=epoch)), "owned": owned}))
    assert log.group.members["a"].routine_beat != b""
    log.matches("orders")

    assert log.shard._routine._of(GROUP.encode()).clients != {}


def _fields(event: Heartbeat) -> dict[str, object]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


def test_topics_without_room_are_not_subscribed(log):
    """Topics of a pattern count as those that a member names: the state of a group is bounded."""
    log.say(Tick(observer="o", uptime_ms=10**6, limits=Limits(max_group_bytes=256 * 1024)))
    for number in range(20):
        log.say(beat(f"m{number}"))
    before = log.group.bytes
    [rejected] = log.matches("orders", *(f"o{number:0>200}" for number in range(MAX_TOPICS - 1)))

    assert isinstance(rejected, Rejected)
    assert rejected.rule == "limit"
    assert rejected.detail.startswith("pattern 'o.*' keeps its previous topics: the group would have ")
    assert log.group.bytes == before
    assert log.group.topics == ["orders"]


def test_a_member_that_leaves_returns_the_room_of_its_topics(log):
    log.say(beat("b"))
    log.matches("orders", "o1", "o2", "o3")
    log.say(beat("b", "orders", pattern=""))
    log.say(beat("a", "orders", pattern=""))

    assert [member.matched for member in log.group.members.values()] == [[], []]
    fresh = Log()
    for name in ("a", "b"):
        fresh.say(beat(name, "orders", pattern=""))
    assert log.group.bytes == fresh.group.bytes


def test_a_pattern_has_at_most_a_thousand_topics(log):
    """Those that a group has stay, whatever another observer leaves out."""
    log.matches(*(f"o{number:0>4}" for number in range(MAX_TOPICS)))

    assert len(log.group.members["a"].matched) == MAX_TOPICS
    assert "orders" in log.group.members["a"].matched


def test_a_group_remembers_some_patterns_that_nobody_has(log):
    for number in range(UNUSED_PATTERNS + 3):
        log.say(beat("a", pattern=f"p{number}"))
        log.matches(f"p{number}", pattern=f"p{number}")

    assert list(log.group.matches) == [f"p{number}" for number in range(2, UNUSED_PATTERNS + 3)]


def test_a_topic_that_is_named_keeps_its_filter(log):
    named = Subscription(topic="orders", expression="paid", version=1)
    log.say(Heartbeat(**{**_fields(beat("a")), "subscriptions": [named]}))
    log.matches("orders", "other")

    assert log.group.members["a"].subscriptions == {"orders": named, "other": Subscription(topic="other")}
    assert log.group.members["a"].matched == ["other"]


def test_a_new_problem_is_told_to_each_member_once(log):
    log.say(beat("b"))
    told = [log.matches("orders", problem=problem) for problem in ("bad", "bad", "worse", "")]

    assert [[one.client_id for one in decisions if isinstance(one, Rejected)] for decisions in told] == [
        ["a", "b"],
        [],
        ["a", "b"],
        [],
    ]
