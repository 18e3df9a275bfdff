"""The lag of one queue in one group: the messages between the committed offset and the end, and their trend."""

from typing import Literal

from wakeroll_pipeline.live.end_history import Behind, EndHistory
from wakeroll_pipeline.live.queue_rates import RateMeter, Rates

SAMPLE_MS = 5_000
"""Minimum time between two samples of a trend (ms): the default interval of commits."""
SAMPLES = 24
"""Maximum number of samples of a trend."""

Trend = Literal["none", "rising", "falling", "steady"]


class QueueLag:
    """The lag of one queue in one group, updated when the committed offset or the end changes.

    Commits are more frequent than reports of ends. If the lag were compared at every change, it would seem to fall at
    each commit, even if the queue grows faster. So the trend compares the lag only at moments with a new end.
    """

    __slots__ = (
        "behind", "committed", "end", "first_end", "lag", "lag_when_moved", "meter", "moved_ms", "not_fallen_ms",
        "sampled_ms", "samples",
    )  # fmt: skip

    def __init__(self, now_ms: int) -> None:
        """Begin at a log time (epoch ms); nothing is known yet."""
        self.committed: int | None = None
        self.end: int | None = None
        self.first_end: int | None = None
        """The end when the queue was first found without a committed offset."""
        self.lag: int | None = None
        """Messages between the committed offset, or the first one that is not deleted, and the end; None if it is not
        known. Without a committed offset it is known if the queue has no message, or its owner begins at the first."""
        self.behind: Behind | None = None
        """Since when messages wait; None if none waits."""
        self.moved_ms = now_ms
        """Log time at which the committed offset last changed, or was first found."""
        self.lag_when_moved = 0
        self.not_fallen_ms: int | None = None
        """Log time since which no sample of the lag was below the one before; None if there is no lag."""
        self.samples: list[int] = []
        """Lag at the last moments with a new end, oldest first."""
        self.sampled_ms = 0
        self.meter = RateMeter()

    def update(
        self, committed: int | None, history: EndHistory | None, now_ms: int, *, from_first: bool = False
    ) -> None:
        """Process the committed offset and the end as of a log time (epoch ms).

        `from_first`: whether a queue without a committed offset will be read from its first message on.
        """
        if committed != self.committed:
            self.committed, self.moved_ms = committed, now_ms
            self.lag_when_moved = -1
        end = None if history is None else history.end
        is_fresh = end != self.end
        self.end = end
        unread = None if history is None or end is None else self._unread(committed, end, history, from_first)
        if end is None or committed is None:
            self.first_end = end if end is None or self.first_end is None else min(self.first_end, end)
        if unread is None or history is None or end is None:
            self.lag = self.behind = self.not_fallen_ms = None
            self.samples.clear()
            self.meter.forget()
            return
        self.lag = max(0, end - unread)
        if self.lag_when_moved < 0:
            self.lag_when_moved = self.lag
        self.behind = history.behind(unread) if self.lag else None
        if self.lag == 0:
            self.not_fallen_ms = None
        if is_fresh or self.lag == 0 or now_ms - self.sampled_ms >= 12 * SAMPLE_MS:
            self._sample(self.lag, now_ms)
            self.meter.note(now_ms, min(unread, end), end)

    @staticmethod
    def _unread(committed: int | None, end: int, history: EndHistory, from_first: bool) -> int | None:
        """Return the offset of the first message that is not consumed; None if it is not known."""
        if committed is not None:
            return max(committed, history.first or 0)
        if history.first is None:
            return 0 if end == 0 else None
        return history.first if from_first or end <= history.first else None

    def _sample(self, lag: int, now_ms: int) -> None:
        if lag == 0 and not any(self.samples):
            self.samples.clear()
            return
        if lag and (self.not_fallen_ms is None or (self.samples and lag < self.samples[-1])):
            self.not_fallen_ms = now_ms
        if self.samples and now_ms - self.sampled_ms < SAMPLE_MS:
            self.samples[-1] = lag
            return
        self.samples.append(lag)
        self.sampled_ms = now_ms
        del self.samples[:-SAMPLES]

    @property
    def grown(self) -> int:
        """Messages that arrived since the committed offset last changed, or since the queue was first found."""
        if self.end is None:
            return 0
        if self.committed is None:
            return self.end - (self.end if self.first_end is None else self.first_end)
        return max(0, (self.lag or 0) - max(self.lag_when_moved, 0))

    @property
    def rates(self) -> Rates:
        """Rates at which messages arrive and are consumed."""
        return self.meter.rates(self.lag)

    @property
    def trend(self) -> Trend:
        """Direction of the lag over the samples."""
        if not any(self.samples):
            return "none"
        if len(self.samples) < 2 or self.samples[0] == self.samples[-1]:
            return "steady"
        return "rising" if self.samples[-1] > self.samples[0] else "falling"
