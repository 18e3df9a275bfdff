"""Times as people write them: how long ago, ISO 8601 with a zone, or epoch milliseconds.

A library such as dateparser knows more forms, but needs half a second for its import, and guesses: it reads ``7/8`` and
``3:00`` by the language and the zone of this machine, so two operators would name two times by one text.
"""

import re
from datetime import datetime

from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage

_UNITS = (
    (1, "ms", "millisecond"),
    (1_000, "s", "sec", "second"),
    (60_000, "m", "min", "minute"),
    (3_600_000, "h", "hr", "hour"),
    (86_400_000, "d", "day"),
    (604_800_000, "w", "week"),
)
"""Length of a unit (ms), its letter, and its words."""
_UNIT_MS = {name: ms for ms, letter, *words in _UNITS for name in (letter, *words, *(f"{word}s" for word in words))}
_PART = re.compile(r"([0-9]{1,12})\s*([a-z]+)(?:\s+|,\s*|(?=[0-9])|\Z)")
_ONE = re.compile(r"\Aan?\s+")
_LONGEST = 64
"""Maximum number of characters of a text that an error repeats."""


def time_of(text: str, now_ms: int | None = None) -> EpochMs:
    """Parse a time.

    >>> str(time_of("2026-07-01T05:00+02:00")), str(time_of("1782874800000"))
    ('2026-07-01T03:00:00.000Z', '2026-07-01T03:00:00.000Z')
    >>> [str(time_of(text, 1782874800000))[11:16] for text in ("20m ago", "-20m", "20m", "1 hour 5 minutes ago", "now")]
    ['02:40', '02:40', '02:40', '01:55', '03:00']

    Args:
        text: ISO 8601 with a zone, epoch ms, or how long ago.
        now_ms: the time from which on `text` may count back (epoch ms); None: it may not.

    Raises:
        InvalidUsage: the text is not a time, has no zone, or is before 1970; the message names the right form.
    """
    if re.fullmatch(r"[0-9]+", text):
        return EpochMs(int(text))
    if now_ms is not None and (ago_ms := ago_ms_of(text)) is not None:
        return EpochMs(now_ms - ago_ms)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        forms = "a time like 2026-07-01T03:00:00Z, or epoch milliseconds"
        forms = forms if now_ms is None else f"20m ago, {forms}"
        raise InvalidUsage(f"{text[:_LONGEST]!r} is not a time; expected {forms}") from None
    return EpochMs.of(moment)


def ago_ms_of(text: str) -> int | None:
    """Return how long ago a text like ``20m ago``, ``-20m`` or ``now`` is (ms); None if it has no such form."""
    words = text.strip().lower()
    if words == "now":
        return 0
    return duration_ms_of(words.removesuffix("ago").removeprefix("-").strip())


def duration_ms_of(text: str) -> int | None:
    """Return a duration (ms); None if the text is not a duration.

    >>> duration_ms_of("90s"), duration_ms_of("1 hour 30 min"), duration_ms_of("an hour"), duration_ms_of("2 moons")
    (90000, 5400000, 3600000, None)
    """
    rest, total = _ONE.sub("1 ", text.strip().lower()), 0
    while rest:
        part = _PART.match(rest)
        unit_ms = None if part is None else _UNIT_MS.get(part[2])
        if part is None or unit_ms is None:
            return None
        total += int(part[1]) * unit_ms
        rest = rest[part.end() :]
    return total if text.strip() else None
