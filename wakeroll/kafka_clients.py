"""The classes of Kafka clients for an address: those of confluent-kafka or, in tests, those of a broker in memory.

`wakeroll.testing` registers its brokers here, so that the whole SDK runs unchanged on them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from wakeroll.retry_clock import SYSTEM_CLOCK, RetryClock
from wakeroll.steady_clients import SteadyConsumer, SteadyProducer


@dataclass(frozen=True)
class KafkaClients:
    """Functions that create clients of one broker, each from librdkafka's settings."""

    producer: Callable[[dict[str, Any]], Producer] = SteadyProducer
    consumer: Callable[[dict[str, Any]], Consumer] = SteadyConsumer
    admin: Callable[[dict[str, Any]], AdminClient] = AdminClient
    clock: RetryClock = SYSTEM_CLOCK
    """The clock by which failed messages wait for their next attempt."""


_KAFKA = KafkaClients()
_in_memory: dict[str, KafkaClients] = {}
"""Address of a broker in memory -> its clients."""


def clients_of(bootstrap: str) -> KafkaClients:
    """Return the functions that create clients of the broker at this address."""
    return _in_memory.get(bootstrap, _KAFKA)


def is_in_memory(bootstrap: str) -> bool:
    """Return whether the broker at this address is in the memory of this process."""
    return bootstrap in _in_memory


def register(bootstrap: str, clients: KafkaClients) -> None:
    """Set the functions that create the clients of this address."""
    _in_memory[bootstrap] = clients


def unregister(bootstrap: str) -> None:
    """Forget an address."""
    _in_memory.pop(bootstrap, None)
