"""The throughput of `Consumer.run` and `poll`, compared with a bare Kafka consumer of the same broker in the same run.

``python -m bench.push_throughput [--messages 2000000]`` writes `push.json` and `docs/performance.md`. It takes about
ten minutes: all read the same messages in turn, while the whole system runs.
"""

import argparse
import shutil
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import NamedTuple

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


class _Case(NamedTuple):
    """A way of reading a topic."""

    polls: bool = False
    orderly: bool = False
    batch_size: int = BATCH_SIZE


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
            cases = [_Case(), _Case(batch_size=AT_ONCE), _Case(orderly=True)]
            if not keys:
                cases.append(_Case(polls=True, orderly=True, batch_size=1))
            bare: list[float] = []
            tuned: list[float] = []
            pushed: dict[tuple[_Case, bool], list[float]] = {
                (case, wills): [] for case in cases for wills in (True, False)
            }
            for _ in range(ROUNDS):
                bare.append(_bare(connection, topic, messages, {}))
                tuned.append(_bare(connection, topic, messages, FETCH_SETTINGS))
                for case, has_will in product(cases, (True, False)):
                    seconds = _push(connection, topic, messages, case, has_will)
                    pushed.setdefault((case, has_will), []).append(seconds)
            per_s = {way: messages / statistics.median(taken) for way, taken in pushed.items()}
            bare_per_s, tuned_per_s = (messages / statistics.median(seconds) for seconds in (bare, tuned))
            ways += [
                Way(
                    keys,
                    case.orderly,
                    case.batch_size,
                    bare_per_s,
                    per_s[case, True],
                    tuned_per_s,
                    per_s[case, False],
                    case.polls,
                )
                for case in cases
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


def _push(connection: Connection, topic: str, messages: int, case: _Case, has_will: bool) -> float:
    """Return the seconds from the first message to the last one of an application that does nothing with them."""
    with Consumer(
        f"push-{uuid.uuid4().hex[:6]}",
        [topic],
        connection.bootstrap,
        consume_from="first",
        orderly=case.orderly,
        prefix=connection.topics.prefix,
        last_will=has_will,
    ) as consumer:
        if case.polls:
            while consumer.poll(60) is None:
                pass
            began_s = time.perf_counter()
            for _ in range(messages - 1):
                assert consumer.poll(60) is not None
            return time.perf_counter() - began_s
        counting = _Counting(messages, consumer.stop)
        consumer.run(counting, batch_size=case.batch_size)
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
