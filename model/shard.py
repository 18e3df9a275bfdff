"""A shard: all the groups of one control partition, one record after the other.

It reads the clock, finds whom a record is about, runs the machine on that entity alone and numbers its decisions.
What a batch does not touch stays encoded.
"""

from bisect import bisect_left, insort

import msgspec
from msgspec import Struct

from model import config
from model.clock import Moment, ShardClock
from model.decisions import AnyDecision, Cause, Rejected
from model.events import GroupEvent, Route, Tick
from model.group import NEVER_MS, Group, Settings
from model.group_machine import step
from model.records import Record, kind_of_topic, raw_of, read_event, refuse, type_of
from model.routes import Routes

VERSION = 1
"""Of the machines and of the state's layout."""

_encode_group = msgspec.msgpack.Encoder().encode
_decode_group = msgspec.msgpack.Decoder(Group).decode


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
    """group_id -> the group, as msgpack."""
    deadlines: dict[str, int] = {}
    """group_id -> when a tick must look at it: outside the entity, so that a tick decodes only what is due."""
    readers: dict[str, list[str]] = {}
    """Topic -> the groups that subscribe it, sorted."""
    next_due_ms: int = NEVER_MS
    """The earliest of the deadlines, or earlier."""


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
        self._groups: dict[str, Group] = {}
        self._steps: dict[str, list[tuple[GroupEvent, Moment, Cause, dict[str, bytes]]]] = {}
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

    def body(self) -> bytes:
        """Return the state after the records so far."""
        state = self._state
        state.routes = self._routes.encoded
        for group_id, group in self._groups.items():
            if group.is_blank:
                state.entities.pop(group_id, None)
                state.deadlines.pop(group_id, None)
            else:
                state.entities[group_id] = _encode_group(group)
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
                for group_id in self._due(moment.now_ms):
                    decisions += self._step(group_id, event, moment, cause)
            case Route():
                if self._routes.learn(event):
                    for group_id in tuple(self._state.readers.get(event.topic, ())):
                        decisions += self._step(group_id, event, moment, cause)
            case _:
                decisions += self._step(event.group_id, event, moment, cause)
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
        return self._load(group_id) if group_id in self._groups or group_id in self._state.entities else None

    def group_ids(self) -> list[str]:
        """Return the groups of this shard, sorted."""
        return sorted(self._state.entities.keys() | self._groups.keys())

    def _step(self, group_id: str, event: GroupEvent, moment: Moment, cause: Cause) -> list[AnyDecision]:
        """Run the machine on one group; if the machine itself fails, the group stays as it was before this event.

        One event that nobody foresaw must not stop every group of the shard for ever.
        """
        group = self._load(group_id)
        state = self._state
        decisions: list[AnyDecision]
        try:
            decisions = step(group, event, moment, cause, self._routes)
        except Exception as error:
            if self._raises or isinstance(error, MemoryError):
                raise
            group = self._as_before(group_id)
            group.due_ms = max(group.due_ms, moment.now_ms + config.RETRY_MS)
            decisions = [refuse("internal", f"{type_of(event)}: {fingerprint(error)}")]
            decisions[0].group_id = group_id
        else:
            self._steps.setdefault(group_id, []).append((event, moment, cause, self._routes.encoded))
        state.deadlines[group_id] = group.due_ms
        state.next_due_ms = min(state.next_due_ms, group.due_ms)
        if decisions:  # a subscription never changes without one
            self._index(group_id, group.topics)
        return decisions

    def _as_before(self, group_id: str) -> Group:
        """Make a group again as it was after its last good event: from its bytes, and the events since."""
        body = self._state.entities.get(group_id)
        group = Group(group_id=group_id, settings=Settings()) if body is None else _decode_group(body)
        for event, moment, cause, routes in self._steps.get(group_id, ()):
            step(group, event, moment, cause, Routes(routes))
        self._groups[group_id] = group
        return group

    def _load(self, group_id: str) -> Group:
        if group_id not in self._groups:
            body = self._state.entities.get(group_id)
            group = Group(group_id=group_id, settings=Settings()) if body is None else _decode_group(body)
            self._groups[group_id] = group
            self._topics[group_id] = group.topics
        return self._groups[group_id]

    def _due(self, now_ms: int) -> list[str]:
        """Return the groups whose deadline has come, in order; costs nothing when there is none."""
        state = self._state
        if now_ms < state.next_due_ms:
            return []
        due = sorted(group_id for group_id, due_ms in state.deadlines.items() if due_ms <= now_ms)
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
