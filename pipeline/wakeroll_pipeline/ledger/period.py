"""A period of log time, in words for users and as a condition in SQL."""

from typing import NamedTuple

from wakeroll.epoch_ms import EpochMs


class Period(NamedTuple):
    """A period of log time (epoch ms) from `from_ms` to before `to_ms`; None: the start or end of the log."""

    from_ms: int | None = None
    to_ms: int | None = None

    def has(self, at_ms: int) -> bool:
        """Return whether the period contains a moment."""
        return (self.from_ms is None or at_ms >= self.from_ms) and (self.to_ms is None or at_ms < self.to_ms)

    @property
    def condition(self) -> str:
        """SQL condition that selects the rows whose `at_ms` is in the period."""
        return self.has_column("at_ms")

    def has_column(self, name: str) -> str:
        """Return the SQL condition that selects the rows whose time in a column is in the period."""
        parts = [] if self.from_ms is None else [f"{name} >= {self.from_ms}"]
        parts += [] if self.to_ms is None else [f"{name} < {self.to_ms}"]
        return " and ".join(parts) or "true"

    def __str__(self) -> str:
        """Return the period as words: ``from 2026-07-01T03:00:00.000Z to the end of the log``."""
        begin = "the start of the log" if self.from_ms is None else str(EpochMs(self.from_ms))
        end = "the end of the log" if self.to_ms is None else str(EpochMs(self.to_ms))
        return f"from {begin} to {end}"
