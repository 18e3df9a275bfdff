"""Fetches: they return messages of a queue from an offset on, and wait if there are none."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from confluent_kafka import Message
from msgspec import Meta

from wakeroll.argument_checks import checked, queue_of
from wakeroll.connection import Connection
from wakeroll.errors import InvalidUsage, RequestRefused
from wakeroll.held_locks import free
from wakeroll.puller import Puller
from wakeroll.queue_reader import QueueReader
from wakeroll.slice_by import SliceKey
from wakeroll.topic_filters import parsed_filter, select
from wakeroll.topic_subscriptions import TopicSubscriptions
from wakeroll_model.config import MAX_PULL_TIMEOUT_MS
from wakeroll_model.decisions import Rejected, Wake
from wakeroll_model.events import Offset, Subscription
from wakeroll_model.pull_client import PullEnded
from wakeroll_model.queue import Queue
from wakeroll_model.slices import slice_of

MOST_MESSAGES = 100_000
"""Maximum number of messages of one fetch, which keeps all of them in memory."""
ANSWER_S = 5.0
"""Shortest time to wait for Kafka's answers, however short the wait for messages is (s)."""
REST_S = 1.0
"""Pause before the next attempt on a queue for which a pull cannot wait now (s). Value of `shortPollingTimeMills` of
RocketMQ's brokers, which use it without long polling."""


class Fetched(NamedTuple):
    """The result of a fetch; without messages if none arrived in time."""

    messages: list[Message]
    next_offset: int
    """Offset at which the next fetch continues: after the returned messages, and after those that did not match."""


