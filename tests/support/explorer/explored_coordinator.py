"""The shipped shard as a part of a state: one record in, the shard after it and what clients are told out.

A part is a shard's body with relative times and without numbers that only count (offsets, seqs), beside what the
invariants must remember of the decisions so far.  Each step of a part is computed once.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from tests.support.control_log import TOPIC, encode_event
from tests.support.explorer.clockwork import NOW_MS, shift, shifted_due
from tests.support.explorer.intern import Pool
from tests.support.explorer.memory import Memory
from wakeroll_model import invariants
from wakeroll_model.config import GRACE_EVERY_MS, NEVER_MS
from wakeroll_model.decisions import TO_A_CLIENT, AnyDecision, Cause, Rejected
from wakeroll_model.entity_machines import MACHINES
from wakeroll_model.events import AnyEvent, Tick
from wakeroll_model.group import Group
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record, entity_of
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import ShardState

GROUP = "group"
MACHINE = MACHINES["groups"]
SECOND_MS = 1_000
UPTIME_MS = 10_000_000
"""The observer's monotonic clock at the present."""
TICKS = -1
"""In place of an event: so many ticks."""

_decode_state = msgspec.msgpack.Decoder(ShardState).decode
_encode = msgspec.msgpack.Encoder().encode


class Part(NamedTuple):
    """A coordinator between two records."""

    body: bytes
    memory: Memory


class Said(NamedTuple):
    """What follows from one record."""

    after: int
    """The coordinator."""
    told: tuple[tuple[str, int], ...]
    """Client -> the decision in its inbox, in order."""
    broken: tuple[str, ...]
    """Rules that this step breaks."""


class View(NamedTuple):
    """What the rules ask of a coordinator."""

    members: frozenset[tuple[str, str]]
    """Client and instance."""
    owners: dict[Queue, str]
    offsets: dict[Queue, int]
    late: frozenset[tuple[str, Queue]]
    """Lives that lost a queue by a timeout: they may still drain it."""
    is_eager: bool


