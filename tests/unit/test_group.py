"""The group machine, under whatever clients, operators and clocks may do to it."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.control_log import START_MS
from tests.support.histories.group_histories import GROUPS, TOPICS, History, plans
from wakeroll_model import config, invariants
from wakeroll_model.config import DEFAULT_LIMITS, FORGET_MS, Limits
from wakeroll_model.decisions import Assignment, Cause, Fenced, Handover, Membership, Rebalance, Rejected, Start
from wakeroll_model.events import (
    Commit,
    CommittedOffset,
    Configure,
    Heartbeat,
    Route,
    RoutedQueue,
    Subscription,
    Tick,
    Unregister,
)
from wakeroll_model.group import Group, GroupSettings, Received
from wakeroll_model.group_machine import step
from wakeroll_model.instance_secrets import provable_id
from wakeroll_model.known_routes import Routes
from wakeroll_model.queue import Queue
from wakeroll_model.records import read_event
from wakeroll_model.shard_clock import Moment, ShardClock
from wakeroll_model.strategies import STRATEGIES


@given(plan=plans)
def test_what_always_holds_holds_in_any_history(plan):
    """One owner a queue, an unbroken chain of hand-overs, epochs that only grow, every decision numbered."""
    assert invariants.broken(History(plan).decisions) == []


@given(plan=plans)
def test_the_parts_of_a_groups_state_say_the_same_after_every_event(plan):
    """Above all: what a member counts as its own is what the map holds for it."""
    broken = []

    class Watched(History):
        def append(self, event):
            decisions = super().append(event)
            for group_id in self.shard.names():
                broken.extend(invariants.broken_state(self.shard.group(group_id)))
            return decisions

    Watched(plan)

    assert broken == []


@given(plan=plans)
def test_the_state_knows_the_last_decision_about_each_member_queue_and_group(plan):
    """Questions read these facts from a snapshot instead of the decisions of years."""
    history = History(plan)
    handovers, joins, rebalances = {}, {}, {}
    for one in history.decisions:
        if isinstance(one, Handover):
            handovers[one.group_id, one.queue] = one
        elif isinstance(one, Membership) and one.change == "joined":
            joins[one.group_id, one.client_id] = one.at_ms
        elif isinstance(one, Rebalance):
            rebalances[one.group_id] = (one.at_ms, one.trigger, one.moved)

    for group_id in history.shard.names():
        group = history.shard.group(group_id)
        last = group.rebalanced and (group.rebalanced.at_ms, group.rebalanced.trigger, group.rebalanced.moved)
        assert last == rebalances.get(group_id)
        for client_id, member in group.members.items():
            assert member.joined_ms == joins[group_id, client_id]
        assert group.received.keys() == group.owners.keys()
        for queue, received in group.received.items():
            one = handovers[group_id, queue]
            assert received == Received(one.epoch, one.at_ms, one.how, one.from_)
        for queue, freed in group.freed.items():
            one = handovers[group_id, queue]
            assert (freed.epoch, freed.at_ms, freed.how) == (one.epoch, one.at_ms, one.how)


@given(plan=plans)
def test_a_queue_is_given_only_while_nobody_holds_it(plan):
    """The map is the proof: whoever had it before has released it, or is not heard any more, or had his time."""
    owners = {}
    for decision in History(plan).decisions:
        if isinstance(decision, Handover):
            where = decision.group_id, decision.queue
            came_free_now = decision.from_ is not None and decision.released_ms == decision.at_ms
            assert owners.get(where) is None or came_free_now
            owners[where] = decision.to


@given(plan=plans)
def test_in_a_calm_world_every_queue_finds_an_owner_that_knows_it(plan):
    """Whatever happened before: when everybody answers - with a receipt, then a release - nothing is left lying."""
    calm = [(group_id, 0, ("configure", CALM)) for group_id in GROUPS]
    history = History([*plan, *calm, *CALM_ROUND * 22])
    routes = {event.topic: event for event in map(event_of, history.records) if isinstance(event, Route)}
    for group_id in GROUPS:
        group = history.shard.group(group_id)
        if group is None or not group.members:
            continue
        routed = {routed.queue for topic in group.topics if topic in routes for routed in routes[topic].queues}
        shown = {
            queue: client_id
            for client_id, member in group.members.items()
            if (beat := history.receipt(group_id, client_id, member.instance_id))
            for queue in beat.owned
        }

        assert {queue: shown.get(queue) for queue in routed} == {queue: group.target.get(queue) for queue in routed}
        assert routed <= shown.keys()
        assert shown == group.owners


CALM = {"strategy": "AVG", "settle_ms": 1_000, "session_timeout_ms": 45_000, "max_members": 1_000}
CALM_ROUND = [("billing", 0, ("all drain",)), ("billing", 300, ("all answer",)), ("billing", 0, ("ticks", 5))]
"""A round every five seconds, for longer than any session that anybody may trust."""


def event_of(record):
    return read_event(record, 4)


@given(plan=plans, group_id=st.sampled_from(GROUPS))
def test_a_heartbeat_that_says_what_is_known_already_changes_nothing(plan, group_id):
    """Producers repeat; a client in a quiet group costs no decision and no epoch."""
    history = History(plan)
    group = history.shard.group(group_id)
    for client_id, member in (group.members if group else {}).items():
        beat = history.receipt(group_id, client_id, member.instance_id)
        if beat is None:
            continue
        history.append(beat)
        history.append(beat)
        before = msgspec.msgpack.encode(group)

        again = history.append(beat)

        told_in_vain = [decision for decision in again if not isinstance(decision, Assignment)]
        assert (told_in_vain, msgspec.msgpack.encode(group)) == ([], before)


@given(plan=plans)
def test_every_client_that_answers_is_told_what_it_owns(plan):
    """Once the world is calm: two rounds of honest heartbeats later, everybody shows just what the map holds for it."""
    history = History([*plan, ("billing", 0, ("ticks", 30))])
    for _ in range(3):
        for group_id in GROUPS:
            group = history.shard.group(group_id)
            for client_id, member in (group.members if group else {}).items():
                if beat := history.receipt(group_id, client_id, member.instance_id):
                    history.append(beat)
    shown = {}
    expected = {}
    for group_id in GROUPS:
        group = history.shard.group(group_id)
        for client_id, member in (group.members if group else {}).items():
            beat = history.receipt(group_id, client_id, member.instance_id)
            shown[group_id, client_id] = None if beat is None else beat.owned
            expected[group_id, client_id] = sorted(member.owned)

    assert shown == expected


@settings(max_examples=200)
@given(plan=plans)
def test_looking_at_a_group_on_every_tick_finds_nothing_that_its_deadline_did_not(plan):
    """A tick decodes only what is due.  A deadline that is late would be a client that never expires."""
    history = History(plan)
    for group_id in GROUPS:
        kept = [decision for decision in history.decisions if getattr(decision, "group_id", None) == group_id]

        assert [_without_header(decision) for decision in kept] == _decided_by_looking_always(history, group_id)


def _decided_by_looking_always(history: History, group_id: str) -> list[bytes]:
    """Step one group through all the records of its shard, every tick among them."""
    group, routes, clock = Group(group_id=group_id, settings=GroupSettings()), Routes({}), ShardClock()
    decided = []
    for record in history.records:
        event = read_event(record, history.log.partitions)
        assert not isinstance(event, Rejected)
        moment = clock.read(record.timestamp_ms, event if isinstance(event, Tick) else None)
        if isinstance(event, Route):
            concerns = routes.learn(event) and event.topic in group.topics
        else:
            concerns = isinstance(event, Tick) or event.group_id == group_id
        if concerns:
            cause = Cause(record.topic, record.partition, record.offset)
            decided += step(group, event, moment, cause, routes)
    return [_without_header(decision) for decision in decided]


def _without_header(decision: msgspec.Struct) -> bytes:
    header = {"shard": "", "seq": 0, "at_ms": 0, "cause": Cause("", 0, 0)} | (
        {"raw": ""} if isinstance(decision, Rejected) else {}
    )
    return msgspec.json.encode(msgspec.structs.replace(decision, **header))


# --- single rules that a story does not tell ---


class Lonely:
    """One group on its own, stepped by hand."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS, **settings) -> None:
        self.limits = limits
        self.group = Group(group_id="billing", settings=GroupSettings(**settings))
        self.routes = Routes({})
        self._offset = 0

    def route(self, topic: str, queues: int) -> list:
        """Route a topic; return what follows for a group that subscribes it."""
        routed = [RoutedQueue(topic=topic, broker="", queue_id=number) for number in range(queues)]
        event = Route(topic=topic, queues=routed, version=str(queues))
        self.routes.learn(event)
        return self.step(event, 0)

    def beat(self, client_id: str, now_ms: int, *topics: str, **said) -> list:
        """Let the client's first life say that it lives, and wants these topics (orders)."""
        subscriptions = [Subscription(topic=topic) for topic in topics or ("orders",)]
        beat = Heartbeat(
            group_id="billing", client_id=client_id, instance_id=f"{client_id}1", subscriptions=subscriptions, **said
        )
        return self.step(beat, now_ms)

    def step(self, event, now_ms: int) -> list:
        """Let something happen; return what follows."""
        self._offset += 1
        cause = Cause("wakeroll.groups", 1, self._offset)
        moment = Moment(now_ms, START_MS + now_ms, True)
        return step(self.group, event, moment, cause, self.routes, self.group.load, self.limits)


