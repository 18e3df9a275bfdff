"""The groups in a terminal: all groups, or one group with its queues, members and rebalances.

A screen has a height in lines, or none, as in a pipe. If it is too low for all rows, the most urgent ones are shown and
the others are counted.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.text import Text

from wakeroll_pipeline.cli.group_tables import (
    counted,
    failure_columns,
    group_columns,
    member_columns,
    queue_columns,
    rebalance_columns,
    rival_text,
)
from wakeroll_pipeline.cli.output import clock_text
from wakeroll_pipeline.cli.styled_text import curve, head_text, notice_texts, plain_lines, plain_text, verdict_text
from wakeroll_pipeline.cli.text_table import Column, Line, Lines, table_lines
from wakeroll_pipeline.live.view_structs import GroupsView, GroupView, Health, MemberRow, QueueRow
from wakeroll_pipeline.live.view_text import ago, epoch_text, lag_text, offsets_text

_Row = TypeVar("_Row")

SHOWN_REBALANCES = 5
"""Number of rebalances to show, the newest ones."""
SHOWN_FAILURES = 5
"""Number of failures to show, the newest ones."""
_TABLE_HEAD = 2
"""Lines of a table above its rows: a blank one, and the names of the columns."""
_LEAST = 2
"""Minimum number of lines for the rows of a table: one row, and the number of the others."""
_LOW, _LOWEST = 14, 8
"""With fewer lines for tables, rebalances are left out; below the second limit, members too."""


def groups_screen(view: GroupsView, width: int, height: int | None = None) -> list[Line]:
    """Return the screen of a list of groups, in their order."""
    groups, lines = view.groups, head_lines(view.health, width)
    if not groups and not view.health.as_of_ms:
        return lines
    lines.append(Text(counted(groups), "bold"))
    table = table_lines(group_columns(groups, view.health.as_of_ms), width)
    return lines + _cut(table, None if height is None else height - len(lines), "group")


def group_screen(view: GroupView, width: int, height: int | None = None, *, is_unicode: bool = True) -> list[Line]:
    """Return the screen of one group.

    Args:
        view: the group.
        width: width of the terminal, in characters.
        height: height of the terminal, in lines; None: every row is shown.
        is_unicode: whether the terminal can show arrows and curves.
    """
    now_ms, lines = view.health.as_of_ms, head_lines(view.health, width)
    lines += _wrapped(_facts(view, is_unicode), width)
    if height is None:
        lines += _wrapped(_settings(view), width)
    queues, members, rebalances = view.queues, view.members, view.rebalances[:SHOWN_REBALANCES]
    free = None if height is None else height - len(lines)
    shares = _shares(free, len(queues), len(members), len(rebalances))
    if shares[0] is not None and shares[0] < len(queues):
        queues = sorted(queues, key=_urgency)
    for noun, share, columns in (
        ("queue", shares[0], queue_columns(queues, now_ms, is_unicode=is_unicode)),
        ("member", shares[1], member_columns(sorted(members, key=lambda row: row.client_id), now_ms)),
        ("rebalance", shares[2], rebalance_columns(rebalances, now_ms)),
    ):
        lines += section(columns, width, share, noun)
    if height is None:
        lines += _failures(view, width)
    return lines


def member_screen(view: GroupView, width: int, *, is_unicode: bool = True) -> list[Line]:
    """Return the screen of the only member in the view of a group, with its queues."""
    now_ms, lines = view.health.as_of_ms, head_lines(view.health, width)
    lines += _wrapped(_of_member(view.members[0], view, now_ms), width)
    lines += section(queue_columns(view.queues, now_ms, is_unicode=is_unicode), width, None, "queue")
    lines += _failures(view, width)
    for one in view.reports[:1]:
        lines += ["", plain_text(f"it reported at {clock_text(one.at_ms)}:")]
        lines += plain_lines(one.text)
    return lines


def _failures(view: GroupView, width: int) -> list[Line]:
    """Return the lines about the last failed messages."""
    return section(failure_columns(view.failures[:SHOWN_FAILURES], view.health.as_of_ms), width, None, "failure")


def _of_member(one: MemberRow, view: GroupView, now_ms: int) -> Iterator[Text]:
    """Yield the lines about a member."""
    joined = "" if one.joined_ms is None else f", joined {clock_text(one.joined_ms)}"
    ends = f"its session ends {clock_text(one.session_ends_ms)}"
    subscriptions = [f"{it.topic} {it.expression if it.expression != '*' else ''}".strip() for it in one.subscriptions]
    labels = [f"{name}={value}" for name, value in one.labels.items()]
    where = {"host": one.host, "version": one.app_version, "sdk": one.sdk, "labels": ", ".join(labels)}
    preferences = {
        "strategy": one.strategy,
        "room": one.room,
        "consume_from": one.consume_from,
        "weight": f"{one.weight:g}",
    }
    yield Text.assemble(plain_text(one.client_id, "bold"), plain_text(f"  member of {view.summary.group_id}{joined}"))
    yield plain_text(f"instance {one.instance_id}, heartbeat {ago(one.seen_ms, now_ms)} ago, {ends}")
    for words in (where, preferences):
        if known := [f"{name} {value}" for name, value in words.items() if value]:
            yield plain_text(", ".join(known))
    by_pattern = f"pattern {one.pattern!r}, which matches " if one.pattern else ""
    yield plain_text(f"subscribes {by_pattern}{', '.join(subscriptions) or 'no topic'}")
    shown = epoch_text(one.shown_epoch, one.sent_epoch)
    queues = f"{_count(one.queues, 'queue')}, {one.releasing} to release, {one.waiting} awaited"
    yield plain_text(f"has received epoch {shown}; {queues}, lag {lag_text(one.lag_messages, one.lag_unknown)}")
    for call in one.handling:
        offsets = offsets_text(call.first_offset, call.last_offset)
        since = f"{clock_text(call.since_ms)}, {ago(call.since_ms, now_ms)} ago"
        yield plain_text(f"has been at work on {call.queue}, offset {offsets}, since {since}", "yellow")
    for note in filter(None, (one.leaving, one.conflict, rival_text(one))):
        yield plain_text(note, "yellow")


def section(columns: Sequence[Column], width: int, share: int | None = None, noun: str = "") -> list[Line]:
    """Return a blank line and a table with at most this number of lines for rows; nothing without room or rows."""
    table = table_lines(columns, width)
    if share == 0 or not table.rows:
        return []
    return ["", *_cut(table, None if share is None else share + _TABLE_HEAD - 1, noun)]


def _facts(view: GroupView, is_unicode: bool) -> Iterator[Text]:
    """Yield the lines about a whole group."""
    one = view.summary
    yield Text.assemble(plain_text(one.group_id, "bold"), "  ", verdict_text(one.verdict), ": ", plain_text(one.reason))
    for two in one.findings[1:]:
        yield Text.assemble("also ", verdict_text(two.kind), ": ", plain_text(two.reason))
    facts = f"{one.mode}, {one.strategy or 'strategy not known'}, epoch {one.epoch}, {_count(one.members, 'member')}, "
    facts += f"{_count(one.queues, 'queue')} ({one.owned} owned, {one.unowned} unowned, {one.moving} moving), "
    unknown = f" (not known of {_count(one.lag_unknown, 'queue')})" if one.lag_unknown else ""
    facts += f"lag {lag_text(one.lag_messages, one.lag_unknown)}{unknown}, {_count(len(view.holds), 'held pull')}"
    if is_unicode and (line := curve([lag for _, lag in view.lag_series])):
        facts += f"  {line}"
    yield plain_text(facts, "dim")


def _settings(view: GroupView) -> Iterator[Text]:
    """Yield the lines about settings that operators have changed."""
    if changed := [f"{setting.name} {setting.value}" for setting in view.settings if not setting.is_default]:
        yield plain_text(f"settings: {', '.join(changed)}", "dim")
    for kept in view.kept_out:
        why = f": {kept.reason}" if kept.reason else ""
        yield plain_text(f"{kept.client_id} is kept out until {clock_text(kept.until_ms)} by {kept.by}{why}")


def head_lines(health: Health, width: int) -> list[Line]:
    """Return the lines about the state of the view: how current it is, and its notices."""
    return _wrapped([head_text(health), *notice_texts(health)], width)


def _wrapped(texts: Iterable[Text], width: int) -> list[Line]:
    """Return the lines of texts in a terminal of this width."""
    console = Console(width=width)
    return [line for text in texts for line in text.wrap(console, width)]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def _shares(free: int | None, queues: int, members: int, rebalances: int) -> tuple[int | None, int | None, int | None]:
    """Return how many rows of queues, members and rebalances fit into a number of lines; 0: the table is left out.

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


def _urgency(row: QueueRow) -> tuple[bool, bool, int]:
    """Return the sort key of queues if not all can be shown: queues that need attention come first."""
    return bool(row.owner), not row.releasing, -(row.lag_messages or 0)


def _cut(table: Lines, height: int | None, noun: str) -> list[Line]:
    """Return the lines of a table: as many rows as have room in a height (lines), and the number of the others."""
    if height is None:
        return list(table.all())
    lines, free = list(table.head), max(height - len(table.head), _LEAST)
    if sum(map(len, table.rows)) <= free:
        return lines + [line for row in table.rows for line in row]
    for number, row in enumerate(table.rows):
        if len(row) >= free and number:
            lines.append(Text(f"and {_count(len(table.rows) - number, f'more {noun}')}", "dim"))
            break
        lines += row[: free - 1]
        free -= len(row)
    return lines
