"""The state of a consumer group: who is in it, who owns which queue, since which epoch."""

from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from model import config
from model.config import DEFAULT_LIMITS, NEVER_MS, Limits
from model.decisions import AnyDecision, Cause, Change, FencedReason, How, Membership, Start, Trigger
from model.events import Heartbeat, Mode, Policy, Subscription
from model.known_routes import Routes
from model.queue import Queue
from model.shard_clock import Moment
from model.shard_load import NOTHING, Load

CHANGE: tuple[Trigger, ...] = ("join", "leave", "expire", "subscription")
"""Triggers by which a group's (client, topics) changed."""

IF_DIFFERENT: tuple[Trigger, ...] = ("route", "timer")
"""Triggers that lead to a new epoch only if the target differs; every other always does."""


_encode = msgspec.json.Encoder().encode


class GroupSettings(Struct, array_like=True):
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

    @property
    def bytes(self) -> int:
        """The size of that which has no fixed one."""
        return len(_encode(self.strategy_params)) if self.strategy_params else 0


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
    seen_ms: int
    """The shard's clock at its last heartbeat."""
    subscriptions: dict[str, Subscription]
    """Topic -> what it wants of it."""
    shown_epoch: int = -1
    """Of the newest assignment that a heartbeat says it received."""
    sent_epoch: int = -1
    """Of the newest assignment sent to it; -1 none yet, or none with the settings as they are now."""
    session_ms: int = config.SESSION_TIMEOUT_MS
    """The longest session timeout that it may still trust: what it showed, until it shows that it heard of another."""
    owned: dict[Queue, int] = {}
    """What the map holds for it, what it must give up too: queue -> the epoch it was given in."""
    revoking: dict[Queue, Revocation] = {}
    """Those of them that it must give up."""
    unheard_since_ms: int = -1
    """The shard's clock when it first showed that it has not heard what others have; -1 it has."""
    unheard_epoch: int = -1
    """The epoch of the assignment that it had not heard then."""
    bytes: int = 0
    """Of its heartbeat, as far as the client chooses its size."""
    rival: "Rival | None" = None
    """Another instance under its client_id that wants to join; None: there is none."""
    waiting: dict[str, int] = {}
    """The instances that want its client_id -> the shard's clock when each was heard first."""
    reported_ms: int = -1
    """The shard's clock when a duplicate of it was reported last; -1 never."""
    mode: Mode = "clustering"
    strategy: str = "AVG"
    strategy_params: dict[str, Any] = {}
    consume_from: Policy = "last"
    consume_from_ms: int = 0
    orderly: bool = False
    room: str = ""
    weight: float = 1.0
    reset: dict[Queue, int] = {}
    """Those of its queues that a reset gave it again -> the epoch of the reset."""

    @property
    def first_start(self) -> Start:
        """Where it starts a queue without a committed offset."""
        return Start(policy=self.consume_from, ms=self.consume_from_ms if self.consume_from == "timestamp" else None)


class Rival(Struct, array_like=True):
    """The instance that was heard last of those that want a client_id which a live instance has."""

    beat: Heartbeat
    """Its last heartbeat, by which it joins when the live one is out."""
    bytes: int
    """Of it, as of a member's."""
    seen_ms: int
    """The shard's clock then."""


class EndedInstance(Struct, array_like=True):
    """An instance that is out: whatever it sends, it is told so again."""

    reason: FencedReason
    until_ms: int
    """Remembered until then, by the shard's clock."""
    told_ms: int
    """The shard's clock when it was told last."""
    by: str = ""
    """The instance that has its client_id, if that is the reason."""


class Doubt(Struct, array_like=True):
    """A committed offset beyond the known end of its queue."""

    offset: int
    """What was committed before, within the end; -1: nothing."""
    routes: int = 0
    """How many routes in a row have contradicted the commit."""


class Loss(Struct, array_like=True, frozen=True):
    """The coordinator lost its state: members may live that it has not heard since."""

    at_ms: int
    """The shard's clock when it went on; `NEVER_MS` while it only learns from the log what was decided before."""
    session_ms: int
    """The longest session that a member may trust, as far as is known."""
    until_ms: int = 0
    """Until then somebody may read who was told meanwhile that it is out."""

    @property
    def ends_ms(self) -> int:
        """When every member must have been heard, or have given up, by the shard's clock."""
        return max(self.at_ms + self.session_ms, self.until_ms) + 1

    def while_read(self, now_ms: int, session_ms: int) -> "Loss":
        """Return this loss prolonged for a reader that was told now that it is out, and that may hear it late.

        It lasts for at most twice its session, whoever claims to read.
        """
        if self.is_learning:
            return self
        until_ms = min(now_ms + session_ms, self.at_ms + 2 * self.session_ms)
        return Loss(self.at_ms, self.session_ms, max(self.until_ms, until_ms))

    @property
    def is_learning(self) -> bool:
        """Whether nothing of what is decided is published: what happened may have been decided otherwise."""
        return self.at_ms >= NEVER_MS


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
    added: dict[Queue, int] = {}
    """Queues that were added to topics it consumes, and have no committed offset yet -> the epoch that added them."""
    left_ms: int = -1
    """The shard's clock when it left; -1 while it is a member."""
    given: dict[str, int] = {}
    """``topic@broker`` -> one above the highest queue_id that it was given: a queue from there on was added since."""
    reset_epochs: dict[Queue, int] = {}
    """Queues whose offset was reset -> the epoch of the last reset; what is of an earlier epoch is too old."""


