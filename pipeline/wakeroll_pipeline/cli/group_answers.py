"""The JSON answers about groups: the structs of the page, and their age."""

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from wakeroll_pipeline.live.view_structs import (
    GroupState,
    GroupSummary,
    GroupView,
    MemberRow,
    Notice,
    PartitionRow,
    QueueRow,
)


class Aged(Struct, frozen=True, kw_only=True):
    """An answer with its age."""

    source: Literal["live", "ledger"]
    last_tick_ms: int | None
    """Time of the newest tick in the shard that lags most (epoch ms); None if there is none."""
    tick_age_ms: int | None
    """Age of that tick by this machine's clock."""
    notices: Sequence[Notice]
    """Facts about the whole system that a reader of the answer must know."""


class GroupsAnswer(Aged, frozen=True, kw_only=True):
    """The answer of `groups`, and of `lag` about all groups."""

    groups: Sequence[GroupSummary]


class LagAnswer(Aged, frozen=True, kw_only=True):
    """The answer of `lag` about one group."""

    queues: Sequence[QueueRow]
    members: Sequence[MemberRow]
    partitions: Sequence[PartitionRow] = ()
    """Partitions that are cut into slices; the rows of the slices are in `queues`."""


class StateAnswer(Aged, frozen=True, kw_only=True):
    """The answer of `state`."""

    groups: Sequence[GroupState]


class EndedWaits(Struct, frozen=True, kw_only=True):
    """The pulls of the last hour that ended for one reason."""

    reason: str
    pulls: int
    held_ms: float | None
    """Median of the times for which they were held (ms)."""
    delay_ms: float | None
    """Median of the times from the arrival of a message to the wake (ms); None if no message arrived."""


class DescribeAnswer(GroupView, frozen=True, kw_only=True):
    """The answer of `describe`."""

    source: Literal["live", "ledger"]
    last_tick_ms: int | None
    """Time of the newest tick in the shard that lags most (epoch ms); None if there is none."""
    tick_age_ms: int | None
    """Age of that tick by this machine's clock."""
    notices: Sequence[Notice]
    """Facts about the whole system that a reader of the answer must know."""
    ended_waits: Sequence[EndedWaits] | UnsetType = UNSET
    """Ended pulls by reason; missing without `--holds`, and with brokers."""
