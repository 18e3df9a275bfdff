"""The loop of push consumption: it reads ahead, lets workers call the handler, and releases revoked queues."""

import asyncio
import logging
import reprlib
from collections.abc import Callable, Container, Mapping
from functools import partial
from itertools import groupby

from confluent_kafka import Message

from wakeroll.calls_at_work import CallAtWork
from wakeroll.errors import InvalidUsage
from wakeroll.heartbeat_thread import Control
from wakeroll.held_locks import free
from wakeroll.message_selection import MessageSelection
from wakeroll.monotonic_clock import now_ms
from wakeroll.name_lists import names_of
from wakeroll.origin import wait_s_of
from wakeroll.pace import Pace
from wakeroll.push.delayed_messages import DelayedMessages
from wakeroll.push.dispatch import Call, Dispatch
from wakeroll.push.failure_handling import FailureHandling, RetryRules
from wakeroll.push.limits import GIVE_UP_AT, PushLimits
from wakeroll.push.outcomes import Handler
from wakeroll.push.queue_work import Batch, QueueWork, offset_of
from wakeroll.push.send_back import SendsBack
from wakeroll.push.workers import workers_for
from wakeroll.queue_starts import QueueStarts
from wakeroll.reader import Move
from wakeroll.retry_clock import SYSTEM_CLOCK, RetryClock
from wakeroll.sliced_reader import SlicedReader
from wakeroll.thread_stacks import stack_of
from wakeroll_model.client_actions import Give
from wakeroll_model.config import NEVER_MS
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import retry_topic_of

log = logging.getLogger("wakeroll")

PATIENCE_MS = 50
"""How long the loop waits for the workers before it pauses a full queue (ms), as resuming costs a new fetch. If a queue
needed longer the last time, the loop does not wait for it: all other queues would wait too."""
REPORT_EVERY_MS = 1_000
"""Minimum time between two reports of failed messages to the coordinator (ms)."""


