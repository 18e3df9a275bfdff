"""The time without decisions after a SIGKILL: of one of two coordinators, and of the only one.

A probe sends five heartbeats per second, and each is answered by a decision. The latency with two coordinators is
compared with that of one, on the same broker.
"""

import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack, closing

from msgspec import Struct, structs

from bench.decision_reader import PublishedDecisions
from bench.figures import Latency, latency_of, percentiles, table
from bench.frame import Bench, Chapter, option, times, whole
from bench.machine import Machine
from bench.running_system import make_topic, orders_of, probing, settings_in
from wakeroll.epoch_ms import now_ms
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.local_system import LocalSystem
from wakeroll_pipeline.settings import Settings

_LIMIT_S = 600.0
_AROUND_S = 5.0
"""How long coordinators decide before a kill and after it (s)."""


class Failover(Struct, frozen=True):
    """What `failover` found."""

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


def section(found: Failover) -> str:
    """Return the chapter of these figures."""
    rows = [
        (coordinators, f"{one.count:,}", *percentiles(one))
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


def measure(given: Namespace) -> Failover:
    """Measure one coordinator, then two, then kills of one of two, then restarts of the only one."""
    with EmbeddedBroker(given.folder / "broker") as broker, ExitStack() as stack:
        settings = structs.replace(settings_in(given.folder, "failover", broker), snapshot_interval_ms=60_000)
        connection = settings.connection
        ensure_topics(connection, partitions=settings.partitions, inbox_partitions=settings.inbox_partitions)
        make_topic(connection, orders_of(connection), 4)
        heard = stack.enter_context(closing(PublishedDecisions(connection, settings.partitions)))
        heard.start()
        stack.enter_context(LocalSystem(settings).observer)
        stack.enter_context(probing(connection, orders_of(connection)))
        replicas = {name: _coordinator(structs.replace(settings, replica=name)) for name in ("a", "b")}
        latencies = []
        for name, text in (("a", "one coordinator"), ("b", "two coordinators")):
            print(text, flush=True)
            stack.enter_context(replicas[name])
            _until_published(heard, replicas[name], name)
            time.sleep(given.warmup)
            began_ms, _ = now_ms(), heard.take_latencies_ms()
            time.sleep(given.seconds)
            latencies.append(latency_of(heard.take_latencies_ms()))
        usual_gap_ms = latency_of(heard.gaps_ms(began_ms)).p99_ms
        gaps_ms = []
        for number in range(given.kills):
            victim, other = ("a", "b") if number % 2 == 0 else ("b", "a")
            print(f"kill {number + 1} of {given.kills}: one of two", flush=True)
            gaps_ms.append(_gap(heard, replicas[victim], replicas[other], other))
            replicas[victim].start()
            _until_published(heard, replicas[victim], victim)
        replicas["b"].stop()
        restart_ms = []
        for number in range(given.kills):
            print(f"kill {number + 1} of {given.kills}: the only one", flush=True)
            restart_ms.append(_restart(heard, replicas["a"]))
    one, two = latencies
    return Failover(given.machine, given.seconds, one, two, gaps_ms, usual_gap_ms, restart_ms)


def _coordinator(settings: Settings) -> Child:
    """Describe the process of one coordinator; the first one also writes the tables."""
    process = LocalSystem(settings).jobs
    process.log = settings.logs / f"run-{settings.replica}.log"
    return process


def _gap(heard: PublishedDecisions, victim: Child, survivor: Child, other: str) -> int:
    """Kill a coordinator; return the longest time between two decisions from a second before the kill on (ms)."""
    time.sleep(_AROUND_S)
    killed_ms = now_ms()
    victim.kill()
    _until_published(heard, survivor, other, after_ms=killed_ms)
    time.sleep(_AROUND_S)
    return max(heard.gaps_ms(killed_ms - 1_000), default=0)


def _restart(heard: PublishedDecisions, process: Child) -> int:
    """Kill the only coordinator, and start it again; return the time until its next decision (ms)."""
    killed_ms = now_ms()
    process.kill()
    process.start()
    process.wait_until(lambda: heard.next_after(killed_ms) is not None, _LIMIT_S)
    decided_ms = heard.next_after(killed_ms)
    assert decided_ms is not None, "it was waited for"
    return decided_ms - killed_ms


def _until_published(heard: PublishedDecisions, process: Child, replica: str, after_ms: int = 0) -> None:
    """Wait until a replica has published a decision, after a time by this machine's clock (epoch ms; 0: now)."""
    begin_ms = after_ms or now_ms()
    process.wait_until(lambda: heard.last_ms(replica) >= begin_ms, _LIMIT_S)


def _listed(times_ms: Sequence[int]) -> str:
    return ", ".join(f"{time_ms:,}" for time_ms in sorted(times_ms))


BENCH = Bench(
    "failover",
    "A killed coordinator, alone and with a replica.",
    "a quarter of an hour",
    measure,
    options=(option("--kills", type=whole, default=5, help="of each kind"), *times("latency")),
    chapters=(Chapter("The loss of a coordinator", section),),
    figures=Failover,
    file="failover.json",
    run="The run of lost coordinators",
)
