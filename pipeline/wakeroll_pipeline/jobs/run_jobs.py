"""The `run` command: both queries in one Spark session, until a signal stops them."""

import json
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib import import_module

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from wakeroll.connection import Connection
from wakeroll.epoch_ms import now_ms
from wakeroll.errors import NotReachable, WakerollError
from wakeroll.keys import require_role, warning_of
from wakeroll_model import config, feature_levels
from wakeroll_model.signature_bytes import PUBLIC_KEYS_LEVEL
from wakeroll_model.signing import Keys
from wakeroll_model.valid_keys import on_record
from wakeroll_pipeline.jobs import coordinate, record
from wakeroll_pipeline.jobs.cold_start import when_reachable
from wakeroll_pipeline.jobs.deciding import Deciding
from wakeroll_pipeline.jobs.metrics_sampler import sampled
from wakeroll_pipeline.jobs.recording_part import Recording
from wakeroll_pipeline.jobs.supervise import (
    LAST_BATCHES_S,
    POLL_S,
    JobFailed,
    raise_if_dead,
    stop_between_batches,
    stoppable_session,
    wait_until,
)
from wakeroll_pipeline.kafka.control_topics import ensure_chain_topic
from wakeroll_pipeline.kafka.new_deployment import ensure_deployment
from wakeroll_pipeline.kafka.published_lines import LinePublisher
from wakeroll_pipeline.kafka.refused_login import login_watched
from wakeroll_pipeline.kafka.rights_check import require_rights
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.metrics.metrics_server import metrics_served
from wakeroll_pipeline.metrics.process_metrics import expose_process
from wakeroll_pipeline.metrics.run_metrics import RunMetrics
from wakeroll_pipeline.metrics.systemd_reports import reported_to_systemd
from wakeroll_pipeline.operators.shard_operator import Counts
from wakeroll_pipeline.recovery.batch_files import discard_incomplete
from wakeroll_pipeline.recovery.checkpoint_state import latest_recording, refuse_foreign
from wakeroll_pipeline.recovery.log_gaps import refuse_shortened, refuse_to_forget
from wakeroll_pipeline.recovery.log_marks import marks_in, refuse_replaced
from wakeroll_pipeline.recovery.lost_tables import refuse_lost_tables
from wakeroll_pipeline.runtime.deciding_queries import query_of, topics_of
from wakeroll_pipeline.runtime.process_locks import ProcessLocks, process_locks, process_name
from wakeroll_pipeline.runtime.run_status import QueryStatus, Status, write_status
from wakeroll_pipeline.runtime.stop_signals import StopSignals
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sources.kafka_source import kafka_options
from wakeroll_pipeline.spark.session import jvm_of
from wakeroll_pipeline.storage.write_probes import refuse_unconditional

log = logging.getLogger("wakeroll.run")

JOBS = (coordinate.NAME, record.NAME)
_HEAD_START_S = 10.0
"""Longest delay of the start of `record` after that of `coordinate`, whose first batch needs records (s)."""
_ROLES = {coordinate.NAME: "coordinator", record.NAME: "recorder"}
"""Job -> its role in `wakeroll_pipeline.kafka.role_rights`."""


def run(settings: Settings, jobs: Sequence[str] = JOBS) -> None:
    """Run the jobs until SIGTERM or SIGINT.

    It waits for brokers and stores that start later than itself, and for the first answer of a broker. The first signal
    ends the process with code 0: at once while it starts, and when the current batches are finished (at most 45 s) once
    a query runs. A second signal ends it at once.

    Raises:
        JobFailed: a query ended by itself.
        InvalidTopics: the control topics do not fit this deployment.
        InvalidUsage: a checkpoint belongs to another deployment, is used by another process, was lost, or is ahead of
            the log, or the log was replaced; or the tables were lost; the port of the metrics is in use; or a store
            ignores conditions of writes.
        InvalidKeys: the keys cannot be read, or there is no observer key.
        LoginFailed, AccessDenied: the brokers reject the login, at the start or for 15 s later on, or deny a right.
        LaterEra: another coordinator decides in a later era than this replica.
        LeaseLost: another process has a lease of this process.
        NotReachable: the brokers answered at first, and stopped answering before the first batch.
        StorageDenied: a store denies a request, or rejects the credentials.
        SparkFailed, JarsMissing: Spark cannot be started.
    """
    stop = StopSignals(is_starting=True)
    kafka_options(settings.connection)  # a login that Spark cannot use is reported before the start of Spark
    if coordinate.NAME in jobs:
        # PySpark needs pandas before the query starts: its import takes most of a second, while the JVM starts.
        threading.Thread(target=import_module, args=("pandas",), daemon=True).start()
        require_role(settings.read_keys(), "observer")  # without this key the coordinator would reject all ticks
        if warning := warning_of(settings.keys):
            log.warning("%s", warning)
    writes = record.NAME in jobs and not settings.is_standby
    metrics = RunMetrics(decides=coordinate.NAME in jobs, writes=writes)

    def roles() -> Mapping[str, bool]:
        found, health = {}, metrics.health
        if coordinate.NAME in jobs:
            found[_ROLES[coordinate.NAME]] = health.is_ready(query_of(settings))
        if record.NAME in jobs and metrics.tables.is_exposed:
            found[_ROLES[record.NAME]] = health.is_ready(record.NAME)
        elif record.NAME in jobs:
            found["standby"] = health.is_ready()
        return found

    expose_process(metrics.registry, settings, roles)
    with ExitStack() as stack:
        stop.release = stack.close
        stack.enter_context(
            metrics_served(metrics.registry, metrics.health, settings.metrics_address, settings.metrics_port)
        )
        stack.enter_context(reported_to_systemd(metrics.health))
        # The session ends before the locks are released, which `stack` keeps.
        with stoppable_session(settings, "wakeroll", stop) as session:
            locks, publisher = when_reachable(
                lambda: _prepare(settings, jobs, stack), metrics.health, meanwhile=session
            )
            # Spark's clients end a query soon, but a process that waits for its turn has none.
            with login_watched(settings.connection, stop.asked):
                _run(session(), settings, jobs, stop, metrics, locks, publisher)


