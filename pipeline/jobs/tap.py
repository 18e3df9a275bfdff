"""tap: messages in, arrivals out, so that a filter can judge messages whose producers tell nobody of them."""

import hashlib
import logging
import os
import threading
from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pipeline.jobs.supervise import POLL_S, on_signals, raise_if_dead, stop_between_batches
from pipeline.kafka.topic_admin import Cluster
from pipeline.operators.message_arrivals import arrivals
from pipeline.runtime.process_lock import only_one
from pipeline.settings import Settings
from pipeline.sinks.kafka_sink import publish
from pipeline.sources.kafka_source import headers, kafka_options
from pipeline.spark.session import start_session
from wakeroll.connection import is_legal
from wakeroll.errors import InvalidUsage

NAME = "tap"

log = logging.getLogger("wakeroll.run")


def start(spark: SparkSession, settings: Settings, topics: Sequence[str]) -> StreamingQuery:
    """Start the query that tells of the messages of some topics: headers → arrivals → the queues' topic."""
    connection = settings.connection
    messages = headers(spark, connection, topics, settings.max_offsets_per_batch)
    told, options, name = arrivals(messages, connection.topics), kafka_options(connection), query_of(topics)
    return publish(told, options, name, settings.checkpoint(name), settings.batch_interval_ms)


def query_of(topics: Sequence[str]) -> str:
    """Return the name of the query over these topics, and of its checkpoint.

    Each set of topics has its own: in another's, Spark would read a topic that is new to it from its first message.

    >>> query_of(["sent", "orders"]) == query_of(["orders", "sent"]) != query_of(["orders"])
    True
    """
    names = ",".join(sorted(set(topics)))
    return f"{NAME}-{hashlib.blake2b(names.encode(), digest_size=6).hexdigest()}"


def run_tap(settings: Settings, topics: Sequence[str]) -> None:
    """Tell of the messages of some topics until SIGTERM or SIGINT.

    Raises:
        InvalidUsage: one of them is not there, or is the control plane's own; or another process taps the same.
        JobFailed: the query ended by itself.
        NotReachable: no broker answered.
    """
    stop = threading.Event()
    on_signals(lambda: os._exit(130))  # nothing has begun that would have to be ended
    _check(settings, topics)
    name = query_of(topics)
    with only_one(settings.checkpoint(f"{name}.lock"), f"taps {', '.join(topics)}"):
        spark = start_session(settings, f"wakeroll {NAME}")
        query = start(spark, settings, topics)
        on_signals(stop.set)
        log.info("telling of the messages of %s on %s", ", ".join(topics), settings.bootstrap)
        try:
            while not stop.wait(POLL_S):
                raise_if_dead(query)
            log.info("stopping")
            stop_between_batches(query)
        finally:
            spark.stop()


def _check(settings: Settings, topics: Sequence[str]) -> None:
    """Refuse topics that cannot be tapped; arrivals of arrivals would have no end."""
    connection = settings.connection
    if ours := [topic for topic in topics if topic in connection.topics.all]:
        raise InvalidUsage(f"{ours[0]} is the control plane's own; name topics of messages")
    if strange := [topic for topic in topics if not is_legal(topic)]:
        raise InvalidUsage(f"{strange[0]!r} cannot be a topic of Kafka; a name is [A-Za-z0-9._-], at most 249 of them")
    found = Cluster(connection).racks((connection.topics.queues, *topics))
    if missing := [topic for topic, racks in found.items() if not racks]:
        what = "; `wakeroll run` makes it" if missing[0] == connection.topics.queues else ""
        raise InvalidUsage(f"there is no topic {missing[0]} at {settings.bootstrap}{what}")
