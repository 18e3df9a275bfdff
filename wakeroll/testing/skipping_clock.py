"""The clock of a broker in memory: it stands still until a test lets time pass."""

import threading
from typing import NamedTuple

from model.config import NEVER_MS
from wakeroll.retry_clock import IdleUntil
from wakeroll.testing.memory_log import MemoryLog

START_MS = 1_767_225_600_000
"""Time of every new clock: 2026-01-01T00:00:00Z (epoch ms)."""


class Round(NamedTuple):
    """The state of a push loop at the beginning of a round."""

    version: int
    """Version of the log before the last time that the loop has read; it knows all changes up to here."""
    idle_until_ms: int | None
    """When its next failed message is due, `NEVER_MS` if none waits; None if it has other work to do."""


class SkippingClock:
    """Milliseconds that pass by `skip_to` only. Any thread may use it."""

    def __init__(self, log: MemoryLog) -> None:
        """Begin at `START_MS`."""
        self._log = log
        self._now_ms = START_MS
        self._versions: dict[int, int] = {}
        """Thread of a push loop -> version of the log at the beginning of its last round."""
        self.rounds: dict[int, Round] = {}
        """Thread of a push loop -> its last round."""
        self.idle = threading.Condition(log.lock)
        """Notified when a push loop has nothing more to do."""

    def now_ms(self) -> int:
        """Return the time (ms)."""
        return self._now_ms

    def epoch_ms(self) -> int:
        """Return the time (epoch ms)."""
        return self._now_ms

    def on_round(self, idle_until_ms: IdleUntil) -> None:
        """Note what a push loop has to do."""
        until_ms, thread = idle_until_ms(), threading.get_ident()
        with self._log.lock:
            self.rounds[thread] = Round(self._versions.get(thread, -1), until_ms)
            self._versions[thread] = self._log.version
            if until_ms is not None:
                self.idle.notify_all()

    def skip_to(self, then_ms: int) -> None:
        """Let time pass up to a moment."""
        assert then_ms < NEVER_MS, "nothing is due at that time"
        with self._log.lock:
            self._now_ms = max(self._now_ms, then_ms)
            self._log.note_change()
