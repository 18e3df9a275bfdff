"""The control thread: it sends heartbeats and receives decisions, however slow the application's handler is."""

import atexit
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from wakeroll.call_thread import CallThread
from wakeroll.calls_at_work import Application, LongCalls
from wakeroll.errors import ConsumerFenced, WakerollError, in_words
from wakeroll.flag import Flag
from wakeroll.inbox import Inbox, ToAClient
from wakeroll.membership_log import MembershipLog
from wakeroll.monotonic_clock import now_ms
from wakeroll.outbox import Outbox
from wakeroll.pace import Pace
from wakeroll.pattern_choice import NO_PATTERN, PatternChoice
from wakeroll_model.client import Client
from wakeroll_model.client_actions import (
    Dropped,
    EventRefused,
    Give,
    Inspected,
    OthersChanged,
    Output,
    PauseChanged,
    Send,
    Take,
)
from wakeroll_model.decisions import Membership, OtherFilter, Rejected, Wake
from wakeroll_model.events import Commit, Failure, Heartbeat, Subscription
from wakeroll_model.instance_secrets import provable_id
from wakeroll_model.queue import Queue

if TYPE_CHECKING:
    from wakeroll.last_will.member_will import MemberWill

log = logging.getLogger("wakeroll")

LEAVE_S = 1.0
"""How long to wait for the thread to end (s); it ends within a fraction of a second."""
END_S = 3.0
"""Longest wait at the end of the interpreter for members that leave (s); it takes that long if no broker answers."""
LONGEST_STEP_S = 1.0
"""Longest time between two rounds of the thread that counts as time in which the application did not poll (s)."""
FLUSH_S = 0.1
"""Longest single wait for acknowledgements (s); then the thread checks whether a commit still waits for them."""
LOOK_S = 5.0
"""Interval in which the thread checks the executor of the last will, and looks for long calls (s)."""
NOD_S = 60.0
"""How long a daemon thread sleeps at a time while the interpreter ends (s)."""
NEVER_S = float("inf")

_Result = TypeVar("_Result")


class _Waiting(NamedTuple):
    """A call of `commit` that waits for Kafka's acknowledgement."""

    life: str
    """The instance that commits."""
    until_s: float
    """When the wait ends without success, by the monotonic clock (s)."""
    queues: tuple[Queue, ...] | None
    """The queues of the commit; None: all."""
    answer: "SimpleQueue[bool]"


