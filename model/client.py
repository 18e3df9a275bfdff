"""The client's side of the protocol: what to say to the coordinator, what to obey, and what may be handed out.

The SDK puts threads and Kafka around it, a simulation a seed; both run this code.  Time is the caller's: `now_ms` is
a monotonic clock of its own, in milliseconds, that also counts while the machine is suspended.
"""

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct, structs

from model import config
from model.decisions import AnyDecision, AssignedQueue, Assignment, Fenced, FencedReason, Rejected, Start
from model.events import Commit, CommittedOffset, Heartbeat, Mode, Policy, Subscription, Unregister
from model.queue import Queue

NEVER_MS = 2**62
"""A due time that does not come."""

DropReason = FencedReason | Literal["silent"]
"""Why a life ended; ``silent``: Kafka acknowledged no heartbeat for longer than the session timeout."""


class Wishes(Struct, frozen=True, kw_only=True):
    """What a client wants of its group; the fields are those of `Heartbeat`."""

    subscriptions: list[Subscription]
    strategy: str = "AVG"
    strategy_params: dict[str, Any] = {}
    consume_from: Policy = "last"
    consume_from_ms: int = 0
    orderly: bool = False
    room: str = ""
    weight: float = 1.0
    mode: Mode = "clustering"
    consume_type: Literal["push", "pull"] = "push"


class Send(Struct, frozen=True):
    """Append this to the groups topic; calls of `Client` must reach Kafka in the order in which they were made."""

    event: Heartbeat | Unregister | Commit
    sent_ms: int
    """The caller's time: what `Client.acknowledged` wants back for a heartbeat; for a commit, call `committed`."""


class Give(Struct, frozen=True):
    """A queue may be read, from `start` on, until it is taken or everything is dropped.

    Say with `Client.started` which offset that is.
    """

    queue: Queue
    start: Start
    given: int
    """Epoch it was given in."""
    instance_id: str
    """The life it was given to: with `given`, it tells one giving of a queue from another."""


class Take(Struct, frozen=True):
    """Hand out nothing more of these queues; when what was handed out is `done`, call `Client.released`."""

    queues: tuple[Queue, ...]


class Dropped(Struct, frozen=True):
    """This life is over, and everything it held is somebody else's: nothing to drain, nothing to report."""

    queues: tuple[Queue, ...]
    reason: DropReason
    by: str = ""
    """The instance that replaced it; else empty."""

    @property
    def comes_back(self) -> bool:
        """Whether to call `Client.join` with a new instance_id; otherwise this is for the application to know."""
        return self.reason in ("expired", "silent")


class Refused(Struct, frozen=True):
    """The coordinator refused an event of this client; said once a rule."""

    rule: str
    detail: str


Output = Send | Give | Take | Dropped | Refused


class _Held(Struct):
    """A queue that this client has and must account for."""

    give: Give
    given: int
    """The newest epoch that it is known to be given in."""
    acknowledged: int | None
    """The offset that is on record; None: none that this client knows of."""
    draining: bool = False
    anew: AssignedQueue | None = None
    """How it is given again once it is drained."""
    outdated: bool = False
    """It was given anew, though that may have been taken back: how far this giving came counts no more."""
    least: int | None = None
    """What must be on record in any case: where it was started, or what was committed since; None: not started yet."""
    done: int | None = None
    """The application is done with all messages below."""


