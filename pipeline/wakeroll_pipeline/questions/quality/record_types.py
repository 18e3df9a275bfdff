"""The rule of the column `type` of `events`: it is the field `type` of the value.

An engine selects the rows whose JSON seems to say something else; these are read as the recorder reads them.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from wakeroll_pipeline.operators.recorded_fields import type_of
from wakeroll_pipeline.questions.quality.ordered_rows import Broken, Frames, frames_of, rows_of
from wakeroll_pipeline.questions.quality.rule import rows_rule

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


def broken_types(events: "DataFrame") -> "DataFrame":
    """Return the records with another type than their value has, found by Spark: see `Broken`."""
    from pyspark.sql import functions as f

    from wakeroll_pipeline.ledger.schemas import schema_of

    seems = f.get_json_object(f.col("value").cast("string"), "$.type")
    suspects = events.where(~f.col("type").eqNullSafe(seems)).select("topic", "partition", "offset", "value", "type")
    return suspects.mapInPandas(_look, schema_of(Broken))


def _look(frames: Frames) -> Frames:
    yield from frames_of(violations_in_types(rows_of(frames)), Broken)
