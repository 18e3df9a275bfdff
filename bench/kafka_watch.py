"""The cost of `watch-kafka` in a large cluster: its own, and the broker's.

Commits of many groups are appended to `__consumer_offsets` as a coordinator of Kafka writes them. A broker lets only
its administrators' client id do that.
"""

import re
import struct
import sys
import time
from argparse import Namespace
from pathlib import Path

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition
from msgspec import Struct

from bench.figures import table
from bench.frame import Bench, Chapter, NotMeasured, option, times, whole
from bench.machine import Machine
from bench.process_usage import CpuMeter, resident_mib
from bench.running_system import until
from wakeroll.epoch_ms import now_ms
from wakeroll.partition_offsets import ends_of
from wakeroll_model.coordinator_log.coordinator_records import TOPIC
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.settings import Settings

PARTITIONS = 50
"""Of `__consumer_offsets`, as Kafka has them by default."""
QUEUES = 10
"""Of each group."""
_CHUNK_S = 0.02
_LIMIT_S = 180.0
_PAST = re.compile(r"the past of all groups is on record: (\d+) records in (\S+) s")


class Load(Struct, frozen=True):
    """A time with commits, with a watch or without one."""

    commits: int
    """Commits per second that were acknowledged."""
    broker: float
    """CPU of the broker, as a share of one core."""
    watch: float = 0.0
    """CPU of the watch, as a share of one core."""


class Watched(Struct, frozen=True):
    """All of it."""

    machine: Machine
    groups: int
    seconds: float
    alone: Load
    watched: Load
    past_records: int
    """Records that were there when the watch began."""
    past_s: float
    """Time in which it read them (s)."""
    behind_s: float
    """Time after the last commit until the tables had all of them, sampled (s)."""
    memory_mib: float
    rows: int
    """Rows of `offsets` and `events` together at the end."""


def section(found: Watched) -> str:
    """Return the chapter of these figures."""
    rows = [
        (name, f"{load.commits:,}", f"{load.broker:.2f}", f"{load.watch:.2f}" if load.watch else "")
        for name, load in (("without a watch", found.alone), ("with `watch-kafka`", found.watched))
    ]
    return f"""\
{found.groups:,} groups of Kafka with {QUEUES} queues each commit in turn, for {found.seconds:g} s without a watch,
and with one. The producer of these commits, the broker and the watch share one machine.

{table(("", "commits/s", "broker, cores", "watch, cores"), rows)}

At its start, the watch read the {found.past_records:,} records of the time before in {found.past_s:.1f} s, which is
{found.past_records / found.past_s:,.0f} records per second; there were no commits meanwhile. After the last commit, it
needed {found.behind_s:.1f} s until its tables were complete. Of the commits of a queue between two samples, the last
one is on record: {found.rows:,} rows of `events` and `offsets`. The watch had {found.memory_mib:,.0f} MiB of memory.

Measured on {found.machine.measured} with {found.machine.sentence}.
"""


def measure(given: Namespace) -> Watched:
    """Append commits without a watch, and then with one."""
    settings = {"offsets.topic.num.partitions": PARTITIONS}
    with EmbeddedBroker(given.folder / "broker", settings=settings) as broker:
        _create_topic(broker.bootstrap, given.folder / "broker")
        commits = _Commits(broker.bootstrap, given.groups)
        commits.append(given.rate, given.warmup)
        alone = _load(commits, given, broker, None)
        home = Settings(home=str(given.folder / "home"))
        command = [sys.executable, "-m", "wakeroll_pipeline.cli", "watch-kafka"]
        command += ["--bootstrap", broker.bootstrap, "--home", home.home]
        with Child("watch-kafka", command, log=given.folder / "watch.log") as watch:
            log = given.folder / "watch.log"
            until("the past is on record", lambda: _PAST.search(log.read_text()) is not None, _LIMIT_S, log)
            past = _PAST.search(log.read_text())
            assert past is not None, "it is there"
            commits.append(given.rate, given.warmup)
            watched = _load(commits, given, broker, watch)
            ended_s, ends = time.monotonic(), commits.ends()
            until("the commits are on record", lambda: _is_reached(home, ends), _LIMIT_S, log)
            behind_s, memory_mib = time.monotonic() - ended_s, resident_mib(watch.pid)
        with duck_ledger(home.warehouse) as ledger:
            [[rows]] = ledger.stream("select (select count(*) from offsets) + (select count(*) from events)")
    return Watched(
        machine=given.machine,
        groups=given.groups,
        seconds=given.seconds,
        alone=alone,
        watched=watched,
        past_records=int(past[1]),
        past_s=float(past[2]),
        behind_s=round(behind_s, 1),
        memory_mib=memory_mib,
        rows=rows,
    )


