"""The frame of a measurement: each one is declared as a `Bench`; its command, its file and its chapters follow."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from wakeroll.errors import WakerollError

FIGURES = Path(__file__).parent
"""Folder of the figures that docs/performance.md is made from."""
SECONDS = 60.0
WARMUP_S = 60.0
"""The JVM compiles what it runs often; until then everything takes two or three times as long."""

Found = TypeVar("Found")
Figures = TypeVar("Figures", bound=Struct)


class NotMeasured(WakerollError):
    """Something that is measured failed, ended or was too late; the message names it and its log."""


class Option(NamedTuple):
    """An option of a command, as argparse takes it."""

    flag: str
    settings: dict[str, Any]


class Chapter(NamedTuple, Generic[Found]):
    """A chapter of the page."""

    head: str
    section: Callable[[Found], str]


@dataclass(frozen=True)
class Bench(Generic[Found]):
    """A measurement, and what becomes of its figures."""

    name: str
    """Of its command: ``python -m bench NAME``."""
    about: str
    """One sentence for its help."""
    takes: str
    """How long, for people who wait."""
    measure: Callable[[Namespace], Found]
    """Gets the options, `machine` as it was at the start, and `folder`, which is empty."""
    options: Sequence[Option] = ()
    chapters: Sequence[Chapter[Found]] = (Chapter("", str),)
    """How people read the figures; of one without a file, these are text already."""
    figures: type[Found] | None = None
    file: str = ""
    """Of its figures, in `FIGURES`; empty: they stand on no page that is generated."""
    run: str = ""
    """Its name on the page if its figures do not count on a busy machine; empty: they do."""
    problems: Callable[[Found], Sequence[str]] = lambda _: ()
    """What is wrong with the system that was measured, which ends the command with 1."""
    differs: Callable[[Namespace], bool] = lambda _: False
    """Whether its options make figures that are not those of the page, which need a file of their own."""
    publishes: bool = True
    """Whether the figures go to the page if no other file is named."""
    has_folder: bool = True

    @property
    def path(self) -> Path:
        """File of the figures that are on the page."""
        return FIGURES / self.file

    def add_to(self, parser: ArgumentParser) -> None:
        """Add the options of its command."""
        for flag, settings in self.options:
            parser.add_argument(flag, **settings)
        if self.has_folder:
            folder = Path(".wakeroll") / "bench" / self.name
            parser.add_argument("--folder", type=Path, default=folder, help="of data and logs, emptied (%(default)s)")
        if self.file:
            path = self.path if self.publishes else None
            parser.add_argument("--json", type=Path, default=path, help=f"where the figures go ({path or 'FOLDER'})")

    def sections(self, found: Found | None) -> list[tuple[str, str]]:
        """Return head and text of its chapters."""
        missing = f"Not measured yet: `python -m bench {self.name}` takes {self.takes} on a quiet machine.\n"
        return [(one.head, missing if found is None else one.section(found)) for one in self.chapters]


def option(flag: str, **settings: Any) -> Option:
    """Declare an option; its help gets the default at its end."""
    if flag.startswith("-") and settings.get("action") is None:
        settings["help"] += " (%(default)s)"
    return Option(flag, settings)


def times(each: str, *, seconds: float = SECONDS, warmup_s: float = WARMUP_S) -> tuple[Option, Option]:
    """Declare ``--seconds``, the length of each measurement, and ``--warmup``, the time before it."""
    return (
        option("--seconds", type=_seconds, default=seconds, help=f"that count, of each {each}"),
        option("--warmup", type=_seconds, default=warmup_s, help="seconds before that"),
    )


def count(text: str, least: int = 0) -> int:
    """Read a whole number from 0 on."""
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
    return int(text)


def whole(text: str) -> int:
    """Read a whole number from 1 on."""
    return count(text, 1)


def numbers(text: str) -> list[int]:
    """Read whole numbers from 0 on, by comma."""
    return [count(part) for part in text.split(",")]


def write(found: Struct, path: Path) -> None:
    """Write figures as JSON that people can read."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def read(path: Path, kind: type[Figures]) -> Figures | None:
    """Return the figures of the last run; None if there was none."""
    return msgspec.json.decode(path.read_bytes(), type=kind) if path.exists() else None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 3_600:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to 3600")
    return seconds
