"""The `what-if` command: the predicted effect of a change to a group."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage
from wakeroll.topic_slices import slices_in
from wakeroll_model.assignment_chart import rows_of, text_of
from wakeroll_model.events import UNREADABLE, Configure
from wakeroll_model.what_if import NotPlayable, Prediction, Situation, Variation, predict
from wakeroll_pipeline.cli.live_answer import group_model, view_of
from wakeroll_pipeline.cli.options import AsJson, GroupOption, LiveOptions, LogAt
from wakeroll_pipeline.cli.output import Output, write_document
from wakeroll_pipeline.questions.assignment_svg import Panel, svg_of
from wakeroll_pipeline.questions.what_if_answers import (
    alternatives,
    document_of,
    not_known,
    notes_of,
    readers_in_words,
    topic_queues,
    words_of,
)

out = Output(highlight=False)

DRAWN = 64
"""Maximum number of queues that a table cell draws; of more queues it shows the count only."""
LISTED = 50
"""Maximum number of clients that the table lists."""

Strategies = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy",
        metavar="STRATEGY",
        help="Use this strategy; repeat the option to compare strategies; default: the group's.",
    ),
]
Add = Annotated[int, typer.Option("--add", metavar="N", min=0, max=1_000, help="Number of members to add.")]
Remove = Annotated[
    list[str] | None, typer.Option("--remove", metavar="CLIENT", help="Client to remove; repeatable; default: none.")
]
Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queues", metavar="TOPIC=N", help="Give TOPIC this number of queues; repeatable; default: no change."
    ),
]
SlicesOfTopics = Annotated[
    list[str] | None,
    typer.Option(
        "--slices",
        metavar="TOPIC=N",
        help="Cut each partition of TOPIC into this number of slices; repeatable; default: no change.",
    ),
]
GroupSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--settings",
        metavar="NAME=VALUE",
        help="Setting of `configure` with its value, such as settle_ms=0 (ms); repeatable; default: no change.",
    ),
]
Picture = Annotated[
    Path | None,
    typer.Option(
        "--picture", metavar="FILE.svg", help="Also draw the assignments as an SVG into this file; default: no drawing."
    ),
]


def what_if(
    deployment: LiveOptions,
    group: GroupOption,
    strategy: Strategies = None,
    add: Add = 0,
    remove: Remove = None,
    queues: Queues = None,
    slices: SlicesOfTopics = None,
    settings: GroupSettings = None,
    at: LogAt = None,
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Predict the effect of a change: owners of queues, moved queues, lag of each client.  Nothing is changed.

    All options together make one alternative; several --strategy options make one alternative each.
    """
    named: dict[str, Any] = dict(_setting(text) for text in settings or [])
    if cut := slices_in("--slices", slices or []):
        named["slices"] = cut
    changes = _changes(strategy or [], add, remove or [], queues or [], named)
    with group_model(deployment.settings(), out, group, at, detail="states") as (model, _):
        view_of(model, group)  # refuses the name of an unknown group
        shard = model.shard_of(group)
    if shard is None:
        raise InvalidUsage(not_known(group))
    try:
        answers = {words_of(change): predict(shard, group, change) for change in changes}
    except NotPlayable as error:
        raise InvalidUsage(str(error)) from None
    if picture is not None:
        picture.write_text(_drawn(answers), encoding="utf-8")
    if as_json:
        write_document(document_of(shard.tick_ms, answers))
        return
    out.print(_table(f"{group} at {EpochMs(shard.tick_ms)}", answers))
    for words, answer in answers.items():
        for note in _notes(answer):
            out.print(f"{words}: {note}", markup=False)
    if picture is not None:
        out.print(f"wrote the drawing to {picture}", markup=False)


