"""The reasons that ended the pulls of a group."""

from collections.abc import Sequence

from wakeroll_pipeline.cli.output import seconds_text
from wakeroll_pipeline.cli.text_table import Column
from wakeroll_pipeline.ledger.ledger import Ledger, Row
from wakeroll_pipeline.live.view_text import UNKNOWN

WAITS_MS = 3_600_000
"""Log time of the ended pulls that are counted (ms)."""


def waits_of(ledger: Ledger, group_id: str, from_ms: int, to_ms: int) -> list[Row]:
    """Return the number and the median durations (ms) of the ended pulls of a group, one row per reason.

    Args:
        ledger: the ledger; its rows before `from_ms` are not needed.
        group_id: the group.
        from_ms: log time of the first ended pull (epoch ms).
        to_ms: log time of the last one.
    """
    return ledger.rows(
        "select reason, count(*) as pulls, median(held_ms) as held_ms, median(arrival_to_wake_ms) as delay_ms "
        "from wakes where group_id = $group_id and at_ms >= $from_ms and at_ms <= $to_ms "
        "group by reason order by reason",
        group_id=group_id,
        from_ms=from_ms,
        to_ms=to_ms,
    )


def waits_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns of a list with one row per reason."""
    delays = [UNKNOWN if one.delay_ms is None else f"{one.delay_ms:.0f} ms" for one in rows]
    return [
        Column("what ended a wait, in the last hour", [one.reason for one in rows]),
        Column("pulls", [f"{one.pulls:,}" for one in rows], is_number=True),
        Column("held, p50", [seconds_text(one.held_ms) for one in rows], is_number=True),
        Column("from arrival to wake, p50", delays, is_number=True),
    ]
