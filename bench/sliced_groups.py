"""Slices of one partition beside Kafka's own group: work done, what it costs, and what an uneven key delays."""

import time
import uuid
from argparse import Namespace
from collections import Counter
from itertools import cycle

import psutil  # type: ignore[import-untyped]
from msgspec import Struct

from bench.client_throughput import VALUE, Ours
from bench.figures import Columns, Latency, digits, latency_of, table_of
from bench.frame import Bench, Chapter, numbers, option, times, whole
from bench.machine import Machine
from bench.running_system import make_topic, running_system, settings_in
from bench.slice_members import Place, members_of
from wakeroll.admin import Admin
from wakeroll.connection import Connection
from wakeroll_model.slices import MOST, slice_of
from wakeroll_pipeline.local.broker import EmbeddedBroker

MEMBERS = [1, 2, 8, 32]
HANDLE_MS = 10.0
"""How long the handler works on each message."""
KEYS = 2_000
ROUNDS = 3
PREFETCH = 100
"""Read ahead so few that what is read in a measurement is about what is processed."""
ONE_SLICES = 8
"""Slices of the one member whose throughput is compared."""
UNEVEN_MEMBERS = 2
"""They have four slices each: the one with the uneven key shares its member with three others."""
UNEVEN_SLICES = 8
RATE = 40
"""Messages per second of each slice; a handler could process 100."""
UNEVEN_PREFETCH = 50
"""So few that the uneven slice is full after a second."""
UNEVEN_PART = 0.3


class Worked(Struct, frozen=True):
    """The work of so many members, with as many slices of one partition."""

    members: int
    per_s: float
    """Messages that were processed per second."""
    kafka_per_s: float
    """The same of Kafka's own group with as many members."""
    amplification: float
    """Messages that the members read per message that they processed."""
    broker_cores: float
    """CPU time of the broker's process per second."""
    kafka_broker_cores: float
    disorder: int
    """Messages that did not follow the one before of their key; must be 0."""


class Uneven(Struct, frozen=True):
    """How long messages of all other slices waited for the handler."""

    even: Latency
    uneven: Latency
    """While one key had `UNEVEN_PART` of all messages."""


class Sliced(Struct, frozen=True):
    """What `slices` found."""

    machine: Machine
    seconds: float
    handle_ms: float
    works: list[Worked]
    messages: int
    """Of the comparison of one member."""
    whole_per_s: float
    """Messages per second of one member with a handler that does nothing, of a partition that is not cut."""
    sliced_per_s: float
    """The same of a partition that is cut into `ONE_SLICES`."""
    uneven: Uneven


_COLUMNS: Columns[Worked] = (
    ("members, slices", lambda work: str(work.members)),
    ("messages/s", lambda work: digits(work.per_s)),
    ("Kafka's group", lambda work: digits(work.kafka_per_s)),
    ("ratio", lambda work: f"{work.per_s / work.kafka_per_s:.1f}"),
    ("read per message", lambda work: f"{work.amplification:.1f}"),
    ("broker's cores", lambda work: f"{work.broker_cores:.2f}"),
    ("with Kafka's group", lambda work: f"{work.kafka_broker_cores:.2f}"),
    ("out of order", lambda work: str(work.disorder)),
)


