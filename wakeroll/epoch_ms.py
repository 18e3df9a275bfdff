"""Wall-clock time in epoch milliseconds."""

import time
from datetime import UTC, datetime, timedelta
from typing import Self

from wakeroll.errors import InvalidUsage

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_LAST_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND


class EpochMs(int):
    """A time in epoch milliseconds, from 1970 to the end of the year 9999; a type of its own, distinct from offsets."""

    def __new__(cls, value: int) -> Self:
        """Reject values that are not a time: negative ones have special meanings in Kafka."""
        if not 0 <= value <= _LAST_MS:
            raise InvalidUsage(f"{value} is not a time; it must be 0 to {_LAST_MS} epoch ms")
        return super().__new__(cls, value)

    @classmethod
    def of(cls, moment: datetime) -> Self:
        """Return a moment in epoch ms, rounded up to a whole millisecond.

        Raises:
            InvalidUsage: the moment has no zone, or is before 1970.
        """
        if moment.utcoffset() is None:
            raise InvalidUsage(f"{moment.isoformat()} has no time zone; write {moment.isoformat()}Z, or like +02:00")
        return cls(-((_EPOCH - moment) // _MILLISECOND))

    def __str__(self) -> str:
        """Return the time in ISO 8601: ``2026-07-01T03:00:00.000Z``."""
        return (_EPOCH + int(self) * _MILLISECOND).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def now_ms() -> int:
    """Return this machine's wall-clock time (epoch ms), for display; decisions use the log's time."""
    return time.time_ns() // 1_000_000
