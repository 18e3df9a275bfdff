"""A shard: all groups, or all queues, of one control partition, which it processes record by record.

It reads the clock, finds the entity of a record, runs the machine on that entity alone, and numbers the decisions.
Entities that a batch does not touch stay encoded.
"""

from collections.abc import Mapping

from wakeroll_model import config, feature_levels, routine_beats, valid_keys
from wakeroll_model.config import NEVER_MS
from wakeroll_model.coordinator_log.kafka_events import KIND, LogEvent, Progress
from wakeroll_model.deadlines import Deadlines
from wakeroll_model.decisions import AnyDecision, Cause, Rejected
from wakeroll_model.entity_machines import MACHINES, Around, Entity
from wakeroll_model.events import (
    AnyEvent,
    Commit,
    Failures,
    Heartbeat,
    KeyChange,
    Level,
    Lock,
    Matches,
    Route,
    Tick,
    Unlock,
    ValidKey,
)
from wakeroll_model.group import Group, Loss
from wakeroll_model.held_queue import HeldQueue
from wakeroll_model.known_routes import Routes
from wakeroll_model.records import (
    Record,
    entity_of,
    kind_of_topic,
    raw_of,
    read_event,
    read_kafka_event,
    refuse,
    shard_of,
    type_of,
)
from wakeroll_model.route_readers import RouteReaders
from wakeroll_model.routine_beats import RoutineIndex
from wakeroll_model.shard_clock import Moment
from wakeroll_model.shard_entities import Entities
from wakeroll_model.shard_load import Load
from wakeroll_model.shard_state import Growth, ShardState, WrongPartitions, decode_state, encode_state
from wakeroll_model.signing import SIGNED_BY, Signatures, admit, new_signers

_KEEP_TOPICS = (Commit, Failures, Lock, Unlock)
"""Events that change no subscription and no target: the topics that a group follows stay the same."""
_KEEP_ROUTINE = (*_KEEP_TOPICS, Heartbeat, Matches, Tick)
"""Events after which the group's routine heartbeats stay routine, if the event led to no decision. After a heartbeat,
this holds for all clients except its own."""
_FRAMES = 6
"""Number of innermost calls in a fingerprint."""
_OURS = __name__.partition(".")[0]


