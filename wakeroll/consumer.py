"""The consumer that an application imports: messages of the queues that the coordinator gives it."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaException, Message

from model.client import Client
from model.client_actions import Give
from model.events import Mode, Policy
from model.queue import Queue
from wakeroll import argument_checks
from wakeroll.broker_check import look
from wakeroll.connection import Connection, Topics
from wakeroll.errors import InvalidUsage, NotReachable
from wakeroll.fetch import Fetched, Fetcher
from wakeroll.heartbeat_thread import Control
from wakeroll.inbox import Inbox
from wakeroll.outbox import Outbox
from wakeroll.reader import Reader

OnQueues = Callable[[list[Queue]], object]

SLICE_S = 0.05
"""How long poll() waits for Kafka before it looks whether queues came or went."""
RETRY_S = 1.0
"""How long poll() lets a queue rest whose start Kafka did not tell."""


class Consumer:
    """A member of a consumer group, reading the queues that the group's coordinator gives it.

    Poll from one thread.  Being back in `poll` says that the last message is done: its offset may be committed, and a
    queue that goes to another consumer goes then, and not before.  Heartbeats have a thread of their own, so that a
    slow handler is no silence.

    At least once: what was done and committed is not handed out again; after a crash, what was done in the last
    `commit_interval` is.  When consumers come and go in good order nothing is repeated.

    >>> with Consumer("billing", ["orders"], "localhost:9092") as consumer:  # doctest: +SKIP
    ...     while True:
    ...         if (message := consumer.poll()) is not None:
    ...             print(message.value())
    """

    def __init__(
        self,
        group_id: str,
        topics: Iterable[str] | Mapping[str, str],
        bootstrap: str,
        *,
        client_id: str | None = None,
        consume_from: Policy = "last",
        consume_from_ms: int | None = None,
        mode: Mode = "clustering",
        strategy: str = "AVG",
        strategy_params: Mapping[str, Any] | None = None,
        orderly: bool = False,
        room: str = "",
        weight: float = 1.0,
        commit_interval: float | None = 5.0,
        kafka_config: Mapping[str, str] | None = None,
        prefix: str = "wakeroll",
        on_assigned: OnQueues | None = None,
        on_revoked: OnQueues | None = None,
        connect_timeout: float = 10.0,
    ) -> None:
        """Join the group.

        Args:
            group_id: the group; letters, digits, ``. _ -``.
            topics: names, or a mapping of name to expression.  `fetch` returns what the expression wants; `poll` does
                not look at it.
            bootstrap: ``host:port[,host:port]`` of the brokers.
            client_id: this member's name, its own among all consumers; made up if not given.
            consume_from: where a queue starts that the group has not read yet: ``last``, ``first`` or ``timestamp``.
            consume_from_ms: epoch milliseconds, for ``timestamp``.
            mode: ``clustering``: the members share the queues; ``broadcasting``: each of them reads every queue, and
                commits for itself under its `client_id`, which must then be the same at the next start.
            strategy: who gets which queues; what the oldest member wants counts.
            strategy_params: for the strategy.
            orderly: messages of a queue must be consumed in order: a queue is never freed while its owner lives.
            room: rack or machine room of this consumer.
            weight: its share of the work, against the others'.
            commit_interval: seconds between two commits of what is done; besides, it is committed when a queue goes and
                on leaving.  None: only `commit` commits.  Where a queue starts by `consume_from` is always committed
                at once.
            kafka_config: more librdkafka settings, for login and the like.
            prefix: how the control plane's topics begin.
            on_assigned: called in `poll` with the queues that came.  What is produced after it is read.
            on_revoked: called in `poll` or `close` with the queues that go, or were lost.  What they handed out is
                done, and nobody else has them yet: the place to finish what is unfinished, and to call `commit`.
            connect_timeout: seconds to wait for a broker.

        Raises:
            InvalidUsage: an argument is not what it must be.
            NotReachable: no broker answered in time, or it has no control plane.
        """
        group_id, client_id = argument_checks.group_id_of(group_id), argument_checks.client_id_of(client_id)
        subscriptions = argument_checks.subscriptions_of(topics)
        commit_interval_ms = argument_checks.milliseconds_of(commit_interval)
        wishes = argument_checks.wishes_of(
            subscriptions,
            consume_from,
            consume_from_ms,
            mode=mode,
            strategy=strategy,
            strategy_params=dict(strategy_params or {}),
            orderly=orderly,
            room=room,
            weight=weight,
        )
        connection = Connection(bootstrap, kafka_config or {}, Topics(prefix))
        outbox, self._reader = Outbox(connection, group_id), Reader(connection)
        try:
            partitions = look(connection, [subscription.topic for subscription in subscriptions], connect_timeout)
            inbox = Inbox(connection, client_id, partitions, connect_timeout)
        except KafkaException as problem:
            self._reader.close()
            raise NotReachable(f"{bootstrap} does not tell where {connection.topics.inbox} ends: {problem}") from None
        except NotReachable:
            self._reader.close()
            raise
        self.group_id = group_id
        self.client_id = client_id
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._fetcher = Fetcher(connection, group_id, client_id, subscriptions)
        client = Client(group_id, client_id, wishes, commit_interval_ms)
        self._control = Control(client, inbox, outbox, self._fetcher.hear)
        self._pid = os.getpid()
        self._poller: threading.Thread | None = None
        self._closer: threading.Thread | None = None
        self._polling = threading.Lock()
        self._closed = False
        self._handed: tuple[Give, int] | None = None
        """Of the message that the application is at work on: why it was read, and the next offset."""
        self._retry_at = 0.0
        self._control.start()

    def poll(self, timeout: float = 1.0) -> Message | None:
        """Return the next message, or None if none came within `timeout` seconds.

        It may take somewhat longer when queues come whose start Kafka must be asked for, or when callbacks take long.

        Raises:
            InvalidUsage: the consumer is closed, or used by a second thread or a forked process.
            Fenced: the coordinator wants this consumer out; it does not come back by itself.
        """
        if not timeout >= 0:
            raise InvalidUsage(f"timeout is {timeout!r}; it must be 0 or more seconds (math.inf waits for ever)")
        deadline = time.monotonic() + timeout
        self._refuse_who_must_not_poll()
        if not self._polling.acquire(blocking=False):
            self._refuse_if_closed()
            raise InvalidUsage("poll() was called by a callback of poll(); call it when poll() has returned")
        try:
            self._finish()
            while True:
                self._refuse_if_closed()
                self._follow()
                self._control.check()
                left = max(deadline - time.monotonic(), 0.0)
                message = self._next(left)
                if message is not None or not left:
                    return message
        finally:
            self._polling.release()

    def fetch(
        self, queue: Queue | tuple[str, int], offset: int, wait: float = 20.0, *, max_messages: int = 500
    ) -> Fetched:
        """Return messages of a queue from an offset on; if there are none, wait until there are.

        It stands beside `poll` and has nothing to do with ownership: any queue of this consumer's topics may be
        fetched, whoever owns it, and nothing is committed.  What the topic's expression does not want is left out; a
        message says its tag and properties in its headers, as `Producer` writes them.  While it waits, nothing is
        asked of Kafka: the coordinator holds the request.

        Any thread may call it, also several at once, one for each queue.

        Args:
            queue: a `Queue`, or a topic and a number.
            offset: where to begin; below the first message that is still there, that one counts.
            wait: seconds to wait for messages, to 600; 0 looks what is there.  It takes five seconds more when the
                coordinator does not answer, and may when Kafka does not.
            max_messages: return no more than these; there may be more at once in the next fetch.

        Returns:
            The messages, none if none came in time, and the offset at which the next fetch goes on.

        Raises:
            InvalidUsage: an argument is not what it must be, another thread fetches this queue, or the consumer is
                closed, perhaps while this waits.
            NotReachable: Kafka does not answer, or has no such queue.
            RequestRefused: the coordinator does not take the request.
            Fenced: the coordinator wants this consumer out; it does not come back by itself.
        """
        self._refuse_a_fork()
        return self._fetcher.fetch(queue, offset, wait, max_messages, self._control.check)

    def commit(self, timeout: float = 5.0) -> bool:
        """Commit now all that was handed out, the last message too; for the thread that polls, and for callbacks.

        In a callback of `close` that last message counts only if it is known to be done: see there.

        Args:
            timeout: seconds to wait for Kafka's receipt.

        Returns:
            Whether Kafka has it.  If not - it did not answer in time, or the queues were lost meanwhile - some of it
            may be handed out again, to this consumer or another; what Kafka did not receive is committed the next time.

        Raises:
            InvalidUsage: the consumer is closed, or used by a second thread or a forked process.
        """
        if not timeout >= 0:
            raise InvalidUsage(f"timeout is {timeout!r}; it must be 0 or more seconds")
        if threading.current_thread() is not self._closer:
            self._refuse_who_must_not_poll()
        counts = self._polling.locked() or self._finish()
        return self._control.commit(min(timeout, argument_checks.LONGEST_S)) and counts

    def assignment(self) -> list[Queue]:
        """Return the queues that are read now, sorted; they change in `poll` and `close` only."""
        return self._reader.queues

    def close(self, timeout: float = 5.0) -> None:
        """Commit what is done and leave the group: its queues go to the others at once.  A second call does nothing.

        The last message counts as done if `poll` or `commit` was called after it, or if a ``with`` block ends without
        an exception; otherwise its handler may have failed, and it will be handed out again.

        Args:
            timeout: seconds to wait for Kafka's receipt; without one, the queues are free when the session ends.

        Raises:
            InvalidUsage: a callback of `poll` called it.
        """
        if self._closed or os.getpid() != self._pid:
            return  # a fork's copy has neither the threads nor the membership
        if self._polling.locked() and threading.current_thread() is self._poller:
            raise InvalidUsage("close() was called by a callback of poll(); call it when poll() has returned")
        self._closed, self._closer = True, threading.current_thread()
        deadline = time.monotonic() + timeout
        self._fetcher.close(timeout)
        # A poll() in another thread ends when it sees that we close.
        idle = self._polling.acquire(timeout=max(deadline - time.monotonic(), 0.0))
        try:
            if idle:
                self._tell(self._on_revoked, self._reader.stop_all_but({}))
        finally:
            self._control.leave(max(deadline - time.monotonic(), 0.0))
            self._closer = None
            if idle:
                self._reader.close()
                self._polling.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and threading.current_thread() is self._poller and os.getpid() == self._pid:
            self._finish()
        self.close()

    def _finish(self) -> bool:
        """Note that the application is done with the last message; return whether that counts."""
        handed, self._handed = self._handed, None
        return handed is None or self._control.done(*handed)

    def _next(self, timeout: float) -> Message | None:
        """Wait for a message that may be handed out, for at most a slice of `timeout` seconds."""
        if self._reader.is_idle:
            self._control.changed.wait(min(timeout, RETRY_S))
            return None
        read = self._reader.poll(min(timeout, SLICE_S))
        if read is None:
            return None
        give, message = read
        if not self._control.may_hand_out(give):
            return None
        offset = message.offset()
        assert offset is not None, "a message without an error has an offset"
        self._handed = give, offset + 1
        return message

    def _follow(self) -> None:
        """Let reading follow what the coordinator says.  The application is done with all that it was handed."""
        control, reader = self._control, self._reader
        if not control.changed.is_set() and not 0 < self._retry_at <= time.monotonic():
            return
        control.changed.clear()
        self._retry_at = 0.0
        try:
            readable, draining = control.view()
            self._tell(self._on_revoked, reader.stop_all_but(readable))
            control.released(draining)
            readable, _ = control.view()
            reading = reader.queues
            news = [give for queue, give in readable.items() if queue not in reading]
            starts = reader.start(news)
            if len(starts) < len(news):
                self._retry_at = time.monotonic() + RETRY_S
            control.started(starts)
            self._tell(self._on_assigned, [give.queue for give, _ in starts])
        except BaseException:
            control.changed.set()  # a callback failed: the next poll() takes up the rest
            raise

    def _tell(self, callback: OnQueues | None, queues: list[Queue]) -> None:
        if callback is not None and queues:
            callback(queues)

    def _refuse_who_must_not_poll(self) -> None:
        """Let one thread of one process poll."""
        self._refuse_a_fork()
        self._refuse_if_closed()
        me = threading.current_thread()
        if self._poller is None:
            self._poller = me
        if self._poller is not me:
            raise InvalidUsage(
                f"this Consumer is polled by thread {self._poller.name!r}, and now by {me.name!r}; being back in "
                "poll() says that the last message is done, so one thread must do it"
            )

    def _refuse_a_fork(self) -> None:
        if os.getpid() != self._pid:
            raise InvalidUsage(
                f"this Consumer was made in process {self._pid}; process {os.getpid()} is a fork and must make its own"
            )

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise InvalidUsage("this Consumer is closed; make a new one")
