"""Commands that show groups, from the Delta tables or from the checkpoint, and the restore after a loss."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from model.decision_order import ORDER
from pipeline.cli.open_ledger import ledger, session
from pipeline.cli.options import (
    Bootstrap,
    Checkpoints,
    ConfigFile,
    GroupName,
    Home,
    KafkaConfig,
    Machines,
    Prefix,
    settings_of,
)
from pipeline.cli.output import Output
from wakeroll.epoch_ms import EpochMs, now_ms
from wakeroll.errors import InvalidUsage

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

out = Output()

FromLog = Annotated[
    bool,
    typer.Option(
        "--from-log",
        help="Rebuild the state from the log in Kafka, without snapshots; records beyond its retention are lost.",
    ),
]
Holds = Annotated[bool, typer.Option("--holds", help="Also show the held pulls, from the coordinator's checkpoint.")]


def groups(home: Home = None, config: ConfigFile = None) -> None:
    """List the groups: members, queues, epoch, and the trigger of the last rebalance."""
    with ledger(settings_of(config, home=home), out) as spark:
        rows = spark.sql("select * from groups order by group_id").collect()
    table = Table(title=f"{len(rows)} groups" if len(rows) != 1 else "1 group")
    for name in ("group", "epoch", "strategy"):
        table.add_column(name)
    for name in ("members", "queues owned", "unowned"):
        table.add_column(name, justify="right")
    table.add_column("last rebalance")
    for row in rows:
        why = f"{row.last_trigger}, {_time(row.last_rebalance_ms)}" if row.last_trigger else "none yet"
        table.add_row(
            row.group_id, str(row.epoch), row.strategy, str(row.members), str(row.owned), str(row.unowned), why
        )
    out.print(table)


def describe(
    group: GroupName,
    holds: Holds = False,
    machines: Machines = None,
    home: Home = None,
    checkpoints: Checkpoints = None,
    config: ConfigFile = None,
) -> None:
    """Show one group: the owner of each queue, since when and why, the members, and the last five rebalances."""
    from pipeline.cli.held_pulls import holds_tables
    from pipeline.ledger.known_groups import refuse_unknown_group

    settings = settings_of(config, machines=machines, home=home, checkpoints=checkpoints)
    with ledger(settings, out) as spark:
        refuse_unknown_group(spark, group)
        [found] = _rows(spark, "groups", group)
        members = _rows(spark, "current_members", group, "client_id")
        queues = _rows(spark, "current_assignments", group, "topic", "broker", "queue_id")
        rebalances = _rows(spark, "rebalances", group, *ORDER)[:-6:-1]
        tick_ms = spark.sql("select max(at_ms) as at_ms from events where type = 'tick'").collect()[0].at_ms
        waits = holds_tables(spark, settings, group) if holds else []
    _show_group(found, tick_ms)
    out.print(_members_table(members))
    out.print(_queues_table(queues))
    out.print(_rebalances_table(rebalances))
    for table in waits:
        out.print(table)


def state(
    machines: Machines = None, home: Home = None, checkpoints: Checkpoints = None, config: ConfigFile = None
) -> None:
    """Show the coordinator's state, from its checkpoint: one row per group and member."""
    from pipeline.recovery.checkpoint_state import read_shards

    settings = settings_of(config, machines=machines, home=home, checkpoints=checkpoints)
    with session(settings, out) as spark:
        shards = read_shards(spark, settings)
    table = Table(title=f"state of {len(shards)} shards")
    for name in ("shard", "group", "epoch", "client", "instance", "topics"):
        table.add_column(name)
    for name in ("queues", "shown epoch", "sent epoch", "silent for"):
        table.add_column(name, justify="right")
    for shard in shards:
        for group_id in shard.names():
            group = shard.group(group_id)
            if group is None:  # a queue; `describe --holds` shows queues
                continue
            head = (shard.name, group_id, str(group.epoch))
            if not group.members:
                table.add_row(*head, "-")
            for client_id, member in group.members.items():
                silent_ms = shard.now_ms - member.seen_ms
                counts = (len(member.owned), member.shown_epoch, member.sent_epoch)
                topics = ", ".join(sorted(member.subscriptions))
                table.add_row(
                    *head, client_id, member.instance_id[:8], topics, *map(str, counts), f"{silent_ms / 1000:.1f} s"
                )
    out.print(table)