class Shard:
    """The state of one control partition, and the machine that changes it."""

    def __init__(
        self,
        topic: str,
        partition: int,
        partitions: int,
        body: bytes | None = None,
        *,
        era: int = 1,
        quiet_until: int = 0,
        level: int = feature_levels.FIRST,
        signatures: Signatures | None = None,
        raises: bool = False,
        skips_routine: bool = True,
    ) -> None:
        """Start a shard, or continue from the result of `body()`.

        Args:
            topic: the control topic, like ``wakeroll.groups``.
            partition: the Kafka partition.
            partitions: number of partitions of the topic; as in the state, which `wakeroll_model.resharding` changes.
            body: the state after the last batch; None at the very start, or if it was lost.
            era: 1 at the very start.  The body's era plus 1 begins a new era, because records are missing between the
                body and the log, or because there is no body.  Settings, offsets, routes and ended instances are kept.
                Members join again by their heartbeats.  For a session, only claimed queues are assigned.
            quiet_until: in a new era, the first offset whose decisions are published.  Another era has decided about
                the records before it; from them the shard only learns the state.
            level: feature level of a shard without a body, before its first record.
            signatures: the keys of this process, of which the recorded ones verify signed records; or recorded
                verdicts; None: signatures are neither required nor read.
            raises: raise exceptions of the machine, for tests, instead of rejecting the event.
            skips_routine: skip the machine for routine heartbeats; False: never, for tests. The decisions are the same.

        Raises:
            WrongPartitions: the body was made with another number of partitions.
            UnknownLevel: the body is at a level that this release does not support.
            MissingKeys: this process lacks the secret of a recorded key.
        """
        state = ShardState(partitions, level=level) if body is None else decode_state(body)
        feature_levels.require_known(state.level, shard_of(topic, partition))
        if state.partitions != partitions:
            raise WrongPartitions(
                f"the state of {topic}-{partition} was made with {state.partitions} partitions, now there are "
                f"{partitions}; set `partitions` to {state.partitions}, or change their number by `wakeroll reshard`"
            )
        if era > state.era:
            state.era, state.seq, state.quiet_until, state.stage = era, 0, quiet_until, "lost"
            state.signers = {}  # records may be missing, and copies of them may follow
        self._state = state
        self.topic, self.partition = topic, partition
        self._name = shard_of(topic, partition)
        self._partitions = partitions
        self._routes = Routes(state.routes)
        self._own_signatures = signatures
        self._signatures = None if signatures is None else valid_keys.verified_by(signatures, state.keys, self._name)
        self._raises = raises
        self._routine = RoutineIndex(state.routine)
        self._skips_routine = skips_routine
        self._is_of_kafka = kind_of_topic(topic) == KIND
        self._machine = MACHINES.get(kind_of_topic(topic), MACHINES["groups"])
        self._deadlines = Deadlines(state.deadlines)
        self._entities = Entities(state, self._machine, self._routes)
        self._readers = RouteReaders(state, self._machine)

    @property
    def name(self) -> str:
        """The shard without its era: ``groups-3``."""
        return self._name

    @property
    def era(self) -> int:
        """The shard's era."""
        return self._state.era

    @property
    def seq(self) -> int:
        """Number of the last decision."""
        return self._state.seq

    @property
    def is_quiet(self) -> bool:
        """Whether the decisions on the last record must not be published."""
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
        """Log time of the last tick, epoch ms; unlike the shard's clock, it includes the time of dark logs."""
        return self._state.clock.tick_ms

    @property
    def level(self) -> int:
        """The feature level for the next record."""
        return self._state.level

    @property
    def version(self) -> int:
        """Version of the encoded state; every release that reads it decides like this one at the shard's level."""
        return feature_levels.STATE_VERSIONS[self._state.level]

    @property
    def partitions(self) -> int:
        """Number of partitions of the control topic."""
        return self._partitions

    @property
    def growths(self) -> list[Growth]:
        """Changes of the number of partitions, the oldest first."""
        return self._state.growths

    @property
    def keys(self) -> Mapping[str, ValidKey]:
        """The recorded keys, by name, the oldest first; empty: each process accepts the keys of its key file."""
        return self._state.keys

    @property
    def load(self) -> Load:
        """The bounded resources that all groups or queues of the shard use together."""
        return self._state.load

    @property
    def used(self) -> float:
        """The largest share of a limit of the deployment that the shard uses; 1 if further events are rejected."""
        limits, is_of_queues = self._state.limits, kind_of_topic(self.topic) == "queues"
        return self._state.load.used(limits, limits.max_pulled_queues if is_of_queues else limits.max_groups)

    @property
    def routes(self) -> Routes:
        """The queues of every topic for which the shard has a route."""
        return self._routes

    def copy(self) -> "Shard":
        """Return a copy of the shard, which can continue independently; the copy requires no signatures."""
        return Shard(self.topic, self.partition, self._partitions, self.body(), raises=self._raises)

    def continued(self, body: bytes, partitions: int) -> "Shard":
        """Return a shard with another state and the same keys."""
        return Shard(self.topic, self.partition, partitions, body, signatures=self._own_signatures, raises=self._raises)

    def body(self) -> bytes:
        """Return the state after the records so far."""
        state = self._state
        state.routes = self._routes.encoded
        self._entities.store()
        self._routine.store()
        self._routes.forget_changes()
        return encode_state(state)

    def apply(self, record: Record) -> list[AnyDecision]:
        """Apply the next record of the partition and return its decisions, numbered; none while the shard is quiet.

        A bad record raises nothing: the result is a `Rejected`.

        Raises:
            UnknownLevel: a signed record raises the level to one that this release does not support.
            MissingKeys: a signed record makes a key valid whose secret this process lacks.
        """
        state = self._state
        state.offset = record.offset
        routine = self._routine.client_of(record)
        if routine is not None and self._may_skip(record):
            beats, client_id = routine
            beats.seen_ms[client_id] = state.clock.pass_to(record.timestamp_ms)
            return []
        event = self._read(record)
        moment = self._moment(record, event)
        is_loud = record.offset >= state.quiet_until
        if state.stage == "lost" or (state.stage == "quiet" and is_loud):
            state.stage = "" if is_loud else "quiet"
            self._recover(moment.now_ms, is_learning=not is_loud)
        cause = Cause(record.topic, record.partition, record.offset)
        decisions: list[AnyDecision] = []
        match event:
            case None:
                pass
            case Rejected():
                decisions.append(event)
            case Tick():
                decisions += self._tick(event, moment, cause)
            case Level():
                self._raise_level(event.level)
            case Progress():
                pass
            case KeyChange():
                decisions += self._change_keys(event)
            case Route():
                self._readers.note_route(event, moment.now_ms)
                for name in self._readers.of(event.topic, is_changed=self._routes.learn(event)):
                    decisions += self._step(name, event, moment, cause)
            case Heartbeat():
                decisions += self._step(event.group_id, event, moment, cause)
                self._note_routine(event, record, decisions)
            case _:
                decisions += self._step(entity_of(event), event, moment, cause)
        return [] if state.stage else self._numbered(decisions, record, cause)

    def group(self, group_id: str) -> Group | None:
        """Return a group's state for tests and queries, which must not change it; None if there is none."""
        entity = self._known(group_id)
        return entity if isinstance(entity, Group) else None

    def queue(self, key: str) -> HeldQueue | None:
        """Return a queue's state by its key, for tests and queries; None if there is none."""
        entity = self._known(key)
        return entity if isinstance(entity, HeldQueue) else None

    def names(self) -> list[str]:
        """Return the groups, or the keys of the queues, of this shard, sorted."""
        return self._entities.names()

    def _moment(self, record: Record, event: object) -> Moment:
        """Advance the clock by a record."""
        clock = self._state.clock
        if self._is_of_kafka:
            return clock.follow(record.timestamp_ms)
        return clock.read(record.timestamp_ms, event if isinstance(event, Tick) else None)

    def _look_at_all(self, now_ms: int) -> None:
        """Let the next tick, or this one, process every entity, because its deadlines may have become earlier."""
        for name in self.names():
            self._deadlines.set(name, now_ms)
        self._state.next_due_ms = now_ms

    def _numbered(self, decisions: list[AnyDecision], record: Record, cause: Cause) -> list[AnyDecision]:
        """Fill in the headers of the decisions on a record."""
        state = self._state
        for decision in decisions:
            state.seq += 1
            decision.shard = f"{self._name}.{state.era}"
            decision.seq = state.seq
            decision.at_ms = record.timestamp_ms
            decision.cause = cause
            if isinstance(decision, Rejected):
                decision.raw = raw_of(record)
        return decisions

    def _tick(self, tick: Tick, moment: Moment, cause: Cause) -> list[AnyDecision]:
        """Run the machine on the entities that are due."""
        state = self._state
        if tick.limits is not None and tick.limits != state.limits:
            if tick.limits.forget_after_ms != state.limits.forget_after_ms and state.level >= 3:
                self._look_at_all(moment.now_ms)
            state.limits = tick.limits
            self._routine.end_all()
        decisions = [one for name in self._due(moment.now_ms) for one in self._step(name, tick, moment, cause)]
        for topic in self._readers.unread(moment.now_ms):
            self._routes.forget(topic)
        return decisions

    def _raise_level(self, level: int) -> None:
        """Decide at this level from the next record on; a level never decreases."""
        if level > self._state.level:
            feature_levels.require_known(level, f"{self._name}, from offset {self._state.offset} on,")
            self._state.level = level
            self._routine.end_all()
            if level >= 3 and self._state.limits.forget_after_ms != config.FORGET_MS:
                self._look_at_all(self._state.clock.now_ms)

    def _change_keys(self, change: KeyChange) -> list[AnyDecision]:
        """Verify signatures by other keys from the next record on."""
        valid = valid_keys.changed(self._state.keys, change)
        if isinstance(valid, str):
            return [refuse("keys", valid, change)]
        if self._own_signatures is not None:
            where = f"{self._name} from offset {self._state.offset} on"
            self._signatures = valid_keys.verified_by(self._own_signatures, valid, where)
        self._state.keys = valid
        self._routine.end_all()
        return []

    def _may_skip(self, record: Record) -> bool:
        """Return whether a listed heartbeat is routine now: no era begins, and no signature is needed."""
        return not self._state.stage and (self._signatures is None or self._signatures.may_be_routine(record))

    def _note_routine(self, beat: Heartbeat, record: Record, decisions: list[AnyDecision]) -> None:
        """Note whether an equal heartbeat will be routine; a signed heartbeat has no equal."""
        group = self._entities.used.get(beat.group_id)
        if self._skips_routine and isinstance(group, Group):
            self._routine.unlist(group, beat.client_id)
            if not decisions and self._may_skip(record):
                self._routine.list_if_routine(group, beat, record)

    def _recover(self, now_ms: int, is_learning: bool) -> None:
        """Recover every entity after a loss of state; `is_learning`: decisions are not published yet."""
        state = self._state
        at_ms = NEVER_MS if is_learning else now_ms
        session_ms = state.loss.session_ms if state.loss else config.SESSION_TIMEOUT_MS
        loss = Loss(at_ms, session_ms)
        state.lowest_epoch = max(state.lowest_epoch, (state.era - 1) * config.ERA_EPOCHS)
        state.load = Load()
        for name in self.names():
            entity = self._load(name)
            its_loss = self._machine.recover(entity, state.lowest_epoch, loss, now_ms)
            session_ms = max(session_ms, its_loss.session_ms)
            state.load += self._machine.load(entity)
            self._readers.update(name, entity)
            if entity.is_blank:
                self._drop(name)
            else:
                self._entities.keep(name, entity)
                self._deadlines.set(name, entity.due_ms)
        state.loss = Loss(at_ms, session_ms)
        state.next_due_ms = now_ms
        self._routine.clear()

    def _read(self, record: Record) -> AnyEvent | LogEvent | Rejected | None:
        """Decode a record, and verify its signature if its event needs one.

        Returns:
            The event, its rejection, or None if it is a copy of a signed record.
        """
        if self._is_of_kafka:
            return read_kafka_event(record)
        event = read_event(record, self._partitions, self._state.level)
        if self._signatures is None:
            return event
        if not self._state.signers:
            self._state.signers = new_signers(record.offset)
        if isinstance(event, Rejected):
            return event
        if type(event) not in SIGNED_BY:
            problem = self._signatures.client_problem(record, event, self._state.level)
            return refuse("signature", problem, event) if problem else event
        return admit(record, event, self._signatures, self._state.signers, self._state.level)

    def _step(self, name: str, event: AnyEvent | LogEvent, moment: Moment, cause: Cause) -> list[AnyDecision]:
        """Run the machine on one entity; if the machine fails, restore the entity as it was before this event.

        One unforeseen event must not stop the whole shard for ever.
        """
        entity, state = self._load(name), self._state
        if isinstance(entity, Group) and (seen_ms := self._routine.take_seen(name)):
            routine_beats.enter(seen_ms, entity)
            self._entities.seen(name, seen_ms)
        of_all, before = state.load, self._machine.load(entity)
        around = Around(self._routes, of_all, state.limits, state.level)
        decisions: list[AnyDecision]
        try:
            decisions = self._machine.step(entity, event, moment, cause, around)
        except Exception as error:
            if self._raises or isinstance(error, MemoryError):
                raise
            entity = self._entities.before(name)
            if isinstance(event, Tick):
                # Otherwise every tick would fail again. After another failed event the deadline stays: by sending one
                # such event a minute, anybody could keep the members of the group from ever expiring.
                entity.due_ms = max(entity.due_ms, moment.now_ms + config.RETRY_MS)
            self._entities.keep(name, entity)
            decisions = [refuse("internal", f"{type_of(event)}: {fingerprint(error)}")]
            decisions[0].group_id = getattr(event, "group_id", name if isinstance(entity, Group) else None)
        else:
            self._entities.succeeded(name, event, moment, cause, around)
        if not isinstance(event, _KEEP_TOPICS if decisions else _KEEP_ROUTINE):
            self._routine.drop(name)
        if (after := self._machine.load(entity)) != before:
            state.load = of_all - before + after
        if decisions or isinstance(event, Route | Tick):  # else neither subscriptions nor doubts have changed
            self._readers.update(name, entity, subscribes=not isinstance(event, _KEEP_TOPICS))
        if entity.is_blank:
            self._drop(name)
        else:
            self._deadlines.set(name, entity.due_ms)
            state.next_due_ms = min(state.next_due_ms, entity.due_ms)
        return decisions

    def _drop(self, name: str) -> None:
        """Forget an entity without anything to keep; its epochs are not used again."""
        state, entity = self._state, self._entities.drop(name)
        state.lowest_epoch = max(state.lowest_epoch, self._machine.epoch(entity))
        self._deadlines.drop(name)
        self._readers.drop(name, entity)
        self._routine.drop(name)

    def _known(self, name: str) -> Entity | None:
        """Return an entity for a query, without any change of the state."""
        if name not in self._entities:
            return None
        entity, seen_ms = self._load(name), self._routine.seen(name)
        return routine_beats.with_seen(seen_ms, entity) if isinstance(entity, Group) and seen_ms else entity

    def _load(self, name: str) -> Entity:
        if name not in self._entities.used:
            self._readers.begin(name, self._entities.load(name))
        return self._entities.used[name]

    def _due(self, now_ms: int) -> list[str]:
        """Return the names of entities whose deadline has come, sorted; costs nothing if there is none."""
        if now_ms < self._state.next_due_ms:
            return []
        due, self._state.next_due_ms = self._deadlines.due(now_ms)
        return due


def fingerprint(error: Exception) -> str:
    """Return a name for a failure of the machine itself: the exception, and the calls of this package that raised it.

    It is part of a decision, so it must be the same on every machine and after edits elsewhere. It contains no line
    numbers, no calls of the standard library, and no names that differ between versions of Python, such as those of
    comprehensions.

    >>> fingerprint(ValueError("7"))
    'ValueError in '
    """
    calls: list[str] = []
    frame = error.__traceback__
    while frame is not None:
        module = frame.tb_frame.f_globals.get("__name__", "")
        name = frame.tb_frame.f_code.co_name
        if module.partition(".")[0] == _OURS and not name.startswith("<"):
            calls.append(f"{module.removeprefix('wakeroll_')}.{name}")  # as stored decisions have it
        frame = frame.tb_next
    return f"{type(error).__name__} in {' > '.join(calls[-_FRAMES:])}"
