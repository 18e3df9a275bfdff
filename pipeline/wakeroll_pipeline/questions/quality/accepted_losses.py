"""The rows that rules leave out because they are recorded as lost: such a rule counts as skipped, and names them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from wakeroll_model.rows import DECISIONS, EVENTS, SNAPSHOTS
from wakeroll_pipeline.ledger.losses import Loss
from wakeroll_pipeline.questions.quality.chain_rules import CHAIN_RULES
from wakeroll_pipeline.questions.quality.model_rules import OF_ASSIGNMENTS, OF_DECISIONS, OF_OFFSETS
from wakeroll_pipeline.questions.quality.ordered_rows import SKIPPED, Broken

_RULES: Mapping[str, Sequence[str]] = {
    EVENTS.name: ("events.offsets", "events.answered", "events.refused", "decisions.caused", "wake_decisions.asked"),
    DECISIONS.name: (
        *(question.rule.name for question in (*OF_DECISIONS, *OF_ASSIGNMENTS, *OF_OFFSETS)),
        "current_assignments.owners",
        "decisions.derived",
        "events.answered",
        "events.refused",
    ),
    SNAPSHOTS.name: ("snapshots.hash",),
}
"""Table -> rules that leave out results of its lost rows."""


def left_out(losses: Iterable[Loss]) -> Iterator[Broken]:
    """Yield a row for each loss and each rule that leaves rows out because of it: see `SKIPPED`."""
    for loss in losses:
        rules = [CHAIN_RULES[loss.table].name, *(_RULES.get(loss.table, ()) if loss.stream else ())]
        for rule in rules:
            yield Broken(rule + SKIPPED, loss.stream or loss.table, loss.text, None)
