"""A group of another coordinator, watched from outside: which events to append so that its state is on record here.

Its members do not know of wakeroll. For each of them the watching process appends what a client of ours would append:
heartbeats that state its queues, commits, and an unregister when it is gone. The group uses the strategy PINNED with
eager hand-over, so owners follow the statements at once. The caller provides the time: `now_ms` is a monotonic clock,
in milliseconds.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from wakeroll_model.decisions import WITHOUT_TARGET, Assignment, Decision, Fenced, Membership, Offset, Rebalance
from wakeroll_model.events import Commit, Configure, GroupEvent
from wakeroll_model.queue import Queue
from wakeroll_model.strategies import pinned
from wakeroll_model.watched_members import SeenMember, WatchedMembers
from wakeroll_model.watched_offsets import WatchedOffsets

HEARTBEAT_MS = 30_000
"""Interval of heartbeats of watched members, ms. They only show that the watching process lives."""
SESSIONS = 4
"""Heartbeat intervals per session: if the watching process is restarted within two minutes, no member expires."""
FOLLOW_MS = 1_000
"""Interval of the group's timer, ms: a queue that moves although nobody joined or left moves with the next tick."""
ASK_AGAIN_MS = 60_000
"""Pause before an unanswered request is repeated, ms; doubled each time, because the coordinator may be down."""
LONGEST_PAUSE_MS = 3_600_000


class SeenGroup(Struct, frozen=True, kw_only=True):
    """A watched group at one moment."""

    members: tuple[SeenMember, ...] | None
    """None if its coordinator is assigning queues, and nobody knows who has which; then the last facts stay."""
    offsets: Mapping[Queue, int]
    """Queue -> committed offset: the next message to consume."""


class WatchedGroup:
    """The events that put one watched group on record.

    `see` takes a description by the other coordinator, `hear` a decision of ours. Each returns the events to append, in
    order.
    Not safe to use from two threads at once.
    """

    def __init__(self, group_id: str, heartbeat_ms: int = HEARTBEAT_MS) -> None:
        """Begin without knowledge.

        Args:
            group_id: the name of the group here.
            heartbeat_ms: interval of heartbeats (ms); the session is four times as long.
        """
        self.group_id = group_id
        self._heartbeat_ms = heartbeat_ms
        self._members = WatchedMembers(group_id, heartbeat_ms)
        self._offsets = WatchedOffsets(group_id)
        self.is_settled = False
        """Whether the last description led to no events: all of it is on record, or a request waits for its turn."""
        self.is_forgotten = False
        """Whether the coordinator has forgotten the group; then a new `WatchedGroup` must continue."""
        self._has_seen = False
        """Whether a description named members with settled queues, or none at all."""
        self._is_known = False
        """Whether the members and offsets on record are known; only then members leave, and offsets are compared."""
        self._ask_ms: int | None = None
        """When the settings are sent again unless the coordinator answers; None if they were never sent."""
        self._pause_ms = ASK_AGAIN_MS
        self._epoch = 0
        self._clients = 0
        """Number of members in the target of `_epoch`."""
        self._assigned: set[str] = set()
        """Clients that were sent an assignment in that epoch."""

    @property
    def has_members(self) -> bool:
        """Whether a member is on record, as far as is known."""
        return bool(self._members)

    def see(self, seen: SeenGroup, now_ms: int) -> list[GroupEvent]:
        """Return the events that follow from a description of the group."""
        if seen.members is not None:
            self._members.see(seen.members)
            self._has_seen = True
        if self._ask_ms is None and not seen.members and not seen.offsets:
            self.is_settled = True
            return []  # there is nothing to be put on record
        events: list[GroupEvent] = []
        is_first = self._ask_ms is None
        if not self._is_known and (self._ask_ms is None or now_ms >= self._ask_ms):
            events.append(self._ask(now_ms))
        # Until the coordinator answers, nobody leaves. But if it does not answer before the next description, those who
        # are on record must not be taken for silent when it reads the log later.
        if self._has_seen and not is_first:
            events += self._members.changes(now_ms, leave=self._is_known)
        if self._is_known:
            events += self._commits(seen.offsets, now_ms)
            owned = self._members.stated.union(self._members.owners)
            has_members = self.has_members or seen.members is None
            events += self._offsets.resets(seen.offsets, owned, self._epoch, now_ms, has_members=has_members)
        self.is_settled = self._is_known and not events
        return events

    def hear(self, decision: Decision, now_ms: int) -> list[GroupEvent]:
        """Return the events that follow from a decision about the group. Each must be passed once, in order."""
        match decision:
            case Rebalance():
                self._epoch, self._clients = decision.epoch, decision.clients
                self._assigned.clear()
                if decision.trigger not in WITHOUT_TARGET:
                    self._note_answers()
            case Assignment():
                for assigned in decision.queues:
                    if assigned.start.offset is not None:
                        self._offsets.note(assigned.queue, assigned.start.offset)
                receipt = self._members.receive(decision, now_ms)
                if decision.epoch == self._epoch:
                    self._assigned.add(decision.client_id)
                    self._note_answers()
                return [*receipt]
            case Fenced():
                return [*self._members.end(decision, now_ms)]
            case Offset() if decision.mode == "clustering":
                self._offsets.note(decision.queue, -1 if decision.deleted else decision.offset)
            case Membership() if decision.change == "forgotten":
                self.is_forgotten = True
            case _:
                pass
        return []

    def _ask(self, now_ms: int) -> Configure:
        """Return the settings. The coordinator answers with a new target, and sends every member on record its queues.

        By these assignments a process that was restarted learns the instances, epochs and offsets on record.
        """
        self._ask_ms = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, LONGEST_PAUSE_MS)
        return Configure(
            group_id=self.group_id,
            strategy=pinned.NAME,
            handover="eager",
            heartbeat_ms=self._heartbeat_ms,
            session_timeout_ms=SESSIONS * self._heartbeat_ms,
            rebalance_interval_ms=FOLLOW_MS,
        )

    def _note_answers(self) -> None:
        """Note whether every member of the last target was sent an assignment in its epoch."""
        if self._ask_ms is not None and len(self._assigned) >= self._clients:
            self._is_known = True

    def _commits(self, offsets: Mapping[Queue, int], now_ms: int) -> Iterator[Commit]:
        for client_id, entries in self._offsets.commits(offsets, self._members.owners, now_ms).items():
            instance_id, epoch = self._members.life_of(client_id)
            yield Commit(
                group_id=self.group_id, client_id=client_id, instance_id=instance_id, epoch=epoch, offsets=entries
            )
