"""A soak from its start to its claims: the whole system for some minutes with faults.

The long one: ``make soak ARGS="--minutes 120 --clients 500 --per-process 50 --every 60 --publish"``.
"""

import heapq
import itertools
import json
import os
import random
import subprocess
import sys
import time
from argparse import ArgumentTypeError, Namespace
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from msgspec import Struct, structs

from bench.consumer_logs import ConsumerLogs
from bench.figures import Columns, Latency, latency_of, table, table_of, whole_ms
from bench.frame import FIGURES, Bench, Chapter, NotMeasured, option, whole
from bench.machine import Machine
from bench.page_readers import ServedPage
from bench.running_system import QueueId
from bench.soak.soak_faults import SUSPENDED_S, in_turn
from bench.soak.soak_system import OBSERVERS, PAGE, REPLICAS, WATCH, Shape, SoakSystem, coordinator
from wakeroll.errors import WakerollError


class Window(Struct, frozen=True):
    """A part of a soak."""

    until_s: float
    """End of the window, since the first minute began."""
    clients: int
    """At the end."""
    load: float
    """Load average of the last minute, at the end."""
    heartbeat: Latency
    """From a heartbeat's append to that of its assignment, by the broker's clock."""
    memory_mib: dict[str, float]
    """Process -> memory at the end, with its children; shared pages are divided among those that share them."""
    home_files: int
    home_mib: float
    """Files and size of the tables."""
    checkpoint_files: int
    checkpoint_mib: float
    delivery: Latency = Latency(0, 0, 0)
    """From the time of a message to its handling, of first deliveries."""
    repeated: int = 0
    """Messages that were handled again."""

    @property
    def sentence(self) -> str:
        """What is known of the window while the soak runs: deliveries are judged at its end."""
        memory = ", ".join(f"{name} {mib:,.0f}" for name, mib in self.memory_mib.items())
        heartbeat, files = self.heartbeat, self.home_files + self.checkpoint_files
        return (
            f"{self.clients} clients, load {self.load:.1f}; heartbeat to assignment p50 {heartbeat.p50_ms:,.0f} ms, "
            f"p99 {heartbeat.p99_ms:,.0f} ms; {files:,} files; MiB: {memory}"
        )


class Occurred(Struct, frozen=True):
    """A fault."""

    at_s: float
    """Since the first minute began."""
    kind: str
    detail: str


class Claim(Struct, frozen=True):
    """Something that a soak must show."""

    what: str
    holds: bool
    found: str


class Soak(Struct, frozen=True):
    """What `soak` found."""

    machine: Machine
    minutes: float
    every_s: float
    """Time between two faults."""
    seed: int
    clients: int
    groups: int
    queues: int
    """At the end."""
    per_second: int
    """Messages of all topics together."""
    ready_s: float
    """From the start of the first process until every queue had an owner."""
    windows: list[Window]
    faults: list[Occurred]
    stored: int
    """Messages in the topics."""
    deliveries: int
    repeated: int
    rebalances: dict[str, int]
    """Trigger -> number."""
    claims: list[Claim]
    per_process: int = 1
    """Clients of a process; they share its connections to Kafka."""
    cut: int = 0
    """Groups whose queues are cut into slices."""

    @property
    def broken(self) -> list[Claim]:
        """The claims that do not hold."""
        return [claim for claim in self.claims if not claim.holds]


_WINDOW_COLUMNS: Columns[Window] = (
    ("until, min", lambda one: f"{one.until_s / 60:.1f}"),
    ("clients", lambda one: f"{one.clients:,}"),
    ("load", lambda one: f"{one.load:.1f}"),
    ("assignment p50", lambda one: whole_ms(one.heartbeat.p50_ms)),
    ("p99", lambda one: whole_ms(one.heartbeat.p99_ms)),
    ("delivery p50", lambda one: whole_ms(one.delivery.p50_ms)),
    ("p99", lambda one: whole_ms(one.delivery.p99_ms)),
    ("repeated", lambda one: f"{one.repeated:,}"),
    ("files of tables", lambda one: f"{one.home_files:,}"),
    ("MiB", lambda one: f"{one.home_mib:,.1f}"),
    ("files of checkpoints", lambda one: f"{one.checkpoint_files:,}"),
    ("MiB", lambda one: f"{one.checkpoint_mib:,.1f}"),
)
_CLAIMS: Columns[Claim] = (
    ("claim", lambda one: one.what),
    ("found", lambda one: one.found),
    ("holds", lambda one: "yes" if one.holds else "**no**"),
)


