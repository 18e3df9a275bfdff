"""The client's side of the protocol: what to say to the coordinator, what to obey, and what may be handed out.

The SDK puts threads and Kafka around it, a simulation a seed; both run this code.  Time is the caller's: `now_ms` is
a monotonic clock of its own, in milliseconds, that also counts while the machine is suspended.
"""

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct, structs

from model import config
from model.client_actions import Dropped, DropReason, EventRefused, Give, Output, Send, Take
from model.client_queues import Holding
from model.decision_order import order_of
from model.decisions import AnyDecision, AssignedQueue, Assignment, Fenced, Rejected
from model.events import Commit, Heartbeat, Mode, Policy, Subscription, Unregister
from model.queue import Queue

NEVER_MS = 2**62
"""A due time that does not come."""


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
        self._life = ""
        """Of the present life, or the one before it while out; empty before the first."""
        self._secret = ""
        self._leaving = False
        self._was_deaf = False
        """It could not hear for a session, and held nothing."""
        self._holding = Holding()
        self._shard = ""
        """Shard and era of the last assignment: in another era, what was committed may be forgotten."""
        self._sent_ms = 0
        self._commit_due_ms = 0
        self._acknowledged_ms = 0
        self._stated_ms = 0
        """When this session timeout was heard of: no heartbeat before that states it."""
        self._session_before_ms = config.SESSION_TIMEOUT_MS
        """What the acknowledged heartbeat states, if it was sent before that."""
        self._seen: dict[str, tuple[int, int]] = {}
        """Shard, without its era -> era and seq of its last decision."""
        self._refused: set[str] = set()

    # --- a life ---

    def join(self, instance_id: str, now_ms: int, secret: str = "") -> list[Output]:
        """Begin a life, the first or the next one.

        A former life is ended first, for the coordinator may not know that it is over.

        Args:
            instance_id: never used before; a uuid, or what `provable_id` makes of a secret.
            now_ms: from here on silence is counted: nothing can be given before Kafka has this first heartbeat.
            secret: of which the instance_id is made, else empty; without it nobody else can unregister this life.
        """
        assert not self.instance_id, f"{self.client_id} is in the group already, as {self.instance_id}"
        former = [Send(self._unregister(), now_ms)] if self._life else []
        self.instance_id = self._life = instance_id
        self._secret = secret
        self.epoch = -1
        self.heartbeat_ms = config.HEARTBEAT_MS
        self.session_timeout_ms = self._session_before_ms = config.SESSION_TIMEOUT_MS
        self._leaving = self._was_deaf = False
        self._acknowledged_ms = self._stated_ms = now_ms
        return [*former, self._heartbeat(now_ms)]

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
            commits = self._commit(now_ms, starts_only=not self._commits_itself)
        self._leaving = True
        self._holding.clear()
        return [*commits, Send(self._unregister(), now_ms)]

    # --- what comes in ---

    def hear(self, decision: AnyDecision, now_ms: int) -> list[Output]:
        """Take a decision from the inbox; one that is repeated, outdated or meant for another is silent.

        The sink is at least once.  A client reads one partition of the inbox, so the order of a shard, (era, seq), is
        enough to tell.  A coordinator of an older era that still publishes is not obeyed.
        """
        shard, place = decision.shard.rpartition(".")[0], order_of(decision.shard, decision.seq)
        if place <= self._seen.get(shard, (0, 0)):
            return []
        self._seen[shard] = place
        silent = self._if_silent(now_ms)
        if silent:
            return silent
        match decision:
            case Assignment() if self._is_mine(decision) and self._is_in and decision.epoch >= self.epoch:
                return self._drop("deaf") if self._was_deaf else self._obey(decision, now_ms)
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
            self._holding.start(give, offset)
        return self._commit(now_ms, starts_only=True)

    def done(self, give: Give, offset: int) -> bool:
        """The application is done with all messages of this giving below `offset`.

        Returns:
            Whether that counts: the queue is held, or drained, by that giving still.
        """
        return self._holding.finish(give, offset)

    def commit(self, now_ms: int) -> list[Output]:
        """Commit what is done and not on record; nothing is sent if there is nothing new."""
        return self._if_silent(now_ms) or self._commit(now_ms)

    def released(self, queues: Iterable[Queue], now_ms: int) -> list[Output]:
        """The application is done with these draining queues: commit, report it, then have what is given anew.

        Queues that are not draining are ignored.
        """
        silent = self._if_silent(now_ms)
        draining = set(self._holding.draining())
        drained = [queue for queue in queues if queue in draining]
        if silent or not drained:
            return silent
        commits = self._commit(now_ms, drained, starts_only=not self._commits_itself)
        again = self._holding.release(drained)
        return [*commits, self._heartbeat(now_ms), *self._give(again)]

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
        if commit.instance_id == self.instance_id:
            self._holding.acknowledge(commit.offsets, commit.epoch)

    def on_time(self, now_ms: int) -> list[Output]:
        """Do what is due: give up after too long a silence, commit, send a heartbeat."""
        silent = self._if_silent(now_ms)
        if silent or not self._is_in:
            return silent
        outputs: list[Output] = []
        if now_ms >= self._commit_due_ms:
            outputs += self._commit(now_ms, starts_only=not self._commits_itself)
        if now_ms >= self._sent_ms + self.heartbeat_ms:
            outputs.append(self._heartbeat(now_ms))
        return outputs

    def give_up(self) -> list[Output]:
        """Drop everything: the inbox cannot be read, so a queue that must be given up would be kept.

        A life that holds nothing ends when it hears again: another one would be as deaf until then, and what this one
        hears late may give it queues that are somebody else's by now.
        """
        if self._is_in and self._holding.queues():
            return self._drop("deaf")
        self._was_deaf = self._is_in
        return []

    # --- questions ---

    def next_due_ms(self) -> int:
        """Return when `on_time` has something to do next, unless something is heard or done before."""
        if not self._is_in:
            return NEVER_MS
        due = [self._sent_ms + self.heartbeat_ms, self._patient_until_ms + 1]
        if self._holding.news(starts_only=not self._commits_itself):
            due.append(self._commit_due_ms)
        return min(due)

    def may_hand_out(self, give: Give, now_ms: int) -> bool:
        """Say whether a message of this giving may still go to the application; asked before each one.

        After a False the giving is over, or ends with the next `on_time`: a message withheld is not missed.
        """
        return self._holding.is_readable(give) and not self._is_silent(now_ms)

    def readable(self) -> dict[Queue, Give]:
        """Return what may be read."""
        return self._holding.readable()

    def is_committed(self) -> bool:
        """Say whether Kafka has all that is done."""
        return not self._holding.news()

    def draining(self) -> list[Queue]:
        """Return what was taken and is not yet reported as released."""
        return self._holding.draining()

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
        if assignment.session_timeout_ms != self.session_timeout_ms:
            known = [self.session_timeout_ms]
            if self._acknowledged_ms < self._stated_ms:
                known.append(self._session_before_ms)
            self._session_before_ms, self._stated_ms = min(known), now_ms
            self.session_timeout_ms = assignment.session_timeout_ms
        changed = assignment.epoch > self.epoch
        self.epoch = assignment.epoch
        if assignment.shard != self._shard:
            self._shard = assignment.shard
            self._holding.forget_acknowledged()
        revoke = set(assignment.revoke)
        held = set(self._holding.queues())
        # Given in epoch 0 is what a heartbeat of this life claimed after a loss of state: if it is not held any more,
        # that heartbeat came late, and the queue may be somebody else's since.
        claims = assignment.mode == "clustering"
        aligned = self._holding.align(
            assigned
            for assigned in assignment.queues
            if assigned.queue not in revoke and (assigned.given or not claims or assigned.queue in held)
        )
        outputs: list[Output] = [Take(aligned.taken)] if aligned.taken else []
        outputs += self._give(aligned.missing)
        if changed or aligned.changed:
            outputs.append(self._heartbeat(now_ms))
        return outputs

    def _give(self, queues: Iterable[AssignedQueue]) -> list[Give]:
        return [self._holding.give(assigned, self.instance_id) for assigned in queues]

    def _note(self, refusal: Rejected) -> list[Output]:
        """Tell a refusal once a rule; a commit that was too early for a coordinator that starts anew is repeated."""
        if refusal.rule == "commit":
            # What drains is another's soon, or already.
            self._holding.forget_acknowledged(readable_only=True)
        if refusal.rule in self._refused:
            return []
        self._refused.add(refusal.rule)
        return [EventRefused(refusal.rule, refusal.detail)]

    def _unregister(self) -> Unregister:
        return Unregister(group_id=self.group_id, client_id=self.client_id, instance_id=self._life, secret=self._secret)

    def _commit(self, now_ms: int, queues: Iterable[Queue] | None = None, *, starts_only: bool = False) -> list[Output]:
        """Put on record what is new of these queues, or of all."""
        news = self._holding.news(queues, starts_only=starts_only)
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

    def _heartbeat(self, now_ms: int) -> Send:
        self._sent_ms = now_ms
        beat = Heartbeat(
            group_id=self.group_id,
            client_id=self.client_id,
            instance_id=self.instance_id,
            epoch=self.epoch,
            session_timeout_ms=self.session_timeout_ms,
            owned=self._holding.queues(),
            **structs.asdict(self._wishes),
        )
        return Send(beat, now_ms)

    @property
    def _patient_until_ms(self) -> int:
        """How long the client acts: less long than its session at the coordinator lasts.

        A longer session counts at once.  A shorter one counts from when it may have been stated; before that the
        coordinator counts the longer one, from the last heartbeat that it has.
        """
        until_ms = self._acknowledged_ms + self.session_timeout_ms
        if self._acknowledged_ms < self._stated_ms and self.session_timeout_ms < self._session_before_ms:
            until_ms = self._stated_ms + self.session_timeout_ms
            until_ms = min(until_ms, self._acknowledged_ms + self._session_before_ms)
        return until_ms - min(config.CLIENT_MARGIN_MS, self.session_timeout_ms // 2)

    def _is_silent(self, now_ms: int) -> bool:
        return now_ms > self._patient_until_ms

    def _if_silent(self, now_ms: int) -> list[Output]:
        """Give up when the coordinator may have given up: before anything else that happens at this moment."""
        return self._drop("silent") if self._is_in and self._is_silent(now_ms) else []

    def _drop(self, reason: DropReason, by: str = "") -> list[Output]:
        self.instance_id = ""
        return [Dropped(self._holding.clear(), reason, by)]
