"""The clock of retries: by it, a failed message is due, and a call of the handler takes too long."""

from collections.abc import Callable
from typing import Protocol

from wakeroll import epoch_ms, monotonic_clock

IdleUntil = Callable[[], int | None]
"""Returns when the next failed message is due, `NEVER_MS` if none waits, or None if there is other work to do now."""


class RetryClock(Protocol):
    """A clock for delays. Sessions, commits and revocations do not use it."""

    def now_ms(self) -> int:
        """Return milliseconds since an arbitrary moment; the value never decreases."""
        ...

    def epoch_ms(self) -> int:
        """Return the time with which the timestamps of messages are compared (epoch ms)."""
        ...

    def on_round(self, idle_until_ms: IdleUntil) -> None:
        """Note that a push loop begins its next round; called by the loop's thread.

        A clock that skips idle time calls `idle_until_ms` here.
        """
        ...

    def on_change(self) -> None:
        """Note that the application has given push loops something to do, such as a paused or resumed queue."""
        ...


class _SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        return monotonic_clock.now_ms()

    def epoch_ms(self) -> int:
        return epoch_ms.now_ms()

    def on_round(self, idle_until_ms: IdleUntil) -> None:
        pass

    def on_change(self) -> None:
        pass


SYSTEM_CLOCK: RetryClock = _SystemClock()
