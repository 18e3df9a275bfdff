"""The state of a consumer group: who is in it, who owns which queue, since which epoch."""

from itertools import islice
from typing import Any

from msgspec import Struct

from model import config
from model.clock import Moment
from model.config import NEVER_MS
from model.decisions import AnyDecision, Cause, How, Start, Trigger
from model.events import Mode, Policy, Subscription
from model.queue import Queue
from model.routes import Routes

CHANGE: tuple[Trigger, ...] = ("join", "leave", "expire", "subscription")
"""Triggers by which a group's (client, topics) changed."""

IF_DIFFERENT: tuple[Trigger, ...] = ("route", "timer")
"""Triggers that lead to a new epoch only if the target differs; every other always does."""


class Settings(Struct, array_like=True):
    """What `configure` can change; durations in ms."""

    strategy: str | None = None
    """None: the oldest member's."""
    strategy_params: dict[str, Any] | None = None
    handover: str = "cooperative"
    heartbeat_ms: int = config.HEARTBEAT_MS
    session_timeout_ms: int = config.SESSION_TIMEOUT_MS
    rebalance_interval_ms: int = config.REBALANCE_INTERVAL_MS
    settle_ms: int = config.SETTLE_MS
    revoke_timeout_ms: int = config.REVOKE_TIMEOUT_MS
    max_members: int = config.MAX_MEMBERS


class Revocation(Struct, array_like=True):
    """A queue that was asked back from its owner."""

    epoch: int
    """Of the assignment that asked; a heartbeat that shows at least this may release the queue."""
    at_ms: int
    """Log time when it was asked."""
    timeout_ms: int
    """The longest revoke timeout that was set since then: its owner may trust that."""
    was_reset: bool = False
    """Its offset was reset meanwhile: a commit of its owner is too old."""
    shown_ms: int = -1
    """The shard's clock when a heartbeat first showed that epoch: the timeout counts from there; -1 not yet."""

    @property
    def ends_ms(self) -> int:
        """When its owner's time is over, by the shard's clock."""
        return NEVER_MS if self.shown_ms < 0 else self.shown_ms + self.timeout_ms


class Member(Struct, array_like=True, kw_only=True):
    """One client in the group, by the heartbeats of its current instance."""

    instance_id: str
    superseded: list[str]
    """Its instances before, newest last; they are never heard again."""
    seen_ms: int
    """The shard's clock at its last heartbeat."""
    subscriptions: dict[str, Subscription]
    """Topic -> what it wants of it."""
    shown_epoch: int = -1
    """Of the newest assignment that a heartbeat says it received."""
    sent_epoch: int = -1
    """Of the newest assignment sent to it; -1 none yet, or none with the settings as they are now."""
    session_ms: int = config.SESSION_TIMEOUT_MS
    """The longest session timeout that it may still trust: its own default, until it shows another."""
    owned: dict[Queue, int] = {}
    """What the map holds for it, what it must give up too: queue -> the epoch it was given in."""
    revoking: dict[Queue, Revocation] = {}
    """Those of them that it must give up."""
    since_ms: int = 0
    """The shard's clock when this instance came."""
    replaced_ms: list[int] = []
    """The shard's clock at the client's last replacements."""
    intrudes: bool = False
    """Whether it has been said that an instance before this one still sends heartbeats."""
    mode: Mode = "clustering"
    strategy: str = "AVG"
    strategy_params: dict[str, Any] = {}
    consume_from: Policy = "last"
    consume_from_ms: int = 0
    orderly: bool = False
    room: str = ""
    weight: float = 1.0
    reset: list[Queue] = []
    """Those of its queues that a reset gave it anew."""

    @property
    def first_start(self) -> Start:
        """Where it starts a queue without a committed offset."""
        return Start(policy=self.consume_from, ms=self.consume_from_ms if self.consume_from == "timestamp" else None)


class Freed(Struct, array_like=True):
    """A queue that nobody owns, and how it came free."""

    client_id: str
    """Its last owner."""
    how: How
    at_ms: int
    """Log time when it came free."""
    revoked_ms: int | None = None
    """Log time when its owner was asked to give it up; None if it was not."""


class OwnOffsets(Struct, array_like=True):
    """How far one client of a broadcasting group has consumed."""

    offsets: dict[Queue, int] = {}
    added: list[Queue] = []
    """Queues that were added to topics it consumes, and have no committed offset yet: they start at first."""
    left_ms: int = -1
    """The shard's clock when it left; -1 while it is a member."""
    given: list[Queue] = []
    """Queues that it has been given, sorted: another queue of their topics was added."""


class Held(Struct, array_like=True):
    """A lock on a queue, by RocketMQ's protocol."""

    client_id: str
    until_ms: int
    """By the shard's clock."""


class Gone(Struct, array_like=True):
    """The instances of a client that left."""

    instances: list[str]
    until_ms: int
    """Remembered until then."""


