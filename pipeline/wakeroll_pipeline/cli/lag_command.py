"""The `lag` command: the lag of groups, in messages and in time."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from wakeroll_pipeline.cli.completed_names import groups_beginning_with
from wakeroll_pipeline.cli.group_answers import GroupsAnswer, LagAnswer
from wakeroll_pipeline.cli.group_screens import head_lines, section
from wakeroll_pipeline.cli.group_tables import lag_columns, member_lag_columns, partition_lag_columns, queue_lag_columns
from wakeroll_pipeline.cli.live_answer import group_model, provenance, view_of
from wakeroll_pipeline.cli.options import AsJson, LiveOptions, LogAt
from wakeroll_pipeline.cli.output import Output, write_document
from wakeroll_pipeline.cli.styled_text import plain
from wakeroll_pipeline.cli.text_table import table_lines, write_lines
from wakeroll_pipeline.live.view_structs import partition_rows

if TYPE_CHECKING:
    from wakeroll_pipeline.live.ledger_reader import Detail
    from wakeroll_pipeline.live.live_model import LiveModel
    from wakeroll_pipeline.live.view_structs import GroupSummary, GroupView, MemberRow, PartitionRow, QueueRow

out = Output(highlight=False)

AnyGroup = Annotated[
    str | None,
    typer.Argument(
        metavar="[GROUP]",
        help="Show the queues of this group; default: the sums of all groups.",
        autocompletion=groups_beginning_with,
    ),
]


def lag(
    deployment: LiveOptions,
    group: AnyGroup = None,
    at: LogAt = None,
    as_json: AsJson = False,
) -> None:
    """Show the lag of each group, or of each queue and member of one: messages, waiting time, rates.

    The lag of a queue without a committed offset is known only if it has no messages, or its owner begins at the first
    one. The lag of a slice counts the messages of all slices above its committed offset; the lag of a partition is the
    largest lag of its slices. Lag is counted from the newest reported end offset, and with the option --bootstrap from
    the ends that the brokers report now.
    """
    detail: Detail = "summaries" if group is None else "views"
    with group_model(deployment.settings(), out, group, at, detail=detail) as (model, _):
        if group is None:
            _of_groups(model, as_json)
        else:
            _of_queues(model, view_of(model, group), as_json)


def _of_groups(model: "LiveModel", as_json: bool) -> None:
    view = model.groups_view()
    groups = sorted((one for one in view.groups if one.queues), key=lambda one: (_largest_first(one), one.group_id))
    if as_json:
        write_document(GroupsAnswer(groups=groups, **provenance(model, view.health)))
        return
    width = out.size.width
    lines = [*head_lines(view.health, width), Text("lag of the groups", "bold")]
    write_lines(out, [*lines, *table_lines(lag_columns(groups, view.health.as_of_ms), width).all()])


def _of_queues(model: "LiveModel", view: "GroupView", as_json: bool) -> None:
    queues, members = sorted(view.queues, key=_largest_first), sorted(view.members, key=_largest_first)
    partitions = sorted(partition_rows(view.queues), key=_largest_first)
    if as_json:
        write_document(
            LagAnswer(queues=queues, members=members, partitions=partitions, **provenance(model, view.health))
        )
        return
    width = out.size.width
    lines = [*head_lines(view.health, width), Text(f"lag of {plain(view.summary.group_id)}", "bold")]
    lines += table_lines(queue_lag_columns(queues, view.health.as_of_ms), width).all()
    lines += section(partition_lag_columns(partitions), width) if partitions else []
    write_lines(out, [*lines, *section(member_lag_columns(members, view.health.as_of_ms), width)])


def _largest_first(one: "GroupSummary | QueueRow | MemberRow | PartitionRow") -> tuple[bool, int]:
    """Return the sort key of lags: unknown ones first, then the largest."""
    return one.lag_messages is not None, -(one.lag_messages or 0)
