"""Commands that delete a group, or committed offsets of it, that no member uses.  They do not need Spark."""

from typing import Annotated

import typer
from rich.table import Table

from wakeroll.errors import InvalidUsage
from wakeroll.reset import queue_of
from wakeroll_pipeline.cli.admin_connection import admin_of, awaited
from wakeroll_pipeline.cli.json_answers import DeletedGroup, DeletedOffset, DeletedOffsets
from wakeroll_pipeline.cli.options import AsJson, BrokerOptions, By, GroupName, Reason
from wakeroll_pipeline.cli.output import Output, write_document

out = Output(highlight=False)

Topic = Annotated[
    str | None, typer.Option("--topic", help="Delete the offsets of this topic, which may be deleted already.")
]
QueueName = Annotated[
    str | None,
    typer.Option("--queue", metavar="TOPIC-N", help="Delete the offset of this queue only, such as orders-3."),
]


def delete_group(
    deployment: BrokerOptions,
    group: GroupName,
    reason: Reason = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Delete a group without members, with its offsets and settings; with members, the command is refused.

    A consumer that joins later creates the group again.  It needs feature level 4.
    """
    settings = deployment.settings()
    with admin_of(settings, signs=True) as admin, awaited(out):
        detail = admin.delete_group(group, reason=reason, by=by)
    if as_json:
        write_document(DeletedGroup(group_id=group, detail=detail))
    else:
        out.print(f"{group} is {detail}", markup=False)


def delete_offsets(
    deployment: BrokerOptions,
    group: GroupName,
    topic: Topic = None,
    queue: QueueName = None,
    reason: Reason = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Delete a group's committed offsets of a topic; if members subscribe the topic, the command is refused.

    A consumer that subscribes the topic later starts by its consume_from.  It needs feature level 4.
    """
    if (topic is None) == (queue is None):
        raise InvalidUsage("name the topic with --topic, or one queue with --queue")
    only = None if queue is None else queue_of(queue)
    settings = deployment.settings()
    with admin_of(settings, signs=True) as admin, awaited(out):
        deleted = admin.delete_offsets(group, topic=topic, queue=only, reason=reason, by=by)
    rows = [
        DeletedOffset(queue=queue, client_id=client_id, offset=offset)
        for (queue, client_id), offset in sorted(deleted.items())
    ]
    if as_json:
        write_document(DeletedOffsets(group_id=group, offsets=rows))
        return
    table = Table(title=f"deleted offsets of {group}")
    for name in ("queue", "client") if any(one.client_id for one in rows) else ("queue",):
        table.add_column(name)
    table.add_column("offset", justify="right")
    for one in rows:
        head = (str(one.queue), one.client_id) if one.client_id else (str(one.queue),)
        table.add_row(*head, str(one.offset))
    out.print(table)
