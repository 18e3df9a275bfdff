"""The state of one queue in long polling: how far it reaches, and who waits for more of it."""

from msgspec import Struct

from model.config import NEVER_MS


class Hold(Struct, array_like=True):
    """A pull that found nothing and waits."""

    request_id: str
    group_id: str
    client_id: str
    from_offset: int
    since_ms: int
    """The shard's clock when it came."""
    until_ms: int
    """When it is answered in any case, by the shard's clock."""
    expression: str
    expression_type: str
    skipped_ms: int = -1
    """The shard's clock at the first arrival that its expression did not want; -1 none yet."""


class HeldQueue(Struct, array_like=True, kw_only=True):
    """The state of one queue."""

    key: str
    """The key of its records: ``topic@queue_id``."""
    next_offset: int = 0
    """Largest that an arrival has shown: the offset of the next message."""
    holds: dict[str, Hold] = {}
    """``group_id@client_id`` -> its pull, in the order of arrival."""
    last: dict[str, int] = {}
    """``group_id@client_id instance_id`` -> the number of its newest pull, held or answered; the newest last."""
    due_ms: int = NEVER_MS
    """No deadline is earlier than this; it may be too early, never too late."""

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing to keep."""
        return not (self.next_offset or self.holds or self.last)
