"""The client's side of the protocol, without Kafka: what it says, obeys and may hand out."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from wakeroll_model import Queue
from wakeroll_model.client import NEVER_MS, Client, Preferences
from wakeroll_model.client_actions import Dropped, EventRefused, Give, Output, Send, Take
from wakeroll_model.decisions import (
    AnyDecision,
    AssignedQueue,
    Assignment,
    Fenced,
    FencedReason,
    OtherFilter,
    Rejected,
    Start,
)
from wakeroll_model.events import Ahead, Commit, CommittedOffset, Heartbeat, Subscription, Unregister
from wakeroll_model.last_will import LastWill

A, B, C = (Queue("orders", "", number) for number in range(3))
FIRST = Start(policy="first")


class Story:
    """A client in its first life, and the decisions that reach it, numbered."""

    def __init__(self, commit_interval_ms: int | None = 5_000) -> None:
        preferences = Preferences(subscriptions=[Subscription(topic="orders")])
        self.client = Client("billing", "c1", preferences, commit_interval_ms)
        self.seq = 0
        self.begun = self.client.join("i1", 0)

    def hears(self, decision: AnyDecision, now_ms: int = 0) -> list[Output]:
        """Hear the next decision."""
        self.seq += 1
        decision.shard, decision.seq = "groups-1.1", self.seq
        return self.client.receive(decision, now_ms)

    def is_assigned(
        self, epoch: int, queues: dict[Queue, int], revoke: tuple[Queue, ...] = (), now_ms: int = 0
    ) -> list[Output]:
        """Hear an assignment; `queues` maps each queue to the epoch it was given in."""
        return self.hears(assignment(epoch, queues, revoke), now_ms)


def assignment(epoch: int, queues: dict[Queue, int], revoke: tuple[Queue, ...] = ()) -> Assignment:
    return Assignment(
        group_id="billing",
        client_id="c1",
        instance_id="i1",
        epoch=epoch,
        queues=[AssignedQueue(queue, given, FIRST) for queue, given in queues.items()],
        revoke=list(revoke),
        state="stable",
        heartbeat_ms=10_000,
        session_timeout_ms=45_000,
        revoke_timeout_ms=30_000,
    )


def fenced(reason: FencedReason, by: str = "") -> Fenced:
    return Fenced(group_id="billing", client_id="c1", instance_id="i1", reason=reason, by=by)


def beat(epoch: int, *owned: Queue, instance_id: str = "i1", now_ms: int = 0) -> Send:
    return Send(
        Heartbeat(
            group_id="billing",
            client_id="c1",
            instance_id=instance_id,
            epoch=epoch,
            owned=list(owned),
            subscriptions=[Subscription(topic="orders")],
        ),
        now_ms,
    )


def commit_of(epoch: int, offsets: dict[Queue, int]) -> Commit:
    return Commit(
        group_id="billing",
        client_id="c1",
        instance_id="i1",
        epoch=epoch,
        offsets=[CommittedOffset(queue=queue, offset=offset) for queue, offset in offsets.items()],
    )


def commit(epoch: int, offsets: dict[Queue, int], now_ms: int = 0) -> Send:
    return Send(commit_of(epoch, offsets), now_ms)


def give(queue: Queue, given: int, instance_id: str = "i1") -> Give:
    return Give(queue, FIRST, given, instance_id)


# --- saying ---


def test_a_life_begins_with_a_heartbeat_that_has_heard_nothing():
    assert Story().begun == [beat(-1)]


def test_a_heartbeat_goes_out_at_every_interval_counted_from_the_last_one():
    """A receipt is a heartbeat too: it puts the next one off."""
    story = Story()

    assert story.client.next_due_ms() == 10_000
    assert story.client.on_time(9_999) == []
    assert story.is_assigned(1, {A: 1}, now_ms=9_999) == [give(A, 1), beat(1, A, now_ms=9_999)]
    assert story.client.on_time(10_000) == []
    assert story.client.on_time(19_999) == [beat(1, A, now_ms=19_999)]


def test_the_coordinator_sets_the_pace():
    story = Story()
    faster = structs.replace(assignment(1, {}), heartbeat_ms=500, session_timeout_ms=2_000)

    story.hears(faster)

    assert story.client.next_due_ms() == 500
    assert story.client.on_time(2_001)[0] == Dropped((), "silent")


def test_other_preferences_are_told_at_once():
    story = Story()
    preferences = Preferences(subscriptions=[Subscription(topic="payments", version=1)], weight=2.0)

    [sent] = story.client.set_preferences(preferences, 5)

    assert isinstance(sent, Send)
    assert isinstance(sent.event, Heartbeat)
    assert (sent.event.subscriptions, sent.event.weight) == (preferences.subscriptions, 2.0)


# --- obeying ---


def test_an_assignment_is_followed_and_answered_at_once():
    story = Story()

    assert story.is_assigned(1, {A: 1, B: 1}) == [give(A, 1), give(B, 1), beat(1, A, B)]


def test_a_repeated_assignment_is_silent_even_during_a_drain():
    """A coordinator repeats itself while it sees other queues than it knows; an answer each time would never end."""
    story = Story()
    story.is_assigned(1, {A: 1, B: 1})

    assert story.is_assigned(1, {A: 1, B: 1}) == []
    assert story.is_assigned(2, {A: 1}) == [Take((B,)), beat(2, A, B)]
    assert story.is_assigned(2, {A: 1}) == []
    assert story.is_assigned(2, {A: 1}, revoke=(B,)) == []


def test_a_newer_epoch_is_answered_even_if_nothing_else_changed():
    """The coordinator's timeouts wait for a receipt."""
    story = Story()
    story.is_assigned(1, {A: 1})

    assert story.is_assigned(2, {A: 1}) == [beat(2, A)]


