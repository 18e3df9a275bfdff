"""The waker in a world made from one seed: Kafka, the coordinator and the workers fail, and every message is read.

The waker is the real one. The clock, the decisions, the pulls, the offsets and the lease are simulated; one round takes
a second of virtual time.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from msgspec import UNSET

from tests.support.step_counter import steps_of
from wakeroll.connection import Connection
from wakeroll.decision_log import Said
from wakeroll.errors import NotReachable
from wakeroll.wake import group_waker
from wakeroll.wake.group_waker import GroupWaker
from wakeroll.wake.worker_starters import GroupSize
from wakeroll_model.decisions import Membership, Offset, Rejected
from wakeroll_model.events import Pull, Subscription
from wakeroll_model.pull_client import PullEnded, Pulls
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import delay_ms_of
from wakeroll_model.sleeping_group import RECHECK_MS, RETURN_MS, STUCK_MS, WakeRules
from wakeroll_pipeline.observer.pattern_book import matching_topics

GROUP = "billing"
RETRIES = Queue("retry.billing", "", 5)
STEP_MS = 1_000
SESSION_MS = 45_000
CHAOS_MS = 1_200_000
BOUND_MS = 2 * (RECHECK_MS + STUCK_MS)
"""Longest time in which all messages are read when nothing fails any more."""


class Worker:
    """A worker that joins, reads what it can, leaves and ends; or fails at some point of that."""

    def __init__(self, world: "World", name: str, fate: str) -> None:
        self._world = world
        self.name = name
        self.fate = fate
        self._left_ms = world.random.randint(3_000, 20_000)
        self._joins_ms = world.now_ms + world.random.randint(0, 5_000)
        self._ends_ms = self._joins_ms + self._left_ms
        self.is_member = False
        self.outcome: bool | None = None

    def step(self) -> None:
        """Let time pass."""
        world = self._world
        if self.outcome is not None or world.now_ms < self._joins_ms:
            return
        if self.fate == "crash at start":
            self.outcome = False
            return
        if not self.is_member and world.has_coordinator and self.fate != "never joins":
            self.is_member = True
            world.change(self.name, "joined")
        if self.is_member and self.fate == "crash at work":
            self.outcome = False
            world.expiring.append((world.now_ms + SESSION_MS, self))
            return
        if self.is_member and world.has_coordinator and self.fate != "too short":
            world.read_all()
        if world.now_ms >= self._ends_ms:
            self.outcome = True
            if self.is_member:
                world.leaving.append(self)

    def result(self, _: GroupSize) -> bool | None:
        """Return whether it has ended successfully."""
        return self.outcome

    def stop(self) -> None:
        """Do nothing: the world ends."""

    def wait(self) -> None:
        """Do nothing: the world ends."""


class World:
    """Everything outside the waker. It also is its log of decisions, its pulls, its offsets and its lease."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 1_000_000
        self.ends: dict[Queue, int] = {Queue("orders", "", number): 0 for number in range(3)} | {RETRIES: 0}
        self.due_ms: dict[int, int] = {}
        """Offset in the retry queue -> when the message may be read."""
        self.committed: dict[Queue, int] = {}
        self.unreadable: set[Queue] = set()
        self.has_coordinator = True
        self.is_lossy = True
        self.is_leader = True
        self.has_live_member = False
        self.has_moved = False
        """Whether the group's decisions are appended to another partition than the waker reads."""
        self.era = 1
        self.era_ms = 0
        self.members: set[str] = set()
        self.workers: list[Worker] = []
        self.starts: list[int] = []
        self.expiring: list[tuple[int, Worker]] = []
        self.leaving: list[Worker] = []
        self._decisions: deque[tuple[int, Said]] = deque()
        self._pulls = Pulls(GROUP, "waker", "i1")
        self._held: dict[Queue, tuple[Pull, int, str]] = {}
        """Queue -> its pull, when it ends and how it is treated."""
        self._ended: list[PullEnded] = []

    # --- the group ---

    def decide(self, decision: Said) -> None:
        decision.shard = f"groups-0.{self.era}"
        before_ms = self._decisions[-1][0] if self._decisions else 0
        delay_ms = self.random.choice([0, 0, 1_000, 20_000]) if self.is_lossy else 1_000
        self._decisions.append((max(before_ms, self.now_ms + delay_ms), decision))

    def change(self, name: str, change: Any) -> None:
        self.members = self.members | {name} if change == "joined" else self.members - {name}
        self.decide(Membership(group_id=GROUP, client_id=name, change=change, epoch=1))
        if not self.members:
            self.decide(Membership(group_id=GROUP, client_id="", change="emptied", epoch=1))

    def set_offset(self, queue: Queue, offset: int) -> None:
        self.committed[queue] = offset
        fields = {"group_id": GROUP, "queue": queue, "offset": offset, "client_id": "c", "epoch": 1}
        self.decide(Offset(**cast(Any, fields), mode="clustering"))

    def read_all(self) -> None:
        for queue, end in self.ends.items():
            if queue in self.unreadable or self.is_read(queue):
                continue
            start = self.committed.get(queue, 0)
            if start > end:  # the coordinator corrects the offset, because the topic was recreated
                start = 0
            if queue == RETRIES:
                due = [offset for offset in range(start, end) if self.due_ms.get(offset, 0) > self.now_ms]
                end = min(due, default=end)
            if end != self.committed.get(queue, 0):
                self.set_offset(queue, end)

    def is_read(self, queue: Queue) -> bool:
        return self.committed.get(queue, 0) == self.ends[queue]

    def produce(self, queue: Queue) -> None:
        if queue == RETRIES:
            self.due_ms[self.ends[queue]] = self.now_ms + delay_ms_of(queue.queue_id)
        self.ends[queue] += 1

    def step(self) -> None:
        """Let a round's time pass."""
        self.now_ms += STEP_MS
        self.has_moved |= self.is_lossy and self.random.randrange(160) == 0
        for worker in self.workers:
            worker.step()
        self.workers = [worker for worker in self.workers if worker.outcome is None]
        if not self.has_coordinator:
            return
        for worker in self.leaving:
            if worker.name in self.members:
                self.change(worker.name, "left")
        self.leaving.clear()
        for due_ms, worker in list(self.expiring):
            if due_ms <= self.now_ms:
                self.expiring.remove((due_ms, worker))
                if worker.name in self.members:
                    self.change(worker.name, "expired")

    def disturb(self) -> None:
        """Let something happen, or nothing."""
        queues = sorted(self.ends)
        match self.random.randrange(160):
            case 0 | 1 | 2 | 3:
                self.produce(self.random.choice(queues))
            case 4:
                self.produce(RETRIES)
            case 5 if not (self.has_live_member and self.now_ms < self.era_ms + RETURN_MS):
                self.has_coordinator = not self.has_coordinator
            case 6 if self.has_coordinator:  # it lost its state; offsets are restored from the decisions
                self.era += 1
                self.era_ms = self.now_ms
                self.members = set()
            case 7 if self.has_coordinator:
                queue = self.random.choice(queues)
                self.set_offset(queue, self.random.randint(0, self.ends[queue]))
            case 8:
                self.unreadable ^= {self.random.choice(queues)}
            case 9:
                self.is_leader = not self.is_leader
            case 10 if self.has_coordinator:  # deleted and recreated
                queue = self.random.choice(queues[:3])
                self.ends[queue] = self.random.randint(0, 2)
                if self.has_live_member:  # its subscription makes the coordinator see that
                    self.set_offset(queue, 0)
            case 11:
                self.ends.setdefault(Queue("orders", "", len(self.ends)), 1)
            case 12 if self.has_coordinator and not self.members and not self.has_live_member:
                self.decide(Membership(group_id=GROUP, client_id="", change="forgotten", epoch=1))
                self.committed.clear()
            case _:
                pass

    def calm_down(self) -> None:
        """Let nothing fail any more."""
        self.has_coordinator, self.is_lossy, self.is_leader = True, False, True
        self.unreadable.clear()

    # --- the waker's surroundings ---

    def start(self, group_id: str, queues: Sequence[Queue], _: GroupSize) -> Worker:
        """Start a worker."""
        assert group_id == GROUP
        assert set(queues) <= self.ends.keys()
        self.starts.append(self.now_ms)
        fates = ["good"] * 4 + ["crash at start", "crash at work", "too short", "never joins"]
        if self.is_lossy and self.random.random() < 0.1:
            raise OSError("no more processes")
        worker = Worker(self, f"w{len(self.starts)}", self.random.choice(fates) if self.is_lossy else "good")
        self.workers.append(worker)
        return worker

    def from_the_start(self) -> None:
        """Do nothing."""

    def until_now(self) -> list[Said]:
        """Return the decisions of the beginning."""
        return self.wait(0)

    def wait(self, _: float) -> list[Said]:
        """Let the time of a round pass; return the next decisions."""
        if self.has_moved:
            return []
        decisions = []
        while self._decisions and self._decisions[0][0] <= self.now_ms:
            decisions.append(self._decisions.popleft()[1])
        return decisions

    def queues(self, topic: str) -> list[Queue]:
        """Return the queues of a topic."""
        if self.is_lossy and self.random.random() < 0.1:
            return []
        return sorted(queue for queue in self.ends if queue.topic == topic)

    def list_topics(self, **_: float) -> SimpleNamespace:
        """Return the topics of the cluster."""
        return SimpleNamespace(topics=dict.fromkeys(queue.topic for queue in self.ends))

    def ranges(self, queues: Iterable[Queue]) -> dict[Queue, tuple[int, int]]:
        """Return the first offset and the end of queues."""
        if not self.is_leader:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return {queue: (0, self.ends[queue]) for queue in queues if not self.is_lossy or self.random.random() < 0.8}

    def begin(self, queue: Queue, from_offset: int, timeout_ms: int, subscription: Subscription) -> None:
        """Hold a pull, lose it, or answer it wrongly."""
        pull = self._pulls.pull(queue, from_offset, timeout_ms, subscription, self.now_ms)
        how = self.random.choice(["held", "held", "lost", "overflow", "hint"]) if self.is_lossy else "held"
        self._held[queue] = pull, self.now_ms + timeout_ms, how

    def cancel(self, queue: Queue) -> None:
        """Cancel a pull."""
        self._pulls.cancel(queue)
        self._held.pop(queue, None)
        self._ended = [ended for ended in self._ended if ended.pull.queue != queue]

    def take_ended(self) -> list[PullEnded]:
        """Return the pulls that ended."""
        ended = self._pulls.on_time(self.now_ms)
        for pull in ended:
            self._held.pop(pull.pull.queue)
        for queue, (pull, due_ms, how) in list(self._held.items()):
            if not self.has_coordinator or how == "lost":
                continue
            end = self.ends.get(queue, 0) + (100 if how == "hint" else 0)
            answer = PullEnded(pull, "overflow", pull.from_offset)
            if how != "overflow":
                if end > pull.from_offset:
                    answer = PullEnded(pull, "arrival", end)
                elif due_ms <= self.now_ms:
                    answer = PullEnded(pull, "timeout", pull.from_offset)
                else:
                    continue
            del self._held[queue]
            self._pulls.cancel(queue)
            ended.append(answer)
        return ended

    def hear(self, _: object) -> None:
        """Do nothing: `take_ended` knows the answers."""

    def is_held(self) -> bool:
        """Whether this waker has the lease."""
        return not self.is_lossy or self.random.random() < 0.98

    def move(self, topic: str) -> None:
        """Check the topic of the lease."""
        assert topic == "orders"

    def was_replaced(self) -> bool:
        """The log of decisions; it is never created again."""
        return False

    def follow_the_group(self) -> None:
        """Read the group's new partition from now on, if it has one."""
        if self.has_moved and self.is_lossy and self.random.random() < 0.3:
            raise NotReachable("no broker answered")
        self.has_moved = False

    def give_back(self) -> None:
        """Do nothing: the lease comes back."""

    def close(self, *_: object) -> None:
        """Do nothing."""

    def flush(self, *_: object) -> None:
        """Do nothing."""