def section(found: Sliced) -> str:
    """Return the chapter of these figures."""
    even, uneven = found.uneven.even, found.uneven.uneven
    return f"""\
One partition, and a handler that takes {found.handle_ms:g} ms for each message, with one call at a time for each slice.
Members are in at most eight processes. Each has one [slice](slices.md) and reads the whole partition: *read per
message* counts what all members read for one message that is processed. Kafka's own group has as many members on the
same broker, of which one has the partition. The order of each key is checked on every message. Each figure is of
{found.seconds:g} s.

{table_of(_COLUMNS, found.works)}

One member with a handler that does nothing reads {found.messages:,} messages of {len(VALUE)} bytes:
{found.whole_per_s:,.0f} per second of a partition that is not cut, and {found.sliced_per_s:,.0f} of one that is cut
into {ONE_SLICES} slices, which is {found.sliced_per_s / found.whole_per_s:.2f} of it. The goal was 0.9,
which Python does not reach: by a profile, to find the slice of each message and to keep the position of each slice
takes 18 % of the time in which the interpreter works, and calls get fewer messages each. With a handler that does any
work, this is not visible.

{UNEVEN_MEMBERS} members have {UNEVEN_SLICES} slices with {RATE} messages per second each. Then one key gets as many
more as make {UNEVEN_PART:.0%} of all messages, which is more than its slice can process. Messages of the other slices
wait {even.p99_ms:,.0f} ms for the handler before that (p99), and {uneven.p99_ms:,.0f} ms with it, which is
{uneven.p99_ms / max(even.p99_ms, 1):.2f} times as long (wanted: 1.2).
"""


def measure(given: Namespace) -> Sliced:
    """Let members of one partition work, with slices and in Kafka's own group."""
    with (
        EmbeddedBroker(given.folder / "broker") as broker,
        running_system(settings_in(given.folder, "slices", broker)) as connection,
    ):
        system = _System(connection, broker.pid, given.seconds, given.warmup)
        works = [system.work(members) for members in given.members]
        whole_per_s, sliced_per_s = system.one_member(given.messages)
        uneven = Uneven(system.waits(0.0), system.waits(UNEVEN_PART))
    return Sliced(given.machine, given.seconds, HANDLE_MS, works, given.messages, whole_per_s, sliced_per_s, uneven)


class _System:
    """A running system, and how long to look at it."""

    def __init__(self, connection: Connection, broker_pid: int, seconds: float, warmup_s: float) -> None:
        self._connection = connection
        self._broker = psutil.Process(broker_pid)
        self._seconds, self._warmup_s = seconds, warmup_s

    def work(self, members: int) -> Worked:
        """Let so many members process a backlog that is more than they can, and as many of Kafka's own group."""
        backlog = round(members * 1_000 / HANDLE_MS * (self._seconds + self._warmup_s) * 1.5) + KEYS
        per_s, amplification, broker_cores, disorder = self._of(members, backlog, kafka=False)
        kafka_per_s, _, kafka_broker_cores, _ = self._of(members, backlog, kafka=True)
        return Worked(members, per_s, kafka_per_s, amplification, broker_cores, kafka_broker_cores, disorder)

    def _of(self, members: int, backlog: int, *, kafka: bool) -> tuple[float, float, float, int]:
        slices = min(members, MOST)
        place = self._place(1 if kafka else slices)
        with members_of(place, members, HANDLE_MS, kafka=kafka, prefetch=PREFETCH) as those:
            those.wait_until(lambda seen: seen.owned >= (1 if kafka else slices), "everything is assigned")
            _send(self._connection, place.topic, backlog)
            those.wait_until(lambda seen: seen.handled > 0, "the first message is processed")
            time.sleep(self._warmup_s)
            before, used_s, began_s = those.seen(), self._broker_cpu_s(), time.monotonic()
            time.sleep(self._seconds)
            used_s, seconds, after = self._broker_cpu_s() - used_s, time.monotonic() - began_s, those.seen()
        handled = after.handled - before.handled
        return handled / seconds, (after.read - before.read) / max(handled, 1), used_s / seconds, after.disorder

    def _broker_cpu_s(self) -> float:
        used = self._broker.cpu_times()
        return float(used.user + used.system)

    def one_member(self, messages: int) -> tuple[float, float]:
        """Return messages per second of one member that does nothing with them: not cut, and cut."""
        topics = {slices: self._topic() for slices in (1, ONE_SLICES)}
        for topic in topics.values():
            _send(self._connection, topic, messages, VALUE)
        best = dict.fromkeys(topics, 0.0)
        for _ in range(ROUNDS):
            for slices, topic in topics.items():
                group_id = self._group(topic, slices)
                used = Ours(group_id=group_id).run(self._connection, topic, messages)
                best[slices] = max(best[slices], used.messages / used.seconds)
        return best[1], best[ONE_SLICES]

    def waits(self, part: float) -> Latency:
        """Return how long messages wait, without those of the slice whose key gets `part` of all messages."""
        place = self._place(UNEVEN_SLICES)
        keys = [f"key-{number}".encode() for number in range(KEYS)]
        heavy = keys[0]
        others = [key for key in keys if slice_of(key, UNEVEN_SLICES) != slice_of(heavy, UNEVEN_SLICES)]
        light = RATE * (UNEVEN_SLICES - 1)
        per_s = light + (light * part / (1 - part) if part else RATE)
        with members_of(place, UNEVEN_MEMBERS, HANDLE_MS, prefetch=UNEVEN_PREFETCH) as those:
            those.wait_until(lambda seen: seen.owned >= UNEVEN_SLICES, "all slices are assigned")
            with _Traffic(self._connection, place.topic, heavy, others, light, per_s) as traffic:
                traffic.go_on_for(self._warmup_s)
                those.seen()
                traffic.go_on_for(self._seconds)
                waits = those.seen().waits_ms
        return latency_of(wait for key, some in waits.items() if key in set(others) for wait in some)

    def _topic(self) -> str:
        topic = f"slices-{uuid.uuid4().hex[:6]}"
        make_topic(self._connection, topic, 1)
        return topic

    def _place(self, slices: int) -> Place:
        topic, connection = self._topic(), self._connection
        return Place(connection.bootstrap, connection.topics.prefix, self._group(topic, slices), topic)

    def _group(self, topic: str, slices: int) -> str:
        """Return a new group that has cut a topic."""
        group_id = f"billing-{uuid.uuid4().hex[:6]}"
        if slices > 1:
            connection = self._connection
            with Admin(connection.bootstrap, prefix=connection.topics.prefix) as admin:
                admin.configure(group_id, slices={topic: slices}, by="bench")
        return group_id


