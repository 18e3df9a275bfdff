"""The clock of a broker in memory: a test lets time pass."""

import threading
import time
from typing import NamedTuple

from wakeroll.retry_clock import IdleUntil
from wakeroll.testing.memory_log import MemoryLog
from wakeroll_model.config import NEVER_MS

START_MS = 1_767_225_600_000
"""Time of every new clock: 2026-01-01T00:00:00Z (epoch ms)."""


class Round(NamedTuple):
    """The state of a push loop at the beginning of a round."""

    version: int
    """Version of the log before the loop's last read: the loop has processed all changes up to this version."""
    idle_until_ms: int | None
    """When its next failed message is due, `NEVER_MS` if none waits; None if it has other work to do."""


class SkippingClock:
    """A clock that stands still, or goes on with the machine's, and that can skip time. Any thread may use it."""

    def __init__(self, log: MemoryLog, *, goes_on: bool) -> None:
        """Begin at `START_MS`; `goes_on`: whether time also passes by the machine's clock."""
        self._log = log
        self._began_s = time.monotonic() if goes_on else None
        self._skipped_ms = 0
        self._versions: dict[int, int] = {}
        """Thread of a push loop -> version of the log at the beginning of its last round."""
        self.rounds: dict[int, Round] = {}
        """Thread of a push loop -> its last round."""
        self.idle = threading.Condition(log.lock)
        """Notified when a push loop has nothing more to do."""

    def now_ms(self) -> int:
        """Return the time (ms)."""
        passed_s = 0.0 if self._began_s is None else time.monotonic() - self._began_s
        return START_MS + self._skipped_ms + int(passed_s * 1_000)

    def epoch_ms(self) -> int:
        """Return the time (epoch ms)."""
        return self.now_ms()

    def on_round(self, idle_until_ms: IdleUntil) -> None:
        """Note the state of a push loop at the beginning of its round."""
        until_ms, thread = idle_until_ms(), threading.get_ident()
        with self._log.lock:
            self.rounds[thread] = Round(self._versions.get(thread, -1), until_ms)
            self._versions[thread] = self._log.version
            if until_ms is not None:
                self.idle.notify_all()

    def on_change(self) -> None:
        """Note that the push loops have not seen the newest change yet."""
        self._log.note_change()

    def forget(self) -> bool:
        """Forget the rounds of this thread, which ends; return whether there were any."""
        thread = threading.get_ident()
        with self._log.lock:
            self._versions.pop(thread, None)
            return self.rounds.pop(thread, None) is not None

    def skip_to(self, then_ms: int) -> None:
        """Let time pass up to a moment."""
        assert then_ms < NEVER_MS, "nothing is due at that time"
        with self._log.lock:
            self._skipped_ms += max(then_ms - self.now_ms(), 0)
            self._log.note_change()
