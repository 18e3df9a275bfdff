"""The handling of failed messages: retried through the group's retry topic or in place, and dead letters at the end."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import Message

from wakeroll.errors import InvalidUsage
from wakeroll.held_locks import free
from wakeroll.monotonic_clock import now_ms
from wakeroll.origin import Origin, origin_of
from wakeroll.push.dispatch import Dispatch
from wakeroll.push.limits import HANDLE_TIMEOUT_S
from wakeroll.push.outcomes import Failed, failed_in
from wakeroll.push.queue_work import Batch, Part
from wakeroll.push.send_back import Letter, SendsBack, new_trace_id
from wakeroll.retry_clock import RetryClock
from wakeroll_model.config import MAX_FAILURES, NEVER_MS
from wakeroll_model.events import Failure
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import DELAYS_S, MAX_RETRIES, level_after

log = logging.getLogger("wakeroll")

IN_PLACE_LEVEL = 1
"""Delay level of a retry in place, 1 s: RocketMQ's `suspendCurrentQueueTimeMillis`."""
LOG_EVERY_MS = 10_000
"""Shortest time between two warnings about failed messages (ms)."""


@dataclass(frozen=True)
class RetryRules:
    """How failed messages are retried.

    Raises:
        InvalidUsage: a number is out of its range.
    """

    in_place: bool
    """Whether messages are retried where they are, as in a group that consumes in order, or broadcasts."""
    max_retries: int | None = None
    """Retries of a message before it becomes a dead letter; None: no limit in order, otherwise 16."""
    handle_timeout: float = HANDLE_TIMEOUT_S
    """Longest time of a call (s), after which its messages count as failed; without effect on retries in place."""
    is_orderly: bool = False
    """Whether the messages after a failed one must wait for it."""

    def __post_init__(self) -> None:
        if self.max_retries is not None and not (isinstance(self.max_retries, int) and self.max_retries >= 0):
            raise InvalidUsage(f"max_retries is {self.max_retries!r}; it must be 0 or more, or None")
        if not self.handle_timeout > 0:
            raise InvalidUsage(f"handle_timeout is {self.handle_timeout!r}; it must be more than 0 seconds")

    def is_last(self, attempt: int) -> bool:
        """Return whether no retry follows this attempt, counted from 1."""
        most = MAX_RETRIES if self.max_retries is None and not self.is_orderly else self.max_retries
        return most is not None and attempt > most


