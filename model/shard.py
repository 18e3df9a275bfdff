"""A shard: all the groups, or all the queues, of one control partition, one record after the other.

It reads the clock, finds whom a record is about, runs the machine on that entity alone and numbers its decisions.
What a batch does not touch stays encoded.
"""

from bisect import bisect_left, insort

import msgspec
from msgspec import Struct

from model import config
from model.clock import Moment, ShardClock
from model.config import NEVER_MS
from model.decisions import AnyDecision, Cause, Rejected
from model.events import AnyEvent, Route, Tick
from model.group import Group
from model.held_queue import HeldQueue
from model.machines import MACHINES, Around, Entity
from model.records import Record, entity_of, kind_of_topic, raw_of, read_event, refuse, type_of
from model.routes import Routes

VERSION = 1
"""Of the machines and of the state's layout."""

_FRAMES = 6
"""Innermost calls that a fingerprint names."""


class ShardState(Struct, array_like=True):
    """What a shard keeps between batches."""

    era: int = 1
    """Grows when a shard starts without its state, so that no decision's identity is used twice."""
    seq: int = 0
    """Of the last decision."""
    quiet_until: int = 0
    """The first offset whose decisions are to be published."""
    offset: int = -1
    """Of the last record applied."""
    clock: ShardClock = msgspec.field(default_factory=ShardClock)
    routes: dict[str, bytes] = {}
    """Topic -> its newest route, as msgpack."""
    entities: dict[str, bytes] = {}
    """group_id -> the group, or key -> the queue, as msgpack."""
    deadlines: dict[str, int] = {}
    """The same names -> when a tick must look at it: outside the entity, so that a tick decodes only what is due."""
    readers: dict[str, list[str]] = {}
    """Topic -> the groups that subscribe it, sorted."""
    next_due_ms: int = NEVER_MS
    """The earliest of the deadlines, or earlier."""
    held: int = 0
    """Pulls that its queues hold together."""


_encode_state = msgspec.msgpack.Encoder().encode
_decode_state = msgspec.msgpack.Decoder(ShardState).decode


def fingerprint(error: Exception) -> str:
    """Name a failure of the machine itself: what was raised, and where; the same on every machine.

    >>> fingerprint(ValueError("7"))
    'ValueError in '
    """
    calls: list[str] = []
    frame = error.__traceback__
    while frame is not None:
        calls.append(f"{frame.tb_frame.f_code.co_name}:{frame.tb_lineno}")
        frame = frame.tb_next
    return f"{type(error).__name__} in {' > '.join(calls[-_FRAMES:])}"


