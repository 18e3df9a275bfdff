"""The messages between the reader and an application that polls: read ahead, then in hand, then processed."""

import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka import Message

from wakeroll.heartbeat_thread import Control
from wakeroll.marks import Marks
from wakeroll.message_selection import MessageSelection
from wakeroll.monotonic_clock import clock_ns
from wakeroll.pace import Pace
from wakeroll.queue_starts import RETRY_S
from wakeroll.reader import Move
from wakeroll.sliced_reader import SlicedReader
from wakeroll_model.client_actions import Give
from wakeroll_model.queue import Queue

MOST_AHEAD = 500
"""Maximum number of messages that are read ahead for `poll`: taken from Kafka's client one by one, each would cost
several times more."""
AHEAD_BYTES = 1024 * 1024
"""Maximum number of bytes of their values, estimated by the largest message so far."""
FIRST_TIME = 32
"""Maximum number of messages read ahead before the size of any message is known."""
LOOK_MS = 50
"""Maximum time for which messages that were read ahead are delivered without a check of the membership (ms)."""

NS_PER_MS = 1_000_000


class InHand(NamedTuple):
    """Messages of one assignment that the application received last."""

    give: Give
    first: int
    """Offset of the first of them."""
    end: int
    """Offset up to which the queue is processed when these messages are."""


class _Run:
    """Messages of one assignment that were read, and are delivered in their order."""

    __slots__ = ("at", "end", "give", "messages", "note")

    def __init__(self, give: Give, messages: list[Message], end: int) -> None:
        self.give = give
        self.note: Callable[[int], object] | None = None
        """Function that notes the offset up to which the queue is processed, as `Control.done`; None before the first
        message is delivered."""
        self.messages = messages
        self.at = 0
        """Index of the next message to deliver."""
        self.end = end
        """Offset up to which the queue is processed when the last message of the run is."""


