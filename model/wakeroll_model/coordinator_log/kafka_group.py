"""The state of one of Kafka's own groups: that of any group, and a part from Kafka's records."""

from msgspec import Struct, field

from wakeroll_model.coordinator_log.kafka_events import SeenMember, Shares
from wakeroll_model.decisions import Cause, Trigger
from wakeroll_model.group import Group, GroupSettings


class Reason(Struct, array_like=True, frozen=True):
    """A reason for a new assignment, as a record shows it."""

    trigger: Trigger
    text: str
    """The reason, in words."""
    cause: Cause


class KafkaSide(Struct, array_like=True):
    """The part of the state that other groups do not have."""

    name: str = ""
    """Kafka's name of the group, if it is not the same here; else empty."""
    protocol: str = ""
    """``classic``, ``consumer`` (KIP-848), ``share`` or ``streams``; empty before the first record that shows it."""
    base: int = 0
    """Wakeroll's epoch minus Kafka's generation or epoch: 0, unless Kafka deleted the group and counts from 1 again."""
    generation: int = -1
    """Kafka's generation, or epoch of the newest target; -1 before the first."""
    leader: str = ""
    """Member id of the leader of a classic group."""
    assignor: str = ""
    seen: dict[str, SeenMember] = {}
    """Kafka's member id -> the member."""
    wanted: dict[str, Shares] = {}
    """Member id -> the partitions that it should have. Empty for a classic group."""
    has: dict[str, Shares] = {}
    """Member id -> the partitions that it has, without those that it must release. Empty for a classic group."""
    revoking: dict[str, Shares] = {}
    """Member id -> the partitions that it must release."""
    reasons: list[Reason] = []
    """Reasons for the next target, since the newest one."""
    topics_hash: int = 0
    partitions: dict[str, int] = {}
    """Topic -> number of its partitions, up to Kafka 4.0."""
    expressions: dict[str, list[str]] = {}
    """Regular expression -> the topics that match it."""
    parts: dict[str, list[str]] = {}
    """Part of the topology of a streams group -> the topics that its tasks read."""
    is_described: bool = False
    """Whether brokers described the group, because its log may not be read."""


class KafkaGroup(Group, array_like=True, kw_only=True):
    """The state of one of Kafka's own groups."""

    kafka: KafkaSide = field(default_factory=KafkaSide)

    @property
    def is_blank(self) -> bool:
        """Whether the state can be dropped, except for the epoch: Kafka's generations must not seem to begin again."""
        return self.epoch == 0 and self.kafka == KafkaSide() and super().is_blank


def new_group(name: str) -> KafkaGroup:
    """Return the state of a group before its first record."""
    return KafkaGroup(group_id=name, settings=GroupSettings())
