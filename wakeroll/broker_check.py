"""Check, before a client joins, that a broker answers and that it has a control plane."""

import logging
import time
from collections.abc import Iterable

from confluent_kafka import KafkaException

from wakeroll.connection import Connection
from wakeroll.errors import NotReachable

log = logging.getLogger("wakeroll")


def look(connection: Connection, topics: Iterable[str], timeout: float) -> int:
    """Query the broker's topics.

    Args:
        connection: the broker.
        topics: topics that the application wants to read; a missing one is logged as a warning, because it may be
            created later.
        timeout: seconds for all queries together.

    Returns:
        The number of partitions of the inbox.

    Raises:
        InvalidUsage: Kafka's client rejects the settings of the connection.
        NotReachable: no broker answers in time, or the control topics do not exist.
    """
    deadline = time.monotonic() + timeout
    reasons: list[str] = []
    # Metadata requests of a consumer, unlike those of a producer, never create a topic.
    consumer = connection.consumer(error_cb=lambda error: reasons.append(error.str()), log_level=0)
    try:

        def partitions_of(topic: str) -> int:
            found = consumer.list_topics(topic, max(deadline - time.monotonic(), 0.1)).topics[topic]
            return 0 if found.error is not None else len(found.partitions)

        for topic in (connection.topics.groups, connection.topics.inbox):
            if not partitions_of(topic):
                raise NotReachable(
                    f"no topic {topic} at {connection.bootstrap}; is the control plane running? start it with "
                    f"`wakeroll up`, or set prefix= to the prefix of its topics (now {connection.topics.prefix!r})"
                )
        for topic in topics:
            if not partitions_of(topic):
                log.warning("no topic %s at %s yet; waiting for it to be created", topic, connection.bootstrap)
        return partitions_of(connection.topics.inbox)
    except KafkaException as problem:
        consumer.poll(0)  # calls error_cb: the first error is more specific than "timed out"
        reason = (reasons or [problem.args[0].str()])[0]
        raise NotReachable(
            f"no Kafka broker answered at {connection.bootstrap} within {timeout:g} s ({reason}); is it running?"
        ) from None
    finally:
        consumer.close()
