"""CPU, memory and delay of `wakeroll serve` with many open pages, and the coordinator's latency beside it.

First the page with more and more readers, then the whole system with and without the page, in turn.
"""

import asyncio
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from msgspec import Struct, structs

from bench.decision_reader import Answer, Ears
from bench.frame import Bench, Chapter, count, option, times, whole
from bench.machine import Machine
from bench.page_deployment import CHANGING, MEMBERS, QUEUES, Deployment
from bench.page_readers import draining, listen
from bench.path_latency import CLIENTS, PER_SECOND, assigned, counted, whole_system
from bench.path_latency import QUEUES as PATH_QUEUES
from bench.process_usage import CpuMeter, resident_mib
from bench.running_system import orders_of, probing, settings_in
from bench.served_page import ServedPage
from bench.text_tables import Columns, digits, table, table_of, whole_ms
from bench.timings import Latency, latency_of
from bench.waiting_consumers import Crowd
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.settings import Settings

WARMUP_S = 10.0
"""Before each load: browsers connect one after the other, and receive the whole page first."""
LATENCY_WARMUP_S = 45.0
"""Before the first round of the coordinator's latency, of heartbeats and of waiting consumers each: for the JVM."""
_PAUSE_S = 2.0
"""At the beginning of each part of a round, that does not count."""
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


class Beside(Struct, frozen=True):
    """The coordinator's latency, with `wakeroll serve` running or not; see `bench.path_latency.Way`."""

    heartbeat: Latency
    wake: Latency


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
    rounds: int = 0
    """Of each of the two; 0: the coordinator's latency was not measured."""
    round_s: float = 0.0
    without: Beside | None = None
    with_page: Beside | None = None


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
{_latency(found)}"""


def _latency(found: Page) -> str:
    if found.without is None or found.with_page is None:
        return "\nThe coordinator's latency with and without the page is not measured yet.\n"
    rows = [
        (
            what,
            f"{one.count:,}",
            whole_ms(one.p50_ms),
            whole_ms(other.p50_ms),
            whole_ms(one.p99_ms),
            whole_ms(other.p99_ms),
        )
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


def measure(given: Namespace) -> Page:
    """Measure the page, then the coordinator's latency beside it."""
    found = _page(given)
    if given.rounds:
        round_s = given.seconds / 2
        without, with_page = _latencies(given.folder / "latency", given.rounds, round_s)
        found = structs.replace(found, rounds=given.rounds, round_s=round_s, without=without, with_page=with_page)
    return found


def _page(given: Namespace) -> Page:
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


class _Answers:
    """The answers of all rounds of one kind."""

    def __init__(self) -> None:
        self.told: list[Answer] = []
        self.woken: list[Answer] = []

    def add_round(self, ears: Ears, crowd: Crowd, seconds: float) -> None:
        self.told += counted(lambda lasts_s: assigned(ears, lasts_s), seconds, _PAUSE_S)
        self.woken += counted(lambda lasts_s: crowd.run(ears, PER_SECOND, lasts_s), seconds, _PAUSE_S)

    def figures(self) -> Beside:
        """Return the latencies; of wakes, only those of pulls that had to wait."""
        return Beside(
            latency_of(answer.latency_ms for answer in self.told),
            latency_of(answer.latency_ms for answer in self.woken if answer.was_held),
        )


def _latencies(folder: Path, rounds: int, seconds: float) -> tuple[Beside, Beside]:
    """Run the whole system, and the page beside it in half of the rounds; return the latencies without and with it."""
    without, with_page = _Answers(), _Answers()
    with EmbeddedBroker(folder / "broker") as broker:
        settings = settings_in(folder, "ours", broker)
        print("the whole system starts", flush=True)
        with whole_system(settings) as (connection, ears), probing(connection, orders_of(connection)):
            crowd = Crowd(connection, orders_of(connection), CLIENTS, PATH_QUEUES)
            _Answers().add_round(ears, crowd, LATENCY_WARMUP_S)
            for number in range(rounds):
                # In changing order, so that what becomes faster or slower meanwhile does so for both.
                for has_page in (number % 2 == 1, number % 2 == 0):
                    print(f"round {number + 1} of {rounds}, {'with' if has_page else 'without'} the page", flush=True)
                    with _open_page(settings, folder / f"serve-{number}.log") if has_page else nullcontext():
                        (with_page if has_page else without).add_round(ears, crowd, seconds)
    return without.figures(), with_page.figures()


@contextmanager
def _open_page(settings: Settings, log: Path) -> Iterator[None]:
    """Serve the page, open once, during a `with` block."""
    with ServedPage(settings, log) as page:
        page.until_ready()
        with draining(page.address, _LIST):
            yield
            page.check()


BENCH = Bench(
    "page_load",
    "The web page of 1,000 groups, open 100 times.",
    "nine minutes",
    measure,
    options=(
        option("--groups", type=whole, default=1_000, help="that the page follows"),
        option("--streams", type=whole, default=100, help="open pages at most"),
        option("--rounds", type=count, default=3, help="of the coordinator's latency, each kind; 0: none"),
        *times("load", seconds=30.0, warmup_s=WARMUP_S),
    ),
    chapters=(Chapter("The web page", section),),
    figures=Page,
    file="page.json",
    run="The run of the web page",
)
