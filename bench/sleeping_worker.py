"""What a sleeping worker costs, and how long its first message waits, beside a consumer that is always there."""

import shlex
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Producer

from bench.frame import Bench, option, whole
from bench.process_usage import CpuMeter, resident_mib
from bench.running_system import make_topic, running_system, settings_in, until
from wakeroll.connection import Connection
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.settings import Settings

QUEUES = 8
ANSWER_S = 120.0
WORKER = """
import sys, time
from wakeroll import Consumer
bootstrap, prefix, group, topic, idle_s, log = sys.argv[1:]
with Consumer(group, [topic], bootstrap, prefix=prefix, consume_from="first") as consumer, open(log, "a", 1) as log:
    since = time.monotonic()
    while time.monotonic() - since < float(idle_s):
        if not consumer.assignment():
            since = time.monotonic()
        if (message := consumer.poll(1.0)) is not None:
            print(time.time(), message.offset(), file=log)
            since = time.monotonic()
"""


def measure(given: Namespace) -> str:
    """Return the figures of docs/operations.md."""
    folder = given.folder
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
        settings = settings_in(folder, "bench", broker)
        connection = stack.enter_context(running_system(settings))
        for topic in ("sleeping", "awake"):
            make_topic(connection, topic, QUEUES)
        where = (connection.bootstrap, connection.topics.prefix)
        argv = {
            name: [sys.executable, "-c", WORKER, *where, name, name, idle_s, str(folder / f"{name}.log")]
            for name, idle_s in (("sleeping", "5"), ("awake", "100000"))
        }
        subprocess.run(argv["sleeping"], check=True)
        waker = [sys.executable, "-m", "wakeroll_pipeline.cli", "wake", "sleeping"]
        waker += ["--exec", shlex.join(argv["sleeping"]), "--bootstrap", where[0], "--prefix", where[1]]
        processes = {
            name: stack.enter_context(Child(name, its, log=settings.logs / f"{topic}.log"))
            for name, topic, its in (
                ("wakeroll wake", "sleeping", waker),
                ("a consumer that waits", "awake", argv["awake"]),
            )
        }
        time.sleep(20.0)  # both have started
        found = _costs(connection, processes, given.seconds)
        producer = connection.producer()
        for topic in argv:
            # Not counted: the first one, for which the producer must connect.
            waits = [_wait_of_a_message(producer, topic, folder) for _ in range(given.rounds + 1)][1:]
            found.append(f"{topic}: first message after {statistics.median(waits):.2f} s (at most {max(waits):.2f} s)")
    return "\n".join(found)


def _costs(connection: Connection, processes: Mapping[str, Child], seconds: float) -> list[str]:
    meters = {name: CpuMeter(process.pid) for name, process in processes.items()}
    before = _records(connection)
    time.sleep(seconds)
    found = [
        f"{name}: {meters[name].share():.2%} of a core, {resident_mib(process.pid):.0f} MiB"
        for name, process in processes.items()
    ]
    per_minute = (_records(connection) - before) / seconds * 60
    return [*found, f"records per minute of both, and of the observer: {per_minute:.0f}"]


def _records(connection: Connection) -> int:
    """Return the number of records of the control topics."""
    known = Cluster(connection).all_offsets(
        (topic, number) for topic in connection.topics.control for number in range(Settings().partitions)
    )
    return sum(end for _, end in known.values())


def _wait_of_a_message(producer: Producer, topic: str, folder: Path) -> float:
    """Append a message to a topic that nobody has written to for a while; return how long it waits (s)."""
    log = folder / f"{topic}.log"
    time.sleep(15.0)  # the worker has left
    lines = _lines(log)
    began = time.time()
    producer.produce(topic, b"x", partition=0)
    producer.flush(ANSWER_S)
    until(f"a message of {topic} is handled", lambda: len(_lines(log)) > len(lines), ANSWER_S, log)
    return float(_lines(log)[len(lines)].split()[0]) - began


def _lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


BENCH = Bench(
    "sleeping_worker",
    "A worker that is woken, beside a consumer that waits (docs/operations.md).",
    "six minutes",
    measure,
    options=(
        option("--seconds", type=float, default=120.0, help="for the cost of waiting"),
        option("--rounds", type=whole, default=8, help="messages that count, of each"),
    ),
)