class PushLoop:
    """Reads the assigned queues and calls a handler with their messages, until it is stopped or a handler raises.

    A queue that is revoked is released when the running calls of the handler with its messages have returned. Messages
    that no call has received yet are left to the next owner, unless later ones are processed: so nothing is repeated.
    """

    def __init__(
        self,
        control: Control,
        reader: SlicedReader,
        starts: QueueStarts,
        selection: MessageSelection,
        handler: Handler,
        limits: PushLimits,
        rules: RetryRules | None,
        sender: SendsBack,
        *,
        orderly: bool,
        on_ended: Callable[[list[Queue], list[Queue]], object],
        name: str,
        hang_timeout: float | None = None,
        clock: RetryClock = SYSTEM_CLOCK,
        event_loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Prepare; `run` starts threads.

        Args:
            control: the membership.
            reader: reads the queues; used by the thread of `run` only.
            starts: begins to read new queues.
            selection: selects the messages of each queue.
            handler: receives the messages.
            limits: the numbers of calls and messages.
            rules: how failed messages are retried; None: an exception of the handler ends the loop.
            sender: stores failed messages.
            orderly: whether a queue's messages are handled in order of offset.
            on_ended: called with queues that are released and with those that were lost, when no call with their
                messages runs.
            name: of the workers' threads.
            hang_timeout: the consumer leaves if no call returns and no worker is free for so long (s); None: it stays.
            clock: decides when failed messages are due.
            event_loop: of the application, in which an ``async`` handler is called; None: one with a thread of its own.
        """
        self._control = control
        self._reader = reader
        self._starts = starts
        self._selection = selection
        self._limits = limits
        self._orderly = orderly
        self._on_ended = on_ended
        self._work: dict[Queue, QueueWork] = {}
        """Queue that is read now and had messages -> its messages."""
        self._leaving: dict[Queue, _Leaving] = {}
        """Queues that were revoked or lost, while calls of the handler with their messages run."""
        self._paused: dict[Queue, QueueWork] = {}
        self._full_since_ms: dict[Queue, int] = {}
        """Queue -> when it was paused last because it was full, if the workers did not make room soon."""
        self._returning: dict[Queue, Move] = {}
        """Queues whose log lost its tail, while calls of the handler with their messages run."""
        self._largest = 0
        """Size of the largest message so far (bytes); 0 if there was none."""
        self._clock = clock
        self._is_read = False
        """Whether there was nothing to read in the last round, and no queue that was full is read on since."""
        self._delayed = DelayedMessages()
        self._retry_topic = retry_topic_of(control.group_id)
        self._dispatch = Dispatch(self._may_handle, control.done, clock)
        self._dispatch.pause(control.is_paused)
        self._failures = (
            None
            if rules is None
            else FailureHandling(
                self._dispatch,
                sender,
                rules,
                control.client_id,
                clock,
                lambda coroutine: self._workers.spawn(coroutine),
            )
        )
        self._report_due_ms = 0
        self._hang_timeout = hang_timeout
        self._pace = Pace()
        self._sender = sender
        on_failure = self._fail if self._failures is None else self._failures.handle
        self._workers = workers_for(handler, limits.workers, self._dispatch, on_failure, name, event_loop)

    def run(self, goes_on: Callable[[], bool], end_timeout: Callable[[], float]) -> None:
        """Consume until `goes_on` returns False.

        Calls that are still running then may return within as many seconds as `end_timeout` returns. Progress is
        reported, and the reader is set back to the first message that is not processed.

        Raises:
            BaseException: the first exception of the handler or of a callback.
        """
        try:
            self._consume(goes_on, end_timeout)
        except BaseException:
            self.abandon()
            raise
        if self._dispatch.problem is not None:
            raise self._dispatch.problem

    def _consume(self, goes_on: Callable[[], bool], end_timeout: Callable[[], float]) -> None:
        is_certain = False
        try:
            self._control.beside(self._workers.start)
            while goes_on() and self._dispatch.problem is None:
                self._control.check()
                self._look_for_hang()
                self._clock.on_round(self.idle_until_ms)
                self._follow()
                self._take()
                self._resume()
                self._retry()
                self.report()
                self._release()
            is_certain = True
        finally:
            self._end(end_timeout(), is_certain)

    def abandon(self) -> None:
        """Let the threads end, after an exception at any point of the loop; it may be interrupted, and called again.

        Threads whose call of the handler does not return end when it does.
        """
        self._free_locks()
        self._dispatch.close()
        self._workers.end()
        self._sender.close()

    def _free_locks(self) -> None:
        """Release the locks that the thread of `run` still has after an exception."""
        free(self._dispatch.lock)
        if self._failures is not None:
            self._failures.free_locks()

    def report(self) -> None:
        """Report the positions that advanced; they are committed at the commit interval. Any thread may call it."""
        dispatch = self._dispatch
        with dispatch.lock:
            for work in dispatch.advanced:
                self._reader.reach((work.give, work.position))
            dispatch.advanced.clear()

    def position(self, queue: Queue) -> int | None:
        """Return the offset of the first message of a queue that is not processed; None if none was read yet."""
        with self._dispatch.lock:
            work = self._work.get(queue)
            return None if work is None else work.position

    def idle_until_ms(self) -> int | None:
        """Return when the next failed message is due, by the clock of retries; for the loop's thread.

        `NEVER_MS` if none waits; None if there is other work to do now.
        """
        if not self._is_read or self._leaving or self._control.changed.is_set() or self._starts.is_due or self._low():
            return None
        with self._dispatch.lock:
            if self._dispatch.is_ready or any(work.running for work in self._work.values()):
                return None
        in_place = NEVER_MS if self._failures is None else self._failures.next_due_ms
        return min(in_place, self._delayed.next_due_ms)

    def end(self, problem: BaseException) -> None:
        """End the loop because of an error; any thread may call it."""
        self._dispatch.end(problem)

    def lose_calls(self, problem: BaseException) -> None:
        """End the loop, because the application's event loop is closed; any thread may call it."""
        self._dispatch.end(problem)
        self._workers.lose_calls(problem)

    def _may_handle(self, work: QueueWork) -> bool:
        """Return whether the handler may have a message of this queue now; called by the workers."""
        return now_ms() < work.until_ms and self._control.may_handle(work.give)

    def _fail(self, batch: Batch, result: object) -> None:
        """End the loop because a call failed, in a run without retries."""
        wrong = f"the handler returned {reprlib.repr(result)}; without retries, it must return None"
        self._dispatch.end(result if isinstance(result, BaseException) else InvalidUsage(wrong), batch)

    # --- steps of the loop ---

    def _follow(self) -> None:
        """Apply changes of the assignment."""
        control = self._control
        if not control.changed.is_set() and not self._starts.is_due:
            return
        control.changed.clear()
        try:
            # Once: a queue that is revoked meanwhile still has its work here, and must not count as never read.
            readable, draining = control.view()
            self._reader.stop_all_but(readable)
            self._reader.stop(control.is_paused)
            self._selection.follow()
            now = now_ms()
            until = NEVER_MS if self._orderly else now + round(control.revoke_timeout_s * 1_000 * GIVE_UP_AT)
            for queue in (give.queue for give in self._starts.ended()):
                self._paused.pop(queue, None)
                self._full_since_ms.pop(queue, None)
                self._returning.pop(queue, None)
                self._delayed.drop(queue)
                # In this order, because `_end` must know of all work, whenever an exception comes.
                self._leaving[queue] = _Leaving(self._work.get(queue), now, until)
                self._work.pop(queue, None)
            # Draining queues that were never read have no messages at work either.
            for queue in draining:
                self._leaving.setdefault(queue, _Leaving(None, now, until))
            with self._dispatch.lock:
                for leaving in self._leaving.values():
                    leaving.stop()
            self._dispatch.pause(control.is_paused)
            self._release()
            self._starts.begin(control.view()[0], but_not=self._leaving)
        except BaseException:
            control.changed.set()  # a callback failed: the next run() continues
            raise

    def _look_for_hang(self) -> None:
        """Leave while no worker can handle a message; come back when one can."""
        if self._hang_timeout is None:
            self._control.called()
            return
        calls = self._dispatch.hanging(self._hang_timeout, self._workers.has_idle)
        if not calls:
            self._control.called()
        elif not self._control.is_away:
            self._control.step_out(f"all its workers hang{''.join(map(self._described, calls))}")

    def calls_at_work(self) -> list[CallAtWork]:
        """Return the calls of the handler that have not returned, the oldest first; any thread may call it."""
        return list(map(self._at_work, self._dispatch.calls()))

    def _at_work(self, call: Call) -> CallAtWork:
        batch = call.batch
        return CallAtWork(
            batch.work.give.queue,
            batch.first,
            batch.last,
            self._clock.now_ms() - call.begun_ms,
            lambda: self._workers.stack_of(batch) or stack_of(call.thread_id),
        )

    def _described(self, call: Call) -> str:
        found = self._at_work(call)
        return f"; {found.words}; its thread is here:\n{found.stack()}"

    def _take(self) -> None:
        """Read messages, and add those that may be handled now to the batches of the workers."""
        self._go_on_where_settled()
        self._is_read = not self._returning
        if self._reader.is_idle:
            if self._paused:
                self._dispatch.wait_for(lambda: bool(self._low_ones()), self._pace.wait_s)
            else:
                self._control.changed.wait(self._pace.wait_s)
            return
        touched, delayed = [], []
        for give, messages in self._reader.take(self._limits.most_at_once(self._largest), self._wait_s(), each=True):
            self._is_read = False
            self._pace.note()
            if give.queue in self._returning:
                continue  # they are read again
            work = self._work.get(give.queue)
            if work is None:
                work = self._work[give.queue] = self._new_work(give, offset_of(messages[0]))
            if give.queue.topic == self._retry_topic:
                self._delayed.add(work, messages, self._clock.now_ms(), self._clock.epoch_ms())
                delayed.append(work)
                continue
            end = offset_of(messages[-1]) + 1
            self._dispatch.add(work, *self._selection.select(give, messages, end))
            self._largest = max(self._largest, work.largest)
            touched.append(work)
        if self._reader.moves or self._reader.is_mending:
            self._is_read = False
            self._follow_moves()
        self._workers.wake()
        with self._dispatch.lock:
            full = [work for work in touched if self._is_full(work)]
        if full:
            self._pause(full)
        if delayed:
            self._reader.hold_back([work.give.queue for work in delayed])
            self._paused |= {work.give.queue: work for work in delayed}

    def _wait_s(self) -> float:
        """Return how long to wait for messages (s): shortly unless there is nothing else to do."""
        if self.idle_until_ms() is None:
            self._pace.note()
        return self._pace.wait_s

    def _follow_moves(self) -> None:
        """Apply changes of positions without a message: skipped offsets, or a lost tail of the log."""
        moves, self._reader.moves = self._reader.moves, []
        for move in moves:
            give, work = move.give, self._work.get(move.give.queue)
            if move.is_back and work is not None:
                self._return(move, work)
            elif work is not None:
                if give.queue not in self._delayed and give.queue not in self._returning:
                    self._dispatch.add(work, [], move.offset)
            elif self._control.may_hand_out(give):
                if move.is_back:
                    self._control.go_back(give, move.offset, move.leader_epoch)
                else:
                    self._control.done(give, move.offset)
                self._reader.reach((give, move.offset))

    def _return(self, move: Move, work: QueueWork) -> None:
        """Continue a queue at an earlier offset when the running calls with its messages have returned."""
        queue = move.give.queue
        self._delayed.drop(queue)
        with self._dispatch.lock:
            work.stop()
        self._paused.pop(queue, None)
        self._reader.hold_back([queue])
        self._returning[queue] = move

    def _go_on_where_settled(self, *, all_of_them: bool = False) -> None:
        """Continue queues whose log lost its tail, and with whose messages no call runs."""
        for queue, move in list(self._returning.items()):
            with self._dispatch.lock:
                work = self._work[queue]
                if not (work.is_settled or all_of_them):
                    continue
                position = work.position
            self.report()
            del self._returning[queue], self._work[queue]
            self._control.go_back(move.give, move.offset, move.leader_epoch)
            place = move.give, min(position, move.offset)
            self._reader.reach(place)
            self._reader.set_back([place])
            self._reader.go_on([queue])

    def _retry(self) -> None:
        """Hand out messages whose next attempt is due, and process calls that take too long."""
        for work, messages in self._delayed.due(self._clock.now_ms()):
            for waits, some in groupby(messages, lambda message: wait_s_of(message) > 0):
                self._go_on_with(work, list(some), waits=waits)
        if self._failures is None:
            return
        self._failures.put_back_due()
        for batch in self._failures.handle_overdue():
            self._control.beside(partial(self._workers.replace, batch))
        if self._workers.is_short():
            self._control.beside(self._workers.fill)
        if self._dispatch.is_ready:
            self._workers.wake()  # also for messages that no round of reading has added
        if self._failures.report and now_ms() >= self._report_due_ms:
            self._report_due_ms = now_ms() + REPORT_EVERY_MS
            self._control.report_failures(self._failures.report.take())

    def _go_on_with(self, work: QueueWork, messages: list[Message], *, waits: bool) -> None:
        """Hand out messages of the retry topic, or store them in another queue of it until they are due."""
        end = offset_of(messages[-1]) + 1
        if not waits:
            self._dispatch.add(work, messages, end)
            self._largest = max(self._largest, work.largest)
        elif (batch := self._dispatch.set_apart(work, messages, end)) is not None:
            assert self._failures is not None, "only a run with retries reads the retry topic"
            self._failures.wait_on(batch)

    def _new_work(self, give: Give, start: int) -> QueueWork:
        limits = self._limits
        return QueueWork(give, start, batch_size=limits.batch_size, lanes=limits.workers, orderly=self._orderly)

    def _is_full(self, work: QueueWork) -> bool:
        return self._limits.is_full(work.messages, work.bytes, work.span, self._largest)

    def _pause(self, full: list[QueueWork]) -> None:
        """Pause full queues, unless the workers make room soon.

        With a slice, the others of its partition that have enough messages are paused: reading them on would pass over
        messages of the full one, which would have to be read again.
        """
        quick = [work for work in full if work.give.queue not in self._full_since_ms]
        if quick:
            self._dispatch.wait_for(lambda: not any(map(self._is_full, quick)), PATIENCE_MS / 1_000)
        with self._dispatch.lock:
            still_full = {work.give.queue: work for work in full if self._is_full(work)}
            self._full_since_ms |= dict.fromkeys(still_full, now_ms())
            cut = {queue.whole for queue in still_full if queue.slices > 1}
            still_full |= {
                queue: work
                for queue, work in (self._work.items() if cut else ())
                if queue.whole in cut and not self._needs_more(work)
            }
        self._reader.hold_back(list(still_full))
        self._paused |= still_full

    def _resume(self) -> None:
        low = self._low()
        self._reader.go_on(low)
        for queue in low:
            self._is_read = False
            del self._paused[queue]
            if now_ms() - self._full_since_ms.get(queue, NEVER_MS) in range(PATIENCE_MS):
                del self._full_since_ms[queue]

    def _low(self) -> list[Queue]:
        """Return the paused queues that can be read on."""
        if not self._paused:
            return []
        with self._dispatch.lock:
            return self._low_ones()

    def _low_ones(self) -> list[Queue]:
        """Return the paused queues that can be read on, under the lock of the dispatch."""
        needy = {queue.whole for queue, work in self._paused.items() if queue.slices > 1 and self._needs_more(work)}
        return [
            queue
            for queue, work in self._paused.items()
            if queue not in self._delayed
            and (
                self._limits.is_low(work.messages, work.bytes, work.span)
                if queue.slices == 1
                else queue.whole in needy and not self._is_full(work)
            )
        ]

    def _needs_more(self, work: QueueWork) -> bool:
        """Return whether a slice must be read on, even if messages of other slices are passed over for it."""
        return self._limits.needs_more(work.messages, work.bytes, work.span)

    def _release(self) -> None:
        """Release revoked queues without running calls, and those whose calls take too long."""
        if not self._leaving:
            return
        now = now_ms()
        draining = set(self._control.view()[1])
        with self._dispatch.lock:
            ended = {
                queue: leaving
                for queue, leaving in self._leaving.items()
                if leaving.is_settled or (queue in draining and now >= leaving.until_ms)
            }
            for leaving in ended.values():
                leaving.halt()
            if ended:
                _log_the_end(ended, draining, now)
        if not ended:
            return
        self.report()
        for queue in ended:
            del self._leaving[queue]
        self._on_ended(sorted(ended.keys() & draining), sorted(ended.keys() - draining))
        self._control.released(ended)
        if not self._leaving or any(queue.slices > 1 for queue in ended):
            self._control.changed.set()  # a queue that came back, or has messages of it, can be read now

    def _end(self, timeout: float, is_certain: bool) -> None:
        """Wait for the running calls, report the processed messages, and set the reader back to the others.

        After an exception at any point of the loop, the state of the reader is not certain: see `Reader.recover`.
        """
        try:
            self._free_locks()
            works = [*self._work.values(), *(one.work for one in self._leaving.values() if one.work is not None)]
            with self._dispatch.lock:
                for work in works:
                    work.stop()
            self._dispatch.pause(self._control.is_paused)  # workers may have what is handled before the end
            if running := self._dispatch.wait_for_calls(works, timeout):
                log.warning(
                    "calls of the handler are at work after %.0f s: %d; their messages will be delivered again",
                    timeout,
                    running,
                )
        finally:  # a second Ctrl-C must not leave workers behind, nor the reader beyond what is not processed
            self._free_locks()
            self._dispatch.close()
            self.report()
            if is_certain:
                self._set_back()
            self._control.changed.set()  # queues that are being revoked are released by the next call of poll or run
        self._workers.end()
        self._workers.join()
        self._sender.close()
        while self._failures is not None and self._failures.report:
            self._control.report_failures(self._failures.report.take())

    def _set_back(self) -> None:
        """Set the reader back to the first message of each queue that is not processed."""
        self._go_on_where_settled(all_of_them=True)
        self._reader.go_on(list(self._paused))
        self._paused.clear()
        self._selection.set_back([(work.give, work.position) for work in self._work.values()])


class _Leaving:
    """A queue that was revoked or lost."""

    def __init__(self, work: QueueWork | None, since_ms: int, until_ms: int) -> None:
        self.work = work
        self.until_ms = until_ms
        self.since_ms = since_ms
        self.left = 0
        """Number of messages that were read, and that no call received."""

    @property
    def running(self) -> int:
        """Number of running calls of the handler with messages of the queue."""
        return 0 if self.work is None else self.work.running

    @property
    def is_settled(self) -> bool:
        """Whether no call with its messages runs, and none of them has to be handled here."""
        return self.work is None or self.work.is_settled

    def stop(self) -> None:
        if self.work is not None:
            self.left += self.work.stop()
            self.work.until_ms = self.until_ms

    def halt(self) -> None:
        if self.work is not None:
            self.work.halt()


def _log_the_end(ended: Mapping[Queue, _Leaving], draining: Container[Queue], now_ms: int) -> None:
    """Log how these queues ended: one line for those that were lost, one for those released, one per queue given up."""
    lost = sorted(queue for queue in ended if queue not in draining)
    given_up = sorted(queue for queue, leaving in ended.items() if queue in draining and leaving.running)
    released = sorted(ended.keys() - {*lost, *given_up})

    def read_only(queues: list[Queue]) -> int:
        return sum(ended[queue].left for queue in queues)

    def longest_s(queues: list[Queue]) -> float:
        return max(now_ms - ended[queue].since_ms for queue in queues) / 1_000

    if lost:
        log.info("lost %s; messages that were only read: %d", names_of(lost), read_only(lost))
    if released:
        log.info(
            "released %s after %.1f s; messages that were only read: %d",
            names_of(released),
            longest_s(released),
            read_only(released),
        )
    for queue in given_up:
        log.warning(
            "gave up %s after %.1f s: calls of the handler are still at work on it: %d; "
            "their messages will be delivered again to the next owner",
            queue,
            longest_s([queue]),
            ended[queue].running,
        )
