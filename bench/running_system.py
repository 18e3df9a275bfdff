"""A broker with the whole system for the time of a measurement."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import NewTopic

from bench.published_assignments import PublishedAssignments
from wakeroll.connection import Connection
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.local_system import LocalSystem
from wakeroll_pipeline.local.traffic import Probe
from wakeroll_pipeline.settings import Settings


def settings_in(folder: Path, prefix: str, broker: EmbeddedBroker, login: Path | None = None) -> Settings:
    """Return settings whose data is in a folder, so that several systems can use one broker.

    `login`: file of client settings; None if the broker needs none.
    """
    home, checkpoints = (str((folder / prefix / name).absolute()) for name in ("home", "checkpoints"))
    kafka_config = None if login is None else str(login.absolute())
    return Settings(
        bootstrap=broker.bootstrap, kafka_config=kafka_config, prefix=prefix, home=home, checkpoints=checkpoints
    )


@contextmanager
def running_system(settings: Settings) -> Iterator[Connection]:
    """Run observer and jobs for the time of a `with`; raise an error if one of them ended meanwhile."""
    system = LocalSystem(settings)
    try:
        system.start(threading.Event())
        yield settings.connection
        system.check()
    finally:
        system.stop()


@contextmanager
def probed(settings: Settings) -> Iterator[PublishedAssignments]:
    """Run an observer and a probe during a `with` block, and read the assignments."""
    connection = settings.connection
    ensure_topics(connection, partitions=settings.partitions, inbox_partitions=settings.inbox_partitions)
    topic = f"{connection.topics.prefix}.orders"
    make_topic(connection, topic, 4)
    probe = Probe(connection, topic)
    with LocalSystem(settings).observer, PublishedAssignments(connection, settings.partitions) as heard:
        probe.start()
        try:
            yield heard
        finally:
            probe.close()


def make_topic(connection: Connection, topic: str, partitions: int, **config: str) -> None:
    """Create a topic.

    Raises:
        RuntimeError: the broker refuses it.
    """
    error = Cluster(connection).create([NewTopic(topic, partitions, config=config)])[topic]
    if error is not None:
        raise RuntimeError(f"the topic {topic} cannot be created: {error.str()}")
