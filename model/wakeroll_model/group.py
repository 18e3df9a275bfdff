"""The state of a consumer group: its members, the owner of each queue, committed offsets and settings."""

from collections.abc import Collection
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from wakeroll_model import config
from wakeroll_model.config import NEVER_MS
from wakeroll_model.decisions import Cause, Done, FencedReason, How, Start, Trigger
from wakeroll_model.events import About, Ahead, Filter, FilterType, Heartbeat, LongCall, Mode, Policy, Subscription
from wakeroll_model.queue import Queue
from wakeroll_model.shard_load import NOTHING, Load

CHANGE: tuple[Trigger, ...] = ("join", "leave", "expire", "subscription")
"""Triggers by which the (client, topics) pairs of a group changed."""

IF_DIFFERENT: tuple[Trigger, ...] = ("route", "timer")
"""Triggers that begin a new epoch only if the target differs; every other trigger always does."""


Digest = bytes
"""Digest of a record; see `routine_beats`."""

_encode = msgspec.json.Encoder().encode


class GroupSettings(Struct, array_like=True):
    """The settings that `configure` can change; durations in ms."""

    strategy: str | None = None
    """Name of the strategy; None: that of the oldest member."""
    strategy_params: dict[str, Any] | None = None
    handover: str = "cooperative"
    heartbeat_ms: int = config.HEARTBEAT_MS
    session_timeout_ms: int = config.SESSION_TIMEOUT_MS
    rebalance_interval_ms: int = config.REBALANCE_INTERVAL_MS
    settle_ms: int = config.SETTLE_MS
    revoke_timeout_ms: int = config.REVOKE_TIMEOUT_MS
    max_members: int = config.MAX_MEMBERS
    slices: dict[str, int] = {}
    """Topic -> number of slices of its partitions, if it is above 1."""

    @property
    def bytes(self) -> int:
        """Size of the settings whose size an operator chooses, in bytes of JSON."""
        params = len(_encode(self.strategy_params)) if self.strategy_params else 0
        return params + len(_encode(self.slices)) if self.slices else params


class Revocation(Struct, array_like=True):
    """A queue that its owner must release."""

    epoch: int
    """Epoch of the assignment that revoked the queue; a heartbeat that shows at least this may release it."""
    at_ms: int
    """Log time of the revocation, epoch ms."""
    timeout_ms: int
    """The longest revoke timeout that was set since the revocation: the owner may still rely on it."""
    was_reset: bool = False
    """Whether the queue's offset was reset since the revocation, which makes a commit of the owner too old."""
    shown_ms: int = -1
    """The shard's clock when a heartbeat first showed `epoch`; -1 before. The timeout begins at this time."""

    @property
    def ends_ms(self) -> int:
        """The shard's clock when the queue is freed without a release; `NEVER_MS` until the revocation was shown."""
        return NEVER_MS if self.shown_ms < 0 else self.shown_ms + self.timeout_ms


