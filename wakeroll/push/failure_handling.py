"""The handling of failed messages: retried through the group's retry topic or in place, and dead letters at the end."""

import asyncio
import logging
import reprlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from confluent_kafka import Message

from wakeroll.callbacks import is_async_function
from wakeroll.errors import InvalidUsage, in_words
from wakeroll.held_locks import free
from wakeroll.monotonic_clock import now_ms
from wakeroll.origin import Origin, origin_of, wait_s_of
from wakeroll.push.dispatch import Dispatch
from wakeroll.push.limits import HANDLE_TIMEOUT_S
from wakeroll.push.outcomes import Failed, OnDeadLetter, failed_in
from wakeroll.push.queue_work import Batch, Part
from wakeroll.push.send_back import Letter, SendsBack, new_trace_id
from wakeroll.retry_clock import RetryClock
from wakeroll_model.config import MAX_ERROR, MAX_FAILURES, NEVER_MS
from wakeroll_model.events import Failure
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import DELAYS_S, MAX_DELAY_S, MAX_RETRIES, level_after, level_within

log = logging.getLogger("wakeroll")

IN_PLACE_LEVEL = 1
"""Delay level of a retry in place, 1 s: RocketMQ's `suspendCurrentQueueTimeMillis`."""
LOG_EVERY_MS = 10_000
"""Minimum time between two warnings about failed messages (ms)."""


@dataclass(frozen=True)
class RetryRules:
    """How failed messages are retried.

    Raises:
        InvalidUsage: a number is out of its range.
    """

    in_place: bool
    """Whether messages are retried where they are, as in a group that consumes in order, or broadcasts."""
    max_retries: int | None = None
    """Retries of a message before it becomes a dead letter; None: no limit in order, otherwise as many as
    `retry_delays` has, or 16."""
    handle_timeout: float = HANDLE_TIMEOUT_S
    """Maximum duration of a call (s), after which its messages count as failed; without effect on retries in place."""
    is_orderly: bool = False
    """Whether the messages after a failed one must wait for it."""
    retry_delays: Sequence[int] | None = None
    """Delay of each retry (s), the last one also of all that follow; None: those of the levels."""
    on_dead_letter: OnDeadLetter | None = None
    """Called before a message is stored as a dead letter."""

    def __post_init__(self) -> None:
        delays = self.retry_delays
        if delays is not None and not (
            isinstance(delays, list | tuple)
            and delays
            and all(type(delay) is int and 1 <= delay <= MAX_DELAY_S for delay in delays)
        ):
            raise InvalidUsage(
                f"retry_delays is {delays!r}; it must be a list of one or more whole numbers of seconds, each from 1 "
                f"to {MAX_DELAY_S} (7 days), or None"
            )
        if self.on_dead_letter is not None and not callable(self.on_dead_letter):
            raise InvalidUsage(
                f"on_dead_letter is {self.on_dead_letter!r}; it must be a function of a message, its origin and an "
                "exception, or None"
            )
        if self.max_retries is not None and not (isinstance(self.max_retries, int) and self.max_retries >= 0):
            raise InvalidUsage(f"max_retries is {self.max_retries!r}; it must be 0 or more, or None")
        if not self.handle_timeout > 0:
            raise InvalidUsage(f"handle_timeout is {self.handle_timeout!r}; it must be more than 0 seconds")

    def is_last(self, attempt: int) -> bool:
        """Return whether no retry follows this attempt, counted from 1."""
        most = self.max_retries
        if most is None and not self.is_orderly:
            most = MAX_RETRIES if self.retry_delays is None else len(self.retry_delays)
        return most is not None and attempt > most

    def delay_s_after(self, attempt: int) -> int:
        """Return how long a message waits after this failed attempt, counted from 1 (s)."""
        if self.retry_delays is not None:
            return self.retry_delays[min(attempt, len(self.retry_delays)) - 1]
        return DELAYS_S[(IN_PLACE_LEVEL if self.in_place else level_after(attempt)) - 1]