def test_a_strategy_that_breaks_does_not_break_the_group(monkeypatch):
    """A strategy may be anybody's code, its parameters are a client's: its topic keeps its target, with a note."""
    lonely = Lonely()
    lonely.route("orders", 2)
    lonely.beat("a", 0)

    def breaks(_queues, _clients, params, /):
        return params["rooms"]["a"]

    monkeypatch.setitem(STRATEGIES, "BREAKS", breaks)
    [rebalance, *_] = lonely.step(Configure(group_id="billing", strategy="BREAKS"), 5_000)

    assert rebalance.notes == ["orders: BREAKS failed with KeyError('rooms'); the previous target stays"]
    assert sorted(lonely.group.members["a"].owned) == [Queue("orders", "", 0), Queue("orders", "", 1)]


def test_a_strategys_answer_is_taken_as_far_as_it_is_valid(monkeypatch):
    """Unknown queues, strangers and members that do not want the topic get nothing; what is left stands in the open."""
    lonely = Lonely()
    lonely.route("orders", 4)
    lonely.route("payments", 1)
    lonely.beat("a", 0)
    lonely.beat("p", 5_000, "payments")

    def answers_oddly(queues, clients, _params, /):
        if queues[0].topic == "payments":
            return {"p": queues}
        return {clients[0]: [queues[0], Queue("orders", "", 99)], "stranger": [queues[1]], "p": [queues[2]]}

    monkeypatch.setitem(STRATEGIES, "ODD", answers_oddly)
    [rebalance, *_] = lonely.step(Configure(group_id="billing", strategy="ODD"), 10_000)

    assert rebalance.notes == ["orders: 3 unknown queues or clients in the answer of ODD are ignored"]
    assert [(str(one.queue), one.reason) for one in rebalance.unassigned] == [
        (f"orders-{number}", "ODD assigns it to no member") for number in (1, 2, 3)
    ]
    assert lonely.group.target == {Queue("orders", "", 0): "a", Queue("payments", "", 0): "p"}