class Fetcher:
    """Fetches for one consumer; any number of threads, one for each queue."""

    def __init__(
        self,
        connection: Connection,
        group_id: str,
        client_id: str,
        subscriptions: TopicSubscriptions,
        key: SliceKey,
    ) -> None:
        """Prepare; the first fetch connects. `key`: returns the key by which messages belong to slices."""
        self._connection = connection
        self._subscriptions = subscriptions
        self._key = key
        self._puller = Puller(connection, group_id, client_id)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._busy: dict[Queue, threading.Thread] = {}
        """Queues that are being fetched -> the thread that fetches."""
        self._idle: list[QueueReader] = []
        """Unused readers. There are as many readers as there were threads that fetched at the same time."""
        self._closed = False

    def fetch(
        self,
        queue: Queue | tuple[str, int],
        offset: int,
        wait: float,
        most: int,
        check: Callable[[], None],
        is_paused: Callable[[], bool],
    ) -> Fetched:
        """Fetch as described for `Consumer.fetch`. `check` is called repeatedly; its exceptions end the fetch.

        Nothing is returned while `is_paused` returns True.

        Raises:
            InvalidUsage: an argument is out of its bounds, or the queue is not of a topic of this consumer.
        """
        named = queue_of(queue)
        checked("offset", offset, Offset)
        checked("wait", wait, Annotated[float, Meta(ge=0, le=MAX_PULL_TIMEOUT_MS / 1_000)])
        checked("max_messages", most, Annotated[int, Meta(ge=1, le=MOST_MESSAGES)])
        subscription = self._subscriptions.may_fetch(named.topic)
        if subscription is None or named.broker:
            topics = ", ".join(sorted(self._subscriptions.topics))
            raise InvalidUsage(f"cannot fetch {named}: it is not a queue of this consumer's topics: {topics}")

        def check_both() -> None:
            self._refuse_if_closed()
            check()

        free(self._lock)  # an exception may have ended the last fetch of this thread before it was released
        reader = self._lend(named.whole)
        try:
            fetched = _Fetch(
                reader,
                self._puller,
                named,
                subscription,
                self._key,
                most,
                check_both,
                is_paused,
            ).run(offset, wait)
        except BaseException:
            self._end(named.whole)
            reader.close()  # its position is unknown
            raise
        self._end(named.whole, reader)
        return fetched

    def hear(self, answer: Wake | Rejected) -> None:
        """Process an answer from the inbox."""
        self._puller.hear(answer)

    def close(self, timeout: float) -> None:
        """End all fetches and cancel their pulls; wait for that at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        self._closed = True
        self._puller.look()
        free(self._lock)
        me = threading.current_thread()
        with self._lock:
            self._changed.wait_for(lambda: all(one is me for one in self._busy.values()), timeout)
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()
        self._puller.close(max(deadline - time.monotonic(), 0.0))

    def _lend(self, queue: Queue) -> QueueReader:
        """Return a reader for a queue, preferably the one that last read the queue."""
        me = threading.current_thread()
        with self._lock:
            self._refuse_if_closed()
            if self._busy.get(queue, me) is not me:  # this thread is in no other fetch: an exception ended it
                raise InvalidUsage(
                    f"another thread is fetching {queue}; only one thread may wait for a queue at a time"
                )
            self._idle.sort(key=lambda reader: reader.queue == queue)
            reader = self._idle.pop() if self._idle else QueueReader(self._connection)
            self._busy[queue] = me
            return reader

    def _end(self, queue: Queue, reader: QueueReader | None = None) -> None:
        """End a fetch; its reader is used again, unless its position is unknown."""
        with self._lock:
            if reader is not None and not self._closed:
                self._idle.append(reader)
                reader = None
            self._busy.pop(queue, None)
            self._changed.notify_all()
        if reader is not None:
            reader.close()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise InvalidUsage("this Consumer is closed; create a new one")


@dataclass(frozen=True)
class _Fetch:
    """One fetch."""

    reader: QueueReader
    puller: Puller
    queue: Queue
    subscription: Subscription
    key: SliceKey
    most: int
    check: Callable[[], None]
    is_paused: Callable[[], bool]

    def run(self, offset: int, wait: float) -> Fetched:
        """Read; wait until there is more; read again.

        `next_offset` depends only on what this reader has read. A wake may report messages of an open transaction,
        which the reader does not receive yet. The protocol lets a client continue after them, but this reader would
        then lose them.
        """
        deadline = time.monotonic() + wait
        ended: PullEnded | None = None
        """Result of the wait before the last read; None if there was none."""
        while True:
            left = deadline - time.monotonic()
            if self.is_paused():
                if left <= 0:
                    return Fetched([], offset)
                self.puller.rest(min(left, REST_S), self.check)
                ended = None
                continue
            messages, next_offset = self._read(offset, max(left, ANSWER_S))
            if self.is_paused():
                continue
            left = deadline - time.monotonic()
            is_last = left <= 0 or (ended is not None and ended.reason in ("timeout", "lost"))
            if messages or is_last:
                return Fetched(messages, next_offset)
            if next_offset > offset:
                offset, ended = next_offset, None  # no message matched; there may be more
            elif ended is not None:
                self.puller.rest(min(left, REST_S), self.check)  # a new pull would be woken at once
                ended = None
            else:
                ended = self._wait(offset, left)
                if ended.reason == "truncated":
                    offset = min(offset, ended.next_offset)
                elif ended.reason == "unknown":
                    ended = None  # the next read is only a check of the queue: it does not follow a wake

    def _read(self, offset: int, timeout: float) -> Fetched:
        queue = self.queue
        read = self.reader.read(queue.whole, offset, self.most, timeout, self.check)
        messages = select(parsed_filter(self.subscription.expression, self.subscription.expression_type), read.messages)
        if queue.slices > 1:
            find = self.key.key_of
            messages = [message for message in messages if slice_of(find(message), queue.slices) == queue.slice]
        return Fetched(messages, read.next_offset)

    def _wait(self, offset: int, seconds: float) -> PullEnded:
        timeout_ms = max(round(seconds * 1_000), 1)
        ended = self.puller.wait(self.queue.whole, offset, timeout_ms, self.subscription, self.check)
        if ended.reason == "refused":
            raise RequestRefused(
                f"the coordinator rejected a pull of {self.queue} ({ended.rule}): {ended.detail}", ended.rule
            )
        return ended
