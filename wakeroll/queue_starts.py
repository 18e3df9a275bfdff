"""The start of newly assigned queues: from which offset each is read."""

import time
from collections.abc import Callable, Collection, Mapping

from wakeroll.heartbeat_thread import Control
from wakeroll.sliced_reader import SlicedReader
from wakeroll_model.client_actions import Give
from wakeroll_model.queue import Queue
from wakeroll_model.slices import overlapping

RETRY_S = 1.0
"""Pause before a query is repeated for start offsets that Kafka did not return (s)."""


class QueueStarts:
    """Begins to read assigned queues; retries queues whose start offset Kafka does not return.

    No message of a queue is delivered before `begin` has returned: until then, the start of a queue may not be reported
    to the coordinator, or `on_assigned` may not have been called. After an exception, the next `begin` does the
    remaining steps.
    """

    def __init__(self, control: Control, reader: SlicedReader, on_assigned: Callable[[list[Queue]], object]) -> None:
        """Begin without queues; `on_assigned` is called with queues whose reading has begun."""
        self._control = control
        self._reader = reader
        self._on_assigned = on_assigned
        self._retry_at = 0.0
        self._reported: dict[Queue, Give] = {}
        """Queues whose start was reported to the coordinator."""
        self._told: dict[Queue, Give] = {}
        """Queues for which `on_assigned` has returned."""
        self.is_telling = False
        """Whether `on_assigned` is being called."""

    @property
    def is_due(self) -> bool:
        """Whether to call `begin` although the assignment did not change."""
        return 0 < self._retry_at <= time.monotonic()

    def begin(self, readable: Mapping[Queue, Give], but_not: Collection[Queue] = ()) -> None:
        """Begin to read the assigned queues that are not read yet, except for those in `but_not`.

        Slices that have messages in common with a queue in `but_not` are not begun either: these messages would be
        delivered twice, or out of order.

        Raises:
            BaseException: an exception of `on_assigned`, which is called again for the same queues.
        """
        self._retry_at = 0.0
        self.is_telling = False  # an exception may have come before it was reset
        reading = self._reader.assigned()
        numbers = {queue.slices for queue in but_not}
        news = [
            give
            for queue, give in readable.items()
            if queue not in reading
            and queue not in but_not
            and not any(other in but_not for other in overlapping(queue, numbers))
        ]
        if len(self._reader.start(news)) < len(news):
            self._retry_at = time.monotonic() + RETRY_S
        reading = self._reader.assigned()
        begun = _differing(reading, self._reported)
        self._control.started([(give, self._reader.reached(give)) for give in begun])
        self._reported = reading
        self._tell(reading)

    def ended(self) -> list[Give]:
        """Return the assignments whose reading began and has ended, each once, sorted by queue."""
        reading = self._reader.assigned()
        kept = {queue: give for queue, give in self._reported.items() if reading.get(queue) == give}
        ended = [self._reported[queue] for queue in sorted(self._reported.keys() - kept.keys())]
        self._reported = kept
        return ended

    def _tell(self, reading: dict[Queue, Give]) -> None:
        begun = _differing(reading, self._told)
        if begun:
            self.is_telling = True
            try:
                self._on_assigned([give.queue for give in begun])
            finally:
                self.is_telling = False
        self._told = reading


def _differing(reading: Mapping[Queue, Give], known: Mapping[Queue, Give]) -> list[Give]:
    """Return the assignments in `reading` that are not in `known`, sorted by queue."""
    return [reading[queue] for queue in sorted(reading) if known.get(queue) != reading[queue]]
