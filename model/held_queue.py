"""The state of one queue in long polling: where it ends, who waits for more of it, and whose pulls were answered."""

from functools import cached_property

from msgspec import Struct, field

from model.config import NEVER_MS
from model.queue import Queue
from model.queue_end import QueueEnd
from model.shard_load import NOTHING, Load
from model.waiting_pulls import Hold, WaitingPulls, Wish


class Answered(Struct, array_like=True, frozen=True):
    """The newest pull of a life, once it is answered."""

    number: int
    at_ms: int
    """When it was answered, by the shard's clock."""


class HeldQueue(Struct, array_like=True, kw_only=True, dict=True):
    """The state of one queue."""

    key: str
    """The key of its records: ``topic@queue_id``."""
    end: QueueEnd = field(default_factory=QueueEnd)
    pulls: int = 0
    """That were held so far: the number of the next one that is."""
    holds: dict[int, Hold] = {}
    """Number -> the pull, in the order in which they came."""
    wishes: dict[int, Wish] = {}
    """Number of the first pull that had the wish -> the wish, as long as it is held for."""
    answered: dict[bytes, Answered] = {}
    """Digest of a life that is not held -> its newest pull; whose answer is the oldest stands first."""
    forget_ms: int = NEVER_MS
    """No life is to be forgotten earlier than this."""
    due_ms: int = NEVER_MS
    """No deadline is earlier than this; it may be too early, never too late."""

    @property
    def is_blank(self) -> bool:
        """Whether nobody asks for the queue: then nothing of it is kept."""
        return not (self.holds or self.answered)

    @cached_property
    def queue(self) -> Queue:
        """The queue itself."""
        return Queue.of_key(self.key)

    @cached_property
    def waiting(self) -> WaitingPulls:
        """The holds by whatever one looks for; made from `holds` and `wishes`, and the only one who changes them."""
        return WaitingPulls(self.holds, self.wishes)

    @property
    def load(self) -> Load:
        """What it has of that which is bounded."""
        if self.is_blank:
            return NOTHING
        return Load(1, 0, len(self.holds), len(self.answered), self.waiting.filters)
