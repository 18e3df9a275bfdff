"""What if: what is predicted is what then happens, and asking changes nothing."""

import pytest

from tests.support.ledgers import PARTITIONS, Story
from wakeroll_model.feature_levels import NEWEST
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_model.shard import Shard
from wakeroll_model.what_if import NotPlayable, Situation, Variation, predict, situation_of

EIGHT = [Queue("orders", "", number) for number in range(8)]


def three_of(strategy: str = "AVG", **preferences: object) -> Story:
    """Three members of `billing` share eight queues, and have committed what they did."""
    story = Story()
    story.route("orders", 8, ends=100)
    story.configure("billing", strategy=strategy)
    for client_id in ("c1", "c2", "c3"):
        story.join("billing", client_id, "orders", **preferences)
        story.pass_seconds(5)
    story.commit("billing", 90)
    story.pass_seconds(5)
    return story


def shard_of(story: Story) -> Shard:
    story.snapshot()
    where = "wakeroll.groups", partition_of(b"billing", PARTITIONS)
    [body] = [bytes(row[6]) for row in story.snapshots[-2 * PARTITIONS :] if row[:2] == where]
    return Shard(*where, PARTITIONS, body, raises=True)


def situation(story: Story) -> Situation:
    return situation_of(shard_of(story), "billing")


def changed(before: Situation, after: Situation) -> list[Queue]:
    return [queue for queue, owner in before.owners.items() if after.owners.get(queue, owner) != owner]


@pytest.mark.parametrize("strategy", ["AVG", "SPREAD", "BALANCED", "CONSISTENT_HASH", "WEIGHTED"])
@pytest.mark.parametrize(
    "change",
    [
        Variation(settings={"strategy": "BALANCED"}),
        Variation(settings={"strategy": "AVG_BY_CIRCLE", "handover": "eager"}),
        Variation(add=2),
        Variation(remove=["c1"]),
        Variation(queues={"orders": 11}),
        Variation(queues={"orders": 3}),
        Variation(add=1, remove=["c2"], queues={"orders": 12}, settings={"settle_ms": 3_000}),
    ],
    ids=str,
)
def test_what_is_predicted_is_what_then_happens(change, strategy):
    """The same machines decide: only the clients are played, and those obey in both."""
    story = three_of(strategy)
    predicted = predict(shard_of(story), "billing", change)
    before = situation(story)

    if change.settings:
        story.configure("billing", **change.settings)
    for number in range(change.add):
        story.join("billing", f"new-{number + 1}", "orders")
    for client_id in change.remove:
        story.leave("billing", client_id)
    for topic, queues in change.queues.items():
        story.route(topic, queues, ends=100)
    story.pass_seconds(60)
    after = situation(story)

    assert predicted.is_calm
    assert predicted.now == before
    assert before.strategy == strategy
    assert (predicted.then.owners, predicted.then.clients) == (after.owners, after.clients)
    assert (predicted.then.strategy, predicted.then.spread) == (after.strategy, after.spread)
    assert predicted.moved == changed(before, after)


def test_nothing_is_changed_by_asking():
    shard = shard_of(three_of())
    before = shard.body()

    predict(shard, "billing", Variation(add=3))

    assert shard.body() == before


def test_a_hand_over_says_from_whom_to_whom():
    """AVG moves the edge of every block, and tells so."""
    predicted = predict(shard_of(three_of()), "billing", Variation(add=1))

    told = {(one.queue.queue_id, one.from_, one.to) for one in predicted.handovers}
    assert told == {(2, "c1", "c2"), (4, "c2", "c3"), (5, "c2", "c3"), (6, "c3", "new-1"), (7, "c3", "new-1")}
    assert predicted.moved == [EIGHT[number] for number in (2, 4, 5, 6, 7)]
    assert predicted.took_ms == 0


def test_what_comes_at_once_is_settled_together():
    """The first newcomer counts at once, the others when the settle interval has passed."""
    predicted = predict(shard_of(three_of()), "billing", Variation(add=3))

    assert predicted.then.epoch == predicted.now.epoch + 2
    assert predicted.took_ms == 1_000
    assert predicted.then.clients == ["c1", "c2", "c3", "new-1", "new-2", "new-3"]


def test_lag_goes_with_the_queue():
    """Ten messages a queue: who has more queues is further behind."""
    predicted = predict(shard_of(three_of()), "billing", Variation(add=1))

    now, then = (
        {client_id: one.lag_of(queues) for client_id, queues in one.shares.items()}
        for one in (predicted.now, predicted.then)
    )
    assert now == {"c1": 30, "c2": 30, "c3": 20}
    assert then == {"c1": 20, "c2": 20, "c3": 20, "new-1": 20}


def test_lag_that_nobody_knows_is_none():
    """A queue without a committed offset starts where a client says."""
    predicted = predict(shard_of(three_of()), "billing", Variation(queues={"orders": 9}))

    assert predicted.then.lag_of([Queue("orders", "", 8)]) is None
    assert predicted.then.lag_of(EIGHT) == 80


def test_members_that_share_nothing_out_are_told_of():
    predicted = predict(shard_of(three_of()), "billing", Variation(settings={"strategy": "NONE_SUCH"}))

    assert predicted.moved == []
    assert any("NONE_SUCH" in note for note in predicted.notes)


def test_who_is_one_too_many_is_refused():
    predicted = predict(shard_of(three_of()), "billing", Variation(add=2, settings={"max_members": 4}))

    assert predicted.then.clients == ["c1", "c2", "c3", "new-1"]
    assert predicted.notes == ["new-2 is refused: the group has 4 members"]