class Member(Struct, array_like=True, kw_only=True):
    """A client in the group, by the heartbeats of its live instance."""

    instance_id: str
    seen_ms: int
    """The shard's clock at its last heartbeat."""
    subscriptions: dict[str, Subscription]
    """Topic -> the client's subscription to it."""
    shown_epoch: int = -1
    """Epoch of the newest assignment that a heartbeat shows as received; -1 if none."""
    sent_epoch: int = -1
    """Epoch of the newest assignment sent to the member; -1 if none, or none with the current settings."""
    session_ms: int = config.SESSION_TIMEOUT_MS
    """The longest session timeout that the member may still use, until it shows that it received a new one."""
    owned: dict[Queue, int] = {}
    """Queue -> epoch of its assignment, for all queues that the member owns, including those that it must release."""
    revoking: dict[Queue, Revocation] = {}
    """Queues that the member owns and must release."""
    lagging_since_ms: int = -1
    """The shard's clock when the member first failed to show an assignment although others received theirs; -1 if it
    has not failed."""
    lagging_epoch: int = -1
    """Epoch of the assignment that the member had not received at that time; -1 if none."""
    bytes: int = 0
    """Size of the part of its heartbeat that the client chooses, in bytes."""
    rival: "Rival | None" = None
    """Another instance under its client_id that wants to join; None if there is none."""
    waiting: dict[str, int] = {}
    """Instance that wants its client_id -> the shard's clock at the first heartbeat of that instance."""
    reported_ms: int = -1
    """The shard's clock when a duplicate of the member was last reported; -1 never."""
    mode: Mode = "clustering"
    strategy: str = "AVG"
    strategy_params: dict[str, Any] = {}
    consume_from: Policy = "last"
    consume_from_ms: int = 0
    orderly: bool = False
    room: str = ""
    weight: float = 1.0
    reset: dict[Queue, int] = {}
    """Owned queue that was reset -> epoch of the reset."""
    routine_beat: Digest = b""
    """Digest of the heartbeat that `routine_beats` lists for it; empty if there is none."""
    shown_round: int = -1
    """The highest round that one of its heartbeats has shown; -1 if none, as for a client that does not support
    rounds."""
    lagging_round: int = -1
    """The group's round when the member first failed to show its newest assignment, by `rounds`; -1 if it has not
    failed."""
    joined_ms: int = -1
    """Log time at which its instance joined, epoch ms; -1 if it joined before a release that notes it."""
    about: About | None = None
    """The client's description of itself; None if it sent none, and below feature level 4. No decision depends on
    it."""
    handling: list[LongCall] = []
    """Long calls of its application, by its last heartbeat. No decision depends on it."""
    is_inspected: bool = False
    """Whether an operator has requested a report from it that has not arrived yet."""
    pattern: str = ""
    """Regular expression of topics that it subscribes; empty if there is none, and below feature level 4."""
    matched: list[str] = []
    """Topics in `subscriptions` that it has by its pattern only, sorted."""
    slice_by: str | None = None
    """The key by which it cuts partitions into slices, from its heartbeats; None if it does not support slices, and
    below feature level 5."""
    pattern_expression: str = "*"
    """Filter of the topics in `matched`; ``*`` below feature level 5."""
    pattern_expression_type: FilterType = "TAG"
    """Type of that filter."""

    @property
    def first_start(self) -> Start:
        """Where the member starts a queue without a committed offset."""
        return Start(policy=self.consume_from, ms=self.consume_from_ms if self.consume_from == "timestamp" else None)


class Matched(Struct, array_like=True, frozen=True):
    """The topics that match a pattern; see `patterns`."""

    topics: list[str]
    """Names of the topics, sorted."""
    problem: str = ""
    """Why the pattern cannot be evaluated, or which topics are left out; empty if all is well."""


class Rival(Struct, array_like=True):
    """The instance with the latest heartbeat among those that wait for the client_id of a live instance."""

    beat: Heartbeat
    """Latest heartbeat of the waiting instance, by which it joins when the live instance has ended."""
    bytes: int
    """Size of the heartbeat, counted as for a member."""
    seen_ms: int
    """The shard's clock at that heartbeat."""


class EndedInstance(Struct, array_like=True):
    """An instance that has ended; it is fenced again whenever an event of it arrives."""

    reason: FencedReason
    until_ms: int
    """The shard's clock when the instance is forgotten."""
    fenced_ms: int
    """The shard's clock when the instance was last fenced."""
    by: str = ""
    """The instance that has its client_id, if `reason` is ``duplicate``; the operator, if it is ``kicked``; else
    empty."""


class Kicked(Struct, array_like=True, frozen=True):
    """A client that an operator kicked; see `kicks`."""

    instance_id: str
    """The instance that must leave; it has left if it is no member."""
    by: str
    """Name of the operator."""
    reason: str
    """Reason of the request; empty if the operator gave none."""
    until_ms: int
    """Until when other instances of the client may not join, by the shard's clock; 0 if they may join."""