class Held(Struct, array_like=True):
    """A lock on a queue, by RocketMQ's protocol."""

    client_id: str
    until_ms: int
    """By the shard's clock."""


class Group(Struct, array_like=True, kw_only=True):
    """The state of one group.  Maps keep log order: the oldest member comes first."""

    group_id: str
    epoch: int = 0
    settings: GroupSettings
    members: dict[str, Member] = {}
    """client_id -> member."""
    ended: dict[str, EndedInstance] = {}
    """``client_id instance_id`` -> how it ended; the one that was heard last comes last."""
    target: dict[Queue, str] = {}
    """queue -> the client that should own it."""
    owners: dict[Queue, str] = {}
    """queue -> the client that owns it: the proof that there are never two."""
    freed: dict[Queue, Freed] = {}
    """Queues that had an owner and have none."""
    offsets: dict[Queue, int] = {}
    """queue -> the committed offset: the next message to consume."""
    doubts: dict[Queue, Doubt] = {}
    """Queues whose committed offset no route has confirmed yet."""
    topic_ids: dict[str, str] = {}
    """Topic -> its id, where a route has told it."""
    suspected_ids: dict[str, str] = {}
    """Topic -> another id that one route has told: a second one makes it another topic."""
    gone_topics: dict[str, int] = {}
    """Topic that has no queues any more -> the shard's clock when a route said so."""
    idle_topics: dict[str, int] = {}
    """Topic of which something is kept and that nobody subscribes -> the shard's clock since when."""
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
    reset_epochs: dict[Queue, int] = {}
    """Queues whose offset was reset -> the epoch of the last reset; what is of an earlier epoch is too old."""
    loss: Loss | None = None
    """The coordinator had lost this group, and gives nothing that nobody claims until that is over; None if not."""
    heard_epoch: int = -1
    """The highest epoch that a member has shown: what was told in it, or before, was published."""
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
    bytes: int = 0
    """Of its members and its settings, as far as a client or an operator chooses them."""
    emptied_ms: int = -1
    """The shard's clock when its last member went; -1 while there are members."""
    due_ms: int = NEVER_MS
    """No deadline is earlier than this; it may be too early, never too late."""
    mode_before: Mode = "clustering"
    """How the member consumed that joined last: an empty group is as it was with its members."""
    listed: dict[str, list[Queue]] = {}
    """While only learning: instance_id -> the queues that its last heartbeat lists."""
    reset_at: dict[Queue, int] = {}
    """While only learning: a queue whose offset was reset -> the shard's clock then."""

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing to keep but the epoch: no member, setting or offset, and no instance to remember."""
        return not (
            self.members
            or self.ended
            or self.offsets
            or self.own_offsets
            or self.freed
            or self.emptied_ms >= 0
            or self.settings != GroupSettings()
        )

    @property
    def limit_times(self) -> int:
        """Factor of the limits on members and bytes: 2 after a loss of state, else 1.

        Members from before the loss are let in again although a limit was lowered; the factor bounds misuse.
        """
        return 2 if self.loss is not None else 1

    @property
    def is_learning(self) -> bool:
        """Whether it only learns from a log what a former era decided; see `learning`."""
        return self.loss is not None and self.loss.is_learning

    @property
    def load(self) -> Load:
        """What it has of that which is bounded."""
        return NOTHING if self.is_blank else Load(1, self.bytes)

    @property
    def watched(self) -> list[str]:
        """The topics of which it must hear every route, not only those that change something; sorted."""
        doubtful = {queue.topic for queue in self.doubts}
        return sorted(doubtful.union(self.suspected_ids)) if doubtful or self.suspected_ids else []

    @property
    def mode(self) -> Mode:
        """How it consumes: as its oldest member does."""
        for member in self.members.values():
            return member.mode
        return "clustering"

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member has every queue of its topics, and nobody owns one."""
        return self.mode == "broadcasting"

    @property
    def topics(self) -> list[str]:
        """The topics that its members subscribe, sorted."""
        return sorted({topic for member in self.members.values() for topic in member.subscriptions})

    @property
    def followed_topics(self) -> list[str]:
        """The topics whose routes concern it, sorted: its members subscribe them, or it has offsets of them.

        A topic may be deleted and made again while nobody is in the group.
        """
        return sorted({*self.topics, *self.idle_topics}) if self.idle_topics else self.topics

    def clear(self) -> None:
        """Forget everything but the name and the epoch."""
        fresh = Group(group_id=self.group_id, epoch=self.epoch, settings=GroupSettings())
        for name in self.__struct_fields__:
            setattr(self, name, getattr(fresh, name))

    def recover(self, epoch: int, loss: Loss, now_ms: int) -> Loss:
        """Forget who is in the group and who owns what; both come back by what heartbeats claim.

        Settings, offsets, resets and ended instances stay.

        Args:
            epoch: the first of the era; above every epoch that was ever shown.
            loss: of the shard.
            now_ms: the shard's clock.

        Returns:
            The loss as it is for this group: it lasts for the longest session that its members may trust.
        """
        known = [member.session_ms for member in self.members.values()]
        if self.loss is not None:
            known.append(self.loss.session_ms)
        self.loss = Loss(loss.at_ms, max([loss.session_ms, self.settings.session_timeout_ms, *known]))
        self.epoch = max(self.epoch, epoch)
        self.members, self.target, self.owners, self.freed, self.locks = {}, {}, {}, {}, {}
        self.conflicts, self.oldest, self.pending, self.stale = {}, "", [], False
        self.bytes = self.settings.bytes
        # Nothing was told yet in this epoch: who shows it knows the settings.
        self.configured_epoch, self.heard_epoch, self.retargeted_ms = self.epoch - 1, -1, -1
        for ended in self.ended.values():
            ended.told_ms = 0  # what it was told last may never have been published
        self.listed, self.reset_at = {}, {}
        for own in self.own_offsets.values():
            own.left_ms = now_ms if own.left_ms < 0 else own.left_ms
        if self.emptied_ms < 0:
            self.emptied_ms = now_ms
        self.due_ms = now_ms
        return self.loss

    def remind(self, due_ms: int) -> None:
        """Have a tick look at this group when the shard's clock reaches `due_ms`."""
        self.due_ms = min(self.due_ms, due_ms)

    def session_of(self, member: Member) -> int:
        """Return the longest session that a member may trust, in ms.

        A shorter session counts only once the member has heard of it: it would still trust the longer one.
        """
        return max(member.session_ms, self.settings.session_timeout_ms)

    def session_ends_ms(self, member: Member) -> int:
        """Return when a member's silence is too long, by the shard's clock."""
        return member.seen_ms + self.session_of(member) + 1

    @property
    def is_ordered(self) -> bool:
        """Whether the group consumes each queue in order: as its oldest member does."""
        return any(member.orderly for member in islice(self.members.values(), 1))


