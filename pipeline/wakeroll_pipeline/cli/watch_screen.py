"""The screens of `watch`: all groups, or one group with its queues, members and rebalances.

A screen has a height in lines, or none, as in a pipe. If it is too low for all rows, the most urgent ones are shown and
the others are counted.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from wakeroll_pipeline.cli.watch_text import (
    ago,
    clock_text,
    count_text,
    curve,
    head_text,
    lag_text,
    notice_texts,
    plain_text,
    trend_text,
    verdict_text,
    wait_text,
)
from wakeroll_pipeline.live.verdicts import KINDS, LABELS
from wakeroll_pipeline.live.view_structs import GroupsView, GroupView, MemberRow, QueueRow, RebalanceRow

_Row = TypeVar("_Row")

_WIDE = 110
"""Width (characters) from which on every column is shown."""
_MOST_REBALANCES = 5
_TABLE_HEAD = 2
"""Lines of a table above its rows: a blank one, and the names of the columns."""
_LEAST = 2
"""Lines that the rows of a table need at least: one row, and the number of the others."""
_LOW, _LOWEST = 14, 8
"""With fewer lines for tables, rebalances, and then members, are left out."""


def groups_screen(view: GroupsView, width: int, height: int | None = None) -> RenderableType:
    """Return the screen of all groups, the most urgent verdict first."""
    health, now_ms = view.health, view.health.as_of_ms
    counts = Counter(one.verdict for one in view.groups)
    told = ", ".join(f"{counts[kind]} {LABELS.get(kind, kind)}" for kind in KINDS if counts[kind])
    lines: list[RenderableType] = [
        head_text(health, told or ("no groups" if health.as_of_ms else "")),
        *notice_texts(health),
    ]
    groups = sorted(view.groups, key=lambda one: (KINDS.index(one.verdict), one.group_id))
    shown, rest = _cut(groups, None if height is None else height - _lines(lines, width) - _TABLE_HEAD)
    is_wide = width >= _WIDE
    table = _table("group", "verdict", *_numbers("members", "queues", "lag", "waits"))
    if is_wide:
        table.add_column("rebalanced", no_wrap=True)
    table.add_column("reason", ratio=1, no_wrap=True, overflow="ellipsis")
    for one in shown:
        cells: list[RenderableType] = [
            plain_text(one.group_id),
            verdict_text(one.verdict),
            str(one.members),
            f"{one.queues:,}",
            lag_text(one.lag_messages, one.lag_unknown),
            wait_text(one.behind_since_ms, one.behind_is_longer, now_ms),
        ]
        if is_wide:
            rebalanced = "-" if one.rebalanced_ms is None else f"{ago(one.rebalanced_ms, now_ms)} ago: {one.trigger}"
            cells.append(plain_text(rebalanced))
        table.add_row(*cells, plain_text(one.reason))
    return Group(*lines, *_section(groups, table), *_more(rest, "group"))


def group_screen(view: GroupView, width: int, height: int | None = None, *, is_unicode: bool = True) -> RenderableType:
    """Return the screen of one group.

    Args:
        view: the group.
        width: of the terminal, in characters.
        height: of the terminal, in lines; None: every row is shown.
        is_unicode: whether the terminal can show arrows and curves.
    """
    one = view.summary
    facts = f"{one.mode}, {one.strategy or 'no strategy yet'}, epoch {one.epoch}, {_count(one.members, 'member')}, "
    facts += f"{_count(one.queues, 'queue')} ({one.unowned} without owner, {one.moving} moving), "
    unknown = f" and {_count(one.lag_unknown, 'queue')} of unknown lag" if one.lag_unknown else ""
    facts += f"lag {count_text(one.lag_messages)}{unknown}, {_count(len(view.holds), 'held pull')}"
    if is_unicode and (line := curve([lag for _, lag in view.lag_series])):
        facts += f"  {line}"
    title = Text.assemble(plain_text(one.group_id, "bold"), "  ", verdict_text(one.verdict), ": ")
    lines: list[RenderableType] = [
        head_text(view.health, ""),
        *notice_texts(view.health),
        title.append_text(plain_text(one.reason)),
        plain_text(facts, "dim"),
    ]
    lines += [Text.assemble("also ", verdict_text(two.kind), ": ", plain_text(two.reason)) for two in one.findings[1:]]
    rebalances = view.rebalances[:_MOST_REBALANCES]
    free = None if height is None else height - _lines(lines, width)
    queue_rows, member_rows, rebalance_rows = _shares(free, len(view.queues), len(view.members), len(rebalances))
    queues, more_queues = _cut(_urgent_first(view.queues, queue_rows), queue_rows)
    members, more_members = _cut(sorted(view.members, key=lambda row: row.client_id), member_rows)
    shown, _ = _cut(rebalances, rebalance_rows)
    now_ms = view.health.as_of_ms
    return Group(
        *lines,
        *_section(queues, _queues_table(queues, now_ms, is_unicode)),
        *_more(more_queues, "queue"),
        *_section(members, _members_table(members, now_ms, width)),
        *_more(more_members, "member"),
        *_section(shown, _rebalances_table(shown, now_ms, width)),
    )


def _queues_table(rows: Sequence[QueueRow], now_ms: int, is_unicode: bool) -> Table:
    table = _table("queue", "owner", *_numbers("committed", "end", "lag", "waits"), "trend")
    for row in rows:
        table.add_row(
            plain_text(row.name),
            _owner(row),
            count_text(row.committed_offset),
            count_text(row.end_offset),
            count_text(row.lag_messages),
            wait_text(row.behind_since_ms, row.behind_is_longer, now_ms),
            trend_text(row.trend, row.samples, is_unicode),
        )
    return table


def _owner(row: QueueRow) -> Text:
    """Return the owner, whether it must release the queue, and the client that waits for it."""
    owner = plain_text(row.owner) if row.owner else Text("nobody", "bold red")
    if row.releasing:
        owner.append(" must release", "yellow")
    if row.next_owner:
        owner.append_text(plain_text(f", then {row.next_owner}", "yellow"))
    if row.note:
        owner.append_text(plain_text(f": {row.note}", "dim"))
    return owner


def _members_table(rows: Sequence[MemberRow], now_ms: int, width: int) -> Table:
    is_wide = width >= _WIDE
    names = ("member", "instance", "version", "host") if is_wide else ("member",)
    table = _table(*names, *_numbers("queues", "releasing", "waiting", "epoch", "heartbeat"))
    if is_wide:
        table.add_column("topics", no_wrap=True, overflow="ellipsis")
    for row in rows:
        epoch = "-" if row.shown_epoch < 0 else str(row.shown_epoch)
        epoch = epoch if row.shown_epoch == row.sent_epoch else f"{epoch} (sent {row.sent_epoch})"
        counts = (*map(str, (row.queues, row.releasing, row.waiting)), epoch, f"{ago(row.seen_ms, now_ms)} ago")
        if is_wide:
            topics = ", ".join(one.topic for one in row.subscriptions)
            texts = (row.client_id, row.instance_id[:8], row.app_version or "-", row.host or "-")
            table.add_row(*map(plain_text, texts), *counts, plain_text(topics))
        else:
            table.add_row(plain_text(row.client_id), *counts)
    return table


def _rebalances_table(rows: Sequence[RebalanceRow], now_ms: int, width: int) -> Table:
    is_wide = width >= _WIDE
    table = _table("rebalance", "at", "trigger", *_numbers("clients", "moved"), *(("cause",) if is_wide else ()))
    for row in rows:
        at = f"{clock_text(row.at_ms)}, {ago(row.at_ms, now_ms)} ago"
        counts = map(str, (row.clients, row.moved))
        cause = [plain_text(row.cause)] if is_wide else []
        table.add_row(f"epoch {row.epoch}", at, plain_text(row.trigger), *counts, *cause)
    return table


def _table(*columns: str | tuple[str]) -> Table:
    """Return a table without lines; the names of columns of numbers are tuples."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
    for column in columns:
        is_number = isinstance(column, tuple)
        name = column[0] if isinstance(column, tuple) else column
        table.add_column(name, justify="right" if is_number else "left", no_wrap=True, overflow="ellipsis")
    return table


