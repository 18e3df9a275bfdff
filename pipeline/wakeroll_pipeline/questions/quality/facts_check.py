"""The check of the daily facts against the rows that they were computed from, while these exist."""

import duckdb
from deltalake.exceptions import DeltaError

from wakeroll_pipeline.ledger.daily_facts import differences
from wakeroll_pipeline.ledger.delta_files import is_delta
from wakeroll_pipeline.ledger.ledger import UnreadableTable
from wakeroll_pipeline.ledger.stored_marts import path_of_facts
from wakeroll_pipeline.ledger.table_damage import damage_behind
from wakeroll_pipeline.questions.quality.rule import SHOWN, RuleResult, rows_rule
from wakeroll_pipeline.storage.place import Folder, Place

RULE = rows_rule("daily_facts.computed", "the facts of each day are those that its rows give, while no row is deleted")
"""The rule of the daily facts. It is checked in DuckDB, day by day, if there are daily facts."""


def check_facts(warehouse: Folder) -> RuleResult | None:
    """Compare the daily facts with the newest rows of the tables; return None if there are no daily facts.

    Args:
        warehouse: folder of the tables.
    """
    if not is_delta(path_of_facts(warehouse)):
        return None
    try:
        broken = [
            {
                "at": f"{one.day}, {one.group_id}" + (f", {one.column}" if one.column else ""),
                "found": str(one.stored),
                "expected": str(one.computed),
            }
            for one in differences(warehouse)
        ]
    except UnreadableTable as damage:
        return RuleResult(RULE, not_checked=str(damage))
    except (duckdb.Error, DeltaError) as error:
        if (lost := damage_behind(error, Place.of(warehouse), None)) is None:
            raise
        return RuleResult(RULE, not_checked=str(lost))
    return RuleResult(RULE, len(broken), tuple(broken[:SHOWN]))