def section(found: Soak) -> str:
    """Return the chapter of these figures."""
    kinds = dict.fromkeys(one.kind for one in found.faults)
    counts = {kind: sum(one.kind == kind for one in found.faults) for kind in kinds}
    faults = ", ".join(f"{kind} ({count})" for kind, count in sorted(counts.items()))
    rebalances = ", ".join(f"{trigger} {count:,}" for trigger, count in found.rebalances.items())
    cut = (
        f" The queues\nof {found.cut} of these groups are cut into slices. `watch-kafka` records two groups of "
        "Kafka's own with three\nmembers each."
        if found.cut
        else ""
    )
    names = list(found.windows[-1].memory_mib) if found.windows else []
    memory = [
        (f"{one.until_s / 60:.1f}", *(f"{one.memory_mib.get(name, 0):,.0f}" for name in names)) for one in found.windows
    ]
    return f"""\
`make soak` runs the whole system for {found.minutes:g} minutes on one machine: a broker, two coordinators
(`run --replica a` and `b`, which also record), two observers, `serve`, a producer of {found.per_second} messages per
second, and {found.clients} consumers of the SDK in {found.groups} groups, with {found.queues} queues at the end.{cut}
{found.per_process} consumers run in each process, and share its Kafka connections: one producer, two consumers that
read and one for queries. With connections of its own, each would have nine threads of librdkafka.
A fault begins every {found.every_s:g} s; the order is that of seed {found.seed}. Everything was ready
{found.ready_s:.0f} s after the start. Faults: {faults}. Rebalances by trigger: {rebalances}.

{table_of(_CLAIMS, found.claims)}

*Assignment* is the time from a heartbeat's append to that of its assignment, by the broker's clock. *Delivery* is the
time from a message's timestamp to its handling, including the times in which a killed or suspended consumer still
owned its queue (sessions of 15 s). Of {found.stored:,} messages, {found.repeated:,} deliveries were repetitions.

{table_of(_WINDOW_COLUMNS, found.windows)}

Memory in MiB; shared pages are divided among the processes that share them:

{table(("until, min", *names), memory)}

Measured on {found.machine.measured} with {found.machine.sentence_with_load}
"""


CONSUMED_S = 300.0
"""How long consumers have to handle everything after the last fault (s)."""
_WINDOWS = 12
_SHORTEST_WINDOW_S = 30.0
_POLL_S = 0.1
_PAGE_S = 120.0
_WATCH_S = 120.0
_NS = 1_000_000_000


