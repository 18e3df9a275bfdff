"""The hand-out of batches to workers, and the workers' reports."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from confluent_kafka import Message

from wakeroll.push.queue_work import Batch, Part, QueueWork
from wakeroll.retry_clock import RetryClock
from wakeroll_model.client_actions import Give


class Call(NamedTuple):
    """A call of the handler that has not returned."""

    batch: Batch
    begun_ms: int
    """When the call began, by the clock of retries."""
    thread_id: int
    """The thread that calls the handler."""


class Dispatch:
    """Batches that may be handled now, in order. It is shared by the loop that adds them and by all workers.

    One lock guards it and all `QueueWork`. A worker takes it once per batch: waking another thread costs more than
    everything else that is done for a batch.
    """

    def __init__(
        self, may_handle: Callable[[QueueWork], bool], on_advance: Callable[[Give, int], object], clock: RetryClock
    ) -> None:
        """Begin without batches.

        Args:
            may_handle: called before each batch that a worker receives.
            on_advance: called, under the lock, with an assignment and its position whenever that may have advanced.
            clock: decides when a call takes too long.
        """
        self.lock = threading.RLock()
        self.problem: BaseException | None = None
        """The first exception of the handler; no batch is handed out afterwards."""
        self.advanced: set[QueueWork] = set()
        """Queues whose position may have advanced since it was last reported to the reader."""
        self._may_handle = may_handle
        self._on_advance = on_advance
        self._now_ms = clock.now_ms
        self._calls: dict[Batch, Call] = {}
        """Batch -> its call, also if it is overdue."""
        self._progress_ms = clock.now_ms()
        """When a call began or returned last."""
        self._waited_ms = self._progress_ms
        """When no batch was ready last, as far as `hanging` has seen."""
        self._ready: deque[Batch] = deque()
        self._work = threading.Condition(self.lock)
        """Notified when a batch is ready, or on `close`."""
        self._idle = 0
        """Threads that wait for a batch."""
        self._progress = threading.Condition(self.lock)
        """Notified when a call has returned."""
        self._is_awaited = False
        """Whether a thread waits for progress."""
        self._is_closed = False
        self._is_paused = False

    @property
    def has_idle(self) -> bool:
        """Whether a thread waits for a batch."""
        return self._idle > 0

    @property
    def is_ready(self) -> bool:
        """Whether a batch may be handled now."""
        return bool(self._ready)

    # --- for the loop ---

    def add(self, work: QueueWork, messages: list[Message], end: int) -> None:
        """Add the next messages of a queue; see `QueueWork.add`."""
        with self.lock:
            self._ready += work.add(messages, end)
            if not messages:
                self._advance(work)
            if self._ready and self._idle:
                self._work.notify()

    def set_apart(self, work: QueueWork, messages: list[Message], end: int) -> Batch | None:
        """Add messages that no call receives, as a failed batch; None if its queue was lost or stopped.

        See `QueueWork.set_apart`.
        """
        with self.lock:
            batch = work.set_apart(messages, end)
        if batch is not None and not self._may_handle(work):
            self._abandon(batch)
            return None
        return batch

    def wait_for(self, condition: Callable[[], bool], timeout: float) -> None:
        """Wait at most `timeout` seconds until a condition is true, or the handler has raised."""
        with self.lock:
            self._is_awaited = True
            self._progress.wait_for(lambda: condition() or self.problem is not None, timeout)
            self._is_awaited = False

    def wait_for_calls(self, works: list[QueueWork], timeout: float) -> int:
        """Wait until no batch of these stopped queues is running or waits; return the number of calls still running.

        Batches that wait will not be handled after that, nor after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        with self.lock:
            self._is_awaited = True
            self._progress.wait_for(lambda: self.problem is not None or all(work.is_settled for work in works), timeout)
            for work in works:
                work.halt()
            left_s = max(deadline - time.monotonic(), 0.0)
            self._progress.wait_for(lambda: not any(work.running for work in works), left_s)
            self._is_awaited = False
            return sum(work.running for work in works)

    def overdue(self, timeout: float) -> list[tuple[Batch, bool]]:
        """Return the batches whose calls take longer than `timeout` seconds; the results of these calls are ignored.

        Returns:
            Each batch, and whether it is to be retried from here; see `fail`.
        """
        before_ms = self._now_ms() - timeout * 1_000
        with self.lock:
            calls = [call for call in self._calls.values() if call.begun_ms < before_ms]
            late = [call.batch for call in calls if not call.batch.is_overdue]
            for batch in late:
                batch.is_overdue = True
        return [(batch, self.fail(batch)) for batch in late]

    def hanging(self, timeout: float, has_idle: Callable[[], bool]) -> list[Call]:
        """Return the running calls, if no call has begun or ended for `timeout` seconds, although one could.

        One could if no worker is free, or if a batch was ready all the time: tasks that are free cannot take it while
        another one blocks their event loop. The loop of `run` calls this in each round.

        Args:
            timeout: seconds.
            has_idle: returns whether a worker waits for a batch.
        """
        with self.lock:
            now_ms = self._now_ms()
            if not self._ready or self._is_paused:
                self._waited_ms = now_ms
            since_ms = max(self._progress_ms, self._waited_ms) if has_idle() else self._progress_ms
            if not self._calls or now_ms - since_ms <= timeout * 1_000:
                return []
            return self.calls()

    def calls(self) -> list[Call]:
        """Return the calls that have not returned, the oldest first; any thread may call it."""
        with self.lock:
            return sorted(self._calls.values(), key=lambda call: call.begun_ms)

    def returned(self, batch: Batch) -> None:
        """Note that the call of a batch has returned, with a result or an exception."""
        with self.lock:
            self._calls.pop(batch, None)
            self._progress_ms = self._now_ms()

    def pause(self, is_paused: bool) -> None:
        """Hand out nothing while the group is paused, except batches of queues that are being released."""
        with self.lock:
            self._is_paused = is_paused
            if self._ready and self._idle:
                self._work.notify()

    def put_back(self, batch: Batch) -> None:
        """Hand out a batch again that waited for its next attempt."""
        with self.lock:
            self._ready.append(batch)
            if self._idle:
                self._work.notify()

    def close(self) -> None:
        """Hand out nothing more; threads that wait for a batch receive None."""
        with self.lock:
            self._is_closed = True
            self._ready.clear()
            self._work.notify_all()

    # --- for the workers ---

    def next(self, finished: Batch | None, *, wait: bool) -> Batch | None:
        """Note that a batch is processed, and return the next one.

        Args:
            finished: the worker's last batch; None if it has none, or it failed.
            wait: whether to wait for a batch.

        Returns:
            A batch, or None: there is none now, or with `wait` never again, for this worker or for any.
        """
        while True:
            with self.lock:
                if finished is not None:
                    self._calls.pop(finished, None)
                    self._progress_ms = self._now_ms()
                    if finished.state == "running":
                        self._finish(finished)
                    if finished.is_overdue and wait:
                        return None  # another thread has taken this one's place
                    finished = None
                batch = self._take()
                while batch is None and wait and not self._is_closed:
                    self._idle += 1
                    self._work.wait()
                    self._idle -= 1
                    batch = self._take()
                if self._ready and self._idle:
                    self._work.notify()  # one worker wakes the next: as many are awake as there is work for
            if batch is None or self._may_handle(batch.work):
                return batch
            self.returned(batch)
            self._abandon(batch)

    def fail(self, batch: Batch) -> bool:
        """Note that the handler did not process a batch; return whether it is to be retried from here.

        It is not if its call was overdue, or if its queue was lost: then its messages are delivered again anyway.
        """
        if not self._may_handle(batch.work):
            self._abandon(batch)
            return False
        with self.lock:
            return batch.work.fail(batch)

    def finish(self, batch: Batch) -> None:
        """Note that a failed batch is stored elsewhere, which counts as processed."""
        with self.lock:
            if batch.state in ("failed", "held"):
                self._finish(batch)
                if self._ready and self._idle:
                    self._work.notify()

    def hold(self, batch: Batch, messages: Sequence[Message], *, lets_pass: bool) -> bool:
        """Note that some messages of a failed batch cannot be stored for now; see `QueueWork.hold`.

        Returns:
            Whether they wait here: not if their queue was lost or stopped.
        """
        if not self._may_handle(batch.work):
            self._abandon(batch)
            return False
        with self.lock:
            if batch.state in ("failed", "held"):
                following = batch.work.hold(batch, messages, lets_pass=lets_pass)
                if following is not None and self.problem is None:
                    self._ready.append(following)
                    if self._idle:
                        self._work.notify()
                self._advance(batch.work)
                self._progress.notify_all()
            return batch.state == "held"

    def divide(self, batch: Batch, parts: Sequence[Part], *, at_once: bool) -> list[Batch]:
        """Replace a failed batch by others; see `QueueWork.divide`.

        Args:
            batch: failed.
            parts: of the batch.
            at_once: whether to hand out the new batches now, before all others; otherwise they wait for `put_back`.

        Returns:
            The new batches that wait for nothing but that.
        """
        with self.lock:
            if batch.state not in ("failed", "held"):
                return []  # its queue was stopped while its messages were held
            ready = batch.work.divide(batch, parts)
            if at_once:
                self._ready.extendleft(reversed(ready))
                if self._idle:
                    self._work.notify()
            self._advance(batch.work)
            self._progress.notify_all()
            return ready

    def end(self, problem: BaseException, batch: Batch | None = None) -> None:
        """End the hand-out because of an error, which a batch has caused if one is named.

        After `close` an error is ignored, as when a task is cancelled.
        """
        with self.lock:
            if self.problem is None and not self._is_closed:
                self.problem = problem
            self._ready.clear()
            self._progress.notify_all()
        if batch is not None:
            self._abandon(batch)

    def _take(self) -> Batch | None:
        while (batch := self._next_ready()) is not None and not self._is_closed and self.problem is None:
            self._ready.remove(batch)
            if batch.work.begin(batch):
                self._progress_ms = now_ms = self._now_ms()
                self._calls[batch] = Call(batch, now_ms, threading.get_ident())
                return batch
        return None

    def _next_ready(self) -> Batch | None:
        """Return the next batch that may begin; in a paused group, only if its queue is being released."""
        if not self._is_paused:
            return self._ready[0] if self._ready else None
        return next((batch for batch in self._ready if batch.work.is_stopped), None)

    def _finish(self, batch: Batch) -> None:
        following = batch.work.finish(batch)
        if following is not None and self.problem is None:
            self._ready.append(following)
        self._advance(batch.work)
        if self._is_awaited:
            self._progress.notify_all()

    def _advance(self, work: QueueWork) -> None:
        self.advanced.add(work)
        if not self._is_closed:  # later, others may handle its messages
            # At once, in the thread of the call: if the process dies now, what its handlers have done is not repeated.
            self._on_advance(work.give, work.position)

    def _abandon(self, batch: Batch) -> None:
        with self.lock:
            if batch.state in ("running", "failed", "held"):
                batch.work.abandon(batch)
            self._progress.notify_all()