class Client:
    """A member of a group, one life (`join` to `Dropped` or `leave`) after another.

    It is out until `join`.  Every call returns what to do, in order.  Not safe to use from two threads at once.
    """

    def __init__(
        self,
        group_id: str,
        client_id: str,
        wishes: Wishes,
        commit_interval_ms: int | None = config.COMMIT_INTERVAL_MS,
    ) -> None:
        """Be nobody yet.

        Args:
            group_id: the group.
            client_id: the name in it, the same in every life.
            wishes: what to want of it.
            commit_interval_ms: how often what is done is committed, besides at the end of each queue; None: only by
                `commit`.  First offsets are put on record all the same.
        """
        self.group_id = group_id
        self.client_id = client_id
        self.instance_id = ""
        """Of the present life; empty while out."""
        self.epoch = -1
        """Of the newest assignment received in this life; -1 before."""
        self.heartbeat_ms = config.HEARTBEAT_MS
        self.session_timeout_ms = config.SESSION_TIMEOUT_MS
        self._wishes = wishes
        self._commits_itself = commit_interval_ms is not None
        self._commit_interval_ms = commit_interval_ms or config.COMMIT_INTERVAL_MS
        self._leaving = False
        self._held: dict[Queue, _Held] = {}
        self._shard = ""
        """Shard and era of the last assignment: in another era, what was committed may be forgotten."""
        self._sent_ms = 0
        self._commit_due_ms = 0
        self._acknowledged_ms = 0
        self._seen: dict[str, int] = {}
        self._refused: set[str] = set()

    # --- a life ---

    def join(self, instance_id: str, now_ms: int) -> list[Output]:
        """Begin a life, the first or the next one.

        Args:
            instance_id: never used before; a uuid.
            now_ms: from here on silence is counted: nothing can be given before Kafka has this first heartbeat.
        """
        assert not self.instance_id, f"{self.client_id} is in the group already, as {self.instance_id}"
        self.instance_id = instance_id
        self.epoch = -1
        self._leaving = False
        self._acknowledged_ms = now_ms
        return [self._heartbeat(now_ms)]

    def wish(self, wishes: Wishes, now_ms: int) -> list[Output]:
        """Want something else, and say so at once; a changed subscription carries a higher version."""
        self._wishes = wishes
        return self._if_silent(now_ms) or ([self._heartbeat(now_ms)] if self._is_in else [])

    def leave(self, now_ms: int) -> list[Output]:
        """Leave in good order, with a final commit of what is `done`: nothing else that was handed out counts."""
        if not self._is_in:
            return []
        commits: list[Output] = []
        if not self._is_silent(now_ms):
            commits = self._commit(self._held, now_ms, starts_only=not self._commits_itself)
        self._leaving = True
        self._held.clear()
        event = Unregister(group_id=self.group_id, client_id=self.client_id, instance_id=self.instance_id)
        return [*commits, Send(event, now_ms)]

    # --- what comes in ---

    def hear(self, decision: AnyDecision, now_ms: int) -> list[Output]:
        """Take a decision from the inbox; one that is repeated, outdated or meant for another is silent.

        The sink is at least once.  A client reads one partition of the inbox, so a seq a shard is enough to tell.
        """
        if decision.seq <= self._seen.get(decision.shard, 0):
            return []
        self._seen[decision.shard] = decision.seq
        silent = self._if_silent(now_ms)
        if silent:
            return silent
        match decision:
            case Assignment() if self._is_mine(decision) and self._is_in and decision.epoch >= self.epoch:
                return self._obey(decision, now_ms)
            case Fenced() if self._is_mine(decision):
                return self._drop("left" if self._leaving else decision.reason, decision.by)
            case Rejected() if self._is_about_me(decision):
                return self._note(decision)
            case _:
                return []

    def started(self, starts: Iterable[tuple[Give, int]], now_ms: int) -> list[Output]:
        """These givings are read from these offsets on: put those on record that are not.

        A policy asked again later, by the next owner or after a crash, would have another answer, and ``last`` would
        skip what came between.
        """
        silent = self._if_silent(now_ms)
        if silent:
            return silent
        for give, offset in starts:
            held = self._held.get(give.queue)
            if held is not None and held.give == give:
                held.least = held.done = offset
        return self._commit(self._held, now_ms, starts_only=True)

    def done(self, give: Give, offset: int) -> bool:
        """The application is done with all messages of this giving below `offset`.

        Returns:
            Whether that counts: the queue is held, or drained, by that giving still.
        """
        held = self._held.get(give.queue)
        if held is None or not (held.give is give or held.give == give):
            return False
        held.done = offset
        return True

    def commit(self, now_ms: int) -> list[Output]:
        """Commit what is done and not on record; nothing is sent if there is nothing new."""
        return self._if_silent(now_ms) or self._commit(self._held, now_ms)

    def released(self, queues: Iterable[Queue], now_ms: int) -> list[Output]:
        """The application is done with these draining queues: commit, report it, then have what is given anew.

        Queues that are not draining are ignored.
        """
        silent = self._if_silent(now_ms)
        drained = [queue for queue in queues if queue in self._held and self._held[queue].draining]
        if silent or not drained:
            return silent
        commits = self._commit(drained, now_ms, starts_only=not self._commits_itself)
        again = [held.anew for queue in drained if (held := self._held.pop(queue)).anew]
        return [*commits, self._heartbeat(now_ms), *(self._give(assigned) for assigned in again)]

    def acknowledged(self, sent_ms: int, now_ms: int) -> list[Output]:
        """Kafka has the heartbeat that was sent at `sent_ms`.

        An acknowledgement that comes too late is none: the heartbeat may have reached the log too late as well.
        """
        silent = self._if_silent(now_ms)
        if not silent:
            self._acknowledged_ms = max(self._acknowledged_ms, sent_ms)
        return silent

    def committed(self, commit: Commit) -> None:
        """Kafka has this commit: what it says need not be said again.  Of one that is lost, the next one says more."""
        if commit.instance_id != self.instance_id:
            return
        for entry in commit.offsets:
            held = self._held.get(entry.queue)
            if held is not None and commit.epoch >= held.given:
                held.least = held.acknowledged = max(held.acknowledged or 0, entry.offset)

    def on_time(self, now_ms: int) -> list[Output]:
        """Do what is due: give up after too long a silence, commit, send a heartbeat."""
        silent = self._if_silent(now_ms)
        if silent or not self._is_in:
            return silent
        outputs: list[Output] = []
        if now_ms >= self._commit_due_ms:
            outputs += self._commit(self._held, now_ms, starts_only=not self._commits_itself)
        if now_ms >= self._sent_ms + self.heartbeat_ms:
            outputs.append(self._heartbeat(now_ms))
        return outputs

    # --- questions ---

    def next_due_ms(self) -> int:
        """Return when `on_time` has something to do next, unless something is heard or done before."""
        if not self._is_in:
            return NEVER_MS
        due = [self._sent_ms + self.heartbeat_ms, self._acknowledged_ms + self.session_timeout_ms + 1]
        if self._news(self._held, starts_only=not self._commits_itself):
            due.append(self._commit_due_ms)
        return min(due)

    def may_hand_out(self, give: Give, now_ms: int) -> bool:
        """Say whether a message of this giving may still go to the application; asked before each one.

        After a False the giving is over, or ends with the next `on_time`: a message withheld is not missed.
        """
        held = self._held.get(give.queue)
        if held is None or held.draining or self._is_silent(now_ms):
            return False
        return held.give is give or held.give == give

    def readable(self) -> dict[Queue, Give]:
        """Return what may be read."""
        return {queue: held.give for queue, held in self._held.items() if not held.draining}

    def is_committed(self) -> bool:
        """Say whether Kafka has all that is done."""
        return not self._news(self._held)

    def draining(self) -> list[Queue]:
        """Return what was taken and is not yet reported as released."""
        return [queue for queue, held in self._held.items() if held.draining]

    # --- inside ---

    @property
    def _is_in(self) -> bool:
        return bool(self.instance_id) and not self._leaving

    def _is_mine(self, decision: Assignment | Fenced) -> bool:
        """Whether a decision is about this life; a client_id may be used in other groups too."""
        return (decision.group_id, decision.client_id, decision.instance_id) == (
            self.group_id,
            self.client_id,
            self.instance_id,
        )

    def _is_about_me(self, refusal: Rejected) -> bool:
        """Whether a refusal is of an event of this client; a record may be too broken to name its group."""
        return refusal.client_id == self.client_id and refusal.group_id in (None, self.group_id)

    def _obey(self, assignment: Assignment, now_ms: int) -> list[Output]:
        """Hold what is listed and nothing else; answer only what changes something.

        A coordinator repeats itself while a heartbeat shows other queues than it knows, as during a drain: were
        repetitions answered, the two would talk at network speed.
        """
        self.heartbeat_ms = assignment.heartbeat_ms
        self.session_timeout_ms = assignment.session_timeout_ms
        changed = assignment.epoch > self.epoch
        self.epoch = assignment.epoch
        if assignment.shard != self._shard:
            self._shard = assignment.shard
            self._commit_again(self._held.values())
        revoke = set(assignment.revoke)
        listed = {assigned.queue: assigned for assigned in assignment.queues if assigned.queue not in revoke}
        taken = []
        for queue, held in self._held.items():
            assigned = listed.pop(queue, None)
            if assigned is not None and assigned.start.offset is None and held.least is not None:
                # First offsets are put on record: a coordinator that knows none has lost it, and given nothing anew.
                held.given = max(held.given, assigned.given)
            anew = assigned if assigned and assigned.given > held.given else None
            held.outdated |= anew is not None
            if held.draining:  # goes to its end: what came between is not known to the application
                changed |= held.anew != anew
                held.anew = anew
            elif assigned is None or anew:
                held.draining, held.anew = True, anew
                taken.append(queue)
        outputs: list[Output] = [Take(tuple(taken))] if taken else []
        outputs += [self._give(assigned) for assigned in listed.values()]
        if changed or outputs:
            outputs.append(self._heartbeat(now_ms))
        return outputs

    def _give(self, assigned: AssignedQueue) -> Give:
        give = Give(assigned.queue, assigned.start, assigned.given, self.instance_id)
        self._held[assigned.queue] = _Held(give, assigned.given, assigned.start.offset)
        return give

    def _note(self, refusal: Rejected) -> list[Output]:
        """Tell a refusal once a rule; a commit that was too early for a coordinator that starts anew is repeated."""
        if refusal.rule == "commit":
            # What drains is another's soon, or already.
            self._commit_again(held for held in self._held.values() if not held.draining)
        if refusal.rule in self._refused:
            return []
        self._refused.add(refusal.rule)
        return [Refused(refusal.rule, refusal.detail)]

    def _commit_again(self, helds: Iterable[_Held]) -> None:
        """Count on nothing being on record."""
        for held in helds:
            held.acknowledged = None

    def _commit(self, queues: Iterable[Queue], now_ms: int, *, starts_only: bool = False) -> list[Output]:
        """Put on record what is new of these queues."""
        news = self._news(queues, starts_only=starts_only)
        if not news or not self._is_in:
            return []
        self._commit_due_ms = now_ms + self._commit_interval_ms
        event = Commit(
            group_id=self.group_id,
            client_id=self.client_id,
            instance_id=self.instance_id,
            epoch=self.epoch,
            offsets=news,
        )
        return [Send(event, now_ms)]

    def _news(self, queues: Iterable[Queue], *, starts_only: bool = False) -> list[CommittedOffset]:
        """Return what could be committed of these queues, sorted.

        Nothing of a queue that was given anew: its new start counts, not how far the old giving came.
        """
        news = []
        for queue in queues:
            held = self._held[queue]
            offset = held.least if starts_only else held.done
            if offset is None or held.outdated:
                continue
            if held.acknowledged is None or (not starts_only and offset > held.acknowledged):
                news.append(CommittedOffset(queue=queue, offset=offset))
        return sorted(news, key=lambda entry: entry.queue)

    def _heartbeat(self, now_ms: int) -> Send:
        self._sent_ms = now_ms
        beat = Heartbeat(
            group_id=self.group_id,
            client_id=self.client_id,
            instance_id=self.instance_id,
            epoch=self.epoch,
            owned=sorted(self._held),
            **structs.asdict(self._wishes),
        )
        return Send(beat, now_ms)

    def _is_silent(self, now_ms: int) -> bool:
        return now_ms - self._acknowledged_ms > self.session_timeout_ms

    def _if_silent(self, now_ms: int) -> list[Output]:
        """Give up when the coordinator may have given up: before anything else that happens at this moment."""
        return self._drop("silent") if self._is_in and self._is_silent(now_ms) else []

    def _drop(self, reason: DropReason, by: str = "") -> list[Output]:
        dropped = Dropped(tuple(self._held), reason, by)
        self._held.clear()
        self.instance_id = ""
        return [dropped]
