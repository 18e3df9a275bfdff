"""The rules about chains, one per table; `chain_check` checks them."""

from collections.abc import Mapping

from wakeroll_model.rows import CHAINED
from wakeroll_pipeline.questions.quality.rule import Rule, rows_rule

CHAIN_RULES: Mapping[str, Rule] = {
    table.name: rows_rule(f"{table.name}.chain", "the rows are those that the recorder wrote, by their chain")
    for table in CHAINED
}
"""Table -> its rule."""