def test_a_queue_is_drained_before_it_is_released():
    """Whether it is asked for by `revoke` or just not listed any more."""
    story = Story()
    story.is_assigned(1, {A: 1, B: 1, C: 1})

    assert story.is_assigned(2, {A: 1}, revoke=(B,)) == [Take((B, C)), beat(2, A, B, C)]
    assert story.client.draining() == [B, C]
    assert story.client.released([B], 1) == [beat(2, A, C, now_ms=1)]
    assert story.client.released([B, C], 2) == [beat(2, A, now_ms=2)]
    assert story.client.released([A, B, C], 3) == []


def test_what_is_in_revoke_is_not_held_even_if_it_is_listed():
    story = Story()
    story.is_assigned(1, {A: 1})

    assert story.is_assigned(2, {A: 1, B: 2}, revoke=(A, B)) == [Take((A,)), beat(2, A)]


def test_a_start_is_obeyed_only_when_the_queue_was_given_anew():
    """Otherwise each repetition would throw the position back."""
    story = Story()
    story.is_assigned(3, {A: 3})

    assert story.is_assigned(4, {A: 3}) == [beat(4, A)]
    assert story.client.may_hand_out(give(A, 3), 0)
    assert story.is_assigned(5, {A: 2}) == [beat(5, A)]
    assert story.client.may_hand_out(give(A, 3), 0)


def test_a_queue_given_back_while_it_drains_is_released_first():
    """What is still at work on it began under another ownership; the new one must not overlap with it."""
    story = Story()
    story.is_assigned(1, {A: 1})
    story.is_assigned(2, {})

    assert story.is_assigned(3, {A: 3}) == [beat(3, A)]
    assert not story.client.may_hand_out(give(A, 1), 0)
    assert story.client.released([A], 7) == [beat(3, now_ms=7), give(A, 3)]
    assert story.is_assigned(3, {A: 3}) == []
    assert story.client.may_hand_out(give(A, 3), 7)
    assert not story.client.may_hand_out(give(A, 1), 7)


def test_a_queue_given_anew_to_its_holder_is_drained_first():
    """An offset reset: the queue starts elsewhere, when what was handed out from before is done."""
    story = Story()
    story.is_assigned(1, {A: 1, B: 1})

    assert story.is_assigned(2, {A: 2, B: 1}) == [Take((A,)), beat(2, A, B)]
    assert story.client.released([A], 0) == [beat(2, B), give(A, 2)]


def test_a_queue_given_back_and_taken_again_while_it_drains_is_only_released():
    story = Story()
    story.is_assigned(1, {A: 1})
    story.is_assigned(2, {})
    story.is_assigned(3, {A: 3})

    assert story.is_assigned(4, {}) == [beat(4, A)]
    assert story.client.released([A], 0) == [beat(4)]


def test_an_older_epoch_is_not_obeyed():
    story = Story()
    story.is_assigned(5, {A: 5})

    assert story.is_assigned(4, {}) == []
    assert story.client.readable() == {A: give(A, 5)}


def test_a_decision_is_heard_once_a_shard():
    """The sink is at least once; another era or shard counts for itself."""
    story = Story()
    again = assignment(2, {})
    story.is_assigned(1, {A: 1})
    again.shard, again.seq = "groups-1.1", 1

    assert story.client.receive(again, 0) == []
    again.shard = "groups-1.2"
    assert story.client.receive(again, 0) == [Take((A,)), beat(2, A)]


def test_decisions_about_others_are_not_obeyed():
    """An inbox holds what other lives, other clients of the partition and other groups must hear."""
    story = Story()
    mine = assignment(1, {A: 1})

    assert story.hears(structs.replace(mine, instance_id="i0")) == []
    assert story.hears(structs.replace(mine, client_id="c2")) == []
    assert story.hears(structs.replace(mine, group_id="audit")) == []
    assert story.hears(structs.replace(fenced("replaced"), instance_id="i0")) == []
    assert story.client.epoch == -1


def test_a_refusal_is_told_once_a_rule():
    story = Story()
    refusal = Rejected(rule="mode", detail="no", client_id="c1", group_id="billing")

    assert story.hears(refusal) == [EventRefused("mode", "no")]
    assert story.hears(structs.replace(refusal, detail="still no")) == []
    assert story.hears(structs.replace(refusal, rule="bounds", group_id=None)) == [EventRefused("bounds", "no")]
    assert story.hears(structs.replace(refusal, rule="key", group_id="audit")) == []


# --- handing over ---


def test_queues_come_in_the_same_epoch_when_their_owners_let_go():
    """A grant after somebody's release takes no new epoch, and is answered like any other assignment."""
    story = Story()
    assert story.is_assigned(2, {}) == [beat(2)]

    assert story.is_assigned(2, {A: 2}) == [give(A, 2), beat(2, A)]
    assert story.is_assigned(2, {A: 2, B: 2}) == [give(B, 2), beat(2, A, B)]
    assert story.is_assigned(2, {A: 2, B: 2}) == []


def test_what_drains_is_finished_and_nothing_new_of_it_is_handed_out():
    story = Story()
    story.is_assigned(1, {A: 1})
    story.client.started([(give(A, 1), 0)], 0)
    story.is_assigned(2, {}, revoke=(A,))

    assert not story.client.may_hand_out(give(A, 1), 0)
    assert story.client.done(give(A, 1), 8)
    assert story.client.released([A], 0) == [commit(2, {A: 8}), beat(2)]
    assert not story.client.done(give(A, 1), 9)


