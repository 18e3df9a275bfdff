"""The budget of each figure, and whether the figure keeps it."""

from collections.abc import Iterator

from msgspec import Struct

from bench.latency_figures import Latency, Wakes
from bench.results import Results
from bench.text_tables import digits, duration, table

SHARE_MS = 5.0
PROMISED = ("AVG", "SPREAD", "BALANCED")
"""The default strategy, and the two that Kafka's is compared with."""
ASSIGNED_TIMES_FLOOR = 1.6
ASSIGNED_MS = 300
WOKEN_TIMES_FLOOR = 2.0
WOKEN_MS = 350
QUERYABLE_MS = 10_000
BATCH_MS = 150


class Row(Struct, frozen=True):
    """A budget beside its figure."""

    figure: str
    budget: str
    found: str
    kept: str
    """yes, no, or "" where nothing was measured."""


def section(results: Results, wakes: Wakes | None) -> str:
    """Return the chapter of the budgets."""
    rows = [(row.figure, row.budget, row.found, row.kept) for row in _rows(results, wakes)]
    return table(("figure", "budget", "measured", "met"), rows) + "\n"


def _rows(results: Results, wakes: Wakes | None) -> Iterator[Row]:
    one_topic = results.strategies.same[0].case
    for shared in results.strategies.same:
        if shared.case == one_topic and shared.mode == "sorted" and shared.who in PROMISED:
            yield _row(f"{shared.who}, {one_topic}, from nothing", shared.time.median_ns / 1e6, SHARE_MS)
    large = results.replay.large
    of_what = f"{large.members:,} members in {large.groups:,} groups: Python's part of a batch of one second"
    yield _row(of_what, large.batch_ns / 1e6, BATCH_MS)
    if wakes is None:
        yield Row("the whole path", "", "not measured yet", "")
        return
    ours, floor = wakes.ours, wakes.floor
    yield _ratio("heartbeat to assignment", ours.heartbeat, floor.heartbeat, ASSIGNED_TIMES_FLOOR)
    yield _row("heartbeat to assignment, p99", ours.heartbeat.p99_ms, ASSIGNED_MS)
    yield _ratio("arrival to wake", ours.wake, floor.wake, WOKEN_TIMES_FLOOR)
    yield _row("arrival to wake, p99", ours.wake.p99_ms, WOKEN_MS)
    yield _row("decision to queryable in Delta, p99", wakes.queryable.p99_ms, QUERYABLE_MS)


def _ratio(figure: str, ours: Latency, floor: Latency, most: float) -> Row:
    times = ours.p50_ms / floor.p50_ms if floor.p50_ms else 0.0
    kept = _yes(0 < times <= most)
    return Row(f"{figure}, p50 against the floor's", f"<= {most:g} times", f"{digits(times)} times", kept)


def _row(figure: str, found_ms: float, most_ms: float) -> Row:
    return Row(figure, f"<= {most_ms:,g} ms", duration(found_ms * 1e6), _yes(found_ms <= most_ms))


def _yes(kept: bool) -> str:
    return "yes" if kept else "no"
