"""CPU, memory and delay of `wakeroll serve` with many open pages, and the coordinator's latency beside it.

``python -m bench.page_load [--groups 1000] [--streams 100]`` writes `page.json` and `docs/performance.md`. It takes
nine minutes: first the page with more and more readers, then the whole system with and without the page, in turn.
"""

import argparse
import asyncio
import json
import shutil
import sys
import urllib.request
from pathlib import Path

from msgspec import structs

from bench import page_figures, page_latency, report
from bench.arguments import add_folder, add_times
from bench.machine import this_machine
from bench.page_deployment import CHANGING, MEMBERS, QUEUES, Deployment, DeploymentFailed
from bench.page_figures import Load, Page
from bench.page_readers import StreamFailed, listen
from bench.process_usage import CpuMeter, ProcessEnded, resident_mib
from bench.results import write
from bench.running_system import settings_in
from bench.served_page import ServedPage
from wakeroll.errors import WakerollError
from wakeroll_pipeline.local.broker import EmbeddedBroker

GROUPS = 1_000
STREAMS = 100
SECONDS = 30.0
WARMUP_S = 10.0
"""Before each load: browsers connect one after the other, and receive the whole page first."""
ROUNDS = 3
_LIST = "/events/groups"


def main(arguments: list[str] | None = None) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m bench.page_load", description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=_positive, default=GROUPS, help="that the page follows (%(default)s)")
    parser.add_argument("--streams", type=_positive, default=STREAMS, help="open pages at most (%(default)s)")
    add_times(parser, "load", seconds=SECONDS, warmup_s=WARMUP_S)
    parser.add_argument(
        "--rounds", type=_rounds, default=ROUNDS, help="of the coordinator's latency, each kind; 0: none (%(default)s)"
    )
    add_folder(parser)
    parser.add_argument("--json", type=Path, default=page_figures.PAGE, help="where the figures go (%(default)s)")
    given = parser.parse_args(arguments)
    try:
        found = _measure_both(given)
    except KeyboardInterrupt:
        print("stopped; no figures were written", file=sys.stderr)
        return 130
    except (WakerollError, DeploymentFailed, StreamFailed, ProcessEnded) as problem:
        print(f"not measured: {problem}", file=sys.stderr)
        return 1
    write(found, given.json)
    if given.json == page_figures.PAGE:
        report.make()
    return 0


def _measure_both(given: argparse.Namespace) -> Page:
    shutil.rmtree(given.folder, ignore_errors=True)
    found = measure(given.folder / "load", given.groups, given.streams, given.seconds, given.warmup)
    if given.rounds:
        without, with_page = page_latency.measure(given.folder / "latency", given.rounds, given.seconds / 2)
        found = structs.replace(
            found, rounds=given.rounds, round_s=given.seconds / 2, without=without, with_page=with_page
        )
    return found


def measure(folder: Path, groups: int, streams: int, seconds: float, warmup_s: float) -> Page:
    """Let the page follow a deployment, with no, one and many readers, and with one that does not read besides.

    Raises:
        WakerollError: the broker or the page cannot be started, or has ended.
        DeploymentFailed: the groups cannot be formed, or stopped living.
        StreamFailed: the page refused or ended a stream.
        ProcessEnded: the page's process ended.
    """
    machine = this_machine()
    loads = []
    with EmbeddedBroker(folder / "broker", heap="512m", fast_start=False) as broker:
        settings = settings_in(folder, "wakeroll", broker)
        print(f"{groups:,} groups form", flush=True)
        with Deployment(settings.connection, groups) as deployment:
            log_records = deployment.records
            with ServedPage(settings, folder / "serve.log") as page:
                ready_s = page.until_ready()
                print(f"the page is ready after {ready_s:.1f} s, with {log_records:,} records", flush=True)
                for readers, has_slow in ((0, False), (1, False), (streams, False), (streams, True)):
                    loads.append(_load(page, deployment, readers, has_slow, seconds, warmup_s))
                    print(loads[-1], flush=True)
                    deployment.check()
                    page.check()
                state = _state(page.address)
        late_s = round(deployment.late_s, 2)
    return Page(machine, groups, QUEUES, MEMBERS, seconds, log_records, round(ready_s, 2), state, late_s, loads)


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


def _state(address: str) -> str:
    """Return what the page says of itself."""
    with urllib.request.urlopen(f"{address}api/groups?limit=1", timeout=30) as answer:
        health = json.load(answer)["health"]
    return str(health["state"])


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _rounds(text: str) -> int:
    return 0 if text == "0" else _positive(text)


if __name__ == "__main__":
    raise SystemExit(main())
