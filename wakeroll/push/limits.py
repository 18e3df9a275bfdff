"""Limits of push consumption: the numbers of calls at once, of messages per call, and of messages read ahead."""

from dataclasses import dataclass

from wakeroll.argument_checks import checked
from wakeroll.errors import InvalidUsage

WORKERS = 8
BATCH_SIZE = 32
"""RocketMQ's pullBatchSize."""
PREFETCH = 1_000
"""RocketMQ's pullThresholdForQueue."""
PREFETCH_BYTES = 100 * 1024 * 1024
"""RocketMQ's pullThresholdSizeForQueue."""
SPAN_FACTOR = 2
"""Multiple of `prefetch`: a queue is not read on while more offsets than this follow its oldest unprocessed message, as
with RocketMQ's consumeConcurrentlyMaxSpan. After a crash, processed messages beyond that message are delivered
again."""
HANDLE_TIMEOUT_S = 900.0
"""RocketMQ's `consumeTimeout` (s)."""
GIVE_UP_AT = 0.9
"""Part of the revoke timeout after which a queue is released although the handler still has messages of it; later, the
coordinator would assign it to another member without the offset that was reached."""
MAX_WORKERS = 1_000
MOST_AT_ONCE = 500
"""Maximum number of messages taken from Kafka's client at once."""
FIRST_TIME = 32
"""Maximum number of messages taken before any message's size is known."""


@dataclass(frozen=True)
class PushLimits:
    """Limits of one `Consumer.run`.

    Raises:
        InvalidUsage: a limit is not a whole number in its range.
    """

    workers: int = WORKERS
    """Number of calls of the handler at once; 1 to 1,000."""
    batch_size: int = BATCH_SIZE
    """Maximum number of messages per call."""
    prefetch: int = PREFETCH
    """Maximum number of messages of a queue that are read and not processed."""
    prefetch_bytes: int = PREFETCH_BYTES
    """Maximum number of bytes of the values of these messages."""

    def __post_init__(self) -> None:
        for name in ("workers", "batch_size", "prefetch", "prefetch_bytes"):
            if checked(name, getattr(self, name), int) < 1:
                raise InvalidUsage(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.workers > MAX_WORKERS:
            raise InvalidUsage(f"workers is {self.workers}; it must be at most {MAX_WORKERS}")

    def most_at_once(self, largest: int) -> int:
        """Return how many messages to take so that a queue stays within its limits.

        `largest`: bytes of the largest message so far; 0 if there was none.
        """
        if not largest:
            return min(FIRST_TIME, self.prefetch)
        return max(1, min(MOST_AT_ONCE, self.prefetch // 2, self.prefetch_bytes // 2 // largest))

    def is_full(self, messages: int, size: int, span: int, largest: int) -> bool:
        """Return whether a queue with this many messages, bytes and offsets must not be read on now."""
        next_time = self.most_at_once(largest)
        return messages > 0 and (
            messages + next_time > self.prefetch
            or size + next_time * largest > self.prefetch_bytes
            or span + next_time > SPAN_FACTOR * self.prefetch
        )

    def is_low(self, messages: int, size: int, span: int) -> bool:
        """Return whether a queue that was full may be read on: it is at most half full."""
        return messages <= self.prefetch // 2 and size <= self.prefetch_bytes // 2 and span <= self.prefetch

    def needs_more(self, messages: int, size: int, span: int) -> bool:
        """Return whether a slice has few messages left: at most a quarter of what it may have."""
        return messages <= self.prefetch // 4 and size <= self.prefetch_bytes // 4 and span <= self.prefetch
