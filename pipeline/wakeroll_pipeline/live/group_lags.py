"""The lags of all queues of one group, updated queue by queue."""

from collections.abc import Iterable, Mapping

from wakeroll_model import slicing
from wakeroll_model.events import Mode
from wakeroll_model.group import Group
from wakeroll_model.queue import Queue
from wakeroll_pipeline.live.end_history import EndHistory
from wakeroll_pipeline.live.queue_lag import QueueLag
from wakeroll_pipeline.live.queue_rates import NOT_KNOWN, rates_of_all

SERIES_MS = 5_000
"""Minimum time between two points of a group's series (ms)."""
SERIES = 240
"""Maximum number of points of a group's series; beyond it, every second one of the older half is dropped."""


class GroupLags:
    """The lag of each queue of a group, and their sum over time."""

    def __init__(self) -> None:
        self.queues: dict[Queue, QueueLag] = {}
        self.since_ms: int | None = None
        """Log time since which the lags are watched; None before the first update."""
        self.series: list[tuple[int, int]] = []
        """Log time and total lag, oldest first."""
        self._is_cut = False
        """Whether a queue is a slice."""
        self.rates = NOT_KNOWN
        """Rates at which messages arrive in all queues and are consumed, at the newest point of the series."""

    def update(
        self, group: Group, queues: Iterable[Queue] | None, ends: Mapping[Queue, EndHistory], now_ms: int
    ) -> None:
        """Update some queues of a group, or all of them.

        Args:
            group: the group, with its committed offsets.
            queues: the queues to update; None: all queues of `known`.
            ends: queue -> history of its end.
            now_ms: log time, epoch ms.
        """
        self.since_ms = now_ms if self.since_ms is None else self.since_ms
        for queue in self.queues if queues is None else queues:
            lag = self.queues.get(queue)
            if lag is None:
                lag = self.queues[queue] = QueueLag(now_ms)
                self._is_cut |= queue.slices > 1
            committed = committed_of(group, queue)
            from_first = committed is None and begins_at_first(group, queue)
            lag.update(committed, ends.get(queue.whole), now_ms, from_first=from_first)
        total = self.total
        if total is not None and (not self.series or now_ms - self.series[-1][0] >= SERIES_MS):
            self.series.append((now_ms, total))
            self.rates = rates_of_all(total, [lag.rates for lag in self._partitions()])
            if len(self.series) > SERIES:
                half = SERIES // 2
                self.series[:half] = self.series[:half:2]

    def keep(self, queues: Iterable[Queue]) -> None:
        """Forget all queues except these."""
        kept = set(queues)
        if self.queues.keys() - kept:
            self.queues = {queue: lag for queue, lag in self.queues.items() if queue in kept}
            self._is_cut = any(queue.slices > 1 for queue in self.queues)

    def _partitions(self) -> Iterable[QueueLag]:
        return furthest_behind(self.queues) if self._is_cut else self.queues.values()

    @property
    def unknown(self) -> list[Queue]:
        """Queues whose lag is not known."""
        return [queue for queue, lag in self.queues.items() if lag.lag is None]

    @property
    def largest(self) -> int | None:
        """Largest known lag of a queue in messages; None if none is known."""
        return max((lag.lag for lag in self.queues.values() if lag.lag is not None), default=None)

    @property
    def total(self) -> int | None:
        """Sum of the known lags of the partitions in messages; None if none is known."""
        known = [lag.lag for lag in self._partitions() if lag.lag is not None]
        return sum(known) if known else None


def furthest_behind(lags: Mapping[Queue, QueueLag]) -> list[QueueLag]:
    """Return the lag of each partition: the largest known lag of its slices.

    The lag of a slice counts the messages of all slices above its committed offset, so the lags of the slices of a
    partition must not be added up.
    """
    found: dict[Queue, QueueLag] = {}
    for queue, lag in lags.items():
        known = found.get(queue.whole)
        if known is None or known.lag is None or (lag.lag is not None and lag.lag > known.lag):
            found[queue.whole] = lag
    return list(found.values())


def mode_of(group: Group) -> Mode:
    """Return the mode of a group; if it has no members, that of the last one that joined."""
    return group.mode if group.members else group.mode_before


def committed_of(group: Group, queue: Queue) -> int | None:
    """Return the committed offset of a queue; None if there is none.

    In a broadcasting group each client has its own offsets, and the lowest one of its members counts. There is none if
    a member that subscribes the topic has none. Without members, the highest one counts: messages after it are unread
    for every client that joins again. Offsets of the group's former mode are ignored.
    """
    if mode_of(group) == "clustering":
        if queue.topic in group.sliced and queue not in group.offsets:
            lowest, is_all, _ = slicing.progress(queue, slicing.facts(group, queue))  # those of former slices
            return lowest.offset if lowest is not None and is_all else None
        return group.offsets.get(queue)
    if not group.members:
        left = [own.offsets[queue] for own in group.broadcast_offsets.values() if queue in own.offsets]
        return max(left, default=None)
    readers = [client_id for client_id, member in group.members.items() if queue.topic in member.subscriptions]
    own = [group.broadcast_offsets[client_id].offsets for client_id in readers if client_id in group.broadcast_offsets]
    committed = [offsets[queue] for offsets in own if queue in offsets]
    return min(committed) if committed and len(committed) == len(readers) else None


def begins_at_first(group: Group, queue: Queue) -> bool:
    """Return whether a queue without a committed offset is read from its first message on.

    This depends on its owner; in a broadcasting group, or without an owner, on all members.
    """
    owner = group.owners.get(queue)
    if owner is not None:
        return owner in group.members and group.members[owner].consume_from == "first"
    return bool(group.members) and all(member.consume_from == "first" for member in group.members.values())