def test_a_queue_claimed_by_several_stays_with_its_owner(monkeypatch):
    """A strategy that cannot make up its mind moves nothing; without an owner the first in order has it."""
    lonely = Lonely()
    lonely.route("orders", 2)
    lonely.beat("b", 0)
    lonely.beat("a", 5_000)
    lonely.beat("b", 5_100, epoch=2, owned=[Queue("orders", "", 1)])
    assert lonely.group.owners == {Queue("orders", "", 0): "a", Queue("orders", "", 1): "b"}

    monkeypatch.setitem(STRATEGIES, "ALL", lambda queues, clients, _params, /: dict.fromkeys(clients, queues))
    lonely.step(Configure(group_id="billing", strategy="ALL"), 10_000)

    assert lonely.group.target == {Queue("orders", "", 0): "a", Queue("orders", "", 1): "b"}


def test_a_timer_that_waits_for_the_settle_interval_asks_once():
    """The settle interval may be longer than the timer's; each tick asked again, and filled the list of causes."""
    lonely = Lonely(settle_ms=60_000, rebalance_interval_ms=1_000)
    lonely.route("orders", 2)
    lonely.beat("a", 0)
    lonely.beat("a", 1_000, weight=2.0)
    for second in range(2, 40):
        lonely.step(Tick(), second * 1_000)

    assert [trigger for trigger, _ in lonely.group.pending] == ["timer"]


def test_a_shorter_session_is_not_noticed_too_late():
    """Nothing but the receipt itself brings the deadline forward; until then the client may trust the longer one."""
    lonely = Lonely()
    lonely.beat("a", 0)
    lonely.step(Tick(), 1_000)

    lonely.step(Configure(group_id="billing", heartbeat_ms=5_000, session_timeout_ms=15_000), 5_000)
    assert lonely.group.due_ms == 45_001
    lonely.beat("a", 6_000, epoch=2)

    assert lonely.group.due_ms <= 21_001