class _Agenda:
    """What is due when, by the monotonic clock (s)."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def add(self, at_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at_s, next(self._numbers), action))

    def do_what_is_due(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()


def measure(given: Namespace) -> Soak:
    """Run the system with a fault every so many seconds; return the figures and claims."""
    shape = Shape(given.clients, given.per_process, given.per_second)
    minutes, every_s = given.minutes, given.every
    seed = random.randrange(10**6) if given.seed is None else given.seed
    chance, began_s = random.Random(seed), time.monotonic()
    with SoakSystem(given.folder, shape) as system:
        ready_s = time.monotonic() - began_s
        print(f"ready after {ready_s:.0f} s; seed {seed}", flush=True)
        start_ns = time.monotonic_ns()
        windows, faults = _with_faults(system, minutes * 60, every_s, chance)
        system.calm_down()
        missing = system.until_consumed(CONSUMED_S)
        claims = [_page(system), _watch(system)]
        system.stop_all()
        ends = system.ends()
        system.read_handled()
        ended = list(system.processes.ended)
        grants, triggers = system.decisions.grants(), system.decisions.triggers()
    print("all processes have stopped; judging", flush=True)
    handled = system.judged()
    claims = [
        _lost(missing),
        _owners(handled.two_owners(grants, shape.cut)),
        Claim("every process runs until it is stopped, and then ends with 0", not ended, "; ".join(ended) or "they do"),
        *claims,
        *(_command(system, command) for command in ("replay", "check")),
    ]
    repeats = handled.repeats()
    return Soak(
        given.machine, minutes, every_s, seed, shape.clients, len(shape.groups), len(system.queues), shape.per_second,
        round(ready_s, 1), _with_deliveries(windows, handled, repeats, start_ns), faults,
        stored=sum(ends.values()),
        deliveries=sum(map(len, handled.deliveries.values())),
        repeated=len(repeats),
        rebalances=triggers,
        claims=[_published(claim) for claim in claims],
        per_process=shape.per_process,
        cut=len(shape.cut),
    )  # fmt: skip


def _with_faults(
    system: SoakSystem, seconds: float, every_s: float, chance: random.Random
) -> tuple[list[Window], list[Occurred]]:
    windows: list[Window] = []
    faults: list[Occurred] = []
    start_s = time.monotonic()
    agenda, turns = _Agenda(), in_turn(chance)
    system.decisions.take_latencies_ms()

    def fault() -> None:
        at_s, kind = time.monotonic() - start_s, next(turns)
        name = kind.__name__.replace("_", " ")
        try:
            done = kind(system, chance)
        except WakerollError as problem:  # an operator's request that nobody answered in time is no broken claim
            faults.append(Occurred(round(at_s, 1), name, f"failed: {problem}"))
        else:
            faults.append(Occurred(round(at_s, 1), name, done.detail))
            if done.end is not None:
                agenda.add(time.monotonic() + SUSPENDED_S, done.end)
        print(f"{at_s:5.0f} s  {name}: {faults[-1].detail}", flush=True)

    def window() -> None:
        windows.append(_window(system, time.monotonic() - start_s))
        print(f"{windows[-1].until_s:5.0f} s  {windows[-1].sentence}", flush=True)

    for number in range(1, int(seconds / every_s - 0.5) + 1):
        agenda.add(start_s + number * every_s, fault)
    length_s = max(seconds / _WINDOWS, _SHORTEST_WINDOW_S)
    for number in range(1, max(int(seconds / length_s), 1) + 1):
        agenda.add(start_s + min(number * length_s, seconds), window)
    while time.monotonic() < start_s + seconds:
        agenda.do_what_is_due()
        time.sleep(_POLL_S)
    agenda.do_what_is_due()
    return windows, faults


def _window(system: SoakSystem, until_s: float) -> Window:
    system.read_handled()
    names = (*map(coordinator, REPLICAS), *OBSERVERS, PAGE, WATCH)
    memory = {name: _memory_mib({system.processes.children[name].pid}) for name in names}
    consumers = {system.processes.children[name].pid for name in system.consumer_processes}
    memory["each consumer"] = round(_memory_mib(consumers) / max(system.clients, 1), 1)
    memory["this process"] = _memory_mib({os.getpgid(0)})
    home, checkpoints = _files(system.settings.warehouse.path), _files(system.settings.checkpoints_folder.path)
    return Window(
        round(until_s, 1), system.clients, round(os.getloadavg()[0], 1),
        latency_of(system.decisions.take_latencies_ms()), memory, *home, *checkpoints,
    )  # fmt: skip


def _with_deliveries(windows: list[Window], handled: ConsumerLogs, repeats: list[int], start_ns: int) -> list[Window]:
    """Complete the windows with what the consumers' logs show; what comes after the last one is left out."""
    bounds = [start_ns, *(start_ns + round(one.until_s * _NS) for one in windows)]
    delays = handled.delays_ms(bounds)
    return [
        structs.replace(
            one,
            delivery=latency_of(delays[number]),
            repeated=bisect_left(repeats, bounds[number + 1]) - bisect_left(repeats, bounds[number]),
        )
        for number, one in enumerate(windows)
    ]


