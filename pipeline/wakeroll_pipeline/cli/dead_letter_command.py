"""The command for the dead letters of a group.  It does not need Spark."""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import msgspec
import typer
from msgspec import structs
from rich.table import Table
from rich.text import Text

from wakeroll.dead_letters import DeadLetters, Letter, Numbers
from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage
from wakeroll.headers import pairs_of
from wakeroll_pipeline.cli.json_answers import LetterRow, LettersAnswer, WholeLetter
from wakeroll_pipeline.cli.options import AsJson, BrokerOptions, GroupName
from wakeroll_pipeline.cli.output import Output, first_of, plain

out = Output(highlight=False)

Show = Annotated[
    int | None, typer.Option("--show", metavar="NUMBER", help="Show one letter with its headers and value.")
]
Resend = Annotated[
    str | None,
    typer.Option(
        "--resend", metavar="NUMBERS", help="Send letters to the group again, with all retries: 3,7-9 or all."
    ),
]
Drop = Annotated[str | None, typer.Option("--drop", metavar="NUMBERS", help="Drop letters for good: 3,7-9 or all.")]
ToOrigin = Annotated[
    bool,
    typer.Option(
        "--to-origin",
        help="With --resend: send to the topics that the letters come from, where all groups receive them.",
    ),
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Letters to list, the oldest first.")]
By = Annotated[str | None, typer.Option("--by", help="Name of the operator, for the record; default: user@host.")]

_SHOWN_BYTES = 4_096
"""Maximum number of bytes of a value that `--show` prints."""
_MOST_NUMBERS = 1_000_000


def dlq(
    deployment: BrokerOptions,
    group: GroupName,
    show: Show = None,
    resend: Resend = None,
    drop: Drop = None,
    to_origin: ToOrigin = False,
    limit: Limit = 100,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """List the dead letters of a group, show one, send some to the group again, or drop them."""
    if sum(given is not None for given in (show, resend, drop)) > 1:
        raise InvalidUsage("--show, --resend and --drop exclude each other; use only one of them")
    if to_origin and resend is None:
        raise InvalidUsage("--to-origin is for --resend")
    connection = deployment.settings().connection
    with DeadLetters(group, connection.bootstrap, kafka_config=connection.config) as letters:
        if "all" in (resend, drop) or (show, resend, drop) == (None, None, None):
            _refuse_unknown(group, letters.groups())
        if show is not None:
            (_write_letter if as_json else _show)(group, letters.get(show))
        elif resend is not None:
            resent = letters.resend(_numbers(resend), to_origin=to_origin, by=by)
            _write_count(LettersAnswer(group_id=group, resent=resent), f"sent again: {resent}", as_json)
        elif drop is not None:
            dropped = letters.drop(_numbers(drop), by=by)
            _write_count(LettersAnswer(group_id=group, dropped=dropped), f"dropped: {dropped}", as_json)
        else:
            (_write_list if as_json else _list)(group, letters.open(), limit)


def _write_count(answer: LettersAnswer, text: str, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(answer).decode())
    else:
        out.print(text)


def _write_list(group: str, letters: Iterator[Letter], limit: int) -> None:
    rows = [LetterRow.of(one) for one in islice(letters, limit)]
    total = len(rows) + sum(1 for _ in letters)
    print(msgspec.json.encode(LettersAnswer(group_id=group, total=total, letters=rows)).decode())


def _write_letter(group: str, letter: Letter) -> None:
    message = letter.message
    whole = WholeLetter(
        **structs.asdict(LetterRow.of(letter)),
        key=_text_or_none(message.key()),
        headers=[(name, _text_or_none(text)) for name, text in pairs_of(message)],
        value=_text_or_none(message.value()),
    )
    print(msgspec.json.encode(LettersAnswer(group_id=group, letter=whole)).decode())


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(plain(value))


def _refuse_unknown(group: str, known: list[str]) -> None:
    if group not in known:
        raise InvalidUsage(
            f"group {group!r} has no topic of dead letters: there is no such group, or no member of it has called run; "
            f"the groups that have one are: {first_of(known)}"
        )


def _numbers(text: str) -> Numbers:
    """Return the numbers in a text like ``3,7-9``."""
    if text == "all":
        return "all"
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})(?:-(\d{1,18}))?\s*", part, re.ASCII)
        if match is None:
            raise InvalidUsage(f"{text!r} names no letters; write numbers like 3,7-9, or all")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= _MOST_NUMBERS:
            raise InvalidUsage(f"{part.strip()!r} must be an ascending range of at most {_MOST_NUMBERS} numbers")
        found += range(first, last + 1)
    return found


def _list(group: str, letters: Iterator[Letter], limit: int) -> None:
    table = Table(title=f"dead letters of {group}")
    table.add_column("number", justify="right")
    for name in ("since", "from"):
        table.add_column(name)
    for name in ("offset", "attempts"):
        table.add_column(name, justify="right")
    for name in ("client", "error"):
        table.add_column(name)
    for letter in islice(letters, limit):
        origin = letter.origin
        table.add_row(
            str(letter.number),
            str(EpochMs(letter.at_ms)),
            str(origin.queue),
            str(origin.offset),
            str(origin.attempt),
            origin.client_id or "-",
            Text(origin.error),
        )
    more = sum(1 for _ in letters)
    out.print(table)
    if more:
        out.print(f"and {more} more; --limit lists more of them")


def _show(_group: str, letter: Letter) -> None:
    message, origin = letter.message, letter.origin
    table = Table(title=f"dead letter {letter.number}", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    value = message.value()
    cut = "" if value is None or len(value) <= _SHOWN_BYTES else f" ... ({len(value)} bytes)"
    rows = [
        ("stored", str(EpochMs(letter.at_ms))),
        ("from", f"{origin.queue}, offset {origin.offset}"),
        ("attempts", str(origin.attempt)),
        ("client", origin.client_id or "-"),
        ("error", origin.error),
        ("type of the error", origin.error_type or "-"),
        ("trace id", origin.trace_id or "-"),
        ("key", _text(message.key())),
        *((f"header {name}", _text(text)) for name, text in pairs_of(message)),
        ("value", _text(None if value is None else value[:_SHOWN_BYTES]) + cut),
    ]
    for name, text in rows:
        table.add_row(Text(name), Text(text))
    out.print(table)


def _text(value: object) -> str:
    return "null" if value is None else str(plain(value))
