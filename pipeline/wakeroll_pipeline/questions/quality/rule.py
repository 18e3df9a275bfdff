"""A data quality rule, the expectation that checks it, and its result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SHOWN = 5
"""Maximum number of sample rows per broken rule."""
HISTORY = "history"
"""Suite of the rules that compare rows of one or several tables; other suites have the name of their table or view."""


@dataclass(frozen=True)
class Rule:
    """One data quality rule."""

    suite: str
    name: str
    """Unique name, which begins with the table: ``assignments.queue_id.bounds``."""
    says: str
    """The rule as a sentence."""
    expectation: str
    """Name of a class in `great_expectations.expectations`."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the expectation's class."""

    @property
    def table(self) -> str:
        """Table or view that the rule is about."""
        return self.name.partition(".")[0]

    @property
    def column(self) -> str:
        """Column that the rule is about; empty for several."""
        return str(self.arguments.get("column", ""))

    @property
    def is_of_type(self) -> bool:
        """Whether the rule is about the type of a column, and needs no row."""
        return self.expectation == "ExpectColumnValuesToBeOfType"

    @property
    def compares(self) -> bool:
        """Whether the rule compares rows; otherwise it checks single rows or the key."""
        return self.suite == HISTORY


def rows_rule(name: str, says: str) -> Rule:
    """Return a rule of the suite `HISTORY`: it holds if no row in the frame of violations has its name."""
    return Rule(HISTORY, name, says, "ExpectColumnValuesToNotBeInSet", {"column": "rule", "value_set": [name]})


@dataclass(frozen=True)
class RuleResult:
    """The result of one rule."""

    rule: Rule
    broken: int = 0
    """Number of rows that break the rule; 1 if a rule about the whole table is broken."""
    rows: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """The first rows that break the rule: their keys, and the values found."""
    failure: str = ""
    """Message of an engine that failed while it checked the rule; empty if it did not."""
    not_checked: str = ""
    """Sentence why the rule could not be checked; empty if it was checked."""
    skipped: str = ""
    """Sentence about the rows that the rule left out, with the reason; empty if all rows were checked."""
    looked_at: int | None = None
    """Number of rows that the rule was applied to; None if it compares tables, or is about a whole table."""


def inserted(outcomes: Sequence[RuleResult], result: RuleResult) -> Sequence[RuleResult]:
    """Return results with a further one of the suite `HISTORY`, after the others of this suite."""
    at = max((number for number, one in enumerate(outcomes, 1) if one.rule.suite == HISTORY), default=0)
    return [*outcomes[:at], result, *outcomes[at:]]
