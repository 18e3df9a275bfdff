"""The rule of the column `type` of `events`: it must be the field `type` of the value.

An engine selects the rows whose JSON seems to have another type; these are then parsed as by the recorder.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from wakeroll_pipeline.operators.recorded_fields import type_of
from wakeroll_pipeline.questions.quality.ordered_rows import Broken
from wakeroll_pipeline.questions.quality.rule import rows_rule

TYPED = rows_rule("events.typed", "the type of a record is the field `type` of its value")
RULES_OF_EVENTS = (TYPED,)


def violations_in_types(rows: Iterable[Any]) -> Iterator[Broken]:
    """Yield the records with another type than their value has.

    Args:
        rows: records with the columns `topic`, `partition`, `offset`, `value` and `type`, in any order.
    """
    for row in rows:
        expected = type_of(None if row.value is None else bytes(row.value))
        found = row.type if isinstance(row.type, str) else None
        if found != expected:
            yield Broken(TYPED.name, f"{row.topic}/{row.partition}/{row.offset}", found, expected)
