"""Several coordinators publish what one would: with other batches, with crashes anywhere, and with late ones.

They run the adapter of the Spark job on one log. Readers apply the rule of every reader of decisions.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import pandas as pd
import pytest

from tests.support.samples import sample
from wakeroll.connection import Topics
from wakeroll_model.decision_order import order_of, without_era
from wakeroll_model.decisions import AnyDecision
from wakeroll_model.events import Commit, CommittedOffset, Heartbeat, Route, RoutedQueue, Subscription, Tick, Unregister
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision
from wakeroll_model.shard import Shard
from wakeroll_pipeline.operators.shard_operator import Counts, run_shard
from wakeroll_pipeline.recovery import published_decisions
from wakeroll_pipeline.recovery.decided_eras import Header
from wakeroll_pipeline.recovery.initial_state import Beginning, Restore, name_of
from wakeroll_pipeline.recovery.packed_states import unpack
from wakeroll_pipeline.recovery.published_decisions import NOTHING, settled

TOPICS = Topics()
PLACE = (TOPICS.groups, 0)
SECONDS = 60
OVERLAP_MS = 2_000
"""Here the rows of a batch are published faster than by Kafka's producer."""
Row = tuple[str, int, int, int, bytes | None, bytes]


def a_log(dice: random.Random) -> list[Row]:
    """Return the records of a shard in which clients of three groups come, commit, go and are silent."""
    events: list[tuple[int, bytes | None, object]] = [(0, None, Tick())]
    queues = [RoutedQueue(topic="orders", broker="", queue_id=number) for number in range(6)]
    events.append((1, None, Route(topic="orders", queues=queues, version="1")))
    wants = [Subscription(topic="orders")]
    for second in range(SECONDS):
        at_ms = 1_000 * second + 10
        events.append((at_ms, None, Tick()))
        for _ in range(dice.randrange(3)):
            group_id, client_id = f"g{dice.randrange(3)}", f"c{dice.randrange(4)}"
            key, names = group_id.encode(), {"group_id": group_id, "client_id": client_id}
            life = {"instance_id": f"{client_id}-{second // 100}"}
            offset = CommittedOffset(queue=Queue("orders", "", dice.randrange(6)), offset=second)
            event = dice.choice([
                *3 * [Heartbeat(**names, **life, subscriptions=wants, epoch=dice.randrange(-1, 9))],
                Commit(**names, **life, epoch=1, offsets=[offset]),
                Unregister(**names, **life),
            ])  # fmt: skip
            events.append((at_ms + 300, key, event))
    return [(*PLACE, offset, at_ms, key, encode_decision(event)) for offset, (at_ms, key, event) in enumerate(events)]


@dataclass
class Published:
    """A partition of a topic: (append time in ms, value)."""

    records: list[tuple[int, bytes]] = field(default_factory=list)

    def read(self) -> Iterator[AnyDecision]:
        """Yield the decisions as every reader does: those above the highest one of their shard."""
        newest: dict[str, tuple[int, int]] = {}
        for _, value in self.records:
            said = decode(value)
            shard, place = without_era(said.shard), order_of(said.shard, said.seq)
            if place > newest.get(shard, (0, 0)):
                newest[shard] = place
                yield said


decode = msgspec.json.Decoder(AnyDecision).decode


class State:
    """What Spark keeps for a shard between two batches."""

    exists = False

    def update(self, value: tuple[int, bytes]) -> None:
        self.exists, self.get = True, value


class Ignored:
    """An accumulator that nobody reads."""

    def add(self, _: object) -> None:
        pass


class Coordinator:
    """One coordinator: its committed state, its next record, and the rows of its batch that are not published yet."""

    def __init__(self, restore: Restore) -> None:
        self.restore = restore
        self.state = State()
        self.next_offset = restore.beginning(*PLACE).offset
        self.sending: list[tuple[str, bytes]] = []
        self.after: tuple[State, int] | None = None

    def begin_batch(self, rows: list[Row]) -> None:
        """Decide about records; nothing is committed before all rows are published."""
        attempt = State()
        if self.state.exists:
            attempt.update(self.state.get)
        counts = Counts(*[Ignored() for _ in Counts._fields])
        names = ["topic", "partition", "offset", "timestamp_ms", "key", "value"]
        frames = iter([pd.DataFrame(rows, columns=names)])
        for frame in run_shard(1, TOPICS, self.restore, None, counts, PLACE, frames, attempt):
            self.sending += [(row.topic, row.value) for row in frame.itertuples(index=False)]
        self.after = attempt, rows[-1][2] + 1

    def commit(self) -> None:
        assert self.after is not None
        self.state, self.next_offset = self.after
        self.after = None

    def restart(self) -> None:
        """Continue from the last committed batch, after a crash."""
        self.sending, self.after = [], None


