"""The budget of each figure, and whether the figure keeps it."""

from collections.abc import Iterator

from msgspec import Struct

from bench.latency_figures import Wakes
from bench.results import Results
from bench.text_tables import digits, duration, table

SHARE_MS = 5.0
PROMISED = ("AVG", "SPREAD", "BALANCED")
"""The default strategy, and the two that Kafka's is compared with."""
TIMES_FLOOR = 2.5
P99_MS = 1_000
QUERYABLE_MS = 10_000
BATCH_MS = 1_000


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
        for figure, budget in (
            ("heartbeat to assignment, p50 against the floor's", f"<= {TIMES_FLOOR:g} times"),
            ("heartbeat to assignment, p99", f"<= {P99_MS:,} ms"),
            ("arrival to wake, p99", f"<= {P99_MS:,} ms"),
            ("decision to queryable in Delta, p99", f"<= {QUERYABLE_MS:,} ms"),
        ):
            yield Row(figure, budget, "not measured yet", "")
        return
    ours, floor = wakes.ours.heartbeat, wakes.floor.heartbeat
    times = ours.p50_ms / floor.p50_ms if floor.p50_ms else 0.0
    yield Row(
        "heartbeat to assignment, p50 against the floor's",
        f"<= {TIMES_FLOOR:g} times",
        f"{digits(times)} times",
        _yes(0 < times <= TIMES_FLOOR),
    )
    yield _row("heartbeat to assignment, p99", ours.p99_ms, P99_MS)
    yield _row("arrival to wake, p99", wakes.ours.wake.p99_ms, P99_MS)
    yield _row("decision to queryable in Delta, p99", wakes.queryable.p99_ms, QUERYABLE_MS)


def _row(figure: str, found_ms: float, most_ms: float) -> Row:
    return Row(figure, f"<= {most_ms:,g} ms", duration(found_ms * 1e6), _yes(found_ms <= most_ms))


def _yes(kept: bool) -> str:
    return "yes" if kept else "no"
