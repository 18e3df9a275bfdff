"""The `run` command: both queries in one Spark session, until a signal stops them."""

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from model import config
from pipeline.jobs import coordinate, record
from pipeline.jobs.catch_up import catch_up
from pipeline.jobs.metrics_sampler import sampled
from pipeline.jobs.supervise import POLL_S, JobFailed, on_signals, raise_if_dead, stop_between_batches, wait_until
from pipeline.kafka.control_topics import ensure_topics
from pipeline.kafka.topic_admin import Cluster
from pipeline.metrics.metrics_server import metrics_served
from pipeline.metrics.run_metrics import RunMetrics
from pipeline.operators.shard_operator import Counts
from pipeline.recovery.checkpoint_state import has_batches, refuse_foreign
from pipeline.recovery.initial_state import place_of
from pipeline.recovery.log_gaps import refuse_shortened, refuse_to_forget
from pipeline.recovery.log_marks import Mark, Marks, Watch, refuse_replaced
from pipeline.recovery.snapshots import take_snapshots
from pipeline.runtime.deciding_queries import lock_of, machines_of, queries_of, query_of, record_lock, topics_of
from pipeline.runtime.process_lock import only_one
from pipeline.runtime.run_status import QueryStatus, Status, write_status
from pipeline.settings import Settings
from pipeline.spark.session import jvm_of, start_session
from wakeroll.connection import Connection
from wakeroll.epoch_ms import now_ms
from wakeroll.errors import NotReachable, WakerollError
from wakeroll.keys import key_to_sign, warning_of

log = logging.getLogger("wakeroll.run")

Start = Callable[[SparkSession, Settings], StreamingQuery]
JOBS: Mapping[str, Start] = {
    coordinate.NAME: coordinate.start,
    record.NAME: record.start,
}
_FIRST_SNAPSHOT_MS = 60_000
"""Longest time from the start to the first snapshot (ms), so that a new deployment can soon be restored."""
_MARKS_MS = 5_000
"""How often to compare applied records with the log (ms)."""


def run(settings: Settings, jobs: Sequence[str] = tuple(JOBS)) -> None:
    """Run the jobs until SIGTERM or SIGINT; the current batch is finished first.

    Raises:
        JobFailed: a query ended by itself.
        InvalidTopics: the control topics are not as this deployment needs them.
        InvalidUsage: a checkpoint belongs to another deployment, is used by another process, was lost, or is ahead of
            the log, or the log was replaced; or the port of the metrics is in use.
        InvalidKeys: the keys cannot be read, or there is no observer key.
        NotReachable: no broker answered.
        SparkFailed, JarsMissing: Spark cannot be started.
    """
    stop = threading.Event()
    on_signals(lambda: os._exit(130))  # nothing is running yet that must be stopped
    if coordinate.NAME in jobs:
        key_to_sign(settings.read_keys(), "observer")  # without this key the coordinator would reject all ticks
        if warning := warning_of(settings.keys):
            log.warning("%s", warning)
        refuse_foreign(settings.checkpoint(query_of(settings)), topics_of(settings), settings.partitions)
    if record.NAME in jobs:
        topics = settings.connection.topics
        refuse_foreign(settings.checkpoint(record.NAME), (*topics.control, topics.decisions), settings.partitions)
    metrics = RunMetrics(decides=coordinate.NAME in jobs, writes=record.NAME in jobs)
    with ExitStack() as stack:
        stack.enter_context(
            metrics_served(metrics.registry, metrics.health, settings.metrics_address, settings.metrics_port)
        )
        for finding in ensure_topics(
            settings.connection,
            partitions=settings.partitions,
            inbox_partitions=settings.inbox_partitions,
            replication=settings.replication,
        ):
            log.warning("%s", finding)
        if coordinate.NAME in jobs:
            for machine in machines_of(settings):
                stack.enter_context(only_one(lock_of(settings, machine), "decides from this checkpoint"))
            refuse_to_forget(settings)
            refuse_shortened(settings, query_of(settings))
            refuse_replaced(settings)
        if record.NAME in jobs:
            stack.enter_context(only_one(record_lock(settings), "writes these tables"))
            refuse_shortened(settings, record.NAME)
        _run(settings, jobs, stop, metrics)


