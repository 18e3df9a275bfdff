"""A turn: one event applied to one group, with its context, its decisions, and the outcome of its handler."""

from collections.abc import Collection, Mapping

from msgspec import UNSET, Struct

from wakeroll_model import assignment_limits, config, feature_levels
from wakeroll_model.assignment_limits import BroadcastRoom
from wakeroll_model.config import DEFAULT_LIMITS, Limits
from wakeroll_model.decisions import AnyDecision, Cause, Change, Membership, Offset, Rejected, Trigger
from wakeroll_model.events import Heartbeat, Mode, Subscription
from wakeroll_model.group import Group, Member
from wakeroll_model.known_routes import Routes
from wakeroll_model.queue import Queue
from wakeroll_model.shard_clock import Moment
from wakeroll_model.shard_load import NOTHING as NO_LOAD
from wakeroll_model.shard_load import Load

DESCRIBES: tuple[Change, ...] = ("joined", "described")
"""Changes of a member whose decision has the member's description."""
NOBODY: frozenset[str] = frozenset()
"""The empty set of clients."""


class Outcome(Struct, frozen=True, kw_only=True):
    """The outcome of a handler: the work for the later stages of `group_machine.step`."""

    triggers: tuple[Trigger, ...] = ()
    """Reasons for a new target, in order."""
    freed: tuple[Queue, ...] = ()
    """Queues that lost their owner, in order; they may be assigned at once."""
    send: frozenset[str] = NOBODY
    """Clients that must be sent their assignment."""
    claims: Mapping[str, tuple[Queue, ...]] = {}
    """Client of the heartbeat -> the queues that it lists and does not own; an assignment sent to it revokes them."""


NOTHING = Outcome()
"""The outcome of most events, such as a heartbeat that changes nothing: no work for later stages."""


def sending(clients: Collection[str]) -> Outcome:
    """Return the outcome that these clients must be sent their assignment."""
    return Outcome(send=frozenset(clients)) if clients else NOTHING


def combined(*outcomes: Outcome) -> Outcome:
    """Return several outcomes as one, in order."""
    some = [outcome for outcome in outcomes if outcome is not NOTHING]
    if not some:
        return NOTHING
    if len(some) == 1:
        return some[0]
    triggers: list[Trigger] = []
    freed: list[Queue] = []
    send: set[str] = set()
    claims: dict[str, tuple[Queue, ...]] = {}
    for outcome in some:
        triggers += outcome.triggers
        freed += outcome.freed
        send |= outcome.send
        claims |= outcome.claims
    return Outcome(triggers=tuple(triggers), freed=tuple(freed), send=frozenset(send), claims=claims)


class SortedTopics:
    """A cache of the sorted topics of one member, with which many other members are compared."""

    def __init__(self) -> None:
        self._subscriptions: Mapping[str, Subscription] | None = None
        self._topics: list[str] = []

    def of(self, subscriptions: Mapping[str, Subscription]) -> list[str]:
        """Return the topics of these subscriptions, sorted."""
        if self._subscriptions is not subscriptions:
            self._subscriptions, self._topics = subscriptions, sorted(subscriptions)
        return self._topics


class Turn:
    """One event applied to one group: the context of its handler, and the decisions so far.

    Many members may join, leave or be compared in one turn. A collection that they share is computed once, when it is
    first needed.
    """

    _subscribed: set[str] | None = None
    _broadcast_room: BroadcastRoom | None = None
    _oldest_topics: SortedTopics | None = None

    def __init__(
        self,
        group: Group,
        moment: Moment,
        cause: Cause,
        routes: Routes,
        load: Load = NO_LOAD,
        limits: Limits = DEFAULT_LIMITS,
        level: int = feature_levels.FIRST,
    ) -> None:
        self.group = group
        self.moment = moment
        self.cause = cause
        self.routes = routes
        self.load = load
        """Load of the shard before this event, with this group."""
        self.limits = limits
        """Limits of the deployment."""
        self.level = level
        """Feature level of the shard."""
        self.bytes_elsewhere = load.bytes - group.bytes
        """Bytes of the shard's other groups."""
        self.decisions: list[AnyDecision] = []
        self.unrecorded: set[Queue] = set()
        """Queues without an owner that lost it in this turn, without a decision about it yet."""

    @property
    def forget_ms(self) -> int:
        """How long unused offsets are kept, ms."""
        return self.limits.forget_after_ms if self.level >= 3 else config.FORGET_MS

    @property
    def subscribed(self) -> set[str]:
        """Topics that members subscribe; a member that joins in this turn adds its topics."""
        if self._subscribed is None:
            self._subscribed = set(self.group.topics)
        return self._subscribed

    @property
    def broadcast_room(self) -> BroadcastRoom:
        """How many more queues the members of a broadcasting group may have together."""
        if self._broadcast_room is None:
            self._broadcast_room = BroadcastRoom(self.group, self.limits)
        return self._broadcast_room

    @property
    def oldest_topics(self) -> SortedTopics:
        """The topics of the oldest member, for comparisons with it."""
        if self._oldest_topics is None:
            self._oldest_topics = SortedTopics()
        return self._oldest_topics

    def emit(self, decision: AnyDecision) -> None:
        """Emit a decision."""
        self.decisions.append(decision)

    def reject(self, beat: Heartbeat, rule: str, detail: str) -> None:
        """Reject a heartbeat."""
        self.emit(Rejected(rule=rule, detail=detail, group_id=beat.group_id, client_id=beat.client_id))

    def note(
        self,
        client_id: str,
        member: Member,
        change: Change,
        detail: str = "",
        most: int = config.MAX_DETAIL,
        pattern: str = "",
    ) -> None:
        """Record a change of a member as a `membership` decision; its detail is cut to `most` characters.

        `pattern`: the pattern that it subscribes from now on, if the change is about its topics.
        """
        self.emit(
            Membership(
                group_id=self.group.group_id,
                client_id=client_id,
                instance_id=member.instance_id,
                change=change,
                epoch=self.group.epoch,
                detail=detail[:most],
                about=UNSET if member.about is None or change not in DESCRIBES else member.about,
                pattern=pattern or UNSET,
            )
        )

    def accepts(self, request_id: str, rule: str, wrong: str) -> bool:
        """Return whether an operator's request must be carried out, and remember it if so.

        A repeated request is ignored. If something is `wrong` with it, it is rejected by a rule.
        """
        group = self.group
        if request_id in group.resets:
            return False
        if wrong:
            # Without a client_id: the rejection is for the operator, and would go to the inbox of the client.
            self.emit(Rejected(rule=rule, detail=assignment_limits.shortened(wrong), group_id=group.group_id))
            return False
        group.resets = [*group.resets, request_id][-config.LAST_RESETS :]
        return True

    def emit_reset(
        self,
        queue: Queue,
        offset: int,
        client_id: str,
        mode: Mode,
        why: str,
        by: str,
        leader_epoch: int | None = None,
        *,
        is_deleted: bool = False,
    ) -> None:
        """Emit an offset that `by` reset or deleted: that of the group (`client_id`: the owner), or of one client.

        `client_id` is empty if the queue has no owner.
        """
        self.emit(
            Offset(
                group_id=self.group.group_id,
                queue=queue,
                client_id=client_id,
                offset=offset,
                epoch=self.group.epoch,
                metadata=why,
                reset_by=by,
                mode=mode,
                leader_epoch=UNSET if leader_epoch is None else leader_epoch,
                deleted=True if is_deleted else UNSET,
            )
        )