class Shard:
    """The machine of one control partition."""

    def __init__(
        self,
        topic: str,
        partition: int,
        partitions: int,
        body: bytes | None = None,
        *,
        era: int = 1,
        quiet_until: int = 0,
        raises: bool = False,
    ) -> None:
        """Start a shard, or go on from what `body()` returned.

        Args:
            topic: the control topic, like ``wakeroll.groups``.
            partition: the Kafka partition.
            partitions: how many the topic has; fixed for the life of the state.
            body: the state after the last batch; None at the very start.
            era: of a shard without a body; above every era it ever had.
            quiet_until: for a shard without a body, the first offset whose decisions count; what it decides about
                earlier records was decided before, in another era.
            raises: raise what the machine itself raises, as tests want it, instead of rejecting the event.
        """
        self._state = ShardState(era=era, quiet_until=quiet_until) if body is None else _decode_state(body)
        self.topic, self.partition = topic, partition
        self._name = f"{kind_of_topic(topic)}-{partition}"
        self._partitions = partitions
        self._routes = Routes(self._state.routes)
        self._raises = raises
        self._machine = MACHINES.get(kind_of_topic(topic), MACHINES["groups"])
        self._entities: dict[str, Entity] = {}
        self._steps: dict[str, list[tuple[AnyEvent, Moment, Cause, dict[str, bytes], int]]] = {}
        self._topics: dict[str, list[str]] = {}

    @property
    def name(self) -> str:
        """The shard without its era: ``groups-3``."""
        return self._name

    @property
    def era(self) -> int:
        """The shard's era."""
        return self._state.era

    @property
    def is_quiet(self) -> bool:
        """Whether what was decided about the last record is not to be published."""
        return self._state.offset < self._state.quiet_until

    @property
    def offset(self) -> int:
        """Offset of the last record applied; -1 before the first."""
        return self._state.offset

    @property
    def now_ms(self) -> int:
        """The shard's clock at its last record."""
        return self._state.clock.now_ms

    @property
    def tick_ms(self) -> int:
        """Log time of its last tick, epoch ms; where the log goes on, whatever of it was dark."""
        return self._state.clock.tick_ms

    @property
    def routes(self) -> Routes:
        """The queues of every topic that it has heard of."""
        return self._routes

    def copy(self) -> "Shard":
        """Return another shard that goes on from here, and leaves this one as it is."""
        return Shard(self.topic, self.partition, self._partitions, self.body(), raises=self._raises)

    def body(self) -> bytes:
        """Return the state after the records so far."""
        state = self._state
        state.routes = self._routes.encoded
        for name, entity in self._entities.items():
            if entity.is_blank:
                state.entities.pop(name, None)
                state.deadlines.pop(name, None)
            else:
                state.entities[name] = self._machine.encode(entity)
        self._steps.clear()
        return _encode_state(state)

    def apply(self, record: Record) -> list[AnyDecision]:
        """Apply the next record of the partition and return its decisions, numbered.

        Never raises for what a record holds: a bad one is answered by a `Rejected`.
        """
        self._state.offset = record.offset
        event = read_event(record, self._partitions)
        moment = self._state.clock.read(record.timestamp_ms, tick=isinstance(event, Tick))
        cause = Cause(record.topic, record.partition, record.offset)
        decisions: list[AnyDecision] = []
        match event:
            case Rejected():
                decisions.append(event)
            case Tick():
                for name in self._due(moment.now_ms):
                    decisions += self._step(name, event, moment, cause)
            case Route():
                if self._routes.learn(event):
                    for name in tuple(self._state.readers.get(event.topic, ())):
                        decisions += self._step(name, event, moment, cause)
            case _:
                decisions += self._step(entity_of(event), event, moment, cause)
        for decision in decisions:
            self._state.seq += 1
            decision.shard = f"{self._name}.{self._state.era}"
            decision.seq = self._state.seq
            decision.at_ms = record.timestamp_ms
            decision.cause = cause
            if isinstance(decision, Rejected):
                decision.raw = raw_of(record)
        return decisions

    def group(self, group_id: str) -> Group | None:
        """Return a group's state, for tests and questions; None if there is none."""
        entity = self._known(group_id)
        return entity if isinstance(entity, Group) else None

    def queue(self, key: str) -> HeldQueue | None:
        """Return a queue's state, by its key, for tests and questions; None if there is none."""
        entity = self._known(key)
        return entity if isinstance(entity, HeldQueue) else None

    def names(self) -> list[str]:
        """Return the groups, or the keys of the queues, of this shard, sorted."""
        return sorted(self._state.entities.keys() | self._entities.keys())

    def _step(self, name: str, event: AnyEvent, moment: Moment, cause: Cause) -> list[AnyDecision]:
        """Run the machine on one entity; if the machine itself fails, that stays as it was before this event.

        One event that nobody foresaw must not stop everything of the shard for ever.
        """
        entity, state = self._load(name), self._state
        places = config.MAX_HOLDS_PER_SHARD - state.held
        held = self._machine.held(entity)
        decisions: list[AnyDecision]
        try:
            decisions = self._machine.step(entity, event, moment, cause, Around(self._routes, places))
        except Exception as error:
            if self._raises or isinstance(error, MemoryError):
                raise
            entity = self._as_before(name)
            entity.due_ms = max(entity.due_ms, moment.now_ms + config.RETRY_MS)
            decisions = [refuse("internal", f"{type_of(event)}: {fingerprint(error)}")]
            decisions[0].group_id = getattr(event, "group_id", name if isinstance(entity, Group) else None)
        else:
            self._steps.setdefault(name, []).append((event, moment, cause, self._routes.encoded, places))
        state.held += self._machine.held(entity) - held
        state.deadlines[name] = entity.due_ms
        state.next_due_ms = min(state.next_due_ms, entity.due_ms)
        if decisions:  # a subscription never changes without one
            self._index(name, self._machine.topics(entity))
        return decisions

    def _as_before(self, name: str) -> Entity:
        """Make an entity again as it was after its last good event: from its bytes, and the events since."""
        entity = self._decoded(name)
        for event, moment, cause, routes, places in self._steps.get(name, ()):
            self._machine.step(entity, event, moment, cause, Around(Routes(routes), places))
        self._entities[name] = entity
        return entity

    def _known(self, name: str) -> Entity | None:
        return self._load(name) if name in self._entities or name in self._state.entities else None

    def _load(self, name: str) -> Entity:
        if name not in self._entities:
            self._entities[name] = self._decoded(name)
            self._topics[name] = self._machine.topics(self._entities[name])
        return self._entities[name]

    def _decoded(self, name: str) -> Entity:
        body = self._state.entities.get(name)
        return self._machine.new(name) if body is None else self._machine.decode(body)

    def _due(self, now_ms: int) -> list[str]:
        """Return whose deadline has come, in order; costs nothing when there is none."""
        state = self._state
        if now_ms < state.next_due_ms:
            return []
        due = sorted(name for name, due_ms in state.deadlines.items() if due_ms <= now_ms)
        later = (due_ms for due_ms in state.deadlines.values() if due_ms > now_ms)
        state.next_due_ms = min(later, default=NEVER_MS)
        return due

    def _index(self, group_id: str, topics: list[str]) -> None:
        """Keep topic -> groups in step with what the group subscribes now."""
        readers, before = self._state.readers, self._topics[group_id]
        for topic in topics:
            if topic not in before:
                insort(readers.setdefault(topic, []), group_id)
        for topic in before:
            if topic not in topics:
                names = readers[topic]
                del names[bisect_left(names, group_id)]
                if not names:
                    del readers[topic]
        self._topics[group_id] = topics