def test_settings_are_not_known_by_an_epoch_that_was_shown_before_they_were_made():
    """A new target waits for the settle interval, a grant does not: it tells the settings in an epoch that is old.

    Were its receipt taken for theirs, a heartbeat that was on its way would shorten a session that its client trusts.
    """
    lonely = Lonely()
    lonely.route("orders", 2)
    lonely.beat("a", 0)
    lonely.beat("b", 5_000)
    lonely.beat("b", 5_100, epoch=2)
    lonely.step(Configure(group_id="billing", heartbeat_ms=5_000, session_timeout_ms=15_000), 5_200)
    decisions = lonely.beat("a", 5_300, epoch=2, owned=[Queue("orders", "", 0)])
    [to_b] = [one for one in decisions if isinstance(one, Assignment) and one.client_id == "b"]

    lonely.beat("b", 5_400, epoch=2)

    assert (to_b.epoch, to_b.session_timeout_ms) == (2, 15_000)
    assert lonely.group.members["b"].session_ms == 45_000

    decisions = lonely.step(Tick(), 7_000)
    assert [one.epoch for one in decisions if isinstance(one, Assignment) and one.client_id == "b"] == [3]
    lonely.beat("b", 7_100, epoch=3, owned=[Queue("orders", "", 1)])
    assert lonely.group.members["b"].session_ms == 15_000


def test_a_queue_is_not_given_to_a_client_that_does_not_want_its_topic_any_more():
    """The target may be older than the client's preferences: it follows when the settle interval has passed."""
    lonely = Lonely()
    lonely.route("orders", 2)
    lonely.beat("a", 0)
    lonely.beat("b", 5_000)
    lonely.beat("b", 5_200, "payments", epoch=2)

    lonely.beat("a", 5_300, epoch=2, owned=[Queue("orders", "", 0)])

    assert lonely.group.owners == {Queue("orders", "", 0): "a"}
    lonely.step(Tick(), 7_000)
    assert lonely.group.owners == {Queue("orders", "", 0): "a", Queue("orders", "", 1): "a"}


def test_the_revoke_timeout_counts_again_when_a_group_is_not_ordered_any_more():
    """The oldest member decides whether order matters; when it leaves, a deadline may have passed already."""
    lonely = Lonely()
    lonely.route("orders", 2)
    lonely.beat("z", 0, "payments", orderly=True)
    lonely.beat("a", 5_000)
    lonely.beat("b", 10_000)
    both = [Queue("orders", "", 0), Queue("orders", "", 1)]
    for now_ms in (10_100, 41_000):
        for client_id, topic in (("z", "payments"), ("a", "orders"), ("b", "orders")):
            owned = both if client_id == "a" else []
            lonely.beat(client_id, now_ms, topic, epoch=3, owned=owned, orderly=client_id == "z")
        lonely.step(Tick(), now_ms + 1)
    assert lonely.group.owners == {both[0]: "a", both[1]: "a"}

    lonely.step(Unregister(group_id="billing", client_id="z", instance_id="z1"), 42_000)

    assert lonely.group.due_ms <= 43_000
    lonely.step(Tick(), 43_000)
    assert lonely.group.owners == {both[0]: "a", both[1]: "b"}


def test_a_queue_that_was_added_is_no_news_once_it_is_committed():
    """What is kept for a queue must not outlive its use."""
    lonely = Lonely()
    lonely.route("orders", 1)
    lonely.beat("a", 0)
    lonely.route("orders", 2)
    lonely.step(Tick(), 2_000)
    added = Queue("orders", "", 1)
    assert lonely.group.added == {added: 2}

    offsets = [CommittedOffset(queue=added, offset=0)]
    lonely.step(Commit(group_id="billing", client_id="a", instance_id="a1", epoch=2, offsets=offsets), 3_000)

    assert (lonely.group.added, lonely.group.offsets) == ({}, {added: 0})


def test_a_commit_for_ten_thousand_queues_is_refused_in_one_sentence():
    """A rejection has a bounded detail; a client that is fenced for all it had must not fill the inbox."""
    lonely = Lonely()
    lonely.route("orders", 1)
    lonely.beat("a", 0)
    offsets = [CommittedOffset(queue=Queue("payments", "", number), offset=1) for number in range(10_000)]

    commit = Commit(group_id="billing", client_id="a", instance_id="a1", epoch=1, offsets=offsets)
    decisions = lonely.step(commit, 1_000)

    assert [(type(one), one.rule, len(one.detail)) for one in decisions] == [(Rejected, "commit", 500)]