def _load(commits: "_Commits", given: Namespace, broker: EmbeddedBroker, watch: Child | None) -> Load:
    assert broker.pid is not None, "it runs"
    of_broker, of_watch = CpuMeter(broker.pid), None if watch is None else CpuMeter(watch.pid)
    rate = commits.append(given.rate, given.seconds)
    return Load(rate, round(of_broker.share(), 3), 0.0 if of_watch is None else round(of_watch.share(), 3))


def _create_topic(bootstrap: str, log: Path) -> None:
    """Let the broker create `__consumer_offsets`, as for the first group of a cluster."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "first", "log_level": 0})
    consumer.subscribe(["none"])

    def is_there() -> bool:
        consumer.poll(0)
        found = consumer.list_topics(timeout=10).topics.get(TOPIC)
        return found is not None and len(found.partitions) == PARTITIONS

    until(f"there is {TOPIC}", is_there, _LIMIT_S, log)
    consumer.close()


class _Commits:
    """Appends commits of many groups, each queue in its turn, at a steady rate."""

    def __init__(self, bootstrap: str, groups: int) -> None:
        self._bootstrap = bootstrap
        settings = {"bootstrap.servers": bootstrap, "client.id": "__admin_client", "linger.ms": 20, "log_level": 0}
        self._producer = Producer(settings | {"queue.buffering.max.messages": 1_000_000})
        self._keys = [
            (group % PARTITIONS, _key(f"group-{group:05}", f"topic-{group % 100:03}", queue))
            for group in range(groups)
            for queue in range(QUEUES)
        ]
        self._next = 0

    def append(self, rate: int, seconds: float) -> int:
        """Append for so long; return the number of acknowledged commits per second.

        Raises:
            NotMeasured: the broker does not acknowledge them.
        """
        began_s, appended, keys = time.monotonic(), 0, self._keys
        while (passed_s := time.monotonic() - began_s) < seconds:
            at_ms = now_ms()
            for _ in range(round(rate * passed_s) - appended):
                number, key = keys[self._next % len(keys)]
                value = struct.pack(">hqihq", 3, self._next // len(keys), -1, 0, at_ms)
                self._producer.produce(TOPIC, value, key, partition=number)
                self._next += 1
                appended += 1
            self._producer.poll(0)
            time.sleep(_CHUNK_S)
        if self._producer.flush(60):
            raise NotMeasured("the broker does not acknowledge the commits")
        return round(appended / (time.monotonic() - began_s))

    def ends(self) -> dict[int, int]:
        """Return partition -> its end."""
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "unused"})
        ends = {number: ends_of(consumer, TopicPartition(TOPIC, number), 10)[1] for number in range(PARTITIONS)}
        consumer.close()
        return ends


def _key(group: str, topic: str, queue: int) -> bytes:
    """Return the key of a commit, as the coordinator of Kafka writes it."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in (group, topic))
    return b"\0\1" + names + struct.pack(">i", queue)


def _is_reached(settings: Settings, ends: dict[int, int]) -> bool:
    """Return whether everything before these ends of `__consumer_offsets` is on record; look once a second only."""
    time.sleep(1.0)  # the query costs the watch its processor core
    query = "select value from events where type = 'progress' order by \"offset\" desc limit 1"
    with duck_ledger(settings.warehouse) as ledger:
        for (value,) in ledger.stream(query):
            found: dict[str, int] = msgspec.json.decode(value)["next_offsets"]
            return {int(number): offset for number, offset in found.items()} == ends
    return False


BENCH = Bench(
    "kafka_watch",
    "The cost of `watch-kafka` with 10,000 groups of Kafka that commit 100,000 times per second.",
    "up to eight minutes",
    measure,
    options=(
        option("--groups", type=whole, default=10_000, help="of Kafka"),
        option("--rate", type=whole, default=100_000, help="commits per second"),
        *times("load", seconds=60.0, warmup_s=10.0),
    ),
    chapters=(Chapter("Kafka's own groups: the cost of a watch", section),),
    figures=Watched,
    file="kafka.json",
    run="kafka_watch",
)
