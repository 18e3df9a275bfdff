"""Time made relative: after each move, every time in a state is shifted so that the present is `NOW_MS` again.

The model compares times with the present and with each other, so two states that differ by a shift behave alike.
What happens minutes or days later than any path lasts (an ended instance is forgotten, an empty group, a topic that is
gone) never happens here, and a time of which only "long ago" counts is kept at the age where that begins: see `_KEPT`.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import inspect, structs

from tests.support.control_log import START_MS
from wakeroll_model.config import NEVER_MS

NOW_MS = START_MS + 10_000_000
"""The present of every state, of the log and of the clients."""

LONG_MS = 120_000
"""Longer than any wait that the rules of an explored world end with, the longest session twice included."""

FAR_MS = NOW_MS + 10 * LONG_MS
"""Later than any path lasts."""

DURATION, LOG_TIME, PAST, RECENT, FUTURE, FAR, EXACT = (
    "duration",
    "log time",
    "past",
    "recent",
    "future",
    "far",
    "exact",
)

_KEPT: dict[str, tuple[str, int]] = {
    # settings
    "heartbeat_ms": (DURATION, 0),
    "session_timeout_ms": (DURATION, 0),
    "revoke_timeout_ms": (DURATION, 0),
    "rebalance_interval_ms": (DURATION, 0),
    "settle_ms": (DURATION, 0),
    "timeout_ms": (DURATION, 0),
    "session_ms": (DURATION, 0),
    "consume_from_ms": (DURATION, 0),
    # for people only: no rule reads it
    "at_ms": (LOG_TIME, 0),
    "joined_ms": (LOG_TIME, 0),
    "revoked_ms": (LOG_TIME, 0),
    # only the age counts, up to that of a session or an interval
    "Rival.seen_ms": (PAST, 50_000),
    "fenced_ms": (PAST, 6_000),
    "retargeted_ms": (PAST, 2_000),
    "probed_ms": (PAST, 10_000),
    "seen_ms": (EXACT, 0),
    "shown_ms": (EXACT, 0),
    "lagging_since_ms": (EXACT, 0),
    "Loss.at_ms": (PAST, 50_000),
    "Loss.until_ms": (PAST, 1_000),
    "Kicked.until_ms": (FUTURE, 0),
    # what follows from it comes minutes or days later, or never: no client changes its preferences
    "reported_ms": (RECENT, 0),
    "checked_ms": (RECENT, 0),
    "emptied_ms": (RECENT, 0),
    "left_ms": (RECENT, 0),
    "until_ms": (FAR, 0),
    # when the shard looks at the group next
    "due_ms": (FUTURE, 0),
}
"""Field of a group's state, or of what it holds -> what a shift does to it, and the age that is simply long ago.

A field that is not named is an error."""


_TIMES_BY_NAME: dict[str, tuple[str, int]] = {
    "waiting": (PAST, 100_000),
    "gone_topics": (RECENT, 0),
    "idle_topics": (RECENT, 0),
    "reset_at": (RECENT, 0),
}
"""Maps to times, as above."""
_NUMBERS_BY_NAME = frozenset(
    {"owned", "offsets", "added", "reset", "reset_epochs", "assigned_below", "leader_epochs", "slices"}
)
"""Maps to numbers that are no times.  A map to numbers that is in neither is an error."""


def shift(value: Any, by_ms: int) -> Any:
    """Shift all times in a tree of structs, in place, so that `NOW_MS + by_ms` becomes `NOW_MS`; return the tree."""
    times, parts = _plan(type(value))
    moved = {name: _shifted(was, by_ms, *kept) for name, kept in times if (was := getattr(value, name)) is not None}
    if value.__struct_config__.frozen:
        return structs.replace(value, **moved)
    for name, at_ms in moved.items():
        setattr(value, name, at_ms)
    for name in parts:
        part = getattr(value, name)
        if name in _TIMES_BY_NAME:
            part.update({key: _shifted(at_ms, by_ms, *_TIMES_BY_NAME[name]) for key, at_ms in part.items()})
        elif isinstance(part, dict):
            for key, one in part.items():
                part[key] = shift(one, by_ms)
        elif part is not None:
            setattr(value, name, shift(part, by_ms))
    return value


@cache
def _plan(kind: type) -> tuple[list[tuple[str, tuple[str, int]]], list[str]]:
    """Return the times of a struct, and the parts of it that have some: structs, or dicts of structs."""
    times, parts = [], []
    for field in inspect.type_info(kind).fields:
        if field.name.endswith("_ms"):
            kept = _KEPT.get(f"{kind.__name__}.{field.name}") or _KEPT.get(field.name)
            if kept is None:
                raise LookupError(f"clockwork.py does not say what a shift of time does to {field.name!r}")
            if kept[0] != DURATION:
                times.append((field.name, kept))
        elif field.name in _TIMES_BY_NAME:
            parts.append(field.name)
        elif isinstance(field.type, inspect.DictType) and isinstance(field.type.value_type, inspect.IntType):
            if field.name not in _NUMBERS_BY_NAME:
                raise LookupError(f"clockwork.py does not say whether {field.name!r} maps to times")
        elif any(any(_plan(one)) for one in _structs_in(field.type)):
            parts.append(field.name)
    return times, parts


def _structs_in(kind: inspect.Type) -> Iterator[type]:
    """Yield the structs that a field may hold, by itself or as the values of a dict."""
    if isinstance(kind, inspect.StructType):
        yield kind.cls
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _structs_in(one)
    elif isinstance(kind, inspect.DictType):
        yield from _structs_in(kind.value_type)


def shifted_due(due_ms: int, by_ms: int) -> int:
    """Shift a deadline; one that has passed is due now."""
    return due_ms if due_ms >= NEVER_MS else _future(due_ms - by_ms)


def _shifted(value: int, by_ms: int, kept: str, long_ms: int) -> int:
    if value <= 0 or value >= NEVER_MS:  # there is none: -1, or 0 for a client that is not kept out
        return value
    if kept == LOG_TIME:
        return 0
    if kept == RECENT:
        return NOW_MS
    if kept == FAR:
        return FAR_MS
    if kept == PAST:
        return max(value - by_ms, NOW_MS - long_ms)
    return _future(value - by_ms) if kept == FUTURE else value - by_ms


def _future(value: int) -> int:
    if value < NOW_MS:
        return NOW_MS
    return value if value < NOW_MS + LONG_MS else FAR_MS
