"""CPU, memory and delay of `wakeroll serve` with more and more open pages."""

import asyncio
from argparse import Namespace

from msgspec import Struct

from bench.figures import Columns, Latency, digits, table_of, whole_ms
from bench.frame import Bench, Chapter, option, times, whole
from bench.machine import Machine
from bench.page_deployment import CHANGING, MEMBERS, QUEUES, Deployment
from bench.page_readers import ServedPage, listen
from bench.process_usage import CpuMeter, resident_mib
from bench.running_system import settings_in
from wakeroll_pipeline.local.broker import EmbeddedBroker

WARMUP_S = 10.0
"""Before each load: browsers connect one after the other, and receive the whole page first."""
_LIST = "/events/groups"


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


class Page(Struct, frozen=True):
    """What `page_load` found."""

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


_COLUMNS: Columns[Load] = (
    ("open pages", lambda one: f"{one.streams:,}" + (" and one that nobody reads" if one.has_slow else "")),
    ("CPU of a core", lambda one: f"{one.cpu * 100:.0f} %"),
    ("memory", lambda one: f"{one.resident_mib:,.0f} MiB"),
    ("events/s each", lambda one: digits(one.events_per_s) if one.streams else ""),
    ("KiB/s together", lambda one: f"{one.bytes_per_s / 1024:,.0f}" if one.streams else ""),
    ("change shown, p50", lambda one: whole_ms(one.shown.p50_ms) if one.shown.count else ""),
    ("p99", lambda one: whole_ms(one.shown.p99_ms) if one.shown.count else ""),
)


def section(found: Page) -> str:
    """Return the chapter of these figures."""
    return f"""\
`wakeroll serve` follows {found.groups:,} groups with {found.members} members and {found.queues} queues each. A member
sends a heartbeat every 30 s and commits every 5 s what has grown; ticks come once per second. A third of the pages show
the list of groups, a third show one group that a client joins or leaves every second, and the others show other groups.
*Change shown* is the time from the append of the heartbeat of a new member to the event that shows it; an open page
receives at most one event per second. {found.seconds:g} s count for each row. The page was ready
{found.ready_s:.1f} s after its start, with {found.log_records:,} records in the log and no snapshot. At the end it
called itself "{found.state}". No record of the groups was more than {found.late_s:.1f} s late.{_unsent(found)}

{table_of(_COLUMNS, found.loads)}
"""


def _unsent(found: Page) -> str:
    """Return what waits for the reader that never reads; empty if there was none."""
    held = [load.unsent_mib for load in found.loads if load.has_slow]
    return f"\nThe socket of the page that nobody reads held {max(held):.1f} MiB at the end." if held else ""


def measure(given: Namespace) -> Page:
    """Let the page follow a deployment, with no, one and many readers, and with one that does not read besides."""
    folder, loads = given.folder / "load", list[Load]()
    with EmbeddedBroker(folder / "broker", heap="512m", fast_start=False) as broker:
        settings = settings_in(folder, "wakeroll", broker)
        print(f"{given.groups:,} groups form", flush=True)
        with Deployment(settings.connection, given.groups) as deployment:
            log_records = deployment.records
            with ServedPage(settings, folder / "serve.log") as page:
                ready_s = page.until_ready()
                print(f"the page is ready after {ready_s:.1f} s, with {log_records:,} records", flush=True)
                for readers, has_slow in ((0, False), (1, False), (given.streams, False), (given.streams, True)):
                    loads.append(_load(page, deployment, readers, has_slow, given.seconds, given.warmup))
                    print(loads[-1], flush=True)
                    deployment.check()
                    page.check()
                state = str(page.health()["state"])
        late_s = round(deployment.late_s, 2)
    measured = (given.machine, given.groups, QUEUES, MEMBERS, given.seconds, log_records)
    return Page(*measured, round(ready_s, 2), state, late_s, loads)


def _load(
    page: ServedPage, deployment: Deployment, readers: int, has_slow: bool, seconds: float, warmup_s: float
) -> Load:
    async def run() -> Load:
        paths = [_path(number, deployment.names) for number in range(readers)]
        listening = asyncio.create_task(
            listen(page.address, paths, _path(0, []) if has_slow else None, deployment.changes, warmup_s, seconds)
        )
        await asyncio.wait([listening], timeout=warmup_s)
        meter = CpuMeter(page.pid)
        heard = await listening
        return Load(
            readers,
            has_slow,
            cpu=round(meter.share(), 3),
            resident_mib=resident_mib(page.pid),
            events_per_s=round(heard.events / seconds / readers, 2) if readers else 0.0,
            bytes_per_s=round(heard.bytes / seconds),
            shown=heard.latency,
            unsent_mib=round(heard.unsent_bytes / 2**20, 2),
        )

    return asyncio.run(run())


def _path(number: int, names: list[str]) -> str:
    """Return the path of one reader's events: of the changing group, of the list, and of other groups, in turn."""
    kind = number % 3
    return f"{_LIST}/{CHANGING}" if kind == 0 else _LIST if kind == 1 else f"{_LIST}/{names[number % len(names)]}"


BENCH = Bench(
    "page_load",
    "The web page of 1,000 groups, open 100 times.",
    "three minutes",
    measure,
    options=(
        option("--groups", type=whole, default=1_000, help="that the page follows"),
        option("--streams", type=whole, default=100, help="open pages at most"),
        *times("load", seconds=30.0, warmup_s=WARMUP_S),
    ),
    chapters=(Chapter("The web page", section),),
    figures=Page,
    file="page.json",
    run="The run of the web page",
)
