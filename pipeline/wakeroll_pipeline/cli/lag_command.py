"""The `lag` command: how far the groups are behind, in messages and in time."""

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from wakeroll.epoch_ms import now_ms
from wakeroll_model.queue import Queue
from wakeroll_pipeline.cli.live_answer import live_model, print_age, provenance, tick_of, view_of
from wakeroll_pipeline.cli.open_ledger import ledger
from wakeroll_pipeline.cli.options import (
    AsJson,
    ConfigFile,
    EngineName,
    Home,
    KafkaConfig,
    KeyFile,
    LiveBootstrap,
    Prefix,
    settings_of,
)
from wakeroll_pipeline.cli.output import Output, clock_text, seconds_text, write_document
from wakeroll_pipeline.ledger.ledger import Row
from wakeroll_pipeline.settings import Settings

out = Output()

AnyGroup = Annotated[
    str | None,
    typer.Argument(metavar="[GROUP]", help="Show the queues of this group; default: the sums of all groups."),
]

_SHORTEST_MS = 1_000
"""A wait that is only known to be longer than less than this (ms) is not known."""

_OF_GROUPS = """
    select
        group_id,
        count(*) as queues,
        count(*) - count(lag_messages) as unknown,
        sum(lag_messages) as lag_messages,
        max(lag_messages) as max_lag_messages,
        max(lag_ms) as max_lag_ms,
        max(committed_ms) as committed_ms,
        max(as_of_ms) as as_of_ms
    from lag
    group by group_id
    order by lag_messages desc nulls first, group_id
"""
_OF_QUEUES = """
    select * from lag where group_id = $group_id
    order by lag_messages desc nulls first, topic, broker, queue_id, client_id
"""


def lag(
    group: AnyGroup = None,
    as_json: AsJson = False,
    engine: EngineName = "duckdb",
    bootstrap: LiveBootstrap = None,
    kafka_config: KafkaConfig = None,
    keys: KeyFile = None,
    prefix: Prefix = None,
    home: Home = None,
    config: ConfigFile = None,
) -> None:
    """Show the lag of each group, or of each queue of one group: messages, and the age of the oldest one (s).

    The lag of a queue without a committed offset is known only if it has no messages, or its owner begins at the
    first one.  Lag counts from the newest reported end offset, and with the option --bootstrap from the ends that
    the brokers report now.
    """
    settings = settings_of(
        config,
        look_for_run=False,
        bootstrap=bootstrap,
        kafka_config=kafka_config,
        keys=keys,
        prefix=prefix,
        home=home,
    )
    if settings.bootstrap:
        _live(settings, group, as_json)
        return
    from wakeroll_pipeline.ledger.known_groups import refuse_unknown_group

    with ledger(settings, out, engine) as opened:
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


def _live(settings: Settings, group: str | None, as_json: bool) -> None:
    from wakeroll_pipeline.cli.live_lag import lag_of_groups, lag_of_queues

    rows: Sequence[Any]
    with live_model(settings, out) as model:
        rows = lag_of_groups(model, time.monotonic()) if group is None else lag_of_queues(view_of(model, group))
        tick_ms, health = tick_of(model), model.health(time.monotonic())
    if as_json:
        write_document({"groups" if group is None else "queues": rows, **provenance(health, tick_ms)})
        return
    out.print(_live_table(group, rows))
    print_age(health, tick_ms, out)


def _live_table(group: str | None, rows: Sequence[Any]) -> Table:
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
        if row.lag_is_longer and wait_ms < _SHORTEST_MS:
            wait = "-"  # the first known end is from this very query
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


def _groups_table(rows: Sequence[Row]) -> Table:
    table = Table(title="lag of the groups")
    table.add_column("group")
    for name in ("queues", "messages", "most in a queue", "oldest waits for"):
        table.add_column(name, justify="right")
    table.add_column("last commit")
    for row in rows:
        wait = "-" if row.max_lag_ms is None else seconds_text(row.max_lag_ms)
        table.add_row(row.group_id, *_counts_of_group(row), wait, clock_text(row.committed_ms))
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
        wait = "-" if row.lag_ms is None else seconds_text(row.lag_ms)
        table.add_row(*head, *_counts_of_queue(row), wait, clock_text(row.committed_ms))
    return table
