"""The live model: it shows what the coordinator knows, from a log that it reads from the start or from a snapshot."""

import time

import msgspec
import pytest

from tests.support.ledgers import PARTITIONS, Story, a_day, offsets_of, owners_of, two_eras
from wakeroll.connection import Topics
from wakeroll_model.decisions import AnyDecision, Handover
from wakeroll_model.events import Heartbeat, Route, RoutedQueue, Subscription
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.signing import OnRecord
from wakeroll_pipeline.live.live_model import LiveModel
from wakeroll_pipeline.live.shard_follower import ShardFollower
from wakeroll_pipeline.live.view_structs import GroupSummary

TOPICS = Topics()
_decode = msgspec.json.Decoder(AnyDecision).decode


def a_model() -> LiveModel:
    model = LiveModel(TOPICS, PARTITIONS)
    for topic in TOPICS.control:
        for partition in range(PARTITIONS):
            model.put_shard(ShardFollower((topic, partition), PARTITIONS, OnRecord()))
    return model


def follow(model: LiveModel, story: Story, *, publishes: bool = True) -> LiveModel:
    """Let a model read a story: the records, and the decisions about them."""
    for row in story.rows:
        read(model, row, publishes=publishes)
    model.refresh()
    return model


def read(model: LiveModel, row: tuple, *, publishes: bool = True) -> None:
    topic, partition, _, at_ms, _, value = row
    if topic != TOPICS.decisions:
        model.apply(Record(*row), time.monotonic())
    elif publishes:
        model.note_decision(partition, _decode(value), at_ms)


def owners(model: LiveModel, group_id: str) -> dict[str, str]:
    view = model.group_view(group_id)
    assert view is not None
    return {one.name: one.owner for one in view.queues}


@pytest.fixture(scope="module")
def story() -> Story:
    return a_day()


@pytest.fixture(scope="module")
def model(story: Story) -> LiveModel:
    return follow(a_model(), story)


def test_the_groups_are_those_of_the_log(model):
    assert [one.group_id for one in model.groups_view().groups] == ["audit", "billing"]


def test_the_owners_are_those_of_the_published_handovers(model, story):
    """The view comes from the model's own state, the expectation from what the coordinator published."""
    for (group_id, topic, number), client_id in owners_of(story).items():
        assert owners(model, group_id)[str(Queue(topic, "", number))] == (client_id or "")


def test_the_committed_offsets_are_those_of_the_published_decisions(model, story):
    for (group_id, topic, number), offset in offsets_of(story).items():
        view = model.group_view(group_id)
        [row] = [one for one in view.queues if one.queue == Queue(topic, "", number)]
        assert row.committed_offset == offset


def test_the_lag_is_counted_from_the_ends_of_the_newest_routes(model):
    """There are 10 queues of 2,000 messages; billing committed 300 for 8 of them, and two were added."""
    [billing] = [one for one in model.groups_view().groups if one.group_id == "billing"]

    assert billing.lag_messages == 8 * 1_700
    assert billing.queues == 10


def test_messages_that_were_deleted_unread_are_no_lag():
    """Otherwise a group that was away for longer than the retention would have a lag that no consumer can reduce."""
    story = Story()
    story.route("orders", 1, ends=100)
    story.join("billing", "c1", "orders")
    story.pass_seconds(5)
    story.commit("billing", 20)
    lags = []
    for first in (0, 60, 100):
        story.route("orders", 1, ends=100, first=first)
        [billing] = follow(a_model(), story).groups_view().groups
        lags.append(billing.lag_messages)

    assert lags == [80, 40, 0]


def test_a_process_that_waited_for_a_client_id_and_ended_is_no_duplicate():
    """The state keeps its last heartbeat, so the verdict would stay as long as the member."""
    story, found = Story(), []
    story.route("orders", 1)
    story.join("billing", "c1", "orders")
    story.pass_seconds(5)
    second = Heartbeat(
        group_id="billing", client_id="c1", instance_id="second", subscriptions=[Subscription(topic="orders")]
    )
    story.append(second)
    for _ in range(3):
        story.pass_seconds(10)
        [billing] = follow(a_model(), story).groups_view().groups
        found.append(billing.verdict)

    assert found == ["duplicate", "duplicate", "healthy"]


def test_every_published_decision_agrees_with_the_models(model):
    assert [one.name for one in model.shards.values() if one.progress.is_different] == []
    assert sum(one.progress.pending for one in model.shards.values()) == 0


def test_decisions_that_are_not_published_are_pending(story):
    """The coordinator is dead: the model knows what it will decide, and how much of it."""
    model = follow(a_model(), story, publishes=False)

    assert sum(one.progress.pending for one in model.shards.values()) == len(story.decisions)


def test_a_rebalance_shows_its_cause_and_what_it_moved(model):
    rebalances = model.group_view("billing").rebalances
    [left] = [one for one in rebalances if one.trigger == "leave"]

    assert "c1" in {move.before for move in left.moves}
    assert "c1" not in {move.after for move in left.moves}
    assert "unregistered" in {move.how for move in left.moves}
    assert left.cause.startswith("wakeroll.groups-")


