"""The command that asks what would happen, and changes nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from model.assignment_chart import rows_of, text_of
from model.events import Configure
from model.strategies import StrategyError, find
from model.what_if import NotPlayable, Prediction, Situation, Variation, predict
from pipeline.cli.open_ledger import ledger
from pipeline.cli.options import ConfigFile, Home, LogAt, settings_of
from pipeline.questions.assignment_svg import Panel, svg_of
from wakeroll.errors import InvalidUsage
from wakeroll.reset import EpochMs, time_of

out = Console(highlight=False)

DRAWN = 64
"""Queues that a cell of a terminal can show; of more, only their number is told."""
LISTED = 50
"""Clients that a table lists."""

Group = Annotated[str, typer.Option("--group", metavar="GROUP", help="The group that is asked about.")]
Strategies = Annotated[
    list[str] | None,
    typer.Option("--strategy", metavar="STRATEGY", help="Share by this one; given again, another alternative."),
]
Add = Annotated[int, typer.Option("--add", metavar="N", min=0, max=1_000, help="So many members more.")]
Remove = Annotated[list[str] | None, typer.Option("--remove", metavar="CLIENT", help="Without this one; repeatable.")]
Queues = Annotated[
    list[str] | None, typer.Option("--queues", metavar="TOPIC=N", help="A topic has so many queues; repeatable.")
]
GroupSettings = Annotated[
    list[str] | None,
    typer.Option("--settings", metavar="NAME=VALUE", help="As `configure` has them, like settle_ms=0; repeatable."),
]
Picture = Annotated[
    Path | None, typer.Option("--picture", metavar="FILE.svg", help="Also draw who has what, side by side.")
]


def what_if(
    group: Group,
    strategy: Strategies = None,
    add: Add = 0,
    remove: Remove = None,
    queues: Queues = None,
    settings: GroupSettings = None,
    at: LogAt = None,
    picture: Picture = None,
    home: Home = None,
    config: ConfigFile = None,
) -> None:
    """Ask what a change would come to: who would own what, what would move, who would be behind.  Nothing is changed.

    All that is given makes one alternative; with several --strategy, each of them does.
    """
    from pipeline.ledger.archived_log import place_of, shard_at

    changes = _changes(strategy or [], add, remove or [], queues or [], settings or [])
    at_ms = None if at is None else int(time_of(at))
    deployment = settings_of(config, home=home)
    with ledger(deployment, out) as spark:
        shard = shard_at(spark, place_of(spark, group, deployment.partitions), deployment.partitions, at_ms)
    try:
        answers = {_words(change): predict(shard, group, change) for change in changes}
    except NotPlayable as error:
        raise InvalidUsage(str(error)) from None
    out.print(_table(f"{group} at {EpochMs(shard.tick_ms)}", answers))
    for words, answer in answers.items():
        for note in _notes(answer):
            out.print(f"{words}: {note}", markup=False)
    if picture is not None:
        picture.write_text(_drawn(answers), encoding="utf-8")
        out.print(f"drawn in {picture}", markup=False)


def _changes(
    strategies: Sequence[str], add: int, remove: Sequence[str], queues: Sequence[str], settings: Sequence[str]
) -> list[Variation]:
    """Return the alternatives that are asked for."""
    if not (strategies or add or remove or queues or settings):
        raise InvalidUsage("nothing is asked; give one of --strategy, --add, --remove, --queues, --settings")
    named: dict[str, Any] = dict(_setting(text) for text in settings)
    change = Variation(settings=named, add=add, remove=remove, queues=dict(_queues(text) for text in queues))
    for strategy in strategies:
        try:
            find(strategy)
        except StrategyError as error:
            raise InvalidUsage(str(error)) from None
    changes = [msgspec.structs.replace(change, settings={**named, "strategy": one}) for one in strategies]
    return changes or [change]


def _setting(text: str) -> tuple[str, Any]:
    """Read a setting as people write it; a value is JSON, or a word."""
    name, _, value = text.partition("=")
    known = [field for field in Configure.__struct_fields__ if field not in ("group_id", "strategy")]
    if name not in known or not value:
        raise InvalidUsage(f"--settings is {text!r}; it must be a name and a value, of: {', '.join(known)}")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.MsgspecError:
        return name, value


def _queues(text: str) -> tuple[str, int]:
    topic, _, count = text.rpartition("=")
    if not topic or not count.isdecimal() or len(count) > 5:
        raise InvalidUsage(f"--queues is {text!r}; it must be a topic and a number, like orders=12")
    return topic, int(count)


def _words(change: Variation) -> str:
    """Say what is otherwise: the title of an alternative."""
    words = [f"{name} {value}" for name, value in sorted(change.settings.items(), key=lambda one: one[0] != "strategy")]
    words += [f"{change.add} more"] if change.add else []
    words += [f"without {client_id}" for client_id in change.remove]
    words += [f"{topic} with {count} queues" for topic, count in change.queues.items()]
    return ", ".join(words)


def _table(title: str, answers: dict[str, Prediction]) -> Table:
    """Put now beside each alternative: in sum, and for each client."""
    table = Table(title=title, show_lines=True)
    now = next(iter(answers.values())).now
    table.add_column("")
    for words in ("now", *answers):
        table.add_column(words, overflow="fold")
    sums = [_sums(now), *(_sums(answer.then, answer) for answer in answers.values())]
    for name in sums[-1]:
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
    if answer is not None:
        sums["moved"] = f"{len(answer.moved)} queues"
        sums["hand-overs"] = f"{len(answer.handovers)}, the last one after {answer.took_ms / 1_000:.1f} s"
    return sums


def _clients(situation: Situation, before: Situation | None = None) -> dict[str, str]:
    """Return client -> what it has: how many, how far behind, and which of them, if they can be drawn."""
    shares = situation.shares
    drawn = _rows(situation, before) if len(situation.owners) + len(situation.unowned) <= DRAWN else {}
    told = {}
    for client_id, share in shares.items():
        lag = situation.lag_of(share)
        told[client_id] = f"{len(share)}, lag {'unknown' if lag is None else lag}"
        if client_id in drawn:
            told[client_id] += f"\n{text_of(drawn[client_id])}"
    return told


def _rows(situation: Situation, before: Situation | None) -> dict[str, list[tuple[str, str]]]:
    return rows_of(situation.shares, None if before is None else before.owners, situation.unowned)


def _notes(answer: Prediction) -> list[str]:
    notes = list(answer.notes)
    if not answer.then.clients:
        notes.append("nobody is in the group; --at TIME asks about a moment when somebody was")
    if answer.unassigned:
        reasons = sorted({one.reason for one in answer.unassigned})
        notes.append(f"{answer.unassigned_count} queues are nobody's: {'; '.join(reasons)}")
    if not answer.is_calm:
        notes.append("there was no end of it; this is how it stood when ten minutes had passed")
    return notes


def _drawn(answers: dict[str, Prediction]) -> str:
    now = next(iter(answers.values())).now
    panels = [Panel("now", _lines(_sums(now)), _rows(now, None))]
    for words, answer in answers.items():
        panels.append(Panel(words, _lines(_sums(answer.then, answer)), _rows(answer.then, now)))
    return svg_of(panels)


def _lines(sums: dict[str, str]) -> list[str]:
    return [f"{name}: {words}" for name, words in sums.items()]
