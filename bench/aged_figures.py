"""Figures of questions about a moment on ledgers of some age, and their chapter."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from bench.long_figures import Command
from bench.machine import Machine
from bench.text_tables import digits, table

AGED = Path(__file__).parent / "aged.json"

FLOOR = "groups --help"
"""Command whose time is that of a start."""
YEAR_DAYS = 365


class Age(Struct, frozen=True):
    """A ledger of some age, and what it was asked."""

    days: int
    files: int
    """Files of all tables."""
    bytes: int
    """Bytes of these files."""
    commands: dict[str, Command]
    """Command -> its figures."""


class Aged(Struct, frozen=True):
    """All of it."""

    machine: Machine
    groups: int
    records: int
    """Records behind the snapshots."""
    ages: list[Age]
    """The youngest first; at least two."""


def section(found: Aged | None) -> str:
    """Return the chapter of these figures."""
    if found is None:
        return "Not measured yet: `python -m bench.aged_ledgers`, on a quiet machine, takes some minutes.\n"
    ages = found.ages
    days = [f"{age.days} days" for age in ages]
    return f"""\
{found.groups:,} groups, and {found.records:,} records behind the newest snapshots. The older files are hard links to
those of the first hour, with older times in the Delta log. Each command is a process of its own; times include its
start, and are medians. In brackets are the multiple of the time of `{FLOOR}`, which only starts, and the peak memory.
The last column continues the growth between the first and the last age.

{table(["ledger", *days], _ledgers(ages))}

{table([f"seconds (x `{FLOOR}`, MiB)", *days, f"{YEAR_DAYS} days, by growth"], _commands(ages))}

Measured on {found.machine.measured} with {found.machine.sentence}.
"""


def _ledgers(ages: Sequence[Age]) -> Iterator[list[str]]:
    yield ["files", *(f"{age.files:,}" for age in ages)]
    yield ["GB of files", *(digits(age.bytes / 1e9) for age in ages)]


def _commands(ages: Sequence[Age]) -> Iterator[list[str]]:
    first, last = ages[0], ages[-1]
    for name, begin in first.commands.items():
        grown = (last.commands[name].seconds - begin.seconds) / (last.days - first.days)
        in_a_year = last.commands[name].seconds + max(grown, 0) * (YEAR_DAYS - last.days)
        its = [age.commands[name] for age in ages]
        floors = [age.commands[FLOOR].seconds for age in ages]
        yield [
            f"`{name}`",
            *(
                f"{digits(one.seconds)} ({one.seconds / floor:.1f}, {one.memory_mib:,.0f})"
                for one, floor in zip(its, floors, strict=True)
            ),
            digits(in_a_year),
        ]