def test_a_queue_that_was_asked_back_is_released_before_it_is_given_to_the_same_client():
    """While it is asked back the target may return to its owner; `revoke` stands until the release."""
    story = Story()
    story.is_assigned(1, {A: 1})
    assert story.is_assigned(2, {}, revoke=(A,)) == [Take((A,)), beat(2, A)]
    assert story.is_assigned(3, {}, revoke=(A,)) == [beat(3, A)]

    assert story.client.released([A], 0) == [beat(3)]
    assert story.is_assigned(3, {A: 3}) == [give(A, 3), beat(3, A)]


def test_a_client_that_is_too_slow_is_told_so_again_and_again_and_answers_once():
    """Its queue was freed by the revoke timeout: somebody else's by now, in the same epoch."""
    story = Story()
    story.is_assigned(1, {A: 1})
    story.is_assigned(2, {}, revoke=(A,))

    assert story.is_assigned(2, {}) == []
    assert story.is_assigned(2, {}, revoke=(A,)) == []
    assert story.client.released([A], 0) == [beat(2)]


# --- committing ---


def reads(story: Story, queue: Queue, given: int, done: int | None = None) -> None:
    """Have a queue started at 0, and on record there; then the application is done with all below `done`."""
    for sent in story.client.started([(give(queue, given), 0)], 0):
        assert isinstance(sent, Send)
        assert isinstance(sent.event, Commit)
        story.client.committed(sent.event, sent.sent_ms)
    if done is not None:
        assert story.client.done(give(queue, given), done)


def test_a_first_offset_is_on_record_at_once():
    """A policy asked again after a crash would have another answer: `last` would skip what came in between."""
    story = Story()
    story.is_assigned(1, {A: 1, B: 1})

    assert story.client.started([(give(A, 1), 0), (give(B, 1), 7)], 0) == [commit(1, {A: 0, B: 7})]


LAST = Start(policy="last")


def again(story: Story, epoch: int, start: Start, instance_id: str = "i1") -> list[Output]:
    """Hear that A is assigned in this epoch."""
    whole = structs.replace(assignment(epoch, {}), instance_id=instance_id, queues=[AssignedQueue(A, epoch, start)])
    return story.hears(whole)


def had_a_queue(commit_interval_ms: int | None = 5_000, start: Start = LAST) -> Story:
    """Return a story whose client began a queue by a policy at 7, handled what is below 9, and has released it."""
    story = Story(commit_interval_ms)
    again(story, 1, start)
    mine = Give(A, start, 1, "i1")
    story.client.started([(mine, 7)], 0)
    story.client.done(mine, 9)
    story.is_assigned(2, {})
    story.client.released([A], 0)
    return story


def test_a_queue_that_comes_back_before_its_commit_was_read_goes_on_where_it_was():
    """A coordinator that was away decides in the order of its log: `last` would skip what came meanwhile."""
    story = had_a_queue()

    back = Give(A, Start(offset=9), 3, "i1")
    assert again(story, 3, LAST) == [back, beat(3, A)]
    assert story.client.started([(back, 9)], 0) == [commit(3, {A: 9})]


def test_a_queue_that_is_revoked_before_its_reading_began_still_goes_on_where_it_was():
    """Of several assignments that a coordinator publishes after an outage, one may end before it is read."""
    story = had_a_queue()

    assert again(story, 3, LAST)[0] == Give(A, Start(offset=9), 3, "i1")
    story.is_assigned(4, {})
    story.client.released([A], 0)
    assert again(story, 5, LAST)[0] == Give(A, Start(offset=9), 5, "i1")


def test_what_an_application_has_not_committed_comes_again_with_its_queue():
    assert again(had_a_queue(commit_interval_ms=None), 3, LAST)[0] == Give(A, Start(offset=7), 3, "i1")


@pytest.mark.parametrize("start", [Start(offset=4), FIRST], ids=["an offset", "first"])
def test_a_start_that_skips_nothing_counts_for_a_queue_that_comes_back(start):
    """An operator may have reset the offset, or the topic was created again."""
    story = had_a_queue()

    assert again(story, 3, start)[0] == Give(A, start, 3, "i1")
    story.is_assigned(4, {})
    story.client.released([A], 0)
    assert again(story, 5, LAST)[0] == Give(A, LAST, 5, "i1")  # of this one, no message was ever read


def test_a_queue_that_comes_back_to_another_instance_of_its_client_goes_on_where_it_was():
    story = had_a_queue()
    story.hears(fenced("expired"))
    story.client.join("i2", 0)

    assert again(story, 3, LAST, "i2")[0] == Give(A, Start(offset=9), 3, "i2")


@pytest.mark.parametrize("how", ["leaves the topic", "leaves the group"])
def test_a_client_that_has_left_a_queue_for_good_begins_it_by_the_policy(how):
    story = had_a_queue()
    instance_id = "i1"
    if how == "leaves the topic":
        story.client.subscribe([Subscription(topic="payments")], 0)
        story.client.subscribe([Subscription(topic="orders")], 0)
    else:
        story.client.leave(0)
        story.hears(fenced("left"))
        instance_id = "i2"
        story.client.join(instance_id, 0)

    assert again(story, 3, LAST, instance_id)[0] == Give(A, LAST, 3, instance_id)


BY_PATTERN = Preferences(subscriptions=[], pattern="orders|returns")


@given(
    st.sampled_from(
        [{"pattern": "or.*"}, {"weight": 2.0}, {"subscriptions": [Subscription(topic="x")], "pattern": "y"}]
    )
)
def test_a_client_with_a_pattern_goes_on_where_it_was_whatever_changes(change):
    """Only an observer evaluates patterns, so the client cannot know that it has left a topic."""
    story = had_a_queue()
    story.client.set_preferences(BY_PATTERN, 0)
    story.client.set_preferences(structs.replace(BY_PATTERN, **change), 0)

    assert again(story, 3, LAST)[0] == Give(A, Start(offset=9), 3, "i1")


