"""The latency of the whole path, with a real broker and the real jobs, compared with a Spark that only copies records.

First the floor, then wakeroll, on the same broker, with the same Spark settings and with `record` running.
"""

import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pyarrow.parquet as parquet  # type: ignore[import-untyped]
from msgspec import Struct

from bench.decision_reader import Answer, Decided, Ears, Listener, Passed
from bench.figures import Latency, digits, latency_of, percentiles, table
from bench.frame import Bench, Chapter, NotMeasured, option, times
from bench.machine import Machine
from bench.running_system import make_topic, orders_of, probing, running_system, settings_in, tls_broker
from bench.waiting_consumers import Crowd, Handled, Handlers
from wakeroll.connection import Connection
from wakeroll.epoch_ms import now_ms
from wakeroll_model.rows import DECISIONS
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.local_system import READY_S, LocalSystem
from wakeroll_pipeline.settings import Settings

CLIENTS = 200
QUEUES = 16
HANDLERS = 8
"""Real consumers besides, each with threads and connections of its own: enough to see what one gets."""
PER_SECOND = 100
_SLICE_S = 0.2


class Way(Struct, frozen=True):
    """What one of the two ways from event to answer takes."""

    heartbeat: Latency
    """From a heartbeat to its assignment."""
    wake: Latency
    """From an arrival to the wake of a pull that it found waiting."""
    at_once: Latency
    """From a pull to its wake, when there was something to read already."""


class Wakes(Struct, frozen=True):
    """What `path_latency` found."""

    machine: Machine
    seconds: float
    """That count, of each figure."""
    warmup_s: float
    """Before each figure, that do not count."""
    clients: int
    queues: int
    per_second: int
    """Messages."""
    reached: int
    """Of the clients that waited, those that were woken."""
    handlers: int
    """Real consumers among those who wait, each in `fetch`."""
    floor: Way
    ours: Way
    fetched: Latency
    """From producing a message to the handler of a consumer that waited for it."""
    polled: Latency
    """The same for a consumer that polls Kafka all the time."""
    queryable: Latency
    """From a decision's append to Kafka to its commit in Delta."""


def section(found: Wakes) -> str:
    """Return the chapter of these figures."""
    floor, ours = found.floor, found.ours
    compared = (
        ("a heartbeat's append to its assignment's", ours.heartbeat, floor.heartbeat),
        (f"an arrival's append to its wake's ({found.clients} waiting)", ours.wake, floor.wake),
        ("a pull's append to its wake's (a message was available)", ours.at_once, floor.at_once),
        ("a message's produce to its handler's call, in `fetch`", found.fetched, Latency(0, 0, 0)),
        ("the same with a Kafka consumer that polls continuously", found.polled, Latency(0, 0, 0)),
        ("a decision's append to its commit in Delta", found.queryable, Latency(0, 0, 0)),
    )
    rows = [
        (what, f"{one.count:,}", *percentiles(one), *percentiles(least), times_floor(one, least))
        for what, one, least in compared
    ]
    heads = ("from ... to ...", "answers", "p50", "p99", "floor p50", "floor p99", "p50 times floor")
    return f"""\
The broker, the observer and the jobs of `wakeroll run` (including `record`) run on one machine. Times are the
broker's append times. The *floor* is Spark alone, on the same broker in the same run, with the same session, source,
sink and `record`: the records of the control topics pass through it, without state and without Python. The heartbeats
are those of new instances of one client, five per second. Then {found.clients} consumers wait on {found.queues} queues
for {found.per_second} messages per second. Each consumer that is woken pulls again at once.
Woken: {found.reached} of the {found.clients}. Then the same with {found.handlers} real consumers, which wait in
`fetch`, one on each of {found.handlers} of these queues. {found.seconds:g} s of each measurement count, after
{found.warmup_s:g} s of warm-up.

{table(heads, rows)}

Measured on {found.machine.measured} with {found.machine.sentence}.
"""


def times_floor(ours: Latency, floor: Latency) -> str:
    """Return how many times the floor's p50 ours is; empty when one has no answers."""
    return digits(ours.p50_ms / floor.p50_ms) if ours.count and floor.p50_ms else ""