def test_a_held_pull_is_shown_with_its_client():
    story = Story()
    story.route("payments", 1, ends=500)
    story.join("audit", "a1", "payments")
    story.pass_seconds(5)
    story.pull("audit", "a1", "payments", 0, 500)
    story.pull("audit", "a1", "payments", 0, 500)
    view = follow(a_model(), story).group_view("audit")

    assert [(one.queue, one.client_id, one.from_offset) for one in view.holds] == [("payments-0", "a1", 500)]
    assert [one.is_held for one in view.queues] == [True]


def test_a_rejected_record_is_shown_with_its_group():
    story = Story()
    story.join("billing", "c1", "orders", session_timeout_ms=1)
    view = follow(a_model(), story).feed.rejections

    assert [one.decision.rule for one in view] == ["bounds"]


def test_a_lane_shows_each_owner_of_a_queue(model, story):
    """The owners of the lane are those of the hand-overs, in order."""
    lanes = {one.queue: [each.client_id for each in one.periods] for one in model.group_view("billing").lanes}
    expected: dict[str, list[str]] = {}
    for one in story.decisions:
        if isinstance(one, Handover) and one.group_id == "billing":
            expected.setdefault(str(one.queue), []).append(one.to or "")

    assert lanes.keys() == expected.keys()
    assert all(lanes[name][-len(expected[name]) :] == expected[name] for name in expected)


def test_a_group_that_nothing_concerns_keeps_its_version(model):
    """Otherwise every open page would be rendered at every tick."""
    before = model.group_version("audit"), model.group_version("billing")
    for _ in range(2):
        model.refresh()

    assert (model.group_version("audit"), model.group_version("billing")) == before


def test_a_model_that_begins_with_a_snapshot_ends_as_one_that_read_everything(story):
    """A start costs the records since the last snapshot only."""
    model = LiveModel(TOPICS, PARTITIONS)
    newest = {(topic, partition): bytes(body) for topic, partition, _, _, _, _, body, _ in story.snapshots}
    for place in ((topic, partition) for topic in TOPICS.control for partition in range(PARTITIONS)):
        model.put_shard(ShardFollower(place, PARTITIONS, OnRecord(), body=newest[place]))
    follow(model, story)
    whole = follow(a_model(), story)

    for group_id in ("audit", "billing"):
        assert owners(model, group_id) == owners(whole, group_id)
    assert [one.name for one in model.shards.values() if one.progress.is_different] == []


def test_a_state_that_is_not_the_coordinators_is_noticed(story):
    """It began in the middle of the log without a snapshot, so its decisions have other numbers."""
    model = LiveModel(TOPICS, PARTITIONS)
    for place in ((topic, partition) for topic in TOPICS.control for partition in range(PARTITIONS)):
        model.put_shard(ShardFollower(place, PARTITIONS, OnRecord(), first=12))
    follow(model, story)

    assert [one.name for one in model.shards.values() if one.progress.is_different]


def test_a_later_era_of_the_coordinator_is_noticed():
    """Its state is that of a snapshot which the model did not read."""
    story = two_eras()
    model = LiveModel(TOPICS, PARTITIONS)
    for place in ((topic, partition) for topic in TOPICS.control for partition in range(PARTITIONS)):
        model.put_shard(ShardFollower(place, PARTITIONS, OnRecord(), learns_era=9, first=0))
    follow(model, story)

    assert set(model.later_eras.values()) == {10}


def test_a_shard_that_only_learns_shows_the_owners_that_members_report():
    """The log's beginning was deleted, and there is no snapshot: heartbeats list what each member owns."""
    story = a_day()
    model = LiveModel(TOPICS, PARTITIONS)
    for place in ((topic, partition) for topic in TOPICS.control for partition in range(PARTITIONS)):
        model.put_shard(ShardFollower(place, PARTITIONS, OnRecord(), learns_era=1, first=0))
    follow(model, story)
    known = {name: client_id for name, client_id in owners(model, "billing").items() if client_id}
    expected = {
        str(Queue(topic, "", number)): client_id
        for (group_id, topic, number), client_id in owners_of(story).items()
        if group_id == "billing"
    }

    assert known == expected
    assert [one.kind for one in model.groups_view().groups[1].findings if one.kind == "learning"] == ["learning"]


def summary(model: LiveModel, group_id: str) -> GroupSummary:
    [found] = [one for one in model.groups_view().groups if one.group_id == group_id]
    return found


