"""The chain of a table: one line for the appends of a minute, each with a hash of the rows and of the line before.

It shows that a table has exactly the rows that its recorder wrote: a row that is missing, edited, doubled or foreign
changes the hash of a line, and a line that is missing or edited breaks the chain after it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Literal

import msgspec
from msgspec import Struct

LineKind = Literal["begin", "rows", "found", "gap", "cut", "kept", "lost", "unproven"]
"""Kind of a line.

- ``begin``: the first line. Rows up to its positions were there before the chain, and are not proven. A table that was
  created again, or has lost all its rows, begins again, with a reason; the lines before do not cover its rows.
- ``rows``: the appends of a minute at most.
- ``found``: rows without lines that the recorder found when it started; an earlier release had written them.
- ``gap``: positions that no row will have, such as records that Kafka had deleted before they were read.
- ``cut``: rows up to its positions are about to be deleted or replaced, for its reason.
- ``kept``: the rows up to its positions that are left after the cut before it. It replaces the lines before it.
- ``lost``: positions of one stream whose rows are lost, as an operator has accepted, for its reason.
- ``unproven``: rows up to its positions that differ from those of an earlier line, as an operator has accepted.
"""
PROVING = ("rows", "found")
"""Kinds of lines that prove the rows after the positions of the lines before them."""
WITHOUT_ROWS = ("gap", "lost", "unproven")
"""Kinds of lines that cover no rows: they record only missing or accepted positions."""


NOWHERE = -2
"""A position below all others. (-1 is the position of a snapshot before the first record.)"""


class Line(Struct, frozen=True, kw_only=True):
    """A line of a chain."""

    table: str
    number: int
    """Number of the line in the chain of its table, from 1."""
    kind: LineKind
    at_ms: int
    """Time of the recorder (epoch ms)."""
    rows: int
    """Number of rows that the line covers; for a gap and for lost rows, the number of positions."""
    positions: dict[str, int]
    """Stream with rows in this line -> last position, sorted by stream. A line covers the positions after those of the
    lines before it."""
    rows_hash: str
    """`hash_of_rows` in hexadecimal; empty if the kind has no rows."""
    reason: str = ""
    """Reason of a gap or a cut, or of the acceptance of lost rows."""
    line_hash: str = ""
    """`hash_of_line` in hexadecimal."""


class Part(Struct, frozen=True):
    """The rows of one stream in a line."""

    stream: str
    rows: int
    digest: bytes
    """SHA-256 of the rows in the order of their positions."""


def hash_of_rows(parts: Iterable[Part]) -> str:
    """Return the hash of the rows of a line, in hexadecimal; the order of the parts does not matter."""
    whole = sha256()
    for part in sorted(parts, key=lambda one: one.stream):
        whole.update(f"{len(part.stream)}:{part.stream}:{part.rows}:".encode())
        whole.update(part.digest)
    return whole.hexdigest()


def hash_of_line(line: Line, before: str) -> str:
    """Return the hash of a line and of the one before it, in hexadecimal.

    Args:
        line: the line; its `line_hash` does not count.
        before: `line_hash` of the line before; empty before the first.
    """
    body = msgspec.json.encode(msgspec.structs.replace(line, line_hash=""))
    return sha256(before.encode() + b"\n" + body).hexdigest()


def linked(line: Line, before: str) -> Line:
    """Return a line with its `line_hash`."""
    return msgspec.structs.replace(line, line_hash=hash_of_line(line, before))


class Broken(Struct, frozen=True):
    """A violation in a chain."""

    number: int
    found: str
    expected: str


def broken_links(lines: Sequence[Line], before: str = "", first: int = 1) -> Iterator[Broken]:
    """Yield the violations of a chain whose lines are sorted by number.

    Args:
        lines: lines of one table.
        before: hash of the line before the first of them.
        first: number that the first of them must have.
    """
    for line in lines:
        if line.number != first:
            yield Broken(line.number, f"line {line.number} behind line {first - 1}", f"line {first}")
        elif (found := hash_of_line(line, before)) != line.line_hash:
            yield Broken(line.number, f"a line with the hash {found[:16]}...", f"{line.line_hash[:16]}...")
        first, before = line.number + 1, line.line_hash


def floor_of(lines: Sequence[Line], ends: Mapping[str, int] | None) -> dict[str, int]:
    """Return the positions that a cut must reach so that it divides no line.

    Args:
        lines: lines of a table, sorted by number.
        ends: stream -> highest position of a row that is deleted or replaced; None: any row.

    Returns:
        Stream -> position.
    """
    floor: dict[str, int] = {}
    reached: dict[str, int] = {}
    for line in lines:
        if line.kind in WITHOUT_ROWS:
            continue
        if line.kind == "begin":
            floor.clear()
            reached.clear()
        is_touched = ends is None or any(
            reached.get(stream, NOWHERE) < ends.get(stream, NOWHERE) for stream in line.positions
        )
        _raise_to(reached, line.positions)
        if line.kind not in PROVING:  # what it covers stays in one piece
            _raise_to(floor, line.positions)
        elif is_touched:
            _raise_to(floor, reached)
    return floor


def _raise_to(positions: dict[str, int], others: Mapping[str, int]) -> None:
    for stream, position in others.items():
        positions[stream] = max(position, positions.get(stream, position))


class Head(Struct, frozen=True):
    """The newest line of a table, as it is published."""

    table: str
    number: int
    line_hash: str
    """`Line.line_hash`, or its first digits: `LEAST_DIGITS` or more."""

    @property
    def first_bits(self) -> int:
        """The first 52 bits of the hash: the largest part that a float holds exactly."""
        return int(self.line_hash[:LEAST_DIGITS], 16)

    def is_of(self, line_hash: str) -> bool:
        """Return whether this is the line with this hash."""
        return line_hash.startswith(self.line_hash)


LEAST_DIGITS = 13
"""Minimum number of hexadecimal digits of a hash that identify a line; 52 bits, as in metrics."""


class Published(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record of the topic in which the recorder publishes the newest lines, after they were stored."""

    table: str
    number: int
    """Number of the line, from 1; 0: the lines of the table that were published before are no longer valid."""
    line_hash: str = ""
    reason: str = ""
    """Reason why the lines before are no longer valid."""
    by: str = ""
    """Name of the process that published it, for people."""
    at_ms: int = 0
    """Time of the record in Kafka's log (epoch ms); its reader sets it."""

    @property
    def key(self) -> str:
        """Key of the record, with the name of the process, so that compaction keeps the last line of each process."""
        return f"{self.table}/{self.by}"


