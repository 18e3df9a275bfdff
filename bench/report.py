"""docs/performance.md, generated from the figures in bench/*.json; do not edit it."""

from pathlib import Path
from typing import NamedTuple

from bench import (
    aged_figures,
    budgets,
    change_figures,
    failover_figures,
    growth_figures,
    heartbeats,
    holds,
    latency_figures,
    ledger_figures,
    long_figures,
    moment_figures,
    page_figures,
    push_figures,
    replay_speed,
    results,
    strategy_speed,
)
from bench.aged_figures import Aged
from bench.change_figures import Changes
from bench.failover_figures import Failover
from bench.growth_figures import LedgerGrowth
from bench.latency_figures import Wakes
from bench.ledger_figures import Growth
from bench.long_figures import Long
from bench.machine import QUIET_LOAD, Machine
from bench.moment_figures import Moments
from bench.page_figures import Page
from bench.push_figures import Pushed
from bench.results import Results
from bench.soak import soak_figures
from bench.soak.soak_figures import Soak

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"


class Others(NamedTuple):
    """The figures of the runs that need a broker; None: not measured yet."""

    wakes: Wakes | None = None
    ledger: Growth | None = None
    pushed: Pushed | None = None
    changes: Changes | None = None
    served: Page | None = None
    soaked: Soak | None = None
    failover: Failover | None = None
    moments: Moments | None = None
    long: Long | None = None
    growth: LedgerGrowth | None = None
    aged: Aged | None = None


def make() -> None:
    """Write the page from the figures that there are."""
    PAGE.write_text(current(), encoding="utf-8")


def current() -> str:
    """Return the page of the figures that there are."""
    found = results.read(results.RESULTS, Results)
    assert found is not None, "they are a part of the repository"
    return page(
        found,
        Others(
            results.read(latency_figures.WAKES, Wakes),
            results.read(ledger_figures.LEDGER, Growth),
            results.read(push_figures.PUSHED, Pushed),
            results.read(change_figures.CHANGES, Changes),
            results.read(page_figures.PAGE, Page),
            results.read(soak_figures.SOAK, Soak),
            results.read(failover_figures.FAILOVER, Failover),
            results.read(moment_figures.MOMENTS, Moments),
            results.read(long_figures.LONG, Long),
            results.read(growth_figures.GROWTH, LedgerGrowth),
            results.read(aged_figures.AGED, Aged),
        ),
    )


def page(found: Results, others: Others = Others()) -> str:  # noqa: B008
    """Return the page."""
    machine = found.machine
    chapters = (
        ("Budgets", budgets.section(found, others.wakes)),
        ("The whole path", latency_figures.section(others.wakes)),
        ("Push consumption", push_figures.section(others.pushed)),
        ("Joins, leaves and crashes", change_figures.section(others.changes)),
        ("A heartbeat that changes nothing", heartbeats.section(found.heartbeats)),
        ("Sharing queues", strategy_speed.section(found.strategies)),
        ("Replay, and many members", replay_speed.section(found.replay)),
        ("Long polling", holds.section(found.holds)),
        ("The web page", page_figures.section(others.served)),
        ("A whole ledger", ledger_figures.section(others.ledger)),
        ("Ledgers of millions of events", long_figures.section(others.long)),
        ("The growth of a ledger", growth_figures.section(others.growth)),
        ("Questions on a ledger of 30 days", aged_figures.section(others.aged)),
        ("The state at any moment", moment_figures.section(others.moments)),
        ("A soak", soak_figures.section(others.soaked)),
        ("The loss of a coordinator", failover_figures.section(others.failover)),
    )
    body = "\n".join(f"## {head}\n\n{text}" for head, text in chapters)
    return f"""\
# Performance

This page is generated; do not edit it. `make bench` (a minute or two), `python -m bench.path_latency`,
`python -m bench.push_throughput`, `python -m bench.group_changes`, `python -m bench.page_load`,
`python -m bench.ledger_questions`, `python -m bench.long_ledgers`, `python -m bench.ledger_growth`,
`python -m bench.aged_ledgers`, `python -m bench.any_moment`, `python -m bench.failover` and
`make soak ARGS="--publish"` write it, each from its own figures in `bench/*.json`. A time is the median of
its rounds, and the best round is in brackets. A ratio is the ratio of two medians of one run. No test depends on these
figures.

Measured on {machine.measured}: {machine.sentence_with_load}
{_warnings(machine, others)}
{body}"""


def _warnings(machine: Machine, others: Others) -> str:
    """Return a warning for each run whose figures do not count; a soak's claims hold whatever else the machine does."""
    runs = (
        ("The run of the whole path", others.wakes),
        ("The run of push consumption", others.pushed),
        ("The run of group changes", others.changes),
        ("The run of the web page", others.served),
        ("The run of a whole ledger", others.ledger),
        ("The run of ledgers of some age", others.aged),
        ("The run of any moment", others.moments),
        ("The run of lost coordinators", others.failover),
    )
    machines = [("The run", machine), *((name, found.machine) for name, found in runs if found is not None)]
    return "".join(
        f"\n**{name} does not count**: the load average at its start was {one.load:g}, so other programs were running;"
        f" it must be below {QUIET_LOAD:g}.\n"
        for name, one in machines
        if not one.is_quiet
    )