class FailureHandling:
    """Decides for each failed message of one `run` when it is delivered again, or whether it is dead."""

    def __init__(
        self,
        dispatch: Dispatch,
        sender: SendsBack,
        rules: RetryRules,
        client_id: str,
        clock: RetryClock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """Begin without failed messages.

        Args:
            dispatch: has the batches.
            sender: stores failed messages in other topics.
            rules: of this run.
            client_id: the member whose handler fails.
            clock: decides when a message that waits in place is due.
            spawn: runs a coroutine in the event loop of an ``async`` handler, and does not wait for it.
        """
        self.report = FailureReport()
        """Failed messages that were not reported to the coordinator yet."""
        self._dispatch = dispatch
        self._sender = sender
        self._rules = rules
        self._client_id = client_id
        self._clock = clock
        self._spawn = spawn
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

    def wait_on(self, batch: Batch) -> None:
        """Store messages of the retry topic in another queue of it, because their delay is not over.

        This is no attempt: no call has received them.

        Args:
            batch: failed.
        """
        letters = []
        for message in batch.messages:
            wait_s = wait_s_of(message)
            level = level_within(wait_s)
            letters.append(Letter(message, origin_of(message), level, wait_s - DELAYS_S[level - 1]))
        self._store(batch, letters, [], 0)

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
        """Release the locks that this thread still has after an exception."""
        free(self._lock)
        self.report.free_lock()

    def _call_failed(self, batch: Batch, failed: Sequence[Failed]) -> None:
        """Process a call that failed as a whole, as by an exception.

        The cause may be any of several messages. So each is handled again in a call of its own, at once, and only the
        attempts of those that fail alone count.
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
        dead: list[tuple[Letter, BaseException | None]] = []
        in_place: list[tuple[Message, int]] = []
        for one in counted:
            origin = origin_of(one.message)
            attempt = batch.attempt if self._rules.in_place else origin.attempt
            is_dead = one.is_hopeless or self._rules.is_last(attempt)
            delay_s = self._delay_s(one, attempt, is_dead=is_dead)
            self._note(origin, attempt, delay_s, one.error)
            if is_dead:
                dead.append((self._letter(one, origin, attempt, 0), one.problem))
            elif self._rules.in_place:
                in_place.append((one.message, delay_s))
            else:
                letters.append(self._letter(one, origin, attempt + 1, delay_s))
        parts = self._parts(batch, [message for message, _ in in_place], failed[len(counted) :])
        then = partial(self._store, batch, letters, parts, max((delay_s for _, delay_s in in_place), default=0))
        self._offer(batch, dead, then)

    def _offer(
        self,
        batch: Batch,
        dead: Sequence[tuple[Letter, BaseException | None]],
        then: Callable[[Sequence[Letter]], None],
    ) -> None:
        """Offer the dead letters of a batch to the application first; store those that it has not taken."""
        call = self._rules.on_dead_letter
        if call is None or not dead:
            then([letter for letter, _ in dead])
        elif is_async_function(call):
            self._spawn(self._offer_in_loop(batch, dead, then))
        else:
            left = []
            for letter, problem in dead:
                try:
                    taken: object = call(letter.message, letter.origin, problem)
                except Exception as failure:
                    taken = self._not_taken(letter, failure)
                if not _is_taken(taken):
                    left.append(letter)
            then(left)

    async def _offer_in_loop(
        self,
        batch: Batch,
        dead: Sequence[tuple[Letter, BaseException | None]],
        then: Callable[[Sequence[Letter]], None],
    ) -> None:
        call = cast(Callable[..., Awaitable[object]], self._rules.on_dead_letter)
        try:
            left = []
            for letter, problem in dead:
                try:
                    taken = await call(letter.message, letter.origin, problem)
                except Exception as failure:
                    taken = self._not_taken(letter, failure)
                if not _is_taken(taken):
                    left.append(letter)
            then(left)
        except asyncio.CancelledError as problem:
            self._dispatch.end(problem, batch)
            raise
        except BaseException as problem:  # such as the result of an exception's __str__
            self._dispatch.end(problem, batch)

    def _not_taken(self, letter: Letter, failure: Exception) -> bool:
        """Report an exception of `on_dead_letter`; the message is stored as if there were no such function."""
        log.error(
            "on_dead_letter raised an exception for message %d of %s, which is stored in the dead letter topic: %s",
            letter.origin.offset,
            letter.origin.queue,
            in_words(failure),
        )
        return False

    def _store(
        self, batch: Batch, letters: Sequence[Letter], parts: list[Part], delay_s: int, dead: Sequence[Letter] = ()
    ) -> None:
        """Store failed messages of a batch in their topics; then let its parts be handled again."""
        if letters := [*letters, *dead]:
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
        """Return the messages that the handler receives again in place.

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

    def _delay_s(self, one: Failed, attempt: int, *, is_dead: bool) -> int:
        """Return how long a message waits for its next attempt (s); 0 if there is none."""
        if is_dead:
            return 0
        return DELAYS_S[one.level - 1] if one.level else self._rules.delay_s_after(attempt)

    def _letter(self, one: Failed, origin: Origin, attempt: int, delay_s: int) -> Letter:
        """Return a message for its topic; `attempt`: the next one, or the last one of a dead letter."""
        then = origin._replace(
            attempt=attempt,
            error=one.error,
            error_type=one.error_type,
            trace_id=origin.trace_id or new_trace_id(),
            client_id=self._client_id,
        )
        level = level_within(delay_s)
        return Letter(one.message, then, level, delay_s - DELAYS_S[level - 1] if level else 0)

    def _note(self, origin: Origin, attempt: int, delay_s: int, error: str) -> None:
        self.report.note(origin.queue, origin.offset, attempt, level_within(delay_s), error)
        self._log.note(origin, attempt, delay_s, error)


def _is_taken(answer: object) -> bool:
    """Return whether `on_dead_letter` has taken a message."""
    if answer is not None and not isinstance(answer, bool):
        raise InvalidUsage(f"on_dead_letter returned {reprlib.repr(answer)}; it must return True, False or None")
    return answer is True


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
        """Release the lock if this thread still has it after an exception."""
        free(self._lock)

    def note(self, queue: Queue, offset: int, attempt: int, level: int, error: str) -> None:
        """Add a message; `level` is 0 if it is dead."""
        error = error[:MAX_ERROR]
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
        """Remove and return the failures that fit into one event, the oldest first."""
        with self._lock:
            keys = list(self._combined)[:MAX_FAILURES]
            return [self._combined.pop(key) for key in keys]


class _FailureLog:
    """Warnings about failed messages: every dead letter, and of the retried ones some."""

    def __init__(self) -> None:
        self._next_ms = 0
        self._silent = 0
        """Failures that were not logged since the last warning."""

    def note(self, origin: Origin, attempt: int, delay_s: int, error: str) -> None:
        if not delay_s:
            log.error(
                "message %d of %s is a dead letter after attempt %d: %s", origin.offset, origin.queue, attempt, error
            )
            return
        self._warn(
            "message %d of %s failed at attempt %d; retried after %d s: %s",
            origin.offset,
            origin.queue,
            attempt,
            delay_s,
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
