"""Counts of the errors that Kafka's clients of this process report, for its metrics."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError

_lock = threading.Lock()
_counts: Counter[str] = Counter()


def counted(callback: Callable[[KafkaError], object]) -> Callable[[KafkaError], object]:
    """Return a callback for errors that counts each one before it calls the given one."""

    def count(error: KafkaError) -> object:
        with _lock:
            _counts[error.name()] += 1
        return callback(error)

    return count


def client_errors() -> Mapping[str, int]:
    """Return how many errors were reported since the start, by Kafka's name for the error, such as ``_TRANSPORT``."""
    with _lock:
        return dict(_counts)
