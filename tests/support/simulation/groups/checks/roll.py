"""Who is in each group at a moment, as the log tells it: its members, the oldest first, and what each said last."""

from dataclasses import dataclass, field

from msgspec import UNSET

from tests.support.simulation.groups.checks.evidence import Book, Page
from wakeroll_model.config import (
    ERA_EPOCHS,
    HEARTBEAT_MS,
    MAX_MEMBERS,
    REVOKE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    SETTLE_MS,
)
from wakeroll_model.decisions import AnyDecision, Assignment, Fenced, Handover, Membership, Rebalance
from wakeroll_model.events import Configure, Heartbeat, Kick, Matches, Route, Unregister
from wakeroll_model.queue import Queue


@dataclass
class Present:
    """A member."""

    life: str
    since_ms: int
    """The shard's clock when this life came, ..."""
    seen_ms: int
    """... and at its last heartbeat."""
    said: Heartbeat
    """Its newest heartbeat that does not show an older epoch than one before."""
    told: Assignment | None = None
    """The newest assignment to it."""
    told_at: int = -1
    """The offset of its cause."""
    matched: set[str] = field(default_factory=set)
    """Topics that its pattern matches."""
    has_answered: bool = False
    """Whether it has shown an assignment since it was told one; a life that was forgotten may begin with an epoch."""

    @property
    def topics(self) -> set[str]:
        """What it subscribes."""
        return {one.topic for one in self.said.subscriptions} | self.matched


@dataclass
class Gathering:
    """A group."""

    members: dict[str, Present] = field(default_factory=dict)
    """client_id -> member; who came first stands first."""
    past: dict[tuple[str, str], str] = field(default_factory=dict)
    """Client and life -> why it ended: it must never be heard again."""
    told_past: dict[tuple[str, str], int] = field(default_factory=dict)
    """The same -> the shard's clock when it was told so last."""
    heard: dict[tuple[str, str], tuple[Heartbeat, int]] = field(default_factory=dict)
    """Client and life -> its newest heartbeat while it waits for its client_id, and the shard's clock then."""
    owners: dict[Queue, str] = field(default_factory=dict)
    """Queue -> client, by the hand-overs."""
    epoch: int = 0
    settings: dict[str, int | str | None] = field(
        default_factory=lambda: {
            "strategy": None,
            "heartbeat_ms": HEARTBEAT_MS,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "revoke_timeout_ms": REVOKE_TIMEOUT_MS,
            "settle_ms": SETTLE_MS,
            "max_members": MAX_MEMBERS,
        }
    )
    leaving: dict[str, tuple[str, int]] = field(default_factory=dict)
    """client_id -> the life that an operator kicked, and the shard's clock then; while it is a member."""
    kept_out: dict[str, tuple[str, int]] = field(default_factory=dict)
    """client_id -> the life that an operator kicked, and until when no other life may join, by the shard's clock."""
    kicks: set[str] = field(default_factory=set)
    """The requests to kick a client that took effect."""
    matches: dict[str, set[str]] = field(default_factory=dict)
    """Pattern -> the topics that match it."""
    slices: dict[str, int] = field(default_factory=dict)
    """Topic -> into how many slices its partitions are cut, if it was ever said."""
    is_paused: bool = False
    """Whether an operator has paused it, by the record."""
    configured_at: int = -1
    """Offset of the last `configure` ..."""
    configured_epoch: int = -1
    """... and the group's epoch before it."""

    @property
    def oldest(self) -> Present | None:
        """The member by which the group goes."""
        return next(iter(self.members.values()), None)

    @property
    def is_broadcasting(self) -> bool:
        """Whether nobody owns a queue, for everybody has all."""
        return self.oldest is not None and self.oldest.said.mode == "broadcasting"

    @property
    def strategy(self) -> str:
        """The strategy that counts: as configured, else as the oldest member wants it."""
        return str(self.settings["strategy"] or (self.oldest.said.strategy if self.oldest else ""))

    def number(self, name: str) -> int:
        """Return a setting that is a number."""
        value = self.settings[name]
        assert isinstance(value, int)
        return value

    def keeps_out(self, client_id: str, life: str, clock_ms: int) -> bool:
        """Whether an operator keeps this life of a client out."""
        kicked, until_ms = self.kept_out.get(client_id, (life, 0))
        return clock_ms < until_ms and life != kicked

    def knows_settings(self, member: Present) -> bool:
        """Whether a member has shown an assignment that was made with the settings of now."""
        told = member.told
        return (
            told is not None
            and member.has_answered
            and member.told_at > self.configured_at
            and member.said.epoch >= told.epoch
            and member.said.epoch > self.configured_epoch
        )


