"""Groups of one shard, made as in life: by the records that their clients and the observer append."""

import msgspec
from msgspec import structs

from model.decisions import AnyDecision, Assignment
from model.events import Commit, CommittedOffset, Event, Heartbeat, Route, RoutedQueue, Subscription, Tick, Unregister
from model.machines import MACHINES
from model.records import Record
from model.shard import Shard, ShardState

TOPIC = "wakeroll.groups"
START_MS = 1_700_000_000_000
TOPICS = 100
"""Groups share topics: one in so many reads the same."""

_encode = msgspec.json.Encoder().encode
_read_state = msgspec.msgpack.Decoder(ShardState).decode


class Population:
    """A shard that is alone in its topic, so that every group belongs to it, and what its clients know."""

    def __init__(self, *, keep: bool = False) -> None:
        """Start without groups.

        Args:
            keep: whether `records` collects all that was appended.
        """
        self.shard = Shard(TOPIC, 0, 1, raises=True)
        self.records: list[Record] = []
        self.now_ms = START_MS
        self._keep = keep
        self._told: dict[tuple[str, str], Assignment] = {}
        """(group, client) -> what it was told last."""
        self._topics: dict[str, str] = {}
        """Group -> its topic."""
        self._news: dict[tuple[str, str], None] = {}
        """Who was told something and has not answered."""
        self._lives = 0
        self._offset = -1

    def settle(self, groups: list[str], members: int, queues: int) -> None:
        """Let groups of so many clients each share a topic of so many queues, until nobody has anything to hear."""
        for number, group_id in enumerate(groups):
            self._topics[group_id] = f"orders-{number % TOPICS}-of-{queues}"
        for topic in sorted({self._topics[group_id] for group_id in groups}):
            routed = [RoutedQueue(topic=topic, broker="", queue_id=queue_id) for queue_id in range(queues)]
            self.append(Route(topic=topic, queues=routed, version="1"))
        for group_id in groups:
            for number in range(members):
                self.join(group_id, f"client-{number:04}")
        # The first joiner has its target at once, the others when the settle interval is over.
        self.pass_second()
        while self._news:
            self.answer()
            self.pass_second()

    def settle_many(self, groups: list[str], members: int, queues: int) -> None:
        """Settle so many groups, all but the first `TOPICS` as copies of those: a copy takes no time."""
        self.settle(groups[:TOPICS], members, queues)
        state = _read_state(self.shard.body())
        encode = MACHINES["groups"].encode
        for number, group_id in enumerate(groups[TOPICS:]):
            of = groups[number % TOPICS]
            group = self.shard.group(of)
            assert group is not None, f"{of} was settled"
            state.entities[group_id] = encode(structs.replace(group, group_id=group_id))
            state.deadlines[group_id] = state.deadlines[of]
            self._topics[group_id] = self._topics[of]
            for client_id in group.members:
                self._told[group_id, client_id] = structs.replace(self._told[of, client_id], group_id=group_id)
        for topic in state.readers:
            state.readers[topic] = sorted(name for name, its in self._topics.items() if its == topic)
        self.shard = Shard(TOPIC, 0, 1, msgspec.msgpack.encode(state), raises=True)

    def join(self, group_id: str, client_id: str) -> None:
        """Let a new life of a client join."""
        self._lives += 1
        wanted = [Subscription(topic=self._topics[group_id])]
        life = f"life-{self._lives}"
        self.append(Heartbeat(group_id=group_id, client_id=client_id, instance_id=life, subscriptions=wanted), group_id)

    def leave(self, group_id: str, client_id: str) -> None:
        """Let a client leave in good order."""
        told = self._told.pop((group_id, client_id))
        self._news.pop((group_id, client_id), None)
        self.append(Unregister(group_id=group_id, client_id=client_id, instance_id=told.instance_id), group_id)

    def answer(self) -> None:
        """Let everybody who was told something say that it has done it."""
        news, self._news = self._news, {}
        for group_id, client_id in news:
            self.append(self.beat(group_id, client_id), group_id)

    def beat(self, group_id: str, client_id: str) -> Heartbeat:
        """Return a client's next heartbeat: it owns what it was told, nothing else."""
        told = self._told[group_id, client_id]
        return Heartbeat(
            group_id=group_id,
            client_id=client_id,
            instance_id=told.instance_id,
            epoch=told.epoch,
            owned=[assigned.queue for assigned in told.queues],
            subscriptions=[Subscription(topic=self._topics[group_id])],
        )

    def commit(self, group_id: str, client_id: str, offset: int) -> Commit | None:
        """Return a client's commit of this offset for its first queue; None if it owns none."""
        told = self._told[group_id, client_id]
        offsets = [CommittedOffset(queue=assigned.queue, offset=offset) for assigned in told.queues[:1]]
        names = {"group_id": group_id, "client_id": client_id, "instance_id": told.instance_id}
        return Commit(**names, epoch=told.epoch, offsets=offsets) if offsets else None

    def clients(self, group_id: str) -> list[str]:
        """Return the clients of a group that were told something, sorted."""
        group = self.shard.group(group_id)
        assert group is not None, f"{group_id} was settled"
        return sorted(group.members)

    def everybody(self) -> list[tuple[str, str]]:
        """Return (group, client) of all clients, in the order in which they were told first."""
        return list(self._told)

    def pass_second(self) -> None:
        """Let a second pass, and the observer say so."""
        self.now_ms += 1_000
        self.append(Tick())

    def record(self, event: Event, group_id: str | None = None) -> Record:
        """Return the event's record, the next of the partition."""
        self._offset += 1
        key = None if group_id is None else group_id.encode()
        return Record(TOPIC, 0, self._offset, self.now_ms, key, _encode(event))

    def append(self, event: Event, group_id: str | None = None) -> list[AnyDecision]:
        """Append an event, and let clients hear what is decided."""
        record = self.record(event, group_id)
        if self._keep:
            self.records.append(record)
        decisions = self.shard.apply(record)
        for decision in decisions:
            if isinstance(decision, Assignment):
                who = decision.group_id, decision.client_id
                self._told[who] = decision
                self._news[who] = None
        return decisions
