"""A rule: one thing that must hold of a table, and the expectation that asks for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

HISTORY = "history"
"""The suite of rules that compare rows, of one table or of several; each other suite has a table's or a view's name."""


@dataclass(frozen=True)
class Rule:
    """One thing that must hold."""

    suite: str
    name: str
    """Unique among all: ``assignments.queue_id.bounds``; it begins with the table's name."""
    says: str
    """What must hold, as a sentence."""
    expectation: str
    """Name of a class of `great_expectations.expectations` ..."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """... and what it is made with."""

    @property
    def table(self) -> str:
        """The table, or view, that breaks it."""
        return self.name.partition(".")[0]

    @property
    def column(self) -> str:
        """The column that it is about; empty: several."""
        return str(self.arguments.get("column", ""))

    @property
    def compares(self) -> bool:
        """Whether it compares rows; else each is asked for itself, or for its key."""
        return self.suite == HISTORY


def rows_rule(name: str, says: str) -> Rule:
    """Return a rule of the suite `HISTORY`: no row of the frame of broken rules names it."""
    return Rule(HISTORY, name, says, "ExpectColumnValuesToNotBeInSet", {"column": "rule", "value_set": [name]})
