"""Rounds: what heartbeats prove about publication, whatever coordinators do with their batches."""

from itertools import pairwise
from random import Random

import pytest
from msgspec import UNSET, structs

from tests.support.control_log import TOPIC, ControlLog
from wakeroll_model import feature_levels, rounds
from wakeroll_model.config import ERA_EPOCHS, EVIDENCE_ROUNDS
from wakeroll_model.decisions import AnyDecision, Assignment, Fenced
from wakeroll_model.events import AnyEvent, Configure, Heartbeat, Level, Route, RoutedQueue, Subscription, Tick
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision
from wakeroll_model.shard import Shard

SECOND = 1_000
GROUP = "billing"
SESSION_MS = 10_000
CALM_STEPS = 100
"""Then one member is deaf, and coordinators die in most of their batches."""


class Reader:
    """A client that reads every decision for it that is published, and obeys at once; if it is deaf, none."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.is_lagging = False
        self.shows_rounds = True
        self.newest: Assignment | None = None
        self.is_over = False
        self._seq = 0

    def read(self, decision: AnyDecision) -> None:
        if isinstance(decision, Assignment | Fenced) and decision.client_id == self.client_id and not self.is_lagging:
            if decision.seq <= self._seq:
                return
            self._seq = decision.seq
            if isinstance(decision, Assignment):
                self.newest = decision
            else:
                self.is_over = True

    def beat(self) -> Heartbeat:
        newest = self.newest
        return Heartbeat(
            group_id=GROUP,
            client_id=self.client_id,
            instance_id=f"{self.client_id}-1",
            epoch=newest.epoch if newest else -1,
            session_timeout_ms=newest.session_timeout_ms if newest else 45_000,
            owned=[one.queue for one in newest.queues] if newest else [],
            subscriptions=[Subscription(topic="orders")],
            round=newest.round if newest and self.shows_rounds and isinstance(newest.round, int) else -1,
        )


class Coordinator:
    """Plans a batch, publishes all of it or a part, and repeats a batch in which it died."""

    def __init__(self, log: list[Record]) -> None:
        self._log = log
        self._body = Shard(TOPIC, 0, 1).body()
        self._next, self._planned = 0, 0
        self.away_until = 0
        """The step before which it is not running."""

    def batch(self, end: int) -> list[AnyDecision]:
        """Return the decisions of the batch up to `end`, or of the one in which it died before."""
        if self._planned == self._next:
            self._planned = max(self._next, end)
        self._shard = Shard(TOPIC, 0, 1, self._body)
        return [one for record in self._log[self._next : self._planned] for one in self._shard.apply(record)]

    def finish(self) -> None:
        """Go on behind the batch: all of it is published."""
        self._next, self._body = self._planned, self._shard.body()


class World:
    """A group with a member that goes deaf; coordinators die in the middle of batches, and publish any part of them."""

    def __init__(self, seed: int, coordinators: int) -> None:
        self._rng = Random(seed)
        self._control = ControlLog(1)
        self.log: list[Record] = []
        self.appended: list[int] = []
        """For each record, the step in which it was appended."""
        self.published: dict[int, int] = {}
        """seq -> the step in which a decision was published first."""
        self.step = 0
        self.at_ms = 0
        self.readers = [Reader("a"), Reader("b"), Reader("c")]
        self._coordinators = [Coordinator(self.log) for _ in range(coordinators)]
        self.append(Level(level=feature_levels.NEWEST))
        self.append(Configure(group_id=GROUP, session_timeout_ms=SESSION_MS, heartbeat_ms=3 * SECOND, settle_ms=0))
        queues = [RoutedQueue(topic="orders", broker="", queue_id=number) for number in range(3)]
        self.append(Route(topic="orders", queues=queues, version="1"))

    def append(self, event: AnyEvent) -> None:
        for record in self._control.append(event, self.at_ms):
            self.log.append(record)
            self.appended.append(self.step)

    def run(self, steps: int) -> None:
        rng = self._rng
        for self.step in range(1, steps):
            if self.step == CALM_STEPS:
                self.readers[0].is_lagging = True
                self._reconfigure()
            reader = rng.choice(self.readers)
            match rng.randint(0, 5):
                case 0 | 1 if not reader.is_over:
                    self.append(reader.beat())
                case 2:
                    self.at_ms += SECOND
                    self.append(Tick(observer="o", uptime_ms=self.at_ms))
                case 3 | 4:
                    self._coordinate(rng.choice(self._coordinators))
                case 5 if rng.random() < 0.1:
                    self._reconfigure()

    def _reconfigure(self) -> None:
        """Begin an epoch: everybody is sent an assignment."""
        self.append(Configure(group_id=GROUP, session_timeout_ms=SESSION_MS, by=str(self.step)))

    def _coordinate(self, coordinator: Coordinator) -> None:
        """Run a batch; one that dies has published nothing for the deaf member: that is where the evidence is weak."""
        rng = self._rng
        if self.step < coordinator.away_until:
            return
        decisions = coordinator.batch(rng.randint(len(self.log) * 9 // 10, len(self.log)))
        dies = rng.random() < (0.9 if self.step > CALM_STEPS else 0.2)
        if rng.random() < 0.3:
            coordinator.away_until = self.step + rng.randint(10, 60)
        for one in decisions:
            if dies and (getattr(one, "client_id", "") == "a" or rng.random() < 0.5):
                continue
            self.published.setdefault(one.seq, self.step)
            for reader in self.readers:
                reader.read(one)
        if not dies:
            coordinator.finish()


def unfounded(world: World) -> tuple[int, int]:
    """Return how often the deaf member was proved to be able to receive its assignment, and how often wrongly."""
    shard, founded, wrong = Shard(TOPIC, 0, 1), 0, 0
    sent: list[Assignment] = []
    since_ms = -1
    for record in world.log:
        sent += [one for one in shard.apply(record) if isinstance(one, Assignment) and one.client_id == "a"]
        group = shard.group(GROUP)
        member = group.members.get("a") if group else None
        if member is None:
            since_ms = -1
            continue
        if since_ms < 0 <= member.lagging_since_ms:
            steps = [world.published.get(one.seq, 10**9) for one in sent if one.epoch >= member.lagging_epoch]
            founded += 1
            wrong += min(steps) >= world.appended[record.offset]
        since_ms = member.lagging_since_ms
    return founded, wrong


def judged(coordinators: int) -> tuple[int, int]:
    """Return the counts of `unfounded` in a hundred worlds."""
    found = []
    for seed in range(100):
        world = World(seed, coordinators)
        world.run(300)
        found.append(unfounded(world))
    return sum(founded for founded, _ in found), sum(wrong for _, wrong in found)


@pytest.mark.parametrize("coordinators", [1, 2])
def test_evidence_means_that_the_assignment_is_published(coordinators, monkeypatch):
    """Whatever n coordinators publish of a batch before they die in it: n + 1 rounds are proof."""
    monkeypatch.setattr(rounds, "EVIDENCE_ROUNDS", coordinators + 1)

    founded, wrong = judged(coordinators)

    assert founded >= 10
    assert wrong == 0


@pytest.mark.parametrize("coordinators", [1, 2])
def test_one_round_less_is_no_evidence(coordinators, monkeypatch):
    """Each coordinator may publish one round without our assignment, and die."""
    monkeypatch.setattr(rounds, "EVIDENCE_ROUNDS", coordinators)

    assert judged(coordinators)[1] > 0


def test_the_constant_covers_two_coordinators():
    assert EVIDENCE_ROUNDS == 3


class Group:
    """A group whose coordinator is never late; nothing happens in it except ticks and heartbeats."""

    def __init__(self, *readers: Reader, level: int = feature_levels.NEWEST) -> None:
        self.readers = readers
        self.sent: list[AnyDecision] = []
        self._control = ControlLog(1)
        self.shard = Shard(TOPIC, 0, 1, level=level)
        self.at_ms = 0
        self.tell(Configure(group_id=GROUP, session_timeout_ms=SESSION_MS, heartbeat_ms=3 * SECOND, settle_ms=0))
        self.tell(Route(topic="orders", queues=[RoutedQueue(topic="orders", broker="", queue_id=0)], version="1"))

    def tell(self, event: AnyEvent) -> list[AnyDecision]:
        decisions = [one for record in self._control.append(event, self.at_ms) for one in self.shard.apply(record)]
        self.sent += decisions
        for reader in self.readers:
            for one in decisions:
                reader.read(one)
        return decisions

    def pass_seconds(self, seconds: int) -> None:
        """Let everybody send a heartbeat every 3 s."""
        for _ in range(seconds):
            self.at_ms += SECOND
            self.tell(Tick(observer="o", uptime_ms=self.at_ms))
            for number, reader in enumerate(self.readers):
                if not reader.is_over and self.at_ms // SECOND % 3 == number:
                    self.tell(reader.beat())

    def reconfigure(self) -> None:
        self.tell(Configure(group_id=GROUP, session_timeout_ms=SESSION_MS, by="ops"))

    @property
    def fenced(self) -> list[tuple[str, str]]:
        return [(one.client_id, one.reason) for one in self.sent if isinstance(one, Fenced)]


def test_a_member_that_does_not_receive_is_evicted_though_nothing_else_happens():
    """Another one is probed, once per heartbeat interval; then two sessions pass."""
    group = Group(Reader("a"), Reader("b"))
    group.pass_seconds(20)
    group.readers[0].is_lagging = True
    group.reconfigure()
    group.pass_seconds(20)
    probes = [one for one in group.sent if isinstance(one, Assignment) and one.client_id == "b"][-4:]

    assert [(one.epoch, one.round) for one in probes] == [(probes[0].epoch, probes[0].round + n) for n in range(4)]
    assert [after.at_ms - before.at_ms for before, after in pairwise(probes)][1:] == [3 * SECOND] * 2
    assert group.fenced == []
    group.pass_seconds(12)
    assert group.fenced == []
    group.pass_seconds(12)
    assert group.fenced[0] == ("a", "deaf")


def test_members_are_probed_in_turn():
    """The one that was probed first may not receive anything either."""
    group = Group(Reader("a"), Reader("b"), Reader("c"))
    group.pass_seconds(20)
    group.readers[0].is_lagging = True
    group.reconfigure()
    group.pass_seconds(3)
    group.readers[1].is_lagging = True
    group.pass_seconds(60)

    assert group.fenced[0] == ("a", "deaf")
    assert "c" not in [client_id for client_id, _ in group.fenced]


def test_who_receives_everything_a_little_late_is_not_deaf():
    """Each assignment that it shows, late, needs new evidence for the next one."""
    group = Group(Reader("a"), Reader("b"), Reader("c"))
    group.pass_seconds(20)
    late = group.readers[0]
    for _ in range(30):
        late.is_lagging = True
        group.reconfigure()
        group.pass_seconds(9)
        late.is_lagging = False
        group.pass_seconds(3)

    epochs = [one.epoch for one in group.sent if isinstance(one, Assignment)]
    assert late.newest is not None
    assert 0 < late.newest.epoch - epochs[0] < max(epochs)
    assert group.fenced == []


def test_clients_that_show_no_rounds_prove_nothing():
    """A client of an older release: its epoch may be that of an earlier assignment of the same epoch."""
    group = Group(Reader("a"), Reader("b"))
    group.readers[1].shows_rounds = False
    group.pass_seconds(20)
    group.readers[0].is_lagging = True
    group.reconfigure()
    group.pass_seconds(600)

    assert group.fenced == []


def test_below_level_3_assignments_have_no_round_and_epochs_are_proof():
    group = Group(Reader("a"), Reader("b"), level=2)
    group.pass_seconds(20)
    group.readers[0].is_lagging = True
    group.reconfigure()
    group.pass_seconds(40)

    assert {one.round for one in group.sent if isinstance(one, Assignment)} == {UNSET}
    assert b"round" not in b"".join(map(encode_decision, group.sent))
    assert group.fenced[0] == ("a", "deaf")


def test_a_round_of_a_former_era_or_of_no_assignment_has_no_effect():
    """Rounds of an era begin above all earlier ones, and a round that was never sent is no proof."""
    group = Group(Reader("a"), Reader("b"))
    group.pass_seconds(20)
    before = group.shard.group(GROUP).round
    [record] = group._control.append(structs.replace(group.readers[0].beat(), round=before + 1), group.at_ms)
    group.shard.apply(record)
    assert group.shard.group(GROUP).round == before

    lost = Shard(TOPIC, 0, 1, group.shard.body(), era=2, quiet_until=record.offset + 1)
    [record] = group._control.append(group.readers[0].beat(), group.at_ms)
    lost.apply(record)

    assert lost.group(GROUP).round == ERA_EPOCHS
