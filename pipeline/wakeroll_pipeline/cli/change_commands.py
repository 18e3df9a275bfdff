"""Commands that change the committed offsets, settings or members of a group.  They do not need Spark."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from wakeroll.admin import Admin
from wakeroll.argument_checks import json_object, require_strategy
from wakeroll.errors import InvalidUsage
from wakeroll.kick import keep_out_ms_of
from wakeroll.operator_name import this_user
from wakeroll.operator_requests import ResetOutcome, configure_of
from wakeroll.reset import ResetPlan, queue_of
from wakeroll.topic_slices import slices_in
from wakeroll_model import config as defaults
from wakeroll_pipeline.cli.admin_connection import admin_of, awaited
from wakeroll_pipeline.cli.completed_names import groups_beginning_with
from wakeroll_pipeline.cli.json_answers import MemberReport, PlanAnswer
from wakeroll_pipeline.cli.options import AsJson, BrokerOptions, By, GroupName, Reason, time_before, time_option
from wakeroll_pipeline.cli.output import Output, write_document
from wakeroll_pipeline.cli.reset_targets import Targets
from wakeroll_pipeline.cli.styled_text import plain_lines
from wakeroll_pipeline.cli.text_table import write_lines

out = Output(highlight=False)

ToFirst = Annotated[bool, typer.Option("--to-first", help="Reset to the first message that Kafka still has.")]
ToLast = Annotated[bool, typer.Option("--to-last", help="Reset to the end offset: all present messages are skipped.")]
ToOffset = Annotated[
    int | None,
    typer.Option(
        "--to-offset",
        help="Reset to this offset (of the next message); it must lie within each queue, whose end offset counts.",
    ),
]
ToTime = Annotated[int | None, time_option("--to-time", "Reset to the first message at or after this time.")]
ToCurrent = Annotated[
    bool,
    typer.Option(
        "--to-current", help="Reset to the committed offset, which is recorded again; without one, to the end offset."
    ),
]
ByDuration = Annotated[
    int | None,
    typer.Option(
        "--by-duration",
        metavar="DURATION",
        parser=time_before,
        help="Reset to the first message at or after the time that is so long ago, such as 90s, 10m, 2h or PT2H.",
        show_default=False,
    ),
]
ShiftBy = Annotated[
    int | None,
    typer.Option(
        "--shift-by",
        metavar="MESSAGES",
        help="Reset by this number of messages, back if it is negative, as far as each queue has messages.",
        show_default=False,
    ),
]
FromFile = Annotated[
    Path | None,
    typer.Option(
        "--from-file",
        metavar="FILE",
        help="Reset to the offsets in a CSV file with topic,partition,offset in each line.",
        show_default=False,
    ),
]
Like = Annotated[
    str | None,
    typer.Option(
        "--like",
        metavar="GROUP",
        help="Reset to the committed offsets of this other group.",
        show_default=False,
        autocompletion=groups_beginning_with,
    ),
]
Topic = Annotated[str | None, typer.Option("--topic", help="Change this topic only; default: all topics of the group.")]
QueueName = Annotated[
    str | None,
    typer.Option("--queue", metavar="TOPIC-N", help="Reset this queue only, such as orders-3; default: all queues."),
]
SkippedQueue = Annotated[str, typer.Argument(metavar="TOPIC-N", help="Queue, such as orders-3.")]
SkippedOffset = Annotated[
    int | None,
    typer.Option("--offset", help="Offset of the message; if another one is the next, the command is refused."),
]
FromGroup = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="GROUP", help="Kafka's group that has the offsets; default: the one with the same name."
    ),
]
Execute = Annotated[bool, typer.Option("--execute", help="Carry out the plan; default: show it only.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing (the default).")]

Profile = Annotated[
    str | None, typer.Option(help=f"Preset of several settings: {' or '.join(defaults.PROFILES)} (default: wakeroll).")
]
StrategyName = Annotated[
    str | None, typer.Option(help="Strategy that assigns the queues; it overrides the strategy that the members name.")
]
AllowUnknownStrategy = Annotated[
    bool,
    typer.Option(
        "--allow-unknown-strategy",
        help="Accept a strategy that only a newer coordinator has (default: refuse it).",
    ),
]
StrategyParams = Annotated[
    str | None, typer.Option(metavar="JSON", help="Parameters of the strategy, as a JSON object (default: none).")
]
Handover = Annotated[
    str | None,
    typer.Option(help="How queues change owners: cooperative, or eager as in RocketMQ (default: cooperative)."),
]
HeartbeatMs = Annotated[
    int | None,
    typer.Option(help=f"Interval between two heartbeats of a member (ms; default: {defaults.HEARTBEAT_MS})."),
]
SessionTimeoutMs = Annotated[
    int | None,
    typer.Option(
        help=f"Evict a member after this long without a heartbeat (ms; default: {defaults.SESSION_TIMEOUT_MS})."
    ),
]
RebalanceIntervalMs = Annotated[
    int | None,
    typer.Option(
        help=f"Interval between two reviews of preferences and weights (ms; default: {defaults.REBALANCE_INTERVAL_MS})."
    ),
]
SettleMs = Annotated[
    int | None, typer.Option(help=f"Minimum time between two new targets (ms; default: {defaults.SETTLE_MS}).")
]
RevokeTimeoutMs = Annotated[
    int | None,
    typer.Option(
        help="Take a revoked queue from a member that has not released it after this long "
        f"(ms; default: {defaults.REVOKE_TIMEOUT_MS})."
    ),
]
MaxMembers = Annotated[
    int | None,
    typer.Option(
        help=f"Reject clients that join a group of this many members (count; default: {defaults.MAX_MEMBERS})."
    ),
]
SlicesOfTopics = Annotated[
    list[str] | None,
    typer.Option(
        "--slices",
        metavar="TOPIC=N",
        help="Cut each partition of TOPIC into N slices, a power of two up to 64, which are assigned like queues; "
        "1: not cut; repeatable.  It needs feature level 5 (default: no change).",
    ),
]

ClientName = Annotated[
    str, typer.Argument(metavar="CLIENT", help="Name of the client (client_id), as `wakeroll describe` shows it.")
]
KeepOut = Annotated[
    str,
    typer.Option(
        "--for",
        metavar="DURATION",
        help="Keep the client out for this long, such as 90s, 10m or 2h (default: 0, it may join again at once).",
    ),
]
Readmit = Annotated[
    bool, typer.Option("--readmit", help="Let a client join again that is kept out (default: kick it).")
]


def reset_offsets(
    deployment: BrokerOptions,
    group: GroupName,
    to_first: ToFirst = False,
    to_last: ToLast = False,
    to_offset: ToOffset = None,
    to_time: ToTime = None,
    to_current: ToCurrent = False,
    by_duration: ByDuration = None,
    shift_by: ShiftBy = None,
    from_file: FromFile = None,
    like: Like = None,
    topic: Topic = None,
    queue: QueueName = None,
    execute: Execute = False,
    dry_run: DryRun = False,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Reset the committed offsets of a group, also while members are online; without --execute, show the plan only."""
    _check_modes(execute, dry_run)
    targets = Targets(
        to_first=to_first,
        to_last=to_last,
        to_current=to_current,
        to_offset=to_offset,
        to_time=to_time,
        by_duration=by_duration,
        shift_by=shift_by,
        from_file=from_file,
        like=like,
    )
    plan_by = targets.plan_for(group, topic, None if queue is None else queue_of(queue))
    settings = deployment.settings()
    with admin_of(settings, signs=execute) as admin:
        _carry_out(admin, plan_by(admin), execute, by, as_json)


