"""The throughput of each way to consume, beside the clients that a user would pick instead.

All read the same messages of the same broker in turn, while the whole system runs. `push_throughput` counts messages
per second, `client_throughput` those per second of CPU time of this process: a machine with other work makes a client
slower, but hardly more expensive.
"""

import asyncio
import statistics
import threading
import time
import uuid
from argparse import Namespace
from collections.abc import AsyncIterable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Message, TopicPartition
from msgspec import Struct

from bench.figures import Columns, table_of
from bench.frame import Bench, Chapter, option, whole
from bench.machine import Machine
from bench.running_system import make_topic, running_system, settings_in
from wakeroll import AsyncConsumer, Consumer
from wakeroll.connection import Connection
from wakeroll.push.limits import BATCH_SIZE
from wakeroll.reader import FETCH_SETTINGS
from wakeroll_pipeline.local.broker import EmbeddedBroker

VALUE = b"x" * 100
QUEUES = 8
KEYS = 1_000
PUSH_ROUNDS = 3
ROUNDS = 5
AT_ONCE = 500
"""Messages that the bare consumer takes at once, and the larger batches of the handler."""
WAIT_S = 60.0
"""How long a client waits for a message at once (s): nobody sends any during a measurement."""


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


_PUSH_COLUMNS: Columns[Way] = (
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


def push_section(found: Pushed) -> str:
    """Return the chapter of these figures."""
    return f"""\
`Consumer.run` with a handler that does nothing and 8 workers reads {found.messages:,} messages of {found.size} bytes
from {found.queues} queues. The bare consumer is confluent-kafka's `consume(500)` on the same broker, with the client's
default settings. They include a pause of 1 s (`fetch.queue.backoff.ms`) whenever the client's local queue is full. The
tuned one has `Consumer`'s fetch settings. All run in turn while the whole system works; a figure is the median of
{found.rounds} rounds. *No will*: the ratio to the same consumer without a [last will](last-will.md). `poll`: a loop
that calls `Consumer.poll`.

{table_of(_PUSH_COLUMNS, found.ways)}
"""


class Usage(NamedTuple):
    """What it took to receive all messages but the first ones, whose fetch includes the time to join."""

    messages: int
    seconds: float
    cpu_s: float
    """CPU time of the process (s)."""


class Paired(Struct, frozen=True):
    """A way to consume, and what a user would pick instead."""

    way: str
    other: str
    per_core_s: float
    """Messages per second of CPU time."""
    other_per_core_s: float
    per_s: float
    """Messages per second."""
    other_per_s: float
    least: float
    """Smallest ratio of the first two that we want."""

    @property
    def ratio(self) -> float:
        """Messages of one core, as a part of what the other one gets from it."""
        return self.per_core_s / self.other_per_core_s


class Consumed(Struct, frozen=True):
    """What `client_throughput` found."""

    machine: Machine
    messages: int
    size: int
    """Bytes of each value."""
    queues: int
    rounds: int
    pairs: list[Paired]


_COLUMNS: Columns[Paired] = (
    ("way", lambda pair: pair.way),
    ("messages per CPU second", lambda pair: f"{pair.per_core_s:,.0f}"),
    ("compared with", lambda pair: pair.other),
    ("messages per CPU second", lambda pair: f"{pair.other_per_core_s:,.0f}"),
    ("ratio", lambda pair: f"{pair.ratio:.2f}"),
    ("wanted", lambda pair: f"{pair.least:.1f}"),
    ("messages/s", lambda pair: f"{pair.per_s:,.0f} : {pair.other_per_s:,.0f}"),
)


def section(found: Consumed) -> str:
    """Return the chapter of these figures."""
    return f"""\
Each way to consume reads {found.messages:,} messages of {found.size} bytes from {found.queues} queues and does nothing
with them; so does what it is compared with, on the same broker, in turn, while the whole system works. A figure is the
median of {found.rounds} rounds. CPU time is that of all threads of the client's process. confluent-kafka has the fetch
settings of `Consumer`. `run` has 8 workers.

{table_of(_COLUMNS, found.pairs)}
"""


class _Meter:
    """Counts messages, and measures from the first ones to the last one."""

    def __init__(self, messages: int) -> None:
        self._all = messages
        self.left = messages
        self._first = 0
        self._began = 0.0, 0.0
        self._usage: Usage | None = None

    def note(self, count: int) -> bool:
        """Count messages; return whether these were the last ones."""
        if not count:
            return False
        if not self._first:
            self._first, self._began = count, (time.perf_counter(), time.process_time())
        self.left -= count
        if self.left > 0:
            return False
        began_s, used_s = self._began
        self._usage = Usage(self._all - self._first, time.perf_counter() - began_s, time.process_time() - used_s)
        return True

    @property
    def usage(self) -> Usage:
        """What it took, when the last message was counted."""
        assert self._usage is not None, "not all messages were counted"
        return self._usage


Read = Callable[[Connection, str, int], Usage]
"""Reads so many messages of a topic."""


class Ours(NamedTuple):
    """A consumer of the SDK in a group of its own."""

    orderly: bool = False
    last_will: bool = True
    batch_size: int = BATCH_SIZE
    group_id: str = ""
    """Empty: a new one for each read."""

    def joined(self, connection: Connection, topic: str) -> Consumer:
        """Return a consumer of all messages."""
        return Consumer(
            self.group_id or _group(),
            [topic],
            connection.bootstrap,
            consume_from="first",
            prefix=connection.topics.prefix,
            orderly=self.orderly,
            last_will=self.last_will,
        )

    def consume(self, connection: Connection, topic: str, messages: int) -> Usage:
        """Call `consume`."""
        meter = _Meter(messages)
        with self.joined(connection, topic) as consumer:
            while not ((some := consumer.consume(AT_ONCE, WAIT_S)) and meter.note(len(some))):
                pass
        return meter.usage

    def poll(self, connection: Connection, topic: str, messages: int) -> Usage:
        """Call `poll`."""
        with self.joined(connection, topic) as consumer:
            return _polled(consumer.poll, messages)

    def run(self, connection: Connection, topic: str, messages: int) -> Usage:
        """Call `run` with a handler that does nothing."""
        meter, lock = _Meter(messages), threading.Lock()
        with self.joined(connection, topic) as consumer:

            def handle(some: list[Message]) -> None:
                with lock:
                    if meter.note(len(some)):
                        consumer.stop()

            consumer.run(handle, batch_size=self.batch_size)
        return meter.usage


class Bare(NamedTuple):
    """A consumer of confluent-kafka with these settings."""

    settings: tuple[tuple[str, int], ...] = ()

    @contextmanager
    def assigned(self, connection: Connection, topic: str) -> Iterator[KafkaConsumer]:
        """Assign all queues."""
        group = {"group.id": "wakeroll-bench", "enable.auto.commit": False, "auto.offset.reset": "error"}
        consumer = KafkaConsumer({"bootstrap.servers": connection.bootstrap, **group, **dict(self.settings)})
        consumer.assign([TopicPartition(topic, number, 0) for number in range(QUEUES)])
        try:
            yield consumer
        finally:
            consumer.close()

    def consume(self, connection: Connection, topic: str, messages: int) -> Usage:
        """Call `consume`."""
        meter = _Meter(messages)
        with self.assigned(connection, topic) as consumer:
            while not meter.note(sum(message.error() is None for message in consumer.consume(AT_ONCE, 0.05))):
                pass
        return meter.usage

    def poll(self, connection: Connection, topic: str, messages: int) -> Usage:
        """Call `poll`."""
        with self.assigned(connection, topic) as consumer:
            return _polled(consumer.poll, messages)


TUNED = Bare(tuple(FETCH_SETTINGS.items()))


def _polled(poll: Callable[[float], Message | None], messages: int) -> Usage:
    meter, count = _Meter(messages), 0
    while count < messages:
        message = poll(WAIT_S)
        if message is not None and message.error() is None:
            count += 1
            if count == 1:
                meter.note(1)
    meter.note(messages - 1)
    return meter.usage


async def _all_of(consumer: AsyncIterable[object], messages: int) -> Usage:
    meter, count = _Meter(messages), 0
    async for _ in consumer:
        count += 1
        if count == 1:
            meter.note(1)
        elif count == messages:
            meter.note(messages - 1)
            break
    return meter.usage


def _async_for(connection: Connection, topic: str, messages: int) -> Usage:
    async def read() -> Usage:
        async with _async_joined(connection, topic) as consumer:
            return await _all_of(consumer, messages)

    return asyncio.run(read())


def _async_run(connection: Connection, topic: str, messages: int) -> Usage:
    async def read() -> Usage:
        meter = _Meter(messages)
        async with _async_joined(connection, topic) as consumer:

            async def handle(some: list[Message]) -> None:
                if meter.note(len(some)):
                    consumer.stop()

            await consumer.run(handle)
        return meter.usage

    return asyncio.run(read())


def _aiokafka(connection: Connection, topic: str, messages: int) -> Usage:
    async def read() -> Usage:
        consumer = AIOKafkaConsumer(bootstrap_servers=connection.bootstrap, enable_auto_commit=False)
        await consumer.start()
        try:
            partitions = [AioTopicPartition(topic, number) for number in range(QUEUES)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            return await _all_of(consumer, messages)
        finally:
            await consumer.stop()

    return asyncio.run(read())


def _group() -> str:
    return f"clients-{uuid.uuid4().hex[:6]}"


def _async_joined(connection: Connection, topic: str) -> AsyncConsumer:
    prefix = connection.topics.prefix
    return AsyncConsumer(_group(), [topic], connection.bootstrap, consume_from="first", prefix=prefix)


class _Pair(NamedTuple):
    way: str
    read: Read
    other: str
    read_otherwise: Read
    least: float


PAIRS = (
    _Pair("`consume(500)`", Ours().consume, "confluent-kafka, `consume(500)`", TUNED.consume, 0.7),
    _Pair("`poll`", Ours().poll, "confluent-kafka, `poll`", TUNED.poll, 0.5),
    _Pair("`async for`", _async_for, "aiokafka, `async for`", _aiokafka, 0.8),
    _Pair("`AsyncConsumer.run`", _async_run, "`Consumer.run`", Ours().run, 0.5),
)


def measure(given: Namespace) -> Consumed:
    """Let all read the same topic, in turn."""
    messages, topic = given.messages, "messages"
    with _filled(given, topic, 0) as connection:
        reads = [read for pair in PAIRS for read in (pair.read, pair.read_otherwise)]
        used = _in_turn(connection, topic, messages, reads, ROUNDS)
    pairs = [
        Paired(
            pair.way,
            pair.other,
            per_core_s=_median(ours, lambda one: one.cpu_s),
            other_per_core_s=_median(other, lambda one: one.cpu_s),
            per_s=_median(ours, lambda one: one.seconds),
            other_per_s=_median(other, lambda one: one.seconds),
            least=pair.least,
        )
        for pair, ours, other in zip(PAIRS, used[::2], used[1::2], strict=True)
    ]
    return Consumed(given.machine, messages, len(VALUE), QUEUES, ROUNDS, pairs)


def measure_push(given: Namespace) -> Pushed:
    """Let all read a topic without keys and one with keys, in turn."""
    ways = [way for keys in (0, KEYS) for way in _ways(given, keys)]
    return Pushed(given.machine, given.messages, len(VALUE), QUEUES, PUSH_ROUNDS, ways)


def _ways(given: Namespace, keys: int) -> Iterator[Way]:
    cases = [(Ours(), False), (Ours(batch_size=AT_ONCE), False), (Ours(orderly=True), False)]
    if not keys:
        cases.append((Ours(orderly=True, batch_size=1), True))
    both = [one._replace(last_will=has_will) for one, _ in cases for has_will in (True, False)]
    polling = [polls for _, polls in cases for _ in range(2)]
    reads = [one.poll if polls else one.run for one, polls in zip(both, polling, strict=True)]
    topic = f"messages-{keys}"
    with _filled(given, topic, keys) as connection:
        used = _in_turn(connection, topic, given.messages, [Bare().consume, TUNED.consume, *reads], PUSH_ROUNDS)
    bare, tuned, *pushed = (_median(its, lambda one: one.seconds) for its in used)
    for (case, polls), push, no_will in zip(cases, pushed[::2], pushed[1::2], strict=True):
        yield Way(keys, case.orderly, case.batch_size, bare, push, tuned, no_will, polls)


@contextmanager
def _filled(given: Namespace, topic: str, keys: int) -> Iterator[Connection]:
    """Run a whole system with a topic of so many messages; `keys`: number of different keys, 0: messages have none."""
    with (
        EmbeddedBroker(given.folder / topic / "broker") as broker,
        running_system(settings_in(given.folder, topic, broker)) as connection,
    ):
        make_topic(connection, topic, QUEUES)
        producer = connection.producer(**{"linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
        for number in range(given.messages):
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
        yield connection


def _in_turn(
    connection: Connection, topic: str, messages: int, reads: Sequence[Read], rounds: int
) -> list[list[Usage]]:
    """Return what each way to read took in each round."""
    used = [[read(connection, topic, messages) for read in reads] for _ in range(rounds)]
    return [list(its) for its in zip(*used, strict=True)]


def _median(usages: Sequence[Usage], seconds_of: Callable[[Usage], float]) -> float:
    return statistics.median(one.messages / seconds_of(one) for one in usages)


BENCH = Bench(
    "client_throughput",
    "Each way to consume beside confluent-kafka and aiokafka.",
    "ten minutes",
    measure,
    options=(option("--messages", type=whole, default=1_000_000, help="that each client reads"),),
    chapters=(Chapter("Ways to consume", section),),
    figures=Consumed,
    file="clients.json",
    run="The run of ways to consume",
)
PUSH_BENCH = Bench(
    "push_throughput",
    "Consumer.run beside a bare Kafka consumer.",
    "ten minutes",
    measure_push,
    options=(option("--messages", type=whole, default=2_000_000, help="of each topic"),),
    chapters=(Chapter("Push consumption", push_section),),
    figures=Pushed,
    file="push.json",
    run="The run of push consumption",
)