@pytest.fixture
def waker_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., GroupWaker]:
    """Make the real waker in a world."""

    def make(world: World, topics: Sequence[str] = ("orders",), **rules: int) -> GroupWaker:
        monkeypatch.setattr(group_waker, "now_ms", lambda: world.now_ms)
        for name in ("Positions", "Puller", "Lease"):
            monkeypatch.setattr(group_waker, name, lambda *_: world)
        monkeypatch.setattr(group_waker.DecisionLog, "of_group", lambda *_, **_more: world)
        monkeypatch.setattr(Connection, "operators_consumer", lambda _: world)
        return GroupWaker(
            Connection("b:9092"), GROUP, world, matching=matching_topics, topics=topics, rules=WakeRules(**rules)
        )

    return make


@pytest.mark.parametrize("seed", range(30))
def test_every_message_is_read_whatever_was_lost_late_or_repeated(waker_of, seed):
    """A lost wake would leave a message unread until the next one arrives, perhaps for ever."""
    world = World(seed)
    most = world.random.choice([1, 1, 3])
    waker = waker_of(world, most_workers=most)

    def go_on() -> None:
        world.step()
        waker._round()
        assert len(world.workers) <= most

    while world.now_ms < CHAOS_MS + 1_000_000:
        world.disturb()
        go_on()
    world.calm_down()
    calm_ms = world.now_ms
    while not all(map(world.is_read, world.ends)):
        go_on()
        assert world.now_ms < calm_ms + BOUND_MS, {q: (world.committed.get(q), e) for q, e in world.ends.items()}

    for _ in range(600):  # wrong hints are found out
        go_on()
    started = len(world.starts)
    for _ in range(600):
        go_on()
    assert len(world.starts) == started, "workers are started although there is nothing to read"
    assert started <= most * CHAOS_MS / 2_000


