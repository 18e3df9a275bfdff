"""The pulls of a consumer, shared by the threads that wait for messages and the thread that receives the answers."""

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from wakeroll.connection import Connection, close_producer
from wakeroll.held_locks import free
from wakeroll.login_errors import denied, is_denied
from wakeroll.monotonic_clock import now_ms
from wakeroll.topic_partitions import learn_partitions
from wakeroll_model import config
from wakeroll_model.decisions import Rejected, Wake
from wakeroll_model.events import Cancel, Pull, Subscription
from wakeroll_model.pull_client import PullEnded, Pulls
from wakeroll_model.queue import Queue

log = logging.getLogger("wakeroll")

HEAR_S = 0.5
"""How long the thread that receives decisions waits for the lock (s); after that, a fetching thread processes them."""
SLICE_S = 0.5
"""Longest single wait of a thread for an answer (s); then it checks whether to continue."""

_encode = msgspec.json.Encoder().encode


class Puller:
    """Appends pulls and waits for their wakes; any number of threads, one for each queue."""

    def __init__(self, connection: Connection, group_id: str, client_id: str) -> None:
        """Prepare; the first pull connects."""
        self._connection = connection
        self._pulls = Pulls(group_id, client_id, uuid.uuid4().hex)
        self._ended: dict[Queue, PullEnded] = {}
        """Results of ended pulls that their threads have not taken yet."""
        self._changed = threading.Condition()  # with a lock that its owner may acquire again
        self._heard: deque[Wake | Rejected] = deque()
        """Received answers that were not processed yet."""
        self._producer: Producer | None = None
        self._is_closed = False
        self._signer = connection.client_signer(group_id)
        self._sent_again: dict[Queue, str] = {}
        """Queue -> request id of its last pull that was in a wrong partition, and was sent again."""
        self._denials = 0
        """Number of pulls that were denied since one was accepted."""

    def wait(
        self, queue: Queue, from_offset: int, timeout_ms: int, subscription: Subscription, check: Callable[[], None]
    ) -> PullEnded:
        """Wait for messages of a queue; only one thread per queue.

        Args:
            queue: the queue, read up to `from_offset`.
            from_offset: offset of the next message to read.
            timeout_ms: time after which the coordinator answers in any case.
            subscription: subscription to the queue's topic.
            check: called repeatedly; when it raises an exception, the pull is cancelled.
        """
        free(self._changed)
        with self._changed:
            self.cancel(queue)  # of a wait of this thread that an exception has ended anywhere
            pull = self._pulls.pull(queue, from_offset, timeout_ms, subscription, now_ms())
            try:
                self._append(pull)
                while queue not in self._ended:
                    self._process_heard()
                    check()
                    left_s = (self._pulls.next_due_ms() - now_ms()) / 1_000
                    self._changed.wait(min(max(left_s, 0.0), SLICE_S))
                    self._note(*self._pulls.on_time(now_ms()))
            except BaseException:
                self.cancel(queue)
                raise
            return self._ended.pop(queue)

    def begin(self, queue: Queue, from_offset: int, timeout_ms: int, subscription: Subscription) -> None:
        """Append a pull without waiting; `take_ended` returns its result. See `wait`."""
        with self._changed:
            self._append(self._pulls.pull(queue, from_offset, timeout_ms, subscription, now_ms()))

    def take_ended(self) -> list[PullEnded]:
        """Return the results of the pulls of `begin` that ended since the last call."""
        with self._changed:
            self._note(*self._pulls.on_time(now_ms()))
            ended, self._ended = list(self._ended.values()), {}
            return ended

    def cancel(self, queue: Queue) -> None:
        """Cancel the pull of a queue, and drop its result if it has ended."""
        with self._changed:
            self._ended.pop(queue, None)
            cancel = self._pulls.cancel(queue)
            if cancel is not None and self._producer is not None:
                self._append(cancel)

    def rest(self, seconds: float, check: Callable[[], None]) -> None:
        """Wait for this time, or until `check` raises an exception."""
        with self._changed:
            self._changed.wait_for(check, seconds)

    def hear(self, answer: Wake | Rejected) -> None:
        """Process an answer from the inbox; send a pull again if its queue has moved to another partition."""
        self._heard.append(answer)
        # An exception of a signal handler may have left the lock to a thread that fetches: it must not stop this one.
        if self._changed.acquire(timeout=HEAR_S):
            try:
                self._process_heard()
            finally:
                self._changed.release()

    def _process_heard(self) -> None:
        """Process the received answers. The caller holds the lock."""
        while self._heard:
            answer = self._heard.popleft()
            if isinstance(answer, Rejected) and answer.rule == "partition" and self._send_again(answer):
                continue
            ended = self._pulls.receive(answer)
            if ended is not None:
                self._note(ended)

    def look(self) -> None:
        """Make all waiting threads call their `check` now."""
        free(self._changed)
        with self._changed:
            self._changed.notify_all()

    def close(self, timeout: float) -> None:
        """Append nothing more; wait at most `timeout` seconds until Kafka acknowledges the appended events."""
        with self._changed:
            self._is_closed = True
            producer, self._producer = self._producer, None
        if producer is not None:
            close_producer(producer, timeout)

    def _note(self, *ended: PullEnded) -> None:
        for each in ended:
            self._ended[each.pull.queue] = each
            self._changed.notify_all()

    def _send_again(self, refusal: Rejected) -> bool:
        """Send the rejected pull to the right partition; return False if it was sent twice, or its wait has ended."""
        pull = self._pulls.quoted_in(refusal)
        if pull is None or pull.request_id == self._sent_again.get(pull.queue) or self._producer is None:
            return False
        self._sent_again[pull.queue] = pull.request_id
        learn_partitions(self._producer, self._connection.topics.queues)
        self._append(pull)
        return True

    def _append(self, event: Pull | Cancel) -> None:
        """Append an event; `Pulls` handles a loss by timeout. The caller holds the lock, so pulls stay in order."""
        if self._is_closed:
            return
        if self._producer is None:
            # A pull that is older than its longest hold is useless.
            self._producer = self._connection.producer(**{"message.timeout.ms": config.PULL_TIMEOUT_MS})
        topic, key, value = self._connection.topics.queues, event.queue.key.encode(), _encode(event)
        if self._signer is not None:
            value = self._signer.sign(topic, key, value)
        try:
            self._producer.poll(0)  # frees delivered records; a fatal error is raised here too
            self._producer.produce(topic, value=value, key=key, on_delivery=self._delivered)
        except BufferError:
            log.debug("a pull was not sent: the producer's queue is full")
        except KafkaException as problem:
            log.debug("a pull was not sent: %s", problem)
            if problem.args[0].fatal():
                self._producer = None  # an idempotent producer cannot recover from a fatal error

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if not is_denied(error):
            self._denials = 0
            return
        self._denials += 1
        if self._denials == 1:
            log.warning("%s", denied(self._connection.topics.queues, "Write"))