def _changes(
    strategies: Sequence[str], add: int, remove: Sequence[str], queues: Sequence[str], settings: dict[str, Any]
) -> list[Variation]:
    """Return the alternatives that the options describe."""
    if not (strategies or add or remove or queues or settings):
        raise InvalidUsage(
            "no change is named; use at least one of --strategy, --add, --remove, --queues, --slices, --settings"
        )
    grown = dict(topic_queues(text, "--queues") for text in queues)
    return alternatives(Variation(settings=settings, add=add, remove=remove, queues=grown), strategies)


def _setting(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE; the value is JSON or a plain word."""
    name, _, value = text.partition("=")
    known = [field for field in Configure.__struct_fields__ if field not in ("group_id", "strategy", "slices", "by")]
    if name not in known or not value:
        raise InvalidUsage(f"--settings is {text!r}; it must be NAME=VALUE, with a name of: {', '.join(known)}")
    try:
        return name, msgspec.json.decode(value)
    except UNREADABLE:
        return name, value


def _table(title: str, answers: dict[str, Prediction]) -> Table:
    """Return a table with one column for now and one per alternative: sums first, then one row per client."""
    table = Table(title=title, show_lines=True)
    now = next(iter(answers.values())).now
    table.add_column("")
    for words in ("now", *answers):
        table.add_column(words, overflow="fold")
    sums = [_sums(now), *(_sums(answer.then, answer) for answer in answers.values())]
    for name in dict.fromkeys(name for one in reversed(sums) for name in one):
        table.add_row(name, *(one.get(name, "") for one in sums))
    situations = [_clients(now), *(_clients(answer.then, now) for answer in answers.values())]
    clients = sorted({client_id for one in situations for client_id in one})
    for client_id in clients[:LISTED]:
        table.add_row(client_id, *(one.get(client_id, "-") for one in situations))
    if len(clients) > LISTED:
        table.add_row(f"and {len(clients) - LISTED} more", *("" for _ in situations))
    return table


def _sums(situation: Situation, answer: Prediction | None = None) -> dict[str, str]:
    sums = {
        "strategy": situation.strategy or "-",
        "members": str(len(situation.clients)),
        "queues": f"{len(situation.owners)}, {len(situation.unowned)} unowned",
        "spread": str(situation.spread),
    }
    if readers := readers_in_words(situation):
        sums["readers"] = readers
    if answer is not None:
        sums["moved"] = f"{len(answer.moved)} queues"
        sums["hand-overs"] = f"{len(answer.handovers)}, the last one after {answer.took_ms / 1_000:.1f} s"
    return sums


def _clients(situation: Situation, before: Situation | None = None) -> dict[str, str]:
    """Return client_id -> text of its share: number of queues, lag, and a drawing if the queues are few enough."""
    shares = situation.shares
    drawn = _rows(situation, before) if len(situation.owners) + len(situation.unowned) <= DRAWN else {}
    texts = {}
    for client_id, share in shares.items():
        lag = situation.lag_of(share)
        texts[client_id] = f"{len(share)}, lag {'unknown' if lag is None else lag}"
        if client_id in drawn:
            texts[client_id] += f"\n{text_of(drawn[client_id])}"
    return texts


def _rows(situation: Situation, before: Situation | None) -> dict[str, list[tuple[str, str]]]:
    return rows_of(situation.shares, None if before is None else before.owners, situation.unowned)


def _notes(answer: Prediction) -> list[str]:
    empty = "the group has no members; use --at TIME for a moment when it had some"
    return [*([] if answer.then.clients else [empty]), *notes_of(answer)]


def _drawn(answers: dict[str, Prediction]) -> str:
    now = next(iter(answers.values())).now
    panels = [Panel("now", _lines(_sums(now)), _rows(now, None))]
    for words, answer in answers.items():
        panels.append(Panel(words, _lines(_sums(answer.then, answer)), _rows(answer.then, now)))
    return svg_of(panels)


def _lines(sums: dict[str, str]) -> list[str]:
    return [f"{name}: {words}" for name, words in sums.items()]
