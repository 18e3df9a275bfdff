"""What the decisions tell an operator about a group, against what the coordinator itself knows."""

from typing import Any

from hypothesis import given

from tests.support.histories.group_histories import GROUPS, plans
from tests.support.histories.group_histories import History as Lived
from tests.support.story import Story
from wakeroll.group_summary import History
from wakeroll_model.decisions import Membership
from wakeroll_model.queue import Queue


def told(story: str) -> History:
    """Return what the decisions of a story tell."""
    teller = Story()
    teller.tell(f"group billing\n{story}")
    return History.of(teller.decisions)


@given(plan=plans)
def test_the_decisions_tell_every_offset_that_the_coordinator_has(plan):
    """Whatever clients and operators do: a plan must not show an offset as unknown, or as another."""
    lived = Lived(plan)
    for group_id in GROUPS:
        group = lived.shard.group(group_id)
        history = History.of(decision for decision in lived.decisions if decision.group_id == group_id)
        shared = {queue: offset for (owner, queue), offset in history.committed.items() if not owner}
        own = {where: offset for where, offset in history.committed.items() if where[0]}

        assert shared == (group.offsets if group else {})
        # Those of clients that left long ago are forgotten without a word.
        for name, kept in group.broadcast_offsets.items() if group else ():
            assert kept.offsets == {queue: offset for (owner, queue), offset in own.items() if owner == name}


@given(plan=plans)
def test_the_decisions_show_who_is_a_member(plan):
    """A worker must not be started for a group that has members, and must be for one that has none."""
    lived = Lived(plan)
    for group_id in GROUPS:
        group = lived.shard.group(group_id)
        history = History.of(decision for decision in lived.decisions if decision.group_id == group_id)

        assert (history.members or set()) == (set(group.members) if group else set())


@given(plan=plans)
def test_the_decisions_tell_every_topic_that_somebody_owns_a_queue_of(plan):
    """A whole group is to be reset: no topic of it may be missing, not even one whose only queue changes hands."""
    lived = Lived(plan)
    for group_id in GROUPS:
        group = lived.shard.group(group_id)
        history = History.of(decision for decision in lived.decisions if decision.group_id == group_id)
        owned = {queue.topic for member in group.members.values() for queue in member.owned} if group else set()

        assert owned <= set(history.topics)


def test_a_reset_is_told_as_the_offset_that_it_sets():
    """Backwards too: what counts is the newest decision, not the highest offset."""
    history = told(
        """
0.1s    route orders 2
1s      beat a orders
1.1s    receipt a
2s      commit a orders-0=100 orders-1=50
3s      reset orders-0=10 by=ops
"""
    )

    assert history.committed == {("", Queue("orders", "", 0)): 10, ("", Queue("orders", "", 1)): 50}
    assert history.topics == ["orders"]


def test_clients_of_a_broadcasting_group_are_told_apart_there_or_not():
    """A reset is for each that is known, so each stands in the plan: one left, one has not committed yet."""
    history = told(
        """
0.1s    route orders 1
1s      beat a orders mode=broadcasting
1.1s    receipt a
1.2s    beat b orders mode=broadcasting
1.3s    receipt b
2s      commit a orders-0=10
3s      leave a
"""
    )

    assert (history.mode, history.clients) == ("broadcasting", ["a", "b"])
    assert history.committed == {("a", Queue("orders", "", 0)): 10}


def test_a_topic_without_offsets_is_gone_with_the_last_member_that_had_it():
    """A member that only came by must not make a topic part of the group for a week."""
    history = told(
        """
0.1s    route orders 1
0.1s    route payments 1
1s      beat a orders payments
1.1s    receipt a
2s      commit a orders-0=10
"""
    )
    assert history.topics == ["orders", "payments"]

    history = told(
        """
0.1s    route orders 1
0.1s    route payments 1
1s      beat a orders payments
1.1s    receipt a
2s      commit a orders-0=10
3s      leave a
"""
    )
    assert history.topics == ["orders"]


def test_a_forgotten_group_has_no_offsets():
    """After a week without members the coordinator starts it as a new one, and so must a plan."""
    history = told(
        """
0.1s    route orders 1
1s      beat a orders
1.1s    receipt a
2s      commit a orders-0=10
3s      leave a
"""
    )
    history.learn(Membership(group_id="billing", client_id="", change="forgotten", epoch=2))

    assert (history.committed, history.topics) == ({}, [])


def test_a_deleted_offset_is_no_committed_offset():
    history = told(
        """
0.05s   level 4
0.1s    route orders 2
1s      beat a orders
1.1s    receipt a
2s      commit a orders-0=10 orders-1=3
3s      leave a
4s      delete offsets orders-0
"""
    )

    assert history.committed == {("", Queue("orders", "", 1)): 3}


def change(client_id: str, what: Any, era: int = 1) -> Membership:
    return Membership(group_id="billing", client_id=client_id, change=what, epoch=1, shard=f"groups-0.{era}")


def test_members_whose_decisions_are_deleted_may_remain_when_another_one_leaves():
    """Three joined a month ago; if the group counted as empty, a worker would be started beside them."""
    history = History.of([change("new", "joined"), change("new", "left")])
    assert history.members is None

    history.learn(change("", "emptied"))
    assert history.members == set()


def test_members_are_not_known_between_the_begin_of_an_era_and_their_return():
    """The coordinator restores them from their heartbeats."""
    history = History.of([change("", "emptied"), change("a", "joined")])
    assert history.members == {"a"}
    history.learn(change("a", "agreed", era=2))
    assert history.members is None

    history.learn(change("a", "joined", era=2))
    assert history.members == {"a"}
