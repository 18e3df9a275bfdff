"""The throughput of `Consumer.run`, compared with a bare Kafka consumer of the same broker in the same run.

``python -m bench.push_throughput [--messages 2000000]`` writes `push.json` and `docs/performance.md`. It takes about
five minutes: all read the same messages in turn, while the whole system runs.
"""

import argparse
import shutil
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Message, TopicPartition

from bench import push_figures, report
from bench.arguments import add_folder
from bench.machine import this_machine
from bench.push_figures import Pushed, Way
from bench.results import write
from bench.running_system import make_topic, running_system, settings_in
from wakeroll import Consumer
from wakeroll.connection import Connection
from wakeroll.push.limits import BATCH_SIZE
from wakeroll.reader import FETCH_SETTINGS
from wakeroll_pipeline.local.broker import EmbeddedBroker

MESSAGES = 2_000_000
VALUE = b"x" * 100
QUEUES = 8
KEYS = 1_000
ROUNDS = 3
AT_ONCE = 500
"""Messages that the bare consumer takes at once, and the larger batches of the handler."""


def main(arguments: list[str] | None = None) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m bench.push_throughput", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=MESSAGES, help="of each topic (default %(default)s)")
    add_folder(parser)
    parser.add_argument("--json", type=Path, default=push_figures.PUSHED, help="where the figures go (%(default)s)")
    given = parser.parse_args(arguments)
    write(measure(given.folder, given.messages), given.json)
    if given.json == push_figures.PUSHED:
        report.make()
    return 0


def measure(folder: Path, messages: int) -> Pushed:
    """Let both read a topic without keys and one with keys, in turn."""
    machine = this_machine()
    shutil.rmtree(folder, ignore_errors=True)
    ways = []
    with EmbeddedBroker(folder / "broker") as broker, running_system(settings_in(folder, "push", broker)) as connection:
        for keys in (0, KEYS):
            topic = f"messages-{keys}"
            _fill(connection, topic, messages, keys)
            cases = [(False, BATCH_SIZE), (False, AT_ONCE), (True, BATCH_SIZE)]
            bare: list[float] = []
            tuned: list[float] = []
            pushed: dict[tuple[bool, int], list[float]] = {case: [] for case in cases}
            for _ in range(ROUNDS):
                bare.append(_bare(connection, topic, messages, {}))
                tuned.append(_bare(connection, topic, messages, FETCH_SETTINGS))
                for orderly, batch_size in cases:
                    pushed[orderly, batch_size].append(_push(connection, topic, messages, orderly, batch_size))
            bare_per_s, tuned_per_s = (messages / statistics.median(seconds) for seconds in (bare, tuned))
            ways += [
                Way(keys, orderly, batch_size, bare_per_s, messages / statistics.median(seconds), tuned_per_s)
                for (orderly, batch_size), seconds in pushed.items()
            ]
    return Pushed(machine, messages, len(VALUE), QUEUES, ROUNDS, ways)


def _fill(connection: Connection, topic: str, messages: int, keys: int) -> None:
    make_topic(connection, topic, QUEUES)
    producer = connection.producer(**{"linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for number in range(messages):
        key = str(number % keys).encode() if keys else None
        while True:
            try:
                producer.produce(topic, VALUE, key=key, partition=number % QUEUES)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0


def _bare(connection: Connection, topic: str, messages: int, settings: Mapping[str, int]) -> float:
    """Return the seconds from the first message to the last one of a consumer that does nothing else."""
    consumer: KafkaConsumer = connection.consumer(**settings)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(QUEUES)])
    count, began_s = 0, 0.0
    while count < messages:
        some = consumer.consume(AT_ONCE, 0.05)
        if some and not count:
            began_s = time.perf_counter()
        count += len(some)
    seconds = time.perf_counter() - began_s
    consumer.close()
    return seconds


def _push(connection: Connection, topic: str, messages: int, orderly: bool, batch_size: int) -> float:
    """Return the seconds from the first call of a handler that does nothing to the last one."""
    with Consumer(
        f"push-{uuid.uuid4().hex[:6]}",
        [topic],
        connection.bootstrap,
        consume_from="first",
        orderly=orderly,
        prefix=connection.topics.prefix,
    ) as consumer:
        counting = _Counting(messages, consumer.stop)
        consumer.run(counting, batch_size=batch_size)
    return counting.seconds


class _Counting:
    """A handler that counts messages, and calls a function after the last one."""

    def __init__(self, messages: int, on_end: Callable[[], None]) -> None:
        self.seconds = 0.0
        self._left = messages
        self._on_end = on_end
        self._began_s = 0.0
        self._lock = threading.Lock()

    def __call__(self, messages: list[Message]) -> None:
        with self._lock:
            self._began_s = self._began_s or time.perf_counter()
            self._left -= len(messages)
            if self._left == 0:
                self.seconds = time.perf_counter() - self._began_s
                self._on_end()


if __name__ == "__main__":
    raise SystemExit(main())