def _prepare(settings: Settings, jobs: Sequence[str], stack: ExitStack) -> tuple[ProcessLocks, LinePublisher | None]:
    """Check everything that a start of the jobs needs, and take their locks.

    Args:
        settings: settings of the deployment.
        jobs: names of the jobs.
        stack: keeps the locks; it is unchanged if an error is raised.

    Returns:
        The locks, and the publisher of the newest lines of the tables' chains, if there is one.

    Raises:
        InvalidTopics, InvalidUsage, LoginFailed, AccessDenied, NotReachable, StorageFailed: as for `run`.
    """
    if coordinate.NAME in jobs:
        refuse_unconditional(settings.checkpoints_folder)
        its_topics, replica = topics_of(settings), bool(settings.replica)
        refuse_foreign(settings.checkpoint(query_of(settings)), its_topics, settings.partitions, may_grow=replica)
    if record.NAME in jobs:
        topics = settings.connection.topics
        refuse_unconditional(settings.warehouse)
        written = settings.checkpoint(latest_recording(settings))
        refuse_foreign(written, (*topics.control, topics.decisions), settings.partitions, may_grow=True)
        refuse_lost_tables(settings)
    roles = [_ROLES[name] for name in jobs]
    if settings.is_standby or not settings.locks_files:
        roles.append("standby")
    require_rights(settings.connection, roles)
    for finding in ensure_deployment(settings, decides=coordinate.NAME in jobs):
        log.warning("%s", finding)
    publisher = _publisher(settings) if record.NAME in jobs else None
    with ExitStack() as taken:
        locks = taken.enter_context(process_locks(settings, jobs, stands_by=settings.is_standby))
        if coordinate.NAME in jobs:
            discard_incomplete(settings.checkpoint(query_of(settings)))
            if not settings.replica:
                refuse_to_forget(settings)
            refuse_shortened(settings, query_of(settings))
            refuse_replaced(settings)
        if record.NAME in jobs:
            refuse_shortened(settings, latest_recording(settings))
        stack.push(taken.pop_all())
    return locks, publisher


def _publisher(settings: Settings) -> LinePublisher | None:
    """Return the publisher of the newest lines of the tables' chains; None, after a warning, if there can be none."""
    if (finding := ensure_chain_topic(settings.connection, replication=settings.replication)) is not None:
        log.warning("%s", finding)
        return None
    return LinePublisher(settings.connection, process_name(settings.replica))


def _run(
    spark: SparkSession,
    settings: Settings,
    jobs: Sequence[str],
    stop: StopSignals,
    metrics: RunMetrics,
    locks: ProcessLocks,
    publisher: LinePublisher | None,
) -> None:
    queries: list[StreamingQuery] = []
    metrics.leases.watch(lambda: locks.held)
    with ExitStack() as stack:
        started_ms = now_ms()
        counts = Counts.start(spark)
        metrics.watch_jvm(jvm_of(spark), spark._jvm)
        deciding = Deciding(spark, settings, counts, metrics.health) if coordinate.NAME in jobs else None
        recording = Recording(spark, settings, metrics, locks, started_ms, publisher) if record.NAME in jobs else None
        stop.finish()
        if deciding is not None:
            queries.append(deciding.start(stack))
        if recording is not None and not settings.is_standby and _may_record(queries, stop):
            queries.append(recording.start())
        large: frozenset[str] = frozenset()
        unread: frozenset[str] = frozenset()
        keys = Keys.of([]) if deciding is None else settings.read_keys()
        fingerprints = [on_record(key).fingerprint for key in keys.all]
        log.info("running %s on %s", ", ".join(jobs), settings.bootstrap)
        sampler = stack.enter_context(sampled(settings, metrics, queries, counts))
        while not stop.asked.wait(POLL_S):
            metrics.health.beat("run")
            locks.raise_if_lost()  # before the queries: without its lease, `record` ends too
            for query in queries:
                _raise_if_dead(query, settings, counts)
            if deciding is not None:
                deciding.raise_if_outdated()
            if recording is not None and recording.is_due and (began := _take_over(recording)) is not None:
                queries.append(began)
                if sampler is not None:
                    sampler.add(began)
            states = _report_status(settings, queries, counts, started_ms, fingerprints, decides=deciding is not None)
            large = _warn_of_large(states, large)
            unread = _warn_of_unread(keys, counts.levels.value, unread)
            if recording is not None and not stop.asked.is_set():  # it takes seconds, and the next start makes its own
                recording.take_snapshots_if_due(None if deciding is None else settings)
        log.info("stopping")
        metrics.health.stopping()
        until_s = time.monotonic() + LAST_BATCHES_S
        for query in queries:
            if query.name == record.NAME:
                _await_record(query, settings.connection, settings.partitions, until_s)
            stop_between_batches(query, until_s)
        if recording is not None:
            recording.close()


