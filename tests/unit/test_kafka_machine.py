"""Kafka's own groups, as its record tells: each generation or epoch is a rebalance with its reason and its moves."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kafka_stories import GROUP, KafkaStory, has, of_consumer, seen, words
from wakeroll_model.coordinator_log.kafka_events import (
    Committed,
    CurrentSeen,
    ExpressionSeen,
    Generation,
    GroupEpoch,
    LogEvent,
    MemberSeen,
    TargetEpoch,
    TopicsSeen,
    Topology,
    Vanished,
)
from wakeroll_model.decision_rules import EpochRule, NumberingRule, OwnershipRule
from wakeroll_model.decisions import Handover, Rebalance
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard
from wakeroll_model.what_if import Variation, predict


@pytest.fixture
def story() -> KafkaStory:
    return KafkaStory()


def broken(story: KafkaStory) -> list[str]:
    """Return the rules of all decisions that those of the story break."""
    rules = (NumberingRule(), EpochRule(), OwnershipRule())
    found = [one.says for decision in story.decisions for rule in rules for one in rule.broken_by(decision)]
    return found + [one.says for rule in rules for one in rule.broken_at_end()]


# --- classic groups ---


def test_each_generation_is_a_rebalance_with_its_reason_and_its_moves(story):
    assert story.generation(1, has("a", 0, 1, 2)) == [
        "a joined",
        "1: join, 1 members, 0 moved (a joined)",
        "0: - > a first",
        "1: - > a first",
        "2: - > a first",
    ]
    assert story.generation(2, has("a", 0, 1), has("b", 2)) == [
        "b joined",
        "2: join, 2 members, 1 moved (b joined)",
        "2: a > b released",
    ]
    assert story.generation(3, has("b", 0, 1, 2)) == [
        "a gone",
        "3: gone, 1 members, 2 moved (a left or was lost)",
        "0: a > b gone",
        "1: a > b gone",
    ]
    assert story.generation(4) == [
        "b gone",
        "the group emptied",
        "4: gone, 0 members, 0 moved (b left or was lost)",
        "0: b > - gone",
        "1: b > - gone",
        "2: b > - gone",
    ]
    assert broken(story) == []


def test_a_cooperative_rebalance_has_two_generations_and_a_time_without_an_owner(story):
    story.generation(1, has("a", 0, 1), assignor="cooperative-sticky")
    assert story.generation(2, has("a", 0), has("b"), assignor="cooperative-sticky") == [
        "b joined",
        "2: join, 2 members, 0 moved, 1 free (b joined)",
        "1: a > - released",
    ]
    assert story.generation(3, has("a", 0), has("b", 1), assignor="cooperative-sticky") == [
        "3: released, 2 members, 0 moved (1 released partitions are assigned)",
        "1: a > b released",
    ]
    [one] = [one for one in story.said(Handover) if one.to == "b"]
    assert one.assigned_ms - one.released_ms == 1_000
    assert broken(story) == []


def test_a_reason_that_the_records_do_not_show_is_unknown(story):
    story.generation(1, has("a", 0), has("b", 1))
    assert story.generation(2, has("a", 0), has("b", 1)) == ["2: unknown, 2 members, 0 moved"]
    assert story.generation(3, has("a", 1), has("b", 0)) == [
        "3: leader, 2 members, 2 moved (the leader assigns differently to the same members)",
        "0: a > b released",
        "1: b > a released",
    ]
    assert story.generation(4, has("a", 1, 2), has("b", 0))[0] == (
        "4: route, 2 members, 0 moved (partitions are assigned that had no owner before)"
    )


def test_a_record_that_begins_in_the_middle_names_no_reason(story):
    """Compaction has removed the generations before: the members may have joined at any time."""
    assert story.generation(41, has("a", 0)) == ["a joined", "41: unknown, 1 members, 0 moved", "0: - > a first"]
    assert story.decisions[0].detail == "a member when the record begins"


def test_a_member_that_changes_its_topics_is_the_reason(story):
    story.generation(1, has("a", 0))
    assert story.generation(2, has("a", 0, topics=["orders", "payments"])) == [
        "a resubscribed",
        "2: subscription, 1 members, 0 moved (a subscribes orders, payments)",
    ]
    assert list(story.group.members["a"].subscriptions) == ["orders", "payments"]


def test_a_static_member_that_returns_keeps_its_queues(story):
    """Kafka records the same generation again, with another member id."""
    story.generation(1, has("s-1", 0, member_id="x", static=True), has("b", 1))
    assert story.generation(1, has("s-1", 0, member_id="y", static=True), has("b", 1)) == ["s-1 gone", "s-1 joined"]
    assert story.group.owners == {Queue("orders", "", 0): "s-1", Queue("orders", "", 1): "b"}
    assert story.group.epoch == 1


def test_a_group_that_kafka_deletes_and_creates_again_has_higher_epochs(story):
    story.generation(1, has("a", 0))
    story.generation(2)
    assert story.tell(Vanished(group_id=GROUP, protocol="classic")) == ["the group forgotten"]
    assert story.generation(1, has("a", 0))[1] == "3: join, 1 members, 0 moved (a joined)"
    assert story.generation(2, has("b", 0))[2] == "4: gone, 1 members, 1 moved (a left or was lost; b joined)"
    assert broken(story) == []


def test_offsets_follow_whoever_commits_them(story):
    assert story.committed(5) == ["0 at 5 of -"]
    story.generation(1, has("a", 0))
    assert story.committed(9) == ["0 at 9 of a"]
    assert story.committed(9) == []
    assert story.committed(2) == ["0 at 2 of a by kafka"]
    assert story.tell(Committed(group_id=GROUP, deleted=[Queue("orders", "", 0)])) == ["0 at 2 of a by kafka"]
    assert story.group.offsets == {}
    assert broken(story) == []


# --- KIP-848 ---


def test_a_group_of_kip_848_moves_a_queue_when_its_owner_has_released_it(story):
    assert story.member("a") == ["a joined"]
    assert story.epoch(1) == []
    assert story.target(1, a=[0, 1]) == ["1: join, 1 members, 0 moved (a joined)"]
    assert story.current("a", 1, [0, 1]) == ["0: - > a first", "1: - > a first"]

    story.member("b")
    story.epoch(2)
    assert story.target(2, a=[0], b=[1]) == ["2: join, 2 members, 1 moved (b joined)"]
    assert story.current("a", 1, [0], revoking=[1]) == []
    assert list(story.group.members["a"].revoking) == [Queue("orders", "", 1)]
    assert story.current("a", 2, [0]) == ["1: a > - released"]
    assert story.current("b", 2, [1]) == ["1: a > b released"]
    [moved] = [one for one in story.said(Handover) if one.to == "b"]
    assert (moved.released_ms - moved.revoked_ms, moved.assigned_ms - moved.released_ms) == (1_000, 1_000)
    assert broken(story) == []


def test_a_member_of_kip_848_that_is_gone_frees_its_queues_at_once(story):
    story.member("a"), story.member("b")
    story.target(1, a=[0], b=[1])
    story.current("a", 1, [0]), story.current("b", 1, [1])
    assert story.gone("b") == ["1: b > - gone", "b gone"]
    story.epoch(2)
    assert story.target(2, a=[0, 1]) == ["2: gone, 1 members, 1 moved (b left or was lost)"]
    assert story.current("a", 2, [0, 1]) == ["1: b > a gone"]
    assert broken(story) == []


def test_the_last_member_that_goes_is_a_rebalance_whether_a_target_is_recorded_or_not(story):
    """Kafka 4.0 records only the epoch of a group without members, 4.4 also its target."""
    story.member("a")
    story.target(1, a=[0])
    story.current("a", 1, [0])
    assert story.gone("a") == ["0: a > - gone", "a gone", "the group emptied"]
    assert story.epoch(2) == ["2: gone, 0 members, 0 moved (a left or was lost)"]
    assert story.target(2) == []
    assert broken(story) == []


def test_a_static_member_of_kip_848_that_returns_has_the_place_of_its_last_instance(story):
    """Kafka has no new epoch for it."""
    story.member("s-1", member_id="x", static=True)
    story.target(1, **{"s-1": [0]})
    story.current("s-1", 1, [0])
    story.gone("s-1")
    assert story.tell(of_consumer(MemberSeen, member_id="y", member=seen("s-1", member_id="y", static=True))) == [
        "s-1 joined"
    ]
    assert story.current("y", 1, [0]) == ["0: s-1 > s-1 gone"]
    assert [one.epoch for one in story.said(Rebalance)] == [1]


def test_topics_that_change_are_the_reason(story):
    story.member("a")
    story.epoch(1, topics_hash=7)
    story.target(1, a=[0])
    story.epoch(2, topics_hash=8)
    assert story.target(2, a=[0, 1]) == [
        "2: route, 1 members, 0 moved (the subscribed topics or their partitions have changed)"
    ]
    story.tell(TopicsSeen(group_id=GROUP, topics={"orders": 2}))
    story.tell(TopicsSeen(group_id=GROUP, topics={"orders": 3}))
    assert story.target(3, a=[0, 1, 2]) == ["3: route, 1 members, 0 moved (orders has 3 partitions; before 2)"]


def test_a_regular_expression_that_matches_other_topics_is_the_reason(story):
    story.member("a", topics=[], expression="ord.*")
    story.target(1, a=[])
    story.tell(ExpressionSeen(group_id=GROUP, expression="ord.*", topics=["orders"]))
    assert story.target(2, a=[0]) == [
        "2: expression, 1 members, 0 moved (the regular expression 'ord.*' matches orders)"
    ]
    assert list(story.group.members["a"].subscriptions) == ["orders"]


def test_a_classic_group_that_goes_over_to_kip_848_keeps_its_members(story):
    story.generation(4, has("a", 0), has("b", 1))
    assert story.tell(Vanished(group_id=GROUP, protocol="classic")) == []
    assert story.member("a") == []
    assert story.member("b") == []
    story.epoch(5)
    assert story.target(5, a=[0], b=[1]) == ["5: unknown, 2 members, 0 moved"]
    assert story.current("a", 5, [0]) == []
    assert len(story.group.owners) == 2


def test_a_target_that_is_recorded_again_is_no_second_rebalance(story):
    story.member("a")
    story.target(1, a=[0])
    assert story.target(1, a=[0]) == []
    assert len(story.said(Rebalance)) == 1


# --- others ---


def test_members_of_a_share_group_own_nothing(story):
    story.tell(MemberSeen(group_id=GROUP, protocol="share", member_id="a", member=seen("a")))
    assert story.tell(TargetEpoch(group_id=GROUP, protocol="share", epoch=1)) == [
        "1: join, 1 members, 0 moved (a joined; a share group: several members may read the same partition)"
    ]
    shares = {"orders": [0]}
    assert story.tell(CurrentSeen(group_id=GROUP, protocol="share", member_id="a", epoch=1, queues=shares)) == []
    assert story.group.mode == "broadcasting"


def test_tasks_of_a_streams_group_are_the_partitions_that_they_read(story):
    story.tell(Topology(group_id=GROUP, parts={"0": ["orders", "payments"]}))
    story.tell(MemberSeen(group_id=GROUP, protocol="streams", member_id="a", member=seen("a", topics=[])))
    story.tell(CurrentSeen(group_id=GROUP, protocol="streams", member_id="a", epoch=1, queues={"0": [1]}))
    assert story.group.owners == {Queue("orders", "", 1): "a", Queue("payments", "", 1): "a"}


def test_a_group_that_only_brokers_describe_is_marked_as_such(story):
    assert story.described(has("a", 0)) == [
        "a joined",
        "1: unknown, 1 members, 0 moved (a broker described the group; its record is not readable)",
        "0: - > a first",
    ]
    assert story.described(has("a", 0)) == []
    assert story.described(has("a", 0), has("b", 1))[1] == (
        "2: join, 2 members, 0 moved (b joined; a broker described the group; its record is not readable)"
    )


def test_a_hundred_generations_within_a_second_are_a_hundred_rebalances(story):
    for number in range(1, 101):
        story.generation(number, has("a", number % 2), has("b", 1 - number % 2))
    assert [one.epoch for one in story.said(Rebalance)] == list(range(1, 101))
    assert broken(story) == []


NAMES = st.sampled_from(["a", "b", "c"])
SHARES = st.dictionaries(st.sampled_from(["orders", "payments"]), st.lists(st.integers(0, 3), max_size=3), max_size=2)
SEEN = st.builds(seen, NAMES, member_id=st.sampled_from(["x", "y", "z"]), static=st.booleans())
ANY_EVENT = st.one_of(
    st.builds(
        Generation,
        group_id=st.just(GROUP),
        generation=st.integers(-1, 4),
        members=st.lists(st.builds(has, NAMES, st.integers(0, 3), member_id=st.sampled_from(["x", "y"])), max_size=3),
    ),
    st.builds(Vanished, group_id=st.just(GROUP), protocol=st.sampled_from(["classic", "consumer", "share"])),
    st.builds(
        MemberSeen,
        group_id=st.just(GROUP),
        protocol=st.sampled_from(["consumer", "share", "streams"]),
        member_id=st.sampled_from(["x", "y", "z"]),
        member=st.none() | SEEN,
    ),
    st.builds(
        CurrentSeen,
        group_id=st.just(GROUP),
        protocol=st.sampled_from(["consumer", "share"]),
        member_id=st.sampled_from(["x", "y", "z"]),
        epoch=st.integers(-2, 4),
        queues=st.none() | SHARES,
        revoking=SHARES,
    ),
    st.builds(GroupEpoch, group_id=st.just(GROUP), protocol=st.just("consumer"), epoch=st.integers(-1, 4)),
    st.builds(TargetEpoch, group_id=st.just(GROUP), protocol=st.just("consumer"), epoch=st.integers(-1, 4)),
    st.builds(
        Committed,
        group_id=st.just(GROUP),
        offsets=st.just([]),
        deleted=st.lists(st.builds(Queue, st.just("orders"), st.just(""), st.integers(0, 3)), max_size=2),
    ),
)


@given(st.lists(ANY_EVENT, max_size=25))
def test_whatever_a_record_says_the_decisions_keep_their_rules(events):
    """A truncated or hostile record may say anything, in any order: no crash, and no queue with two owners."""
    story = KafkaStory()
    for event in events:
        story.tell(event)
    assert broken(story) == []
    # A restart continues with the same state, and decides the same.
    half = len(story.records) // 2
    shard = Shard("wakeroll.kafka", 0, 1, raises=True)
    again = [one for record in story.records[:half] for one in shard.apply(record)]
    shard = Shard("wakeroll.kafka", 0, 1, shard.body(), raises=True)
    again += [one for record in story.records[half:] for one in shard.apply(record)]
    assert again == story.decisions


def test_no_control_topic_accepts_these_events():
    """Otherwise a client could put on record what Kafka never did."""
    value = msgspec.json.encode(Generation(group_id=GROUP, generation=1))
    [refused] = Shard("wakeroll.groups", 0, 1).apply(Record("wakeroll.groups", 0, 0, 1, GROUP.encode(), value))
    assert words(refused).startswith("rejected: no type 'generation'")
    assert msgspec.json.decode(value, type=LogEvent).generation == 1


def test_what_if_plays_with_the_true_subscriptions_and_the_assignor(story):
    """Range gives the first members more; a third member that subscribes the same takes its share."""
    story.route("orders", 4)
    story.generation(1, has("a", 0, 1), has("b", 2, 3))
    found = predict(story.shard, GROUP, Variation(add=1))

    assert (found.now.strategy, found.then.strategy) == ("range", "AVG")
    assert sorted(len(queues) for queues in found.then.shares.values()) == [1, 1, 2]
    assert found.is_calm
    assert story.group.owners == {Queue("orders", "", number): "ab"[number // 2] for number in range(4)}
