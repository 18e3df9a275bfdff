"""The coordinator of a broker in memory: the real state machine, which decides as soon as an event is stored."""

import re
import time
import uuid
from collections.abc import Callable

import msgspec

from wakeroll.connection import Topics
from wakeroll.testing.memory_log import MemoryLog, Stored
from wakeroll.topic_patterns import may_match
from wakeroll_model import feature_levels
from wakeroll_model.config import MAX_TOPICS
from wakeroll_model.decisions import AnyDecision, Wake, recipient_of
from wakeroll_model.entity_machines import MACHINES
from wakeroll_model.events import (
    AnyEvent,
    Arrival,
    Configure,
    Event,
    Heartbeat,
    KeyChange,
    Level,
    Matches,
    Pull,
    Reset,
    ResetOffset,
    Route,
    RoutedQueue,
    Subscription,
    Tick,
    Unregister,
)
from wakeroll_model.group import Group
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record, read_event
from wakeroll_model.replay import encode_decision
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import decode_state, encode_state

TICK_S = 0.02
"""Shortest time between two ticks (s)."""

_encode = msgspec.json.Encoder().encode


class MemoryCoordinator:
    """One shard of groups and one of queues. It runs in the threads that store events or read an inbox.

    Its clock is the machine's. Two deadlines of a group may be brought forward, without an effect on others: the time
    that it waits after a join before it computes a new target, and the session of a member that has crashed.
    """

    def __init__(self, log: MemoryLog) -> None:
        """Create the control topics."""
        self.on_decision: Callable[[AnyDecision], object] = lambda _decision: None
        """Called with each decision."""
        self._log = log
        self._names = Topics()
        self._began_s = time.monotonic()
        self._ticked_s = 0.0
        self._start_ms = time.time_ns() // 1_000_000
        self._pulled: set[Queue] = set()
        """Queues for which a pull was sent."""
        self._topics_of: dict[tuple[str, str], list[Subscription]] = {}
        """Group and client -> the subscriptions of its last heartbeat."""
        self._patterns: dict[tuple[str, str], re.Pattern[str]] = {}
        """Group and pattern of its members -> the compiled pattern. It is Python's; a real observer uses RE2."""
        self._shards = {topic: Shard(topic, 0, 1, raises=True) for topic in self._names.control}
        for topic in self._names.all:
            log.create(topic, 1)
        log.on_created = self._created
        log.on_appended = self._appended
        log.on_poll = self._polled
        self._append(Level(level=feature_levels.NEWEST))
        self._tick()

    def group(self, group_id: str) -> Group | None:
        """Return the state of a group; None if it never had a member."""
        return self._shards[self._names.groups].group(group_id)

    def is_settled(self, group_id: str, client_ids: set[str]) -> bool:
        """Return whether these are the members, and all of them have received the assignments that they should have."""
        group = self.group(group_id)
        if group is None or set(group.members) != client_ids or group.pending:
            return False
        if any(
            member.revoking or member.sent_epoch < 0 or member.shown_epoch < member.sent_epoch
            for member in group.members.values()
        ):
            return False
        return group.mode == "broadcasting" or group.owners == group.target

    def assignment(self, group_id: str) -> dict[str, list[Queue]]:
        """Return the queues that each member owns."""
        group = self.group(group_id)
        return {} if group is None else {name: sorted(member.owned) for name, member in group.members.items()}

    def evict(self, group_id: str, client_id: str) -> None:
        """End the session of a member now."""
        with self._log.lock:
            self._topics_of.pop((group_id, client_id), None)

            def end_session(group: Group, now_ms: int) -> None:
                if client_id in group.members:
                    member = group.members[client_id]
                    member.seen_ms -= max(group.session_ends_ms(member) - now_ms, 0)

            self._bring_forward(group_id, end_session)

    def reset(self, group_id: str, offsets: dict[Queue, int]) -> None:
        """Set committed offsets, as an operator does."""
        entries = [ResetOffset(queue=queue, offset=offset) for queue, offset in sorted(offsets.items())]
        if entries:
            self._append(Reset(request_id=uuid.uuid4().hex, group_id=group_id, offsets=entries, by="test"))

    def cut(self, group_id: str, slices: dict[str, int]) -> None:
        """Cut the partitions of topics into slices for a group, as an operator does."""
        with self._log.lock:
            self._append(Configure(group_id=group_id, slices=slices))
            self._bring_forward(group_id, _end_settling)

    # --- the log ---

    def _created(self, topic: str, partitions: int) -> None:
        queues = [RoutedQueue(topic=topic, broker="", queue_id=number) for number in range(partitions)]
        self._append(Route(topic=topic, queues=queues, version="1"))
        for place in self._patterns:
            self._match(*place)

    def _match(self, group_id: str, pattern: str) -> None:
        """Send a group the topics that match a pattern of its members."""
        compiled = self._patterns[group_id, pattern]
        topics = [topic for topic in sorted(self._log.topics) if may_match(topic, self._names)]
        found = [topic for topic in topics if compiled.fullmatch(topic)][:MAX_TOPICS]
        self._append(Matches(group_id=group_id, pattern=pattern, topics=found))

    def _appended(self, topic: str, number: int, record: Stored) -> None:
        if topic not in self._names.all:
            self._log.note_change()
            queue = Queue(topic, "", number)
            if queue in self._pulled:
                self._append(Arrival(queue=queue, next_offset=record.offset + 1))
        elif topic in self._shards:
            self._decide(Record(topic, 0, record.offset, self._now_ms(), record.key, record.value))

    def _polled(self, topic: str) -> None:
        if topic == self._names.inbox and time.monotonic() > self._ticked_s + TICK_S:
            with self._log.lock:
                self._tick()

    def _append(self, event: Event) -> None:
        """Append an event to its topic; an event without an entity to both topics."""
        topics = self._names.control if isinstance(event, Tick | Level | KeyChange) else (self._names.groups,)
        key: bytes | None = None
        if isinstance(event, Heartbeat | Matches | Reset | Configure):
            key = event.group_id.encode()
        elif isinstance(event, Arrival):
            topics, key = (self._names.queues,), event.queue.key.encode()
        for topic in topics:
            self._log.append(topic, 0, key, _encode(event), [], self._now_ms())

    def _tick(self) -> None:
        self._ticked_s = time.monotonic()
        self._append(Tick())

    def _bring_forward(self, group_id: str, change: Callable[[Group, int], None]) -> None:
        """Change one deadline of a group in the state of its shard, and let the next tick process the group.

        A clock that is set forward would also shorten the revoke timeouts and sessions of other members.
        """
        shard = self._shards[self._names.groups]
        state, group = decode_state(shard.body()), shard.group(group_id)
        if group is None:
            return
        change(group, state.clock.at_tick_ms)
        state.clock.grace_until_ms = state.clock.at_tick_ms  # nobody reconnects to a broker in memory
        state.routine.pop(group_id.encode(), None)  # `group` has these heartbeats
        state.entities[group_id] = MACHINES["groups"].encode(group)
        state.deadlines[group_id] = state.next_due_ms = 0
        self._shards[self._names.groups] = shard.continued(encode_state(state), 1)
        self._tick()

    def _now_ms(self) -> int:
        return self._start_ms + round((time.monotonic() - self._began_s) * 1_000)

    # --- decisions ---

    def _decide(self, record: Record) -> None:
        event = read_event(record, 1)
        for decision in self._shards[record.topic].apply(record):
            self._publish(decision)
        if isinstance(event, Pull):
            self._pulled.add(event.queue)
        if isinstance(event, Heartbeat | Unregister):
            self._follow(event)
        if isinstance(event, Heartbeat) and event.pattern and (event.group_id, event.pattern) not in self._patterns:
            self._patterns[event.group_id, event.pattern] = re.compile(event.pattern)
            self._match(event.group_id, event.pattern)
        if isinstance(event, Matches):
            self._bring_forward(event.group_id, _end_settling)

    def _follow(self, event: AnyEvent) -> None:
        """End the settle interval when a member joins, changes its topics or leaves: the next target is due at once."""
        assert isinstance(event, Heartbeat | Unregister)
        place = event.group_id, event.client_id
        before = self._topics_of.pop(place, None)
        if isinstance(event, Heartbeat):
            self._topics_of[place] = event.subscriptions
        self._log.note_change()
        group = self.group(event.group_id)
        is_new = before is None or not isinstance(event, Heartbeat) or before != event.subscriptions
        if group is not None and group.pending and is_new:
            self._bring_forward(event.group_id, _end_settling)

    def _publish(self, decision: AnyDecision) -> None:
        self.on_decision(decision)
        value = encode_decision(decision)
        key = decision.queue.key if isinstance(decision, Wake) else decision.group_id or decision.shard
        self._log.append(self._names.decisions, 0, key.encode(), value, [], self._now_ms())
        if client_id := recipient_of(decision):
            self._log.append(self._names.inbox, 0, client_id.encode(), value, [], self._now_ms())
            self._log.changed.notify_all()


def _end_settling(group: Group, now_ms: int) -> None:
    group.retargeted_ms = min(group.retargeted_ms, now_ms - group.settings.settle_ms)
