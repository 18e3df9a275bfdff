"""The `groups` command: which groups there are, and which of them need attention."""

import re
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct
from rich.cells import cell_len
from rich.text import Text

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.cli.completed_names import groups_beginning_with
from wakeroll_pipeline.cli.live_answer import (
    group_model,
    print_age,
    provenance,
    tick_of,
)
from wakeroll_pipeline.cli.options import AsJson, LiveOptions, LogAt
from wakeroll_pipeline.cli.output import Output, write_document
from wakeroll_pipeline.ledger.known_groups import unknown_group

if TYPE_CHECKING:
    from wakeroll_pipeline.live.live_model import LiveModel
    from wakeroll_pipeline.live.view_structs import GroupSummary
    from wakeroll_pipeline.serve.page_queries import GroupsQuery

out = Output(highlight=False, soft_wrap=True)

_LEAST_REASON = 30
"""Width (characters) that a reason needs beside the other columns; with less, each group has several lines."""
_INDENT = "    "

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="GROUP",
        help="Groups to show: names, or patterns such as 'billing-*'; default: all groups.",
        autocompletion=groups_beginning_with,
    ),
]
OfVerdict = Annotated[
    str,
    typer.Option(
        "--verdict",
        metavar="VERDICT",
        help="Show groups with this verdict, such as stalled; attention: all that are neither healthy nor empty.",
    ),
]
OfTopic = Annotated[str, typer.Option("--topic", metavar="TOPIC", help="Show groups that read this topic.")]
SortedBy = Annotated[
    str,
    typer.Option(
        "--sort",
        metavar="COLUMN",
        help="verdict (the most urgent one first), name, members, queues, lag, wait or rebalanced.",
    ),
]


class GroupRow(Struct, frozen=True, kw_only=True):
    """A group at a glance."""

    group_id: str
    verdict: str
    """The most urgent finding, such as ``stalled``; see docs/web.md."""
    reason: str
    epoch: int
    strategy: str
    """Strategy that assigns its queues, or, without members, last did; empty if none is known."""
    members: int
    owned: int
    """Number of queues that have an owner."""
    unowned: int
    """Number of queues that should have an owner, and have none."""
    last_trigger: str
    """Trigger of the last rebalance; empty if none is known."""
    last_rebalance_ms: int | None
    """Log time of the last rebalance (epoch ms); None if none is known."""
    topics: Sequence[str]
    queues: int
    lag_messages: int | None
    """Sum of the known lags; None if none is known."""
    lag_unknown: int
    """Number of queues whose lag is not known."""
    behind_since_ms: int | None
    """Log time since which the oldest message waits (epoch ms); None if none does."""
    behind_is_longer: bool
    """Whether it may have waited for longer."""


def groups(
    deployment: LiveOptions,
    names: Names = None,
    verdict: OfVerdict = "",
    topic: OfTopic = "",
    sort: SortedBy = "verdict",
    at: LogAt = None,
    as_json: AsJson = False,
) -> None:
    """List the groups, the most urgent first: verdict and reason, members, queues, lag, last rebalance.

    The lag is the number of messages that wait, and how long the oldest one has waited.
    """
    from wakeroll_pipeline.serve.page_queries import groups_query

    query = groups_query({"verdict": verdict, "sort": sort})
    with group_model(deployment.settings(), out, at_ms=at) as (model, _):
        _answer(model, query, names or [], topic, as_json)


def _answer(model: "LiveModel", query: "GroupsQuery", names: Sequence[str], topic: str, as_json: bool) -> None:
    tick_ms, view = tick_of(model), model.groups_view(time.monotonic())
    known = [one.group_id for one in view.groups]
    for name in names:
        if not re.search(r"[*?\[]", name) and name not in known:
            raise InvalidUsage(unknown_group(name, known))
    found = [one for one in query.of_verdict(view.groups) if not topic or topic in one.topics]
    if names:
        found = [one for one in found if any(fnmatchcase(one.group_id, name) for name in names)]
    found = query.ordered(found)
    if as_json:
        write_document({"groups": [row_of(one) for one in found], **provenance(view.health, tick_ms)})
        return
    for line in _lines(found, view.health.as_of_ms, out.size.width):
        out.print(line)
    print_age(view.health, tick_ms, out)