class _Traffic:
    """Messages at an even pace, a part of them of one key; each value counts those of its key."""

    def __init__(
        self, connection: Connection, topic: str, heavy: bytes, others: list[bytes], light: float, per_s: float
    ) -> None:
        self._producer, self._topic = connection.producer(), topic
        self._heavy, self._others = heavy, cycle(others)
        self._light_part, self._per_s = light / per_s, per_s
        self._sent = Counter[bytes]()
        self._owed = 0.0
        """Messages of other keys that are to be sent before the next one of the heavy key."""

    def __enter__(self) -> "_Traffic":
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.flush(10)

    def go_on_for(self, seconds: float) -> None:
        """Send for so long."""
        began_s, sent = time.monotonic(), 0
        while (passed_s := time.monotonic() - began_s) < seconds:
            while sent < passed_s * self._per_s:
                self._send()
                sent += 1
            self._producer.poll(0)
            time.sleep(0.002)

    def _send(self) -> None:
        self._owed += self._light_part
        key = self._heavy
        if self._owed >= 1:
            self._owed -= 1
            key = next(self._others)
        self._producer.produce(self._topic, str(self._sent[key]).encode(), key=key, partition=0)
        self._sent[key] += 1


def _send(connection: Connection, topic: str, messages: int, value: bytes = b"") -> None:
    """Send messages of all keys in turn; an empty value stands for the number of the message among those of its key."""
    producer = connection.producer(**{"linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for number in range(messages):
        key, text = f"key-{number % KEYS}".encode(), value or str(number // KEYS).encode()
        while True:
            try:
                producer.produce(topic, text, key=key, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


BENCH = Bench(
    "slices",
    "Members of one partition, with slices and in Kafka's own group.",
    "seven minutes",
    measure,
    options=(
        option("--members", type=numbers, default=MEMBERS, help="numbers, by comma, each a power of two"),
        option("--messages", type=whole, default=300_000, help="of the comparison of one member"),
        *times("number of members, and of each kind of traffic", seconds=15.0, warmup_s=4.0),
    ),
    chapters=(Chapter("Slices", section),),
    figures=Sliced,
    file="slices.json",
    run="The run of slices",
)
