"""Figures: durations that are measured in rounds or of many answers, and the text of numbers and tables."""

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from msgspec import Struct

Ready = TypeVar("Ready")

ROUNDS = 31
ENOUGH_S = 0.5
"""What is slow is repeated less often: after this much time, `FEWEST` rounds will do."""
FEWEST = 3


class Timing(Struct, frozen=True):
    """How long one of something took; ns."""

    median_ns: float
    best_ns: float
    rounds: int


class Latency(Struct, frozen=True):
    """How long so many answers took; ms."""

    count: int
    p50_ms: float
    p99_ms: float


def measure(run: Callable[[Ready], object], prepare: Callable[[], Ready], *, each: int = 1) -> Timing:
    """Time `run` on what `prepare` makes for it, in rounds, after one round that does not count.

    As in `timeit`, Python's search for cyclic garbage is off meanwhile: else a round would pay for all that the
    measuring process keeps besides.

    Args:
        run: what is timed.
        prepare: makes what it works on, again for each round; not timed.
        each: how many things one `run` does; the figures are of one.
    """
    run(prepare())
    ns: list[int] = []
    gc.collect()
    gc.disable()
    try:
        began = time.monotonic()
        while len(ns) < ROUNDS and (len(ns) < FEWEST or time.monotonic() - began < ENOUGH_S):
            ready = prepare()
            start_ns = time.perf_counter_ns()
            run(ready)
            ns.append(time.perf_counter_ns() - start_ns)
    finally:
        gc.enable()
    return summary(ns, each)


def summary(ns: Sequence[int], each: int = 1) -> Timing:
    """Return the figures of rounds (ns) that did `each` things."""
    return Timing(round(statistics.median(ns) / each, 1), round(min(ns) / each, 1), len(ns))


def latency_of(times_ms: Iterable[int]) -> Latency:
    """Return the percentiles of some latencies, by nearest rank; of none, NaN would be no JSON, so 0.

    >>> latency_of([30, 10, 20])
    Latency(count=3, p50_ms=20, p99_ms=30)
    """
    ordered = sorted(times_ms)
    return Latency(len(ordered), _rank(ordered, 0.5), _rank(ordered, 0.99))


def _rank(ordered: Sequence[int], part: float) -> float:
    return ordered[max(math.ceil(part * len(ordered)) - 1, 0)] if ordered else 0


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
