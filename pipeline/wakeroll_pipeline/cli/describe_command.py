"""The `describe` command: the owners, members and rebalances of one group."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from msgspec import structs
from rich.table import Table

from wakeroll.epoch_ms import now_ms
from wakeroll_pipeline.cli.held_pulls import Held, held_table, held_when, waiting_of, waits_of, waits_table
from wakeroll_pipeline.cli.live_answer import live_model, print_age, provenance, tick_of, view_of
from wakeroll_pipeline.cli.open_ledger import ledger
from wakeroll_pipeline.cli.options import (
    AsJson,
    ConfigFile,
    EngineName,
    GroupName,
    Home,
    KafkaConfig,
    KeyFile,
    LiveBootstrap,
    Prefix,
    settings_of,
)
from wakeroll_pipeline.cli.output import Output, clock_text, write_document
from wakeroll_pipeline.cli.watch_text import plain_text
from wakeroll_pipeline.ledger.ledger import Ledger, Row
from wakeroll_pipeline.ledger.view_queries import numbers_of
from wakeroll_pipeline.settings import Settings

out = Output()

SHOWN_REBALANCES = 5
"""Number of rebalances to show, the newest ones."""

Holds = Annotated[bool, typer.Option("--holds", help="Also show the held pulls, and what ended earlier pulls.")]


def describe(
    group: GroupName,
    holds: Holds = False,
    as_json: AsJson = False,
    engine: EngineName = None,
    bootstrap: LiveBootstrap = None,
    kafka_config: KafkaConfig = None,
    keys: KeyFile = None,
    prefix: Prefix = None,
    home: Home = None,
    config: ConfigFile = None,
) -> None:
    """Show one group: the owner of each queue, since when and why, the members, and the last five rebalances.

    With --bootstrap, the answer comes from Kafka, as of now, and has the contents of `watch`.
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
        _live(settings, group, holds, as_json)
        return
    from wakeroll_pipeline.ledger.known_groups import refuse_unknown_group

    with ledger(settings, out, engine) as opened:
        refuse_unknown_group(opened, group)
        [found] = _rows(opened, "groups", group)
        members = _rows(opened, "current_members", group, "client_id")
        queues = [
            row
            for row in _rows(opened, "current_assignments", group, "topic, broker, queue_id")
            if row.how != "removed" or row.client_id is not None
        ]
        rebalances = _rows(opened, "rebalances", group, "era desc, seq desc", limit=SHOWN_REBALANCES)
        [tick] = opened.rows("select max(at_ms) as at_ms from events where type = 'tick'")
        held = held_when(opened, settings.partitions, group) if holds else None
        waits = waits_of(opened, group) if holds else []
    if as_json:
        answer: dict[str, Any] = {"group": found, "members": members, "queues": queues, "rebalances": rebalances}
        if held is not None:
            answer |= {"held_pulls": held.pulls, "held_pulls_at_ms": held.at_ms, "ended_waits": waits}
        write_document({**answer, "last_tick_ms": tick.at_ms})
        return
    _show_group(found, tick.at_ms)
    out.print(_members_table(members))
    out.print(_queues_table(queues))
    out.print(_rebalances_table(rebalances))
    if held is not None:
        out.print(held_table(held))
        out.print(waits_table(waits))


def _live(settings: Settings, group: str, holds: bool, as_json: bool) -> None:
    from wakeroll_pipeline.cli.watch_screen import group_screen

    with live_model(settings, out) as model:
        view, tick_ms = view_of(model, group), tick_of(model)
        with model.lock:
            shards = [one.shard for one in model.shards.values() if one.kind == "queues"]
            held = Held(waiting_of(shards, group), max((shard.tick_ms for shard in shards), default=0))
    if as_json:
        answer: dict[str, Any] = {**structs.asdict(view), **provenance(view.health, tick_ms), "last_tick_ms": tick_ms}
        if holds:
            answer |= {"held_pulls": held.pulls, "held_pulls_at_ms": held.at_ms}
        write_document(answer)
        return
    out.print(group_screen(view, out.size.width, is_unicode=out.encoding.startswith("utf")))
    if holds:
        out.print(held_table(held))
    print_age(structs.replace(view.health, notices=[]), tick_ms, out)  # the screen has the notices


def _rows(opened: Ledger, view: str, group: str, order: str = "group_id", limit: int | None = None) -> list[Row]:
    """Return the rows of a group in a view."""
    most = "" if limit is None else f" limit {limit}"
    shown = numbers_of(view)
    return opened.rows(f"select {shown} from {view} where group_id = $group_id order by {order}{most}", group_id=group)


def _show_group(group: Row, tick_ms: int | None) -> None:
    age = "never" if tick_ms is None else f"{(now_ms() - tick_ms) / 1000:.0f} s ago"
    out.print(
        f"[bold]{group.group_id}[/]  epoch {group.epoch}, strategy {group.strategy}, {group.members} members, "
        f"{group.owned} queues owned, {group.unowned} unowned; last recorded tick {age}"
    )


def _members_table(members: Sequence[Row]) -> Table:
    table = Table(title="members")
    for name in ("client", "instance", "version", "host", "joined"):
        table.add_column(name)
    table.add_column("queues", justify="right")
    for row in members:
        texts = (row.client_id, row.instance_id[:8], row.app_version or "-", row.host or "-", clock_text(row.joined_ms))
        table.add_row(*map(plain_text, texts), str(row.queues))
    return table


def _queues_table(queues: Sequence[Row]) -> Table:
    table = Table(title="queues")
    for name in ("queue", "owner", "since", "epoch", "before", "how it came free"):
        table.add_column(name)
    for row in queues:
        name = f"{row.topic}@{row.broker}-{row.queue_id}" if row.broker else f"{row.topic}-{row.queue_id}"
        owner = row.client_id or "[red]nobody[/]"
        table.add_row(name, owner, clock_text(row.from_ms), str(row.epoch), row.previous_client_id or "-", row.how)
    return table


def _rebalances_table(rebalances: Sequence[Row]) -> Table:
    table = Table(title="last rebalances, newest first")
    for name in ("epoch", "at", "trigger", "strategy", "clients", "queues", "moved", "spread", "notes"):
        table.add_column(name)
    for row in rebalances:
        counts: list[Any] = [row.clients, row.queues, row.moved, row.spread]
        table.add_row(
            str(row.epoch), clock_text(row.at_ms), row.trigger, row.strategy, *map(str, counts), "; ".join(row.notes)
        )
    return table
