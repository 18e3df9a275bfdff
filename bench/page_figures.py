"""The figures of the web page, and their chapter."""

from pathlib import Path

from msgspec import Struct

from bench.latency_figures import Latency
from bench.machine import Machine
from bench.text_tables import digits, table

PAGE = Path(__file__).parent / "page.json"


class Load(Struct, frozen=True):
    """`wakeroll serve` with so many open pages."""

    streams: int
    """Event streams that are read."""
    has_slow: bool
    """Whether one more stream is open that nobody reads."""
    cpu: float
    """Share of one core."""
    resident_mib: float
    """At the end."""
    events_per_s: float
    """Of each stream."""
    bytes_per_s: float
    """Of all streams together."""
    shown: Latency
    """From the append of a heartbeat of a new member to the event that shows the member."""
    unsent_mib: float = 0.0
    """Size of what the server's socket holds at the end for the reader that never reads."""


class Beside(Struct, frozen=True):
    """The coordinator's latency, with `wakeroll serve` running or not; see `bench.latency_figures.Way`."""

    heartbeat: Latency
    wake: Latency


class Page(Struct, frozen=True):
    """What `python -m bench.page_load` found."""

    machine: Machine
    groups: int
    queues: int
    """Of each group."""
    members: int
    """Of each group."""
    seconds: float
    """That count, of each load."""
    log_records: int
    """Control records that existed when `serve` was started."""
    ready_s: float
    """From the start of the process until the page shows the present."""
    state: str
    """What the page says of itself at the end, such as ``live``."""
    late_s: float
    """Largest delay of the simulated deployment (s): with seconds of it, the figures are not those of this traffic."""
    loads: list[Load]
    rounds: int = 0
    """Of each of the two; 0: the coordinator's latency was not measured."""
    round_s: float = 0.0
    without: Beside | None = None
    with_page: Beside | None = None


def section(found: Page | None) -> str:
    """Return the chapter of these figures."""
    if found is None:
        return "Not measured yet: `python -m bench.page_load`, on a quiet machine, takes nine minutes.\n"
    rows = [
        (
            f"{load.streams:,}" + (" and one that nobody reads" if load.has_slow else ""),
            f"{load.cpu * 100:.0f} %",
            f"{load.resident_mib:,.0f} MiB",
            digits(load.events_per_s) if load.streams else "",
            f"{load.bytes_per_s / 1024:,.0f}" if load.streams else "",
            _ms(load.shown.p50_ms) if load.shown.count else "",
            _ms(load.shown.p99_ms) if load.shown.count else "",
        )
        for load in found.loads
    ]
    heads = ("open pages", "CPU of a core", "memory", "events/s each", "KiB/s together", "change shown, p50", "p99")
    return f"""\
`wakeroll serve` follows {found.groups:,} groups with {found.members} members and {found.queues} queues each. A member
sends a heartbeat every 30 s and commits every 5 s what has grown; ticks come once per second. A third of the pages show
the list of groups, a third show one group that a client joins or leaves every second, and the others show other groups.
*Change shown* is the time from the append of the heartbeat of a new member to the event that shows it; an open page
receives at most one event per second. {found.seconds:g} s count for each row. The page was ready
{found.ready_s:.1f} s after its start, with {found.log_records:,} records in the log and no snapshot. At the end it
called itself "{found.state}". No record of the groups was more than {found.late_s:.1f} s late.{_unsent(found)}

{table(heads, rows)}
{_latency(found)}"""


def _latency(found: Page) -> str:
    if found.without is None or found.with_page is None:
        return "\nThe coordinator's latency with and without the page is not measured yet.\n"
    rows = [
        (what, _count(one), _ms(one.p50_ms), _ms(other.p50_ms), _ms(one.p99_ms), _ms(other.p99_ms))
        for what, one, other in (
            ("a heartbeat's append to its assignment's", found.without.heartbeat, found.with_page.heartbeat),
            ("an arrival's append to its wake's", found.without.wake, found.with_page.wake),
        )
    ]
    heads = ("from ... to ...", "answers without", "p50 without", "p50 with", "p99 without", "p99 with")
    return f"""
The coordinator's latency without and with a running `wakeroll serve` that follows the same topics for one open page:
the whole system of `wakeroll run` on one machine, {found.rounds} rounds of {found.round_s:g} s of each kind in turn.

{table(heads, rows)}
"""


def _unsent(found: Page) -> str:
    """Return what waits for the reader that never reads; empty if there was none."""
    held = [load.unsent_mib for load in found.loads if load.has_slow]
    return f"\nThe socket of the page that nobody reads held {max(held):.1f} MiB at the end." if held else ""


def _count(one: Latency) -> str:
    return f"{one.count:,}"


def _ms(value: float) -> str:
    return f"{value:,.0f} ms"