class Paused(Struct, array_like=True, frozen=True):
    """A pause of a group; see `pauses`."""

    by: str
    """Name of the operator."""
    reason: str
    """Reason of the request; empty if the operator gave none."""
    at_ms: int
    """Log time, epoch ms."""


class Doubt(Struct, array_like=True):
    """A committed offset beyond the known end of its queue, until routes confirm or contradict it."""

    offset: int
    """Committed offset before the doubtful one; -1 if none."""
    routes: int = 0
    """Number of consecutive routes that contradict the commit."""
    smallest: int = -1
    """The smallest end offset in those routes; -1 before the first route, and below feature level 3."""


class Loss(Struct, array_like=True, frozen=True):
    """A loss of the coordinator's state: there may be live members that have sent no heartbeat since."""

    at_ms: int
    """The shard's clock when the coordinator started again; `NEVER_MS` while it only learns from the log of a former
    era."""
    session_ms: int
    """The longest session timeout that a member may use, as far as is known, in ms."""
    until_ms: int = 0
    """Until when an instance that was fenced since the loss may still read, by the shard's clock; 0 if none was
    fenced."""

    @property
    def ends_ms(self) -> int:
        """The shard's clock when every member must have sent a heartbeat or have stopped reading."""
        return max(self.at_ms + self.session_ms, self.until_ms) + 1

    def while_read(self, now_ms: int, session_ms: int) -> "Loss":
        """Return this loss, prolonged for an instance that was fenced now, and may read until it receives that.

        The loss lasts at most twice its session, however many instances claim to read.
        """
        if self.is_learning:
            return self
        until_ms = min(now_ms + session_ms, self.at_ms + 2 * self.session_ms)
        return Loss(self.at_ms, self.session_ms, max(self.until_ms, until_ms))

    @property
    def is_learning(self) -> bool:
        """Whether the shard publishes no decisions, because a former era may have decided otherwise."""
        return self.at_ms >= NEVER_MS


class Freed(Struct, array_like=True):
    """A queue that had an owner and has none."""

    client_id: str
    """The last owner."""
    how: How
    at_ms: int
    """Log time when the queue was freed, epoch ms."""
    revoked_ms: int | None = None
    """Log time of the revocation, epoch ms; None if the queue was not revoked."""
    epoch: int = -1
    """Epoch of the group in the hand-over to nobody; -1 if a release recorded it that does not note it here."""


class Received(Struct, array_like=True, frozen=True):
    """The last assignment of a queue to its owner."""

    epoch: int
    """Epoch of the group at that time."""
    at_ms: int
    """Log time, epoch ms."""
    how: How
    """How the queue had become free before."""
    before: str | None = None
    """Previous owner; None if the queue never had one."""


class Rebalanced(Struct, array_like=True, frozen=True):
    """The last rebalance of a group."""

    at_ms: int
    """Log time, epoch ms."""
    trigger: Trigger
    strategy: str
    """The last strategy that assigned queues, in this rebalance or an earlier one; empty if none has."""
    moved: int
    """Number of queues that had an owner and get another one."""


class BroadcastOffsets(Struct, array_like=True):
    """Committed offsets of one client of a broadcasting group."""

    offsets: dict[Queue, int] = {}
    added: dict[Queue, int] = {}
    """Queue without a committed offset that was added to a topic of the client -> the epoch that added it."""
    left_ms: int = -1
    """The shard's clock when the client left; -1 while it is a member."""
    assigned_below: dict[str, int] = {}
    """``topic@broker`` -> one above the highest queue_id that was assigned; a queue from there on was added later."""
    reset_epochs: dict[Queue, int] = {}
    """Queue whose offset was reset -> the lowest epoch of a commit that counts while the client drains the queue;
    `broadcast_offsets.UNTIL_ASSIGNED` if none counts."""
    awaited: list[str] = []
    """Topics of the client that did not exist when it subscribed them, sorted; they start at their first messages.
    Empty below feature level 3."""
    leader_epochs: dict[Queue, int] = {}
    """Queue -> leader epoch that was committed with its offset; empty below feature level 3."""


