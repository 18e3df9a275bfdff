"""What tables and checkpoints in an object store cost, compared with a local folder: the same system, in turns.

``python -m bench.storage_costs s3a://bucket/path [--seconds 60]`` prints a table. The store must run already; endpoint
and credentials come from AWS's usual environment variables.
"""

import argparse
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from statistics import median

from msgspec import Struct, structs

from bench.arguments import add_folder, add_times
from bench.decision_reader import Decided, Listener
from bench.latency_figures import Latency
from bench.path_latency import heartbeats_of, orders_of
from bench.running_system import make_topic, running_system, settings_in
from bench.text_tables import digits, table
from wakeroll_pipeline.cli.settings_sources import load
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.runtime.run_status import read_status
from wakeroll_pipeline.settings import Settings

QUEUES = 16
COMMAND_RUNS = 5
_SAMPLE_S = 0.2


class Costs(Struct, frozen=True):
    """Costs of one way to run the system."""

    heartbeat: Latency
    """From a heartbeat to its assignment."""
    batch_ms: dict[str, float]
    """Query -> median duration of its batches (ms)."""
    groups_s: float
    """Median duration of `wakeroll groups` afterwards, from its start to its end (s)."""


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.storage_costs", description=__doc__.splitlines()[0])
    parser.add_argument("uri", help="folder in an object store; a new folder is created in it for each measurement")
    add_times(parser, "place")
    add_folder(parser, "bench-storage")
    given = parser.parse_args(arguments)
    shutil.rmtree(given.folder, ignore_errors=True)
    with EmbeddedBroker(given.folder / "broker") as broker:
        local = settings_in(given.folder, "local", broker)
        uri = f"{given.uri}/{uuid.uuid4().hex[:8]}"
        access = load(os.environ)
        remote = structs.replace(
            settings_in(given.folder, "remote", broker),
            home=uri,
            checkpoints=f"{uri}/checkpoints",
            work=str(given.folder.absolute() / "work"),
            s3_endpoint=access.s3_endpoint,
            s3_region=access.s3_region,
            s3_addressing=access.s3_addressing,
        )
        places = {"a local folder": local, given.uri: remote}
        costs = {name: measure(its, given.seconds, given.warmup) for name, its in places.items()}
        print(as_table("data in", costs))
    return 0


def measure(settings: Settings, seconds: float, warmup_s: float) -> Costs:
    """Run a whole system for some time, then ask its tables."""
    with running_system(settings) as connection:
        make_topic(connection, orders_of(connection), QUEUES)
        with (
            closing(Listener(connection, connection.topics.inbox, settings.inbox_partitions)) as listener,
            sampled_batches(settings) as batches,
        ):
            heartbeat = heartbeats_of(connection, Decided(listener), seconds, warmup_s)
    runs = [_groups_s(settings) for _ in range(COMMAND_RUNS)]
    return Costs(heartbeat, {name: median(its) for name, its in sorted(batches.items())}, median(runs))


@contextmanager
def sampled_batches(settings: Settings) -> Iterator[dict[str, list[int]]]:
    """Collect the durations of batches (ms) during a `with` block: query -> durations."""
    found: dict[str, list[int]] = {}
    last: dict[str, int] = {}
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(_SAMPLE_S):
            status = read_status(settings.work_folder)
            for name, query in (status.queries if status else {}).items():
                if query.batch != last.get(name):
                    last[name] = query.batch
                    found.setdefault(name, []).append(query.batch_ms)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def as_table(head: str, costs: dict[str, Costs]) -> str:
    """Return the costs as a Markdown table, a row for each case; `head` says what its names are."""
    queries = sorted({name for one in costs.values() for name in one.batch_ms})
    heads = [head, "heartbeat p50 ms", "p99 ms", *(f"batch of {name} ms" for name in queries), "`groups` s"]
    rows = (
        [
            name,
            *(digits(value) for value in (one.heartbeat.p50_ms, one.heartbeat.p99_ms)),
            *(digits(one.batch_ms.get(query, 0.0)) for query in queries),
            digits(one.groups_s),
        ]
        for name, one in costs.items()
    )
    return table(heads, rows)


def _groups_s(settings: Settings) -> float:
    began_s = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "wakeroll_pipeline.cli", "groups"],
        env={**os.environ, **settings.environment()},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.monotonic() - began_s


if __name__ == "__main__":
    sys.exit(main())
