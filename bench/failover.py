"""The time without decisions after a SIGKILL: of one of two coordinators, and of the only one.

``python -m bench.failover [--kills 5]`` writes `failover.json` and `docs/performance.md`. It takes a quarter of an
hour. A probe sends five heartbeats per second, and each is answered by a decision. The latency with two coordinators is
compared with that of one, on the same broker.
"""

import argparse
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from msgspec import structs

from bench import failover_figures, report
from bench.arguments import add_folder, add_times
from bench.failover_figures import Failover
from bench.latency_figures import Latency, latency_of
from bench.machine import this_machine
from bench.published_assignments import PublishedAssignments
from bench.results import write
from bench.running_system import probed, settings_in
from wakeroll.epoch_ms import now_ms
from wakeroll.errors import WakerollError
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.local_system import LocalSystem
from wakeroll_pipeline.settings import Settings

KILLS = 5
_LIMIT_S = 600.0
_SLICE_S = 0.2


def main(arguments: list[str] | None = None) -> int:
    """Measure and report; return 1 if a coordinator did not decide in time, 130 if it was stopped."""
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=KILLS, help="of each kind (default %(default)s)")
    add_times(parser, "latency")
    add_folder(parser)
    parser.add_argument("--json", type=Path, default=failover_figures.FAILOVER, help="where the figures go")
    given = parser.parse_args(arguments)
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.default_int_handler)
    try:
        found = measure(given.folder, given.kills, given.seconds, given.warmup)
    except KeyboardInterrupt:
        print("stopped; everything is down, and no figures were written", file=sys.stderr)
        return 130
    except WakerollError as problem:
        print(problem, file=sys.stderr)
        return 1
    write(found, given.json)
    if given.json == failover_figures.FAILOVER:
        report.make()
    return 0


def measure(folder: Path, kills: int, seconds: float, warmup_s: float) -> Failover:
    """Measure one coordinator, then two, then kills of one of two, then restarts of the only one."""
    machine = this_machine()
    shutil.rmtree(folder, ignore_errors=True)
    with EmbeddedBroker(folder / "broker") as broker:
        settings = structs.replace(settings_in(folder, "failover", broker), snapshot_interval_ms=60_000)
        with probed(settings) as heard, ExitStack() as stack:
            replicas = {name: _coordinator(structs.replace(settings, replica=name)) for name in ("a", "b")}
            print("one coordinator", flush=True)
            stack.enter_context(replicas["a"])
            one = _latency(heard, replicas["a"], "a", seconds, warmup_s)
            print("two coordinators", flush=True)
            stack.enter_context(replicas["b"])
            two = _latency(heard, replicas["b"], "b", seconds, warmup_s)
            usual_gap_ms = latency_of(heard.gaps_ms()).p99_ms
            gaps_ms = []
            for number in range(kills):
                victim, other = ("a", "b") if number % 2 == 0 else ("b", "a")
                print(f"kill {number + 1} of {kills}: one of two", flush=True)
                gaps_ms.append(_gap(heard, replicas[victim], replicas[other], other))
                replicas[victim].start()
                _until_published(heard, replicas[victim], victim)
            replicas["b"].stop()
            restart_ms = []
            for number in range(kills):
                print(f"kill {number + 1} of {kills}: the only one", flush=True)
                killed_ms = now_ms()
                replicas["a"].kill()
                replicas["a"].start()
                restart_ms.append(_restart(heard, replicas["a"], killed_ms))
    return Failover(machine, seconds, one, two, gaps_ms, usual_gap_ms, restart_ms)


def _coordinator(settings: Settings) -> Child:
    """Describe the process of one coordinator; the first one also writes the tables."""
    system = LocalSystem(settings)
    system.jobs.log = settings.logs / f"run-{settings.replica}.log"
    return system.jobs


def _latency(heard: PublishedAssignments, process: Child, replica: str, seconds: float, warmup_s: float) -> Latency:
    """Wait until a replica publishes, let it warm up, and measure."""
    _until_published(heard, process, replica)
    heard.listen(warmup_s)
    heard.forget()
    heard.listen(seconds)
    return latency_of(heard.latencies_ms())


def _gap(heard: PublishedAssignments, victim: Child, survivor: Child, other: str) -> int:
    """Kill a coordinator; return the longest time between two decisions from a second before the kill on (ms)."""
    heard.forget()
    heard.listen(5.0)
    killed_ms = now_ms()
    victim.kill()
    _until_published(heard, survivor, other, after_ms=killed_ms)
    heard.listen(5.0)
    return max(heard.gaps_ms(since_ms=killed_ms - 1_000), default=0)


def _restart(heard: PublishedAssignments, process: Child, killed_ms: int) -> int:
    """Return the time from the kill of the only coordinator, which was started again, to its next decision (ms).

    Raises:
        ChildFailed: there is none within `_LIMIT_S`, or the process has ended.
    """

    def decided() -> int | None:
        heard.listen(_SLICE_S)
        return heard.next_after(killed_ms)

    process.wait_until(lambda: decided() is not None, _LIMIT_S)
    decided_ms = heard.next_after(killed_ms)
    assert decided_ms is not None, "it was waited for"
    return decided_ms - killed_ms


def _until_published(heard: PublishedAssignments, process: Child, replica: str, after_ms: int = 0) -> None:
    """Read until a replica has published an assignment, after a time by this machine's clock (epoch ms).

    Raises:
        ChildFailed: it has not within `_LIMIT_S`, or its process has ended.
    """
    begin_ms = after_ms or now_ms()

    def has_published() -> bool:
        heard.listen(_SLICE_S)
        return heard.last_of(replica) >= begin_ms

    process.wait_until(has_published, _LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
