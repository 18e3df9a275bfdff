"""Realistic groups, formed by the records that their clients and the observer append to control topics in memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec import structs

from wakeroll_model.decisions import AnyDecision, Assignment
from wakeroll_model.entity_machines import MACHINES
from wakeroll_model.events import (
    ON_EVERY_PARTITION,
    AnyEvent,
    Commit,
    CommittedOffset,
    Heartbeat,
    Route,
    RoutedQueue,
    Subscription,
    Tick,
    Unregister,
)
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record, entity_of
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import decode_state, encode_state

TOPIC = "wakeroll.groups"
START_MS = 1_700_000_000_000
TOPICS = 100
"""Groups share topics: one in so many reads the same."""

Who = tuple[str, str]
"""A group, and a client of it."""
Heard = Callable[[Record, Sequence[AnyDecision]], object]
"""Is told of each record, and what was decided of it."""

_encode = msgspec.json.Encoder().encode


class ControlTopic:
    """Puts each event where it belongs, and counts the offsets of each partition."""

    def __init__(self, name: str, partitions: int = 1) -> None:
        """Start empty, with so many partitions and a shard for each."""
        self.name = name
        self.shards = [Shard(name, partition, partitions, raises=True) for partition in range(partitions)]
        self._next_offsets = [0] * partitions

    def append(self, event: AnyEvent, at_ms: int) -> Iterator[tuple[Record, list[AnyDecision]]]:
        """Append an event; yield its record, and what was decided of it, for each partition that it stands in."""
        for record in self.records(event, at_ms):
            yield record, self.shards[record.partition].apply(record)

    def records(self, event: AnyEvent, at_ms: int) -> list[Record]:
        """Return the event's record, the next of its partition; of a tick or a route, one for each."""
        value, partitions = _encode(event), len(self.shards)
        if isinstance(event, ON_EVERY_PARTITION):
            return [self._record(partition, at_ms, None, value) for partition in range(partitions)]
        key = entity_of(event).encode()
        return [self._record(partition_of(key, partitions), at_ms, key, value)]

    def _record(self, partition: int, at_ms: int, key: bytes | None, value: bytes) -> Record:
        offset = self._next_offsets[partition]
        self._next_offsets[partition] += 1
        return Record(self.name, partition, offset, at_ms, key, value)


