"""The `groups` command: all groups at a glance."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.table import Table

from wakeroll_pipeline.cli.live_answer import archived_model, print_age, provenance, tick_of
from wakeroll_pipeline.cli.options import AsJson, TableOptions
from wakeroll_pipeline.cli.output import MOST_FRAMED, Output, aligned, clock_text, write_document
from wakeroll_pipeline.cli.watch_text import plain_text

if TYPE_CHECKING:
    from wakeroll_pipeline.live.view_structs import GroupSummary

out = Output(highlight=False)


class GroupRow(Struct, frozen=True, kw_only=True):
    """A group at a glance."""

    group_id: str
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


def groups(deployment: TableOptions, as_json: AsJson = False) -> None:
    """List the groups: members, queues, epoch, and the trigger of the last rebalance."""
    model = archived_model(deployment.settings(), out, only_states=True)
    tick_ms, view = tick_of(model), model.groups_view(time.monotonic())
    rows = [row_of(one) for one in view.groups]
    if as_json:
        write_document({"groups": rows, **provenance(view.health, tick_ms)})
        return
    _write(rows)
    print_age(view.health, tick_ms, out)


def row_of(one: "GroupSummary") -> GroupRow:
    """Return the row of a group."""
    return GroupRow(
        group_id=one.group_id,
        epoch=one.epoch,
        strategy=one.strategy,
        members=one.members,
        owned=one.owned,
        unowned=one.unowned,
        last_trigger=one.trigger,
        last_rebalance_ms=one.rebalanced_ms,
    )


_NAMES = ("group", "epoch", "strategy", "members", "queues owned", "unowned", "last rebalance")
_NUMBERS = ("members", "queues owned", "unowned")


def _write(rows: Sequence[GroupRow]) -> None:
    texts = list(map(_texts, rows))
    title = f"{len(rows)} groups" if len(rows) != 1 else "1 group"
    if len(texts) > MOST_FRAMED:
        out.print(title)
        for line in aligned(_NAMES, texts, _NUMBERS):
            print(line)
        return
    table = Table(title=title)
    for name in _NAMES:
        table.add_column(name, justify="right" if name in _NUMBERS else "left")
    for row in texts:
        table.add_row(*map(plain_text, row))
    out.print(table)


def _texts(row: GroupRow) -> Sequence[str]:
    counts = map(str, (row.members, row.owned, row.unowned))
    if row.last_rebalance_ms is not None:
        last = f"{row.last_trigger}, {clock_text(row.last_rebalance_ms)}"
    else:
        last = "not known" if row.epoch else "none yet"
    return row.group_id, str(row.epoch), row.strategy, *counts, last