def _run(settings: Settings, jobs: Sequence[str], stop: threading.Event, metrics: RunMetrics) -> None:
    spark = start_session(settings, "wakeroll")
    started_ms = now_ms()
    counts = Counts.start(spark)
    metrics.watch_jvm(jvm_of(spark))
    starts: dict[str, Start] = {
        coordinate.NAME: partial(coordinate.start, counts=counts),
        record.NAME: partial(record.start, report=metrics.tables.did_upkeep),
    }
    topics = settings.connection.topics
    reads = {coordinate.NAME: topics_of(settings), record.NAME: (*topics.control, topics.decisions)}
    queries = []
    for name in jobs:
        its_name = record.NAME if name == record.NAME else query_of(settings)
        catch_up(settings, its_name, reads[name], partial(starts[name], spark))
        queries.append(starts[name](spark, settings))
    on_signals(stop.set)
    snapshot_due_ms = started_ms + min(settings.snapshot_interval_ms, _FIRST_SNAPSHOT_MS)
    watch, marks_due_ms = Watch(settings), started_ms + _MARKS_MS
    large: frozenset[str] = frozenset()
    log.info("running %s on %s", ", ".join(jobs), settings.bootstrap)
    try:
        with sampled(settings, metrics, queries, counts):
            while not stop.wait(POLL_S):
                metrics.health.beat("run")
                marks = {place_of(name): Mark(*mark) for name, mark in counts.marks.value.items()}
                for query in queries:
                    _raise_if_dead(query, settings, marks)
                if now_ms() >= marks_due_ms:
                    marks_due_ms = now_ms() + _MARKS_MS
                    watch.look(marks)
                last = {str(query.name): _status_of(query) for query in queries}
                states = dict(sorted(counts.bytes.value.items()))
                failures = counts.failures.value
                applied = dict(counts.marks.value)
                status = Status(os.getpid(), settings.bootstrap, started_ms, now_ms(), last, failures, states, applied)
                write_status(Path(settings.home), status)
                large = _warn_of_large(states, large)
                is_known = any(has_batches(settings, query) for query in queries_of(settings))
                if record.NAME in jobs and now_ms() >= snapshot_due_ms and is_known:
                    snapshot_due_ms = now_ms() + settings.snapshot_interval_ms
                    shards = take_snapshots(spark, settings)
                    metrics.tables.took_snapshots(shards)
                    log.info("snapshots of %d shards", shards)
            log.info("stopping")
            metrics.health.stopping()
            for query in queries:
                if query.name == record.NAME:
                    _await_record(query, settings.connection, settings.partitions)
                stop_between_batches(query)
    finally:
        spark.stop()


def _raise_if_dead(query: StreamingQuery, settings: Settings, marks: Marks) -> None:
    """Raise an error if the query has ended; name the reason if its log has lost records.

    Raises:
        JobFailed: the query has ended.
        InvalidUsage: the query has ended, because the log ends before its progress or was replaced.
    """
    try:
        raise_if_dead(query)
    except JobFailed:
        with suppress(NotReachable):
            refuse_shortened(settings, str(query.name))
            refuse_replaced(settings, marks)
        raise


def _warn_of_large(states: Mapping[str, int], known: frozenset[str]) -> frozenset[str]:
    """Warn of each shard whose state has become large; return all large ones."""
    large = frozenset(name for name, size in states.items() if size >= config.LARGE_STATE_BYTES)
    for name in sorted(large - known):
        log.warning("the state of %s has grown to %d MiB; see `wakeroll doctor`", name, states[name] >> 20)
    return large


def _await_record(query: StreamingQuery, connection: Connection, partitions: int) -> None:
    """Wait until all decisions made so far are written; give up soon if no broker answers."""
    topic = connection.topics.decisions
    try:
        ends = Cluster(connection).all_offsets((topic, partition) for partition in range(partitions))
    except WakerollError as error:
        log.warning("stopping before the last decisions are written to the tables: %s", error)
        return

    def written() -> bool:
        progress = query.lastProgress
        sources = progress["sources"] if progress else []
        reached = json.loads(sources[0]["endOffset"] or "{}").get(topic, {}) if sources else {}
        return not query.isActive or all(reached.get(str(at), 0) >= end for (_, at), (_, end) in ends.items())

    wait_until(written)


def _status_of(query: StreamingQuery) -> QueryStatus:
    progress = query.lastProgress
    if progress is None:
        return QueryStatus(-1, 0, 0)
    return QueryStatus(
        int(progress["batchId"]),
        int(progress["numInputRows"]),
        int(progress["durationMs"].get("triggerExecution", 0)),
    )
