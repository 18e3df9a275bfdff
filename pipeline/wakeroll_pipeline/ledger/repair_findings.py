"""The findings of `wakeroll repair`: its plan, and its answer as JSON."""

from datetime import date
from typing import Literal

from msgspec import Struct

Problem = Literal["missing", "wrong", "doubled", "damaged"]


class Finding(Struct, frozen=True, kw_only=True):
    """Rows of one stream of a table with the same problem, without any correct row between them."""

    table: str
    stream: str
    """Shard with its era, like ``groups-3.1``."""
    first: int
    """First position: number of a decision or of a row that is derived from it, or offset of a snapshot."""
    last: int
    """Last position."""
    rows: int
    problem: Problem
    source: str
    """Rows from which these are restored, in words; empty if they cannot be restored."""
    detail: str
    """Details as a sentence; empty if there are none."""
    is_on_record: bool
    """Whether this repair has recorded in the chain that the rows are lost."""

    @property
    def text(self) -> str:
        """The finding as a sentence."""
        where = f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"
        rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
        made = f"made again from {self.source}" if self.source else "cannot be had again from the tables"
        return f"{self.table} of {self.stream}, {where}: {rows} {self.problem}, {made}" + (
            f". {self.detail}" if self.detail else ""
        )


class WrongDay(Struct, frozen=True, kw_only=True):
    """A day whose stored daily facts differ from those computed from its rows."""

    day: date
    differences: int
    """Number of values that differ, and of rows that are missing or should not be there."""

    @property
    def text(self) -> str:
        """The day as a sentence."""
        return f"daily_facts of {self.day}: {self.differences} values differ, computed again from the rows of the day"
