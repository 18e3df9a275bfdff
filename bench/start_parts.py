"""How long `wakeroll run` takes from its start to its first decision, and what takes this time.

``python -m bench.start_parts [--starts 5]`` prints a table. The first start is that of a new deployment. Before each
of the others the process was killed, while a probe sent five heartbeats per second. It takes two minutes.
"""

import argparse
import os
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import structs

from bench.arguments import add_folder
from bench.machine import this_machine
from bench.published_assignments import PublishedAssignments
from bench.running_system import probed, settings_in
from bench.text_tables import digits, table
from bench.timed_run import Parts
from wakeroll.epoch_ms import now_ms
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.settings import Settings

STARTS = 5
_LIMIT_S = 600.0
_SLICE_S = 0.1
_WORK_S = 10.0
"""How long each process decides before it is killed."""


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.start_parts", description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=STARTS, help="after a kill (default %(default)s)")
    parser.add_argument("--spark-properties", type=Path, help="file of further Spark settings")
    add_folder(parser, "bench-start")
    given = parser.parse_args(arguments)
    machine = this_machine()
    shutil.rmtree(given.folder, ignore_errors=True)
    with EmbeddedBroker(given.folder / "broker") as broker:
        settings = settings_in(given.folder, "starts", broker)
        if given.spark_properties:
            settings = structs.replace(settings, spark_properties=str(given.spark_properties.absolute()))
        with probed(settings) as heard:
            starts = [_start(settings, heard, number) for number in range(given.starts + 1)]
    rows = [(part, *_row([one.get(part, 0.0) for one in starts])) for part in starts[-1]]
    print(table(("part", "first start, s", "after a kill, median, s", "all of them, s"), rows))
    print(f"\n{machine.sentence_with_load}")
    return 0


def _start(settings: Settings, heard: PublishedAssignments, number: int) -> Parts:
    """Start the process, wait for its first decision and its report, and kill it; return the parts (s)."""
    report = settings.work_folder / f"start-{number}.json"
    began_s, began_ms = time.monotonic(), now_ms()
    child = Child(
        "wakeroll run",
        [sys.executable, "-m", "bench.timed_run", str(began_s), str(report)],
        log=settings.logs / "run.log",
        env={**os.environ, **settings.environment()},
    )
    with child:

        def has_decided() -> bool:
            heard.listen(_SLICE_S)
            return heard.next_after(began_ms) is not None and report.exists()

        child.wait_until(has_decided, _LIMIT_S)
        decided_ms = heard.next_after(began_ms)
        assert decided_ms is not None, "it was waited for"
        heard.listen(_WORK_S)
        child.kill()
    parts = msgspec.json.decode(report.read_bytes(), type=Parts)
    return {"**start to first decision**": (decided_ms - began_ms) / 1_000, **parts}


def _row(times_s: Sequence[float]) -> tuple[str, str, str]:
    """Return the first time, the median of the others, and all others."""
    first, *again = times_s
    return digits(first), digits(statistics.median(again)), ", ".join(map(digits, again))


if __name__ == "__main__":
    sys.exit(main())