class Group(Struct, array_like=True, kw_only=True):
    """The state of one group.  Maps keep log order: the oldest member comes first."""

    group_id: str
    epoch: int = 0
    settings: Settings
    members: dict[str, Member] = {}
    """client_id -> member."""
    gone: dict[str, Gone] = {}
    """client_id -> its instances; clients that left."""
    target: dict[Queue, str] = {}
    """queue -> the client that should own it."""
    owners: dict[Queue, str] = {}
    """queue -> the client that owns it: the proof that there are never two."""
    freed: dict[Queue, Freed] = {}
    """Queues that had an owner and have none."""
    offsets: dict[Queue, int] = {}
    """queue -> the committed offset: the next message to consume."""
    consumed: list[str] = []
    """Topics that the group has consumed: a queue added to one of them starts at first, or messages would be lost."""
    own_offsets: dict[str, OwnOffsets] = {}
    """client_id -> its offsets, in a broadcasting group; kept when it leaves."""
    resets: list[str] = []
    """request_id of the last resets."""
    locks: dict[Queue, Held] = {}
    """Locks by RocketMQ's protocol; only a queue's owner has one."""
    conflicts: dict[str, str] = {}
    """client_id -> how it is at odds with the oldest member."""
    oldest: str = ""
    """The client that the others were compared with."""
    added: dict[Queue, int] = {}
    """Queues that were added to such topics and have no committed offset yet -> the epoch that added them."""
    recovering_until_ms: int = -1
    """Until then, nothing that nobody claims is given: the coordinator had lost this group; -1 it had not."""
    pending: list[tuple[Trigger, Cause]] = []
    """What asked for a new target since the last one."""
    configured_epoch: int = -1
    """The group's epoch when the settings changed last: who shows a later one knows them."""
    retargeted_ms: int = -1
    """The shard's clock at the last new target; -1 never."""
    checked_ms: int = 0
    """The shard's clock when the target was last compared."""
    stale: bool = False
    """Something the target depends on changed without being a CHANGE: the timer looks at it."""
    emptied_ms: int = -1
    """The shard's clock when its last member went; -1 while there are members."""
    due_ms: int = NEVER_MS
    """No deadline is earlier than this; it may be too early, never too late."""

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing to keep: no member, no epoch, no setting, nobody gone."""
        return not (self.epoch or self.members or self.gone or self.own_offsets or self.settings != Settings())

    @property
    def mode(self) -> Mode:
        """How it consumes: as its oldest member does."""
        return next((member.mode for member in self.members.values()), "clustering")

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member has every queue of its topics, and nobody owns one."""
        return self.mode == "broadcasting"

    @property
    def topics(self) -> list[str]:
        """The topics that its members subscribe, sorted."""
        return sorted({topic for member in self.members.values() for topic in member.subscriptions})

    def remind(self, due_ms: int) -> None:
        """Have a tick look at this group when the shard's clock reaches `due_ms`."""
        self.due_ms = min(self.due_ms, due_ms)

    def session_ends_ms(self, member: Member) -> int:
        """Return when a member's silence is too long, by the shard's clock.

        A shorter session counts only once the member has heard of it: it would still trust the longer one.
        """
        return member.seen_ms + max(member.session_ms, self.settings.session_timeout_ms) + 1

    @property
    def is_ordered(self) -> bool:
        """Whether the group consumes each queue in order: as its oldest member does."""
        return any(member.orderly for member in islice(self.members.values(), 1))


class Turn:
    """One event at work on one group: its moment, what it asks for, and the decisions so far."""

    def __init__(self, group: Group, moment: Moment, cause: Cause, routes: Routes) -> None:
        self.group = group
        self.moment = moment
        self.cause = cause
        self.routes = routes
        self.decisions: list[AnyDecision] = []
        self.freed: list[Queue] = []
        """Queues that came free in this turn."""
        self._broadcasted = group.is_broadcasting
        self.asked = False
        """Whether this event asked for a new target."""
        self.tell: set[str] = set()
        """Clients whose queues changed, or who must hear again what they own."""
        self.claimant = ""
        """The client of this heartbeat ..."""
        self.claims: list[Queue] = []
        """... and what it claims and does not own."""

    def say(self, decision: AnyDecision) -> None:
        """Decide something."""
        self.decisions.append(decision)

    def ask(self, trigger: Trigger) -> None:
        """Ask for a new target; it comes at once, or when the settle interval has passed.

        Who comes and goes concerns nobody else in a broadcasting group (RocketMQ's #8483).
        """
        if trigger in CHANGE and (self.group.is_broadcasting if self.group.members else self._broadcasted):
            return
        self.asked = True
        pending = self.group.pending
        if len(pending) < config.MAX_CAUSES:
            pending.append((trigger, self.cause))
        elif trigger not in IF_DIFFERENT:
            pending[-1] = (trigger, self.cause)