class PolledMessages:
    """Delivers messages of a consumer's queues, and reports those that are processed. For one thread at a time.

    A delivered message is processed when `confirm` is called or, with marks, when it is marked. Messages that were only
    read ahead count as unread: `give_back` lets the reader read them again.
    """

    def __init__(
        self, control: Control, reader: SlicedReader, selection: MessageSelection, retry_topic: str, marks: Marks | None
    ) -> None:
        """Begin without messages.

        Args:
            control: the membership.
            reader: reads the queues.
            selection: selects the messages of each queue.
            retry_topic: the retry topic, whose messages are for `run` only.
            marks: the delivered messages that are not processed; None: `confirm` marks all of them.
        """
        self._control = control
        self._reader = reader
        self._selection = selection
        self._retry_topic = retry_topic
        self._marks = marks
        self._changed = control.changed.is_set
        self._pace = Pace()
        self._runs: deque[_Run] = deque()
        """Messages that were read and not delivered. Only the first run may be delivered in part, or as a whole while
        its last message is in hand."""
        self._batch: list[InHand] = []
        """The messages that the last call delivered, unless it delivered `_last`."""
        self._last: Message | None = None
        """The message of the first run that the last call delivered; None if it delivered other messages, or none."""
        self._now_ns = clock_ns()
        self._sure_until_ns = 0
        """Until when the membership needs no check, by the SDK's clock (ns)."""
        self._sought: set[Queue] = set()
        """Queues that `seek` has moved since the messages in hand were delivered."""
        self._largest = 0
        """Bytes of the largest message so far."""
        _all.add(self)

    # --- delivery ---

    def next(self) -> Message | None:
        """Confirm the last message, and deliver the next one; None if the caller must check the membership first.

        It is called for each message, and costs about a microsecond.
        """
        last = self._last
        if last is None or self._changed() or self._now_ns() >= self._sure_until_ns:
            return None
        run = self._runs[0]
        at = run.at
        if at >= len(run.messages):
            return self._next_run(run)
        run.note(last.offset() + 1)  # type: ignore[misc, operator]  # both are there since a message was delivered
        # In this order: an exception in between may deliver the last message again, but loses none.
        run.at = at + 1
        self._last = message = run.messages[at]
        return message

    def _next_run(self, run: _Run) -> Message | None:
        """Confirm the last message of a run, and deliver the first one of the next run; None if there is none.

        As in `next`, the membership has not changed since both runs were read.
        """
        runs = self._runs
        if len(runs) == 1:
            return None
        run.note(run.end)  # type: ignore[misc]  # it is there since a message was delivered
        self._reader.reach((run.give, run.end))
        self._last = None  # before the run goes: an exception in between must not take it for one of the next run
        runs.popleft()
        following = runs[0]
        following.note = self._control.noting(following.give)
        following.at = 1
        self._sought.discard(following.give.queue)
        self._last = message = following.messages[0]
        return message

    def take(self, most: int, timeout: float, *, alone: bool) -> list[Message]:
        """Deliver at most `most` messages; if none is left, read some, and wait for a part of `timeout` seconds.

        Call it after `confirm`, when changes of the assignment have been applied.

        Args:
            most: maximum number of messages, from 1.
            timeout: seconds.
            alone: whether the caller delivers one message, and the others are read ahead.
        """
        if self._runs and self._runs[0].at == len(self._runs[0].messages):
            self._runs.popleft()  # its last message was delivered by `next`, and is confirmed
        if not self._runs:
            self._fill(self._most_ahead() if alone else most, timeout, alone=alone)
        if self._control.is_paused:  # since these messages were requested
            self.give_back()
        delivered: list[Message] = []
        while self._runs and len(delivered) < most:
            run = self._runs[0]
            if not self._control.may_hand_out(run.give):
                self._runs.popleft()
                continue
            some = run.messages[run.at : run.at + most - len(delivered)]
            self._deliver(run, some, alone=alone)
            delivered += some
        return delivered

    def _deliver(self, run: _Run, some: list[Message], *, alone: bool) -> None:
        """Note that messages of the first run are delivered."""
        first = some[0].offset() or 0
        is_last = run.at + len(some) == len(run.messages)
        end = run.end if is_last else (some[-1].offset() or 0) + 1
        self._sought.discard(run.give.queue)
        if self._marks is not None:
            self._marks.add(run.give, some, end)
        run.at += len(some)
        if alone and self._marks is None:
            run.note = self._control.noting(run.give)
            self._last = some[0]
            self._sure_until_ns = self._control.sure_until_ms(LOOK_MS) * NS_PER_MS
            return
        self._batch.append(InHand(run.give, first, end))
        if is_last:
            self._runs.popleft()

    def _fill(self, most: int, timeout: float, *, alone: bool) -> None:
        """Read messages, ahead if `alone`; those that do not match are processed."""
        if self._reader.is_idle:
            self._control.changed.wait(min(timeout, RETRY_S))
            return
        read = self._reader.take(most, min(timeout, self._pace.wait_s))
        newest: dict[Queue, _Run] = {}
        for give, messages in read:
            self._pace.note()
            if not self._control.may_hand_out(give):
                continue
            if give.queue.topic == self._retry_topic:  # after a run(), until it is revoked; the next run() goes on here
                if give.queue not in self._reader.held_back:
                    self._reader.hold_back([give.queue])
                    self._reader.set_back([(give, messages[0].offset() or 0)])
                continue
            end = (messages[-1].offset() or 0) + 1
            selected, processed = self._selection.select(give, messages, end)
            if selected:
                newest[give.queue] = _Run(give, selected, processed)
                if alone:
                    self._largest = max(self._largest, *map(len, selected))
                self._runs.append(newest[give.queue])
            else:
                self._pass(give, processed, newest.get(give.queue))
        moves, self._reader.moves = self._reader.moves, []
        for move in moves:
            self._follow(move, newest.get(move.give.queue))

    def _follow(self, move: Move, run: _Run | None) -> None:
        """Apply a move of a position without a message; messages that were delivered before are not in hand any more.

        A move back comes before all messages that are read after it.
        """
        if not self._control.may_hand_out(move.give):
            return
        if not move.is_back:
            self._pass(move.give, move.offset, run)
            return
        if self._marks is not None:
            self._marks.drop_from(move.give, move.offset)
        self._control.go_back(move.give, move.offset, move.leader_epoch)
        self._reader.reach((move.give, move.offset))

    def _pass(self, give: Give, end: int, run: _Run | None) -> None:
        """Note that no further message up to an offset will be delivered, after those of a run if there is one."""
        if run is not None:
            run.end = end
            return
        if self._marks is not None:
            self._marks.pass_to(give, end)
        else:
            self._control.done(give, end)
        self._reader.reach((give, end))

    def _most_ahead(self) -> int:
        if not self._largest:
            return FIRST_TIME
        return max(1, min(MOST_AHEAD, AHEAD_BYTES // self._largest))

    # --- messages in hand ---

    @property
    def in_hand(self) -> list[InHand]:
        """The messages that the last call delivered and that are not confirmed, in order. Any thread may call it."""
        last, runs = self._last, self._runs
        if last is None or not runs:
            return self._batch.copy()
        run, offset = runs[0], last.offset() or 0
        return [*self._batch, InHand(run.give, offset, run.end if run.at == len(run.messages) else offset + 1)]

    def confirm(self) -> bool:
        """Note that the application has received the messages in hand: without marks, they are processed.

        Returns:
            Whether this has an effect: it has none if a queue was lost.
        """
        counts = True
        for one in self.in_hand:
            if self._marks is None:
                counts &= self._control.done(one.give, one.end)
            if one.give.queue not in self._sought:
                self._reader.reach((one.give, one.end))
        self.forget_in_hand()
        return counts

    def confirm_below(self, give: Give, offset: int) -> None:
        """Note that messages of one assignment below an offset are processed, and no others of it."""
        if self._marks is not None:
            self._marks.mark_below(give, offset)
        else:
            self._control.done(give, offset)
        in_hand, kept = self.in_hand, list[InHand]()
        for one in in_hand:
            if one.give != give or offset <= one.first:
                kept.append(one)
                continue
            self._reader.reach((give, min(offset, one.end)))
            if one.end > offset:
                kept.append(one._replace(first=offset))
        self.look()
        self._batch, self._last = kept, None

    def forget_in_hand(self) -> None:
        """Note that no message is in hand: they were confirmed, put back, or not received by the application."""
        self._batch, self._last = [], None

    def abandon(self) -> None:
        """Note that the messages in hand may not have been received, after an exception at an unknown point."""
        if (last := self._last) is not None and self._runs:
            give, offset = self._runs[0].give, last.offset() or 0
            has_counted = self._control.progress(give) == offset + 1
            self._reader.reach((give, offset + 1 if has_counted else offset))
        self.forget_in_hand()

    def look(self) -> None:
        """Let the next call check the membership. Any thread may call it."""
        self._sure_until_ns = 0

    # --- the reader ---

    def position(self, queue: Queue) -> int:
        """Return the offset of the next message of a queue to deliver. Any thread may call it.

        Raises:
            InvalidUsage: the queue is not being read.
        """
        read = self._reader.position(queue)
        for run in list(self._runs):
            if run.give.queue == queue and run.at < len(run.messages):
                return run.messages[run.at].offset() or 0
        return read

    def delivered(self, queue: Queue) -> tuple[Give, int] | None:
        """Return the assignment of a queue, and the offset up to which it was delivered; None if there is none."""
        give = self._control.give_of(queue)
        if give is None:
            return None
        if self._reader.assigned().get(queue) == give:
            return give, self.position(queue)
        end = None if self._marks is None else self._marks.end(give)
        return give, end if end is not None else self._control.progress(give) or 0

    def give_back(self) -> None:
        """Let the reader read again the messages that were read ahead."""
        self._set_back([])

    def put_back(self) -> None:
        """Let the reader read again the messages in hand, and those that were read ahead."""
        in_hand = self.in_hand
        if self._marks is not None:
            for one in in_hand:
                self._marks.drop_from(one.give, one.first)
        self._set_back([(one.give, one.first) for one in in_hand if one.give.queue not in self._sought])
        self.forget_in_hand()

    def _set_back(self, places: list[tuple[Give, int]]) -> None:
        """Set the reader back to these places; in other queues, to the first message that was read ahead."""
        self.look()
        first: dict[Queue, tuple[Give, int]] = {}
        for run in self._runs:
            if run.at < len(run.messages):
                first.setdefault(run.give.queue, (run.give, run.messages[run.at].offset() or 0))
        for give, offset in reversed(places):
            first[give.queue] = give, offset
        if first:
            self._selection.set_back(first.values())
        self._keep_last()
        self._runs.clear()

    def seek(self, queue: Queue, offset: int) -> None:
        """Read a queue from an offset on; messages of all queues that were read ahead are read again."""
        self.give_back()
        self._sought.add(queue)
        if self._marks is not None:
            self._marks.forget(queue)
        self._selection.seek(queue, offset)

    def recover(self) -> None:
        """After an exception at an unknown point, set the reader back to messages that are not processed or in hand."""
        self._keep_last()
        self._runs.clear()
        places = [(one.give, one.end) for one in self._batch if one.give.queue not in self._sought]
        self._reader.recover(places)
        self._selection.recover()
        if self._marks is not None:
            for give in self._reader.assigned().values():
                self._marks.drop_from(give, self._reader.position(give.queue))

    def clear(self) -> None:
        """Forget all messages: those in hand are not confirmed any more, and no others are delivered."""
        self.forget_in_hand()
        self._runs.clear()

    def _keep_last(self) -> None:
        """Keep the last message in hand, without the run that it belongs to."""
        self._batch, self._last = self.in_hand, None


_all: "weakref.WeakSet[PolledMessages]" = weakref.WeakSet()


def _after_fork() -> None:
    """Let a forked process refuse each call, also if messages were read ahead."""
    for polled in _all:
        polled.look()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