class QueueLock(Struct, array_like=True):
    """A lock on a queue, by RocketMQ's protocol."""

    client_id: str
    until_ms: int
    """The shard's clock when the lock expires."""


class Group(Struct, array_like=True, kw_only=True):
    """The state of one group. Maps are in log order: the oldest member is the first one."""

    group_id: str
    epoch: int = 0
    settings: GroupSettings
    members: dict[str, Member] = {}
    """client_id -> member."""
    ended: dict[str, EndedInstance] = {}
    """``client_id instance_id`` -> how the instance ended, ordered by when it was last remembered."""
    target: dict[Queue, str] = {}
    """Queue -> the client that should own it."""
    owners: dict[Queue, str] = {}
    """Queue -> the client that owns it. It has one entry per queue, so no queue ever has two owners."""
    freed: dict[Queue, Freed] = {}
    """Queue that had an owner and has none -> how it was freed."""
    offsets: dict[Queue, int] = {}
    """Queue -> committed offset: the offset of the next message to consume."""
    doubts: dict[Queue, Doubt] = {}
    """Queue whose committed offset no route has confirmed yet -> the doubt."""
    topic_ids: dict[str, str] = {}
    """Topic -> its id, if a route named one."""
    suspected_ids: dict[str, str] = {}
    """Topic -> a different id that one route named; a second route with that id proves that the topic was recreated."""
    gone_topics: dict[str, int] = {}
    """Topic without queues, deleted or not created yet -> the shard's clock at the route that showed it."""
    idle_topics: dict[str, int] = {}
    """Topic with stored offsets that no member subscribes -> the shard's clock when that began."""
    consumed: list[str] = []
    """Topics that the group has consumed: a queue added to one starts at its first message, or messages would be
    lost."""
    broadcast_offsets: dict[str, BroadcastOffsets] = {}
    """client_id -> its offsets, in a broadcasting group; they are kept when the client leaves."""
    resets: list[str] = []
    """request_ids of the last resets, kicks, pauses, inspections and deletions of offsets."""
    locks: dict[Queue, QueueLock] = {}
    """Queue -> its lock, by RocketMQ's protocol; only the owner of a queue can have one."""
    conflicts: dict[str, str] = {}
    """client_id -> how its settings conflict with those of the oldest member."""
    oldest: str = ""
    """client_id of the member that the others were last compared with; empty if none."""
    added: dict[Queue, int] = {}
    """Queue that was added to a topic in `consumed` and has no committed offset -> the epoch that added it."""
    reset_epochs: dict[Queue, int] = {}
    """Queue whose offset was reset -> epoch of the last reset; a commit of an earlier epoch is too old."""
    loss: Loss | None = None
    """The loss of state that the group recovers from; None if there is none. Until it ends, queues that no member
    claims stay free."""
    received_epoch: int = -1
    """The highest epoch that a member has shown: assignments of that epoch and before were published. -1 if none."""
    pending: list[tuple[Trigger, Cause]] = []
    """Requests for a new target since the last one: trigger and cause."""
    configured_epoch: int = -1
    """Epoch of the group at the last change of its settings; a member that shows a higher epoch has received them. -1
    if none."""
    retargeted_ms: int = -1
    """The shard's clock at the last new target; -1 never."""
    checked_ms: int = 0
    """The shard's clock when the target was last compared."""
    stale: bool = False
    """Whether an input of the target changed without a trigger in `CHANGE`, so that the timer must compare the
    target."""
    bytes: int = 0
    """Size of the parts of its members and settings that clients and operators choose, in bytes."""
    emptied_ms: int = -1
    """The shard's clock when the group lost its last member; -1 while it has members."""
    due_ms: int = NEVER_MS
    """Lower bound of all deadlines, by the shard's clock: it may be too early, never too late."""
    mode_before: Mode = "clustering"
    """Mode of the member that joined last: an empty group keeps the mode of its members."""
    listed: dict[str, list[Queue]] = {}
    """instance_id -> queues in its last heartbeat; only while the group learns from a log."""
    reset_at: dict[Queue, int] = {}
    """Queue whose offset was reset -> the shard's clock at the reset; only while the group learns from a log."""
    round: int = 0
    """Number of the present round, see `rounds`; it never decreases, and an era uses no number of another one."""
    probed_ms: int = -1
    """The shard's clock when an assignment was last sent only to find out what is published, or when a member last
    failed to show its own; -1 never."""
    leader_epochs: dict[Queue, int] = {}
    """Queue -> leader epoch that was committed with its offset; empty below feature level 3."""
    filters: dict[str, list[Filter]] = {}
    """Topic with different filters of its members -> those filters, each with its type, sorted; as of the last
    comparison of the members. Empty below feature level 3."""
    ahead: dict[Queue, tuple[Ahead, ...]] = {}
    """Queue -> progress beyond its committed offset, by filter; see `offsets_by_filter`."""
    ahead_bytes: int = 0
    """Size of `ahead` in JSON, in bytes."""
    received: dict[Queue, Received] = {}
    """Owned queue -> its last assignment; earlier releases did not note it. No decision depends on this field, on
    `rebalanced`, `Member.joined_ms` or `Freed.epoch`: only commands and pages read them."""
    rebalanced: Rebalanced | None = None
    """The last rebalance; None if there was none, or if it was made by a release that did not note it."""
    kicks: dict[str, Kicked] = {}
    """client_id -> its kick, until it has left and may join again; empty below feature level 4."""
    paused: Paused | None = None
    """The pause of the group; None if its members may deliver messages, and below feature level 4."""
    matches: dict[str, Matched] = {}
    """Pattern that members have, or had lately -> the topics that match it, by the newest event of an observer. Empty
    below feature level 4."""
    sliced: dict[str, list[int]] = {}
    """Topic that is or was cut into slices -> the numbers of slices of which queues may exist, sorted. Empty below
    feature level 5."""
    done: dict[Queue, tuple[Done, ...]] = {}
    """Queue -> progress of former slices beyond its start, as long as it is beyond its committed offset; see
    `slicing`."""

    @property
    def is_blank(self) -> bool:
        """Whether only the epoch must be kept: there is no member, setting, offset or ended instance."""
        return not self.ended and self.is_forgotten

    @property
    def is_forgotten(self) -> bool:
        """Whether the group does not exist for its users: it has no member, setting or offset.

        It may remember ended instances, as after it was deleted.
        """
        return not (
            self.members
            or self.offsets
            or self.broadcast_offsets
            or self.freed
            or self.emptied_ms >= 0
            or self.kicks
            or self.settings != GroupSettings()
        )

    @property
    def limit_times(self) -> int:
        """Factor of the limits on members and bytes: 2 after a loss of state, else 1.

        Members from before the loss may join again even if a limit was lowered; the factor bounds misuse.
        """
        return 2 if self.loss is not None else 1

    @property
    def is_learning(self) -> bool:
        """Whether the group only reads the decisions of a former era from its log; see `learning`."""
        return self.loss is not None and self.loss.is_learning

    @property
    def load(self) -> Load:
        """The part of the shard's bounded resources that the group uses."""
        return NOTHING if self.is_blank else Load(1, self.bytes)

    @property
    def watched(self) -> list[str]:
        """Topics of which the group must receive every route, even one that changes nothing; sorted."""
        doubtful = {queue.topic for queue in self.doubts}
        return sorted(doubtful.union(self.suspected_ids)) if doubtful or self.suspected_ids else []

    @property
    def mode(self) -> Mode:
        """Mode of the group: that of its oldest member."""
        for member in self.members.values():
            return member.mode
        return "clustering"

    @property
    def topics(self) -> list[str]:
        """The topics that its members subscribe, sorted."""
        return sorted({topic for member in self.members.values() for topic in member.subscriptions})

    @property
    def followed_topics(self) -> list[str]:
        """Topics whose routes concern the group, sorted: those that members subscribe and those with stored offsets.

        A topic may be deleted and recreated while the group has no members.
        """
        return sorted({*self.topics, *self.idle_topics}) if self.idle_topics else self.topics

    def is_leaving(self, client_id: str) -> bool:
        """Return whether a client is a member that was kicked, and is therefore not part of a new target."""
        kicked, member = self.kicks.get(client_id), self.members.get(client_id)
        return kicked is not None and member is not None and kicked.instance_id == member.instance_id

    @property
    def staying(self) -> Collection[str]:
        """The members that are part of a new target: all except those that were kicked."""
        if not self.kicks:
            return self.members.keys()
        return [client_id for client_id in self.members if not self.is_leaving(client_id)]

    def clear(self) -> None:
        """Forget everything except the name and the epoch."""
        fresh = Group(group_id=self.group_id, epoch=self.epoch, settings=GroupSettings(), round=self.round)
        for name in self.__struct_fields__:
            setattr(self, name, getattr(fresh, name))

    def recover(self, epoch: int, loss: Loss, now_ms: int) -> Loss:
        """Forget the members and owners; heartbeats with claims restore both.

        Settings, offsets, resets and ended instances are kept.

        Args:
            epoch: the first epoch of the era, and its first round; above every epoch and round that was ever shown.
            loss: the loss of the shard.
            now_ms: the shard's clock.

        Returns:
            The loss as it applies to this group: it lasts for the longest session that a member may use.
        """
        known = [member.session_ms for member in self.members.values()]
        if self.loss is not None:
            known.append(self.loss.session_ms)
        self.loss = Loss(loss.at_ms, max([loss.session_ms, self.settings.session_timeout_ms, *known]))
        self.epoch, self.round = max(self.epoch, epoch), max(self.round, epoch)
        self.members, self.target, self.owners, self.freed, self.locks = {}, {}, {}, {}, {}
        self.received = {}
        self.conflicts, self.oldest, self.pending, self.stale = {}, "", [], False
        self.bytes = self.settings.bytes
        # No assignment was sent in this epoch yet: a member that shows the epoch knows the settings.
        self.configured_epoch, self.received_epoch, self.retargeted_ms = self.epoch - 1, -1, -1
        for ended in self.ended.values():
            ended.fenced_ms = 0  # the last fencing may never have been published
        self.listed, self.reset_at, self.filters = {}, {}, {}
        self.probed_ms = -1
        for own in self.broadcast_offsets.values():
            own.left_ms = now_ms if own.left_ms < 0 else own.left_ms
        if self.emptied_ms < 0:
            self.emptied_ms = now_ms
        self.due_ms = now_ms
        return self.loss

    def note_rebalance(self, at_ms: int, trigger: Trigger, strategy: str, moved: int) -> None:
        """Note a rebalance at a log time (epoch ms); without a strategy, that of the rebalance before is kept."""
        before = self.rebalanced.strategy if self.rebalanced is not None else ""
        self.rebalanced = Rebalanced(at_ms, trigger, strategy or before, moved)

    def request_target(self, trigger: Trigger, cause: Cause) -> None:
        """Request a new target; it is computed at once, or when the settle interval has passed."""
        if len(self.pending) < config.MAX_CAUSES:
            self.pending.append((trigger, cause))
        elif trigger not in IF_DIFFERENT:
            self.pending[-1] = (trigger, cause)

    def remind(self, due_ms: int) -> None:
        """Let a tick process this group when the shard's clock reaches `due_ms`."""
        self.due_ms = min(self.due_ms, due_ms)

    def session_of(self, member: Member) -> int:
        """Return the longest session timeout that a member may use, in ms.

        A shorter timeout counts only after the member has received it: until then the member uses the longer one.
        """
        return max(member.session_ms, self.settings.session_timeout_ms)

    def session_ends_ms(self, member: Member) -> int:
        """Return the shard's clock at which a member's session ends unless a heartbeat arrives."""
        return member.seen_ms + self.session_of(member) + 1

    @property
    def is_ordered(self) -> bool:
        """Whether the group consumes each queue in order, as its oldest member does."""
        return any(member.orderly for member in islice(self.members.values(), 1))
