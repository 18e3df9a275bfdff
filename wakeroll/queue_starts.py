"""The start of newly assigned queues: from which offset each is read."""

import time
from collections.abc import Callable, Container, Mapping

from model.client_actions import Give
from model.queue import Queue
from wakeroll.heartbeat_thread import Control
from wakeroll.reader import Reader

OnQueues = Callable[[list[Queue]], object]

RETRY_S = 1.0
"""How long to wait before the query of a start offset that Kafka did not return is repeated (s)."""


class QueueStarts:
    """Begins to read assigned queues, again and again those whose start offset Kafka does not return."""

    def __init__(self, control: Control, reader: Reader, on_assigned: OnQueues | None) -> None:
        """Begin without queues; `on_assigned` is called with queues of which reading has begun."""
        self._control = control
        self._reader = reader
        self._on_assigned = on_assigned
        self._retry_at = 0.0
        self.is_telling = False
        """Whether `on_assigned` is being called."""

    @property
    def is_due(self) -> bool:
        """Whether to call `begin` although the assignment did not change."""
        return 0 < self._retry_at <= time.monotonic()

    def begin(self, readable: Mapping[Queue, Give], but_not: Container[Queue] = ()) -> None:
        """Begin to read the assigned queues that are not read yet, except for those in `but_not`."""
        self._retry_at = 0.0
        reading = set(self._reader.queues)
        news = [give for queue, give in readable.items() if queue not in reading and queue not in but_not]
        starts = self._reader.start(news)
        if len(starts) < len(news):
            self._retry_at = time.monotonic() + RETRY_S
        self._control.started(starts)
        if self._on_assigned is not None and starts:
            self.is_telling = True
            try:
                self._on_assigned([give.queue for give, _ in starts])
            finally:
                self.is_telling = False