class FailureHandling:
    """Decides for each failed message of one `run` when it is delivered again, or whether it is dead."""

    def __init__(
        self, dispatch: Dispatch, sender: SendsBack, rules: RetryRules, client_id: str, clock: RetryClock
    ) -> None:
        """Begin without failed messages.

        Args:
            dispatch: has the batches.
            sender: stores failed messages in other topics.
            rules: of this run.
            client_id: the member whose handler fails.
            clock: decides when a message that waits in place is due.
        """
        self.report = FailureReport()
        """Failed messages that were not reported to the coordinator yet."""
        self._dispatch = dispatch
        self._sender = sender
        self._rules = rules
        self._client_id = client_id
        self._clock = clock
        self._lock = threading.RLock()
        self._waiting: list[tuple[int, Batch]] = []
        """Batches that are retried in place, with the time of their next attempt by that clock (ms)."""
        self._log = _FailureLog()

    def handle(self, batch: Batch, result: object) -> None:
        """Process a batch of which messages failed; any thread may call it.

        Args:
            batch: its call has ended.
            result: result of the handler, or its exception.
        """
        try:
            failed = failed_in(batch.messages, result)
        except Exception as problem:  # of the handler's result; this is a worker's thread, which must go on
            self._dispatch.end(problem, batch)
            return
        if not self._dispatch.fail(batch):
            return
        if isinstance(result, BaseException):
            self._call_failed(batch, failed)
        else:
            self._handle(batch, failed)

    def handle_overdue(self) -> list[Batch]:
        """Process calls that take too long, as if they had failed; return their batches, also those of lost queues."""
        if self._rules.in_place:
            return []
        timeout_s = self._rules.handle_timeout
        late = self._dispatch.overdue(timeout_s)
        for batch in (batch for batch, is_failed in late if is_failed):
            error = f"the call did not return within {timeout_s:g} s"
            log.warning("%s, offsets %d to %d: %s", batch.work.give.queue, batch.first, batch.last, error)
            self._call_failed(batch, [Failed(message, 0, False, error) for message in batch.messages])
        return [batch for batch, _ in late]

    @property
    def next_due_ms(self) -> int:
        """When the next attempt in place is due, by the clock of retries; `NEVER_MS` if none waits."""
        with self._lock:
            return min((due_ms for due_ms, _ in self._waiting), default=NEVER_MS)

    def put_back_due(self) -> None:
        """Hand out batches again whose next attempt in place is due."""
        if not self._waiting:
            return
        now = self._clock.now_ms()
        with self._lock:
            due = [batch for due_ms, batch in self._waiting if due_ms <= now]
            self._waiting = [waiting for waiting in self._waiting if waiting[0] > now]
        for batch in due:
            self._dispatch.put_back(batch)

    def free_locks(self) -> None:
        """Release the locks that an exception has left to this thread."""
        free(self._lock)
        self.report.free_lock()

    def _call_failed(self, batch: Batch, failed: Sequence[Failed]) -> None:
        """Process a call that failed as a whole, as by an exception.

        Nobody knows which of several messages was the cause. So each is handled again in a call of its own, at once,
        and only the attempts of those that fail alone count.
        """
        if len(failed) == 1:
            self._handle(batch, failed)
            return
        self._log.note_call(batch, failed[0].error)
        alone = [Part([message], batch.attempt) for message in batch.messages]
        self._dispatch.divide(batch, alone, at_once=True)

    def _handle(self, batch: Batch, failed: Sequence[Failed]) -> None:
        counted = self._counted(failed)
        letters: list[Letter] = []
        in_place: list[tuple[Message, int]] = []
        for one in counted:
            origin = origin_of(one.message)
            attempt = batch.attempt if self._rules.in_place else origin.attempt
            is_dead = one.is_hopeless or self._rules.is_last(attempt)
            level = 0 if is_dead else one.level or self._level_after(attempt)
            self._note(origin, attempt, level, one.error)
            if self._rules.in_place and not is_dead:
                in_place.append((one.message, level))
            else:
                letters.append(self._letter(one, origin, attempt, level))
        parts = self._parts(batch, [message for message, _ in in_place], failed[len(counted) :])
        delay_s = max((DELAYS_S[level - 1] for _, level in in_place), default=0)
        if letters:
            later = [message for part in parts for message in part.messages]
            self._sender.send(
                letters,
                lambda: self._go_on(batch, parts, delay_s),
                # In place, messages of a lane wait for a failed one, and so they do for one that cannot be stored.
                lambda left: self._dispatch.hold(batch, [*left, *later], lets_pass=not self._rules.in_place),
            )
        else:
            self._go_on(batch, parts, delay_s)

    def _counted(self, failed: Sequence[Failed]) -> Sequence[Failed]:
        """Return the messages whose attempt counts: in order, those after a failed one have only waited behind it."""
        if self._rules.is_orderly:
            for at, one in enumerate(failed):
                if not one.is_hopeless:
                    return failed[: at + 1]
        return failed

    def _parts(self, batch: Batch, in_place: list[Message], behind: Sequence[Failed]) -> list[Part]:
        """Return what the handler receives again in place.

        Args:
            batch: its call has ended.
            in_place: messages whose next attempt follows here.
            behind: messages that failed after the last one whose attempt counts.
        """
        again = batch.attempt + 1
        if not self._rules.is_orderly:
            return [Part(in_place, again)] if in_place else []
        if in_place:  # those after it must come after it, also those that the handler did process
            [first] = in_place
            after = batch.messages[batch.messages.index(first) + 1 :]
            return [Part([first], again), *([Part(after, 1)] if after else [])]
        if behind:  # the one before them is dead
            return [Part(batch.messages[batch.messages.index(behind[0].message) :], 1)]
        return []

    def _go_on(self, batch: Batch, parts: list[Part], delay_s: int) -> None:
        """Let the parts of a batch be handled again after a delay; without parts, it is processed."""
        if not parts:
            self._dispatch.finish(batch)
            return
        if not delay_s:
            self._dispatch.divide(batch, parts, at_once=True)
            return
        with self._lock:  # `next_due_ms` must not miss a batch that waits already
            due_ms = self._clock.now_ms() + delay_s * 1_000
            self._waiting += [(due_ms, part) for part in self._dispatch.divide(batch, parts, at_once=False)]

    def _level_after(self, attempt: int) -> int:
        return IN_PLACE_LEVEL if self._rules.in_place else level_after(attempt)

    def _letter(self, one: Failed, origin: Origin, attempt: int, level: int) -> Letter:
        then = origin._replace(
            attempt=attempt + 1 if level else attempt,
            error=one.error,
            trace_id=origin.trace_id or new_trace_id(),
            client_id=self._client_id,
        )
        return Letter(one.message, then, level)

    def _note(self, origin: Origin, attempt: int, level: int, error: str) -> None:
        self.report.note(origin.queue, origin.offset, attempt, level, error)
        self._log.note(origin, attempt, level, error)


