"""The state of one queue for long polling: its end, its held pulls, and the recently answered pulls."""

from functools import cached_property

from msgspec import Struct, field

from wakeroll_model.config import NEVER_MS
from wakeroll_model.queue import Queue
from wakeroll_model.queue_end import QueueEnd
from wakeroll_model.shard_load import NOTHING, Load
from wakeroll_model.waiting_pulls import Hold, PullFilter, WaitingPulls


class Answered(Struct, array_like=True, frozen=True):
    """The newest pull of an instance, after its answer."""

    number: int
    at_ms: int
    """The shard's clock at the answer."""


class HeldQueue(Struct, array_like=True, kw_only=True, dict=True):
    """The state of one queue."""

    key: str
    """The key of its records: ``topic@queue_id``."""
    end: QueueEnd = field(default_factory=QueueEnd)
    pulls: int = 0
    """Number of pulls held so far; it is the number of the next one."""
    holds: dict[int, Hold] = {}
    """Number -> held pull, in the order of arrival."""
    pull_filters: dict[int, PullFilter] = {}
    """Number of the first pull with a filter -> the filter, as long as a pull with it is held."""
    answered: dict[bytes, Answered] = {}
    """Digest of an instance without a held pull -> its newest pull; the oldest answer comes first."""
    forget_ms: int = NEVER_MS
    """Earliest time at which an instance is forgotten, by the shard's clock."""
    due_ms: int = NEVER_MS
    """Lower bound of all deadlines, by the shard's clock: it may be too early, never too late."""

    @property
    def is_blank(self) -> bool:
        """Whether no client uses the queue, so that its state can be dropped."""
        return not (self.holds or self.answered)

    @cached_property
    def queue(self) -> Queue:
        """The queue itself."""
        return Queue.of_key(self.key)

    @cached_property
    def waiting(self) -> WaitingPulls:
        """The indexes over `holds` and `pull_filters`, which are changed only through them."""
        return WaitingPulls(self.holds, self.pull_filters)

    @property
    def load(self) -> Load:
        """The part of the shard's bounded resources that the queue uses."""
        if self.is_blank:
            return NOTHING
        return Load(1, 0, len(self.holds), len(self.answered), self.waiting.filters)