class Roll:
    """All groups of a partition, page after page of an era."""

    def __init__(self, book: Book) -> None:
        self.groups: dict[str, Gathering] = {}
        self._gone: set[str] = set()
        """Topics whose newest route has no queues."""
        self._epoch = (book.era.number - 1) * ERA_EPOCHS
        for event in book.known(Configure):
            self._configure(event, -1)

    def group(self, group_id: str) -> Gathering:
        """Return a group as it is after the pages so far."""
        if group_id not in self.groups:
            self.groups[group_id] = Gathering(epoch=self._epoch)
        return self.groups[group_id]

    def _configure(self, event: Configure, offset: int) -> None:
        group = self.group(event.group_id)
        group.settings |= {name: value for name in group.settings if (value := getattr(event, name)) is not UNSET}
        if event.slices is not UNSET:
            group.slices |= event.slices
        group.configured_at, group.configured_epoch = offset, group.epoch

    def take(self, page: Page) -> None:
        """Go on by a page."""
        match page.event:
            case Configure() as event:
                self._configure(event, page.offset)
            case Unregister() as event:
                self._unregister(event, page)
            case Heartbeat() as event:
                self._hear(event, page)
            case Route() as event:
                self._gone = self._gone - {event.topic} if event.queues else self._gone | {event.topic}
            case Matches() as event:
                self._match(event)
            case _:
                pass
        for decision in page.decisions:
            self._take(decision, page)

    def _unregister(self, event: Unregister, page: Page) -> None:
        group, life = self.group(event.group_id), (event.client_id, event.instance_id)
        member = group.members.get(event.client_id)
        is_in = member is not None and member.life == event.instance_id
        if not is_in and life not in group.past:  # it ends before it was heard
            group.past[life], group.told_past[life] = "left", page.clock_ms

    def _match(self, event: Matches) -> None:
        """A topic stays as long as its route has queues: another observer may not have listed it yet."""
        group, pattern = self.group(event.group_id), event.pattern
        users = [member for member in group.members.values() if member.said.pattern == pattern]
        if users or pattern in group.matches:
            group.matches[pattern] = set(event.topics) | (group.matches.get(pattern, set()) - self._gone)
        for member in users:
            member.matched = group.matches[pattern]

    def _hear(self, event: Heartbeat, page: Page) -> None:
        group = self.group(event.group_id)
        group.heard[event.client_id, event.instance_id] = event, page.clock_ms
        member = group.members.get(event.client_id)
        if member is None or member.life != event.instance_id or event.epoch > group.epoch:
            return  # a higher epoch was never given
        member.seen_ms = page.clock_ms
        member.has_answered |= member.told is not None and event.epoch >= member.told.epoch
        if event.epoch >= member.said.epoch:
            member.said = event
            before = member.matched if event.pattern else set[str]()
            member.matched = group.matches.get(event.pattern, before)

    def _take(self, decision: AnyDecision, page: Page) -> None:
        match decision:
            case Membership(group_id=group_id):
                self._change(self.group(group_id), decision, page)
            case Fenced(group_id=group_id, client_id=client_id, instance_id=life, reason=reason):
                was_member = any(isinstance(one, Membership) and one.instance_id == life for one in page.decisions)
                if reason == "kicked" and not was_member and (client_id, life) not in self.group(group_id).past:
                    return  # it is kept out for a time
                if reason not in ("refused", "epoch"):
                    self.group(group_id).past[client_id, life] = reason
                    self.group(group_id).told_past[client_id, life] = page.clock_ms
            case Rebalance(group_id=group_id, epoch=epoch):
                self.group(group_id).epoch = epoch
            case Handover(group_id=group_id, queue=queue, to=to):
                owners = self.group(group_id).owners
                if to is None:
                    owners.pop(queue, None)
                else:
                    owners[queue] = to
            case Assignment(group_id=group_id, client_id=client_id, instance_id=life, epoch=epoch):
                group = self.group(group_id)
                group.epoch = max(group.epoch, epoch)
                member = group.members.get(client_id)
                if member is not None and member.life == life:
                    member.told, member.told_at = decision, page.offset
            case _:
                pass

    def _change(self, group: Gathering, decision: Membership, page: Page) -> None:
        client_id = decision.client_id
        match decision.change:
            case "joined":
                beat, seen_ms = group.heard[client_id, decision.instance_id]
                group.members[client_id] = Present(
                    decision.instance_id, page.clock_ms, seen_ms, beat, matched=group.matches.get(beat.pattern, set())
                )
            case "left" | "died" | "expired" | "kicked":
                group.members.pop(client_id, None)
                group.leaving.pop(client_id, None)
            case "leaving":
                assert isinstance(page.event, Kick)
                group.kicks.add(page.event.request_id)
                group.leaving[client_id] = decision.instance_id, page.clock_ms
                group.kept_out[client_id] = decision.instance_id, page.clock_ms + page.event.keep_out_ms
            case "readmitted":
                group.kept_out.pop(client_id, None)
            case "paused" | "resumed" | "forgotten":
                group.is_paused = decision.change == "paused"
            case _:
                pass