class Population:
    """Groups, and what their clients know; without a word to the contrary all of one shard."""

    def __init__(self, partitions: int = 1, heard: Heard = lambda *_: None) -> None:
        """Start without groups.

        Args:
            partitions: of the control topic.
            heard: is told of all that is appended.
        """
        self.topic = ControlTopic(TOPIC, partitions)
        self.now_ms = START_MS
        self.topics: dict[str, str] = {}
        """Group -> the topic that its clients want."""
        self._heard = heard
        self._lives: dict[Who, str] = {}
        """(group, client) -> its life, of those that live."""
        self._told: dict[Who, Assignment] = {}
        """(group, client) -> what it was told last, of those that live."""
        self._news: dict[Who, None] = {}
        """Who was told something and has not answered."""
        self._births = 0
        self._committed: dict[tuple[str, Queue], int] = {}

    @property
    def shard(self) -> Shard:
        """The shard, where there is one only."""
        [shard] = self.topic.shards
        return shard

    def settle(self, groups: list[str], members: int, queues: int) -> None:
        """Let groups of so many clients each share a topic of so many queues, until nobody has anything to hear."""
        for number, group_id in enumerate(groups):
            self.topics[group_id] = f"orders-{number % TOPICS}-of-{queues}"
        for topic in sorted({self.topics[group_id] for group_id in groups}):
            self.route(topic, queues)
        for group_id in groups:
            for number in range(members):
                self.join(group_id, f"client-{number:04}")
        self.calm_down()

    def route(self, topic: str, queues: int) -> None:
        """Let the observer tell of a topic with so many queues."""
        routed = [RoutedQueue(topic=topic, broker="", queue_id=queue_id) for queue_id in range(queues)]
        self.append(Route(topic=topic, queues=routed, version="1"))

    def calm_down(self) -> None:
        """Let time pass, until nobody has anything to hear."""
        # The first joiner has its target at once, the others when the settle interval is over.
        self.pass_second()
        while self._news:
            self.answer()
            self.pass_second()

    def settle_many(self, groups: list[str], members: int, queues: int) -> None:
        """Settle so many groups, all but the first `TOPICS` as copies of those: a copy takes no time."""
        self.settle(groups[:TOPICS], members, queues)
        state = decode_state(self.shard.body())
        encode = MACHINES["groups"].encode
        for number, group_id in enumerate(groups[TOPICS:]):
            of = groups[number % TOPICS]
            group = self.shard.group(of)
            assert group is not None, f"{of} was settled"
            state.entities[group_id] = encode(structs.replace(group, group_id=group_id))
            state.deadlines[group_id] = state.deadlines[of]
            self.topics[group_id] = self.topics[of]
            for client_id in group.members:
                self._lives[group_id, client_id] = self._lives[of, client_id]
                self._told[group_id, client_id] = structs.replace(self._told[of, client_id], group_id=group_id)
        for topic in state.readers:
            state.readers[topic] = sorted(name for name, its in self.topics.items() if its == topic)
        self.topic.shards[0] = Shard(TOPIC, 0, 1, encode_state(state), raises=True)

    def join(self, group_id: str, client_id: str) -> None:
        """Let a new life of a client join; of one that has another, it waits until that has expired."""
        self._births += 1
        life = f"life-{self._births}"
        self._forget(group_id, client_id)
        self._lives[group_id, client_id] = life
        wanted = [Subscription(topic=self.topics[group_id])]
        self.append(Heartbeat(group_id=group_id, client_id=client_id, instance_id=life, subscriptions=wanted))

    def leave(self, group_id: str, client_id: str) -> None:
        """Let a client leave in good order."""
        life = self._lives[group_id, client_id]
        self._forget(group_id, client_id)
        self.append(Unregister(group_id=group_id, client_id=client_id, instance_id=life))

    def crash(self, group_id: str, client_id: str) -> None:
        """Let a client be silent from now on."""
        self._forget(group_id, client_id)

    def answer(self) -> None:
        """Let everybody who was told something say that it has done it."""
        news, self._news = self._news, {}
        for group_id, client_id in news:
            self.append(self.beat(group_id, client_id))

    def beat(self, group_id: str, client_id: str) -> Heartbeat:
        """Return a client's next heartbeat: it owns what it was told, nothing else."""
        told = self._told[group_id, client_id]
        return Heartbeat(
            group_id=group_id,
            client_id=client_id,
            instance_id=told.instance_id,
            epoch=told.epoch,
            owned=[assigned.queue for assigned in told.queues],
            subscriptions=[Subscription(topic=self.topics[group_id])],
        )

    def commit(self, group_id: str, client_id: str, offset: int) -> Commit | None:
        """Return a client's commit of this offset for its first queue; None if it owns none."""
        its = self.queues(group_id, client_id)[:1]
        return self._commit((group_id, client_id), dict.fromkeys(its, offset)) if its else None

    def commit_grown(self, who: Who, ends: Mapping[Queue, int]) -> None:
        """Let a client that knows its queues commit the ends of those that have grown since its group's last commit."""
        grown = {
            queue: ends[queue] for queue in self.queues(*who) if ends[queue] > self._committed.get((who[0], queue), 0)
        }
        if who in self._told and grown:
            self._committed |= {(who[0], queue): end for queue, end in grown.items()}
            self.append(self._commit(who, grown))

    def _commit(self, who: Who, offsets: Mapping[Queue, int]) -> Commit:
        group_id, client_id = who
        told = self._told[who]
        committed = [CommittedOffset(queue=queue, offset=offset) for queue, offset in offsets.items()]
        names = {"group_id": group_id, "client_id": client_id, "instance_id": told.instance_id}
        return Commit(**names, epoch=told.epoch, offsets=committed)

    def queues(self, group_id: str, client_id: str) -> list[Queue]:
        """Return what a client owns, as far as it knows; nothing, if it does not live or was told nothing yet."""
        told = self._told.get((group_id, client_id))
        return [assigned.queue for assigned in told.queues] if told else []

    def knows(self, group_id: str, client_id: str) -> bool:
        """Whether a client lives and was told something."""
        return (group_id, client_id) in self._told

    def clients(self, group_id: str) -> list[str]:
        """Return the clients of a group that were told something, sorted."""
        group = self.shard.group(group_id)
        assert group is not None, f"{group_id} was settled"
        return sorted(group.members)

    def everybody(self) -> list[Who]:
        """Return (group, client) of all clients, in the order in which they were told first."""
        return list(self._told)

    def pass_second(self) -> None:
        """Let a second pass, and the observer say so."""
        self.now_ms += 1_000
        self.append(Tick())

    def record(self, event: AnyEvent) -> Record:
        """Return the event's record, the next of its partition."""
        [record] = self.topic.records(event, self.now_ms)
        return record

    def append(self, event: AnyEvent) -> list[AnyDecision]:
        """Append an event, and let clients hear what is decided."""
        decided: list[AnyDecision] = []
        for record, decisions in self.topic.append(event, self.now_ms):
            self._heard(record, decisions)
            decided += decisions
        for decision in decided:
            if isinstance(decision, Assignment):
                who = decision.group_id, decision.client_id
                if self._lives.get(who) == decision.instance_id:
                    self._told[who] = decision
                    self._news[who] = None
        return decided

    def _forget(self, group_id: str, client_id: str) -> None:
        for known in (self._lives, self._told, self._news):
            known.pop((group_id, client_id), None)
