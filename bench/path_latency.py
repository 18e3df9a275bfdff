"""The latency of the whole path, with a real broker and the real jobs, compared with a Spark that only copies records.

``python -m bench.path_latency [--seconds 60]`` writes `wakes.json` and `docs/performance.md`. It takes twelve minutes:
first the floor, then wakeroll, on the same broker, with the same Spark settings and with `record` running.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from bench import latency_figures, report
from bench.arguments import add_folder, add_times
from bench.decision_reader import Answer, Decided, Ears, Listener, Passed
from bench.handlers import Handled, Handlers
from bench.latency_figures import Latency, Wakes, Way, latency_of
from bench.machine import this_machine
from bench.queryable import queryable
from bench.results import write
from bench.running_system import make_topic, running_system, settings_in
from bench.tls_broker import tls_broker
from bench.waiting_consumers import Crowd
from wakeroll.connection import Connection
from wakeroll.epoch_ms import now_ms
from wakeroll_model.rows import DECISIONS
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.ledger.tables import path_of
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.local_system import READY_S, LocalSystem
from wakeroll_pipeline.local.traffic import Probe
from wakeroll_pipeline.settings import Settings

CLIENTS = 200
QUEUES = 16
HANDLERS = 8
"""Real consumers besides, each with threads and connections of its own: enough to see what one gets."""
PER_SECOND = 100
_SLICE_S = 0.2


def main(arguments: list[str] | None = None) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m bench.path_latency", description=__doc__.splitlines()[0])
    add_times(parser, "figure")
    add_folder(parser)
    parser.add_argument("--json", type=Path, default=latency_figures.WAKES, help="where the figures go (%(default)s)")
    parser.add_argument("--tls", action="store_true", help="encrypt all connections to the broker; needs openssl")
    given = parser.parse_args(arguments)
    if given.tls and given.json == latency_figures.WAKES:
        parser.error("--tls needs --json FILE: the figures of docs/performance.md are those without TLS")
    write(measure(given.folder, given.seconds, given.warmup, with_tls=given.tls), given.json)
    if given.json == latency_figures.WAKES:
        report.make()
    return 0


def measure(folder: Path, seconds: float, warmup_s: float, *, with_tls: bool = False) -> Wakes:
    """Run the floor and the system one after the other, and measure both."""
    machine = this_machine()
    shutil.rmtree(folder, ignore_errors=True)
    broker, login = tls_broker(folder) if with_tls else (EmbeddedBroker(folder / "broker"), None)
    with broker:
        print("the floor: records pass through Spark", flush=True)
        with _floor(settings_in(folder, "floor", broker, login)) as (connection, ears):
            beats = heartbeats_of(connection, ears, seconds, warmup_s)
            floor = _way(beats, answers_to(connection, ears, CLIENTS, seconds, warmup_s))
        print("ours: observer, coordinate and record", flush=True)
        settings = settings_in(folder, "ours", broker, login)
        with whole_system(settings) as (connection, ears):
            counted_ms = now_ms() + round(warmup_s * 1_000)
            beats = heartbeats_of(connection, ears, seconds, warmup_s)
            woken = answers_to(connection, ears, CLIENTS, seconds, warmup_s)
            # Not beside what is compared with the floor, which has no such consumers.
            with Handlers(connection, orders_of(connection), QUEUES, HANDLERS) as handlers:
                others = answers_to(connection, ears, CLIENTS, seconds, warmup_s, "others")
    first_ms = min(answer.at_ms for answer in others)
    return Wakes(
        machine,
        seconds,
        warmup_s,
        CLIENTS,
        QUEUES,
        PER_SECOND,
        reached=len({answer.client_id for answer in woken}),
        handlers=HANDLERS,
        floor=floor,
        ours=_way(beats, woken),
        fetched=_since(first_ms, handlers.fetched),
        polled=_since(first_ms, handlers.polled),
        queryable=queryable(path_of(settings.warehouse, DECISIONS).path, counted_ms),
    )


@contextmanager
def _floor(settings: Settings) -> Iterator[tuple[Connection, Ears]]:
    """Run the observer and the floor for the time of a `with`."""
    connection, topic = settings.connection, f"{settings.prefix}.passed"
    ensure_topics(connection, partitions=settings.partitions, inbox_partitions=settings.inbox_partitions)
    make_topic(connection, topic, settings.partitions, **{"message.timestamp.type": "LogAppendTime"})
    spark = Child(
        "the floor",
        [sys.executable, "-m", "bench.floor", topic],
        log=settings.logs / "floor.log",
        env={**os.environ, **settings.environment()},
        grace_s=90,
    )
    make_topic(connection, orders_of(connection), QUEUES)
    with LocalSystem(settings).observer, spark, closing(Listener(connection, topic, settings.partitions)) as listener:
        ears = Passed(listener)
        probe = Probe(connection, orders_of(connection))
        probe.start()
        try:
            spark.wait_until(lambda: bool(ears.assignments(_SLICE_S)), READY_S)
        finally:
            probe.close()
        yield connection, ears


@contextmanager
def whole_system(settings: Settings) -> Iterator[tuple[Connection, Ears]]:
    """Run observer and jobs for the time of a `with`."""
    with running_system(settings) as connection:
        make_topic(connection, orders_of(connection), QUEUES)
        with closing(Listener(connection, connection.topics.inbox, settings.inbox_partitions)) as listener:
            yield connection, Decided(listener)


def heartbeats_of(connection: Connection, ears: Ears, seconds: float, warmup_s: float) -> Latency:
    """Measure what a heartbeat's answer takes, with nothing else going on."""
    probe = Probe(connection, orders_of(connection))
    count_ms = now_ms() + round(warmup_s * 1_000)
    end_s = time.monotonic() + warmup_s + seconds
    told: list[Answer] = []
    probe.start()
    try:
        while time.monotonic() < end_s:
            told += ears.assignments(_SLICE_S)
    finally:
        probe.close()
    return latency_of(answer.latency_ms for answer in told if answer.at_ms >= count_ms)


def answers_to(
    connection: Connection, ears: Ears, clients: int, seconds: float, warmup_s: float, name: str = "crowd"
) -> list[Answer]:
    """Let so many clients of a name wait; return the answers that count."""
    crowd = Crowd(connection, orders_of(connection), clients, QUEUES, name)
    count_ms = now_ms() + round(warmup_s * 1_000)
    return [answer for answer in crowd.run(ears, PER_SECOND, warmup_s + seconds) if answer.at_ms >= count_ms]


def _way(heartbeat: Latency, woken: Sequence[Answer]) -> Way:
    return Way(
        heartbeat,
        latency_of(answer.latency_ms for answer in woken if answer.was_held),
        latency_of(answer.latency_ms for answer in woken if not answer.was_held),
    )


def _since(first_ms: int, handled: Iterable[Handled]) -> Latency:
    return latency_of(one.latency_ms for one in handled if one.at_ms >= first_ms)


def orders_of(connection: Connection) -> str:
    """Return the topic whose queues everybody waits for."""
    return f"{connection.topics.prefix}.orders"


if __name__ == "__main__":
    sys.exit(main())
