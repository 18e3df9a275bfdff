"""Durations: measured in rounds, or of many answers."""

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
