"""docs/performance.md, generated from the figures in bench/*.json; do not edit it."""

from pathlib import Path

from bench import (
    budgets,
    change_figures,
    failover_figures,
    heartbeats,
    holds,
    latency_figures,
    ledger_figures,
    page_figures,
    push_figures,
    replay_speed,
    results,
    strategy_speed,
)
from bench.change_figures import Changes
from bench.failover_figures import Failover
from bench.latency_figures import Wakes
from bench.ledger_figures import Growth
from bench.machine import QUIET_LOAD, Machine
from bench.page_figures import Page
from bench.push_figures import Pushed
from bench.results import Results
from bench.soak import soak_figures
from bench.soak.soak_figures import Soak

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"


def make() -> None:
    """Write the page from the figures that there are."""
    PAGE.write_text(current(), encoding="utf-8")


def current() -> str:
    """Return the page of the figures that there are."""
    return page(
        results.read(),
        latency_figures.read(),
        ledger_figures.read(),
        push_figures.read(),
        change_figures.read(),
        page_figures.read(),
        soak_figures.read(),
        failover_figures.read(),
    )


def page(
    found: Results,
    wakes: Wakes | None = None,
    ledger: Growth | None = None,
    pushed: Pushed | None = None,
    changes: Changes | None = None,
    served: Page | None = None,
    soaked: Soak | None = None,
    failover: Failover | None = None,
) -> str:
    """Return the page; None: these figures were not measured yet."""
    machine = found.machine
    chapters = (
        ("Budgets", budgets.section(found, wakes)),
        ("The whole path", latency_figures.section(wakes)),
        ("Push consumption", push_figures.section(pushed)),
        ("Joins, leaves and crashes", change_figures.section(changes)),
        ("A heartbeat that changes nothing", heartbeats.section(found.heartbeats)),
        ("Sharing queues", strategy_speed.section(found.strategies)),
        ("Replay, and many members", replay_speed.section(found.replay)),
        ("Long polling", holds.section(found.holds)),
        ("The web page", page_figures.section(served)),
        ("A whole ledger", ledger_figures.section(ledger)),
        ("A soak", soak_figures.section(soaked)),
        ("The loss of a coordinator", failover_figures.section(failover)),
    )
    body = "\n".join(f"## {head}\n\n{text}" for head, text in chapters)
    return f"""\
# Performance

This page is generated; do not edit it. `make bench` (a minute or two), `python -m bench.path_latency`,
`python -m bench.push_throughput`, `python -m bench.group_changes`, `python -m bench.page_load`,
`python -m bench.ledger_questions`, `python -m bench.failover` and `make soak ARGS="--publish"` write it, each from its
own figures in `bench/*.json`. A time is the median of its rounds, and the best round is in brackets. A ratio is the
ratio of two medians of one run. No test depends on these figures.

Measured on {machine.measured}: {machine.sentence}; load average at the start {machine.load:g}.
{_warnings(machine, wakes, ledger, pushed, changes, served, soaked, failover)}
{body}"""


def _warnings(
    machine: Machine,
    wakes: Wakes | None,
    ledger: Growth | None,
    pushed: Pushed | None,
    changes: Changes | None,
    served: Page | None,
    soaked: Soak | None,
    failover: Failover | None,
) -> str:
    """Return a warning for each run whose figures do not count."""
    others = (
        ("The run of the whole path", wakes),
        ("The run of push consumption", pushed),
        ("The run of group changes", changes),
        ("The run of the web page", served),
        ("The run of a whole ledger", ledger),
        ("The soak", soaked),
        ("The run of lost coordinators", failover),
    )
    runs = [("The run", machine), *((name, found.machine) for name, found in others if found is not None)]
    return "".join(
        f"\n**{name} does not count**: the load average at its start was {one.load:g}, so other programs were running;"
        f" it must be below {QUIET_LOAD:g}.\n"
        for name, one in runs
        if not one.is_quiet
    )
