"""Counts of the errors that Kafka's clients of this process report, for its metrics."""

from collections import Counter
from collections.abc import Callable

from confluent_kafka import KafkaError

errors: Counter[str] = Counter()
"""Number of reported errors since the start, by Kafka's name for the error, such as ``_TRANSPORT``.

It has no lock, which a fork could leave locked for ever: two errors at once may count as one.
"""


def counted(callback: Callable[[KafkaError], object]) -> Callable[[KafkaError], object]:
    """Return a callback for errors that counts each one before it calls the given one."""

    def count(error: KafkaError) -> object:
        errors[error.name()] += 1
        return callback(error)

    return count
