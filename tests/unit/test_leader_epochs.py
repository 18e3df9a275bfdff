"""Committed offsets with leader epochs: how they go back when a log has lost its tail, and only then."""

import msgspec
import pytest

from wakeroll_model import leader_epochs
from wakeroll_model.client import Client, Preferences
from wakeroll_model.client_actions import Give, Send
from wakeroll_model.config import Limits
from wakeroll_model.decisions import AnyDecision, AssignedQueue, Assignment, Membership, Offset, Start
from wakeroll_model.events import (
    Commit,
    CommittedOffset,
    Event,
    Heartbeat,
    Level,
    Route,
    RoutedQueue,
    Subscription,
    Tick,
    Unregister,
)
from wakeroll_model.invariants import broken
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard

GROUP, QUEUE = "billing", Queue("orders", "", 0)
EVERYWHERE = (Route, Tick, Level)


class Log:
    """A shard at a level, with one member that owns the queue."""

    def __init__(self, level: int = 3) -> None:
        self.shard = Shard("wakeroll.groups", 0, 1, raises=True)
        self.offset = 0
        self.at_ms = 1_000
        self.decisions: list[AnyDecision] = []
        self.instances = 0
        self.append(Level(level=level))
        self.route(100)
        self.join()

    def append(self, event: Event, after_ms: int = 100) -> list[AnyDecision]:
        self.at_ms += after_ms
        key = None if isinstance(event, EVERYWHERE) else GROUP.encode()
        value = msgspec.json.encode(event)
        found = self.shard.apply(Record("wakeroll.groups", 0, self.offset, self.at_ms, key, value))
        self.offset += 1
        self.decisions += found
        return found

    def tick(self, seconds: int = 1, limits: Limits | None = None) -> list[AnyDecision]:
        return [one for _ in range(seconds) for one in self.append(Tick(limits=limits), 1_000)]

    def route(self, end: int) -> list[AnyDecision]:
        queue = RoutedQueue(topic="orders", broker="", queue_id=0, max_offset=end)
        return self.append(Route(topic="orders", queues=[queue], version="1", topic_id="one"))

    @property
    def instance_id(self) -> str:
        return f"i{self.instances}"

    def join(self) -> AssignedQueue:
        self.instances += 1
        self.beat(-1, [])
        self.tick(2)
        assigned = [one for one in self.decisions if isinstance(one, Assignment)][-1]
        self.beat(assigned.epoch, [QUEUE])
        return assigned.queues[0]

    def leave(self) -> None:
        self.append(Unregister(group_id=GROUP, client_id="a", instance_id=self.instance_id))

    def beat(self, epoch: int, owned: list[Queue]) -> None:
        self.append(
            Heartbeat(
                group_id=GROUP,
                client_id="a",
                instance_id=self.instance_id,
                epoch=epoch,
                owned=owned,
                consume_from="first",
                subscriptions=[Subscription(topic="orders")],
            )
        )

    def commit(self, offset: int, leader_epoch: int | None = None) -> list[Offset]:
        """Commit as the owner; return what was recorded."""
        group = self.shard.group(GROUP)
        assert group is not None
        entry = CommittedOffset(queue=QUEUE, offset=offset, leader_epoch=leader_epoch)
        event = Commit(group_id=GROUP, client_id="a", instance_id=self.instance_id, epoch=group.epoch, offsets=[entry])
        return [one for one in self.append(event) if isinstance(one, Offset)]

    @property
    def committed(self) -> int | None:
        group = self.shard.group(GROUP)
        return None if group is None else group.offsets.get(QUEUE)


