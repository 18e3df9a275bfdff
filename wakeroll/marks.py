"""Delivered messages that an application marks as processed one by one, in any order."""

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence

from confluent_kafka import Message

from wakeroll.held_locks import free
from wakeroll_model.client_actions import Give
from wakeroll_model.queue import Queue


class _Delivered:
    """The delivered messages of one assignment."""

    __slots__ = ("end", "give", "order", "waiting")

    def __init__(self, give: Give, end: int) -> None:
        self.give = give
        self.waiting: dict[int, Message] = {}
        """Offset -> message that is not marked."""
        self.order: deque[int] = deque()
        """Offsets of the waiting messages in order, with marked ones between them."""
        self.end = end
        """Offset up to which all messages were delivered, or do not match a filter."""

    @property
    def position(self) -> int:
        """The offset below which all messages are processed."""
        order = self.order
        while order and order[0] not in self.waiting:
            order.popleft()
        return order[0] if order else self.end


class Marks:
    """The messages that were delivered and are not marked, by queue. Any thread may mark."""

    def __init__(self, on_advance: Callable[[Give, int], object]) -> None:
        """Begin without messages; `on_advance` is called with an assignment and the offset that it has reached."""
        self._lock = threading.RLock()
        self._on_advance = on_advance
        self._queues: dict[Queue, _Delivered] = {}
        self._of_partition: dict[tuple[str, int], list[_Delivered]] = {}
        """Topic and partition -> the delivered messages of its slices, or of the whole queue; the list is replaced,
        never changed."""

    def add(self, give: Give, messages: Sequence[Message], end: int) -> None:
        """Add delivered messages, in order of offset; no other message below the offset `end` will be delivered."""
        with self._lock:
            one = self._of(give, messages[0].offset() or 0)
            for message in messages:
                offset = message.offset() or 0
                one.waiting[offset] = message
                one.order.append(offset)
            one.end = end

    def pass_to(self, give: Give, end: int) -> None:
        """Note that no message up to an offset will be delivered."""
        with self._lock:
            one = self._of(give, end)
            one.end = end
            self._on_advance(give, one.position)

    def mark(self, message: Message) -> bool:
        """Mark a message as processed; return whether it was delivered and not marked."""
        with self._lock:
            place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
            one = next((one for one in self._of_partition.get(place, ()) if one.waiting.get(offset) is message), None)
            if one is None:
                return False
            del one.waiting[offset]
            if one.order[0] == offset:
                self._on_advance(one.give, one.position)
            return True

    def mark_below(self, give: Give, offset: int) -> None:
        """Mark all messages of an assignment below an offset as processed."""
        with self._lock:
            one = self._of(give, offset)
            for delivered in [at for at in one.waiting if at < offset]:
                del one.waiting[delivered]
            self._on_advance(give, min(one.position, offset))

    def drop_from(self, give: Give, offset: int) -> None:
        """Forget messages of an assignment from an offset on: they are delivered again, or the log has lost them."""
        with self._lock:
            one = self._queues.get(give.queue)
            if one is not None and one.give == give:
                for delivered in [at for at in one.waiting if at >= offset]:
                    del one.waiting[delivered]
                one.order = deque(at for at in one.order if at < offset)
                one.end = min(one.end, offset)

    def forget(self, queue: Queue) -> None:
        """Forget the messages of a queue: marking them has no effect any more."""
        with self._lock:
            if self._queues.pop(queue, None) is not None:
                self._index(queue)

    def forget_all_but(self, queues: Collection[Queue]) -> None:
        """Forget the messages of all other queues."""
        with self._lock:
            for queue in self._queues.keys() - queues:
                del self._queues[queue]
                self._index(queue)

    def open_in(self, queue: Queue) -> list[int]:
        """Return the offsets of the messages of a queue that are not marked, in order."""
        with self._lock:
            one = self._queues.get(queue)
            return [] if one is None else sorted(one.waiting)

    def end(self, give: Give) -> int | None:
        """Return the offset up to which all messages of an assignment were delivered; None if no message was."""
        with self._lock:
            one = self._queues.get(give.queue)
            return None if one is None or one.give != give else one.end

    def open_queues(self) -> list[Queue]:
        """Return the queues with messages that are not marked."""
        with self._lock:
            return [one.give.queue for one in self._queues.values() if one.waiting]

    def free_lock(self) -> None:
        """Release the lock if an exception has left it to this thread."""
        free(self._lock)

    def _of(self, give: Give, end: int) -> _Delivered:
        one = self._queues.get(give.queue)
        if one is None or one.give != give:
            one = self._queues[give.queue] = _Delivered(give, end)
            self._index(give.queue)
        return one

    def _index(self, queue: Queue) -> None:
        """Update the index of a queue's partition."""
        place = _place(queue)
        self._of_partition[place] = [one for one in self._queues.values() if _place(one.give.queue) == place]
        if not self._of_partition[place]:
            del self._of_partition[place]


def _place(queue: Queue) -> tuple[str, int]:
    return queue.topic, queue.queue_id