def _published(claim: Claim) -> Claim:
    """Return a claim without the folder of this machine in its paths."""
    return structs.replace(claim, found=claim.found.replace(f"{Path.cwd()}/", ""))


def _lost(missing: dict[QueueId, int]) -> Claim:
    found = f"{sum(missing.values()):,} messages"
    if missing:
        found += " of " + ", ".join(f"{topic}-{number}" for topic, number in list(missing)[:5])
    return Claim(
        f"no message is lost: each is handled within {CONSUMED_S:g} s after the last fault", not missing, found
    )


def _owners(queues: list[QueueId]) -> Claim:
    found = f"{len(queues)} queues" + "".join(f" {topic}-{number}" for topic, number in queues[:5])
    return Claim("no queue ever had two owners, by the consumers' own logs", not queues, found)


def _page(system: SoakSystem) -> Claim:
    """Wait until the page has caught up; it computes the same decisions as the coordinators."""
    page = system.processes.children[PAGE]
    assert isinstance(page, ServedPage)
    page.until_ready()
    health, deadline_s = {"state": "unknown"}, time.monotonic() + _PAGE_S
    while health["state"] != "live" and time.monotonic() < deadline_s:
        with suppress(OSError, NotMeasured):
            health = page.health()
        time.sleep(_POLL_S)
    holds = health["state"] == "live"
    found = "live" if holds else json.dumps(health)
    return Claim("the page is live: it computes the decisions that are published", holds, found)


def _watch(system: SoakSystem) -> Claim:
    """Wait until the tables of the watch have caught up with Kafka's own groups, which have no new messages."""
    deadline_s = time.monotonic() + _WATCH_S
    while (found := system.watch_differs()) and time.monotonic() < deadline_s:
        time.sleep(1)
    claim = "`watch-kafka` has the owners and the committed offsets of Kafka's own groups on record"
    return Claim(claim, not found, "; ".join(found[:3]) or "as Kafka describes them")


def _command(system: SoakSystem, command: str) -> Claim:
    """Ask a question about the tables, which must have a good answer."""
    argv = [sys.executable, "-m", "wakeroll_pipeline.cli", command, "--home", system.settings.home]
    environment = {**os.environ, **system.settings.environment()}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    said = (done.stdout + done.stderr).strip().splitlines()
    return Claim(f"`wakeroll {command}` of the tables ends with 0", done.returncode == 0, said[-1] if said else "")


def _memory_mib(groups: set[int]) -> float:
    """Return the proportional memory of all processes in these process groups (MiB)."""
    total = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if os.getpgid(process.pid) in groups:
                total += process.memory_full_info().pss
    return round(total / 2**20, 1)


def _files(folder: Path) -> tuple[int, float]:
    """Return the number of files below a folder and their size (MiB); those that are deleted meanwhile are left out."""
    count, size = 0, 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file():
                count, size = count + 1, size + path.stat().st_size
    return count, round(size / 2**20, 1)


def _number(text: str) -> float:
    value = float(text)
    if not 0 < value <= 10_000:
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


BENCH = Bench(
    "soak",
    "The whole system with real consumers and a fault every 30 s: `make soak`.",
    "five minutes",
    measure,
    options=(
        option("--minutes", type=_number, default=5.0, help="with faults"),
        option("--every", type=_number, default=30.0, help="seconds between two faults"),
        option("--clients", type=whole, default=100, help="consumers at the start"),
        option("--per-process", type=whole, default=10, help="consumers in one process"),
        option("--per-second", type=whole, default=200, help="messages of all topics"),
        option("--seed", type=int, default=None, help="of the faults' order; by chance"),
        option("--publish", action="store_const", dest="json", const=FIGURES / "soak.json", help="write the page too"),
    ),
    chapters=(Chapter("A soak", section),),
    figures=Soak,
    file="soak.json",
    problems=lambda found: [f"the claim does not hold: {one.what}; {one.found}" for one in found.broken],
    publishes=False,
)
