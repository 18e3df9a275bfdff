"""The `groups` command: a list of the groups, with those that need attention first."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from wakeroll.errors import InvalidUsage
from wakeroll.name_lists import matches_any
from wakeroll_pipeline.cli.completed_names import groups_beginning_with
from wakeroll_pipeline.cli.group_answers import GroupsAnswer
from wakeroll_pipeline.cli.group_screens import groups_screen
from wakeroll_pipeline.cli.live_answer import group_model, provenance
from wakeroll_pipeline.cli.options import AsJson, LiveOptions, LogAt
from wakeroll_pipeline.cli.output import Output, write_document
from wakeroll_pipeline.cli.text_table import write_lines
from wakeroll_pipeline.ledger.known_groups import unknown_group

if TYPE_CHECKING:
    from wakeroll_pipeline.live.live_model import LiveModel
    from wakeroll_pipeline.serve.page_queries import GroupsQuery

out = Output(highlight=False)

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
    with group_model(deployment.settings(), out, at_ms=at, detail="summaries") as (model, _):
        _answer(model, query, names or [], topic, as_json)


def _answer(model: "LiveModel", query: "GroupsQuery", names: Sequence[str], topic: str, as_json: bool) -> None:
    view = model.groups_view()
    known = [one.group_id for one in view.groups]
    for name in names:
        if not re.search(r"[*?\[]", name) and name not in known:
            raise InvalidUsage(unknown_group(name, known))
    found = [one for one in query.of_verdict(view.groups) if not topic or topic in one.topics]
    if names:
        found = [one for one in found if matches_any(one.group_id, names)]
    view = structs.replace(view, groups=query.ordered(found))
    if as_json:
        write_document(GroupsAnswer(groups=view.groups, **provenance(model, view.health)))
    else:
        write_lines(out, groups_screen(view, out.size.width))