def test_a_client_that_has_no_pattern_any_more_has_left_what_it_does_not_name():
    story = had_a_queue()
    story.client.set_preferences(BY_PATTERN, 0)
    story.client.subscribe([Subscription(topic="payments")], 0)
    story.client.set_preferences(BY_PATTERN, 0)

    assert again(story, 3, LAST)[0] == Give(A, LAST, 3, "i1")


@given(st.lists(st.sampled_from(["assigned", "revoked", "read", "drained"]), max_size=12), st.integers(0, 5))
def test_whatever_ends_before_it_is_read_a_client_skips_nothing(happens, more):
    """A coordinator that was down assigns and revokes a queue by a log in which it has read no commit of it."""
    story, epoch, end, handled = had_a_queue(), 2, 9 + more, 9
    for what in happens:
        mine = story.client.readable().get(A)
        match what:
            case "assigned":
                epoch += 1
                again(story, epoch, LAST)
            case "revoked":
                epoch += 1
                story.is_assigned(epoch, {})
            case "drained":
                story.client.released(story.client.draining(), 0)
            case "read" if mine is not None:
                begin = end if mine.start.offset is None else mine.start.offset
                assert begin <= handled, f"{begin - handled} messages are skipped"
                if story.client.processed().get(A) is None:
                    story.client.started([(mine, begin)], 0)
                story.client.done(mine, end)
                handled, end = end, end + 1


def test_a_queue_that_drains_begins_at_first_again_without_a_commit_of_what_was_done_before():
    """The topic may be another one, or an operator has deleted the offset: the commit would skip or undo that."""
    story = Story()
    story.is_assigned(1, {A: 1})
    reads(story, A, 1, done=42)
    story.is_assigned(2, {})

    story.is_assigned(3, {A: 3})

    assert story.client.released([A], 0) == [beat(3), give(A, 3)]


def test_a_start_at_an_offset_is_on_record_already():
    story = Story()
    at_5 = AssignedQueue(A, 1, Start(offset=5))
    story.hears(structs.replace(assignment(1, {}), queues=[at_5]))

    assert story.client.started([(Give(A, Start(offset=5), 1, "i1"), 5)], 0) == []
    assert story.client.commit(0) == []


def test_what_is_done_is_committed_at_every_interval_and_only_if_it_is_new():
    story = Story()
    story.is_assigned(1, {A: 1, B: 1})
    reads(story, A, 1, done=3)
    reads(story, B, 1)

    assert story.client.next_due_ms() == 5_000
    assert story.client.on_time(4_999) == []
    [sent] = story.client.on_time(5_000)
    assert sent == commit(1, {A: 3}, now_ms=5_000)
    assert isinstance(sent, Send)
    assert isinstance(sent.event, Commit)
    story.client.committed(sent.event, sent.sent_ms)
    assert story.client.is_committed()
    assert story.client.on_time(9_999) == []


def test_a_commit_that_kafka_does_not_acknowledge_is_said_again():
    story = Story()
    story.is_assigned(1, {A: 1})
    reads(story, A, 1, done=3)

    assert story.client.on_time(5_000) == [commit(1, {A: 3}, now_ms=5_000)]
    assert story.client.on_time(9_999) == []
    assert story.client.on_time(10_000) == [commit(1, {A: 3}, now_ms=10_000), beat(1, A, now_ms=10_000)]


def test_the_final_commit_goes_before_the_release_and_before_leaving():
    """The next owner starts where the record says: it must be there first."""
    story = Story()
    story.is_assigned(1, {A: 1, B: 1})
    reads(story, A, 1, done=4)
    reads(story, B, 1, done=6)

    assert story.is_assigned(2, {A: 1}, revoke=(B,)) == [Take((B,)), beat(2, A, B)]
    assert story.client.released([B], 0) == [commit(2, {B: 6}), beat(2, A)]
    left = Send(Unregister(group_id="billing", client_id="c1", instance_id="i1"), 0)
    assert story.client.leave(0) == [commit(2, {A: 4}), left]


def test_an_application_that_commits_by_itself_is_not_helped():
    """But for the first offsets: those say nothing about what it has done."""
    story = Story(commit_interval_ms=None)
    story.is_assigned(1, {A: 1, B: 1})
    assert story.client.started([(give(A, 1), 0), (give(B, 1), 0)], 0) == [commit(1, {A: 0, B: 0})]
    story.client.done(give(A, 1), 4)

    assert story.client.on_time(5_000) == [commit(1, {A: 0, B: 0}, now_ms=5_000)]
    reads(story, B, 1, done=3)
    reads(story, A, 1, done=4)
    assert story.client.on_time(9_999) == []
    assert story.is_assigned(2, {A: 1})[0] == Take((B,))
    assert story.client.released([B], 0) == [beat(2, A)]
    assert story.client.commit(0) == [commit(2, {A: 4})]
    story.client.done(give(A, 1), 5)
    assert story.client.leave(0) == [Send(Unregister(group_id="billing", client_id="c1", instance_id="i1"), 0)]


def test_a_life_that_is_over_commits_nothing():
    """Its queues are somebody else's; what its application still finishes does not count."""
    story = Story()
    story.is_assigned(1, {A: 1})
    reads(story, A, 1, done=4)
    story.hears(fenced("expired"))

    assert story.client.commit(0) == []
    story.client.join("i2", 0)
    assert not story.client.done(give(A, 1), 5)
    assert story.client.commit(0) == []


def test_a_silent_client_commits_nothing():
    story = Story()
    story.is_assigned(1, {A: 1})
    reads(story, A, 1, done=4)

    assert story.client.commit(45_001) == [Dropped((A,), "silent")]


