"""The `describe` command: the owners, members and rebalances of one group."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import structs
from rich.table import Table
from rich.text import Text

from wakeroll_pipeline.cli.groups_command import row_of
from wakeroll_pipeline.cli.held_pulls import WAITS_MS, Held, held_of, held_table, waits_of, waits_table
from wakeroll_pipeline.cli.live_answer import group_model, print_age, provenance, tick_of, view_of
from wakeroll_pipeline.cli.options import AsJson, GroupName, LiveOptions, LogAt
from wakeroll_pipeline.cli.output import Output, clock_text, write_document
from wakeroll_pipeline.cli.watch_text import count_text, plain_text, verdict_text
from wakeroll_pipeline.ledger.ledger import Row

if TYPE_CHECKING:
    from wakeroll_pipeline.live.live_model import LiveModel
    from wakeroll_pipeline.live.view_structs import GroupView, MemberRow, QueueRow

out = Output(highlight=False)

SHOWN_REBALANCES = 5
"""Number of rebalances to show, the newest ones."""

Holds = Annotated[bool, typer.Option("--holds", help="Also show the held pulls, and what ended earlier pulls.")]


def describe(
    deployment: LiveOptions,
    group: GroupName,
    holds: Holds = False,
    at: LogAt = None,
    as_json: AsJson = False,
) -> None:
    """Show one group: the owner of each queue, since when and why, the members, and the last five rebalances.

    With --bootstrap, the answer comes from Kafka, as of now, with the rebalances of the last hour.
    """
    with group_model(deployment.settings(), out, group, at) as (model, ledger):
        view, waits = view_of(model, group), None
        if ledger is not None:
            from wakeroll_pipeline.live.earlier_rebalances import with_earlier_rebalances

            view = with_earlier_rebalances(ledger, view, SHOWN_REBALANCES)
            if holds:
                from_ms = view.health.as_of_ms - WAITS_MS
                with ledger.within(from_ms, at) as recent:
                    waits = waits_of(recent, group, from_ms, view.health.as_of_ms)
        _answer(model, view, held_of(model, group) if holds else None, waits, as_json)


def _answer(
    model: "LiveModel", view: "GroupView", held: Held | None, waits: Sequence[Row] | None, as_json: bool
) -> None:
    """Print a group.

    Args:
        model: the model of which the view was made.
        view: the group.
        held: its held pulls; None if they are not asked for.
        waits: what ended earlier pulls; None if that is not asked for, or not known.
        as_json: whether to print a JSON document.
    """
    tick_ms = tick_of(model)
    if as_json:
        answer = {**_document(view), **provenance(view.health, tick_ms), "last_tick_ms": tick_ms}
        if held is not None:
            answer |= {"held_pulls": held.pulls, "held_pulls_at_ms": held.at_ms}
        if waits is not None:
            answer["ended_waits"] = waits
        write_document(answer)
        return
    _show_group(view)
    out.print(_members_table(view.members))
    for one in view.kept_out:
        why = f": {one.reason}" if one.reason else ""
        out.print(plain_text(f"{one.client_id} is kept out until {clock_text(one.until_ms)} by {one.by}{why}"))
    out.print(_queues_table(view.queues))
    out.print(_rebalances_table(view))
    if held is not None:
        out.print(held_table(held))
    if waits is not None:
        out.print(waits_table(waits))
    print_age(view.health, tick_ms, out)


def _document(view: "GroupView") -> dict[str, Any]:
    """Return the JSON of a group: that of the page, with the row that `groups` has of it."""
    queues = [{**structs.asdict(one), "client_id": one.owner or None} for one in view.queues]
    return {**structs.asdict(view), "group": row_of(view.summary), "queues": queues}


def _show_group(view: "GroupView") -> None:
    one = view.summary
    title = Text.assemble(plain_text(one.group_id, "bold"), "  ", verdict_text(one.verdict), ": ")
    out.print(title.append_text(plain_text(one.reason)))
    out.print(
        plain_text(
            f"epoch {one.epoch}, {one.mode}, strategy {one.strategy or 'not known'}, {one.members} members, "
            f"{one.owned} queues owned, {one.unowned} unowned"
        )
    )


def _members_table(members: "Sequence[MemberRow]") -> Table:
    table = Table(title="members")
    for name in ("client", "instance", "version", "host", "joined"):
        table.add_column(name)
    table.add_column("queues", justify="right")
    table.add_column("note")
    for row in members:
        names = (row.client_id, row.instance_id[:8], row.app_version or "-", row.host or "-")
        counts = _known_time(row.joined_ms), str(row.queues)
        table.add_row(
            *map(plain_text, names), *counts, plain_text("; ".join(filter(None, (row.leaving, row.conflict))))
        )
    return table


def _queues_table(queues: "Sequence[QueueRow]") -> Table:
    table = Table(title="queues")
    for name in ("queue", "owner", "since", "epoch", "before", "how it came free"):
        table.add_column(name)
    table.add_column("lag", justify="right")
    table.add_column("note")
    for row in queues:
        table.add_row(
            plain_text(row.name),
            plain_text(row.owner) if row.owner else Text("nobody", "red"),
            _known_time(row.from_ms),
            count_text(row.epoch),
            plain_text(row.previous_client_id or "-"),
            row.how or "-",
            count_text(row.lag_messages),
            plain_text(row.note),
        )
    return table


def _rebalances_table(view: "GroupView") -> Table:
    rows = view.rebalances[:SHOWN_REBALANCES]
    is_cut = len(rows) < SHOWN_REBALANCES and view.rebalances_from_ms
    since = f", since {clock_text(view.rebalances_from_ms)}" if is_cut else ""
    table = Table(title=f"last rebalances{since}, newest first")
    for name in ("epoch", "at", "trigger", "strategy", "clients", "queues", "moved", "spread", "notes"):
        table.add_column(name)
    for row in rows:
        counts = map(str, (row.clients, row.queues, row.moved, row.spread))
        notes = plain_text("; ".join(row.notes))
        table.add_row(str(row.epoch), clock_text(row.at_ms), row.trigger, row.strategy, *counts, notes)
    return table


def _known_time(at_ms: int | None) -> str:
    return "not known" if at_ms is None else clock_text(at_ms)