def test_a_group_in_the_middle_of_a_hand_over_goes_on_from_there():
    """What was asked back before counts as moved: it has another owner than now."""
    story = three_of()
    story.join("billing", "c4", "orders")

    predicted = predict(shard_of(story), "billing", Variation())

    assert len(predicted.now.shares["c4"]) < 2
    assert predicted.then.spread == 0
    assert predicted.is_calm


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (Variation(remove=["c9"]), "no client 'c9' in billing; there are: c1, c2, c3"),
        (Variation(queues={"sent": 3}), "no topic 'sent' has ever been routed here; there are: orders"),
        (Variation(settings={"heartbeat_ms": 1}), "configure: Expected `int` >= 100"),
        (Variation(settings={"session_timeout_ms": 20_000}), "it must be at least 3 times heartbeat_ms"),
    ],
)
def test_what_cannot_be_played_is_said_in_a_sentence(change, sentence):
    with pytest.raises(NotPlayable, match=sentence):
        predict(shard_of(three_of()), "billing", change)


def test_nobody_and_everybody_cannot_be_asked_about():
    story = three_of(mode="broadcasting")

    with pytest.raises(NotPlayable, match="there is no group 'shipping' at that time"):
        predict(shard_of(story), "shipping", Variation())
    with pytest.raises(NotPlayable, match="group 'billing' broadcasts"):
        predict(shard_of(story), "billing", Variation())


def test_a_group_without_members_has_no_preferences():
    story = three_of()
    for client_id in ("c1", "c2", "c3"):
        story.leave("billing", client_id)

    with pytest.raises(NotPlayable, match="the preferences of a new member are not known"):
        predict(shard_of(story), "billing", Variation(add=1))


def test_a_watched_group_is_compared_with_other_strategies():
    """PINNED says where the queues are; another strategy says where they would be, also for more members."""
    story = Story()
    story.route("orders", 8, ends=100)
    story.configure("billing", strategy="PINNED", handover="eager")
    for client_id, numbers in (("c1", [0, 1, 2, 3, 4, 5]), ("c2", [6, 7])):
        story.join("billing", client_id, "orders", keeps=True, strategy_params={"queues": {"orders": numbers}})
        story.pass_seconds(5)
    shard = shard_of(story)
    assert {client_id: len(share) for client_id, share in situation_of(shard, "billing").shares.items()} == {
        "c1": 6,
        "c2": 2,
    }

    spread = predict(shard, "billing", Variation(settings={"strategy": "SPREAD"}, add=2))
    assert spread.then.spread == 0
    assert {len(share) for share in spread.then.shares.values()} == {2}
    assert spread.notes == []

    followed = predict(shard, "billing", Variation(add=1))
    assert followed.then.owners == followed.now.owners
    assert followed.notes == [
        "PINNED gives a new member nothing, because it follows another coordinator; name a strategy to compare"
    ]


@pytest.mark.parametrize("strategy", ["AVG", "SPREAD", "WEIGHTED"])
@pytest.mark.parametrize("number", [2, 8])
def test_slices_are_predicted_as_they_then_come(strategy, number):
    """With as many parts as move, and how many members read each partition; AVG gives each member neighbours."""
    story = Story()
    story.raise_level(NEWEST)
    story.route("orders", 2, ends=100)
    story.configure("billing", strategy=strategy)
    for client_id in ("c1", "c2", "c3", "c4"):
        story.join("billing", client_id, "orders", slice_by="")
        story.pass_seconds(5)
    story.commit("billing", 90)
    story.pass_seconds(5)
    shard = shard_of(story)

    found = predict(shard, "billing", Variation(settings={"slices": {"orders": number}}))
    story.configure("billing", slices={"orders": number})
    story.pass_seconds(60)
    after = situation(story)

    assert found.is_calm
    assert found.then.owners == after.owners
    assert len(after.owners) == 2 * number
    assert found.now.amplification == 1
    assert found.then.amplification == 2, "four members share two partitions"
    assert found.then.lag_messages == dict.fromkeys(after.owners, -(-10 // number))
    assert all(queue.slices == number for queue in found.moved)
    assert len(found.moved) == sum(found.now.owners[queue.whole] != owner for queue, owner in after.owners.items())
    assert not any("assumed" in note for note in found.notes)

    back = predict(shard_of(story), "billing", Variation(settings={"slices": {"orders": 1}}))
    assert back.then.amplification == 1
    assert sorted(back.then.owners) == [Queue("orders", "", 0), Queue("orders", "", 1)]


def test_a_note_does_not_repeat_the_change():
    """Its title has the topics that it cuts; others that are cut already are named."""
    story = Story()
    story.raise_level(NEWEST)
    story.route("orders", 2, ends=100)
    story.configure("billing", slices={"returns": 2})
    story.pass_seconds(5)
    shard = shard_of(story)

    for slices, notes in (({"orders": 8, "returns": 1}, []), ({"orders": 8}, ["slices: orders 8, returns 2"])):
        assert predict(shard, "billing", Variation(settings={"slices": slices})).notes == notes


def test_what_slices_need_is_said():
    """A level that knows them; and of members that have not told, it is assumed that they will."""
    story = three_of()
    cut = Variation(settings={"slices": {"orders": 2}})
    with pytest.raises(NotPlayable, match=r"slices need feature level 5, and the shard of billing is at [1-4]"):
        predict(shard_of(story), "billing", cut)

    story.raise_level(NEWEST)
    story.pass_seconds(5)
    found = predict(shard_of(story), "billing", cut)

    assert "members that did not report their slice_by are assumed to support slices, cut by the key" in found.notes
    assert len(found.then.owners) == 16
    with pytest.raises(NotPlayable, match="power of two"):
        predict(shard_of(story), "billing", Variation(settings={"slices": {"orders": 3}}))
