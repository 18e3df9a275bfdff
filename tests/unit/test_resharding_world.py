"""Clients that learn late of new shards: nobody who lives expires, no queue has two owners, and nothing goes back."""

from collections.abc import Iterable
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from tests.support.control_log import START_MS, TOPIC, encode_event
from wakeroll_model.client import Client, Preferences
from wakeroll_model.client_actions import Dropped, Give, Output, Send, Take
from wakeroll_model.config import METADATA_MS
from wakeroll_model.decisions import AnyDecision, Membership, Rejected
from wakeroll_model.events import AnyEvent, Commit, Heartbeat, Route, RoutedQueue, Subscription, Tick
from wakeroll_model.invariants import broken_epochs, broken_offsets, broken_ownership, broken_revocations
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.resharding import split
from wakeroll_model.shard import Shard

GROUP = "taxes"
OLD, NEW = (partition_of(GROUP.encode(), number) for number in (4, 8))
QUEUES = [Queue("orders", "", number) for number in range(4)]
NAMES = "abc"

_steps = st.one_of(
    st.tuples(st.just("join"), st.sampled_from(NAMES)),
    st.tuples(st.just("leave"), st.sampled_from(NAMES)),
    st.tuples(st.just("crash"), st.sampled_from(NAMES)),
    st.tuples(st.just("work"), st.sampled_from(NAMES)),
    st.tuples(st.just("time"), st.integers(1, 30)),
    st.tuples(st.just("time"), st.integers(1, 3)),
)
before = st.lists(_steps, max_size=12)
after = st.lists(_steps, max_size=25)


class Process:
    """A process of a client; one that learns of partitions by rejections, as our SDK, or after five minutes."""

    def __init__(self, name: str, learns: bool) -> None:
        self.client = Client(GROUP, name, Preferences(subscriptions=[Subscription(topic="orders")]))
        self.learns = learns
        self.number = 4
        """The number of partitions that it knows."""
        self.inbox: list[AnyDecision] = []
        self.position: dict[Queue, int] = {}
        self.is_alive = False

    @property
    def queues(self) -> set[Queue]:
        """The queues whose messages it may have in hand."""
        return {*self.client.readable(), *self.client.draining()} if self.is_alive else set()