def counting(published: Iterable[Published]) -> list[Published]:
    """Return the published lines that must be in the chains, each once, from records in the order of the log."""
    lines: dict[str, dict[tuple[int, str], Published]] = {}
    for one in published:
        if one.number == 0:
            lines.pop(one.table, None)
        else:
            lines.setdefault(one.table, {}).setdefault((one.number, one.line_hash), one)
    return [one for _, its in sorted(lines.items()) for one in its.values()]


def text_of_heads(heads: Iterable[Head]) -> str:
    """Return published lines in one word: ``decisions:31:8f0c...,events:58:91ab...``, sorted by table."""
    return ",".join(f"{one.table}:{one.number}:{one.line_hash}" for one in sorted(heads, key=lambda one: one.table))


def heads_of_text(text: str) -> list[Head]:
    """Return the lines of a text as `text_of_heads` writes it; the last digits of a hash may be missing.

    Raises:
        ValueError: the text has another form; the message shows the right one.
    """
    heads = []
    for word in text.strip().split(","):
        table, number, its_hash = (*word.split(":"), "", "")[:3]
        if not (table and number.isdecimal() and _is_hash(its_hash)):
            raise ValueError(
                f"{word[:80]!r} is no line of a chain; it must be TABLE:NUMBER:HASH, with the first {LEAST_DIGITS} "
                "digits of the hash, or more"
            )
        heads.append(Head(table, int(number), its_hash))
    return heads


_is_hash = re.compile(rf"[0-9a-f]{{{LEAST_DIGITS},64}}").fullmatch