def measure(given: Namespace) -> Wakes:
    """Run the floor and the system one after the other, and measure both.

    Raises:
        NotMeasured: nobody was woken in time.
    """
    folder, times_s = given.folder, (given.seconds, given.warmup)
    broker, login = tls_broker(folder) if given.tls else (EmbeddedBroker(folder / "broker"), None)
    with broker:
        print("the floor: records pass through Spark", flush=True)
        with _floor(settings_in(folder, "floor", broker, login)) as (connection, ears):
            beats = heartbeats_of(connection, ears, *times_s)
            floor = _way(beats, answers_to(connection, ears, CLIENTS, *times_s))
        print("ours: observer, coordinate and record", flush=True)
        settings = settings_in(folder, "ours", broker, login)
        with whole_system(settings) as (connection, ears):
            counted_ms = now_ms() + round(given.warmup * 1_000)
            beats = heartbeats_of(connection, ears, *times_s)
            woken = answers_to(connection, ears, CLIENTS, *times_s)
            # Not beside what is compared with the floor, which has no such consumers.
            with Handlers(connection, orders_of(connection), QUEUES, HANDLERS) as handlers:
                others = answers_to(connection, ears, CLIENTS, *times_s, "others")
    if not others:
        raise NotMeasured(f"no client that waited was woken within {given.seconds:g} s; measure for longer")
    first_ms = min(answer.at_ms for answer in others)
    return Wakes(
        given.machine,
        *times_s,
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
        [sys.executable, "-m", "bench.spark_floor", topic],
        log=settings.logs / "floor.log",
        env={**os.environ, **settings.environment()},
        grace_s=90,
    )
    make_topic(connection, orders_of(connection), QUEUES)
    with LocalSystem(settings).observer, spark, closing(Listener(connection, topic, settings.partitions)) as listener:
        ears = Passed(listener)
        with probing(connection, orders_of(connection)):
            spark.wait_until(lambda: bool(ears.assignments(_SLICE_S)), READY_S)
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
    with probing(connection, orders_of(connection)):
        answers = counted(lambda lasts_s: assigned(ears, lasts_s), seconds, warmup_s)
    return latency_of(answer.latency_ms for answer in answers)


def answers_to(
    connection: Connection, ears: Ears, clients: int, seconds: float, warmup_s: float, name: str = "crowd"
) -> list[Answer]:
    """Let so many clients of a name wait; return the answers that count."""
    crowd = Crowd(connection, orders_of(connection), clients, QUEUES, name)
    return counted(lambda lasts_s: crowd.run(ears, PER_SECOND, lasts_s), seconds, warmup_s)


def assigned(ears: Ears, seconds: float) -> list[Answer]:
    """Return the answers to the probe's heartbeats in some time."""
    end_s, found = time.monotonic() + seconds, list[Answer]()
    while time.monotonic() < end_s:
        found += ears.assignments(_SLICE_S)
    return found


def counted(answers: Callable[[float], list[Answer]], seconds: float, warmup_s: float) -> list[Answer]:
    """Return the answers to events of the seconds that count; `answers` gets the whole time."""
    since_ms = now_ms() + round(warmup_s * 1_000)
    return [answer for answer in answers(warmup_s + seconds) if answer.at_ms >= since_ms]


def queryable(decisions: Path, since_ms: int) -> Latency:
    """Return how long decisions took until they could be queried that were published since then.

    It is read from the table's own log: each commit names its new files, and is visible from the time of its log file.

    Args:
        decisions: the table's folder, of which nothing was cleaned yet.
        since_ms: epoch ms.
    """
    return latency_of(
        commit_ms - published_ms
        for commit_ms, added in _commits(decisions)
        for published_ms in parquet.read_table(added, columns=["published_ms"])["published_ms"].to_pylist()
        if published_ms >= since_ms
    )


def _commits(table: Path) -> Iterator[tuple[int, Path]]:
    """Yield each file with new rows, and when it was committed, epoch ms; a compaction's has none that are new."""
    for commit in (table / "_delta_log").glob("*.json"):
        commit_ms = commit.stat().st_mtime_ns // 1_000_000
        for line in commit.read_bytes().splitlines():
            added = msgspec.json.decode(line).get("add")
            if added is not None and added["dataChange"]:
                yield commit_ms, table / unquote(added["path"])


def _way(heartbeat: Latency, woken: Sequence[Answer]) -> Way:
    return Way(
        heartbeat,
        latency_of(answer.latency_ms for answer in woken if answer.was_held),
        latency_of(answer.latency_ms for answer in woken if not answer.was_held),
    )


def _since(first_ms: int, handled: Iterable[Handled]) -> Latency:
    return latency_of(one.latency_ms for one in handled if one.at_ms >= first_ms)


BENCH = Bench(
    "path_latency",
    "The whole path on a real broker, beside a Spark that only copies records.",
    "twelve minutes",
    measure,
    options=(*times("figure"), option("--tls", action="store_true", help="encrypt connections to the broker; openssl")),
    chapters=(Chapter("The whole path", section),),
    figures=Wakes,
    file="wakes.json",
    run="The run of the whole path",
    differs=lambda given: given.tls,
)