def test_how_far_an_old_giving_came_does_not_overrule_a_reset():
    """The operator has set the queue back; a final commit in the new epoch would be accepted, and undo that."""
    story = Story()
    story.is_assigned(1, {A: 1})
    reads(story, A, 1, done=500)
    back = AssignedQueue(A, 2, Start(offset=10))

    assert story.hears(structs.replace(assignment(2, {}), queues=[back])) == [Take((A,)), beat(2, A)]
    assert story.client.commit(0) == []
    assert story.client.released([A], 0) == [beat(2), Give(A, Start(offset=10), 2, "i1")]
    story.client.committed(commit_of(1, {A: 500}), 0)
    story.client.started([(Give(A, Start(offset=10), 2, "i1"), 10)], 0)
    story.client.done(Give(A, Start(offset=10), 2, "i1"), 11)
    assert story.client.commit(0) == [commit(2, {A: 11})]


def test_a_refused_commit_is_said_again_unless_its_queue_is_going():
    """A coordinator that starts again may not have heard yet whose the queue is."""
    story = Story()
    story.is_assigned(1, {A: 1, B: 1})
    reads(story, A, 1)
    reads(story, B, 1)
    story.is_assigned(2, {A: 1})
    refusal = Rejected(rule="commit", detail="no", client_id="c1", group_id="billing")

    assert story.hears(refusal) == [EventRefused("commit", "no")]
    assert story.client.commit(0) == [commit(2, {A: 0})]
    assert story.hears(structs.replace(refusal)) == []


def test_a_commit_in_the_former_partition_is_repeated():
    """Kafka has acknowledged it, but the group has moved to another shard, which does not have it."""
    story = Story()
    story.is_assigned(2, {A: 2})
    reads(story, A, 2, done=70)
    story.client.committed(commit_of(2, {A: 70}), 0)
    refusal = Rejected(rule="partition", detail="moved", client_id="c1", group_id="billing")

    assert story.client.commit(0) == []
    assert story.hears(refusal) == [EventRefused("partition", "moved")]
    assert story.client.commit(0) == [commit(2, {A: 70})]


def test_a_rejection_counts_though_the_acknowledgement_of_kafka_is_later():
    """Both are on their way at once: a slow connection to one broker lets the acknowledgement arrive last."""
    story = Story()
    story.is_assigned(2, {A: 2})
    reads(story, A, 2, done=70)
    [rejected] = story.client.commit(0)
    refusal = Rejected(rule="partition", detail="moved", client_id="c1", group_id="billing")
    assert isinstance(rejected, Send)
    assert isinstance(rejected.event, Commit)

    assert story.hears(refusal, 30) == [EventRefused("partition", "moved")]
    story.client.committed(rejected.event, rejected.sent_ms)

    assert not story.client.is_committed()
    [again] = story.client.commit(40)
    assert again == commit(2, {A: 70}, now_ms=40)
    assert isinstance(again, Send)
    assert isinstance(again.event, Commit)
    story.client.committed(again.event, again.sent_ms)
    assert story.client.is_committed()


def test_the_end_of_a_former_instance_is_repeated_in_the_new_partition():
    """Otherwise the new instance waits for the end of a session that lasts minutes after a growth of the shards."""
    story = Story()
    story.is_assigned(4, {A: 4})
    story.hears(fenced("expired"))
    story.client.join("i2", 0)
    refusal = Rejected(rule="partition", detail="moved", client_id="c1", group_id="billing")
    former = Send(Unregister(group_id="billing", client_id="c1", instance_id="i1"), 0)

    assert story.hears(refusal) == [former, beat(-1, instance_id="i2"), EventRefused("partition", "moved")]
    assert story.hears(refusal) == []


def test_the_end_of_a_former_instance_is_repeated_if_kafka_lost_it():
    """The coordinator rejects the new instance then, because the former one still has its client_id."""
    story = Story()
    story.is_assigned(4, {A: 4})
    story.hears(fenced("expired"))
    story.client.join("i2", 0)
    refusal = Rejected(rule="in-use", detail="by i1", client_id="c1", group_id="billing")
    former = Send(Unregister(group_id="billing", client_id="c1", instance_id="i1"), 0)

    assert story.hears(refusal) == [former, beat(-1, instance_id="i2"), EventRefused("in-use", "by i1")]
    assert story.hears(refusal) == []


@pytest.mark.parametrize("queues", [{A: 2}, {}], ids=["kept", "revoked"])
def test_no_commit_passes_the_last_one_when_another_member_brings_a_filter(queues):
    """Messages that it wants may be among those that were passed over since; a decision without it does not count."""
    story = Story()
    story.is_assigned(2, {A: 2})
    reads(story, A, 2, done=70)
    story.client.committed(commit_of(2, {A: 70}), 0)
    give = story.client.readable()[A]
    story.client.done(give, 90)
    others = (OtherFilter(topic=A.topic, expression="paid"),)
    story.hears(structs.replace(assignment(3, queues), others=others))
    story.client.keep(give, None, story.client.new_filters - 1)
    own = Ahead(expression="*", expression_type="TAG", offset=90)
    kept = Commit(
        group_id="billing",
        client_id="c1",
        instance_id="i1",
        epoch=3,
        offsets=[CommittedOffset(queue=A, offset=70, ahead=(own,))],
    )

    assert story.client.commit(0) == [Send(kept, 0)]
    story.client.keep(give, None, story.client.new_filters)
    assert story.client.commit(0) == [commit(3, {A: 90})]


def test_a_coordinator_that_has_lost_everything_is_told_how_far_the_queues_are():
    """It gives what is claimed in a new epoch and knows no offset: what is read goes on, and goes on record."""
    story = Story()
    story.is_assigned(3, {A: 1, B: 3})
    reads(story, A, 1, done=70)
    reads(story, B, 3)
    lost = assignment(4, {A: 4, B: 4})
    lost.shard, lost.seq = "groups-1.2", 1

    assert story.client.receive(lost, 0) == [beat(4, A, B)]
    assert story.client.may_hand_out(give(A, 1), 0)
    assert story.client.commit(0) == [commit(4, {A: 70, B: 0})]


