"""The connection to the broker: address, topic names and client settings, declared once for all clients."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from wakeroll.errors import InvalidUsage, NotReachable
from wakeroll.kafka_clients import clients_of
from wakeroll.retry_clock import RetryClock

MURMUR2 = "murmur2_random"
"""The partitioner of Kafka's Java clients and of Spark; librdkafka's default (CRC32) chooses other partitions."""

_Client = TypeVar("_Client", Producer, Consumer, AdminClient)

# Kafka's rule. RocketMQ also allows topic names like %RETRY%billing, which no Kafka broker accepts.
_is_legal = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}\Z").match
# Kafka's Java clients, including Spark's, require the port; librdkafka would silently use 9092.
_address = re.compile(r"(\w+://)?(\[[\w.:%]+\]|[^\s:,/\[\]]+):(?P<port>[0-9]{1,5})").fullmatch


@dataclass(frozen=True)
class Topics:
    """The names of the control plane's four topics."""

    prefix: str = "wakeroll"

    @property
    def groups(self) -> str:
        """Events about groups; keyed by group_id."""
        return f"{self.prefix}.groups"

    @property
    def queues(self) -> str:
        """Events about queues; keyed by the queue."""
        return f"{self.prefix}.queues"

    @property
    def inbox(self) -> str:
        """Decisions for clients; keyed by client_id."""
        return f"{self.prefix}.inbox"

    @property
    def decisions(self) -> str:
        """All decisions; keyed by group_id, queue or shard."""
        return f"{self.prefix}.decisions"

    @property
    def leases(self) -> str:
        """Claims and renewals of leases; it exists only where processes need them. See `model.lease_log`."""
        return f"{self.prefix}.leases"

    @property
    def control(self) -> tuple[str, str]:
        """The topics whose records the coordinator reads."""
        return (self.groups, self.queues)

    @property
    def all(self) -> tuple[str, str, str, str]:
        """All four topics."""
        return (self.groups, self.queues, self.inbox, self.decisions)


@dataclass(frozen=True)
class Connection:
    """A broker, its login, and the names of the control plane's topics.

    Raises:
        InvalidUsage: `bootstrap` is not a list of addresses. Each method raises it if Kafka's client rejects the
            settings.
    """

    bootstrap: str
    """``host:port[,host:port]``."""
    config: Mapping[str, str] = field(default_factory=dict)
    """More librdkafka settings, like those of ``--kafka-config``: security.protocol, sasl.username, ..."""
    topics: Topics = field(default_factory=Topics)

    def __post_init__(self) -> None:
        if not self.bootstrap:
            raise InvalidUsage("bootstrap is empty; it must name a broker, like 'localhost:9092'")
        for address in self.bootstrap.split(","):
            found = _address(address.strip())
            if found is None or not 0 < int(found["port"]) < 65_536:
                raise InvalidUsage(f"bootstrap is {self.bootstrap!r}; it must be host:port[,host:port]")

    @property
    def clock(self) -> RetryClock:
        """The clock by which failed messages wait for their next attempt."""
        return clients_of(self.bootstrap).clock

    def producer(self, **settings: Any) -> Producer:
        """Create a producer that keeps order, avoids duplicates and partitions keys like Kafka's Java clients.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        ours = {
            "enable.idempotence": True,
            # A second request in flight can lose the first. If a partition was just created, its leader may reject the
            # first request ("not leader") and then accept the second, because it knows no earlier sequence number of
            # this producer (KAFKA-14359). librdkafka concludes that the first was stored too, and reports success.
            "max.in.flight.requests.per.connection": 1,
            "linger.ms": 0,
            "partitioner": MURMUR2,
        }
        return self._make(clients_of(self.bootstrap).producer, ours | settings)

    def consumer(self, **settings: Any) -> Consumer:
        """Create a consumer for `assign`; Kafka's own groups and offsets are not used.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        ours = {
            "group.id": "wakeroll-unused",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 500,
        }
        return self._make(clients_of(self.bootstrap).consumer, ours | settings)

    def operators_consumer(self, **settings: Any) -> Consumer:
        """Create a consumer for an operator's queries: it reads the oldest record if its position was deleted.

        It logs no errors of Kafka's client, because exceptions report them.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        quiet = {"error_cb": lambda _: None, "log_level": 0}
        return self.consumer(**{"auto.offset.reset": "earliest", "fetch.wait.max.ms": 100, **quiet, **settings})

    def admin(self, **settings: Any) -> AdminClient:
        """Create a client that describes and creates topics.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        return self._make(clients_of(self.bootstrap).admin, settings)

    @contextmanager
    def answering(self, timeout: float) -> Iterator[None]:
        """Convert a KafkaException of the block, which waits `timeout` seconds for answers, to an error for the user.

        Raises:
            NotReachable: the block raised a KafkaException.
        """
        try:
            yield
        except KafkaException as problem:
            raise NotReachable(
                f"no Kafka broker answered at {self.bootstrap} within {timeout:g} s ({problem.args[0].str()})"
            ) from None

    def _make(self, kind: Callable[[dict[str, Any]], _Client], settings: Mapping[str, Any]) -> _Client:
        try:
            return kind({"bootstrap.servers": self.bootstrap, **settings, **self.config})
        except KafkaException as problem:
            raise InvalidUsage(f"Kafka's client rejects these settings: {problem.args[0].str()}") from None


def is_legal(topic: str) -> bool:
    """Return whether Kafka allows this topic name. A broker rejects requests that name any other topic."""
    return _is_legal(topic) is not None


def take(consumer: Consumer, most: int, timeout: float) -> list[Message]:
    """Return received messages, including errors; wait at most `timeout` seconds for the first one."""
    first = consumer.poll(timeout)
    # consume() alone would wait for all of them.
    return [] if first is None else [first, *consumer.consume(most - 1, timeout=0)]


class InvalidConfigFile(InvalidUsage):
    """A Kafka properties file is not valid; the message names the file, the line and the expected format."""


def read_properties(path: Path) -> dict[str, str]:
    """Read a Kafka client properties file: ``name=value`` lines, ``#`` comments.

    Raises:
        InvalidConfigFile: the file cannot be read, or a line is neither a setting nor a comment.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise InvalidConfigFile(f"cannot read the Kafka settings in {path}: {error}") from error
    settings = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith(("#", "!")):
            continue
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise InvalidConfigFile(f"{path} line {number} is {text!r}; it must be name=value")
        settings[name.strip()] = value.strip()
    return settings