class Coordinator:
    """The coordinators of all states, by number."""

    def __init__(self) -> None:
        self.parts: Pool[Part] = Pool()
        self.events: Pool[AnyEvent] = Pool()
        self.decisions: Pool[AnyDecision] = Pool()
        self._values: list[bytes] = []
        self._said: dict[tuple[int, int, int], Said] = {}
        self._quiet: dict[int, int] = {}
        self._views: dict[int, View] = {}

    def number(self, event: AnyEvent) -> int:
        """Return the number of an event."""
        value = encode_event(event)
        number = self.events.add(value, event)
        if number == len(self._values):
            self._values.append(value)
        return number

    def tick(self, at_s: int) -> int:
        """Return the tick of so many seconds after the present."""
        return self.number(Tick(observer="o", uptime_ms=UPTIME_MS + at_s * SECOND_MS))

    def empty(self) -> int:
        """Return the coordinator that has heard nothing yet."""
        return self._add(Shard(TOPIC, 0, 1), Memory(), 0)

    def lost(self, part: int, kept: int | None, log: Iterable[tuple[int, int]]) -> int:
        """Return what a loss of state makes of a coordinator.

        Args:
            part: the coordinator before.
            kept: the coordinator whose snapshot is there still; None: none is.
            log: age in ms and event of each record that the log still holds; it is replayed quietly.
        """
        era = _decode_state(self.parts[part].body).era + 1
        records = [(age_ms, event) for age_ms, event in log]
        body = None if kept is None else self.parts[kept].body
        shard = Shard(TOPIC, 0, 1, body, era=era, quiet_until=len(records), raises=True, skips_routine=False)
        for offset, (age_ms, event) in enumerate(records):
            if isinstance(self.events[event], Tick):
                event = self.tick(-age_ms // SECOND_MS)
            shard.apply(self._record(event, NOW_MS - age_ms, offset))
        memory = Memory() if kept is None else self.parts[kept].memory.after_loss()
        return self._add(shard, memory, 0)

    def hear(self, part: int, event: int) -> Said:
        """Append an event to the log, and apply it."""
        known = self._said.get((part, event, 0))
        if known is None:
            known = self._said[part, event, 0] = self._hear(part, [event], 0)
        return known

    def wait(self, part: int, seconds: int) -> Said:
        """Let seconds pass, each with its tick."""
        known = self._said.get((part, TICKS, seconds))
        if known is None:
            ticks = [self.tick(at_s) for at_s in range(1, seconds + 1)]
            known = self._said[part, TICKS, seconds] = self._hear(part, ticks, SECOND_MS)
        return known

    def wait_in_the_dark(self, part: int, seconds: int) -> int:
        """Let seconds pass without a tick."""
        body, memory = self.parts[part]
        return self._add(Shard(TOPIC, 0, 1, body), memory, seconds * SECOND_MS)

    def quiet_s(self, part: int) -> int:
        """Return the number of seconds until a tick may have an effect."""
        if part not in self._quiet:
            state = _decode_state(self.parts[part].body)
            self._quiet[part] = max(1, -((NOW_MS - state.next_due_ms) // SECOND_MS))
        return self._quiet[part]

    def view(self, part: int) -> View:
        """Return what the rules ask of a coordinator."""
        if part not in self._views:
            group = self.group(part)
            memory = self.parts[part].memory
            self._views[part] = View(
                members=frozenset((name, member.instance_id) for name, member in group.members.items()),
                owners=group.owners,
                offsets=group.offsets,
                late=frozenset(memory.late),
                is_eager=group.settings.handover == "eager",
            )
        return self._views[part]

    def group(self, part: int) -> Group:
        """Return the group's state."""
        body = _decode_state(self.parts[part].body).entities.get(GROUP)
        group = MACHINE.new(GROUP, 0, None) if body is None else MACHINE.decode(body)
        assert isinstance(group, Group)
        return group

    def _hear(self, part: int, events: list[int], apart_ms: int) -> Said:
        before = self.parts[part]
        # The rules are those of the machine; `test_routine_beats` shows that skipping it makes no difference.
        shard = Shard(TOPIC, 0, 1, before.body, raises=True, skips_routine=False)
        memory, told, broken = before.memory, [], []
        at_ms = NOW_MS
        for event in events:
            at_ms += apart_ms
            try:
                decisions = shard.apply(self._record(event, at_ms, 1))
            except Exception as error:
                return Said(part, (), (f"the machine fails: {error!r}",))
            if not decisions:
                continue
            clock = shard._state.clock
            memory, more = memory.after(self.events[event], decisions, shard.group(GROUP), clock.now_ms)
            broken += more
            for decision in decisions:
                if isinstance(decision, Rejected) and decision.rule == "internal":
                    broken.append(f"rejected as internal: {decision.detail}")
                client_id = getattr(decision, "client_id", None)
                if isinstance(decision, TO_A_CLIENT) and client_id:
                    told.append((client_id, self._decision(decision)))
        group = shard.group(GROUP)
        if group is not None:
            broken += invariants.broken_state(group)
        return Said(self._add(shard, memory, at_ms - NOW_MS), tuple(told), tuple(broken))

    def _record(self, event: int, at_ms: int, offset: int) -> Record:
        key = entity_of(self.events[event]).encode() or None
        return Record(TOPIC, 0, offset, at_ms, key, self._values[event])

    def _decision(self, decision: AnyDecision) -> int:
        """Return the number of a decision; its seq is given when it is heard."""
        plain = msgspec.structs.replace(decision, seq=0, at_ms=0, cause=Cause("", 0, 0))
        if isinstance(plain, Rejected):
            plain.raw = plain.detail = ""
        return self.decisions.add(_encode(plain), plain)

    def _add(self, shard: Shard, memory: Memory, later_ms: int) -> int:
        memory = memory.later(normalize(shard, later_ms))
        body = shard.body()
        return self.parts.add((body, memory.key), Part(body, memory))


def normalize(shard: Shard, later_ms: int) -> int:
    """Make of a shard at `NOW_MS + later_ms` the same one at `NOW_MS`, without offsets and seqs.

    Returns:
        How much later it was by the shard's clock (ms).
    """
    state, clock = shard._state, shard._state.clock
    state.offset, state.seq, state.quiet_until = 0, 0, 0
    if clock.at_tick_ms < 0:
        return 0  # it has heard nothing yet
    by_ms = clock.now_ms - NOW_MS  # the shard's clock may lag behind the log's
    clock.now_ms = NOW_MS
    clock.at_tick_ms -= by_ms
    clock.tick_ms -= later_ms
    clock.grace_until_ms = max(clock.grace_until_ms - by_ms, NOW_MS - GRACE_EVERY_MS)
    for line in clock.lines.values():
        line.at_ms -= by_ms
        line.uptime_ms -= later_ms
    group = shard.group(GROUP)
    if group is not None:
        shift(group, by_ms)
        group.pending = [(trigger, Cause("", 0, 0)) for trigger, _ in group.pending]
    state.deadlines = {name: shifted_due(due_ms, by_ms) for name, due_ms in state.deadlines.items()}
    state.routed_topics = dict.fromkeys(state.routed_topics, NOW_MS)  # the observer tells each topic every minute
    if state.loss is not None:
        state.loss = shift(state.loss, by_ms)
    state.next_due_ms = shifted_due(state.next_due_ms, by_ms) if state.deadlines else NEVER_MS
    return by_ms