class FailureReport:
    """Failed messages since the last report, combined by queue, attempt and outcome. Any thread may use it."""

    def __init__(self) -> None:
        """Begin without failed messages."""
        self._lock = threading.RLock()
        self._combined: dict[tuple[Queue, int, int], Failure] = {}
        """(queue, attempt, level) -> the messages that have these in common."""

    def __bool__(self) -> bool:
        return bool(self._combined)

    def free_lock(self) -> None:
        """Release the lock if an exception has left it to this thread."""
        free(self._lock)

    def note(self, queue: Queue, offset: int, attempt: int, level: int, error: str) -> None:
        """Add a message; `level` is 0 if it is dead."""
        with self._lock:
            known = self._combined.get((queue, attempt, level))
            self._combined[queue, attempt, level] = Failure(
                queue=queue,
                first_offset=offset if known is None else min(known.first_offset, offset),
                last_offset=offset if known is None else max(known.last_offset, offset),
                messages=1 if known is None else known.messages + 1,
                attempt=attempt,
                level=level,
                error=error,
            )

    def take(self) -> list[Failure]:
        """Return what one event has room for, the oldest first; it is no longer held."""
        with self._lock:
            keys = list(self._combined)[:MAX_FAILURES]
            return [self._combined.pop(key) for key in keys]


class _FailureLog:
    """Warnings about failed messages: every dead letter, and of the retried ones some."""

    def __init__(self) -> None:
        self._next_ms = 0
        self._silent = 0
        """Failures that were not logged since the last warning."""

    def note(self, origin: Origin, attempt: int, level: int, error: str) -> None:
        if not level:
            log.error(
                "message %d of %s is a dead letter after attempt %d: %s", origin.offset, origin.queue, attempt, error
            )
            return
        self._warn(
            "message %d of %s failed at attempt %d; retried after %d s: %s",
            origin.offset,
            origin.queue,
            attempt,
            DELAYS_S[level - 1],
            error,
        )

    def note_call(self, batch: Batch, error: str) -> None:
        """Report a call of several messages that failed as a whole."""
        self._warn(
            "a call with the %d messages %d to %d of %s failed; each is handled again alone, which tells which of them "
            "fail: %s",
            len(batch.messages),
            batch.first,
            batch.last,
            batch.work.give.queue,
            error,
        )

    def _warn(self, sentence: str, *values: object) -> None:
        now = now_ms()
        if now < self._next_ms:
            self._silent += 1
            return
        more = f"; and {self._silent} others since the last such line" if self._silent else ""
        log.warning(sentence + "%s", *values, more)
        self._next_ms, self._silent = now + LOG_EVERY_MS, 0
