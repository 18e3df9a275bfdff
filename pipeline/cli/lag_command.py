"""The `lag` command: how far the groups are behind, in messages and in time."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from pipeline.cli.open_ledger import ledger
from pipeline.cli.options import AsJson, ConfigFile, EngineName, Home, settings_of
from pipeline.cli.output import Output, clock_text, seconds_text, write_document
from pipeline.ledger.ledger import Row
from wakeroll.epoch_ms import now_ms

out = Output()

AnyGroup = Annotated[
    str | None,
    typer.Argument(metavar="[GROUP]", help="Show the queues of this group; default: the sums of all groups."),
]

_OF_GROUPS = """
    select
        group_id,
        count(*) as queues,
        sum(lag_messages) as lag_messages,
        max(lag_messages) as max_lag_messages,
        max(lag_ms) as max_lag_ms,
        max(committed_ms) as committed_ms,
        max(as_of_ms) as as_of_ms
    from lag
    group by group_id
    order by lag_messages desc, group_id
"""
_OF_QUEUES = """
    select * from lag where group_id = $group_id order by lag_messages desc, topic, broker, queue_id, client_id
"""


def lag(
    group: AnyGroup = None,
    as_json: AsJson = False,
    engine: EngineName = "duckdb",
    home: Home = None,
    config: ConfigFile = None,
) -> None:
    """Show the lag of each group, or of each queue of one group: messages, and the age of the oldest one (s).

    Queues without a committed offset are not listed.  Lag counts from the newest reported end offset.
    """
    from pipeline.ledger.known_groups import refuse_unknown_group

    with ledger(settings_of(config, home=home), out, engine) as opened:
        if group is None:
            rows = opened.rows(_OF_GROUPS)
        else:
            refuse_unknown_group(opened, group)
            rows = opened.rows(_OF_QUEUES, group_id=group)
    if as_json:
        write_document({"groups" if group is None else "queues": rows})
        return
    out.print(_groups_table(rows) if group is None else _queues_table(group, rows))
    if rows:
        as_of_ms = rows[0].as_of_ms
        out.print(f"as of {clock_text(as_of_ms)}, {seconds_text(now_ms() - as_of_ms)} ago")


def _groups_table(rows: Sequence[Row]) -> Table:
    table = Table(title="lag of the groups")
    table.add_column("group")
    for name in ("queues", "messages", "most in a queue", "oldest waits for"):
        table.add_column(name, justify="right")
    table.add_column("last commit")
    for row in rows:
        counts = (row.queues, row.lag_messages, row.max_lag_messages)
        table.add_row(row.group_id, *map(str, counts), seconds_text(row.max_lag_ms), clock_text(row.committed_ms))
    return table


def _queues_table(group: str, rows: Sequence[Row]) -> Table:
    table = Table(title=f"lag of {group}")
    own = any(row.client_id is not None for row in rows)
    for name in ("queue", "client") if own else ("queue",):
        table.add_column(name)
    for name in ("committed", "end", "messages", "oldest waits for"):
        table.add_column(name, justify="right")
    table.add_column("last commit")
    for row in rows:
        queue = f"{row.topic}@{row.broker}-{row.queue_id}" if row.broker else f"{row.topic}-{row.queue_id}"
        head = (queue, row.client_id or "-") if own else (queue,)
        counts = (row.committed_offset, row.end_offset, row.lag_messages)
        table.add_row(*head, *map(str, counts), seconds_text(row.lag_ms), clock_text(row.committed_ms))
    return table