def row_of(one: "GroupSummary") -> GroupRow:
    """Return the row of a group."""
    return GroupRow(
        group_id=one.group_id,
        verdict=one.verdict,
        reason=one.reason,
        epoch=one.epoch,
        strategy=one.strategy,
        members=one.members,
        owned=one.owned,
        unowned=one.unowned,
        last_trigger=one.trigger,
        last_rebalance_ms=one.rebalanced_ms,
        topics=one.topics,
        queues=one.queues,
        lag_messages=one.lag_messages,
        lag_unknown=one.lag_unknown,
        behind_since_ms=one.behind_since_ms,
        behind_is_longer=one.behind_is_longer,
    )


def _lines(groups: "Sequence[GroupSummary]", as_of_ms: int, width: int) -> Iterator[Text]:
    """Yield the lines of a list of groups: one per group if there is room for its reason, else several.

    Names are never cut.
    """
    from wakeroll_pipeline.cli.watch_text import plain_text, verdict_text
    from wakeroll_pipeline.live.verdicts import KINDS, LABELS

    counts = Counter(one.verdict for one in groups)
    told = ", ".join(f"{counts[kind]} {LABELS.get(kind, kind)}" for kind in KINDS if counts[kind])
    yield Text(f"{len(groups)} {'group' if len(groups) == 1 else 'groups'}{': ' if told else ''}{told}", "bold")
    rows = [_cells(one, as_of_ms) for one in groups]
    widths = [max(map(cell_len, column)) for column in zip(_HEADS, *rows, strict=True)]
    left = width - sum(widths) - 2 * len(widths)
    if left >= min(_LEAST_REASON, max((cell_len(one.reason) for one in groups), default=0)):
        if groups:
            yield Text("  ".join((*_padded(_HEADS, widths), "reason")), "dim")
        for one, cells in zip(groups, rows, strict=True):
            name, verdict, *rest = _padded(cells, widths)
            line = Text.assemble(plain_text(name, "bold"), "  ", (verdict, verdict_text(one.verdict).style), "  ")
            line.append("  ".join((*rest, "")))
            reason = plain_text(one.reason)
            reason.truncate(left, overflow="ellipsis")
            yield line.append_text(reason)
        return
    for one, cells in zip(groups, rows, strict=True):
        yield Text.assemble(plain_text(one.group_id, "bold"), "  ", verdict_text(one.verdict))
        facts = ", ".join(f"{head} {cell}" for head, cell in zip(_HEADS[2:], cells[2:], strict=True) if cell)
        for text, style in ((one.reason, ""), (facts, "dim")):
            for part in textwrap.wrap(text, max(width - len(_INDENT), _LEAST_REASON), break_long_words=False):
                yield plain_text(f"{_INDENT}{part}", style)


_HEADS = ("group", "verdict", "members", "queues", "lag", "waits", "rebalanced")
_COUNTS = ("members", "queues", "lag")


def _cells(one: "GroupSummary", as_of_ms: int) -> Sequence[str]:
    from wakeroll_pipeline.cli.watch_text import ago, lag_text, plain_text, verdict_text, wait_text

    rebalanced = "" if one.rebalanced_ms is None else f"{ago(one.rebalanced_ms, as_of_ms)} ago: {one.trigger}"
    return (
        plain_text(one.group_id).plain,
        verdict_text(one.verdict).plain,
        str(one.members),
        f"{one.queues:,}",
        lag_text(one.lag_messages, one.lag_unknown),
        wait_text(one.behind_since_ms, one.behind_is_longer, as_of_ms),
        rebalanced,
    )


def _padded(cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    for head, cell, width in zip(_HEADS, cells, widths, strict=True):
        blanks = " " * (width - cell_len(cell))
        yield blanks + cell if head in _COUNTS else cell + blanks