def test_the_newest_version_of_a_subscription_counts():
    """What a client wants of a topic may change; a heartbeat that comes late must not turn it back."""
    lonely = Lonely()
    kept = []
    for version, expression in ((5, "red"), (6, "blue"), (5, "red"), (6, "green")):
        subscription = Subscription(topic="orders", expression=expression, version=version)
        lonely.step(Heartbeat(group_id="billing", client_id="a", instance_id="a1", subscriptions=[subscription]), 0)
        kept.append(lonely.group.members["a"].subscriptions["orders"].expression)

    assert kept == ["red", "blue", "blue", "blue"]


def test_as_many_ended_instances_are_remembered_as_the_limit_says():
    """Bounded memory: a process that starts in a loop must not fill the state."""
    lonely = Lonely(Limits(max_ended=8))
    for life in range(20):
        lonely.step(Heartbeat(group_id="billing", client_id="a", instance_id=f"a{life}"), life)
        lonely.step(Unregister(group_id="billing", client_id="a", instance_id=f"a{life}"), life)

    assert list(lonely.group.ended) == [f"a a{life}" for life in range(12, 20)]


def test_instances_that_wait_cost_no_more_than_a_few():
    """Only the first ones are remembered, however many want the client_id of a live one."""
    lonely = Lonely()
    lonely.beat("a", 0)
    sizes = []
    for life in range(10, 30):
        lonely.step(Heartbeat(group_id="billing", client_id="a", instance_id=f"a{life}"), 1_000 + life)
        sizes.append(len(msgspec.msgpack.encode(lonely.group)))

    assert len(set(sizes[config.MAX_RIVALS :])) == 1


def test_whoever_waits_is_told_in_the_end_however_many_wait():
    """Each of more instances than are remembered says again and again that it is there, and the live one lives."""
    lonely = Lonely()
    lives = [f"a{number}" for number in range(2 * config.MAX_RIVALS + 1)]
    live, told = lives.pop(0), dict[str, int]()
    epoch = -1
    for at_s in range(0, 600, 5):
        beat = {"group_id": "billing", "client_id": "a"}
        for decision in lonely.step(Heartbeat(**beat, instance_id=live, epoch=epoch), at_s * 1_000):
            epoch = decision.epoch if isinstance(decision, Assignment) else epoch
        for life in [one for one in lives if one not in told]:
            for decision in lonely.step(Heartbeat(**beat, instance_id=life), at_s * 1_000 + 1):
                if isinstance(decision, Fenced) and decision.reason == "duplicate":
                    told[decision.instance_id] = at_s

    assert sorted(told) == lives
    assert max(told.values()) <= 3 * config.SESSION_TIMEOUT_MS // 1_000


def test_only_who_has_the_secret_can_end_an_instance_that_is_made_of_it():
    """Every instance_id stands in the control topics for all to read."""
    lonely = Lonely()
    life = {"group_id": "billing", "client_id": "a", "instance_id": provable_id("a secret")}
    lonely.step(Heartbeat(**life), 0)

    [refused] = lonely.step(Unregister(**life), 1_000)
    [also] = lonely.step(Unregister(**life, secret="another"), 1_000)
    assert (refused.rule, also.rule) == ("secret", "secret")
    assert "a" in lonely.group.members

    lonely.step(Unregister(**life, secret="a secret"), 2_000)
    assert lonely.group.members == {}


def test_a_refused_client_costs_nothing():
    """A group that is full must not grow by those it refuses."""
    lonely = Lonely(max_members=1)
    lonely.beat("a", 0)
    before = msgspec.msgpack.encode(lonely.group)

    refused = [lonely.beat(f"c{number}", 1_000) for number in range(10)]

    full = "the group has 1 members; max_members is 1"
    expected = [("limit", full), ("refused", "")]
    assert [
        [(getattr(one, "rule", "") or one.reason, getattr(one, "detail", "")) for one in each] for each in refused
    ] == [expected] * 10
    assert msgspec.msgpack.encode(lonely.group) == before