class Compared(Struct, frozen=True):
    """The oldest member, as the others are compared with it."""

    member: Member
    wants: dict[str, Subscription]
    topics: list[str]
    """Its topics, sorted."""


class Turn:
    """One event at work on one group: its moment, what it asks for, and the decisions so far."""

    def __init__(
        self,
        group: Group,
        moment: Moment,
        cause: Cause,
        routes: Routes,
        load: Load = NOTHING,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.group = group
        self.load = load
        """What the shard had when this event came, the group included."""
        self.limits = limits
        """What it may have."""
        self.bytes_elsewhere = load.bytes - group.bytes
        """Of the shard's other groups."""
        self.moment = moment
        self.cause = cause
        self.routes = routes
        self.decisions: list[AnyDecision] = []
        self.broadcast_room: int | None = None
        """How many more queues the members of a broadcasting group may have together; None until it is counted."""
        self.compared: Compared | None = None
        """The oldest member, once others were compared with it."""
        self._topics: set[str] | None = None
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

    @property
    def topics(self) -> set[str]:
        """The topics that members subscribe, counted once for all who join in this turn; they add their own."""
        if self._topics is None:
            self._topics = set(self.group.topics)
        return self._topics

    def say(self, decision: AnyDecision) -> None:
        """Decide something."""
        self.decisions.append(decision)

    def note(self, client_id: str, member: Member, change: Change, detail: str = "") -> None:
        """Put on record what has become of a member."""
        self.say(
            Membership(
                group_id=self.group.group_id,
                client_id=client_id,
                instance_id=member.instance_id,
                change=change,
                epoch=self.group.epoch,
                detail=detail[: config.MAX_DETAIL],
            )
        )

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
