"""The SDK's clock: it counts on while the machine sleeps, for the coordinator does not wait either."""

import time

# While suspended, Linux's CLOCK_MONOTONIC stands still and CLOCK_BOOTTIME goes on; so does macOS's CLOCK_MONOTONIC.
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def now_ms() -> int:
    """Return milliseconds since some moment; never falls."""
    return (time.monotonic_ns() if _CLOCK is None else time.clock_gettime_ns(_CLOCK)) // 1_000_000