def test_an_empty_group_is_forgotten_after_seven_days_but_for_its_epoch():
    """No epoch is used twice; offsets, hand-overs and settings begin again, and that they are lost is on record."""
    lonely = Lonely()
    lonely.route("orders", 2)
    lonely.step(Configure(group_id="billing", heartbeat_ms=5_000, session_timeout_ms=20_000), 0)
    lonely.beat("a", 2_000)
    offsets = [CommittedOffset(queue=Queue("orders", "", 0), offset=17)]
    lonely.step(Commit(group_id="billing", client_id="a", instance_id="a1", epoch=2, offsets=offsets), 2_100)
    lonely.step(Unregister(group_id="billing", client_id="a", instance_id="a1"), 4_000)
    week_ms = 7 * 24 * 3_600_000

    assert lonely.step(Tick(), 4_000 + week_ms - 1) == []
    [forgotten] = lonely.step(Tick(), 4_000 + week_ms)
    decisions = lonely.beat("b", 4_000 + week_ms + 5_000)

    assert (forgotten.change, forgotten.epoch) == ("forgotten", 3)
    assert forgotten.detail == "offsets of 1 queues, settings"
    assert [(one.from_, one.how) for one in decisions if isinstance(one, Handover)] == [(None, "first")] * 2
    [to_b] = [one for one in decisions if isinstance(one, Assignment)]
    assert (to_b.epoch, to_b.session_timeout_ms) == (4, 45_000)
    assert [one.start for one in to_b.queues] == [Start(policy="last")] * 2


def test_a_quiet_group_is_not_looked_at_again():
    """An empty group without news has no deadline but the day it is forgotten."""
    lonely = Lonely()
    lonely.step(Configure(group_id="billing", strategy="AVG"), 0)
    lonely.step(Tick(), 1_000)

    assert lonely.group.due_ms == FORGET_MS


def test_a_target_counts_what_it_costs():
    """What an operator looks at first: how many queues move, how even the shares are, who got nothing."""
    lonely = Lonely()
    lonely.route("orders", 5)
    lonely.beat("a", 0)
    decisions = lonely.beat("b", 5_000)
    decisions += lonely.beat("a", 5_100, epoch=2, owned=[Queue("orders", "", number) for number in range(3)])
    rebalance = next(decision for decision in decisions if isinstance(decision, Rebalance))
    handovers = [decision for decision in decisions if isinstance(decision, Handover)]

    assert (rebalance.clients, rebalance.queues, rebalance.moved, rebalance.spread) == (2, 5, 2, 1)
    assert [(str(one.queue), one.from_, one.to) for one in handovers] == [
        ("orders-3", "a", "b"),
        ("orders-4", "a", "b"),
    ]


def test_topics_are_those_of_the_members():
    lonely = Lonely()
    for number, topic in enumerate(TOPICS):
        lonely.beat(f"c{number}", 0, topic, "orders")

    assert lonely.group.topics == sorted(TOPICS)


def test_who_hears_everything_a_little_late_is_not_deaf():
    """Targets come faster than its way there and back, as in a rolling restart: it always lacks the newest one."""
    lonely, told = Lonely(), []
    for client_id in "ab":
        lonely.beat(client_id, 0)
    for second in range(1, 200):
        told += lonely.step(Configure(group_id="billing", settle_ms=second % 2), second * 1_000)
        told += lonely.beat("b", second * 1_000 + 300, epoch=lonely.group.epoch)
        told += lonely.beat("a", second * 1_000 + 400, epoch=lonely.group.epoch - 1)

    assert [one for one in told if isinstance(one, Fenced)] == []


def test_a_deaf_member_has_two_of_the_sessions_that_it_trusts():
    """It watches its inbox for as long as the session that it was told; it has not heard of the shorter one."""
    lonely = Lonely(session_timeout_ms=120_000)
    for client_id in "ab":
        lonely.beat(client_id, 0)
    for client_id in "ab":
        lonely.beat(client_id, 2_000, epoch=lonely.group.epoch)
    lonely.step(Configure(group_id="billing", session_timeout_ms=10_000, heartbeat_ms=2_000), 5_000)
    heard = lonely.group.epoch
    reasons: dict[int, str] = {}
    for second in range(6, 300, 3):
        lonely.beat("b", second * 1_000, epoch=heard)
        for one in lonely.beat("a", second * 1_000 + 1, epoch=heard - 1):
            if isinstance(one, Fenced):
                reasons.setdefault(second, one.reason)

    assert next(iter(reasons.items())) == (249, "deaf")