# --- the end of a life ---


def test_an_expired_client_drops_everything_and_comes_back_as_another():
    story = Story()
    story.is_assigned(4, {A: 4, B: 4})

    [dropped] = story.hears(fenced("expired"))

    assert dropped == Dropped((A, B), "expired")
    assert isinstance(dropped, Dropped)
    assert dropped.comes_back
    assert not story.client.may_hand_out(give(A, 4), 0)
    assert story.client.next_due_ms() == NEVER_MS
    assert story.client.on_time(10**6) == []
    former = Send(Unregister(group_id="billing", client_id="c1", instance_id="i1"), 10**6)
    assert story.client.join("i2", 10**6) == [former, beat(-1, instance_id="i2", now_ms=10**6)]
    assert story.is_assigned(5, {A: 5}, now_ms=10**6) == []


def test_a_duplicate_does_not_fight():
    story = Story()
    story.is_assigned(1, {A: 1})

    [dropped] = story.hears(fenced("duplicate", by="i9"))

    assert dropped == Dropped((A,), "duplicate", "i9")
    assert isinstance(dropped, Dropped)
    assert not dropped.comes_back
    assert story.client.on_time(10**6) == []


def test_a_refused_client_does_not_come_back():
    assert Story().hears(fenced("refused")) == [Dropped((), "refused")]


def test_a_client_that_leaves_says_so_and_nothing_more():
    story = Story()
    story.is_assigned(1, {A: 1})

    assert story.client.leave(5) == [Send(Unregister(group_id="billing", client_id="c1", instance_id="i1"), 5)]
    assert story.client.leave(5) == []
    assert story.is_assigned(2, {A: 2}) == []
    assert story.client.on_time(10**6) == []
    assert story.hears(fenced("expired")) == [Dropped((), "left")]


def test_a_client_whose_heartbeats_do_not_arrive_gives_up_by_itself():
    """It counts from when the acknowledged heartbeat was sent, and ends before the coordinator's session does."""
    story = Story()
    story.is_assigned(1, {A: 1}, now_ms=1_000)
    story.client.acknowledged(1_000, 1_200)

    assert story.client.may_hand_out(give(A, 1), 41_000)
    assert not story.client.may_hand_out(give(A, 1), 41_001)
    assert story.client.on_time(41_001) == [Dropped((A,), "silent")]
    assert story.client.join("i2", 41_001)[1:] == [beat(-1, instance_id="i2", now_ms=41_001)]


def test_a_new_life_trusts_the_usual_session_until_it_is_told_another():
    """The coordinator counts on that: what was told to the life before is not known to concern this one."""
    story = Story()
    story.hears(structs.replace(assignment(1, {A: 1}), session_timeout_ms=120_000, heartbeat_ms=30_000))
    assert story.client.session_timeout_ms == 120_000

    story.hears(fenced("expired"))
    story.client.join("i2", 0)

    assert (story.client.session_timeout_ms, story.client.heartbeat_ms) == (45_000, 10_000)


def test_a_coordinator_of_an_older_era_is_not_obeyed():
    """A driver that was taken for dead may publish beside the one that was started in its place."""
    story = Story()
    story.client.receive(structs.replace(assignment(5, {A: 5}), shard="groups-1.10", seq=1), 0)

    assert story.client.receive(structs.replace(fenced("expired"), shard="groups-1.9", seq=99), 0) == []
    assert story.client.readable() != {}


def test_an_acknowledgement_that_comes_too_late_is_none():
    """The heartbeat may have stood in a queue until after the coordinator gave its sender up."""
    story = Story()
    story.is_assigned(1, {A: 1}, now_ms=1_000)

    assert story.client.acknowledged(44_000, 45_001) == [Dropped((A,), "silent")]


def test_an_acknowledgement_of_a_former_life_counts_for_nothing():
    story = Story()
    story.client.on_time(45_001)
    story.client.join("i2", 45_001)
    story.client.acknowledged(40_000, 45_002)

    assert story.client.on_time(45_001 + 45_001) == [Dropped((), "silent")]


def test_a_sleeper_obeys_nothing_before_it_has_noticed_that_it_slept():
    """An assignment that waited in the inbox through a suspension may be long outdated."""
    story = Story()

    assert story.is_assigned(1, {A: 1}, now_ms=45_001) == [Dropped((), "silent")]
    assert story.client.readable() == {}


# --- whatever happens ---

QUEUES = st.dictionaries(st.sampled_from([A, B, C]), st.integers(1, 6))
ASSIGNMENTS = st.tuples(st.just("assign"), st.integers(1, 6), QUEUES, st.sets(st.sampled_from([A, B, C])))
STEPS = st.lists(
    ASSIGNMENTS
    | st.tuples(st.just("drain"), st.sets(st.sampled_from([A, B, C])))
    | st.tuples(st.just("wait"), st.sampled_from([1, 10_000, 50_000]))
    | st.tuples(st.just("acknowledge"))
    | st.tuples(st.just("fence")),
    max_size=30,
)


class Witness:
    """Keeps its own books of what a client was given, from its outputs alone."""

    def __init__(self, story: Story) -> None:
        self.client = story.client
        self.open: dict[Queue, Give] = {}
        self.draining: set[Queue] = set()
        self.past: list[Give] = []

    def sees(self, outputs: list[Output]) -> None:
        """Write outputs down; each must be possible after those before."""
        for output in outputs:
            match output:
                case Give(queue):
                    assert queue not in self.open
                    assert queue not in self.draining
                    self.open[queue] = output
                    self.past.append(output)
                case Take(queues):
                    for queue in queues:
                        del self.open[queue]
                        self.draining.add(queue)
                case Dropped():
                    self.open, self.draining = {}, set()
                case Send(Heartbeat() as event) if output is outputs[-1]:
                    assert set(event.owned) == self.open.keys() | self.draining

    def agrees(self, now_ms: int) -> bool:
        """Whether the client would hand out just what the books allow."""
        return all(self.client.may_hand_out(past, now_ms) == (self.open.get(past.queue) == past) for past in self.past)


