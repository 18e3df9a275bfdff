"""The `explain` command: why a queue has its owner."""

from typing import Annotated

import typer
from rich.table import Table

from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage
from wakeroll.reset import queue_of
from wakeroll_model.rows import SNAPSHOTS
from wakeroll_pipeline.cli.completed_names import groups_beginning_with
from wakeroll_pipeline.cli.open_ledger import ledger
from wakeroll_pipeline.cli.options import AsJson, LogAt, TableOptions
from wakeroll_pipeline.cli.output import Output, write_document

out = Output(highlight=False)

Group = Annotated[
    str | None,
    typer.Argument(
        metavar="GROUP", help="Name of the consumer group.", autocompletion=groups_beginning_with, show_default=False
    ),
]
Queue = Annotated[
    str | None, typer.Argument(metavar="TOPIC-N", help="Queue to explain, such as orders-3.", show_default=False)
]
OfGroup = Annotated[
    str | None,
    typer.Option("--group", metavar="GROUP", help="The same as GROUP.", autocompletion=groups_beginning_with),
]
OfQueue = Annotated[str | None, typer.Option("--queue", metavar="TOPIC-N", help="The same as TOPIC-N.")]


def explain(
    deployment: TableOptions,
    group: Group = None,
    queue: Queue = None,
    of_group: OfGroup = None,
    of_queue: OfQueue = None,
    at: LogAt = None,
    as_json: AsJson = False,
) -> None:
    """Show the owner of a queue and the steps that led to it, with times: event, rebalance, hand-over, assignment.

    Group and queue are arguments, `explain billing orders-3`, or both are options.
    """
    named = [(group, queue), (of_group, of_queue)]
    pairs = [(its, one) for its, one in named if its is not None and one is not None]
    if len(pairs) != 1 or sum(one is not None for pair in named for one in pair) != 2:
        raise InvalidUsage(
            "name a group and a queue, both once: wakeroll explain GROUP TOPIC-N, such as billing orders-3"
        )
    [(group, queue)] = pairs
    asked = queue_of(queue)
    with ledger(deployment.settings(), out, "duckdb", only=SNAPSHOTS) as opened:
        from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
        from wakeroll_pipeline.questions.explain import explain_nearby

        assert isinstance(opened, DuckLedger)
        found = explain_nearby(opened, group, asked, at)
    if as_json:
        steps = [step._asdict() for step in found.steps]
        write_document({"answer": found.answer, "steps": steps, "missing": found.missing})
        return
    out.print(found.answer, style="bold")
    table = Table(box=None, show_header=False, pad_edge=False)
    for _ in ("when", "what", "which record"):
        table.add_column()
    for step in found.steps:
        table.add_row(str(EpochMs(step.at_ms)), step.what, f"[dim]{step.where}[/]" if step.where else "")
    out.print(table)
    for missing in found.missing:
        out.print(f"[yellow]this history has a gap:[/] {missing}", soft_wrap=True)
