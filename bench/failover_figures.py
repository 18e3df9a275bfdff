"""The figures of the loss of a coordinator, and their chapter."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from bench.latency_figures import Latency
from bench.machine import Machine
from bench.text_tables import table

FAILOVER = Path(__file__).parent / "failover.json"


class Failover(Struct, frozen=True):
    """What `python -m bench.failover` found."""

    machine: Machine
    seconds: float
    one: Latency
    """From a heartbeat's append to its assignment's, with one coordinator."""
    two: Latency
    """The same with two: of each assignment, the first one counts."""
    gaps_ms: list[int]
    """Longest times between two decisions around each kill of one of two."""
    usual_gap_ms: float
    """99 of 100 times between two decisions are shorter, with two coordinators that nobody kills."""
    restart_ms: list[int]
    """Times from each kill of the only coordinator, started again at once, to the next decision."""


def section(found: Failover | None) -> str:
    """Return the chapter of these figures."""
    if found is None:
        return "Not measured yet: `python -m bench.failover`, on a quiet machine, takes a quarter of an hour.\n"
    rows = [
        (coordinators, f"{one.count:,}", f"{one.p50_ms:,.0f} ms", f"{one.p99_ms:,.0f} ms")
        for coordinators, one in (("one", found.one), ("two", found.two))
    ]
    return f"""\
A probe sends five heartbeats per second, each of a new instance of one client, so each requires a decision. The
broker, the observer, all coordinators and `record` share one machine. Each latency is of {found.seconds:g} s.

{table(("coordinators", "assignments", "heartbeat to assignment, p50", "p99"), rows)}

| time without decisions | ms, each kill |
| --- | --- |
| without a kill, with two coordinators: 99 of 100 times are shorter | {found.usual_gap_ms:,.0f} |
| SIGKILL of one of two: the longest time around it | {_listed(found.gaps_ms)} |
| SIGKILL of the only one, which is started again at once | {_listed(found.restart_ms)} |

Measured on {found.machine.measured} with {found.machine.sentence}.
"""


def _listed(times_ms: Sequence[int]) -> str:
    return ", ".join(f"{time_ms:,}" for time_ms in sorted(times_ms))
