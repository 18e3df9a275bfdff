"""When to start workers for a group that has none: decided from its members, its offsets and its unread messages.

The command `wakeroll wake` runs this logic with Kafka and processes. The caller provides the time: `now_ms` is a
monotonic clock, in milliseconds.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from wakeroll_model import config
from wakeroll_model.partition_progress import PartitionProgress
from wakeroll_model.queue import Queue

UNKNOWN_MS = 15_000
"""How long messages stay unread before a worker is started, if it is not known whether the group has members, ms. A
member commits three times in this time by default."""
STUCK_MS = 1_800_000
"""How long messages stay unread before a worker is started, if the group has members, ms: the longest session. If the
coordinator lost its state, members can be gone without a decision."""
RETURN_MS = 120_000
"""How long members may take to return after the coordinator lost its state, ms: the longest session of a profile."""
SETTLE_MS = 10_000
"""How long after the end of a worker the last decisions about it (commits, its leave) may arrive, ms."""
FRUITLESS = 3
"""After this many workers that joined and ended successfully without a commit, the rest of a queue probably consists of
records that are never committed. One worker is not enough evidence, because it may end before its first message
arrives."""
RECHECK_MS = 3_600_000
"""After this time one more worker is started for such a rest, ms: the messages may have been unreadable for a while,
for example because their partition had no leader."""


class WakeRules(Struct, frozen=True, kw_only=True):
    """Limits of a sleeping group."""

    most_workers: int = 1
    """Largest number of workers at a time. No more are started than there are queues or slices with unread
    messages."""
    first_backoff_ms: int = 1_000
    """Pause after a worker that failed; doubled with each further failure."""
    longest_backoff_ms: int = 300_000
    longest_sleep_ms: int = config.FORGET_MS // 2
    """A worker is also started after this time without members: a group without members is forgotten after a week,
    with its offsets."""


class Wanted(Struct, frozen=True):
    """A worker must be started."""

    queues: tuple[Queue, ...]
    """Queues with unread messages, sorted; none if the group would be forgotten otherwise."""


class _Unread(Struct):
    end: int
    """The end of the queue, as far as known."""
    due_ms: int
    """When the messages may be read first."""
    since_ms: int
    """When the messages were first found or, if that is later, when the committed offset last changed."""
    fruitless: int = 0
    """Number of workers in a row that ended successfully without a commit in this queue."""


class _Settled(Struct):
    end: int
    """End offset up to which workers found no messages."""
    recheck_ms: int
    """When one more worker must check."""


class SleepingGroup:
    """The state of a group whose workers run only while there are messages; nothing is known at first."""

    def __init__(self, rules: WakeRules, asleep_since_ms: int) -> None:
        """Begin without workers.

        Args:
            rules: the limits.
            asleep_since_ms: when the last decision about the group was made, by the clock of `now_ms`.
        """
        self.members: int | None = None
        """Number of members; None: not known."""
        self.is_paused = False
        """Whether the group is paused, so that no worker is needed."""
        self.running = 0
        """Number of started workers that have not ended."""
        self._rules = rules
        self._committed: dict[Queue, int] = {}
        self._sliced: dict[Queue, PartitionProgress] = {}
        """Partitions that are cut into slices, or were."""
        self._unread: dict[Queue, _Unread] = {}
        self._settled: dict[Queue, _Settled] = {}
        """Queues whose rest needs no worker for now. Kafka's own records, such as those that end a transaction, come
        after the last message and are never committed."""
        self._sought: set[Queue] = set()
        """Queues for which the running workers were started. Others may have messages that are not due yet."""
        self._has_joined = False
        """Whether the group had a member since the last worker was started."""
        self._first: dict[Queue, int] = {}
        """Queue -> offset of its first message that is not deleted, as far as known."""
        self._progressed: set[Queue] = set()
        """Queues whose committed offset changed since the last worker was started."""
        self._finished_ms: int | None = None
        """When the last worker ended successfully; None if it failed, if another one runs, or if its last decisions
        have arrived."""
        self._failures = 0
        self._not_before_ms = 0
        self._asleep_since_ms = asleep_since_ms

    def has_members(self, members: int | None, now_ms: int) -> None:
        """Note the number of members; None if it is not known."""
        self._has_joined |= bool(members)
        if members != self.members:
            if members is None:
                self._not_before_ms = max(self._not_before_ms, now_ms + RETURN_MS)
            self.members, self._asleep_since_ms = members, now_ms

    def member_expired(self) -> None:
        """Note that a member expired: it may have left messages unprocessed."""
        self._finished_ms = None
        self._settled.clear()

    def committed(self, queue: Queue, offset: int | None, now_ms: int) -> None:
        """Note the committed offset of a queue: the next message to consume; None if it was deleted.

        For a partition that is cut into slices, the lowest of their offsets counts.
        """
        if queue.slices > 1 or queue in self._sliced:
            progress = self._sliced.setdefault(queue.whole, PartitionProgress())
            progress.note(queue, offset)
            if offset is not None:  # also if another slice is behind
                self._note_progress(queue.whole, now_ms)
            queue, offset = queue.whole, progress.lowest
        if offset is None:
            self._committed.pop(queue, None)
            self._settled.pop(queue, None)
            return
        if self._committed.get(queue) == offset:
            return
        self._committed[queue] = offset
        self._note_progress(queue, now_ms)
        if queue in self._settled and offset < self._settled[queue].end:
            del self._settled[queue]
        if queue in self._unread and offset >= self._unread[queue].end:
            del self._unread[queue]

    def _note_progress(self, queue: Queue, now_ms: int) -> None:
        self._progressed.add(queue)
        if (unread := self._unread.get(queue)) is not None:
            unread.since_ms, unread.fruitless = now_ms, 0

    def forgotten(self) -> None:
        """Note that the coordinator has forgotten the group and its offsets."""
        self._sliced.clear()
        self._committed.clear()
        self._settled.clear()
        self._unread.clear()

    def grown(self, queue: Queue, end: int, delay_ms: int, now_ms: int) -> None:
        """Note that a queue has messages up to `end`; the first may be read in `delay_ms`."""
        if end > self.read_up_to(queue):
            before = self._unread.get(queue)
            if before is None:
                self._unread[queue] = _Unread(end, now_ms + delay_ms, now_ms)
            else:
                before.end = max(before.end, end)

    def found(self, queue: Queue, first: int, end: int, delay_ms: int, now_ms: int) -> None:
        """Note the first offset and the end of a queue as Kafka returns them; they replace earlier values."""
        self._first[queue] = first
        if end < self._committed.get(queue, 0):  # the topic was recreated
            del self._committed[queue]
            self._sliced.pop(queue, None)
            self._settled.pop(queue, None)
        if queue in self._settled and end < self._settled[queue].end:  # the end was a wrong hint
            del self._settled[queue]
        if (unread := self._unread.get(queue)) is not None:
            unread.end = end
            if end <= self.read_up_to(queue):
                del self._unread[queue]
        self.grown(queue, end, delay_ms, now_ms)

    def keep_only(self, queues: Iterable[Queue]) -> None:
        """Forget the messages of all other queues: their topics are deleted."""
        kept = set(queues)
        of_queue: dict[Queue, Any]
        for of_queue in (self._unread, self._settled, self._first):
            for queue in of_queue.keys() - kept:
                del of_queue[queue]

    def read_up_to(self, queue: Queue) -> int:
        """Return the offset from which on a message of this queue needs a worker.

        A queue without a committed offset counts from its first message.
        """
        settled = self._settled.get(queue)
        return max(self._committed.get(queue, 0), self._first.get(queue, 0), settled.end if settled else 0)

    def asleep(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Return those of these queues that have no unread messages, with the offset from which to wait."""
        return {queue: self.read_up_to(queue) for queue in queues if queue not in self._unread}

    def wanted(self, now_ms: int) -> Wanted | None:
        """Return whether one more worker must be started now, and for which queues. The caller then starts it."""
        if self.is_paused or self._is_settling(now_ms):
            return None
        self._recheck(now_ms)
        if self.running >= self._rules.most_workers or now_ms < self._not_before_ms:
            return None
        patience_ms = self._patience_ms()
        queues = sorted(
            queue
            for queue, unread in self._unread.items()
            if unread.due_ms <= now_ms and now_ms - unread.since_ms >= patience_ms
        )
        if self._shares_of(queues) > self.running:
            self._sought.update(queues)
            return Wanted(tuple(queues))
        slept_ms = now_ms - self._asleep_since_ms
        is_alone = not self.members and not self.running
        return Wanted(()) if is_alone and slept_ms >= self._rules.longest_sleep_ms else None

    def _shares_of(self, queues: Iterable[Queue]) -> int:
        """Return for how many workers these queues have messages: each slice of a queue may have its own worker."""
        sliced = self._sliced
        return sum(sliced[queue].unread(self._unread[queue].end) if queue in sliced else 1 for queue in queues)

    def started(self) -> None:
        """Note that a worker was started."""
        self.running += 1
        self._finished_ms = None
        self._has_joined = bool(self.members)
        self._progressed.clear()

    def ended(self, *, succeeded: bool, now_ms: int) -> int:
        """Note that a worker has ended; return the pause before the next one, ms.

        Another one is started after a pause if this one failed, or if it succeeded without a commit. After three
        successful ones that had joined, none is started for an hour, unless there are further messages.
        """
        self.running -= 1
        if succeeded:
            self._finished_ms = now_ms
            # The remaining workers were enough; without a pause, others would come and go.
            pause_ms = SETTLE_MS if self.running else 0
        else:
            self._finished_ms = None
            pause_ms = self._next_backoff_ms()
        self._not_before_ms = now_ms + pause_ms
        return pause_ms

    def _is_settling(self, now_ms: int) -> bool:
        """If the last worker found no messages, pause before the next one, or wait for further messages.

        Return whether the last decisions about it are still missing.
        """
        if self._finished_ms is None or self.running:
            return False
        is_late = now_ms - self._finished_ms > SETTLE_MS
        if self.members and not is_late:
            return True
        if not (self._has_joined or self._progressed):  # it cannot have looked: there may be no coordinator
            self._not_before_ms = self._finished_ms + self._next_backoff_ms()
        elif self.members or not is_late:  # other members did not read these messages either
            self._failures = 0
            for queue in self._sought & (self._unread.keys() - self._progressed):
                unread = self._unread[queue]
                unread.since_ms, unread.fruitless = now_ms, unread.fruitless + 1
                pause_ms = self._rules.first_backoff_ms << (unread.fruitless - 1)
                self._not_before_ms = max(self._not_before_ms, now_ms + pause_ms)
                if unread.fruitless >= FRUITLESS:
                    self._settled[queue] = _Settled(unread.end, now_ms + RECHECK_MS)
                    del self._unread[queue]
        self._finished_ms = None
        self._sought.clear()
        return False

    def _recheck(self, now_ms: int) -> None:
        """Let one more worker check for messages where others found none long ago."""
        if self.members:
            return
        for queue in [queue for queue, settled in self._settled.items() if settled.recheck_ms <= now_ms]:
            end = self._settled.pop(queue).end
            if end > self.read_up_to(queue):
                self._unread[queue] = _Unread(end, now_ms, now_ms, FRUITLESS - 1)

    def _next_backoff_ms(self) -> int:
        self._failures = 1 if self._progressed else self._failures + 1
        # The shift is bounded, because a group may fail for months.
        return min(self._rules.first_backoff_ms << min(self._failures - 1, 32), self._rules.longest_backoff_ms)

    def _patience_ms(self) -> int:
        """Return how long messages must be unread before a worker is started."""
        if self.members is None:
            return UNKNOWN_MS
        # The workers that were started are members too.
        return STUCK_MS if self.members > self.running else 0
