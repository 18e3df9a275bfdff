"""How everything of ours reaches the broker: one place for addresses, topic names and client settings."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from wakeroll.errors import InvalidUsage

MURMUR2 = "murmur2_random"
"""The partitioner of Kafka's Java clients and of Spark; librdkafka's own default (CRC32) puts keys elsewhere."""

_Client = TypeVar("_Client", Producer, Consumer, AdminClient)

# Kafka's own rule; RocketMQ's %RETRY%billing is the name of a topic too, but of none that a Kafka broker has.
_is_legal = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}\Z").match
# Kafka's Java clients, Spark's among them, insist on the port; librdkafka would take 9092 without a word.
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
        """What clients must hear; keyed by client_id."""
        return f"{self.prefix}.inbox"

    @property
    def decisions(self) -> str:
        """Every decision: the record."""
        return f"{self.prefix}.decisions"

    @property
    def control(self) -> tuple[str, str]:
        """The topics whose records the coordinator reads."""
        return (self.groups, self.queues)

    @property
    def all(self) -> tuple[str, str, str, str]:
        """All four."""
        return (self.groups, self.queues, self.inbox, self.decisions)


@dataclass(frozen=True)
class Connection:
    """A broker, how to log in to it, and which topics are the control plane's.

    Raises:
        InvalidUsage: `bootstrap` is no list of addresses; and by each method, if Kafka's client does not take the
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

    def producer(self, **settings: Any) -> Producer:
        """Make a producer that keeps order, repeats nothing and puts keys where Kafka's own clients do."""
        ours = {"enable.idempotence": True, "linger.ms": 0, "partitioner": MURMUR2}
        return self._make(Producer, ours | settings)

    def consumer(self, **settings: Any) -> Consumer:
        """Make a consumer for `assign`; Kafka's own groups and offsets are not used."""
        ours = {
            "group.id": "wakeroll-unused",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 500,
        }
        return self._make(Consumer, ours | settings)

    def admin(self, **settings: Any) -> AdminClient:
        """Make a client that asks about topics and makes them."""
        return self._make(AdminClient, settings)

    def _make(self, kind: Callable[[dict[str, Any]], _Client], settings: Mapping[str, Any]) -> _Client:
        try:
            return kind({"bootstrap.servers": self.bootstrap, **settings, **self.config})
        except KafkaException as problem:
            raise InvalidUsage(f"Kafka's client does not take these settings: {problem.args[0].str()}") from None


def is_legal(topic: str) -> bool:
    """Whether a topic of Kafka may have this name: asked for another one, a broker is at odds with the request."""
    return _is_legal(topic) is not None


def take(consumer: Consumer, most: int, timeout: float) -> list[Message]:
    """Return what has come, errors too; wait at most `timeout` seconds for something to come."""
    first = consumer.poll(timeout)
    # consume() alone would wait until it has as many.
    return [] if first is None else [first, *consumer.consume(most - 1, timeout=0)]


class InvalidConfigFile(InvalidUsage):
    """A Kafka properties file that cannot be read; the message names the file, the line and what would be right."""


def read_properties(path: Path) -> dict[str, str]:
    """Read a Kafka client properties file: ``name=value`` lines, ``#`` comments.

    Raises:
        InvalidConfigFile: it is not there, or a line is neither.
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
