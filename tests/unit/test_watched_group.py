"""A watched group of Kafka's, as the coordinator records it: the real machine, without a broker."""

from collections.abc import Iterable

import pytest

from tests.support.control_log import ControlLog
from wakeroll_model.decisions import AnyDecision, Fenced, Handover, Membership, Offset, Rebalance, Rejected
from wakeroll_model.events import AnyEvent, Commit, Configure, Heartbeat, Reset, Route, RoutedQueue, Tick, Unregister
from wakeroll_model.group import Group
from wakeroll_model.queue import Queue
from wakeroll_model.shard import Shard
from wakeroll_model.watched_group import HEARTBEAT_MS, SESSIONS, SeenGroup, WatchedGroup
from wakeroll_model.watched_members import REFUSED_MS, SeenMember
from wakeroll_model.watched_offsets import REPEAT_MS, RESET_EVERY_MS

GROUP = "kafka.billing"
FOUR = [Queue("orders", "", number) for number in range(4)]


class Plane:
    """One shard, and the processes that watch one group."""

    def __init__(self, watchers: int = 1, queues: int = 4) -> None:
        self.now_ms = 0
        self.events: list[AnyEvent] = []
        self.decided: list[AnyDecision] = []
        self.answers = True
        """Whether the coordinator works; otherwise records wait in the log."""
        self._log = ControlLog(1)
        self._shard = Shard("wakeroll.groups", 0, 1, raises=True)
        self._waiting: list[object] = []
        self.watchers = [WatchedGroup(GROUP) for _ in range(watchers)]
        self.route(queues)

    def route(self, queues: int) -> None:
        routed = [RoutedQueue(topic="orders", broker="", queue_id=number, max_offset=1_000) for number in range(queues)]
        self.append([Route(topic="orders", queues=routed, version=str(queues))])

    def see(self, offsets: dict[int, int] | None = None, *, watcher: int = 0, **members: list[int] | None) -> None:
        """Let a process see Kafka's group: member -> numbers of its queues."""
        seen = tuple(
            SeenMember(client_id=name, queues=tuple(Queue("orders", "", number) for number in numbers or ()))
            for name, numbers in members.items()
        )
        self._see(seen, offsets or {}, watcher)

    def see_rebalance(self) -> None:
        """Let the process see Kafka's group while it assigns queues."""
        self._see(None, {}, 0)

    def pass_seconds(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_ms += 1_000
            self.append([Tick(observer="o1", uptime_ms=self.now_ms)])

    def append(self, events: Iterable[AnyEvent]) -> None:
        """Append events, and let every process hear what is decided."""
        for event in events:
            if not isinstance(event, Tick | Route):
                self.events.append(event)
            self._waiting += self._log.append(event, self.now_ms)
        if self.answers:
            self.decide()

    def decide(self) -> None:
        """Let the coordinator decide about all records that wait."""
        waiting, self._waiting = self._waiting, []
        for record in waiting:
            for decision in self._shard.apply(record):
                self.decided.append(decision)
                for watcher in self.watchers:
                    if getattr(decision, "group_id", None) == GROUP:
                        self.append(watcher.hear(decision, self.now_ms))

    @property
    def group(self) -> Group:
        group = self._shard.group(GROUP)
        assert group is not None
        return group

    @property
    def owners(self) -> dict[int, str]:
        return {queue.queue_id: client_id for queue, client_id in sorted(self.group.owners.items())}

    @property
    def offsets(self) -> dict[int, int]:
        return {queue.queue_id: offset for queue, offset in sorted(self.group.offsets.items())}

    def said(self, kind: type, since: int = 0) -> list[AnyDecision]:
        return [decision for decision in self.decided[since:] if isinstance(decision, kind)]

    def changes(self, since: int = 0) -> list[tuple[str, str]]:
        return [(one.change, one.client_id) for one in self.said(Membership, since)]

    def _see(self, members: tuple[SeenMember, ...] | None, offsets: dict[int, int], watcher: int) -> None:
        known = {Queue("orders", "", number): offset for number, offset in offsets.items()}
        self.append(self.watchers[watcher].see(SeenGroup(members=members, offsets=known), self.now_ms))


@pytest.fixture
def plane() -> Plane:
    """A group of two members, `a` and `b`, on record with its offsets."""
    plane = Plane()
    plane.pass_seconds(1)
    for _ in range(3):
        plane.see({0: 5, 1: 5, 2: 5, 3: 5}, a=[0, 1], b=[2, 3])
        plane.pass_seconds(5)
    assert plane.owners == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert plane.offsets == {0: 5, 1: 5, 2: 5, 3: 5}
    assert plane.said(Rejected) == []
    return plane


def test_members_queues_and_offsets_are_on_record_and_nothing_more_is_said(plane):
    """What does not change costs one heartbeat per member and interval."""
    decided, sent = len(plane.decided), len(plane.events)

    for _ in range(12):
        plane.see({0: 5, 1: 5, 2: 5, 3: 5}, a=[0, 1], b=[2, 3])
        plane.pass_seconds(5)

    assert plane.decided[decided:] == []
    assert [type(event) for event in plane.events[sent:]] == [Heartbeat] * 4


def test_a_member_that_joins_is_the_reason_why_queues_move(plane):
    decided = len(plane.decided)
    plane.see(a=[0], b=[2, 3], c=[1])

    [target] = plane.said(Rebalance, decided)
    assert (target.trigger, target.moved) == ("join", 1)
    assert [(str(one.queue), one.from_, one.to) for one in plane.said(Handover, decided)] == [("orders-1", "a", "c")]
    assert plane.changes(decided) == [("joined", "c")]


def test_several_members_join_in_one_target_and_no_queue_is_free_meanwhile(plane):
    """A queue that two members state stays where it is until the last one has joined."""
    decided = len(plane.decided)
    plane.see(a=[0], b=[2], c=[1], d=[3])
    plane.pass_seconds(2)

    assert plane.owners == {0: "a", 1: "c", 2: "b", 3: "d"}
    assert [one.moved for one in plane.said(Rebalance, decided)] == [0, 2]
    assert all(one.to is not None for one in plane.said(Handover, decided))


def test_a_member_that_leaves_is_the_reason_why_queues_move(plane):
    decided = len(plane.decided)
    plane.see(a=[0, 1, 2, 3])

    assert plane.owners == dict.fromkeys(range(4), "a")
    assert plane.changes(decided) == [("left", "b")]
    assert {(one.from_, one.to, one.how) for one in plane.said(Handover, decided)} == {("b", "a", "unregistered")}


def test_one_member_replaces_another_without_a_queue_that_is_free(plane):
    decided = len(plane.decided)
    plane.pass_seconds(1)
    plane.see(a=[0, 1], c=[2, 3])
    plane.pass_seconds(2)

    assert plane.owners == {0: "a", 1: "a", 2: "c", 3: "c"}
    assert plane.changes(decided) == [("joined", "c"), ("left", "b")]


def test_queues_that_move_between_members_that_stay_follow_with_the_timer(plane):
    decided = len(plane.decided)
    plane.see(a=[0, 2], b=[1, 3])
    plane.pass_seconds(1)

    assert plane.owners == {0: "a", 1: "b", 2: "a", 3: "b"}
    assert [one.trigger for one in plane.said(Rebalance, decided)] == ["timer"]
    assert plane.changes(decided) == []


def test_while_kafka_assigns_queues_the_last_facts_stay(plane):
    decided = len(plane.decided)
    for _ in range(60):
        plane.see_rebalance()
        plane.pass_seconds(5)

    assert plane.decided[decided:] == []


def test_a_group_without_members_keeps_its_offsets(plane):
    decided = len(plane.decided)
    plane.see({0: 5, 1: 5, 2: 5, 3: 5})
    plane.pass_seconds(5)

    assert plane.group.members == {}
    assert plane.changes(decided) == [("left", "a"), ("left", "b"), ("emptied", "")]
    plane.see({0: 5, 1: 5, 2: 5, 3: 5})
    assert plane.said(Rejected) == []
    assert not [event for event in plane.events if isinstance(event, Reset)]


def test_offsets_of_a_group_that_never_had_members_are_put_on_record():
    plane = Plane()
    plane.see({0: 7, 1: 9})
    plane.pass_seconds(1)
    plane.see({0: 7, 1: 9})

    assert plane.offsets == {0: 7, 1: 9}
    assert [one.reset_by for one in plane.said(Offset)] == ["watch-kafka"] * 2


def test_a_group_with_nothing_to_tell_is_not_put_on_record():
    plane = Plane()
    plane.see()
    plane.see_rebalance()

    assert plane.events == []


def test_an_offset_that_advances_is_a_commit_of_the_owner(plane):
    plane.see({0: 6, 1: 5, 2: 8, 3: 5}, a=[0, 1], b=[2, 3])

    assert plane.offsets == {0: 6, 1: 5, 2: 8, 3: 5}
    assert [(one.client_id, str(one.queue)) for one in plane.said(Offset)[-2:]] == [
        ("a", "orders-0"),
        ("b", "orders-2"),
    ]


def test_an_offset_that_moves_back_is_a_reset_when_it_is_seen_twice(plane):
    """Another process may have put a newer offset on record between the two looks."""
    back = {0: 2, 1: 5, 2: 5, 3: 5}
    plane.see(back, a=[0, 1], b=[2, 3])
    assert plane.offsets[0] == 5

    plane.pass_seconds(5)
    plane.see(back, a=[0, 1], b=[2, 3])
    assert plane.offsets[0] == 2
    assert plane.said(Offset)[-1].reset_by == "watch-kafka"

    plane.see(back | {0: 3}, a=[0, 1], b=[2, 3])
    assert plane.offsets[0] == 3, "its owner commits again, in the epoch of the reset"
    assert plane.said(Rejected) == []


def test_a_topic_is_reset_once_a_minute_although_somebody_who_is_no_member_commits_often():
    """Each reset is a new epoch."""
    plane = Plane()
    for seconds in range(0, 300, 5):
        plane.see({0: seconds})
        plane.pass_seconds(5)

    assert plane.offsets == {0: 245}
    assert len([event for event in plane.events if isinstance(event, Reset)]) == 300_000 // RESET_EVERY_MS


def test_a_reset_that_is_rejected_is_repeated_with_growing_pauses_until_the_queue_exists():
    plane = Plane(queues=1)
    for _ in range(12):
        plane.see({3: 7})
        plane.pass_seconds(5)
    assert [one.rule for one in plane.said(Rejected)] == ["reset"] * 3
    assert len({event.request_id for event in plane.events if isinstance(event, Reset)}) == 1

    plane.route(4)
    plane.pass_seconds(30)
    plane.see({3: 7})
    assert plane.offsets == {3: 7}


def test_a_process_that_is_restarted_continues_with_the_same_members(plane):
    decided = len(plane.decided)
    plane.watchers = [WatchedGroup(GROUP)]
    for _ in range(3):
        plane.see({0: 6, 1: 5, 2: 5, 3: 5}, a=[0, 1], b=[2, 3])
        plane.pass_seconds(5)

    assert plane.changes(decided) == []
    assert plane.said(Handover, decided) == []
    assert [one.trigger for one in plane.said(Rebalance, decided)] == ["config"]
    assert plane.offsets[0] == 6
    assert not [event for event in plane.events if isinstance(event, Reset)]


def test_a_process_that_is_restarted_sees_who_left_meanwhile(plane):
    decided = len(plane.decided)
    plane.watchers = [WatchedGroup(GROUP)]
    for _ in range(2):
        plane.see(b=[0, 1, 2, 3])
        plane.pass_seconds(5)

    assert plane.changes(decided) == [("left", "a")]
    assert plane.owners == dict.fromkeys(range(4), "b")


def test_a_process_that_is_restarted_during_a_rebalance_removes_nobody(plane):
    decided = len(plane.decided)
    plane.watchers = [WatchedGroup(GROUP)]
    for _ in range(4):
        plane.see_rebalance()
        plane.pass_seconds(5)
    assert plane.changes(decided) == []

    plane.see(a=[0, 1], b=[2, 3])
    plane.pass_seconds(5)
    plane.see(a=[0, 1], b=[2, 3])
    assert plane.changes(decided) == []


def test_members_expire_if_no_process_watches_and_the_record_says_why(plane):
    """They may live; their next instances join when the process is back."""
    decided = len(plane.decided)
    plane.pass_seconds(SESSIONS * HEARTBEAT_MS // 1_000 + 5)
    expired = [one for one in plane.said(Membership, decided) if one.change == "expired"]
    assert [one.client_id for one in expired] == ["a", "b"]
    assert "that process is silent, the client may live" in expired[0].detail

    plane.watchers = [WatchedGroup(GROUP)]
    for _ in range(4):
        plane.see({0: 5, 1: 5, 2: 5, 3: 5}, a=[0, 1], b=[2, 3])
        plane.pass_seconds(5)
    assert plane.owners == {0: "a", 1: "a", 2: "b", 3: "b"}


def test_after_two_outages_a_restarted_process_finds_the_newest_instance(plane):
    for _ in range(2):
        plane.pass_seconds(SESSIONS * HEARTBEAT_MS // 1_000 + 5)
        plane.watchers = [WatchedGroup(GROUP)]
        for _ in range(4):
            plane.see(a=[0, 1], b=[2, 3])
            plane.pass_seconds(5)
        assert plane.owners == {0: "a", 1: "a", 2: "b", 3: "b"}
    decided = len(plane.decided)

    plane.watchers = [WatchedGroup(GROUP)]
    for _ in range(4):
        plane.see(a=[0, 1], b=[2, 3])
        plane.pass_seconds(5)

    assert plane.changes(decided) == []
    assert plane.said(Fenced, decided) == []


def test_a_restart_while_the_coordinator_is_down_does_not_end_sessions(plane):
    """The log shows that the members were described all the time; the coordinator reads it later."""
    decided = len(plane.decided)
    plane.answers = False
    plane.watchers = [WatchedGroup(GROUP)]
    for _ in range(120):
        plane.see({0: 9, 1: 5, 2: 5, 3: 5}, a=[0, 1], b=[2, 3])
        plane.pass_seconds(5)
    assert len([event for event in plane.events if isinstance(event, Configure)]) < 7
    plane.answers = True
    plane.decide()
    plane.see({0: 9, 1: 5, 2: 5, 3: 5}, a=[0, 1], b=[2, 3])

    assert plane.changes(decided) == []
    assert plane.said(Handover, decided) == []
    assert plane.offsets[0] == 9


def test_two_processes_that_watch_the_same_group_do_not_disturb_each_other():
    plane = Plane(watchers=2)
    plane.pass_seconds(1)
    for offset in range(0, 50, 5):
        for watcher in (0, 1):
            plane.see({0: offset + watcher}, watcher=watcher, a=[0, 1], b=[2, 3])
            plane.pass_seconds(2)

    assert plane.changes() == [("joined", "a"), ("joined", "b")]
    assert plane.owners == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert plane.offsets == {0: 46}
    assert plane.said(Fenced) == []
    assert not [event for event in plane.events if isinstance(event, Reset)]


def test_a_queue_that_a_snapshot_shows_at_two_members_has_one_owner(plane):
    plane.see(a=[0, 1], b=[1, 2, 3])
    plane.pass_seconds(5)

    assert plane.owners == {0: "a", 1: "a", 2: "b", 3: "b"}


def test_a_member_that_is_refused_tries_again_after_a_pause():
    plane = Plane()
    plane.append([Configure(group_id=GROUP, max_members=1)])
    for _ in range(4):
        plane.see(a=[0, 1], b=[2, 3])
        plane.pass_seconds(5)
    assert [one.reason for one in plane.said(Fenced)] == ["refused"]

    plane.append([Configure(group_id=GROUP, max_members=2)])
    plane.pass_seconds(REFUSED_MS // 1_000)
    plane.see(a=[0, 1], b=[2, 3])
    plane.pass_seconds(2)
    assert list(plane.group.members) == ["a", "b"]


def test_a_client_that_comes_back_under_its_name_joins_with_another_instance(plane):
    """A static member of Kafka's keeps its name; its former instance has ended."""
    before = plane.group.members["b"].instance_id
    plane.see(a=[0, 1, 2, 3])
    plane.pass_seconds(5)
    plane.see(a=[0, 1], b=[2, 3])
    plane.pass_seconds(5)

    assert plane.owners == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert plane.group.members["b"].instance_id != before


def test_a_topic_of_one_member_is_subscribed_by_all(plane):
    """Kafka does not tell subscriptions; a spare member has no queues, and may get some."""
    plane.see(a=[0, 1], b=[2, 3], c=[])
    plane.pass_seconds(2)

    assert {name: list(member.subscriptions) for name, member in plane.group.members.items()} == {
        "a": ["orders"],
        "b": ["orders"],
        "c": ["orders"],
    }


def test_commits_that_are_not_answered_are_repeated_now_and_then(plane):
    plane.answers = False
    sent = len(plane.events)
    for _ in range(REPEAT_MS // 1_000):
        plane.see({0: 9}, a=[0, 1], b=[2, 3])
        plane.pass_seconds(1)
    assert len([event for event in plane.events[sent:] if isinstance(event, Commit)]) == 1

    plane.see({0: 9}, a=[0, 1], b=[2, 3])
    assert len([event for event in plane.events[sent:] if isinstance(event, Commit)]) == 2


def test_a_queue_on_its_way_to_a_new_owner_is_not_reset(plane):
    """In KIP-848, nobody has the queue between the final commit of its old owner and its new assignment."""
    plane.see({0: 5, 1: 8, 2: 5, 3: 5}, a=[0], b=[2, 3])
    plane.pass_seconds(1)
    plane.see({0: 5, 1: 9, 2: 5, 3: 5}, a=[0], b=[2, 3])
    plane.pass_seconds(5)
    plane.see({0: 5, 1: 9, 2: 5, 3: 5}, a=[0], b=[1, 2, 3])
    plane.pass_seconds(2)
    plane.see({0: 5, 1: 9, 2: 5, 3: 5}, a=[0], b=[1, 2, 3])

    assert plane.offsets[1] == 9
    assert not [event for event in plane.events if isinstance(event, Reset)]


def test_an_offset_of_a_topic_that_no_member_reads_any_more_is_put_on_record_after_a_while(plane):
    for _ in range(0, RESET_EVERY_MS + 10_000, 5_000):
        plane.see({0: 5, 1: 7, 2: 5, 3: 5}, a=[0], b=[2, 3])
        plane.pass_seconds(5)

    assert plane.offsets[1] == 7


def test_an_unregister_that_is_lost_is_repeated_until_it_is_answered(plane):
    """Without it, the member would expire as if nobody watched."""
    decided = len(plane.decided)
    lost = plane.watchers[0].see(SeenGroup(members=(), offsets={}), plane.now_ms)
    assert [type(event) for event in lost] == [Unregister] * 2
    for _ in range(12):
        plane.see()
        plane.pass_seconds(5)

    assert plane.changes(decided) == [("left", "a"), ("left", "b"), ("emptied", "")]
    assert len([event for event in plane.events if isinstance(event, Unregister)]) == 2
