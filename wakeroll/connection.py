"""How everything of ours reaches the broker: one place for addresses, topic names and client settings."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from wakeroll.errors import InvalidUsage

MURMUR2 = "murmur2_random"
"""The partitioner of Kafka's Java clients and of Spark; librdkafka's own default (CRC32) puts keys elsewhere."""

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
        InvalidUsage: `bootstrap` is no list of addresses.
    """

    bootstrap: str
    """``host:port[,host:port]``."""
    config: Mapping[str, str] = field(default_factory=dict)
    """More librdkafka settings, like those of ``--kafka-config``: security.protocol, sasl.username, ..."""
    topics: Topics = field(default_factory=Topics)

    def __post_init__(self) -> None:
        for address in self.bootstrap.split(","):
            found = _address(address.strip())
            if found is None or not 0 < int(found["port"]) < 65_536:
                raise InvalidUsage(f"bootstrap is {self.bootstrap!r}; it must be host:port[,host:port]")

    def producer(self, **settings: Any) -> Producer:
        """Make a producer that keeps order, repeats nothing and puts keys where Kafka's own clients do."""
        return Producer(
            self._with({"enable.idempotence": True, "linger.ms": 0, "partitioner": MURMUR2, **settings}),
        )

    def consumer(self, **settings: Any) -> Consumer:
        """Make a consumer for `assign`; Kafka's own groups and offsets are not used."""
        return Consumer(
            self._with(
                {
                    "group.id": "wakeroll-unused",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "error",
                    "fetch.wait.max.ms": 500,
                    **settings,
                }
            )
        )

    def admin(self, **settings: Any) -> AdminClient:
        """Make a client that asks about topics and makes them."""
        return AdminClient(self._with(settings))

    def _with(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, **settings, **self.config}


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
