"""The invariants find what they are for: a rule that nothing can break proves nothing."""

from collections.abc import Callable

import pytest

from tests.support.histories.group_histories import History
from tests.support.ledgers import a_day, a_long_life, three_days, two_eras
from wakeroll_model import invariants
from wakeroll_model.decisions import AnyDecision, Assignment, Fenced, Handover, Offset, Rebalance
from wakeroll_model.events import Commit, CommittedOffset, Heartbeat, Subscription
from wakeroll_model.group import Freed, Revocation
from wakeroll_model.queue import Queue

PLAN = [
    ("billing", 0, ("route", "orders", 4)),
    ("billing", 1, ("beat", "a", 1, ["orders"], {})),
    ("billing", 0, ("ticks", 2)),
    ("billing", 1, ("beat", "b", 1, ["orders"], {})),
    ("billing", 1, ("receipt", "a", 1)),
    ("billing", 1, ("receipt", "b", 1)),
    ("billing", 1, ("commit", "a", 1, "heard", [(Queue("orders", "", 0), 10)])),
    ("billing", 1, ("commit", "a", 1, "heard", [(Queue("orders", "", 0), 20)])),
    ("billing", 1, ("commit", "b", 1, "heard", [(Queue("orders", "", 2), 30)])),
    ("billing", 0, ("ticks", 2)),
    ("billing", 1, ("leave", "a", 1)),
]
"""a joins and gets orders-0..3, b joins and gets orders-2..3 when a releases them, both commit, a leaves."""


def decisions_of(kind: type, decisions: list[AnyDecision]) -> list:
    return [decision for decision in decisions if isinstance(decision, kind)]


def lose_a_decision(decisions: list[AnyDecision]) -> None:
    del decisions[3]


def repeat_a_decision(decisions: list[AnyDecision]) -> None:
    decisions.insert(3, decisions[3])


def take_records_out_of_order(decisions: list[AnyDecision]) -> None:
    decisions[-1].cause = decisions[0].cause


def use_an_epoch_twice(decisions: list[AnyDecision]) -> None:
    decisions_of(Rebalance, decisions)[1].epoch = 1


def let_an_epoch_fall(decisions: list[AnyDecision]) -> None:
    decisions_of(Assignment, decisions)[-1].epoch = 1


def give_a_queue_that_another_owns(decisions: list[AnyDecision]) -> None:
    moved = decisions_of(Handover, decisions)[4]
    moved.from_, moved.how = None, "first"


def move_a_queue_from_a_stranger(decisions: list[AnyDecision]) -> None:
    decisions_of(Handover, decisions)[4].from_ = "z"


def free_a_queue_that_is_free(decisions: list[AnyDecision]) -> None:
    first = decisions_of(Handover, decisions)[0]
    first.from_, first.to, first.how = None, None, "first"


def move_a_queue_to_where_it_is(decisions: list[AnyDecision]) -> None:
    moved = decisions_of(Handover, decisions)[4]
    moved.to, moved.how = "a", "eager"


def assign_what_another_owns(decisions: list[AnyDecision]) -> None:
    to_b = decisions_of(Assignment, decisions)[4]
    to_b.queues = decisions_of(Assignment, decisions)[0].queues


def forget_a_queue_in_an_assignment(decisions: list[AnyDecision]) -> None:
    decisions_of(Assignment, decisions)[0].queues.pop()


def say_another_epoch_for_a_queue(decisions: list[AnyDecision]) -> None:
    decisions_of(Assignment, decisions)[0].epoch = 2
    decisions_of(Handover, decisions)[0].epoch = 2


def release_what_was_not_asked_back(decisions: list[AnyDecision]) -> None:
    decisions_of(Assignment, decisions)[1].revoke.clear()


def time_out_what_was_not_asked_back(decisions: list[AnyDecision]) -> None:
    decisions_of(Handover, decisions)[6].how = "timeout"


def expire_who_is_there(decisions: list[AnyDecision]) -> None:
    decisions_of(Handover, decisions)[4].how = "expired"


def let_somebody_else_leave(decisions: list[AnyDecision]) -> None:
    decisions_of(Fenced, decisions)[0].client_id = "b"


def tell_two_that_a_queue_is_theirs(decisions: list[AnyDecision]) -> None:
    decisions.remove(decisions_of(Assignment, decisions)[3])  # that it has no more of them
    decisions_of(Assignment, decisions)[1].queues = decisions_of(Assignment, decisions)[0].queues


def commit_as_a_stranger(decisions: list[AnyDecision]) -> None:
    decisions_of(Offset, decisions)[0].client_id = "b"


def commit_in_an_epoch_before_the_queue_was_given(decisions: list[AnyDecision]) -> None:
    decisions_of(Offset, decisions)[2].epoch = 1


def let_an_offset_fall(decisions: list[AnyDecision]) -> None:
    decisions_of(Offset, decisions)[1].offset = 9


def commit_what_is_committed(decisions: list[AnyDecision]) -> None:
    decisions_of(Offset, decisions)[1].offset = 10