def _numbers(*names: str) -> list[tuple[str]]:
    return [(name,) for name in names]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def _lines(lines: Sequence[RenderableType], width: int) -> int:
    """Return the number of lines that these texts take in a terminal of this width."""
    console = Console(width=width)
    return sum(max(1, len(one.wrap(console, width))) for one in lines if isinstance(one, Text))


def _shares(free: int | None, queues: int, members: int, rebalances: int) -> tuple[int | None, int | None, int | None]:
    """Return how many rows of queues, members and rebalances have room in so many lines; 0: the table is left out.

    >>> _shares(None, 9, 9, 5), _shares(40, 8, 3, 5), _shares(26, 100, 50, 5), _shares(9, 100, 50, 5)
    ((None, None, None), (8, 3, 5), (11, 6, 3), (3, 2, 0))
    """
    if free is None:
        return None, None, None
    heads = _TABLE_HEAD * sum(1 for rows in (queues, members, rebalances) if rows)
    if queues + members + rebalances + heads <= free:
        return queues, members, rebalances
    rebalances = min(rebalances, 3) if free >= _LOW else 0
    members = members if free >= _LOWEST else 0
    free -= _TABLE_HEAD * sum(1 for rows in (queues, members, rebalances) if rows)
    members = min(members, max(free // 3, free - rebalances - queues, _LEAST))
    return max(free - rebalances - members, _LEAST), members, rebalances


def _urgent_first(rows: Sequence[QueueRow], most: int | None) -> Sequence[QueueRow]:
    """Return the queues in their order if all are shown; else those first that need attention."""
    if most is None or len(rows) <= most:
        return rows
    return sorted(rows, key=lambda row: (bool(row.owner), not row.releasing, -(row.lag_messages or 0)))


def _cut(rows: Sequence[_Row], most: int | None) -> tuple[Sequence[_Row], int]:
    """Return the rows that are shown, and the number of the others, for whose count one line is needed."""
    if most is None or len(rows) <= most:
        return rows, 0
    if most == 0:
        return rows[:0], 0
    shown = max(most - 1, 1)
    return rows[:shown], len(rows) - shown


def _section(rows: Sequence[object], table: Table) -> list[RenderableType]:
    return [Text(), table] if rows else []


def _more(rest: int, noun: str) -> list[RenderableType]:
    return [Text(f"and {_count(rest, f'more {noun}')}", "dim")] if rest else []
