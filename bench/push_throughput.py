"""The throughput of `Consumer.run` and `poll`, compared with a bare Kafka consumer of the same broker in the same run.

All read the same messages in turn, while the whole system runs.
"""

import statistics
import threading
import time
import uuid
from argparse import Namespace
from collections.abc import Callable, Mapping
from itertools import product
from typing import NamedTuple

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Message, TopicPartition
from msgspec import Struct

from bench.frame import Bench, Chapter, option, whole
from bench.machine import Machine
from bench.running_system import make_topic, running_system, settings_in
from bench.text_tables import Columns, table_of
from wakeroll import Consumer
from wakeroll.connection import Connection
from wakeroll.push.limits import BATCH_SIZE
from wakeroll.reader import FETCH_SETTINGS
from wakeroll_pipeline.local.broker import EmbeddedBroker

VALUE = b"x" * 100
QUEUES = 8
KEYS = 1_000
ROUNDS = 3
AT_ONCE = 500
"""Messages that the bare consumer takes at once, and the larger batches of the handler."""


class Way(Struct, frozen=True):
    """One way of handling the messages of a topic."""

    keys: int
    """Number of different keys; 0: messages without a key."""
    orderly: bool
    batch_size: int
    bare_per_s: float
    """Messages per second of a bare Kafka consumer with the settings that Kafka's client has by default."""
    push_per_s: float
    """Messages per second of `Consumer.run` with a handler that does nothing."""
    tuned_per_s: float | None = None
    """Messages per second of a bare Kafka consumer with the fetch settings of `Consumer`; None: not measured."""
    no_will_per_s: float | None = None
    """`push_per_s` of a consumer without a last will; None: not measured."""
    polls: bool = False
    """Whether it is `Consumer.poll` in a loop instead of `run`; then a batch is one message."""


class Pushed(Struct, frozen=True):
    """What `push_throughput` found."""

    machine: Machine
    messages: int
    """Per topic."""
    size: int
    """Bytes of each value."""
    queues: int
    rounds: int
    ways: list[Way]


_COLUMNS: Columns[Way] = (
    ("keys", lambda way: f"{way.keys:,}" if way.keys else "none"),
    ("order within", lambda way: "queue" if way.orderly else "key" if way.keys else "none"),
    ("batch", lambda way: "`poll`" if way.polls else str(way.batch_size)),
    ("messages/s", lambda way: f"{way.push_per_s:,.0f}"),
    ("no will", lambda way: "" if way.no_will_per_s is None else f"{way.push_per_s / way.no_will_per_s:.3f}"),
    ("bare/s", lambda way: f"{way.bare_per_s:,.0f}"),
    ("ratio", lambda way: f"{way.push_per_s / way.bare_per_s:.2f}"),
    ("tuned/s", lambda way: "" if way.tuned_per_s is None else f"{way.tuned_per_s:,.0f}"),
    ("ratio", lambda way: "" if way.tuned_per_s is None else f"{way.push_per_s / way.tuned_per_s:.2f}"),
)


def section(found: Pushed) -> str:
    """Return the chapter of these figures."""
    return f"""\
`Consumer.run` with a handler that does nothing and 8 workers reads {found.messages:,} messages of {found.size} bytes
from {found.queues} queues. The bare consumer is confluent-kafka's `consume(500)` on the same broker, with the client's
default settings. They include a pause of 1 s (`fetch.queue.backoff.ms`) whenever the client's local queue is full. The
tuned one has `Consumer`'s fetch settings. All run in turn while the whole system works; a figure is the median of
{found.rounds} rounds. *No will*: the ratio to the same consumer without a [last will](last-will.md). `poll`: a loop
that calls `Consumer.poll`.

{table_of(_COLUMNS, found.ways)}
"""


class _Case(NamedTuple):
    """A way of reading a topic."""

    polls: bool = False
    orderly: bool = False
    batch_size: int = BATCH_SIZE


def measure(given: Namespace) -> Pushed:
    """Let all read a topic without keys and one with keys, in turn."""
    messages, ways = given.messages, list[Way]()
    with (
        EmbeddedBroker(given.folder / "broker") as broker,
        running_system(settings_in(given.folder, "push", broker)) as connection,
    ):
        for keys in (0, KEYS):
            topic = f"messages-{keys}"
            fill(connection, topic, messages, keys)
            cases = [_Case(), _Case(batch_size=AT_ONCE), _Case(orderly=True)]
            if not keys:
                cases.append(_Case(polls=True, orderly=True, batch_size=1))
            bare: list[float] = []
            tuned: list[float] = []
            pushed: dict[tuple[_Case, bool], list[float]] = {}
            for _ in range(ROUNDS):
                bare.append(_bare(connection, topic, messages, {}))
                tuned.append(_bare(connection, topic, messages, FETCH_SETTINGS))
                for case, has_will in product(cases, (True, False)):
                    seconds = _push(connection, topic, messages, case, has_will)
                    pushed.setdefault((case, has_will), []).append(seconds)
            per_s = {way: messages / statistics.median(taken) for way, taken in pushed.items()}
            ways += [
                Way(
                    keys,
                    case.orderly,
                    case.batch_size,
                    bare_per_s=messages / statistics.median(bare),
                    push_per_s=per_s[case, True],
                    tuned_per_s=messages / statistics.median(tuned),
                    no_will_per_s=per_s[case, False],
                    polls=case.polls,
                )
                for case in cases
            ]
    return Pushed(given.machine, messages, len(VALUE), QUEUES, ROUNDS, ways)


def fill(connection: Connection, topic: str, messages: int, keys: int) -> None:
    """Create a topic with so many messages; `keys`: number of different keys, 0 for messages without one."""
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


BENCH = Bench(
    "push_throughput",
    "Consumer.run beside a bare Kafka consumer.",
    "ten minutes",
    measure,
    options=(option("--messages", type=whole, default=2_000_000, help="of each topic"),),
    chapters=(Chapter("Push consumption", section),),
    figures=Pushed,
    file="push.json",
    run="The run of push consumption",
)