BREAKS: dict[Callable[[list[AnyDecision]], None], str] = {
    lose_a_decision: "/5 follows seq 3; expected seq 4",
    repeat_a_decision: "/4 follows seq 4; expected seq 5",
    take_records_out_of_order: "has the cause at offset 1; expected at least 12, the offset of the previous decision",
    use_an_epoch_twice: "of group billing has epoch 1; expected a higher one",
    let_an_epoch_fall: "of group billing has epoch 1; expected at least 3",
    give_a_queue_that_another_owns: "of orders-2: `from` is None; expected a, the previous owner",
    move_a_queue_from_a_stranger: "of orders-2: `from` is z; expected a, the previous owner",
    free_a_queue_that_is_free: "of orders-0: the owner stays None; expected another one",
    move_a_queue_to_where_it_is: "of orders-2: the owner stays a; expected another one",
    assign_what_another_owns: "to b: it lists orders-0, but the owner is a",
    forget_a_queue_in_an_assignment: "to a: it does not list orders-3, which the client owns",
    say_another_epoch_for_a_queue: "to a: `given` of orders-0 is 1; expected 2",
    release_what_was_not_asked_back: "of orders-2: `how` is released, but the queue was not revoked from a",
    time_out_what_was_not_asked_back: "of orders-0: `how` is timeout, but the queue was not revoked from a",
    expire_who_is_there: "of orders-2: `how` is expired, but a was not fenced for that reason",
    let_somebody_else_leave: "of orders-0: `how` is unregistered, but a was not fenced for that reason",
    tell_two_that_a_queue_is_theirs: "orders-2 is in the newest assignments of a and b",
    commit_as_a_stranger: "of orders-0: the commit is from b; expected a, the owner",
    commit_in_an_epoch_before_the_queue_was_given: "of orders-2: the commit has epoch 1; expected at least 2",
    let_an_offset_fall: "of orders-0 has offset 9; expected more than 10",
    commit_what_is_committed: "of orders-0 has offset 10; expected more than 10",
}


def test_an_honest_history_breaks_no_rule():
    assert invariants.broken(History(PLAN).decisions) == []


@pytest.mark.parametrize("break_it", BREAKS, ids=lambda break_it: break_it.__name__)
def test_a_broken_rule_is_found_and_said_in_a_sentence(break_it):
    decisions = History(PLAN).decisions

    break_it(decisions)

    assert [sentence for sentence in invariants.broken(decisions) if BREAKS[break_it] in sentence] != []


def test_a_state_that_contradicts_itself_is_found():
    """Each part of the state is told by another: a member's count, the map, the free queues, who is gone."""
    group = History(PLAN).shard.group("billing")
    assert invariants.broken_state(group) == []

    group.members["b"].owned[Queue("orders", "", 7)] = 99
    group.members["b"].revoking[Queue("orders", "", 0)] = Revocation(3, 0, 0)
    group.members["b"].revoking[Queue("orders", "", 8)] = Revocation(3, 0, 0)
    group.ended["b b1"] = next(iter(group.ended.values()))
    group.members["b"].sent_epoch = 4
    group.owners[Queue("orders", "", 1)] = "z"
    group.freed[Queue("orders", "", 2)] = Freed("a", "released", 0)
    group.added[Queue("orders", "", 0)] = 1
    group.emptied_ms = 5

    assert invariants.broken_state(group) == [
        "the owner of orders-1 is b in the map or in the member, but not in both",
        "the owner of orders-1 is z in the map or in the member, but not in both",
        "the owner of orders-7 is b in the map or in the member, but not in both",
        "orders-2 is free and has an owner",
        "orders-7 was assigned in epoch 99; expected at most 3",
        "orders-0 is revoked in epoch 3; expected one above 3, the epoch of its assignment, and at most 3",
        "orders-8 is revoked from b, which does not own it",
        "epoch 4 was sent to b; expected at most 3",
        "the live instance b1 of b has ended",
        "orders-0 starts at first and has a committed offset",
        "the group has members and is marked as empty",
    ]


def test_a_claim_after_a_loss_of_state_breaks_no_rule():
    """It counts as given before all others: the client reads on, and any commit of it is good."""
    claimed = [Queue("orders", "", number) for number in (0, 1)]
    plan = [
        ("billing", 0, ("route", "orders", 2)),
        ("billing", 1, ("odd beat", "a", 1, 30, [], [])),
        ("billing", 0, ("ticks", 3)),
    ]
    history = History(plan, era=2)
    assert decisions_of(Handover, history.decisions) == []

    beat = Heartbeat(
        group_id="billing",
        client_id="b",
        instance_id="b1",
        epoch=60,
        owned=claimed,
        subscriptions=[Subscription(topic="orders")],
    )
    history.append(beat)
    offsets = [CommittedOffset(queue=claimed[0], offset=5)]
    commit = Commit(group_id="billing", client_id="b", instance_id="b1", epoch=7, offsets=offsets)
    history.append(commit)

    given = [[one.assigned_epoch for one in each.queues] for each in decisions_of(Assignment, history.decisions)]
    assert (given[-1], len(decisions_of(Offset, history.decisions))) == ([0, 0], 1)
    assert invariants.broken(history.decisions) == []


@pytest.mark.parametrize("tell", [a_day, three_days, two_eras, a_long_life])
def test_the_decisions_of_a_shard_hold_from_any_record_on(tell):
    """Retention deletes the decisions about the oldest records, at any of them."""
    by_shard: dict[str, list[AnyDecision]] = {}
    for decision in tell().decisions:
        by_shard.setdefault(decision.shard, []).append(decision)

    for decisions in by_shard.values():
        for number in range(1, len(decisions)):
            left = decisions[number:]
            if left[0].cause != decisions[number - 1].cause:
                rules = (invariants.broken_numbering, invariants.broken_ownership, invariants.broken_revocations)
                found = [sentence for rule in rules for sentence in rule(left, whole=False)]
                found += [*invariants.broken_epochs(left), *invariants.broken_offsets(left)]
                assert found + invariants.broken_answers(left) == []
