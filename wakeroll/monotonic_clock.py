"""The SDK's clock. It includes the time that the machine sleeps, because the coordinator goes on meanwhile."""

import time

# While suspended, Linux's CLOCK_MONOTONIC stands still and CLOCK_BOOTTIME goes on; so does macOS's CLOCK_MONOTONIC.
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def now_ms() -> int:
    """Return milliseconds since an arbitrary moment; the value never decreases."""
    return (time.monotonic_ns() if _CLOCK is None else time.clock_gettime_ns(_CLOCK)) // 1_000_000
