"""The state of a shard between two batches, and its versions."""

from typing import Literal

import msgspec
from msgspec import Struct

from wakeroll_model import feature_levels
from wakeroll_model.config import DEFAULT_LIMITS, NEVER_MS, Limits
from wakeroll_model.events import ValidKey
from wakeroll_model.group import Loss
from wakeroll_model.shard_clock import ShardClock
from wakeroll_model.shard_load import Load
from wakeroll_model.signing import Role, Signers

VERSION = max(feature_levels.STATE_VERSIONS.values())
"""Newest version of the machines and of the state's layout."""
READABLE = range(3, VERSION + 1)
"""Versions whose states can be read, because fields were only added since the first of them."""


class WrongPartitions(ValueError):
    """A state was made with another number of partitions, so some of its groups belong to other shards now."""


class Growth(Struct, array_like=True, frozen=True):
    """A change of the number of partitions; see `wakeroll_model.resharding`."""

    offset: int
    """Offset of the first record that the shard decided with the new number."""
    before: int
    """Number of partitions before this change."""
    at_ms: int
    """Log time of the last tick before the change, epoch ms."""


class ShardState(Struct, array_like=True):
    """The state of a shard between batches."""

    partitions: int
    """Number of partitions of the control topic: it determines the partition of each entity."""
    era: int = 1
    """Number of the era; it grows when a shard starts without its state, so that no two decisions have the same
    identity."""
    seq: int = 0
    """Number of the last decision."""
    quiet_until: int = 0
    """The first offset whose decisions are published."""
    offset: int = -1
    """Offset of the last record applied; -1 before the first."""
    clock: ShardClock = msgspec.field(default_factory=ShardClock)
    routes: dict[str, bytes] = {}
    """Topic -> its newest route, as msgpack."""
    entities: dict[str, bytes] = {}
    """group_id -> the group, or key -> the queue, as msgpack."""
    deadlines: dict[str, int] = {}
    """Name of an entity -> when a tick must process it. It is stored outside of the entity, so that a tick decodes only
    due entities."""
    readers: dict[str, list[str]] = {}
    """Topic -> the groups that subscribe it, sorted."""
    watchers: dict[str, list[str]] = {}
    """Topic -> the groups that must receive every route of it, even one that changes nothing; sorted."""
    routed_topics: dict[str, int] = {}
    """Topic -> the shard's clock at its last route; the oldest route comes first."""
    next_due_ms: int = NEVER_MS
    """Lower bound of the deadlines."""
    load: Load = Load()
    """Bounded resources that all groups or queues of the shard use together."""
    limits: Limits = DEFAULT_LIMITS
    """Limits of the deployment, from the last tick that carried them."""
    stage: Literal["", "lost", "quiet"] = ""
    """``lost``: the era begins with the next record. ``quiet``: the shard restores its state from records up to
    `quiet_until`."""
    loss: Loss | None = None
    """The loss of state that may concern an entity that had no records since; None if no state was ever lost."""
    lowest_epoch: int = 0
    """Lower bound of new epochs: neither a forgotten group nor a former era has used a higher one."""
    signers: dict[Role, Signers] = {}
    """The newest signers of each role; empty before the first record of an era, and without signatures."""
    routine: dict[bytes, bytes] = {}
    """Key of a group's records -> its routine heartbeats, as msgpack; groups without any are left out."""
    level: int = feature_levels.FIRST
    """Feature level of the shard's decisions, from the newest `level` record."""
    growths: list[Growth] = []
    """Changes of the number of partitions, the oldest first."""
    absent: dict[str, int] = {}
    """Topic whose last route has no queues -> the shard's clock at that route, the oldest first; such topics are not in
    `routed_topics`. Empty below feature level 3."""
    keys: dict[str, ValidKey] = {}
    """Name -> a recorded valid key, the oldest first; empty: each process accepts the keys of its key file."""


encode_state = msgspec.msgpack.Encoder().encode
decode_state = msgspec.msgpack.Decoder(ShardState).decode


def version_of(body: bytes) -> int:
    """Return the version of an encoded state.

    Raises:
        UnknownLevel: the state is at a level that this release does not support.
    """
    level = decode_state(body).level
    feature_levels.require_known(level, "a shard")
    return feature_levels.STATE_VERSIONS[level]
