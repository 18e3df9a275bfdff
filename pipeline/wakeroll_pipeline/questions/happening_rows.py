"""Events as rows for people: hand-overs with the same cause between the same two clients are one row."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from msgspec import Struct

from wakeroll_pipeline.questions.happenings import Count, Happening, HappeningKind

NAMED = 40
"""Maximum number of queues that a row names."""
NOTHING = "Nothing: no change of members, rebalance, hand-over, reset or rejection."
"""Sentence about a period without events."""

_PLURALS = {
    "member": ("change of members", "changes of members"),
    "rebalance": ("rebalance", "rebalances"),
    "hand-over": ("hand-over", "hand-overs"),
    "reset": ("reset", "resets"),
    "rejection": ("rejection", "rejections"),
}


class HappeningRow(Struct, frozen=True, kw_only=True):
    """One row."""

    first: Happening
    text: str
    notes: list[str]
    """The longest silence of an owner before it expired, and the longest time of the hand-overs, as far as known."""


class KindCount(Struct, frozen=True, kw_only=True):
    """The number of events of one kind, and of its parts."""

    number: int
    name: str
    parts: list[str]


def happening_rows(events: Sequence[Happening]) -> Iterator[HappeningRow]:
    """Yield the rows of consecutive events."""
    for (kind, *_), found in groupby(events, _together):
        rows = list(found)
        if kind != "hand-over" or len(rows) == 1:
            for one in rows:
                yield HappeningRow(first=one, text=one.text, notes=_notes([one]))
            continue
        first = rows[0]
        queues = ", ".join(one.queue for one in rows[:NAMED]) + (
            f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
        )
        text = f"{len(rows)} queues: {first.before or 'nobody'} → {first.after or 'nobody'} ({first.what}): {queues}"
        yield HappeningRow(first=first, text=text, notes=_notes(rows))


def kind_counts(counts: Sequence[Count]) -> Iterator[KindCount]:
    """Yield the sums of each kind."""
    for kind, found in groupby(counts, lambda one: one.kind):
        rows = list(found)
        number = sum(one.number for one in rows)
        yield KindCount(number=number, name=_name(kind, number), parts=[_part(one) for one in rows if one.what])


def _together(one: Happening) -> tuple[str, ...]:
    return one.kind, one.group_id, one.record, one.before, one.after, one.what


def _notes(rows: Sequence[Happening]) -> list[str]:
    silent_ms, took_ms = _longest(one.silent_ms for one in rows), _longest(one.took_ms for one in rows)
    notes = [] if silent_ms is None else [f"after {silent_ms:,} ms of silence"]
    return notes if took_ms is None else [*notes, f"took {took_ms:,} ms"]


def _longest(times: Iterable[int | None]) -> int | None:
    return max((one for one in times if one is not None), default=None)


def _name(kind: HappeningKind, number: int) -> str:
    return _PLURALS[kind][number != 1]


def _part(one: Count) -> str:
    return f"{one.number:,} {one.what}" + (f" ({one.moved:,} moved)" if one.moved else "")
