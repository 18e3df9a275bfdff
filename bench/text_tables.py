"""Formats of numbers and tables for reports."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from bench.timings import Latency, Timing

Row = TypeVar("Row")
Columns = Sequence[tuple[str, Callable[[Row], str]]]
"""Heads of a table, each with what its cells show of a row."""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; its first column is text, the others are numbers."""
    ruler = ["---", *["--:"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ruler, *rows))


def table_of(columns: Columns[Row], rows: Iterable[Row]) -> str:
    """Return a Markdown table of rows, by its columns."""
    return table([head for head, _ in columns], ([cell(row) for _, cell in columns] for row in rows))


def digits(value: float) -> str:
    """Return a number with three digits that count.

    >>> [digits(value) for value in (0.01234, 1.0, 45.678, 12345.6)]
    ['0.0123', '1.00', '45.7', '12,346']
    """
    if value >= 100:
        return f"{value:,.0f}"
    places = 2 if value >= 1 or value == 0 else 3
    return f"{value:#.3g}" if value < 1 and value else f"{value:.{places if value < 10 else 1}f}"


def duration(ns: float) -> str:
    """Return a duration with its unit.

    >>> [duration(ns) for ns in (850, 12_345, 4_560_000, 2.5e9)]
    ['0.850 µs', '12.3 µs', '4.56 ms', '2.50 s']
    """
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if ns >= size:
            return f"{digits(ns / size)} {unit}"
    return f"{digits(ns / 1e3)} µs"


def both(timing: Timing) -> str:
    """Return the median, and the best in brackets.

    >>> both(Timing(12_345, 11_000, 15))
    '12.3 µs (11.0 µs)'
    """
    return f"{duration(timing.median_ns)} ({duration(timing.best_ns)})"


def times(ours: Timing, other: Timing) -> str:
    """Return how many times the other's median ours is.

    >>> times(Timing(3_000, 1, 5), Timing(2_000, 1, 5))
    '1.50'
    """
    return digits(ours.median_ns / other.median_ns)


def whole_ms(value: float) -> str:
    """Return milliseconds without a fraction."""
    return f"{value:,.0f} ms"


def percentiles(its: Latency) -> tuple[str, str]:
    """Return p50 and p99 as text, empty if there were no answers."""
    return (whole_ms(its.p50_ms), whole_ms(its.p99_ms)) if its.count else ("", "")