def _may_record(queries: Sequence[StreamingQuery], stop: StopSignals) -> bool:
    """Wait for the first batch of `coordinate`, since the start of `record` takes a core; False after a stop signal."""
    until_s = time.monotonic() + _HEAD_START_S
    for query in queries:
        wait_until(partial(_has_begun, query, stop), until_s)
    return not stop.asked.is_set()


def _has_begun(query: StreamingQuery, stop: StopSignals) -> bool:
    """Return whether a query has finished a batch, or will never finish one."""
    return query.lastProgress is not None or not query.isActive or stop.asked.is_set()


def _take_over(recording: Recording) -> StreamingQuery | None:
    """Begin to write the tables in the place of another process; None if no broker answers.

    The next round of the loop tries again. Meanwhile, this process continues to decide when the brokers answer again.
    """
    try:
        query = recording.start()
    except NotReachable as error:
        log.warning("this process does not write the tables yet: %s; retrying", error)
        return None
    log.info("this process writes the tables from now on")
    return query


def _report_status(
    settings: Settings,
    queries: Sequence[StreamingQuery],
    counts: Counts,
    started_ms: int,
    fingerprints: list[str],
    *,
    decides: bool,
) -> Mapping[str, int]:
    """Write the status file; return the size of the state of each shard (bytes)."""
    last = {str(query.name): _status_of(query) for query in queries}
    states = dict(sorted(counts.bytes.value.items()))
    marks, failures = dict(counts.marks.value), counts.failures.value
    status = Status(
        os.getpid(),
        settings.bootstrap,
        started_ms,
        now_ms(),
        last,
        failures,
        states,
        marks,
        shard_levels=dict(sorted(counts.levels.value.items())),
        newest_level=feature_levels.NEWEST,
        fingerprints=fingerprints,
        decides=decides,
    )
    write_status(settings.work_folder, status, settings.replica)
    return states


def _raise_if_dead(query: StreamingQuery, settings: Settings, counts: Counts) -> None:
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
            refuse_replaced(settings, marks_in(counts.marks.value))
        raise


def _warn_of_large(states: Mapping[str, int], known: frozenset[str]) -> frozenset[str]:
    """Warn of each shard whose state has become large; return all large ones."""
    large = frozenset(name for name, size in states.items() if size >= config.LARGE_STATE_BYTES)
    for name in sorted(large - known):
        log.warning("the state of %s has grown to %d MiB; see `wakeroll doctor`", name, states[name] >> 20)
    return large


def _warn_of_unread(keys: Keys, levels: Mapping[str, int], known: frozenset[str]) -> frozenset[str]:
    """Warn of each shard whose level has no valid signatures of an observer; return all such shards."""
    observers = keys.of_role("observer")
    if not observers or any(not key.public_key for key in observers):
        return frozenset()
    unread = frozenset(name for name, level in levels.items() if level < PUBLIC_KEYS_LEVEL)
    for name in sorted(unread - known):
        log.warning(
            "%s is at feature level %d, but Ed25519 signatures count from level %d on, and the key file has no other "
            "key of an observer: its ticks are rejected and its clock stands still; to mend it: "
            "wakeroll upgrade --execute",
            name,
            levels[name],
            PUBLIC_KEYS_LEVEL,
        )
    return unread


def _await_record(query: StreamingQuery, connection: Connection, partitions: int, until_s: float) -> None:
    """Wait until all decisions so far are written, but not beyond `until_s`; return early if no broker answers."""
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

    wait_until(written, until_s)


def _status_of(query: StreamingQuery) -> QueryStatus:
    progress = query.lastProgress
    if progress is None:
        return QueryStatus(-1, 0, 0)
    return QueryStatus(
        int(progress["batchId"]),
        int(progress["numInputRows"]),
        int(progress["durationMs"].get("triggerExecution", 0)),
    )