def skip(
    deployment: BrokerOptions,
    group: GroupName,
    queue: SkippedQueue,
    offset: SkippedOffset = None,
    execute: Execute = False,
    dry_run: DryRun = False,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Skip the next message of a queue, such as one that no handler can process; without --execute, show the plan only.

    The plan shows the key, size and time of the message. The queue is assigned again, and its owner continues after the
    message.
    """
    _check_modes(execute, dry_run)
    only, settings = queue_of(queue), deployment.settings()
    with admin_of(settings, signs=execute) as admin:
        _carry_out(admin, admin.plan_skip(group, only, offset=offset), execute, by, as_json)


def import_offsets(
    deployment: BrokerOptions,
    group: GroupName,
    from_group: FromGroup = None,
    topic: Topic = None,
    execute: Execute = False,
    dry_run: DryRun = False,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Import the committed offsets of one of Kafka's own groups that has no members; without --execute, show the plan.

    Kafka's group is not changed. Start the consumers of wakeroll afterwards.
    """
    _check_modes(execute, dry_run)
    settings = deployment.settings()
    with admin_of(settings, signs=execute) as admin:
        _carry_out(admin, admin.plan_import(group, kafka_group=from_group, topic=topic), execute, by, as_json)


def configure(
    deployment: BrokerOptions,
    group: GroupName,
    profile: Profile = None,
    strategy: StrategyName = None,
    strategy_params: StrategyParams = None,
    allow_unknown_strategy: AllowUnknownStrategy = False,
    handover: Handover = None,
    heartbeat_ms: HeartbeatMs = None,
    session_timeout_ms: SessionTimeoutMs = None,
    rebalance_interval_ms: RebalanceIntervalMs = None,
    settle_ms: SettleMs = None,
    revoke_timeout_ms: RevokeTimeoutMs = None,
    max_members: MaxMembers = None,
    slices: SlicesOfTopics = None,
    by: By = None,
) -> None:
    """Change the settings of a group; without any setting, request a rebalance.

    A setting that is not named keeps its value.  The defaults are the values of a new group.
    """
    named: dict[str, Any] = {
        "profile": profile,
        "strategy": strategy,
        "strategy_params": None if strategy_params is None else json_object("--strategy-params", strategy_params),
        "handover": handover,
        "heartbeat_ms": heartbeat_ms,
        "session_timeout_ms": session_timeout_ms,
        "rebalance_interval_ms": rebalance_interval_ms,
        "settle_ms": settle_ms,
        "revoke_timeout_ms": revoke_timeout_ms,
        "max_members": max_members,
        "slices": slices_in("--slices", slices or []) or None,
    }
    if strategy is not None and not allow_unknown_strategy:
        require_strategy(strategy, "--allow-unknown-strategy accepts one that only a newer coordinator has")
    given = {name: value for name, value in named.items() if value is not None}
    configure_of(group, this_user() if by is None else by, given)  # before a broker is asked for anything
    settings = deployment.settings()
    with admin_of(settings, signs=True) as admin, awaited(out):
        done = admin.configure(group, by=by, allow_unknown_strategy=True, **given)
    out.print(
        f"[bold]{done.group_id}[/] is configured in epoch {done.epoch}: strategy {done.strategy or '-'}, "
        f"{done.clients} members, {done.queues} queues, {done.moved} moved"
    )
    for note in done.notes:
        out.print(f"note: {note}", markup=False)


def inspect(
    deployment: BrokerOptions,
    group: GroupName,
    client: ClientName,
    reason: Reason = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Request a report from a member: the running calls of its handler, with their messages and stacks.

    Its process answers even if all its handlers hang. The answer is recorded too. It needs feature level 4.
    """
    with admin_of(deployment.settings(), signs=True) as admin, awaited(out):
        text = admin.inspect(group, client, reason=reason, by=by)
    if as_json:
        write_document(MemberReport(group_id=group, client_id=client, text=text))
    else:
        write_lines(out, plain_lines(text))


def kick(
    deployment: BrokerOptions,
    group: GroupName,
    client: ClientName,
    keep_out: KeepOut = "0",
    reason: Reason = "",
    readmit: Readmit = False,
    by: By = None,
) -> None:
    """Make a client leave its group: a live one hands its queues over first, a silent one keeps them for its session.

    Its consumer raises ConsumerFenced and does not rejoin by itself.  It needs feature level 4.
    """
    keep_out_ms = keep_out_ms_of(keep_out)
    if readmit and keep_out_ms:
        raise InvalidUsage("--readmit and --for exclude each other; use only one of them")
    settings = deployment.settings()
    with admin_of(settings, signs=True) as admin, awaited(out):
        if readmit:
            admin.readmit(group, client, reason=reason, by=by)
            out.print(f"{client} may join {group} again", markup=False)
            return
        done = admin.kick(group, client, keep_out_ms=keep_out_ms, reason=reason, by=by)
    what = f"has left {group}" if done.is_gone else f"must leave {group}"
    out.print(f"{client} {what}: {done.detail}", markup=False)


def _check_modes(execute: bool, dry_run: bool) -> None:
    if execute and dry_run:
        raise InvalidUsage("--execute and --dry-run exclude each other; use only one of them")


def _carry_out(admin: Admin, plan: ResetPlan, execute: bool, by: str | None, as_json: bool) -> None:
    """Show a plan, and carry it out if `execute` is set."""
    if not as_json:
        out.print(_plan_table(plan))
        for note in plan.notes:
            out.print(f"note: {note}", markup=False)
    outcome = None
    if execute:
        with awaited(out):
            outcome = admin.reset(plan, by=by)
    if as_json:
        write_document(PlanAnswer.of(plan, outcome))
    elif outcome is None:
        out.print("nothing has changed; repeat the command with --execute to carry out the plan")
    else:
        out.print(_outcome_table(outcome))


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
    table.add_column("of client" if outcome.is_broadcasting else "assigned again to")
    for (queue, client_id), decision in sorted(outcome.offsets.items()):
        table.add_row(str(queue), str(decision.offset), client_id or "no owner yet")
    return table
