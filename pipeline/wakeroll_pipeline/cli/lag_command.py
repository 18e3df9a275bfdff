"""The `lag` command: how far the groups are behind, in messages and in time."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from wakeroll_model.queue import Queue
from wakeroll_pipeline.cli.completed_names import groups_beginning_with
from wakeroll_pipeline.cli.live_answer import (
    group_model,
    print_age,
    provenance,
    tick_of,
    view_of,
)
from wakeroll_pipeline.cli.options import AsJson, LiveOptions, LogAt
from wakeroll_pipeline.cli.output import Output, seconds_text, write_document

if TYPE_CHECKING:
    from wakeroll_pipeline.live.live_model import LiveModel

out = Output()

AnyGroup = Annotated[
    str | None,
    typer.Argument(
        metavar="[GROUP]",
        help="Show the queues of this group; default: the sums of all groups.",
        autocompletion=groups_beginning_with,
    ),
]

_SHORTEST_MS = 1_000
"""A wait that is only known to be longer than less than this (ms) is not known."""


def lag(
    deployment: LiveOptions,
    group: AnyGroup = None,
    at: LogAt = None,
    as_json: AsJson = False,
) -> None:
    """Show the lag of each group, or of each queue of one group: messages, and the age of the oldest one (s).

    The lag of a queue without a committed offset is known only if it has no messages, or its owner begins at the
    first one.  Lag counts from the newest reported end offset, and with the option --bootstrap from the ends that
    the brokers report now.
    """
    with group_model(deployment.settings(), out, group, at) as (model, _):
        _answer(model, group, as_json)


def _answer(model: "LiveModel", group: str | None, as_json: bool) -> None:
    from wakeroll_pipeline.cli.live_lag import lag_of_groups, lag_of_queues

    rows: Sequence[Any]
    rows = lag_of_groups(model, time.monotonic()) if group is None else lag_of_queues(view_of(model, group))
    tick_ms, health = tick_of(model), model.health(time.monotonic())
    if as_json:
        write_document({"groups" if group is None else "queues": rows, **provenance(health, tick_ms)})
        return
    out.print(_table(group, rows))
    print_age(health, tick_ms, out)


def _table(group: str | None, rows: Sequence[Any]) -> Table:
    table = Table(title="lag of the groups" if group is None else f"lag of {group}")
    table.add_column("group" if group is None else "queue")
    numbers = ("queues", "messages", "most in a queue") if group is None else ("committed", "end", "messages")
    for name in (*numbers, "oldest waits for"):
        table.add_column(name, justify="right")
    for row in rows:
        if group is None:
            name, wait_ms = row.group_id, row.max_lag_ms
            counts = _counts_of_group(row)
        else:
            name, wait_ms = str(Queue(row.topic, row.broker, row.queue_id)), row.lag_ms
            counts = _counts_of_queue(row)
        wait = f"{'> ' if row.lag_is_longer else ''}{seconds_text(wait_ms)}"
        if row.lag_messages is None or (row.lag_is_longer and wait_ms < _SHORTEST_MS):
            wait = "-"  # nothing is known, or the first known end is from this very query
        table.add_row(name, *counts, wait)
    return table


def _counts_of_group(row: Any) -> tuple[str, ...]:
    unknown = f"{row.unknown} not known" if row.unknown else ""
    known = "" if row.lag_messages is None else str(row.lag_messages)
    return str(row.queues), ", ".join(filter(None, (known, unknown))), _or_dash(row.max_lag_messages)


def _counts_of_queue(row: Any) -> tuple[str, ...]:
    messages = "not known" if row.lag_messages is None else str(row.lag_messages)
    return _or_dash(row.committed_offset), _or_dash(row.end_offset), messages


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)