class Control:
    """The owner of the pure client. Other threads only read the client; a thread of this object makes each change.

    An exception of a signal handler is raised in the application's thread. So it cannot interrupt a change halfway, or
    leave a lock locked. Two threads change the client: the control thread, as time passes and decisions arrive, and the
    thread that makes the calls of others. Its events are passed to Kafka under the same lock, so that they keep their
    order: a release must not overtake an acknowledgement.
    """

    def __init__(
        self,
        client: Client,
        open_inbox: Callable[[], Inbox],
        outbox: Outbox,
        on_answer: Callable[[Wake | Rejected], None],
        will: "MemberWill | None" = None,
        poll_timeout_s: float = NEVER_S,
        application: Application | None = None,
    ) -> None:
        """Prepare; `join` joins the group.

        Args:
            client: the pure client.
            open_inbox: opens the inbox of the client, when it joins.
            outbox: outbox of the client's group.
            on_answer: called in the control thread with each decision that may answer a pull.
            will: last will of the client; None if it has none.
            poll_timeout_s: the client leaves if `called` is not called for so long (s), until it is called again.
            application: functions that describe what the application does; None: nothing is described.
        """
        self.changed = Flag()
        """Set when the application's thread must apply a change of the assignment."""
        self._client = client
        self._log = MembershipLog(client.group_id, client.client_id)
        self._open_inbox = open_inbox
        self._inbox: Inbox | None = None
        """None before `join`."""
        self._outbox = outbox
        self._on_answer = on_answer
        self._will = will
        self._poll_timeout_s = poll_timeout_s
        self._application = Application() if application is None else application
        self._long_calls = LongCalls()
        self._is_inspected = False
        """Whether a request of `wakeroll inspect` has arrived that this client has not answered yet."""
        self._idle_s = 0.0
        """Time since the last call of `called`, as far as the control thread has run (s)."""
        self._looked_s = 0.0
        """When the control thread last added to `_idle_s`, by the monotonic clock (s)."""
        self._has_joined = False
        self.is_away = False
        """Whether this client has left because the application does not read."""
        self._look_s = 0.0
        """When to check the executor of the will and the running calls again, by the monotonic clock (s)."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        """Commits that wait for Kafka's acknowledgement."""
        self._stopping = threading.Event()
        self._is_leaving = False
        self._has_left = False
        self._leave_by_s = NEVER_S
        """When to leave unless `leave` was called before, by the monotonic clock (s)."""
        self._ended: Dropped | None = None
        self._failure: BaseException | None = None
        self._refusal = ""
        """Reason of the coordinator's refusal of this client; empty if it sent none."""
        self._calls = CallThread(f"wakeroll-calls-{client.client_id}")
        """The thread that makes the calls of other threads."""
        # A thread of its own, from the first commit on: a flush waits for Kafka, and the loop of `run`, its workers and
        # the release of queues would wait for it in `_calls`. The control thread waits for decisions most of the time,
        # and would notice acknowledgements up to a slice later.
        self._flushes = CallThread(f"wakeroll-flush-{client.client_id}")
        """The thread that waits for acknowledgements while a call of `commit` waits."""
        self._thread = threading.Thread(target=self._run, name=f"wakeroll-{client.client_id}", daemon=True)

    def join(self) -> None:
        """Join the group and start the control thread; do nothing if it has joined before.

        Raises:
            NotReachable: the broker does not answer.
        """
        if not self._has_joined:
            self._calls.ask(self._begin)

    def called(self) -> None:
        """Note that the application reads, or does other work for its queues; join again if this client is away."""
        self._idle_s = 0.0
        if self.is_away:
            self._ask(self._come_back)

    def noticed(self) -> None:
        """Note that the application works on messages of its queues, without a read."""
        self._idle_s = 0.0

    def step_out(self, why: str) -> None:
        """Leave until `called` is called; `why` is the end of a sentence about the application."""
        self._ask(lambda: self._step_out(why))

    def beside(self, call: Callable[[], _Result]) -> _Result:
        """Make a call in a thread that no signal handler interrupts; return its result.

        Threads are started there: an exception in the middle of Python's `Thread.start` leaves the thread half started,
        or becomes a KeyError.
        """
        return self._calls.ask(call)

    @property
    def idle_ms(self) -> int:
        """Time since the last call of `called`, as far as the control thread has run (ms)."""
        return round(self._idle_s * 1_000)

    @property
    def group_id(self) -> str:
        """The group."""
        return self._client.group_id

    @property
    def client_id(self) -> str:
        """This member's name."""
        return self._client.client_id

    def subscribe(self, subscriptions: list[Subscription]) -> None:
        """Subscribe these topics, instead of those so far."""
        self.resubscribe(lambda: (subscriptions, NO_PATTERN))

    def resubscribe(self, change: Callable[[], tuple[list[Subscription], PatternChoice]]) -> None:
        """Subscribe the topics and the pattern that `change` returns.

        Only one change is made at a time, and no signal handler interrupts it.
        """

        def make() -> None:
            subscriptions, pattern = change()
            self._do(self._client.subscribe(subscriptions, now_ms(), pattern.text, pattern.filter))

        self._ask(make)

    def view(self) -> tuple[dict[Queue, Give], list[Queue]]:
        """Return the readable queues and the queues to drain, both as of the same moment."""
        return self._ask(lambda: (self._client.readable(), self._client.draining()))

    def commits(self) -> dict[Queue, int]:
        """Return the committed offsets of this client's queues, as far as they are known."""
        return self._ask(self._client.commits)

    @property
    def others(self) -> tuple[OtherFilter, ...]:
        """Filters of other members for topics of this client."""
        return self._client.others

    @property
    def is_paused(self) -> bool:
        """Whether the group is paused: no message is delivered to the application."""
        return self._client.is_paused

    @property
    def new_filters(self) -> int:
        """Number of times that the filters of other members changed; read it before `others`."""
        return self._client.new_filters

    def keep(self, give: Give, offset: int | None, new_filters: int) -> None:
        """Limit the commits of this assignment to an offset; see `Client.keep`."""
        self._ask(lambda: self._keep(give, offset, new_filters))

    def keep_all(self, give: Give) -> int | None:
        """Limit the commits of this assignment to its committed offset, and return it; see `Client.keep_all`."""
        return self._ask(lambda: self._keep_all(give))

    @property
    def revoke_timeout_s(self) -> float:
        """Revoke timeout of the newest assignment (s)."""
        return self._client.revoke_timeout_ms / 1_000

    def started(self, starts: Iterable[tuple[Give, int]]) -> None:
        """Report the offsets at which the reading of these assignments starts."""
        self._ask(lambda: self._do(self._client.started(starts, now_ms())))

    def done(self, give: Give, offset: int) -> bool:
        """Report that the application has processed all messages below `offset`; return whether that takes effect."""
        counts = self._client.done(give, offset)  # it stores one value, which needs no lock
        if counts and self._will is not None:
            self._will.note(give, offset)
        return counts

    def noting(self, give: Give) -> Callable[[int], object]:
        """Return a faster function with the effect of `done` for this assignment; it costs a third.

        The function may be used until `changed` is set; it has no effect after the assignment has ended.
        """
        held = self._client.find(give)
        note = None if held is None or self._will is None else self._will.noting(held)
        return note or partial(self.done, give)

    def processed(self) -> dict[Queue, int]:
        """Return the offsets below which the queues are processed, as far as reading has begun."""
        return self._ask(self._client.processed)

    def give_of(self, queue: Queue) -> Give | None:
        """Return the assignment of a queue that this client reads or drains; None if there is none."""
        return self._client.give_of(queue)  # it reads one value, which needs no lock

    def describe(self, give: Give, offset: int, text: str) -> None:
        """Commit a text with this offset of an assignment, if this is the offset that is committed."""
        self._ask(lambda: self._client.describe(give, offset, text))

    def progress(self, give: Give) -> int | None:
        """Return how far an assignment is processed; None if it has ended, or reading has not begun."""
        return self._client.progress(give)[0]  # it reads one value, which needs no lock

    def note_leader_epoch(self, give: Give, offset: int, leader_epoch: int | None) -> None:
        """Report the leader epoch of the messages of an assignment from this offset on; None if not known."""
        self._ask(lambda: self._client.note_leader_epoch(give, offset, leader_epoch))

    def leader_epoch_at(self, give: Give, offset: int) -> int | None:
        """Return the leader epoch of the message of an assignment before this offset; None if not known."""
        return self._client.leader_epoch_at(give, offset)  # only calls of the same thread change it

    def go_back(self, give: Give, offset: int, leader_epoch: int | None) -> None:
        """Report that the log of a queue lost its messages from this offset on; see `Client.go_back`."""
        self._ask(lambda: self._go_back(give, offset, leader_epoch))

    def begin_commit(self, timeout: float, queues: Iterable[Queue] | None = None) -> "SimpleQueue[bool]":
        """Commit processed messages of these queues, or of all.

        Returns:
            A queue that receives whether Kafka acknowledged them within `timeout` seconds.
        """
        answer: SimpleQueue[bool] = SimpleQueue()
        if not self._has_joined:
            answer.put(True)  # nothing was delivered
            return answer
        deadline = time.monotonic() + timeout
        named = None if queues is None else tuple(queues)
        self._ask(lambda: self._begin_commit(deadline, named, answer))
        if self._waiting:
            self.beside(lambda: self._flushes.do(self._flush))
        return answer

    def commit(self, timeout: float, queues: Iterable[Queue] | None = None) -> bool:
        """Commit processed messages; return whether Kafka acknowledged them within `timeout` seconds.

        Raises:
            WakerollError: the control thread failed, before the call or during it; its exception is the cause.
        """
        deadline = time.monotonic() + timeout
        answer = self.begin_commit(timeout, queues)
        try:
            is_committed = answer.get(timeout=max(deadline - time.monotonic(), 0.0))
        except Empty:
            is_committed = False
        if not is_committed:
            self._refuse_failure()
        return is_committed

    def report_failures(self, failures: list[Failure]) -> None:
        """Report messages that the handler failed to process, unless this client is no member now."""
        self._ask(lambda: self._do(self._client.failed(failures, now_ms())))

    def released(self, queues: Iterable[Queue]) -> None:
        """Report that the application has processed all delivered messages of these queues."""
        self._ask(lambda: self._do(self._client.released(queues, now_ms())))

    def may_hand_out(self, give: Give) -> bool:
        """Return whether a message of this assignment may be delivered to the application now."""
        return self._is_allowed(self._client.may_hand_out, give)

    def may_handle(self, give: Give) -> bool:
        """Return whether the application may handle a message of this assignment now; it may be draining."""
        return self._is_allowed(self._client.may_handle, give)

    def sure_until_ms(self, most_ms: int) -> int:
        """Return until when messages may be delivered without another check, unless `changed` is set before.

        `most_ms`: maximum time from now (ms). The result is by the SDK's clock.
        """
        return min(now_ms() + most_ms, self._client.patient_until_ms)

    def check(self) -> None:
        """Raise an error if this client's membership has ended.

        Raises:
            ConsumerFenced: the coordinator removed this client.
            WakerollError: the control thread failed; its exception is the cause.
        """
        self._refuse_failure()
        if self._ended is not None:
            raise ConsumerFenced(self._sentence(self._ended), self._ended.reason, self._ended.by)

    def _refuse_failure(self) -> None:
        if self._failure is not None:
            raise WakerollError(f"the control thread failed: {in_words(self._failure)}") from self._failure

    def leave_by(self, deadline_s: float) -> None:
        """Leave the group at this time of the monotonic clock, unless `leave` is called before; return at once."""
        self._leave_by_s = deadline_s

    def leave(self, timeout: float) -> None:
        """Commit, leave the group and end the threads; wait at most `timeout` seconds for Kafka's acknowledgement."""
        self._calls.ask(lambda: self._leave(timeout))
        self._calls.join(LEAVE_S)
        self._flushes.join(LEAVE_S)

    def abandon(self) -> None:
        """Begin to leave the group, and return at once; this object must not be used any more."""
        if os.getpid() == self._pid:
            self._calls.do(lambda: self._leave(LEAVE_S))

    def _begin(self) -> None:
        if self._has_joined or self._has_left:
            return
        self._inbox = self._open_inbox()
        self._has_joined = True
        _members.add(self)
        self._locked(self._join)
        self._thread.start()

    def _step_out(self, why: str) -> None:
        outputs = self._client.step_out(now_ms())
        if outputs:
            log.warning(
                "client %r of group %r leaves until its application reads again, so that others get its queues: %s",
                self.client_id,
                self.group_id,
                why,
            )
            self._do(outputs)

    def _come_back(self) -> None:
        if self.is_away:
            self.is_away = False
            self._join()

    def _leave(self, timeout: float) -> None:
        if self._has_left:
            return
        self._has_left = True
        deadline = time.monotonic() + timeout
        # Nobody would send these last events again if they were in a partition that `wakeroll reshard` has taken the
        # group from: the coordinator rejects them there, and the queues would stay with this member for minutes.
        self._outbox.learn_partitions(max(timeout, 0.0))
        with self._lock:
            outputs = self._client.leave(now_ms())
            if outputs:
                self._log.leaves()
                self._is_leaving = True
            self._do(outputs)
        self._stopping.set()
        if not self._outbox.flush(max(deadline - time.monotonic(), 0.0)):
            log.warning(
                "%s left group %s, but Kafka did not acknowledge it; its queues become free when its session ends",
                self._client.client_id,
                self._client.group_id,
            )
        if self._thread.is_alive():
            self._thread.join(LEAVE_S)
        if not self._thread.is_alive():  # it uses the outbox
            self._outbox.close()
        if self._will is not None:
            with self._lock:
                self._will.end()
        self._calls.end()
        self._flushes.end()

    def _keep(self, give: Give, offset: int | None, new_filters: int) -> None:
        self._client.keep(give, offset, new_filters)
        if self._will is not None:
            self._will.note_progress(give)

    def _keep_all(self, give: Give) -> int | None:
        committed = self._client.keep_all(give)
        if self._will is not None:
            self._will.note_progress(give)
        return committed

    def _go_back(self, give: Give, offset: int, leader_epoch: int | None) -> None:
        outputs = self._client.go_back(give, offset, leader_epoch, now_ms())
        if self._will is not None:
            self._will.note_progress(give)
        self._do(outputs)

    def _ask(self, call: Callable[[], _Result]) -> _Result:
        """Let the thread for the calls of others make a call under the lock."""
        return self._calls.ask(lambda: self._locked(call))

    def _locked(self, call: Callable[[], _Result]) -> _Result:
        with self._lock:
            return call()

    def _begin_commit(self, until_s: float, queues: tuple[Queue, ...] | None, answer: "SimpleQueue[bool]") -> None:
        life = self._client.instance_id
        if self._failure is None:  # otherwise nobody would hear the answer
            self._do(self._client.commit(now_ms(), queues))
        self._waiting.append(_Waiting(life, until_s, queues, answer))
        self._answer_commits()

    def _flush(self) -> None:
        while self._waiting and not self._stopping.is_set():
            is_empty = self._outbox.flush(FLUSH_S)
            with self._lock:
                self._answer_commits()
            if self._waiting and is_empty:  # more was processed since, or a commit was lost: the next one covers it
                self._stopping.wait(FLUSH_S)

    def _answer_commits(self) -> None:
        """Answer the commits that are acknowledged or have timed out. The caller holds the lock."""
        if not self._waiting:
            return
        client, now_s = self._client, time.monotonic()
        waiting = []
        for one in self._waiting:
            is_committed = client.is_committed(one.queues)
            has_ended = not one.life or client.instance_id != one.life or self._failure is not None
            if has_ended or now_s >= one.until_s or is_committed:
                one.answer.put(bool(one.life) and client.instance_id == one.life and is_committed)
            else:
                waiting.append(one)
        self._waiting = waiting

    def _run(self) -> None:
        inbox, self._looked_s, pace = self._inbox, time.monotonic(), Pace()
        assert inbox is not None
        try:
            if self._will is not None:
                self._will.begin()
            while not self._stopping.is_set():
                decisions = inbox.poll(pace.wait_s)
                if decisions:
                    pace.note()
                    self._pass_on(decisions)
                self._outbox.serve()
                deaf = inbox.is_deaf(self._client.session_timeout_ms)
                with self._lock:
                    for decision in decisions:
                        self._do(self._client.receive(decision, now_ms()))
                    self._do(self._client.on_time(now_ms()))
                    if inbox.was_replaced():
                        self._do(self._client.start_over())
                    elif deaf:
                        self._do(self._client.give_up())
                    self._step_out_if_idle()
                self._answer_operator()
                self._look()
                if time.monotonic() >= self._leave_by_s:
                    self._leave_by_s = NEVER_S
                    self.abandon()
        except BaseException as problem:  # the application's next poll() raises it
            self._failure = problem
            self.changed.set()
            with self._lock:
                self._answer_commits()
        finally:
            inbox.close()

    def _pass_on(self, decisions: Iterable[ToAClient]) -> None:
        """Pass decisions on to the other parts of the consumer; without the lock."""
        for decision in decisions:
            if isinstance(decision, Wake | Rejected):
                self._on_answer(decision)
            if isinstance(decision, Rejected) and self._is_misplaced(decision):
                self._outbox.learn_partitions()
            if isinstance(decision, Membership) and self._is_conflict(decision):
                self._log.conflict(decision.detail)

    def _step_out_if_idle(self) -> None:
        """Leave if the application has not read for too long. The caller holds the lock."""
        now_s = time.monotonic()
        # A process that was suspended has not called anything either: that does not count.
        self._idle_s += min(now_s - self._looked_s, LONGEST_STEP_S)
        self._looked_s = now_s
        if self._idle_s > self._poll_timeout_s and not self.is_away:
            self._step_out(f"it has not polled for {self._idle_s:.0f} s{self._application.hanging()}")

    def _answer_operator(self) -> None:
        """Answer `wakeroll inspect`; without the lock, because a running call may wait for it."""
        if self._is_inspected:
            self._is_inspected = False
            self._log.inspected()
            report = self._application.report()
            with self._lock:
                self._do(self._client.report(report, now_ms()))

    def _look(self) -> None:
        if (now_s := time.monotonic()) < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        self._client.handling = self._long_calls.update(self._application.calls())
        if self._will is not None:
            self._will.look()

    def _is_conflict(self, change: Membership) -> bool:
        return change.group_id == self.group_id and change.change == "conflict"

    def _is_misplaced(self, refusal: Rejected) -> bool:
        """Return whether an event was rejected because of its partition: the number of shards may have grown."""
        return (refusal.rule, refusal.client_id, refusal.group_id) == ("partition", self.client_id, self.group_id)

    def _is_allowed(self, may: Callable[[Give, int], bool], give: Give) -> bool:
        return may(give, now_ms()) or self._ask(lambda: self._decide(may, give))

    def _decide(self, may: Callable[[Give, int], bool], give: Give) -> bool:
        """Decide whether a message may be delivered; it may not if its assignment has ended."""
        now = now_ms()
        if may(give, now):
            return True
        self._do(self._client.on_time(now))
        return False

    def _acknowledged(self, beat: Heartbeat, sent_ms: int, partition: int, offset: int) -> None:
        with self._lock:
            self._do(self._client.acknowledged(sent_ms, now_ms()))
            self._do(self._client.stored(beat, partition, offset))

    def _committed(self, commit: Commit, sent_ms: int, _partition: int, _offset: int) -> None:
        with self._lock:
            self._client.committed(commit, sent_ms)
            self._answer_commits()

    def _do(self, outputs: list[Output]) -> None:
        """Execute the client's actions in order. The caller holds the lock."""
        self._log.changed(outputs)
        for output in outputs:
            match output:
                case Send(Heartbeat() as event, sent_ms):
                    self._outbox.send(event, partial(self._acknowledged, event, sent_ms))
                case Send(Commit() as event, sent_ms):
                    self._outbox.send(event, partial(self._committed, event, sent_ms))
                case Send(event):
                    self._outbox.send(event)
                case Give() | Take():
                    self.changed.set()
                case OthersChanged(others):
                    self._log.others_changed(others)
                    self.changed.set()
                case PauseChanged(is_paused):
                    self._log.pause_changed(is_paused)
                    self.changed.set()
                case Dropped():
                    self._drop(output)
                case Inspected():
                    self._is_inspected = True
                case EventRefused():
                    self._note_refusal(output)
        # Before a waiting call returns: then the application may have new queues. While the member leaves, the will
        # stays: the process may die before Kafka has the last events.
        if self._will is not None and not self._is_leaving:
            self._will.follow()

    def _note_refusal(self, refused: EventRefused) -> None:
        if refused.rule in ("mode", "kicked"):  # the rules after which `fenced` follows
            self._refusal = refused.detail
        log.warning("the coordinator rejected an event of %s (%s): %s", self.client_id, refused.rule, refused.detail)

    def _drop(self, dropped: Dropped) -> None:
        self.changed.set()
        self._answer_commits()
        if not self._is_leaving:  # the coordinator confirms that a member has left
            self._log.ended(dropped, self._sentence(dropped))
        if not dropped.comes_back:
            self._ended = dropped
            return
        if dropped.reason == "idle":
            self.is_away = True
            return
        if dropped.reason in ("silent", "deaf") and self._inbox is not None:
            self._inbox.suspect()  # it was out of reach for long, and may be another one meanwhile
        self._join()

    def _join(self) -> None:
        """Join with a new instance that only this process can unregister."""
        if self._has_left:
            return  # the interpreter ends while another thread creates a consumer
        secret = uuid.uuid4().hex
        instance_id = provable_id(secret)
        self._log.joins(instance_id)
        self._do(self._client.join(instance_id, now_ms(), secret))

    def _sentence(self, dropped: Dropped) -> str:
        """Describe why an instance ended."""
        client = self._client
        who = f"client {client.client_id!r} of group {client.group_id!r}"
        match dropped.reason:
            case "duplicate":
                return (
                    f"{who} is a duplicate: another process, instance {dropped.by}, uses the same client_id; "
                    "give each process its own client_id, or omit it"
                )
            case "refused":
                return f"{who} was refused: {self._refusal or 'the group has as many members as max_members allows'}"
            case "left":
                return f"{who} was unregistered; create a new Consumer to rejoin"
            case "kicked":
                return f"{who} stays out: {self._refusal}" if self._refusal else f"{who} was kicked by {dropped.by}"
            case "expired":
                return f"{who} expired: the coordinator received no heartbeat for longer than the session timeout"
            case "deaf":
                return f"{who} could not receive decisions: its partition of the inbox was not readable, or was lost"
            case "epoch":
                return f"{who} sent an epoch that the coordinator never assigned"
            case "idle":
                return f"{who} left because its application does not read"
            case "silent":
                return f"{who} expired: Kafka acknowledged no heartbeat for almost {client.session_timeout_ms} ms"


_members: "weakref.WeakSet[Control]" = weakref.WeakSet()
_is_ending = threading.Event()
"""Set when the interpreter ends."""


def stay_at_end() -> None:
    """In a daemon thread, do not return while the interpreter ends; call it before an exception leaves this package.

    Python stops daemon threads silently. Without this, a thread that waits in a call would print the traceback of an
    exception, because `_leave_all` makes its consumer leave the group during the call.
    """
    while _is_ending.is_set() and threading.current_thread().daemon:
        time.sleep(NOD_S)


def _leave_all() -> None:
    """Leave all groups at the end of the interpreter, which would otherwise keep their queues for a session."""
    _is_ending.set()
    members = [member for member in _members if member._pid == os.getpid()]
    for member in members:
        member.abandon()
    deadline = time.monotonic() + END_S
    for member in members:  # also those that another thread, a daemon, is about to close
        member._calls.join(max(deadline - time.monotonic(), 0.0))


atexit.register(_leave_all)
