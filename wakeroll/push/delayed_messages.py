"""Messages of the retry topic that were read before they are due."""

from collections import deque
from collections.abc import Iterator

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from wakeroll.push.queue_work import QueueWork
from wakeroll_model.config import NEVER_MS
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import delay_ms_of


class DelayedMessages:
    """Holds messages of each queue of the retry topic until they are due, which they are in order of offset."""

    def __init__(self) -> None:
        """Begin without messages."""
        self._waiting: dict[Queue, tuple[QueueWork, deque[tuple[int, Message]]]] = {}
        """Queue -> its work, and its messages, each with the time at which it is due."""

    def __contains__(self, queue: Queue) -> bool:
        return queue in self._waiting

    @property
    def next_due_ms(self) -> int:
        """When the next message is due, by the SDK's clock; `NEVER_MS` if none waits."""
        return min((waiting[0][0] for _, waiting in self._waiting.values()), default=NEVER_MS)

    def add(self, work: QueueWork, messages: list[Message], now_ms: int, wall_ms: int) -> None:
        """Hold these messages until they are due.

        A message waits at most its level's delay from now on, however wrong this machine's clock is.

        Args:
            work: of the queue that the messages were read from.
            messages: in order of offset.
            now_ms: time by the SDK's clock.
            wall_ms: time by this machine's clock (epoch ms), which is compared with the messages' timestamps.
        """
        queue = work.give.queue
        delay_ms = delay_ms_of(queue.queue_id)
        _, waiting = self._waiting.setdefault(queue, (work, deque()))
        for message in messages:
            kind, stored_ms = message.timestamp()
            age_ms = 0 if kind == TIMESTAMP_NOT_AVAILABLE else wall_ms - stored_ms
            waiting.append((now_ms + min(max(delay_ms - age_ms, 0), delay_ms), message))

    def due(self, now_ms: int) -> Iterator[tuple[QueueWork, list[Message]]]:
        """Yield the messages that are due, by queue; they are no longer held."""
        for queue, (work, waiting) in list(self._waiting.items()):
            messages = []
            while waiting and waiting[0][0] <= now_ms:
                messages.append(waiting.popleft()[1])
            if not waiting:
                del self._waiting[queue]
            if messages:
                yield work, messages

    def drop(self, queue: Queue) -> None:
        """Forget the messages of a queue that is not read any more."""
        self._waiting.pop(queue, None)
