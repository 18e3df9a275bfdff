"""The client's side of the protocol: events to send, decisions to follow, and messages to deliver.

The SDK runs it with threads and Kafka; the simulation runs it from a seed. The caller provides the time: `now_ms` is a
monotonic clock of the client, in milliseconds, that also runs while the machine is suspended.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, structs

from wakeroll_model import config
from wakeroll_model.client_actions import (
    Dropped,
    DropReason,
    EventRefused,
    Give,
    Inspected,
    OthersChanged,
    Output,
    PauseChanged,
    Send,
    Take,
)
from wakeroll_model.client_queues import ClientQueue, Holding
from wakeroll_model.decision_order import order_of, without_era
from wakeroll_model.decisions import (
    AnyDecision,
    AssignedQueue,
    Assignment,
    Cause,
    Fenced,
    Membership,
    OtherFilter,
    Rejected,
)
from wakeroll_model.events import (
    About,
    Commit,
    Failure,
    Failures,
    Filter,
    FilterType,
    Heartbeat,
    LongCall,
    Mode,
    Policy,
    Report,
    Subscription,
    Unregister,
)
from wakeroll_model.last_will import LastWill
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import has_failed_messages

NEVER_MS = 2**62
"""Value of a due time that never comes, ms."""


class Preferences(Struct, frozen=True, kw_only=True):
    """The preferences of a client; the fields are those of `Heartbeat`."""

    subscriptions: list[Subscription]
    pattern: str = ""
    pattern_expression: str = "*"
    pattern_expression_type: FilterType = "TAG"
    strategy: str = "AVG"
    strategy_params: dict[str, Any] = {}
    consume_from: Policy = "last"
    consume_from_ms: int = 0
    orderly: bool = False
    room: str = ""
    weight: float = 1.0
    mode: Mode = "clustering"
    strategy_by_default: bool = False


class Client:
    """A member of a group, by successive instances; one lasts from `join` to `Dropped` or `leave`.

    It is no member until `join`. Every call returns the actions to take, in order. Not safe to use from two threads at
    once.
    """

    def __init__(
        self,
        group_id: str,
        client_id: str,
        preferences: Preferences,
        commit_interval_ms: int | None = config.COMMIT_INTERVAL_MS,
        about: About | None = None,
        slice_by: str | None = None,
    ) -> None:
        """Begin without an instance.

        Args:
            group_id: the group.
            client_id: the name in the group, the same for every instance.
            preferences: the preferences that the heartbeats contain, until `set_preferences` changes them.
            commit_interval_ms: interval of commits of processed messages, which are also committed when their queue is
                released; None if only `commit` commits them. First offsets are committed in any case.
            about: the client's description of itself, for the record; None: it has none.
            slice_by: the key by which the client cuts partitions into slices, as in `Heartbeat`; None: it does not
                support slices.
        """
        self.group_id = group_id
        self.client_id = client_id
        self.instance_id = ""
        """The current instance; empty if there is none."""
        self.epoch = -1
        """Epoch of the newest assignment that this instance received; -1 if none."""
        self.round = -1
        """Round of that assignment; -1 if it has none."""
        self.heartbeat_ms = config.HEARTBEAT_MS
        self.session_timeout_ms = config.SESSION_TIMEOUT_MS
        self.revoke_timeout_ms = config.REVOKE_TIMEOUT_MS
        """How long this client may take to release a queue, unless the group consumes in order."""
        self._preferences = preferences
        self._filters = _filters_of(preferences)
        """Topic -> the filter of its messages."""
        self._left_filters: dict[str, Filter] = {}
        """Topic -> its filter when it was subscribed last; the coordinator may still assign queues of it."""
        self._left_pattern: Filter = ("*", "TAG")
        """Filter of the last pattern; for topics that only it may have had."""
        self._about = about
        self._slice_by = slice_by
        self._has_slices = False
        """Whether a topic of this client is cut into slices, by the newest assignment."""
        self._describes = True
        """Whether heartbeats contain the description, as they do until the coordinator has received it."""
        self._describes_until_ms = NEVER_MS
        """The acknowledgement of a heartbeat that was sent at or after this time shows that the coordinator will
        receive the description. `NEVER_MS`: only the first assignment of the instance shows it."""
        self.handling: list[LongCall] = []
        """Long calls of the application, for the next heartbeat."""
        self._commits_itself = commit_interval_ms is not None
        self._commit_interval_ms = commit_interval_ms or config.COMMIT_INTERVAL_MS
        self._life = ""
        """The current instance or, after its end, the last one; empty before the first."""
        self._secret = ""
        self._former: Unregister | None = None
        """The event that ends the instance before, until it was sent a second time or an assignment shows its end."""
        self._leaving = False
        self._was_lagging = False
        """Whether the client could not read its inbox for a session while it had no queues."""
        self._holding = Holding()
        self._others: tuple[OtherFilter, ...] = ()
        """Filters of other members, from the newest assignment."""
        self._former_filters: tuple[OtherFilter, ...] = ()
        """Filters that this client had until its subscriptions changed: other members may have them, and the newest
        assignment does not list them. Empty once an assignment answers a heartbeat with the present subscriptions."""
        self._first_stored: dict[int, int] = {}
        """Partition of the groups topic -> offset of the first heartbeat with the present subscriptions that Kafka has
        acknowledged; only while there are former filters."""
        self._assigned_by: Cause | None = None
        """Record that caused the newest assignment of this instance; None before the first one."""
        self.is_paused = False
        """Whether the group is paused, by the newest assignment: no message is delivered to the application."""
        self.new_filters = 0
        """Number of times that other members brought a new filter. After that, no commit passes the committed offset
        until `keep` is called."""
        self._shard = ""
        """Shard and era of the last assignment; a coordinator of another era may have lost commits."""
        self._sent_ms = 0
        self._commit_due_ms = 0
        self._acknowledged_ms = 0
        self._stated_ms = 0
        """When the current session timeout was received: no earlier heartbeat states it."""
        self._doubted_ms = 0
        """When a commit was last rejected, or a decision of another era was received: commits up to this time may be
        lost."""
        self._session_before_ms = config.SESSION_TIMEOUT_MS
        """Session timeout in the acknowledged heartbeat, if that was sent before `_stated_ms`."""
        self._seen: dict[str, tuple[int, int]] = {}
        """Shard without its era -> era and seq of its last decision."""
        self._refused: set[str] = set()

    # --- an instance ---

    def join(self, instance_id: str, now_ms: int, secret: str = "") -> list[Output]:
        """Begin an instance, the first or the next one.

        A former instance is unregistered first, because the coordinator may not have received its end.

        Args:
            instance_id: never used before; a uuid, or the result of `provable_id` for a secret.
            now_ms: the time of silence begins here; no queue can be assigned before Kafka has this first heartbeat.
            secret: the secret of the instance_id, or empty. If there is one, only its owner can unregister this
                instance.
        """
        assert not self.instance_id, f"{self.client_id} is in the group already, as {self.instance_id}"
        self._former = self._unregister() if self._life else None
        former = [] if self._former is None else [Send(self._former, now_ms)]
        self.instance_id = self._life = instance_id
        self._secret = secret
        self.epoch = self.round = -1
        self._former_filters, self._assigned_by = (), None  # no heartbeat of this instance has had another filter
        self.heartbeat_ms = config.HEARTBEAT_MS
        self.session_timeout_ms = self._session_before_ms = config.SESSION_TIMEOUT_MS
        self._leaving = self._was_lagging = self._has_slices = False
        self._describes, self._describes_until_ms = True, NEVER_MS
        self._acknowledged_ms = self._stated_ms = now_ms
        return [*former, self._heartbeat(now_ms)]

    def set_preferences(self, preferences: Preferences, now_ms: int) -> list[Output]:
        """Change the preferences, and send them at once; a changed subscription must carry a higher version.

        Queues of a topic with another filter than before drain, and are then given again with the new one. Other
        members may have the former one: until an assignment lists their filters, it counts as one of theirs.
        """
        before, self._preferences, self._filters = self._preferences, preferences, _filters_of(preferences)
        if not preferences.pattern:  # else any topic may match: only an observer evaluates patterns
            self._holding.forget_left(self._filters.keys() | {queue.topic for queue in self._holding.queues()})
        if silent := self._if_silent(now_ms):
            return silent
        return [
            *self._keep_former(before),
            *self._refilter(),
            *([self._heartbeat(now_ms)] if self._is_in else []),
        ]

    def _keep_former(self, before: Preferences) -> list[Output]:
        """Keep messages for the filters that the client had before, because other members may have them."""
        self._first_stored.clear()
        named, by_pattern = _filters_of(before), _filter_by_pattern(before)
        self._left_filters |= named
        while len(self._left_filters) > config.MAX_TOPICS:
            del self._left_filters[next(iter(self._left_filters))]
        if before.pattern:
            self._left_pattern = by_pattern
        if not self._is_in or before.mode != "clustering":
            return []
        former = [
            OtherFilter(topic, *one)
            for topic, one in named.items()
            if (topic in self._filters or self._preferences.pattern) and self._filter_of(topic) != one
        ]
        if before.pattern:  # it does not know which topics match
            now = {self._filters[topic] for topic in self._filters.keys() - named.keys()}
            if self._preferences.pattern:
                now.add(_filter_by_pattern(self._preferences))
            if not self._preferences.pattern or now != {by_pattern}:
                former.append(OtherFilter("", *by_pattern))
        known = tuple(dict.fromkeys([*self._former_filters, *former]))
        if known == self._former_filters:
            return []
        self._former_filters = known
        self.new_filters += 1
        return [OthersChanged(self._others)]

    @property
    def others(self) -> tuple[OtherFilter, ...]:
        """Filters that other members have, or may have, for topics of this client, beside its own.

        No commit passes an unprocessed message that matches one of them.
        """
        return tuple(dict.fromkeys([*self._others, *self._former_filters]))

    def stored(self, beat: Heartbeat, partition: int, offset: int) -> list[Output]:
        """Note where Kafka has stored a heartbeat: an assignment that was decided later takes it into account."""
        if self._former_filters and (beat.subscriptions, *_pattern_of(beat)) == (
            self._preferences.subscriptions,
            *_pattern_of(self._preferences),
        ):
            self._first_stored.setdefault(partition, offset)
        return self._forget_former()

    def _forget_former(self) -> list[Output]:
        """Forget former filters if the newest assignment answers a heartbeat with the present subscriptions."""
        cause = self._assigned_by
        if (
            not self._former_filters
            or cause is None
            or cause.offset < self._first_stored.get(cause.partition, NEVER_MS)
        ):
            return []
        self._former_filters = ()
        return [OthersChanged(self._others)]

    def _refilter(self) -> list[Output]:
        """Drain the queues of topics whose filter has changed; queues of topics that were left keep theirs."""
        has_pattern = bool(self._preferences.pattern)
        taken = self._holding.refilter(
            lambda topic: self._filter_of(topic) if has_pattern or topic in self._filters else None
        )
        if not taken:
            return []
        self.new_filters += 1
        return [Take(taken)]

    def subscribe(
        self, subscriptions: list[Subscription], now_ms: int, pattern: str = "", pattern_filter: Filter = ("*", "TAG")
    ) -> list[Output]:
        """Change the subscriptions, the pattern and its filter, and send them at once if they differ.

        See `set_preferences`.
        """
        expression, expression_type = pattern_filter
        changed = structs.replace(
            self._preferences,
            subscriptions=subscriptions,
            pattern=pattern,
            pattern_expression=expression,
            pattern_expression_type=expression_type,
        )
        if pattern != self._preferences.pattern:
            self._refused.discard("pattern")  # the next one may be wrong too
        return [] if changed == self._preferences else self.set_preferences(changed, now_ms)

    def leave(self, now_ms: int) -> list[Output]:
        """Unregister, after a final commit of processed messages; other delivered messages are not committed."""
        if not self._is_in:
            return []
        commits: list[Output] = []
        if not self._is_silent(now_ms):
            commits = self._commit(now_ms, starts_only=not self._commits_itself)
        self._leaving = True
        self._holding.clear()
        self._holding.forget_left(())  # all is in the log, before a heartbeat of a later instance
        return [*commits, Send(self._unregister(), now_ms)]

    def step_out(self, now_ms: int) -> list[Output]:
        """Leave as `leave` does, because the application does not read; `join` joins again."""
        queues = tuple(self._holding.queues())
        outputs = self.leave(now_ms)
        if not outputs:
            return []
        self._leaving, self.instance_id = False, ""
        return [*outputs, Dropped(queues, "idle")]

    # --- input ---

    def receive(self, decision: AnyDecision, now_ms: int) -> list[Output]:
        """Process a decision from the inbox; ignore one that is repeated, outdated or meant for another instance.

        The sink delivers at least once. A client reads one partition of the inbox, so (era, seq) of a shard is enough
        to recognize a repetition. Decisions of a coordinator of an older era are ignored.
        """
        shard, place = without_era(decision.shard), order_of(decision.shard, decision.seq)
        if place <= self._seen.get(shard, (0, 0)):
            return []
        self._seen[shard] = place
        silent = self._if_silent(now_ms)
        if silent:
            return silent
        match decision:
            case Assignment() if self._is_mine(decision) and self._is_in and decision.epoch >= self.epoch:
                return self._drop("deaf") if self._was_lagging else self._obey(decision, now_ms)
            case Fenced() if self._is_mine(decision):
                return self._drop("left" if self._leaving else decision.reason, decision.by)
            case Rejected() if self._is_about_me(decision):
                return self._note(decision, now_ms)
            case Membership(change="inspected") if self._is_mine(decision):
                return [Inspected()]
            case _:
                return []

    def started(self, starts: Iterable[tuple[Give, int]], now_ms: int) -> list[Output]:
        """Note the offsets at which reading of these assigned queues began; commit those that Kafka does not have.

        They are committed at once because the same policy would have another result later, for the next owner or after
        a crash: ``last`` would skip the messages that arrived in between.
        """
        silent = self._if_silent(now_ms)
        if silent:
            return silent
        for give, offset in starts:
            self._holding.start(give, offset)
        return self._commit(now_ms, starts_only=True)

    def note_leader_epoch(self, give: Give, offset: int, leader_epoch: int | None) -> None:
        """Note the leader epoch of this assignment's messages from this offset on; None: not known."""
        self._holding.note_leader_epoch(give, offset, leader_epoch)

    def leader_epoch_at(self, give: Give, offset: int) -> int | None:
        """Return the leader epoch of the message of an assignment before this offset; None if not known."""
        return self._holding.leader_epoch_at(give, offset)

    def go_back(self, give: Give, offset: int, leader_epoch: int | None, now_ms: int) -> list[Output]:
        """Continue at this offset, because the log of the queue lost its messages from there on; commit that at once.

        `leader_epoch`: lower bound for all messages from there on, above the leader epochs of all lost messages; None
        if not known.
        """
        silent = self._if_silent(now_ms)
        if silent or not self._holding.go_back(give, offset, leader_epoch):
            return silent
        return self._commit(now_ms, [give.queue])

    def keep(self, give: Give, offset: int | None, new_filters: int) -> None:
        """Limit the commits of this assignment to an offset, whose message matches only other members' filters.

        Args:
            give: an assignment.
            offset: the limit; None if every message that was read is processed, delivered, or matches no member's
                filter.
            new_filters: the value of `new_filters` when the filters were read. If it has grown since, the call has no
                effect, because skipped messages may match a new filter.
        """
        if new_filters == self.new_filters:
            self._holding.keep(give, offset)

    def keep_all(self, give: Give) -> int | None:
        """Limit the commits of this assignment to its present committed offset, until `keep` is called.

        Returns:
            The committed offset; None if reading has not begun, or the assignment has ended.
        """
        return self._holding.keep_all(give)

    def done(self, give: Give, offset: int) -> bool:
        """Note that the application has processed all messages of this assignment of a queue below `offset`.

        Returns:
            Whether it has an effect: the client still has the queue by that assignment, or drains it.
        """
        return self._holding.finish(give, offset)

    def find(self, give: Give) -> ClientQueue | None:
        """Return the queue that this client has by this assignment; see `Holding.find`."""
        return self._holding.find(give)

    def failed(self, failures: list[Failure], now_ms: int) -> list[Output]:
        """Report messages that the application failed to process; for the record only."""
        silent = self._if_silent(now_ms)
        if silent or not self._is_in or not failures:
            return silent
        event = Failures(
            group_id=self.group_id, client_id=self.client_id, instance_id=self.instance_id, failures=failures
        )
        return [Send(event, now_ms)]

    def report(self, text: str, now_ms: int) -> list[Output]:
        """Send the report that an operator requested; it is cut to `config.MAX_REPORT` characters."""
        silent = self._if_silent(now_ms)
        if silent or not self._is_in:
            return silent
        event = Report(
            group_id=self.group_id,
            client_id=self.client_id,
            instance_id=self.instance_id,
            text=text[: config.MAX_REPORT],
        )
        return [Send(event, now_ms)]

    def commit(self, now_ms: int, queues: Iterable[Queue] | None = None) -> list[Output]:
        """Commit processed messages of these queues, or of all; send nothing if no offset is new."""
        return self._if_silent(now_ms) or self._commit(now_ms, queues)

    def describe(self, give: Give, offset: int, text: str) -> None:
        """Commit a text with this offset of an assignment, if this is the offset that is committed."""
        self._holding.describe(give, offset, text)

    def released(self, queues: Iterable[Queue], now_ms: int) -> list[Output]:
        """Release drained queues: commit them, send a heartbeat, then read those that are assigned again.

        Queues that are not draining are ignored.
        """
        silent = self._if_silent(now_ms)
        draining = set(self._holding.draining())
        drained = [queue for queue in queues if queue in draining]
        if silent or not drained:
            return silent
        commits = self._commit(now_ms, drained, starts_only=not self._commits_itself)
        again, refiltered = self._holding.release(drained, starts_only=not self._commits_itself)
        gives = self._give(refiltered, is_committed=False)  # they stay assigned; their last commit may be lost still
        released = [self._heartbeat(now_ms)] if len(gives) < len(drained) else []
        return [*commits, *released, *self._give(again), *gives]

    def acknowledged(self, sent_ms: int, now_ms: int) -> list[Output]:
        """Note that Kafka acknowledged the heartbeat that was sent at `sent_ms`.

        An acknowledgement that arrives too late is ignored: the heartbeat may have reached the log too late as well.
        """
        silent = self._if_silent(now_ms)
        if not silent:
            self._acknowledged_ms = max(self._acknowledged_ms, sent_ms)
            if sent_ms >= self._describes_until_ms:
                self._describes, self._describes_until_ms = False, NEVER_MS
        return silent

    def committed(self, commit: Commit, sent_ms: int) -> None:
        """Note that Kafka acknowledged this commit, so it is not repeated. The next commit covers a lost one.

        Kafka's acknowledgement may arrive after the coordinator's rejection. Then the rejection prevails: each commit
        that was sent before a rejection is repeated.
        """
        if commit.instance_id == self.instance_id and sent_ms >= self._doubted_ms:
            self._holding.acknowledge(commit.offsets, commit.epoch)

    def on_time(self, now_ms: int) -> list[Output]:
        """Do the work that is due: commit, send a heartbeat, or drop all queues after a session of silence."""
        silent = self._if_silent(now_ms)
        if silent or not self._is_in:
            return silent
        outputs: list[Output] = []
        if now_ms >= self._commit_due_ms:
            outputs += self._commit(now_ms, starts_only=not self._commits_itself)
        if now_ms >= self._sent_ms + self.heartbeat_ms:
            outputs.append(self._heartbeat(now_ms))
            self._holding.repeat_lost_commits()
        return outputs

    def give_up(self) -> list[Output]:
        """Drop all queues, because the inbox cannot be read and a revocation would be missed.

        An instance without queues ends only when the inbox is readable again, because a new instance could not receive
        anything earlier. It must end then, because a late assignment could list queues that have other owners by now.
        """
        if self._is_in and self._holding.queues():
            return self._drop("deaf")
        self._was_lagging = self._is_in
        return []

    def start_over(self) -> list[Output]:
        """End the instance, because the inbox has another log: it lost decisions, or was created again.

        The coordinator may have lost its state too. Then it counts eras, epochs and decisions from 1, and each decision
        for this instance, such as a `fenced`, has a number that was received before. So the numbers are taken from the
        new log, of which the caller reads every record. This is safe only for a new instance, because no earlier
        decision is about it.
        """
        self._seen.clear()
        return self._drop("deaf") if self._is_in else []

    # --- queries ---

    def next_due_ms(self) -> int:
        """Return when `on_time` next has work to do, unless another call comes before."""
        if not self._is_in:
            return NEVER_MS
        due = [self._sent_ms + self.heartbeat_ms, self.patient_until_ms + 1]
        if self._holding.news(starts_only=not self._commits_itself):
            due.append(self._commit_due_ms)
        return min(due)

    @property
    def patient_until_ms(self) -> int:
        """Time until which the client acts, by its own clock: it stops before its session ends at the coordinator.

        A longer session timeout counts at once. A shorter one counts from `_stated_ms`, the earliest time at which a
        heartbeat can have stated it. Until then the coordinator counts the longer one from the last heartbeat that it
        has.
        """
        until_ms = self._acknowledged_ms + self.session_timeout_ms
        if self._acknowledged_ms < self._stated_ms and self.session_timeout_ms < self._session_before_ms:
            until_ms = self._stated_ms + self.session_timeout_ms
            until_ms = min(until_ms, self._acknowledged_ms + self._session_before_ms)
        return until_ms - min(config.CLIENT_MARGIN_MS, self.session_timeout_ms // 2)

    def may_hand_out(self, give: Give, now_ms: int) -> bool:
        """Return whether a message of this assignment may still be delivered; called before each message.

        After a False, the assignment has ended or ends with the next `on_time`, so a message that is withheld is not
        lost.
        """
        return self._holding.is_readable(give) and not self._is_silent(now_ms)

    def may_handle(self, give: Give, now_ms: int) -> bool:
        """Return whether a message of this assignment that was read before may be handled; it may be draining.

        A client that handles messages of a queue out of order handles those between processed ones while it drains the
        queue: otherwise the processed ones would be delivered again.
        """
        return self._holding.has(give) and not self._is_silent(now_ms)

    def readable(self) -> dict[Queue, Give]:
        """Return the queues that may be read, with their assignments."""
        return self._holding.readable()

    def commits(self) -> dict[Queue, int]:
        """Return the committed offsets of this client's queues, from their assignments and acknowledged commits."""
        return self._holding.commits()

    def is_committed(self, queues: Iterable[Queue] | None = None) -> bool:
        """Return whether Kafka has the commits of all processed messages, of these queues or of all."""
        return not self._holding.news(queues)

    def processed(self) -> dict[Queue, int]:
        """Return the offsets below which the queues are processed, as far as reading has begun."""
        return self._holding.processed()

    def give_of(self, queue: Queue) -> Give | None:
        """Return the assignment of a queue that this client reads or drains; None if there is none."""
        return self._holding.give_of(queue)

    def draining(self) -> list[Queue]:
        """Return the queues that were revoked and are not yet released."""
        return self._holding.draining()

    def last_will(self) -> LastWill | None:
        """Return the will to execute if the process ends now; None while there is no instance to end."""
        if not self._is_in:
            return None
        queues = self._holding.copies()
        return LastWill(
            group_id=self.group_id,
            client_id=self.client_id,
            instance_id=self.instance_id,
            secret=self._secret,
            epoch=self.epoch,
            commits_itself=self._commits_itself,
            queues=queues,
        )

    @property
    def will_version(self) -> object:
        """A value that changes when `last_will` changes, except for its progress and `kept`."""
        return self._life if self._is_in else "", self.epoch, self._holding.changes, self._preferences

    def gives(self) -> list[Give]:
        """Return the assignments of all queues, including draining ones."""
        return self._holding.gives()

    def progress(self, give: Give) -> tuple[int | None, int | None]:
        """Return the processed offset of an assignment, and the limit of its commits, each None if not set."""
        return self._holding.progress(give)

    # --- internals ---

    @property
    def _is_in(self) -> bool:
        return bool(self.instance_id) and not self._leaving

    def _is_mine(self, decision: Assignment | Fenced | Membership) -> bool:
        """Return whether a decision is about this instance in this group."""
        return (decision.group_id, decision.client_id, decision.instance_id) == (
            self.group_id,
            self.client_id,
            self.instance_id,
        )

    def _is_about_me(self, refusal: Rejected) -> bool:
        """Return whether a rejection is about an event of this client, even if the broken record names no group."""
        return refusal.client_id == self.client_id and refusal.group_id in (None, self.group_id)

    def _obey(self, assignment: Assignment, now_ms: int) -> list[Output]:
        """Take the queues that the assignment lists and drain all others; send a heartbeat only if something changed.

        A coordinator repeats an assignment while heartbeats show other queues than it expects, as during a drain. If
        repetitions were answered, coordinator and client would exchange records without a pause.
        """
        self.heartbeat_ms = assignment.heartbeat_ms
        self.revoke_timeout_ms = assignment.revoke_timeout_ms
        if assignment.session_timeout_ms != self.session_timeout_ms:
            known = [self.session_timeout_ms]
            if self._acknowledged_ms < self._stated_ms:
                known.append(self._session_before_ms)
            self._session_before_ms, self._stated_ms = min(known), now_ms
            self.session_timeout_ms = assignment.session_timeout_ms
        if self.epoch < 0:
            self._describes = False
        elif assignment.shard != self._shard:  # the members may be forgotten, with their descriptions
            self._describes, self._describes_until_ms = True, now_ms
        changed = assignment.epoch > self.epoch
        self._former = None
        self._has_slices = bool(assignment.slices)
        self.epoch = assignment.epoch
        self.round = assignment.round if isinstance(assignment.round, int) else -1
        if assignment.shard != self._shard:
            self._shard = assignment.shard
            self._doubt_commits(now_ms)
        revoke = set(assignment.revoke)
        held = set(self._holding.queues())
        # Epoch 0 marks queues that a heartbeat of this instance claimed after a loss of state. If the client does not
        # have such a queue any more, that heartbeat arrived late, and the queue may have another owner since.
        claims = assignment.mode == "clustering"
        aligned = self._holding.align(
            assigned
            for assigned in assignment.queues
            if assigned.queue not in revoke and (assigned.assigned_epoch or not claims or assigned.queue in held)
        )
        outputs: list[Output] = []
        outputs += self._follow_others(assignment)
        if (is_paused := assignment.paused is True) != self.is_paused:
            self.is_paused = is_paused
            outputs.append(PauseChanged(is_paused))
        if aligned.taken:
            outputs.append(Take(aligned.taken))
        outputs += self._give(aligned.missing)
        if changed or aligned.changed:
            outputs.append(self._heartbeat(now_ms))
        return outputs

    def _follow_others(self, assignment: Assignment) -> list[Output]:
        """Follow the filters of other members that an assignment lists."""
        others, before = tuple(assignment.others or ()), self.others
        self._assigned_by = assignment.cause
        if self.round < 0:
            self._former_filters = ()  # this coordinator does not know other members' filters
        if others == self._others and not self._forget_former():
            return []
        self._forget_former()
        self._others = others
        if new := {other.topic for other in others if other not in before}:
            self._holding.keep_committed(None if "" in new else new)
            self.new_filters += 1
        if gone := {other.topic for other in before if other not in self.others}:
            self._holding.keep_for_the_next(None if "" in gone else gone)
        return [OthersChanged(others)]

    def _filter_of(self, topic: str) -> Filter:
        """Return this client's filter of a topic: that of its pattern, unless it names the topic, or the last one."""
        if topic in self._filters:
            return self._filters[topic]
        if has_failed_messages(topic):
            return "*", "TAG"
        if not self._preferences.pattern:
            return self._left_filters.get(topic, self._left_pattern)
        return _filter_by_pattern(self._preferences)

    def _give(self, queues: Iterable[AssignedQueue], *, is_committed: bool = True) -> list[Give]:
        return [
            self._holding.give(one, self.instance_id, self._filter_of(one.queue.topic), is_committed=is_committed)
            for one in queues
        ]

    def _note(self, refusal: Rejected, now_ms: int) -> list[Output]:
        """Report a rejection once per rule; repeat commits that were not accepted.

        A coordinator that recovers may reject a commit that arrives too early. Or the commit was in the group's former
        partition, because the number of shards has grown. Then the `unregister` of the former instance is repeated too,
        once, or this instance would wait for the end of that session. It is also repeated if the client_id is in use,
        because Kafka may have lost the `unregister`.
        """
        again: list[Output] = []
        if refusal.rule in ("partition", "in-use") and self._former is not None and self._is_in:
            again, self._former = [Send(self._former, now_ms), self._heartbeat(now_ms)], None
        if refusal.rule in ("commit", "partition"):
            # A draining queue has another owner soon, or already.
            self._doubt_commits(now_ms, readable_only=True)
        if refusal.rule in self._refused:
            return again
        self._refused.add(refusal.rule)
        return [*again, EventRefused(refusal.rule, refusal.detail)]

    def _doubt_commits(self, now_ms: int, *, readable_only: bool = False) -> None:
        self._doubted_ms = now_ms
        self._holding.forget_acknowledged(readable_only=readable_only)

    def _unregister(self) -> Unregister:
        return Unregister(group_id=self.group_id, client_id=self.client_id, instance_id=self._life, secret=self._secret)

    def _commit(self, now_ms: int, queues: Iterable[Queue] | None = None, *, starts_only: bool = False) -> list[Output]:
        """Return a commit with the new offsets of these queues, or of all; nothing if there are none."""
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
            round=self.round,
            about=self._about if self._describes else None,
            handling=self.handling,
            slice_by=self._slice_by if self._describes or self._has_slices else None,
            **structs.asdict(self._preferences),
        )
        return Send(beat, now_ms)

    def _is_silent(self, now_ms: int) -> bool:
        return now_ms > self.patient_until_ms

    def _if_silent(self, now_ms: int) -> list[Output]:
        """Drop all queues if the coordinator may have evicted this instance; checked before any other work."""
        return self._drop("silent") if self._is_in and self._is_silent(now_ms) else []

    def _drop(self, reason: DropReason, by: str = "") -> list[Output]:
        self.instance_id = ""
        return [Dropped(self._holding.clear(starts_only=not self._commits_itself), reason, by)]


def _pattern_of(preferences: Preferences | Heartbeat) -> tuple[str, str, str]:
    return preferences.pattern, *_filter_by_pattern(preferences)


def _filter_by_pattern(preferences: Preferences | Heartbeat) -> Filter:
    return preferences.pattern_expression, preferences.pattern_expression_type


def _filters_of(preferences: Preferences) -> dict[str, Filter]:
    return {one.topic: (one.expression, one.expression_type) for one in preferences.subscriptions}