class World:
    """One group whose shard is divided once."""

    def __init__(self, learners: str) -> None:
        self.now_ms = 0
        self.shards = {OLD: Shard(TOPIC, OLD, 4, raises=True)}
        self.ends = {OLD: 0, NEW: 0}
        self.number = 4
        self.grown_ms = 0
        self.processes = {name: Process(name, name in learners) for name in NAMES}
        self.decisions: list[AnyDecision] = []
        self._lives = count()
        routed = [RoutedQueue(topic=one.topic, broker="", queue_id=one.queue_id) for one in QUEUES]
        self.everywhere(Route(topic="orders", version="4", queues=routed))

    def everywhere(self, event: AnyEvent) -> None:
        for partition in list(self.shards):
            self._append(event, partition, None)

    def grow(self) -> None:
        """Divide the shard; clients do not know yet."""
        parts = split(TOPIC, OLD, self.shards[OLD].body(), 8, offset=self.ends[OLD])
        self.shards = {number: Shard(TOPIC, number, 8, body, raises=True) for number, body in parts.items()}
        self.number, self.grown_ms = 8, self.now_ms

    def run(self, steps: Iterable[tuple[str, object]]) -> None:
        for what, of in steps:
            if what == "time":
                for _ in range(int(str(of))):
                    self._second()
            else:
                getattr(self, f"_{what}")(self.processes[str(of)])
            self.check()

    def check(self) -> None:
        """Check that no queue is in two hands."""
        for queue in QUEUES:
            assert sum(queue in process.queues for process in self.processes.values()) <= 1, queue

    def _second(self) -> None:
        self.now_ms += 1_000
        self.everywhere(Tick(observer="o", uptime_ms=self.now_ms))
        for process in self.processes.values():
            if self.number == 8 and self.now_ms - self.grown_ms >= METADATA_MS:
                process.number = 8
            inbox, process.inbox = process.inbox, []
            for decision in inbox if process.is_alive else ():
                if isinstance(decision, Rejected) and decision.rule == "partition" and process.learns:
                    process.number = self.number
                self._do(process, process.client.receive(decision, self.now_ms))
            if process.is_alive:
                self._do(process, process.client.on_time(self.now_ms))
                self._release(process)
        self.check()

    def _join(self, process: Process) -> None:
        if not process.is_alive:
            process.is_alive = True
            process.client = Client(GROUP, process.client.client_id, process.client._preferences)
            self._do(process, process.client.join(f"i{next(self._lives)}", self.now_ms))

    def _leave(self, process: Process) -> None:
        if process.is_alive:
            self._do(process, process.client.leave(self.now_ms))
            process.is_alive = False

    def _crash(self, process: Process) -> None:
        process.is_alive = False

    def _work(self, process: Process) -> None:
        """Process some messages of each queue, and commit them."""
        if process.is_alive:
            for queue, give in process.client.readable().items():
                process.position[queue] += 3
                process.client.done(give, process.position[queue])
            self._do(process, process.client.commit(self.now_ms))

    def _release(self, process: Process) -> None:
        if draining := process.client.draining():
            self._do(process, process.client.released(draining, self.now_ms))

    def _do(self, process: Process, outputs: list[Output]) -> None:
        client = process.client
        for output in outputs:
            match output:
                case Send(event, sent_ms):
                    key = GROUP.encode()
                    self._append(event, partition_of(key, process.number), key)
                    if isinstance(event, Heartbeat):
                        self._do(process, client.acknowledged(sent_ms, self.now_ms))
                    elif isinstance(event, Commit):
                        client.committed(event, sent_ms)
                case Give(queue, start):
                    process.position[queue] = start.offset or 0
                    self._do(process, client.started([(output, process.position[queue])], self.now_ms))
                case Dropped(comes_back=True):
                    self._do(process, client.join(f"i{next(self._lives)}", self.now_ms))
                case Dropped():
                    process.is_alive = False
                case Take() | _:
                    pass

    def _append(self, event: AnyEvent, partition: int, key: bytes | None) -> None:
        record = Record(TOPIC, partition, self.ends[partition], START_MS + self.now_ms, key, encode_event(event))
        self.ends[partition] += 1
        for decision in self.shards[partition].apply(record):
            self.decisions.append(decision)
            name = getattr(decision, "client_id", None)
            if name in self.processes:
                process = self.processes[name]
                process.inbox.append(decision)
                if isinstance(decision, Membership) and decision.change == "expired":
                    is_dead = not process.is_alive or process.client.instance_id != decision.instance_id
                    assert is_dead, f"{name} lives and expires: {decision.detail}"


@given(before=before, after=after, learners=st.sampled_from(["", "abc", "ab", "c"]))
def test_no_queue_has_two_owners_and_nothing_goes_back(before, after, learners):
    """Heartbeats, commits, joins and releases are lost in the old partition, and members die; then all is calm."""
    world = World(learners)
    world.run([("join", "a"), ("time", 2), *before])
    epoch = _epoch(world, OLD)

    world.grow()
    world.run([*after, ("join", "b"), ("time", METADATA_MS // 1_000 + 120)])

    group = world.shards[NEW].group(GROUP)
    live = {name for name, process in world.processes.items() if process.is_alive}
    assert group is not None
    assert group.epoch >= epoch
    assert set(group.members) == live
    assert set(group.owners) == set(QUEUES)
    for queue, client_id in group.owners.items():
        assert queue in world.processes[client_id].queues
    its = [one for one in world.decisions if getattr(one, "group_id", None) == GROUP]
    for rule in (broken_epochs, broken_ownership, broken_revocations, broken_offsets):
        assert rule(its) == []


def _epoch(world: World, partition: int) -> int:
    group = world.shards[partition].group(GROUP)
    return 0 if group is None else group.epoch