@pytest.mark.parametrize(
    ("consume_from", "lag", "unknown"), [("last", None, 2), ("first", 200_000, 0)], ids=["unknown", "known"]
)
def test_a_queue_that_is_owned_without_a_committed_offset_is_no_consumed_one(consume_from, lag, unknown):
    """A member that never reads, as one that was suspended while it joined, must not look healthy."""
    story = Story()
    story.route("orders", 2, ends=100_000)
    story.join("billing", "c1", "orders", keeps=True, consume_from=consume_from)
    story.pass_seconds(10)
    young = summary(follow(a_model(), story), "billing")
    story.pass_seconds(40)
    old = summary(follow(a_model(), story), "billing")
    story.commit("billing", 100_000)
    done = summary(follow(a_model(), story), "billing")

    assert (old.lag_messages, old.lag_unknown) == (lag, unknown)
    assert "everything is consumed" not in young.reason
    assert (young.verdict, old.verdict, done.verdict) == ("healthy", "uncommitted", "healthy")
    assert (done.lag_messages, done.lag_unknown) == (0, 0)
    assert done.reason == "everything is consumed"


def test_an_empty_queue_without_a_committed_offset_is_consumed():
    story = Story()
    story.route("orders", 1, ends=70, first=70)
    story.join("billing", "c1", "orders")
    story.pass_seconds(60)

    found = summary(follow(a_model(), story), "billing")
    assert (found.verdict, found.lag_messages, found.lag_unknown) == ("healthy", 0, 0)


@pytest.mark.parametrize("ends", ["leave", "crash"])
def test_a_group_that_all_members_left_is_abandoned_while_messages_wait(ends):
    story = Story()
    story.route("orders", 1, ends=100)
    story.join("billing", "c1", "orders")
    story.pass_seconds(5)
    story.commit("billing", 40)
    getattr(story, ends)("billing", "c1")
    story.pass_seconds(90)
    story.route("orders", 1, ends=100)
    found = summary(follow(a_model(), story), "billing")

    assert (found.members, found.verdict, found.reason) == (0, "abandoned", "no members; 60 messages wait")


def test_a_broadcasting_group_that_everybody_left_is_abandoned_while_messages_wait_for_all():
    story = Story()
    story.route("orders", 1, ends=100)
    story.join("audit", "c1", "orders", keeps=True, mode="broadcasting")
    story.pass_seconds(5)
    story.commit("audit", 100)
    story.join("audit", "c2", "orders", keeps=True, mode="broadcasting")
    story.leave("audit", "c1")
    story.leave("audit", "c2")
    story.pass_seconds(5)
    consumed = summary(follow(a_model(), story), "audit")
    story.route("orders", 1, ends=130)
    found = summary(follow(a_model(), story), "audit")

    assert (consumed.mode, consumed.verdict, consumed.lag_messages) == ("broadcasting", "empty", 0)
    assert (found.verdict, found.reason) == ("abandoned", "no members; 30 messages wait")


def test_a_queue_whose_end_is_not_known_does_not_count_as_consumed():
    story = Story()
    queues = [
        RoutedQueue(topic="orders", broker="", queue_id=number, max_offset=end) for number, end in ((0, 100), (1, None))
    ]
    story.append(Route(topic="orders", queues=queues, version="1"))
    story.join("billing", "c1", "orders", keeps=True)
    story.pass_seconds(5)
    story.commit("billing", 100)
    found = summary(follow(a_model(), story), "billing")

    assert (found.lag_messages, found.lag_unknown) == (0, 1)
    assert found.reason == "every queue has an owner; the lag of 1 queue is not known"


def test_a_lag_that_is_known_without_a_committed_offset_has_a_series_in_the_metrics():
    story = Story()
    story.route("orders", 1, ends=100)
    story.join("billing", "c1", "orders", keeps=True, consume_from="first")
    story.pass_seconds(5)

    assert follow(a_model(), story).offsets_of("billing") == [(Queue("orders", "", 0), None, 100)]


def test_offsets_of_the_mode_that_a_group_had_before_do_not_count():
    """A group changes its mode while it is empty; the offsets of the clients that broadcast are kept for days."""
    story = Story()
    story.route("orders", 1, ends=100)
    queue = Queue("orders", "", 0)

    def consume(mode: str, offset: int) -> tuple[int | None, int | None]:
        story.join("billing", "c1", "orders", keeps=True, mode=mode)
        story.pass_seconds(5)
        story.commit("billing", offset)
        model = follow(a_model(), story)
        found = summary(model, "billing")
        committed = {at: offset for at, offset, _ in model.offsets_of("billing")}
        story.leave("billing", "c1")
        story.pass_seconds(5)
        return committed.get(queue), found.lag_messages

    assert consume("broadcasting", 17) == (17, 83)
    assert consume("clustering", 60) == (60, 40)
    assert consume("broadcasting", 20) == (20, 80)


def test_a_broadcasting_member_without_an_offset_is_not_hidden_by_the_others():
    story = Story()
    story.route("orders", 1, ends=100)
    story.join("audit", "c1", "orders", keeps=True, mode="broadcasting")
    story.pass_seconds(5)
    story.commit("audit", 100)
    alone = summary(follow(a_model(), story), "audit")
    story.join("audit", "c2", "orders", keeps=True, mode="broadcasting")
    story.pass_seconds(60)
    both = summary(follow(a_model(), story), "audit")

    assert (alone.lag_messages, alone.reason) == (0, "everything is consumed")
    assert (both.lag_messages, both.lag_unknown) == (None, 1)
    assert "not known" in both.reason
