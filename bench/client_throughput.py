"""The cost of each way to consume, per core, compared with the clients that a user would pick instead.

All read the same messages of the same broker in turn, while the whole system runs. Only the CPU time of this process
counts: a machine with other work makes a client slower, but hardly more expensive.
"""

import asyncio
import statistics
import threading
import time
import uuid
from argparse import Namespace
from collections.abc import AsyncIterable, Callable
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Message, TopicPartition
from msgspec import Struct

from bench.frame import Bench, Chapter, option, whole
from bench.machine import Machine
from bench.push_throughput import AT_ONCE, QUEUES, VALUE, fill
from bench.running_system import running_system, settings_in
from bench.text_tables import Columns, table_of
from wakeroll import AsyncConsumer, Consumer
from wakeroll.connection import Connection
from wakeroll.reader import FETCH_SETTINGS
from wakeroll_pipeline.local.broker import EmbeddedBroker

ROUNDS = 5
WAIT_S = 60.0
"""How long a client waits for a message at once (s): nobody sends any during a measurement."""


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


def _consume(connection: Connection, topic: str, messages: int) -> Usage:
    meter = _Meter(messages)
    with _joined(connection, topic) as consumer:
        while not ((some := consumer.consume(AT_ONCE, WAIT_S)) and meter.note(len(some))):
            pass
    return meter.usage


def _poll(connection: Connection, topic: str, messages: int) -> Usage:
    meter = _Meter(messages)
    with _joined(connection, topic) as consumer:
        poll = consumer.poll
        while poll(WAIT_S) is None:
            pass
        meter.note(1)
        for _ in range(messages - 1):
            assert poll(WAIT_S) is not None
        meter.note(messages - 1)
    return meter.usage


def _run(connection: Connection, topic: str, messages: int) -> Usage:
    meter, lock = _Meter(messages), threading.Lock()
    with _joined(connection, topic) as consumer:

        def handle(some: list[Message]) -> None:
            with lock:
                if meter.note(len(some)):
                    consumer.stop()

        consumer.run(handle)
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


def _bare(connection: Connection) -> KafkaConsumer:
    group = {"group.id": "wakeroll-bench", "enable.auto.commit": False, "auto.offset.reset": "error"}
    return KafkaConsumer({"bootstrap.servers": connection.bootstrap, **group, **FETCH_SETTINGS})


def _bare_consume(connection: Connection, topic: str, messages: int) -> Usage:
    meter, consumer = _Meter(messages), _bare(connection)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(QUEUES)])
    while True:
        some = consumer.consume(AT_ONCE, 0.05)
        count = sum(1 for message in some if message.error() is None)
        if count and meter.note(count):
            break
    consumer.close()
    return meter.usage


def _bare_poll(connection: Connection, topic: str, messages: int) -> Usage:
    meter, consumer, count = _Meter(messages), _bare(connection), 0
    consumer.assign([TopicPartition(topic, number, 0) for number in range(QUEUES)])
    while count < messages:
        message = consumer.poll(WAIT_S)
        if message is not None and message.error() is None:
            count += 1
            if count == 1:
                meter.note(1)
    meter.note(messages - 1)
    consumer.close()
    return meter.usage


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


def _joined(connection: Connection, topic: str) -> Consumer:
    prefix = connection.topics.prefix
    return Consumer(_group(), [topic], connection.bootstrap, consume_from="first", prefix=prefix)


def _async_joined(connection: Connection, topic: str) -> AsyncConsumer:
    prefix = connection.topics.prefix
    return AsyncConsumer(_group(), [topic], connection.bootstrap, consume_from="first", prefix=prefix)


Read = Callable[[Connection, str, int], Usage]
"""Reads so many messages of a topic."""


class _Pair(NamedTuple):
    way: str
    read: Read
    other: str
    read_otherwise: Read
    least: float


PAIRS = (
    _Pair("`consume(500)`", _consume, "confluent-kafka, `consume(500)`", _bare_consume, 0.7),
    _Pair("`poll`", _poll, "confluent-kafka, `poll`", _bare_poll, 0.5),
    _Pair("`async for`", _async_for, "aiokafka, `async for`", _aiokafka, 0.8),
    _Pair("`AsyncConsumer.run`", _async_run, "`Consumer.run`", _run, 0.5),
)


def measure(given: Namespace) -> Consumed:
    """Let all read the same topic, in turn."""
    messages, topic = given.messages, "messages"
    used: dict[Read, list[Usage]] = {}
    with (
        EmbeddedBroker(given.folder / "broker") as broker,
        running_system(settings_in(given.folder, "clients", broker)) as connection,
    ):
        fill(connection, topic, messages, 0)
        for _ in range(ROUNDS):
            for pair in PAIRS:
                for read in (pair.read, pair.read_otherwise):
                    used.setdefault(read, []).append(read(connection, topic, messages))
    pairs = [
        Paired(
            pair.way,
            pair.other,
            per_core_s=_median(used[pair.read], lambda one: one.cpu_s),
            other_per_core_s=_median(used[pair.read_otherwise], lambda one: one.cpu_s),
            per_s=_median(used[pair.read], lambda one: one.seconds),
            other_per_s=_median(used[pair.read_otherwise], lambda one: one.seconds),
            least=pair.least,
        )
        for pair in PAIRS
    ]
    return Consumed(given.machine, messages, len(VALUE), QUEUES, ROUNDS, pairs)


def _median(usages: list[Usage], seconds_of: Callable[[Usage], float]) -> float:
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
