"""The `state` command: the coordinator's state, with details that no table has."""

from collections.abc import Sequence

from rich.text import Text

from wakeroll_pipeline.cli.group_answers import StateAnswer
from wakeroll_pipeline.cli.group_screens import head_lines
from wakeroll_pipeline.cli.group_tables import member_columns
from wakeroll_pipeline.cli.live_answer import group_model, provenance
from wakeroll_pipeline.cli.options import AsJson, LiveOptions, LogAt
from wakeroll_pipeline.cli.output import Output, write_document
from wakeroll_pipeline.cli.styled_text import plain, plain_text
from wakeroll_pipeline.cli.text_table import Column, table_lines, write_lines
from wakeroll_pipeline.live.view_structs import GroupState

out = Output(highlight=False)


def state(
    deployment: LiveOptions,
    at: LogAt = None,
    as_json: AsJson = False,
) -> None:
    """Show the coordinator's state, from the newest snapshots and the log since: one row per group and member.

    With --bootstrap, the log is read from Kafka, to its end; without, from the tables.
    """
    with group_model(deployment.settings(), out, at_ms=at, detail="states") as (model, _):
        states, health = model.states(), model.health()
        shards = sum(one.is_of_groups for one in model.shards.values())
    if as_json:
        write_document(StateAnswer(groups=states, **provenance(model, health)))
        return
    width = out.size.width
    lines = [*head_lines(health, width), Text(f"state of {shards} shards", "bold")]
    lines += table_lines(_columns(states, health.as_of_ms), width).all()
    empty = [one for one in states if not one.members]
    write_lines(out, [*lines, *table_lines(_of_groups("group without members", empty), width).all()])


def _columns(states: Sequence[GroupState], now_ms: int) -> list[Column]:
    """Return the columns of a list of all members."""
    groups = [one for one in states for _ in one.members]
    members = [member for one in states for member in one.members]
    return [*_of_groups("group", groups), *(one for one in member_columns(members, now_ms) if one.head not in _LAGS)]


_LAGS = ("lag", "caught up in")
"""Columns that are left out: this command does not follow the lag over time, and `lag` shows it."""


def _of_groups(name: str, groups: Sequence[GroupState]) -> list[Column]:
    return [
        Column(name, [plain_text(one.group_id, "bold") for one in groups]),
        Column("epoch", [str(one.epoch) for one in groups], is_number=True, rank=1),
        Column("shard", [plain(one.shard) for one in groups], rank=8),
    ]