@given(steps=STEPS)
def test_a_queue_is_handed_out_between_a_give_and_its_end_only(steps):
    """Whatever the order of assignments: not after a Take until it is released and given again.

    Besides, `owned` names all that is held, and an assignment heard again is silent.
    """
    story = Story()
    client, witness, now_ms = story.client, Witness(story), 0
    for number, step in enumerate(steps):
        match step:
            case ("assign", epoch, queues, revoke):
                said = structs.replace(assignment(epoch, queues, tuple(revoke)), instance_id=client.instance_id)
                outputs = story.hears(said, now_ms)
                assert story.hears(structs.replace(said), now_ms) == []
            case ("drain", queues):
                witness.draining -= queues
                outputs = client.released(sorted(queues), now_ms)
            case ("wait", passed_ms):
                now_ms += passed_ms
                outputs = client.on_time(now_ms)
            case ("acknowledge",):
                outputs = client.acknowledged(now_ms, now_ms)
            case _:
                outputs = story.hears(structs.replace(fenced("expired"), instance_id=client.instance_id), now_ms)
        witness.sees(outputs)
        assert witness.agrees(now_ms)
        if not client.instance_id:
            client.join(f"life-{number}", now_ms)


@given(steps=st.lists(ASSIGNMENTS, max_size=10), again=st.lists(st.integers(0, 9), max_size=20))
def test_repeated_decisions_are_silent(steps, again):
    """However often the sink writes a decision, and whatever came between."""
    story = Story()
    heard = [assignment(epoch, queues, tuple(revoke)) for _, epoch, queues, revoke in steps]
    for decision in heard:
        story.hears(decision)

    assert [story.client.receive(heard[index], 0) for index in again if index < len(heard)] == [
        [] for index in again if index < len(heard)
    ]


def shortened(story: Story, now_ms: int) -> None:
    """Let the newest assignment tell a session of 10 s."""
    story.hears(structs.replace(assignment(2, {A: 1}), session_timeout_ms=10_000, heartbeat_ms=3_000), now_ms=now_ms)


def test_a_shorter_session_counts_from_when_it_is_stated():
    """Its last acknowledged heartbeat is older than the new session: the coordinator still counts the old one."""
    story = Story()
    story.is_assigned(1, {A: 1}, now_ms=1_000)
    story.client.acknowledged(1_000, 1_200)
    shortened(story, 9_000)

    assert story.client.may_hand_out(give(A, 1), 14_000)
    assert not story.client.may_hand_out(give(A, 1), 14_001)


def test_a_shorter_session_does_not_prolong_the_old_one():
    """The heartbeat that states it may never arrive."""
    story = Story()
    story.is_assigned(1, {A: 1}, now_ms=1_000)
    story.client.acknowledged(1_000, 1_200)
    shortened(story, 39_000)

    assert story.client.may_hand_out(give(A, 1), 41_000)
    assert not story.client.may_hand_out(give(A, 1), 41_001)


def test_once_it_is_acknowledged_a_shorter_session_is_all_that_counts():
    story = Story()
    story.is_assigned(1, {A: 1}, now_ms=1_000)
    story.client.acknowledged(1_000, 1_200)
    shortened(story, 9_000)
    story.client.acknowledged(9_000, 9_100)

    assert story.client.next_due_ms() == 12_000
    assert story.client.may_hand_out(give(A, 1), 14_000)
    assert not story.client.may_hand_out(give(A, 1), 14_001)


def test_who_could_not_hear_drops_what_it_holds():
    story = Story()
    story.is_assigned(1, {A: 1})

    assert story.client.give_up() == [Dropped((A,), "deaf")]


def test_who_could_not_hear_and_held_nothing_begins_anew_when_it_hears_again():
    """What it hears then may be old: its queues may be somebody else's by now."""
    story = Story()
    assert story.client.give_up() == []

    assert story.hears(assignment(1, {A: 1}), now_ms=1_000) == [Dropped((), "deaf")]
    story.client.join("i2", 1_000)
    [given, *_] = story.hears(structs.replace(assignment(2, {A: 2}), instance_id="i2"))
    assert isinstance(given, Give)


def test_a_client_whose_inbox_has_another_log_ends_its_instance():
    """What it was sent may be lost, such as that its queues have other owners."""
    story = Story()
    story.is_assigned(1, {A: 1})

    assert story.client.start_over() == [Dropped((A,), "deaf")]


def test_after_another_log_began_a_client_obeys_a_coordinator_that_counts_from_one():
    """All topics and tables were lost: the coordinator began without a state, in era 1."""
    story = Story()
    for epoch in range(1, 40):
        story.is_assigned(epoch, {A: 1})
    story.client.start_over()
    story.client.join("i2", 1_000)
    decision = structs.replace(assignment(1, {B: 1}), instance_id="i2", shard="groups-1.1", seq=1)
    [given, *_] = story.client.receive(decision, 1_000)

    assert isinstance(given, Give)
    assert given.queue == B


def test_an_old_assignment_that_is_read_again_gives_nothing_back():
    """The new log is read from its start, and may have all earlier decisions, as after a restored backup."""
    story = Story()
    story.is_assigned(1, {A: 1})
    story.client.start_over()
    story.client.join("i2", 1_000)

    assert story.is_assigned(1, {A: 1}) == []
    assert story.client.readable() == {}


