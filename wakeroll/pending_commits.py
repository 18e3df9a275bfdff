"""Asynchronous commits; a later call of the application calls their callbacks."""

from collections import deque
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import NamedTuple

from wakeroll_model.queue import Queue

OnCommit = Callable[[bool, dict[Queue, int]], object]
"""Called with whether Kafka acknowledged a commit, and with its offsets."""


class _Pending(NamedTuple):
    answer: "SimpleQueue[bool]"
    """Receives whether Kafka acknowledged it."""
    counts: bool
    """Whether all queues were still assigned to the consumer."""
    offsets: Mapping[Queue, int]
    on_commit: OnCommit


class PendingCommits:
    """The asynchronous commits of a consumer, in their order. For one thread at a time."""

    def __init__(self) -> None:
        """Begin without commits."""
        self._pending: deque[_Pending] = deque()

    def add(
        self, answer: "SimpleQueue[bool]", counts: bool, offsets: Mapping[Queue, int], on_commit: OnCommit | None
    ) -> None:
        """Add a commit; ignore it if it has no callback."""
        if on_commit is not None:
            self._pending.append(_Pending(answer, counts, offsets, on_commit))

    def serve(self) -> None:
        """Call the callbacks of the commits that have ended.

        Raises:
            BaseException: an exception of a callback, which is not called again.
        """
        while self._pending and not self._pending[0].answer.empty():
            one = self._pending.popleft()
            one.on_commit(one.answer.get() and one.counts, dict(one.offsets))

    def end(self) -> None:
        """Call all callbacks; a commit that is not acknowledged by now counts as failed.

        Raises:
            BaseException: an exception of a callback.
        """
        while self._pending:
            one = self._pending.popleft()
            try:
                is_committed = one.answer.get(block=False)
            except Empty:
                is_committed = False
            one.on_commit(is_committed and one.counts, dict(one.offsets))
