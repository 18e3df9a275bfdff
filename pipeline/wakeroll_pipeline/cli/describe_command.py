"""The `describe` command: the owners, members and rebalances of one group."""

from collections.abc import Sequence
from typing import Annotated

import typer
from msgspec import UNSET

from wakeroll_pipeline.cli.group_answers import DescribeAnswer, EndedWaits
from wakeroll_pipeline.cli.group_screens import SHOWN_REBALANCES, group_screen, member_screen, section
from wakeroll_pipeline.cli.group_tables import hold_columns
from wakeroll_pipeline.cli.live_answer import group_model, of_member, provenance, view_of
from wakeroll_pipeline.cli.options import AsJson, GroupName, LiveOptions, LogAt
from wakeroll_pipeline.cli.output import Output, seconds_text, write_document
from wakeroll_pipeline.cli.text_table import Column, write_lines
from wakeroll_pipeline.ledger.ledger import Ledger, Row
from wakeroll_pipeline.live.view_text import UNKNOWN

out = Output(highlight=False)

Holds = Annotated[bool, typer.Option("--holds", help="Also show the held pulls, and what ended earlier pulls.")]
Member = Annotated[
    str | None,
    typer.Option(
        "--member", metavar="CLIENT", help="Show this member only, with all that is known of it.", show_default=False
    ),
]


def describe(
    deployment: LiveOptions,
    group: GroupName,
    member: Member = None,
    holds: Holds = False,
    at: LogAt = None,
    as_json: AsJson = False,
) -> None:
    """Show one group: the owner of each queue, since when and why, the members, and the last five rebalances.

    With --member, show one member: where it runs and since when, what it subscribes and has received, and its queues.
    With --bootstrap, the answer comes from Kafka, as of now, with the rebalances of the last hour.
    """
    with group_model(deployment.settings(), out, group, at) as (model, ledger):
        view, waits = view_of(model, group), None
        now_ms = view.health.as_of_ms
        if ledger is not None:
            from wakeroll_pipeline.live.earlier_rebalances import with_earlier_rebalances

            view = with_earlier_rebalances(ledger, view, SHOWN_REBALANCES)
            if holds:
                with ledger.within(now_ms - WAITS_MS, at) as recent:
                    waits = waits_of(recent, group, now_ms - WAITS_MS, now_ms)
    if member is not None:
        view = of_member(view, member)
    if as_json:
        ended = UNSET if waits is None else [EndedWaits(**one.as_dict()) for one in waits]
        shown = {name: getattr(view, name) for name in view.__struct_fields__}
        write_document(DescribeAnswer(**shown, **provenance(model, view.health), ended_waits=ended))
        return
    width = out.size.width
    screen = group_screen if member is None else member_screen
    lines = screen(view, width, is_unicode=out.encoding.startswith("utf"))
    if holds:
        lines += section(hold_columns(view.holds, now_ms), width)
    if waits is not None:
        lines += section(waits_columns(waits), width)
    write_lines(out, lines)


WAITS_MS = 3_600_000
"""Length of the period of log time whose ended pulls are counted (ms)."""


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