def restore(
    from_log: FromLog = False,
    bootstrap: Bootstrap = None,
    kafka_config: KafkaConfig = None,
    prefix: Prefix = None,
    machines: Machines = None,
    home: Home = None,
    checkpoints: Checkpoints = None,
    config: ConfigFile = None,
) -> None:
    """Let the next `run` start from the snapshots in the tables, after a loss of the checkpoints or of the log."""
    from pipeline.recovery.restore_plan import prepare_restore
    from pipeline.recovery.snapshots import NO_TABLES

    settings = settings_of(
        config,
        bootstrap=bootstrap,
        kafka_config=kafka_config,
        prefix=prefix,
        machines=machines,
        home=home,
        checkpoints=checkpoints,
    )
    if not settings.warehouse.is_dir() and not from_log:
        raise InvalidUsage(f"no tables in {settings.warehouse}; {NO_TABLES}")
    with session(settings, out) as spark:
        restored = prepare_restore(spark, settings, from_log=from_log)
    for plan in restored.plans.values():
        out.print(plan.text, soft_wrap=True, highlight=False)
    for note in restored.notes:
        out.print(note, soft_wrap=True, highlight=False)
    if restored.plans:
        same = sum(not plan.is_new_era for plan in restored.plans.values())
        out.print(f"{same} of {len(restored.plans)} shards continue in their era")
    out.print("next: wakeroll run" + ("" if settings.machines == "both" else f" --machines {settings.machines}"))


def _rows(spark: "SparkSession", view: str, group: str, *order: str) -> "list[Row]":
    """Return the rows of a group in a view.

    The filter is no SQL with a named parameter: Spark's parser and Delta's parser together drop the parameter.
    """
    rows = spark.table(view)
    return rows.where(rows.group_id == group).orderBy("group_id", *order).collect()


def _show_group(group: "Row", tick_ms: int | None) -> None:
    age = "never" if tick_ms is None else f"{(now_ms() - tick_ms) / 1000:.0f} s ago"
    out.print(
        f"[bold]{group.group_id}[/]  epoch {group.epoch}, strategy {group.strategy}, {group.members} members, "
        f"{group.owned} queues owned, {group.unowned} unowned; last recorded tick {age}"
    )


def _members_table(members: "list[Row]") -> Table:
    table = Table(title="members")
    for name in ("client", "instance", "joined"):
        table.add_column(name)
    table.add_column("queues", justify="right")
    for row in members:
        table.add_row(row.client_id, row.instance_id[:8], _time(row.joined_ms), str(row.queues))
    return table


def _queues_table(queues: "list[Row]") -> Table:
    table = Table(title="queues")
    for name in ("queue", "owner", "since", "epoch", "before", "how it came free"):
        table.add_column(name)
    for row in queues:
        if row.how == "removed" and row.client_id is None:
            continue
        name = f"{row.topic}@{row.broker}-{row.queue_id}" if row.broker else f"{row.topic}-{row.queue_id}"
        owner = row.client_id or "[red]nobody[/]"
        table.add_row(name, owner, _time(row.from_ms), str(row.epoch), row.previous_client_id or "-", row.how)
    return table


def _rebalances_table(rebalances: "list[Row]") -> Table:
    table = Table(title="last rebalances, newest first")
    for name in ("epoch", "at", "trigger", "strategy", "clients", "queues", "moved", "spread", "notes"):
        table.add_column(name)
    for row in rebalances:
        counts: list[Any] = [row.clients, row.queues, row.moved, row.spread]
        table.add_row(
            str(row.epoch), _time(row.at_ms), row.trigger, row.strategy, *map(str, counts), "; ".join(row.notes)
        )
    return table


def _time(at_ms: int | None) -> str:
    """Return a time in UTC as text, without the date if that is today."""
    if at_ms is None:
        return "-"
    date, _, time = str(EpochMs(at_ms)).partition("T")
    today, _, _ = str(EpochMs(now_ms())).partition("T")
    return time if date == today else f"{date} {time}"