@pytest.mark.parametrize("topic", ["orders.late", "returns", "__orders"])
def test_a_new_topic_wakes_the_group_whose_last_members_had_a_pattern_that_it_matches(waker_of, topic):
    """Nobody has an offset of it: the group slept when it was created."""
    world = World(0)
    world.calm_down()
    for change, pattern in (("joined", "none.*"), ("resubscribed", "orders.*"), ("left", None)):
        found = Membership(group_id=GROUP, client_id="a", change=change, epoch=1, pattern=pattern or UNSET)
        world.decide(found)
    world.set_offset(Queue("orders", "", 0), 0)
    world.now_ms += 60_000
    waker = waker_of(world, topics=())
    new = Queue(topic, "", 0)
    world.ends[new] = 1

    for _ in range(120):
        world.step()
        waker._round()

    assert len(world.starts) == (topic == "orders.late")
    assert world.is_read(new) == (topic == "orders.late")


class Member:
    """A live member: it heartbeats, joins again after the coordinator lost its state, reads and commits."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._beat_ms = 0

    def step(self) -> None:
        """Let time pass."""
        world = self._world
        if not world.has_coordinator:
            return
        if "live" not in world.members:
            if world.now_ms < self._beat_ms:
                # Its commit is rejected, which is the first decision of the era about the group.
                world.decide(Rejected(rule="member", detail="", group_id=GROUP))
                return
            world.change("live", "joined")
        if world.now_ms >= self._beat_ms:
            self._beat_ms = world.now_ms + 10_000
        world.read_all()


@pytest.mark.parametrize("seed", range(20))
def test_a_group_with_a_live_member_is_never_woken(waker_of, seed):
    """Whatever happens to the coordinator and to its answers, as long as the decisions show the member at first.

    The exception: the coordinator loses its state, and fails again before the member has returned.
    """
    world = World(seed)
    world.has_live_member = True
    world.change("live", "joined")
    world.now_ms += 60_000
    waker = waker_of(world)
    member = Member(world)

    for second in range(3 * 3_600):
        if second == CHAOS_MS // 1_000:
            world.calm_down()
        elif second < CHAOS_MS // 1_000:
            world.disturb()
        world.step()
        member.step()
        waker._round()

    assert world.starts == []


def test_many_queues_are_watched_at_a_cost_that_grows_as_their_number(waker_of):
    """All pulls end at the same time, and are sent again: a search through all for each would cost 16 times as much."""

    def watch(count: int) -> None:
        world = World(0)
        world.calm_down()
        world.ends = {Queue("orders", "", number): 0 for number in range(count)}
        waker = waker_of(world)
        for _ in range(200):
            world.step()
            waker._round()
        assert len(world._held) == count
        world.produce(Queue("orders", "", count - 1))
        for _ in range(60):
            world.step()
            waker._round()
        assert world.is_read(Queue("orders", "", count - 1))

    few, many = (steps_of(partial(watch, count)) for count in (250, 1_000))

    assert many < 8 * few