def test_a_client_that_is_no_member_learns_the_order_of_decisions_again():
    story = Story()
    story.is_assigned(7, {A: 1})
    story.client.leave(0)

    assert story.client.start_over() == []


def test_every_heartbeat_shows_the_round_of_the_newest_assignment():
    """Of a repeated one too, which is not answered at once: the coordinator may only want to know what arrives."""
    story = Story()
    first, again = assignment(1, {A: 1}), assignment(1, {A: 1})
    first.round, again.round = 7, 8

    answer = next(one.event for one in story.hears(first) if isinstance(one, Send))
    outputs = story.hears(again, now_ms=1_000)
    [later] = story.client.on_time(10_000)

    assert isinstance(answer, Heartbeat)
    assert answer.round == 7
    assert outputs == []
    assert isinstance(later, Send)
    assert isinstance(later.event, Heartbeat)
    assert later.event.round == 8


# --- the last will ---


def test_a_last_will_sends_what_a_member_that_leaves_would_send():
    story = Story()
    story.is_assigned(1, {A: 1, B: 1})
    story.client.started([(give(A, 1), 5), (give(B, 1), 0)], 0)
    story.client.done(give(A, 1), 8)
    will = story.client.last_will()
    assert will is not None
    story.client.done(give(B, 1), 3)

    ended = Unregister(group_id="billing", client_id="c1", instance_id="i1", died="SIGKILL")
    assert will.events({B: 3}, "SIGKILL") == [commit_of(1, {A: 8, B: 3}), ended]
    assert will.events({}, "SIGKILL") == [commit_of(1, {A: 8, B: 0}), ended]


def test_a_last_will_commits_for_no_application_that_commits_by_itself():
    story = Story(commit_interval_ms=None)
    story.is_assigned(1, {A: 1})
    story.client.started([(give(A, 1), 5)], 0)
    will = story.client.last_will()
    assert will is not None

    assert will.events({A: 9}, "") == [
        commit_of(1, {A: 5}),  # where reading began: `last` would skip messages if it were resolved again
        Unregister(group_id="billing", client_id="c1", instance_id="i1", died=""),
    ]


def test_who_is_no_member_has_no_last_will():
    story = Story()
    story.client.leave(0)

    assert story.client.last_will() is None
    assert Client("billing", "c1", Preferences(subscriptions=[Subscription(topic="orders")])).last_will() is None


STEPS = st.one_of(
    st.tuples(st.just("assigned"), st.dictionaries(st.sampled_from([A, B, C]), st.booleans(), max_size=3)),
    st.tuples(st.just("started"), st.sampled_from([A, B, C]), st.integers(0, 5)),
    st.tuples(st.just("done"), st.sampled_from([A, B, C]), st.integers(0, 9)),
    st.tuples(st.just("epoch"), st.sampled_from([A, B, C]), st.integers(0, 9), st.integers(0, 3)),
    st.tuples(st.just("back"), st.sampled_from([A, B, C]), st.integers(0, 5)),
    st.tuples(st.just("kept"), st.sampled_from([A, B, C]), st.integers(0, 9)),
    st.tuples(st.just("released"), st.sampled_from([A, B, C])),
    st.tuples(st.just("commit")),
)


def take(step: tuple[Any, ...], story: Story, gives: dict[Queue, Give], given_in: dict[Queue, int]) -> None:
    """Take a step that changes more than the progress."""
    client = story.client
    match step:
        case ["assigned", queues]:
            epoch = client.epoch + 1 if client.epoch > 0 else 1
            before = given_in.copy()
            given_in.clear()
            given_in |= {one: before.get(one, epoch) if stays else epoch for one, stays in queues.items()}
            story.is_assigned(epoch, given_in.copy())
        case ["started", queue, offset] if queue in gives:
            client.started([(gives[queue], offset)], 0)
        case ["epoch", queue, offset, leader_epoch] if queue in gives:
            client.note_leader_epoch(gives[queue], offset, leader_epoch)
        case ["back", queue, offset] if queue in gives:
            client.go_back(gives[queue], offset, 4, 0)
        case ["kept", queue, offset] if queue in gives:
            client.keep(gives[queue], offset, client.new_filters)
        case ["released", queue]:
            client.released([queue], 0)
        case ["commit"]:
            events = [one.event for one in client.commit(0) if isinstance(one, Send)]
            for event in events:
                assert isinstance(event, Commit)
                client.committed(event, 0)


@given(st.lists(STEPS, max_size=25), st.sampled_from([5_000, None]))
def test_a_will_and_the_progress_since_are_what_the_member_would_commit(steps, commit_interval_ms):
    """The will is made again after each step but the progress, which is noted apart; it outlives an encoding."""
    story = Story(commit_interval_ms)
    client, gives, given_in, progress = story.client, dict[Queue, Give](), dict[Queue, int](), dict[Queue, int]()
    will = client.last_will()
    begin = [("assigned", {A: False, B: False, C: False}), ("started", A, 0), ("started", B, 2)]
    for step in [*begin, *steps, ("done", A, 8), ("done", B, 9)]:
        if step[0] == "done":
            _, queue, offset = step
            if queue in gives and client.done(gives[queue], offset):
                progress[queue] = offset
            continue
        take(step, story, gives, given_in)
        will = msgspec.msgpack.decode(msgspec.msgpack.encode(client.last_will()), type=LastWill)
        gives = client.readable() | {queue: gives[queue] for queue in client.draining() if queue in gives}
        progress.clear()

    assert will is not None
    *commits, ended = will.events(progress, "")
    assert isinstance(ended, Unregister)
    expected = [one.event for one in client.leave(0) if isinstance(one, Send)]
    assert [*commits, structs.replace(ended, died=None)] == expected