@pytest.mark.parametrize(
    ("offset", "epoch", "before", "epoch_before", "is_news"),
    [
        (61, 1, 100, 0, True),  # the log lost its tail
        (60, 1, 100, 0, True),
        (100, 1, 100, 0, False),
        (99, 0, 100, 0, False),  # late
        (101, 0, 100, 0, True),
        (120, 0, 61, 1, False),  # of the lost tail
        (101, None, 100, 0, True),
        (99, None, 100, 0, False),
        (99, 3, 100, None, False),
        (101, 3, 100, None, True),
        (0, None, -1, None, True),
    ],
)
def test_a_commit_is_compared_by_leader_epoch_first(offset, epoch, before, epoch_before, is_news):
    assert leader_epochs.is_news(offset, epoch, before, epoch_before) == is_news


def test_a_commit_goes_back_with_its_log():
    log = Log()
    log.commit(100, 0)
    [went_back] = log.commit(60, 1)
    [advanced] = log.commit(61, 1)

    assert (went_back.offset, went_back.reset_by, went_back.leader_epoch) == (60, "log", 1)
    assert (advanced.offset, advanced.reset_by, advanced.leader_epoch) == (61, None, 1)
    assert log.committed == 61
    assert broken(log.decisions) == []


def test_a_commit_of_the_lost_tail_that_comes_late_or_again_changes_nothing():
    log = Log()
    log.commit(100, 0)
    log.commit(60, 1)

    assert log.commit(120, 0) == []
    assert log.commit(60, 1) == []
    assert log.committed == 60


def test_the_next_owner_receives_the_leader_epoch():
    log = Log()
    log.commit(100, 7)
    log.leave()

    assert log.join().start == Start(offset=100, leader_epoch=7)


def test_below_level_3_leader_epochs_have_no_effect():
    """The bytes of all decisions stay the same, whatever newer clients send."""
    log = Log(level=2)
    [committed] = log.commit(100, 0)
    assert log.commit(60, 1) == []
    log.leave()

    assert b"leader_epoch" not in msgspec.json.encode(committed)
    assert log.join().start == Start(offset=100)


def test_a_commit_without_leader_epoch_goes_back_only_if_a_route_contradicts_the_committed_offset():
    log = Log()
    log.commit(100)
    assert log.commit(60) == []
    log.route(70)
    [went_back] = log.commit(60)
    log.route(70)

    assert went_back.reset_by == "log"
    assert log.committed == 60


def test_two_routes_correct_an_offset_to_the_smallest_end_that_they_showed():
    """The queue grew between them; with the newest end, what came before it would be lost."""
    log = Log()
    log.commit(100, 4)
    log.leave()
    log.route(60)
    [correction] = [one for one in log.route(75) if isinstance(one, Offset)]

    assert (correction.offset, correction.leader_epoch, correction.reset_by) == (60, 4, "route")
    assert log.join().start == Start(offset=60, leader_epoch=4)


