"""Commands that change a group: its committed offsets and its settings.  They do without Spark."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from pipeline.cli.group_commands import GroupName
from pipeline.cli.options import Bootstrap, ConfigFile, Home, KafkaConfig, KeyFile, Prefix, settings_of
from pipeline.settings import Settings
from wakeroll.admin import Admin
from wakeroll.errors import InvalidUsage
from wakeroll.keys import warning_of
from wakeroll.operator_requests import ResetOutcome
from wakeroll.reset import ResetPlan, ResetTarget, queue_of, time_of

log = logging.getLogger("wakeroll")
out = Console(highlight=False)

ToFirst = Annotated[bool, typer.Option("--to-first", help="To the first message that is there.")]
ToLast = Annotated[bool, typer.Option("--to-last", help="Behind the last message: what is there now is skipped.")]
ToOffset = Annotated[int | None, typer.Option("--to-offset", help="To this offset; every queue must have it.")]
ToTime = Annotated[
    str | None,
    typer.Option(
        "--to-time", metavar="TIME", help="To the first message since then: 2026-07-01T03:00:00Z, or epoch ms."
    ),
]
Topic = Annotated[str | None, typer.Option("--topic", help="Only this topic; default: all topics of the group.")]
QueueName = Annotated[str | None, typer.Option("--queue", metavar="TOPIC-N", help="Only this queue, like orders-3.")]
Execute = Annotated[bool, typer.Option("--execute", help="Do it; without this, the plan is shown.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan; nothing changes.  This is the default.")]
By = Annotated[str | None, typer.Option("--by", help="Who asks, for the record; default: user@host.")]


def reset_offsets(
    group: GroupName,
    to_first: ToFirst = False,
    to_last: ToLast = False,
    to_offset: ToOffset = None,
    to_time: ToTime = None,
    topic: Topic = None,
    queue: QueueName = None,
    execute: Execute = False,
    dry_run: DryRun = False,
    by: By = None,
    bootstrap: Bootstrap = None,
    kafka_config: KafkaConfig = None,
    keys: KeyFile = None,
    prefix: Prefix = None,
    home: Home = None,
    config: ConfigFile = None,
) -> None:
    """Set where a group goes on consuming, members online or not; shows the plan unless --execute is given."""
    if execute and dry_run:
        raise InvalidUsage("--execute and --dry-run are given; give one of them")
    where = _where(to_first, to_last, to_offset, to_time)
    only = None if queue is None else queue_of(queue)
    settings = settings_of(config, bootstrap=bootstrap, kafka_config=kafka_config, keys=keys, prefix=prefix, home=home)
    with _admin(settings) as admin:
        plan = admin.plan_reset(group, where, topic=topic, queue=only)
        out.print(_plan_table(plan))
        if not execute:
            out.print("nothing is changed; the same command with --execute does it")
            return
        with out.status("waiting for the coordinator"):
            outcome = admin.reset(plan, by=by)
    out.print(_outcome_table(outcome))


def configure(
    group: GroupName,
    profile: Annotated[str | None, typer.Option(help="Several settings at once: wakeroll or rocketmq.")] = None,
    strategy: Annotated[str | None, typer.Option(help="Who gets which queues, whatever the members want.")] = None,
    strategy_params: Annotated[str | None, typer.Option(metavar="JSON", help="An object, for the strategy.")] = None,
    handover: Annotated[str | None, typer.Option(help="cooperative, or eager as RocketMQ's.")] = None,
    heartbeat_ms: Annotated[int | None, typer.Option(help="Between two heartbeats of a member.")] = None,
    session_timeout_ms: Annotated[int | None, typer.Option(help="Who is silent for longer is out.")] = None,
    rebalance_interval_ms: Annotated[int | None, typer.Option(help="Between two looks at wishes and weights.")] = None,
    settle_ms: Annotated[int | None, typer.Option(help="At most one new target in this time.")] = None,
    revoke_timeout_ms: Annotated[int | None, typer.Option(help="How long a member may go on draining.")] = None,
    max_members: Annotated[int | None, typer.Option(help="Whoever comes beyond it is refused.")] = None,
    bootstrap: Bootstrap = None,
    kafka_config: KafkaConfig = None,
    keys: KeyFile = None,
    prefix: Prefix = None,
    home: Home = None,
    config: ConfigFile = None,
) -> None:
    """Change a group's settings; what is not named stays, and without any it is a request for a rebalance."""
    named: dict[str, Any] = {
        "profile": profile,
        "strategy": strategy,
        "strategy_params": None if strategy_params is None else _object_of(strategy_params),
        "handover": handover,
        "heartbeat_ms": heartbeat_ms,
        "session_timeout_ms": session_timeout_ms,
        "rebalance_interval_ms": rebalance_interval_ms,
        "settle_ms": settle_ms,
        "revoke_timeout_ms": revoke_timeout_ms,
        "max_members": max_members,
    }
    settings = settings_of(config, bootstrap=bootstrap, kafka_config=kafka_config, keys=keys, prefix=prefix, home=home)
    with _admin(settings) as admin, out.status("waiting for the coordinator"):
        done = admin.configure(group, **{name: value for name, value in named.items() if value is not None})
    out.print(
        f"[bold]{done.group_id}[/] has its settings in epoch {done.epoch}: strategy {done.strategy or '-'}, "
        f"{done.clients} members, {done.queues} queues, {done.moved} moved"
    )
    for note in done.notes:
        out.print(f"note: {note}", markup=False)


@contextmanager
def _admin(settings: Settings) -> Iterator[Admin]:
    connection = settings.connection
    if settings.keys and (warning := warning_of(settings.keys)):
        log.warning("%s", warning)
    with Admin(
        connection.bootstrap,
        kafka_config=connection.config,
        prefix=connection.topics.prefix,
        keys=settings.keys,
    ) as admin:
        yield admin


def _where(to_first: bool, to_last: bool, to_offset: int | None, to_time: str | None) -> ResetTarget:
    """Return the one place that is given."""
    given: list[ResetTarget] = []
    if to_first:
        given.append("first")
    if to_last:
        given.append("last")
    if to_offset is not None:
        given.append(to_offset)
    if to_time is not None:
        given.append(time_of(to_time))
    if len(given) != 1:
        raise InvalidUsage(
            f"{len(given) or 'no'} places are given; give one of --to-first, --to-last, --to-offset, --to-time"
        )
    return given[0]


def _object_of(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise InvalidUsage(f"--strategy-params is {text!r}; it must be a JSON object ({error})") from None


def _plan_table(plan: ResetPlan) -> Table:
    table = Table(title=f"{plan.group_id} {plan.asked}")
    own = any(row.client_id for row in plan.rows)
    for name in ("queue", "client") if own else ("queue",):
        table.add_column(name)
    for name in ("committed", "new", "difference"):
        table.add_column(name, justify="right")
    for row in plan.rows:
        committed = "unknown" if row.committed is None else str(row.committed)
        difference = "" if row.difference is None else f"{row.difference:+}"
        head = (str(row.queue), row.client_id) if own else (str(row.queue),)
        table.add_row(*head, committed, str(row.offset), difference)
    return table


def _outcome_table(outcome: ResetOutcome) -> Table:
    table = Table(title=f"done, in epoch {outcome.rebalance.epoch}")
    table.add_column("queue")
    table.add_column("offset", justify="right")
    table.add_column("of client" if outcome.is_broadcasting else "given anew to")
    for (queue, client_id), decision in sorted(outcome.offsets.items()):
        table.add_row(str(queue), str(decision.offset), client_id or "nobody yet")
    return table