class World:
    """Up to three coordinators on one log; time passes with every step."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.log = a_log(self.dice)
        self.now_ms = 0
        self.topics = {TOPICS.decisions: Published(), TOPICS.inbox: Published()}
        self.snapshot: tuple[int, bytes] | None = None
        self.coordinators = [Coordinator(Restore())]
        self.most = max(len(self.log) // 20, 2)

    def run(self) -> None:
        end = len(self.log)
        while any(one.next_offset < end for one in self.coordinators) or self.now_ms < 1_000 * SECONDS:
            self.now_ms += self.dice.randrange(1, 40)
            self._disturb()
            for one in self.coordinators:
                self._work(one)

    def _work(self, one: Coordinator) -> None:
        """Publish a row, or begin the next batch."""
        if one.sending:
            topic, value = one.sending.pop(0)
            self.topics[topic].records.append((self.now_ms, value))
        elif one.after is not None:
            one.commit()
        else:
            here = [row for row in self.log[one.next_offset : one.next_offset + 200] if row[3] <= self.now_ms]
            if here and self.dice.random() < 0.3:
                one.begin_batch(here[: self.dice.randrange(1, self.most)])

    def _disturb(self) -> None:
        chance = self.dice.random()
        one = self.dice.choice(self.coordinators)
        if chance < 0.01:
            one.restart()
        elif chance < 0.015 and one.state.exists:
            self.snapshot = one.next_offset, unpack(one.state.get[1])
        elif chance < 0.025 and self.snapshot is not None:
            self.coordinators.remove(one)  # it never comes back
        if len(self.coordinators) < 1 or (chance > 0.99 and len(self.coordinators) < 3):
            self.coordinators.append(Coordinator(self._beginning()))

    def _beginning(self) -> Restore:
        """Return the initial state of a new replica, as `wakeroll_pipeline.recovery.replica_start` chooses it."""
        headers = [
            Header("groups", "groups-0", 1, decode(value).seq, 0, at_ms)
            for at_ms, value in self.topics[TOPICS.decisions].records
        ]
        reached = settled(headers).get("groups-0", NOTHING)
        offset, body = self.snapshot or (0, None)
        begun = Beginning(offset=offset, body=body, published_seq=reached.settled_seq)
        return Restore({name_of(PLACE): begun})


def alone(log: list[Row]) -> tuple[list[bytes], list[bytes]]:
    """Return what one coordinator publishes that decides record by record: all decisions, and those of the inbox."""
    coordinator = Coordinator(Restore())
    published: dict[str, list[bytes]] = {TOPICS.decisions: [], TOPICS.inbox: []}
    for row in log:
        coordinator.begin_batch([row])
        for topic, value in coordinator.sending:
            published[topic].append(value)
        coordinator.sending = []
        coordinator.commit()
    return published[TOPICS.decisions], published[TOPICS.inbox]


@pytest.fixture(autouse=True)
def overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_decisions, "REPLICA_OVERLAP_MS", OVERLAP_MS)


@pytest.mark.parametrize("seed", sample(range(6), quick=2))
def test_readers_of_several_coordinators_see_what_one_would_publish(seed: int):
    world = World(seed)
    expected = alone(world.log)

    world.run()

    for topic, decisions in zip((TOPICS.decisions, TOPICS.inbox), expected, strict=True):
        assert [encode_decision(one) for one in world.topics[topic].read()] == decisions
    assert len(expected[1]) > 30
    assert {value for _, value in world.topics[TOPICS.decisions].records} == set(expected[0])


def run_all(seeds: int) -> None:
    for seed in range(seeds):
        test_readers_of_several_coordinators_see_what_one_would_publish(seed)


def test_the_simulation_finds_a_replica_that_withholds_too_much(monkeypatch: pytest.MonkeyPatch):
    """The other one may have died after a decision, and before its copy in the inbox."""
    monkeypatch.setattr(published_decisions, "REPLICA_OVERLAP_MS", 0)

    with pytest.raises(AssertionError):
        run_all(40)


def test_a_state_from_a_snapshot_decides_as_the_state_that_was_never_stored():
    rows = a_log(random.Random(1))
    never, stored = Shard(*PLACE, 1), Shard(*PLACE, 1)
    for number, row in enumerate(rows):
        if number % 100 == 0:
            stored = Shard(*PLACE, 1, stored.body())
        assert [encode_decision(one) for one in never.apply(Record(*row))] == [
            encode_decision(one) for one in stored.apply(Record(*row))
        ]
    assert never.body() == stored.body()