def test_an_empty_group_is_forgotten_after_the_time_that_is_set():
    """Also one that was empty before the setting was changed; its offsets are gone with it."""
    log = Log()
    log.commit(100)
    log.leave()
    log.tick()
    hour = 3_600_000
    forgotten = []
    log.tick(limits=Limits(forget_after_ms=hour))
    for _ in range(hour // 1_000 + 2):
        forgotten += [one for one in log.tick() if isinstance(one, Membership) and one.change == "forgotten"]
        if forgotten:
            break

    assert len(forgotten) == 1
    assert log.committed is None


def test_below_level_3_an_empty_group_is_forgotten_after_a_week():
    log = Log(level=2)
    log.leave()
    log.tick(limits=Limits(forget_after_ms=3_600_000))

    assert not [one for one in log.tick(3_602) if isinstance(one, Membership) and one.change == "forgotten"]


# --- the client's side ---


class Reading:
    """A client that reads the queue from an offset on."""

    def __init__(self, start: Start) -> None:
        self.client = Client(GROUP, "a", Preferences(subscriptions=[Subscription(topic="orders")]))
        self.client.join("i", 0)
        assignment = Assignment(
            shard="groups-0.1",
            seq=1,
            group_id=GROUP,
            client_id="a",
            instance_id="i",
            epoch=1,
            queues=[AssignedQueue(QUEUE, 1, start)],
            revoke=[],
            state="stable",
            heartbeat_ms=10_000,
            session_timeout_ms=45_000,
            revoke_timeout_ms=30_000,
        )
        [self.give] = [one for one in self.client.receive(assignment, 1) if isinstance(one, Give)]
        self.sent(self.client.started([(self.give, start.offset or 0)], 2))

    def sent(self, outputs: list[object]) -> list[tuple[int, int | None]]:
        """Let Kafka acknowledge the commits among these; return their offsets and leader epochs."""
        sent = [one for one in outputs if isinstance(one, Send)]
        commits = [one.event for one in sent if isinstance(one.event, Commit)]
        for one in sent:
            if isinstance(one.event, Commit):
                self.client.committed(one.event, one.sent_ms)
        return [(entry.offset, entry.leader_epoch) for commit in commits for entry in commit.offsets]

    def commit(self) -> list[tuple[int, int | None]]:
        return self.sent(self.client.commit(3))


def test_a_commit_has_the_leader_epoch_of_the_message_before_it():
    reading = Reading(Start(offset=10, leader_epoch=1))
    reading.client.note_leader_epoch(reading.give, 12, 3)

    found = []
    for done in (11, 12, 13, 20):
        reading.client.done(reading.give, done)
        found += reading.commit()
    assert found == [(11, 1), (12, 1), (13, 3), (20, 3)]


def test_a_client_that_goes_back_commits_that_at_once_and_goes_on_from_there():
    reading = Reading(Start(offset=0))
    reading.client.note_leader_epoch(reading.give, 0, 1)
    reading.client.done(reading.give, 100)
    assert reading.commit() == [(100, 1)]

    assert reading.sent(reading.client.go_back(reading.give, 60, 2, 4)) == [(60, 2)]
    assert reading.client.commits() == {QUEUE: 60}
    reading.client.note_leader_epoch(reading.give, 60, 5)
    reading.client.done(reading.give, 61)
    assert reading.commit() == [(61, 5)]


def test_an_acknowledgement_of_a_lost_offset_does_not_stop_later_commits():
    """It may come after the client went back."""
    reading = Reading(Start(offset=0))
    reading.client.note_leader_epoch(reading.give, 0, 1)
    reading.client.done(reading.give, 100)
    [late] = [one.event for one in reading.client.commit(3) if isinstance(one, Send)]
    reading.sent(reading.client.go_back(reading.give, 60, 2, 4))
    assert isinstance(late, Commit)
    reading.client.committed(late, 3)
    reading.client.done(reading.give, 70)

    assert reading.commit() == [(70, 2)]


def test_a_client_before_the_branch_commits_nothing_when_it_learns_of_it():
    reading = Reading(Start(offset=0))
    reading.client.note_leader_epoch(reading.give, 0, 1)
    reading.client.done(reading.give, 50)
    reading.commit()

    assert reading.client.go_back(reading.give, 60, 2, 4) == []
    reading.client.done(reading.give, 60)
    assert reading.commit() == [(60, 1)]


def test_without_leader_epochs_a_commit_that_goes_back_is_repeated_until_the_lost_offset_is_passed():
    """The coordinator accepts it only when a route has shown the loss, and nobody tells the client."""
    reading = Reading(Start(offset=0))
    reading.client.done(reading.give, 100)
    reading.commit()
    assert reading.sent(reading.client.go_back(reading.give, 60, None, 4)) == [(60, None)]

    assert reading.sent(reading.client.on_time(10_001)) == []
    assert reading.sent(reading.client.on_time(15_002)) == [(60, None)]
    reading.client.done(reading.give, 101)
    assert reading.sent(reading.client.on_time(20_003)) == [(101, None)]
    reading.client.acknowledged(20_000, 20_004)
    assert reading.sent(reading.client.on_time(30_005)) == []
    assert reading.sent(reading.client.on_time(35_006)) == []
