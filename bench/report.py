"""docs/performance.md, made from the figures in results.json and wakes.json; nobody writes in it by hand."""

from pathlib import Path

from bench import budgets, heartbeats, holds, latency, replay, results, strategies
from bench.latency import Wakes
from bench.machine import QUIET_LOAD, Machine
from bench.results import Results

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"


def make() -> None:
    """Write the page from the figures that there are."""
    PAGE.write_text(page(results.read(), latency.read()), encoding="utf-8")


def page(found: Results, wakes: Wakes | None) -> str:
    """Return the page."""
    machine = found.machine
    chapters = (
        ("Budgets", budgets.section(found, wakes)),
        ("The whole path", latency.section(wakes)),
        ("A heartbeat that changes nothing", heartbeats.section(found.heartbeats)),
        ("Sharing queues", strategies.section(found.strategies)),
        ("Replay, and many members", replay.section(found.replay)),
        ("Long polling", holds.section(found.holds)),
    )
    body = "\n".join(f"## {head}\n\n{text}" for head, text in chapters)
    return f"""\
# Performance

Made by `make bench` (a minute or two) and `python -m bench.wakes` from `bench/results.json` and `bench/wakes.json`; not
to be edited. A time is the median of its rounds, in brackets the best; a ratio is of two medians of one run. No test
asks for any of them.

Measured on {machine.measured}: {machine.sentence}; load average at the start {machine.load:g}.
{_warnings(machine, wakes)}
{body}"""


def _warnings(machine: Machine, wakes: Wakes | None) -> str:
    """Say which figures do not count."""
    runs = [("The run", machine), *([("The run of the whole path", wakes.machine)] if wakes else [])]
    return "".join(
        f"\n**{name} does not count**: the load average at its start was {one.load:g}, so somebody else was at work; it"
        f" must be below {QUIET_LOAD:g}.\n"
        for name, one in runs
        if not one.is_quiet
    )
