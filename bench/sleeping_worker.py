"""What a sleeping worker costs, and how long its first message waits, beside a consumer that is always there.

``python -m bench.sleeping_worker`` prints the figures of docs/operations.md. It takes about six minutes.
"""

import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Producer, TopicPartition

from bench.machine import this_machine
from bench.process_usage import CpuMeter, resident_mib
from bench.running_system import make_topic, running_system, settings_in
from wakeroll.connection import Connection
from wakeroll_pipeline.local.broker import EmbeddedBroker

FOLDER = Path(".wakeroll/bench/sleeping")
QUEUES = 8
MEASURED_S = 120.0
ROUNDS = 8
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


def main() -> int:
    """Measure and print."""
    print(this_machine())
    shutil.rmtree(FOLDER, ignore_errors=True)
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(FOLDER))
        connection = stack.enter_context(running_system(settings_in(FOLDER, "bench", broker)))
        for topic in ("sleeping", "awake"):
            make_topic(connection, topic, QUEUES)
        where = [connection.bootstrap, connection.topics.prefix]
        argv = {
            name: [sys.executable, "-c", WORKER, *where, name, name, idle_s, str(FOLDER / f"{name}.log")]
            for name, idle_s in (("sleeping", "5"), ("awake", "100000"))
        }
        subprocess.run(argv["sleeping"], check=True)
        waker = [
            sys.executable,
            "-m",
            "wakeroll_pipeline.cli",
            "wake",
            "sleeping",
            "--exec",
            shlex.join(argv["sleeping"]),
        ]
        options = ["--bootstrap", where[0], "--prefix", where[1]]
        processes = {
            "wakeroll wake": stack.enter_context(subprocess.Popen([*waker, *options])),
            "a consumer that waits": stack.enter_context(subprocess.Popen(argv["awake"])),
        }
        time.sleep(20.0)  # both have started
        _print_costs(connection, processes)
        producer = connection.producer()
        for topic in argv:
            # Not counted: the first one, for which the producer must connect.
            waits = [_wait_of_a_message(producer, topic) for _ in range(ROUNDS + 1)][1:]
            print(f"{topic}: first message after {statistics.median(waits):.2f} s (at most {max(waits):.2f} s)")
        for process in processes.values():
            process.terminate()
            process.wait()
    return 0


def _print_costs(connection: Connection, processes: dict[str, "subprocess.Popen[bytes]"]) -> None:
    meters = {name: CpuMeter(process.pid) for name, process in processes.items()}
    records = _records(connection)
    time.sleep(MEASURED_S)
    for name, process in processes.items():
        print(f"{name}: {meters[name].share():.2%} of a core, {resident_mib(process.pid):.0f} MiB")
    per_minute = {topic: (end - records[topic]) / MEASURED_S * 60 for topic, end in _records(connection).items()}
    print(f"records per minute of both, and of the observer: {per_minute}")


def _records(connection: Connection) -> dict[str, int]:
    consumer = connection.consumer()
    found = {}
    for topic in connection.topics.control:
        partitions = consumer.list_topics(topic, ANSWER_S).topics[topic].partitions
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, number), ANSWER_S)[1] for number in partitions]
        found[topic] = sum(ends)
    consumer.close()
    return found


def _wait_of_a_message(producer: Producer, topic: str) -> float:
    """Append a message to a topic that nobody has written to for a while; return how long it waits (s)."""
    log = FOLDER / f"{topic}.log"
    time.sleep(15.0)  # the worker has left
    lines = len(log.read_text().splitlines()) if log.exists() else 0
    began = time.time()
    producer.produce(topic, b"x", partition=0)
    producer.flush(ANSWER_S)
    _wait_until(lambda: log.exists() and len(log.read_text().splitlines()) > lines)
    return float(log.read_text().splitlines()[lines].split()[0]) - began


def _wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ANSWER_S
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError("no message arrived")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
