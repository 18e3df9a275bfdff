"""The groups that `group_changes` compares: ours and Kafka's, with default settings and with shorter sessions."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import msgspec
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from wakeroll.connection import Connection
from wakeroll.last_will.executor_link import OFF, VARIABLE
from wakeroll.reader import FETCH_SETTINGS
from wakeroll_model.config import HEARTBEAT_MS, SESSION_TIMEOUT_MS
from wakeroll_model.events import Configure
from wakeroll_model.signing import DEV_KEYS
from wakeroll_pipeline.local.demo import SESSION_MS as SHORT_SESSION_MS
from wakeroll_pipeline.local.traffic import configure

SHORT_HEARTBEAT_MS = 1_000
_KAFKA_SESSION_MS = 45_000
_CLASSIC_HEARTBEAT_MS = 3_000
_KIP848_HEARTBEAT_MS = 5_000
_PATIENCE_S = 30.0

BROKER_SETTINGS: Mapping[str, str | int] = {
    # By default, a broker does not allow a group of KIP-848 shorter ones than 45 s and 5 s.
    "group.consumer.min.session.timeout.ms": SHORT_SESSION_MS,
    "group.consumer.min.heartbeat.interval.ms": SHORT_HEARTBEAT_MS,
}
"""Settings that a broker needs for all cases."""


class Case(NamedTuple):
    """A kind of group."""

    name: str
    protocol: Literal["wakeroll", "classic", "consumer"]
    session_ms: int
    heartbeat_ms: int
    is_default: bool
    """Whether these are the default settings."""
    assignor: str = ""
    """Only for `classic`."""
    has_wills: bool = False
    """Whether a consumer that dies has a last will; only for `wakeroll`."""
    is_busy: bool = False
    """Whether other processes keep all cores busy."""
    kills: int = 1
    """Kills in each round; where they take a second, there are more of them."""

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of a consumer."""
        return {} if self.has_wills else {VARIABLE: OFF}

    def consumer_settings(self) -> dict[str, str]:
        """Return the settings of a consumer of Kafka's own groups."""
        settings: dict[str, str] = {"group.protocol": self.protocol}
        if self.protocol == "classic":
            settings["partition.assignment.strategy"] = self.assignor
            settings["session.timeout.ms"] = str(self.session_ms)
            settings["heartbeat.interval.ms"] = str(self.heartbeat_ms)
        if not self.is_default:
            settings |= {name: str(value) for name, value in FETCH_SETTINGS.items()}
        return settings

    def prepare(self, connection: Connection, group_id: str) -> None:
        """Configure a group before its consumers start, where the coordinator has its settings.

        Raises:
            NotReachable: the broker did not acknowledge them.
            KafkaException: the broker refused them.
        """
        if self.is_default:
            return
        if self.protocol == "wakeroll":
            event = Configure(group_id=group_id, heartbeat_ms=self.heartbeat_ms, session_timeout_ms=self.session_ms)
            configure(connection, DEV_KEYS, event)
        elif self.protocol == "consumer":
            values = {
                "consumer.session.timeout.ms": self.session_ms,
                "consumer.heartbeat.interval.ms": self.heartbeat_ms,
            }
            entries = [
                ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
                for name, value in values.items()
            ]
            resource = ConfigResource(ConfigResource.Type.GROUP, group_id, incremental_configs=entries)
            admin = connection.admin(log_level=3)  # it must live until the answer is there
            admin.incremental_alter_configs([resource])[resource].result(_PATIENCE_S)

    def arguments(self, connection: Connection) -> list[str]:
        """Return what `bench.consumers` needs to join a group of this kind."""
        if self.protocol == "wakeroll":
            return ["--prefix", connection.topics.prefix]
        return ["--kafka", msgspec.json.encode(self.consumer_settings()).decode()]


def _both(name: str, protocol: Literal["classic", "consumer"], heartbeat_ms: int, assignor: str = "") -> list[Case]:
    return [
        Case(name, protocol, _KAFKA_SESSION_MS, heartbeat_ms, True, assignor),
        Case(f"{name}, short sessions", protocol, SHORT_SESSION_MS, SHORT_HEARTBEAT_MS, False, assignor),
    ]


_DEFAULT: Final = ("wakeroll", SESSION_TIMEOUT_MS, HEARTBEAT_MS, True)
CASES = [
    Case("wakeroll", *_DEFAULT, has_wills=True, kills=30),
    Case("wakeroll, busy cores", *_DEFAULT, has_wills=True, is_busy=True, kills=10),
    Case("wakeroll, no last will", *_DEFAULT),
    Case("wakeroll, no last will, short sessions", "wakeroll", SHORT_SESSION_MS, SHORT_HEARTBEAT_MS, False),
    *_both("Kafka, eager (range)", "classic", _CLASSIC_HEARTBEAT_MS, "range"),
    *_both("Kafka, cooperative-sticky", "classic", _CLASSIC_HEARTBEAT_MS, "cooperative-sticky"),
    *_both("Kafka, KIP-848 (uniform)", "consumer", _KIP848_HEARTBEAT_MS),
]
