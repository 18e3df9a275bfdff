"""The `tap` query: it publishes arrivals of messages whose producers do not use `wakeroll.Producer`, for filters."""

import hashlib
import logging
from collections.abc import Sequence
from contextlib import ExitStack

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from wakeroll.connection import is_legal
from wakeroll.errors import InvalidUsage, NotReachable
from wakeroll_pipeline.jobs.cold_start import when_reachable
from wakeroll_pipeline.jobs.metrics_sampler import sampled
from wakeroll_pipeline.jobs.supervise import POLL_S, raise_if_dead, stop_between_batches, stoppable_session
from wakeroll_pipeline.kafka.refused_login import login_watched
from wakeroll_pipeline.kafka.rights_check import require_rights
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.metrics.metrics_server import metrics_served
from wakeroll_pipeline.metrics.process_metrics import expose_process
from wakeroll_pipeline.metrics.run_metrics import RunMetrics
from wakeroll_pipeline.metrics.systemd_reports import reported_to_systemd
from wakeroll_pipeline.operators.message_arrivals import arrivals
from wakeroll_pipeline.runtime.process_lock import only_one
from wakeroll_pipeline.runtime.stop_signals import StopSignals
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.kafka_sink import publish
from wakeroll_pipeline.sources.kafka_source import headers, kafka_options
from wakeroll_pipeline.spark.session import jvm_of

NAME = "tap"

log = logging.getLogger("wakeroll.run")


def start(spark: SparkSession, settings: Settings, topics: Sequence[str]) -> StreamingQuery:
    """Start the query that publishes arrivals of some topics: message headers → arrivals → queues topic."""
    connection = settings.connection
    messages = headers(spark, connection, topics, settings.max_offsets_per_batch)
    events, options, name = arrivals(messages, connection.topics), kafka_options(connection), query_of(topics)
    return publish(events, options, name, settings.checkpoint(name), settings.batch_interval_ms)


def query_of(topics: Sequence[str]) -> str:
    """Return the name of the query for these topics, which is also the name of its checkpoint.

    Each set of topics has its own checkpoint: if a topic is added to an existing one, Spark reads it from its start.

    >>> query_of(["sent", "orders"]) == query_of(["orders", "sent"]) != query_of(["orders"])
    True
    """
    names = ",".join(sorted(set(topics)))
    return f"{NAME}-{hashlib.blake2b(names.encode(), digest_size=6).hexdigest()}"


def run_tap(settings: Settings, topics: Sequence[str]) -> None:
    """Publish arrivals of some topics until SIGTERM or SIGINT, which have the same effects as for `run_jobs.run`.

    Raises:
        InvalidUsage: a topic does not exist or is a control plane topic, another process taps the same topics, or the
            port of the metrics is in use.
        JarsMissing: the JARs of the Kafka source or of Delta are missing.
        JobFailed: the query ended by itself.
        LoginFailed, AccessDenied: the brokers reject the login, at the start or for 15 s later on, or deny a right.
        SparkFailed: Java is missing, or Spark did not start with these settings.
    """
    stop = StopSignals(is_starting=True)
    _refuse_names(settings, topics)
    name = query_of(topics)
    metrics = RunMetrics()
    expose_process(metrics.registry, settings, lambda: {NAME: metrics.health.is_ready()})
    with ExitStack() as stack:
        lock = settings.lock_file(settings.checkpoint(f"{name}.lock"))
        stack.enter_context(only_one(lock, f"taps {', '.join(topics)}"))
        stack.enter_context(
            metrics_served(metrics.registry, metrics.health, settings.metrics_address, settings.metrics_port)
        )
        stack.enter_context(reported_to_systemd(metrics.health))
        session = stack.enter_context(stoppable_session(settings, f"wakeroll {NAME}", stop))
        when_reachable(lambda: _check(settings, topics), metrics.health, meanwhile=session)
        spark = session()
        metrics.watch_jvm(jvm_of(spark), spark._jvm)
        stop.finish()
        query = start(spark, settings, topics)
        log.info("publishing arrivals of %s on %s", ", ".join(topics), settings.bootstrap)
        with login_watched(settings.connection, stop.asked), sampled(settings, metrics, [query]):
            while not stop.asked.wait(POLL_S):
                metrics.health.beat(NAME)
                raise_if_dead(query)
            log.info("stopping")
            metrics.health.stopping()
            stop_between_batches(query)


def _refuse_names(settings: Settings, topics: Sequence[str]) -> None:
    """Reject names of topics that cannot be tapped, such as that of the arrivals, which would never end."""
    connection = settings.connection
    if ours := [topic for topic in topics if topic in connection.topics.all]:
        raise InvalidUsage(f"{ours[0]} is a topic of the control plane; name topics with messages")
    if strange := [topic for topic in topics if not is_legal(topic)]:
        raise InvalidUsage(
            f"{strange[0]!r} is not a valid Kafka topic name; a name has 1 to 249 characters of [A-Za-z0-9._-]"
        )


def _check(settings: Settings, topics: Sequence[str]) -> None:
    """Check that the topics exist; `run`, which may start later, creates the queues topic.

    Raises:
        InvalidUsage: there is no such topic of messages.
        NotReachable: no broker answered, or there is no control plane yet.
    """
    connection = settings.connection
    require_rights(connection, [NAME])
    found = Cluster(connection).racks((connection.topics.queues, *topics))
    missing = [topic for topic, racks in found.items() if not racks]
    if connection.topics.queues in missing:
        raise NotReachable(
            f"there is no topic {connection.topics.queues} at {settings.bootstrap}; `wakeroll run` creates it"
        )
    if missing:
        raise InvalidUsage(f"there is no topic {missing[0]} at {settings.bootstrap}")
