"""docs/performance.md, generated from the figures in bench/*.json; do not edit it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from bench import (
    client_throughput,
    core,
    failover,
    group_changes,
    kafka_watch,
    ledger_questions,
    page_load,
    path_latency,
    sliced_groups,
)
from bench.core import Results
from bench.figures import Latency, digits, duration, table_of
from bench.frame import Bench, read
from bench.machine import QUIET_LOAD
from bench.path_latency import Wakes
from bench.soak import soak_run

BENCHES: tuple[Bench[Any], ...] = (
    path_latency.BENCH,
    client_throughput.PUSH_BENCH,
    client_throughput.BENCH,
    sliced_groups.BENCH,
    group_changes.BENCH,
    core.BENCH,
    page_load.BENCH,
    ledger_questions.BENCH,
    ledger_questions.LONG_BENCH,
    soak_run.BENCH,
    failover.BENCH,
    kafka_watch.BENCH,
)
"""All measurements, in the order of their chapters."""

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"

SHARE_MS = 5.0
PROMISED = ("AVG", "SPREAD", "BALANCED")
"""RocketMQ's default strategy, and the two that Kafka's is compared with."""
BATCH_MS = 150
ASSIGNED_TIMES_FLOOR = 1.6
ASSIGNED_MS = 300
WOKEN_TIMES_FLOOR = 2.0
WOKEN_MS = 350
QUERYABLE_MS = 10_000

Figures = Mapping[str, Any]
"""Name of a measurement -> its figures; one that is missing was not measured yet."""


class Budget(NamedTuple):
    """A budget beside its figure, as people read them."""

    figure: str
    most: str
    found: str
    kept: str
    """yes, no, or "" where nothing was measured."""


def make() -> None:
    """Write the page from the figures that there are."""
    PAGE.write_text(current(), encoding="utf-8")


def current() -> str:
    """Return the page of the figures that there are."""
    found = {bench.name: read(bench.path, bench.figures) for bench in BENCHES if bench.figures}
    return page({name: figures for name, figures in found.items() if figures is not None})


def page(found: Figures) -> str:
    """Return the page; the figures of `core` must be there, because they are a part of the repository."""
    results: Results = found[core.BENCH.name]
    chapters = [("Budgets", _budgets(results, found.get(path_latency.BENCH.name)))]
    chapters += [section for bench in BENCHES if bench.file for section in bench.sections(found.get(bench.name))]
    body = "\n".join(f"## {head}\n\n{text}" for head, text in chapters)
    names = ", ".join(
        f"`{bench.name}`" for bench in BENCHES if bench.file and bench.publishes and bench is not core.BENCH
    )
    intro = (
        "This page is generated; do not edit it. `make bench` (a minute or two), `python -m bench NAME` with the names "
        f'{names}, and `make soak ARGS="--publish"` write it, each from its own figures in `bench/*.json`. A time is '
        "the median of its rounds, and the best round is in brackets. A ratio is the ratio of two medians of one run. "
        "No test depends on these figures."
    )
    return f"""\
# Performance

{fill(intro, 120, break_on_hyphens=False)}

Measured on {results.machine.measured}: {results.machine.sentence_with_load}
{"".join(_warnings(found))}
{body}"""


def _warnings(found: Figures) -> Iterator[str]:
    """Yield a warning for each run whose figures do not count; a soak's claims hold whatever else the machine does."""
    for bench in sorted(BENCHES, key=lambda bench: bench is not core.BENCH):
        figures = found.get(bench.name)
        if bench.run and figures is not None and not figures.machine.is_quiet:
            load = f"the load average at its start was {figures.machine.load:g}"
            yield (
                f"\n**{bench.run} does not count**: {load}, so other programs were running;"
                f" it must be below {QUIET_LOAD:g}.\n"
            )


def _budgets(results: Results, wakes: Wakes | None) -> str:
    columns = (
        ("figure", lambda row: row.figure),
        ("budget", lambda row: row.most),
        ("measured", lambda row: row.found),
        ("met", lambda row: row.kept),
    )
    return table_of(columns, _rows(results, wakes)) + "\n"


def _rows(results: Results, wakes: Wakes | None) -> Iterator[Budget]:
    one_topic = results.strategies.same[0].case
    for shared in results.strategies.same:
        if shared.case == one_topic and shared.mode == "sorted" and shared.who in PROMISED:
            yield _row(f"{shared.who}, {one_topic}, from nothing", shared.time.median_ns / 1e6, SHARE_MS)
    large = results.replay.large
    of_what = f"{large.members:,} members in {large.groups:,} groups: Python's part of a batch of one second"
    yield _row(of_what, large.batch_ns / 1e6, BATCH_MS)
    if wakes is None:
        yield Budget("the whole path", "", "not measured yet", "")
        return
    ours, floor = wakes.ours, wakes.floor
    yield _ratio("heartbeat to assignment", ours.heartbeat, floor.heartbeat, ASSIGNED_TIMES_FLOOR)
    yield _row("heartbeat to assignment, p99", ours.heartbeat.p99_ms, ASSIGNED_MS)
    yield _ratio("arrival to wake", ours.wake, floor.wake, WOKEN_TIMES_FLOOR)
    yield _row("arrival to wake, p99", ours.wake.p99_ms, WOKEN_MS)
    yield _row("decision to queryable in Delta, p99", wakes.queryable.p99_ms, QUERYABLE_MS)


def _ratio(figure: str, ours: Latency, floor: Latency, most: float) -> Budget:
    times = ours.p50_ms / floor.p50_ms if floor.p50_ms else 0.0
    kept = _yes(0 < times <= most)
    return Budget(f"{figure}, p50 against the floor's", f"<= {most:g} times", f"{digits(times)} times", kept)


def _row(figure: str, found_ms: float, most_ms: float) -> Budget:
    return Budget(figure, f"<= {most_ms:,g} ms", duration(found_ms * 1e6), _yes(found_ms <= most_ms))


def _yes(kept: bool) -> str:
    return "yes" if kept else "no"
