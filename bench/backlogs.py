"""How fast `coordinate` works off a backlog, compared with a Spark job that only reads it.

``python -m bench.backlogs [--records 2000000] [--groups 100 1000 10000 100000]`` prints two tables. The first has the
throughput with many heartbeats that change nothing. The second has the backlog of an outage of ten minutes, in which
10,000 members sent a heartbeat every ten seconds: the time until it is worked off, and how many members were evicted.
It takes some minutes. With 100,000 groups, a tenth of the records are the first heartbeats of their members.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path

import msgspec
from confluent_kafka.admin import NewTopic
from msgspec import structs
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.arguments import add_folder
from bench.machine import this_machine
from bench.running_system import settings_in
from bench.settled_state import prepare_settled
from bench.text_tables import digits, table
from wakeroll.connection import close_producer
from wakeroll.epoch_ms import now_ms
from wakeroll_model.config import MAX_RECORD_BYTES, TICK_MS
from wakeroll_model.decisions import AnyDecision, Membership
from wakeroll_model.events import Tick
from wakeroll_pipeline.jobs import coordinate
from wakeroll_pipeline.jobs.supervise import raise_if_dead
from wakeroll_pipeline.kafka.log_spans import Span, read_spans
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sources.kafka_source import records
from wakeroll_pipeline.spark.session import start_session

RECORDS = 2_000_000
GROUPS = (100, 1_000, 10_000, 100_000)
MEMBERS = 2
OUTAGE_S = 600
OUTAGE_GROUPS, OUTAGE_MEMBERS = 1_000, 10
PERIOD_S = 10
"""Between two heartbeats of a member."""
_POLL_S = 0.05

Rows = Iterable[tuple[int, bytes | None, bytes]]
"""Log time (epoch ms), key and value of records."""


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.backlogs", description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=RECORDS, help="of each backlog (%(default)s)")
    parser.add_argument("--groups", type=int, nargs="*", default=GROUPS, help="numbers of groups (%(default)s)")
    add_folder(parser, "bench-backlogs")
    given = parser.parse_args(arguments)
    machine = this_machine()
    shutil.rmtree(given.folder, ignore_errors=True)
    with EmbeddedBroker(given.folder / "broker") as broker:
        first = settings_in(given.folder, "first", broker)
        spark = start_session(first, "bench.backlogs")
        try:
            rows = [_throughput(spark, broker, given.folder, groups, given.records) for groups in given.groups]
            print(table(("groups", "coordinate, records/s", "reading only, records/s", "ratio"), rows))
            print()
            print(_outage(spark, broker, given.folder))
        finally:
            spark.stop()
    print(f"\n{machine.sentence_with_load}")
    return 0


def _throughput(
    spark: SparkSession, broker: EmbeddedBroker, folder: Path, groups: int, count: int
) -> tuple[str, str, str, str]:
    """Return a row: heartbeats that change nothing, of all members in turn."""
    settings = _deployment(folder, f"backlog-{groups}", broker)
    population = prepare_settled(settings, groups, MEMBERS, _before_outage_ms())
    values = [(member[0].encode(), msgspec.json.encode(population.beat(*member))) for member in population.everybody()]
    at_ms = now_ms()
    _append(settings, ((at_ms, key, value) for key, value in islice(cycle(values), count)))
    _read_only(spark, settings, count, "warm-up")
    floor_s = _read_only(spark, settings, count, "floor")
    ours_s = _coordinate(spark, settings, count)
    return f"{groups:,}", digits(count / ours_s), digits(count / floor_s), digits(floor_s / ours_s)


def _outage(spark: SparkSession, broker: EmbeddedBroker, folder: Path) -> str:
    """Return the table of an outage: ticks and heartbeats of ten minutes, all with their own log times."""
    settings = _deployment(folder, "outage", broker)
    population = prepare_settled(settings, OUTAGE_GROUPS, OUTAGE_MEMBERS, _before_outage_ms())
    beats = [(who[0].encode(), msgspec.json.encode(population.beat(*who))) for who in population.everybody()]
    begin_ms = population.now_ms
    tick = msgspec.json.encode(Tick())

    def rows() -> Iterator[tuple[int, bytes | None, bytes]]:
        for second in range(OUTAGE_S):
            at_ms = begin_ms + 1_000 * second
            yield at_ms, None, tick
            for key, value in beats[second % PERIOD_S :: PERIOD_S]:
                yield at_ms, key, value

    assert TICK_MS == 1_000, "a tick per second"
    count = _append(settings, rows())
    seconds = _coordinate(spark, settings, count)
    evicted = sum(isinstance(one, Membership) and one.change == "expired" for one in _decisions(settings))
    members = OUTAGE_GROUPS * OUTAGE_MEMBERS
    return table(
        ("members", "outage s", "records", "worked off in s", "evicted"),
        [(f"{members:,}", f"{OUTAGE_S}", f"{count:,}", digits(seconds), f"{evicted:,}")],
    )


def _deployment(folder: Path, prefix: str, broker: EmbeddedBroker) -> Settings:
    """Create the topics of one shard; log times are given, because an outage has passed already."""
    settings = structs.replace(settings_in(folder, prefix, broker), partitions=1, state_partitions=1)
    topics = settings.connection.topics
    config = {"message.timestamp.type": "CreateTime", "max.message.bytes": str(MAX_RECORD_BYTES)}
    wanted = [NewTopic(name, 1, 1, config=config) for name in (*topics.control, topics.decisions, topics.inbox)]
    for error in Cluster(settings.connection).create(wanted).values():
        assert error is None, str(error)
    return settings


def _before_outage_ms() -> int:
    return now_ms() - 1_000 * OUTAGE_S


def _append(settings: Settings, rows: Rows) -> int:
    """Append records to the groups topic; return their number."""
    topic, count = settings.connection.topics.groups, 0
    producer = settings.connection.producer(**{"linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    for at_ms, key, value in rows:
        while True:
            try:
                producer.produce(topic, value, key=key, partition=0, timestamp=at_ms)
                break
            except BufferError:
                producer.poll(0.1)
        count += 1
    assert producer.flush(60) == 0
    close_producer(producer, 1)
    return count


def _decisions(settings: Settings) -> Iterator[AnyDecision]:
    """Yield all decisions that were published; nobody publishes any more."""
    place = settings.connection.topics.decisions, 0
    [log] = Cluster(settings.connection).all_offsets([place]).values()
    for message in read_spans(settings.connection, {place: Span(*log)}):
        yield msgspec.json.decode(message.value() or b"", type=AnyDecision)


def _read_only(spark: SparkSession, settings: Settings, count: int, name: str) -> float:
    """Return how long Spark takes to read the log, and nothing else (s)."""
    events = records(spark, settings.connection, settings.connection.topics.control, settings.max_offsets_per_batch)
    query = (
        events.coalesce(1)
        .writeStream.format("noop")
        .option("checkpointLocation", settings.checkpoint(name).for_spark())
        .queryName(name)
        .start()
    )
    return _seconds(query, count)


def _coordinate(spark: SparkSession, settings: Settings, count: int) -> float:
    """Return how long the deciding query takes for the log (s)."""
    return _seconds(coordinate.start(spark, settings), count)


def _seconds(query: StreamingQuery, count: int) -> float:
    """Return the time from the start of a query until it has committed so many records (s); stop it."""
    began_s, done = time.monotonic(), 0
    seen = -1
    while done < count:
        time.sleep(_POLL_S)
        raise_if_dead(query)
        for progress in query.recentProgress:
            if progress["batchId"] > seen:
                seen = progress["batchId"]
                done += progress["numInputRows"]
    seconds = time.monotonic() - began_s
    query.stop()
    return seconds


if __name__ == "__main__":
    sys.exit(main())
