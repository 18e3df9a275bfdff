"""The consumer that an application imports: it reads the queues that the coordinator assigns to it."""

import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from confluent_kafka import Message

from wakeroll import argument_checks
from wakeroll.broker_check import look
from wakeroll.calls_at_work import Application, CallAtWork
from wakeroll.client_settings import KafkaConfig
from wakeroll.connection import Connection, Topics
from wakeroll.errors import InvalidUsage
from wakeroll.failure_topics import ensure_failure_topics
from wakeroll.fetch import Fetched, Fetcher
from wakeroll.heartbeat_thread import Control, stay_at_end
from wakeroll.inbox import Inbox
from wakeroll.keys import client_key_for, read_keys
from wakeroll.last_will.executor_link import address_of
from wakeroll.last_will.member_will import will_for
from wakeroll.message_selection import MessageSelection
from wakeroll.outbox import Outbox
from wakeroll.own_process import OwnProcess
from wakeroll.pace import Pace
from wakeroll.push import limits
from wakeroll.push.failure_handling import HANDLE_TIMEOUT_S, RetryRules
from wakeroll.push.push_loop import PushLoop
from wakeroll.push.send_back import SendBack
from wakeroll.push.workers import Handler
from wakeroll.queue_starts import RETRY_S, OnQueues, QueueStarts
from wakeroll.reader import Reader
from wakeroll.thread_stacks import stack_of
from wakeroll.topic_filters import TopicFilters
from wakeroll_model.client import Client
from wakeroll_model.client_actions import Give
from wakeroll_model.config import MAX_TOPICS
from wakeroll_model.events import Mode, Offset, Policy, Subscription
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import retry_topic_of

QueueName = Queue | tuple[str, int]
"""A `Queue`, or a topic and a number."""
LEAVE_MARGIN_S = 1.0
"""Part of the time of close() that remains for leaving the group when calls of run()'s handler do not return (s)."""


class Consumer:
    """A member of a consumer group that reads the queues assigned to it by the group's coordinator.

    Poll from one thread. A call of `poll` means that the application has processed the last message: its offset may
    be committed. A revoked queue is released in such a call, and not earlier. A thread of its own sends heartbeats,
    so a slow handler does not end the session.

    Delivery is at least once. Messages that were processed and committed are not delivered again; after a crash, those
    processed in the last `commit_interval` are. Nothing is repeated when consumers join and leave normally.

    >>> with Consumer("billing", ["orders"], "localhost:9092") as consumer:  # doctest: +SKIP
    ...     while True:
    ...         if (message := consumer.poll()) is not None:
    ...             print(message.value())
    """

    def __init__(
        self,
        group_id: str,
        topics: Iterable[str] | Mapping[str, str],
        bootstrap: str | Iterable[str],
        *,
        client_id: str | None = None,
        consume_from: Policy = "last",
        consume_from_ms: int | None = None,
        mode: Mode = "clustering",
        strategy: str = "AVG",
        strategy_params: Mapping[str, Any] | None = None,
        allow_unknown_strategy: bool = False,
        orderly: bool = False,
        room: str = "",
        weight: float = 1.0,
        app_version: str = "",
        labels: Mapping[str, str] | None = None,
        host: str | None = "",
        commit_interval: float | None = 5.0,
        kafka_config: KafkaConfig | None = None,
        prefix: str = "wakeroll",
        keys: str | Path | None = None,
        on_assigned: OnQueues | None = None,
        on_revoked: OnQueues | None = None,
        connect_timeout: float = 10.0,
        poll_timeout: float | None = 300.0,
        last_will: bool | str = True,
        inspectable: bool = True,
    ) -> None:
        """Connect to the brokers. The first `poll`, `run` or `fetch`, or `join`, joins the group; so does ``with``.

        Args:
            group_id: the group; letters, digits, ``. _ -``.
            topics: names, or a mapping of name to filter: tags like ``"paid || refunded"``, or `Sql92`. Only messages
                that match are delivered; the tag and the properties of a message are its headers, as `Producer` writes
                them. A message that does not match counts as processed.
            bootstrap: ``host:port[,host:port]`` of the brokers, or a list of such addresses.
            client_id: this member's name, unique among all consumers; generated if omitted.
            consume_from: where to start a queue that the group has not read yet: ``last``, ``first`` or ``timestamp``.
                Topics and queues that are created after the subscription are read from their first message.
            consume_from_ms: epoch milliseconds, for ``timestamp``.
            mode: ``clustering``: the members share the queues; ``broadcasting``: each member reads every queue and
                commits its own offsets under its `client_id`, which must stay the same after a restart.
            strategy: the strategy that assigns the queues; the coordinator uses the oldest member's.
            strategy_params: parameters of the strategy.
            allow_unknown_strategy: whether `strategy` may name one that this release does not have, because the
                coordinator is newer. A coordinator that does not have it either assigns no queue by it.
            orderly: messages of a queue must be consumed in order: a queue is never taken from its owner before the
                owner releases it or its session ends.
            room: rack or machine room of this consumer.
            weight: this consumer's share of the work, relative to the other members' weights.
            app_version: version of the application, such as ``1.4.2``; at most 64 printable ASCII characters. Like
                `labels` and `host`, it is on record for each member, and decides nothing.
            labels: at most 8 texts of at most 63 characters, such as ``{"team": "cash"}``.
            host: host or pod of this consumer; empty: the machine's name, which in Kubernetes is the pod's. None: it is
                not told.
            commit_interval: seconds between two commits of processed messages. Offsets are also committed when a queue
                is revoked and on leaving. None: only `commit` commits. A start offset found by `consume_from` is
                always committed at once.
            kafka_config: more Kafka client settings, for example for the login, in librdkafka's or Java's names.
            prefix: prefix of the control plane's topic names.
            keys: file with the client key of this group, which signs its events; None: they are not signed.
            on_assigned: called in `poll` with newly assigned queues. Messages produced after the call are read.
            on_revoked: called in `poll` or `close` with queues that are revoked or lost. The application has processed
                all their delivered messages. Unless they were lost, nobody else owns them yet: finish open work here,
                and call `commit`.
            connect_timeout: seconds to wait for a broker.
            poll_timeout: seconds without a call of `poll`, `commit` or `fetch`, after which this consumer leaves, so
                that others get its queues; the next call joins again. `run` leaves when no call has returned for
                its `handle_timeout`, and no worker is free for the next. None: it stays (Kafka's
                ``max.poll.interval.ms``).
            last_will: if this process dies, a small process of its own commits at once what was processed, and frees
                the queues, instead of the end of the session; see docs/last-will.md. An address, such as
                ``unix:/run/wakeroll/will.sock``: of a ``wakeroll last-will`` that does it; True: the one that the
                environment variable WAKEROLL_LAST_WILL names, if it does. False: nobody does.
            inspectable: whether this consumer answers an operator who asks what it does (`wakeroll inspect`) with the
                stacks of its calls too: names of functions and lines of code, no values.

        Raises:
            InvalidUsage: an argument is not valid.
            NotReachable: no broker answered in time, or it has no control plane.
        """
        group_id, client_id = argument_checks.group_id_of(group_id), argument_checks.client_id_of(client_id)
        subscriptions = argument_checks.subscriptions_of(topics)
        self._filters = TopicFilters(subscriptions)
        commit_interval_ms = argument_checks.milliseconds_of(commit_interval)
        poll_timeout_s = argument_checks.poll_timeout_of(poll_timeout)
        executor = address_of(last_will, os.environ)
        preferences = argument_checks.preferences_of(
            subscriptions,
            consume_from,
            consume_from_ms,
            mode=mode,
            strategy=strategy,
            strategy_params=strategy_params or {},
            orderly=orderly,
            room=room,
            weight=weight,
        )
        about = argument_checks.about_of(host, app_version, labels or {})
        if not allow_unknown_strategy:
            argument_checks.require_strategy(strategy, argument_checks.ALLOW_UNKNOWN)
        client_keys = () if keys is None else (client_key_for(read_keys(keys).clients, group_id),)
        connection = Connection(
            argument_checks.addresses_of(bootstrap), kafka_config or {}, Topics(prefix), client_keys
        )
        with ExitStack() as undo:
            outbox = Outbox(connection, group_id)  # first, because a producer needs 55 ms to connect
            undo.callback(outbox.close)
            found = look(connection, [subscription.topic for subscription in subscriptions], connect_timeout)
            self._reader = Reader(connection)
            undo.callback(self._reader.close)
            undo.pop_all()
        self.group_id = group_id
        self.client_id = client_id
        self._orderly = orderly
        self._poll_timeout = poll_timeout
        self._on_revoked = on_revoked
        self._connection = connection
        self._connect_timeout = connect_timeout
        self._subscriptions = subscriptions
        self._mode = mode
        self._retry_topic = retry_topic_of(group_id)
        self._has_failure_topics = False
        self._has_retries = False
        """Whether this member subscribes the group's retry topic."""
        self._fetcher = Fetcher(connection, group_id, client_id, subscriptions, self._filters)
        client = Client(group_id, client_id, preferences, commit_interval_ms, about)
        will = will_for(client, connection, executor)
        me = weakref.ref(self)  # the control thread must not keep this object alive
        self._control = Control(
            client,
            lambda: Inbox(connection, client_id, found.partitions, connect_timeout, found.topic_id),
            outbox,
            self._fetcher.hear,
            will,
            math.inf if poll_timeout_s is None else poll_timeout_s,
            Application(
                lambda: "" if (consumer := me()) is None else consumer._hanging(),
                lambda: [] if (consumer := me()) is None else consumer._calls_at_work(),
                lambda with_stack: "" if (consumer := me()) is None else consumer._elsewhere(with_stack),
                shows_stacks=inspectable,
            ),
        )
        self._reader.on_leader_epoch = self._control.note_leader_epoch
        self._reader.leader_epoch_at = self._control.leader_epoch_at
        self._process = OwnProcess("Consumer")
        self._poller: threading.Thread | None = None
        self._closer: threading.Thread | None = None
        self._polling = threading.Lock()
        self._pace = Pace()
        self._closed = False
        """Whether `close` was called."""
        self._has_left = False
        """Whether `close` has done its work."""
        self._handed: tuple[Give, int] | None = None
        """Assignment and next offset of the message that the application is processing; None if there is none."""
        self._sought: Queue | None = None
        """Queue of a `seek` since that message was delivered."""
        self._is_in_doubt = False
        """Whether `poll`, `run`, `seek` or `put_back` ended by an exception, which may have come anywhere, also from a
        signal handler. Then messages may have been read that nobody received."""
        self._selection = MessageSelection(self._control, self._reader, self._filters)
        self._starts = QueueStarts(self._control, self._reader, on_assigned)
        self._loop: PushLoop | None = None
        """Runs while `run` does."""
        self._send_back: SendBack | None = None
        """Stores the failed messages of the last `run`; None before the first one."""
        self._stopping = False
        """Whether `stop` was called, and no `run` has ended since."""
        self._leave_by = math.inf
        """When `close` leaves the group, by the monotonic clock."""
        leaving = weakref.finalize(self, self._control.abandon)
        leaving.atexit = False  # type: ignore[misc]  # it is a property; at the end, `heartbeat_thread` leaves

    def join(self) -> None:
        """Join the group now, and not with the first `poll`, `run` or `fetch`; a second call does nothing.

        Queues are assigned soon after, and nothing is read before `poll` or `run`.

        Raises:
            InvalidUsage: the consumer is closed, or belongs to a forked process.
            NotReachable: no broker answered in time.
        """
        self._refuse_if_left()
        self._control.join()

    def poll(self, timeout: float = 1.0) -> Message | None:
        """Return the next message, or None if none came within `timeout` seconds.

        While an operator pauses the group (`wakeroll pause`), none comes; the consumer keeps its queues.

        It may take somewhat longer when it must query Kafka for the start of new queues, or when callbacks are slow.

        An exception of a signal handler, such as KeyboardInterrupt, may end it at any point: the next call returns the
        first message that is not processed. If the exception may also have come after a message was returned, before
        the application had processed it, call `put_back` first.

        Raises:
            InvalidUsage: the consumer is closed, or is used by a second thread or a forked process.
            ConsumerFenced: the coordinator removed this consumer; it does not rejoin by itself.
            BaseException: what a callback raised. If it is `on_assigned`, the next call calls it again.
        """
        if not timeout >= 0:
            raise InvalidUsage(f"timeout is {timeout!r}; it must be 0 or more seconds (math.inf waits forever)")
        deadline = time.monotonic() + timeout
        self._begin_polling("poll")
        try:
            try:
                self._control.join()
                self._finish()
                self._recover()
                self._subscribe(with_retries=False)
                while True:
                    self._control.called()
                    self._refuse_if_closed()
                    self._follow()
                    self._control.check()
                    left = max(deadline - time.monotonic(), 0.0)
                    message = self._next(left)
                    if message is not None or not left:
                        self._control.called()
                        return message
            finally:
                self._polling.release()
        except BaseException:
            self._handed = None  # nobody received it
            self._is_in_doubt = True
            stay_at_end()
            raise

    def fetch(self, queue: QueueName, offset: int, wait: float = 20.0, *, max_messages: int = 500) -> Fetched:
        """Return messages of a queue from an offset on; if there are none, wait for some.

        It is independent of `poll` and of ownership: any queue of this consumer's topics may be fetched, whoever owns
        it, and nothing is committed. Messages that do not match the topic's filter are left out. While it waits, it
        sends no requests to Kafka: the coordinator holds the pull.

        Any thread may call it. Several threads may call it at once, one for each queue.

        Args:
            queue: a `Queue`, or a topic and a number.
            offset: where to start; if that message is already deleted, the first message of the queue.
            wait: seconds to wait for messages, at most 600; 0 checks the queue only once. It takes five seconds longer
                if the coordinator does not answer, and up to five seconds longer if Kafka does not.
            max_messages: upper bound of the messages returned; the next fetch returns further ones at once.

        Returns:
            The messages, none if none arrived in time, and the offset at which the next fetch continues.

        Raises:
            InvalidUsage: an argument is not valid, another thread fetches this queue, or the consumer is closed, even
                if that happens during the wait.
            NotReachable: Kafka does not answer, or has no such queue.
            RequestRefused: the coordinator rejects the pull.
            ConsumerFenced: the coordinator removed this consumer; it does not rejoin by itself.
        """
        self._process.require()
        self._refuse_if_closed()
        self._control.join()
        try:
            return self._fetcher.fetch(queue, offset, wait, max_messages, self._check, lambda: self._control.is_paused)
        except BaseException:
            stay_at_end()
            raise

    def _check(self) -> None:
        """Raise an error if the membership has ended; a fetch at work calls it repeatedly."""
        self._control.called()
        self._control.check()

    def run(
        self,
        handler: Handler,
        *,
        workers: int = limits.WORKERS,
        batch_size: int = limits.BATCH_SIZE,
        prefetch: int = limits.PREFETCH,
        prefetch_bytes: int = limits.PREFETCH_BYTES,
        on_error: Literal["retry", "raise"] = "retry",
        max_retries: int | None = None,
        handle_timeout: float = HANDLE_TIMEOUT_S,
        stop_timeout: float = 30.0,
    ) -> None:
        """Call a handler with batches of messages, until `stop` or `close` is called.

        Use it instead of `poll`, from one thread. Messages are processed when the handler returns; an offset is
        committed when all messages below it are. With ``orderly``, a queue has one call at a time, in order of offset;
        otherwise messages of a queue with the same key have, and any others are handled at the same time.

        A revoked queue is released when the calls that have messages of it have returned. Messages that were read ahead
        are left to the next owner, except for those before a processed one, which are handled first: so consumers that
        come and go repeat nothing. Unless the consumer is ``orderly``, the queue is released after nine tenths of the
        group's revoke timeout in any case, and the next owner receives the messages of those calls again. The log
        (logger ``wakeroll``) shows which of both happened. A call that does not return blocks only its queue or key,
        but the offsets of its queue are not committed beyond its messages.

        Messages that the handler returns in a `Retry` are stored in the topic ``retry.<group>`` and delivered again
        later, to any member that runs a handler: after 10 s, 30 s, 1 to 10 minutes and up to 2 hours. After 16 retries,
        or when the handler returns `DeadLetter`, they are stored in ``dlq.<group>`` (see ``wakeroll dlq``). `origin_of`
        returns where a message comes from. A message counts as processed when it is stored there, so none is lost; if
        this process dies in between, it is both stored and delivered again. When the handler raises an `Exception` in a
        call with one message, that message is retried. In a call with several, nobody knows which one failed: each is
        handled again in a call of its own, at once, and only those that fail alone are retried.

        In a group that is ``orderly`` or broadcasts, messages wait in place instead, for a second by default, and the
        process does not remember the attempts when it ends. In order, messages of the call after a retried one come
        again after it, also those that the handler returned as `DeadLetter` or as `Retry`; their attempts do not count.

        >>> def handle(messages):
        ...     for message in messages:
        ...         print(message.value())
        >>> with Consumer("billing", ["orders"], "localhost:9092") as consumer:  # doctest: +SKIP
        ...     consumer.run(handle, workers=8)

        Args:
            handler: receives a list of messages of one queue, in order of offset; a function, which is called in
                threads, or an ``async`` function, which is called in one event loop. It returns None, or `Retry`,
                `DeadLetter` or a list of these, which may name single messages of the call.
            workers: calls at once, 1 to 1,000.
            batch_size: most messages per call.
            prefetch: most messages of a queue that are read and not processed; the queue is not read on meanwhile. It
                is not read on either when twice as many offsets lie behind its oldest unprocessed message.
            prefetch_bytes: most bytes of these messages' values per queue. Each message takes 0.5 KiB of memory besides
                its value and key. Kafka's client has up to 16 MiB more for all queues together (its setting
                ``queued.max.messages.kbytes``), and as much for a fetch from each broker.
            on_error: ``retry``, or ``raise``: an exception of the handler ends this method, and nothing is retried.
            max_retries: retries of a message before it is a dead letter; None: 16, or without limit if ``orderly``.
            handle_timeout: seconds after which a call that does not return counts as failed, as if it had raised. An
                ``async`` call is cancelled; the result of any other call does not count any more, and another thread
                takes its place. Without effect if messages wait in place.
            stop_timeout: seconds that calls may take to return after `stop`, or after a call has raised; at most a day.

        Raises:
            InvalidUsage: an argument is not valid, the consumer is closed, or is used by a second thread or a forked
                process.
            ConsumerFenced: the coordinator removed this consumer; it does not rejoin by itself.
            AccessDenied: the brokers deny this user to write to a topic for failed messages.
            WakerollError: a topic for failed messages cannot be created, or its settings would lose messages.
            BaseException: what a callback raised, or the handler: other exceptions than `Exception`, such as
                SystemExit, and with ``on_error="raise"`` all. The messages of that call are not processed: the next
                `run` or `poll`, or another member, receives them again.
        """
        push_limits = limits.PushLimits(workers, batch_size, prefetch, prefetch_bytes)
        if not callable(handler):
            raise InvalidUsage(f"handler is {handler!r}; it must be a function of a list of messages")
        if not stop_timeout >= 0:
            raise InvalidUsage(f"stop_timeout is {stop_timeout!r}; it must be 0 or more seconds")
        if on_error not in ("retry", "raise"):
            raise InvalidUsage(f"on_error is {on_error!r}; it must be 'retry' or 'raise'")
        in_place = self._orderly or self._mode == "broadcasting"
        if on_error == "retry" and not in_place and len(self._subscriptions) >= MAX_TOPICS:
            raise InvalidUsage(
                f"this consumer has {len(self._subscriptions)} topics; with the retry topic, it must have at most "
                f"{MAX_TOPICS - 1}; or pass on_error='raise'"
            )
        longest_s = argument_checks.LONGEST_S  # Python's locks cannot wait for `math.inf`
        hang_timeout = None if self._poll_timeout is None else handle_timeout
        rules = RetryRules(in_place, max_retries, handle_timeout, is_orderly=self._orderly)
        self._begin_polling("run")
        try:
            try:
                self._control.join()
                self._control.called()
                self._finish()
                self._recover()
                self._reader.go_on(self._reader.queues)
                if on_error == "retry" and not self._has_failure_topics:
                    ensure_failure_topics(
                        self._connection,
                        self.group_id,
                        self._connect_timeout,
                        retries=not in_place,
                        topics=[subscription.topic for subscription in self._subscriptions],
                    )
                    self._has_failure_topics = True
                self._subscribe(with_retries=on_error == "retry" and not in_place)
                self._send_back = SendBack(self._connection, self.group_id, self._end_run)
                self._loop = PushLoop(
                    self._control,
                    self._reader,
                    self._starts,
                    self._selection,
                    handler,
                    push_limits,
                    rules if on_error == "retry" else None,
                    self._send_back,
                    orderly=self._orderly,
                    on_revoked=self._on_revoked,
                    name=f"wakeroll-{self.client_id}",
                    hang_timeout=hang_timeout,
                    clock=self._connection.clock,
                )
                self._loop.run(
                    lambda: not self._stopping and not self._closed,
                    lambda: max(min(stop_timeout, longest_s, self._leave_by - time.monotonic() - LEAVE_MARGIN_S), 0.0),
                )
                self._loop = None
            finally:
                self._stopping = False
                self._polling.release()
        except BaseException:
            self._is_in_doubt = True
            stay_at_end()
            raise

    def _end_run(self, problem: BaseException) -> None:
        """End `run` because the thread that stores failed messages has ended."""
        self._has_failure_topics = False
        if (loop := self._loop) is not None:
            loop.end(problem)

    def _subscribe(self, *, with_retries: bool) -> None:
        if with_retries != self._has_retries:
            retries = [Subscription(topic=self._retry_topic)] if with_retries else []
            self._control.subscribe([*self._subscriptions, *retries])
            self._has_retries = with_retries

    @property
    def is_running(self) -> bool:
        """Whether `run` is at work."""
        return self._loop is not None and not self._is_in_doubt

    def stop(self) -> None:
        """Let `run` return when the calls at work have returned; any thread and any signal handler may call it.

        If `run` is not at work, the next one returns at once. The consumer stays a member and keeps its queues: call
        `close`, or `run` again.

        Raises:
            InvalidUsage: the consumer is closed.
        """
        self._refuse_if_left()
        self._stopping = True

    def _end_soon(self) -> None:
        """Let `run` return, as `stop` does; the consumer may be closed."""
        self._stopping = True

    def _forget_stop(self) -> None:
        """Let the next `run` consume, also if `stop` was called after the last one; in the polling thread."""
        self._stopping = False

    def refused(self) -> int:
        """Return how many failed messages wait in place now, because their topic does not take them.

        The retry topic or the dead letter topic refuses them (too large, denied, or by its settings), or has not
        acknowledged them for a minute. They hold the committed offsets of their queues. It is 0 unless `run` is at
        work, and may be half a minute late if their queues were lost. Any thread may call it.

        Raises:
            InvalidUsage: the consumer is closed.
        """
        self._refuse_if_left()
        return 0 if self._send_back is None else self._send_back.waiting

    def commit(self, timeout: float = 5.0) -> bool:
        """Commit all delivered messages now, including the last one; call it in the polling thread or in a callback.

        In a callback of `close`, the last message is included only if it is known to be processed; see `close`. During
        `run`, any thread may call it; it commits the messages whose calls have returned.

        Args:
            timeout: seconds to wait for Kafka's acknowledgement.

        Returns:
            Whether Kafka acknowledged the commit. If not (a timeout, or queues that were lost meanwhile), messages may
            be delivered again, to this consumer or to another one. The next commit includes the offsets that Kafka
            did not receive.

        Raises:
            InvalidUsage: the consumer is closed, or is used by a second thread or a forked process.
        """
        if not timeout >= 0:
            raise InvalidUsage(f"timeout is {timeout!r}; it must be 0 or more seconds")
        if (loop := self._loop) is not None and not self._is_in_doubt:
            self._process.require()
            loop.report()
        elif threading.current_thread() is not self._closer:
            self._refuse_who_must_not_poll()
        self._control.called()
        counts = self._is_polling or self._finish()
        return self._control.commit(min(timeout, argument_checks.LONGEST_S)) and counts

    def assignment(self) -> list[Queue]:
        """Return the queues that are being read, sorted; they change only in `poll` and `close`.

        Raises:
            InvalidUsage: the consumer is closed.
        """
        self._refuse_if_left()
        return self._reader.queues

    def pause(self, queues: Iterable[QueueName]) -> None:
        """Read no further messages of these queues, until `resume`, or until they are revoked. Any thread may call it.

        They stay assigned to this consumer. It takes effect at the next `poll`; during `run`, within a moment, and
        messages that were read before are handled.

        Raises:
            InvalidUsage: a queue is not being read (see `assignment`), or the consumer is closed.
        """
        self._refuse_if_left()
        self._reader.pause([argument_checks.queue_of(queue) for queue in queues])
        self._connection.clock.on_change()

    def resume(self, queues: Iterable[QueueName]) -> None:
        """Read queues on that `pause` has stopped. Any thread may call it.

        Raises:
            InvalidUsage: a queue is not being read (see `assignment`), or the consumer is closed.
        """
        self._refuse_if_left()
        self._reader.resume([argument_checks.queue_of(queue) for queue in queues])
        self._connection.clock.on_change()

    def seek(self, queue: QueueName, offset: int) -> None:
        """Read a queue from this offset on; in the polling thread, in `on_assigned`, but not during `run`.

        A committed offset never goes back: after a crash or a hand-over, the queue continues at the committed offset
        if that is higher. `wakeroll reset-offsets` and `Admin.reset` set it back. Messages that are skipped count as
        processed when the next one is.

        An application that stores offsets together with its results seeks to them in `on_assigned`.

        Raises:
            InvalidUsage: the queue is not being read, the offset is negative, or `run` is at work.
        """
        named = argument_checks.queue_of(queue)
        argument_checks.checked("offset", offset, Offset)
        self._refuse_who_must_not_poll()
        if not self._is_polling:
            self._recover()
        elif self._loop is not None and not self._starts.is_telling:
            raise InvalidUsage("seek() was called during run(); call it in on_assigned, or use poll()")
        self._reader.position(named)  # or it raises an error
        self._sought = named
        self._is_in_doubt = True  # until the reader is there
        self._selection.seek(named, offset)
        self._is_in_doubt = False

    def put_back(self) -> None:
        """Let the next `poll` return the last message again, as if it had not been delivered; in the polling thread.

        It does nothing without a last message, or if its queue was lost meanwhile. So call it before the next `poll`
        whenever the last message may not be processed, as after an exception of a signal handler.

        Raises:
            InvalidUsage: the consumer is closed, or is used by a second thread or a forked process.
        """
        self._refuse_who_must_not_poll()
        if self._handed is not None and not self._is_in_doubt:
            give, next_offset = self._handed
            self._is_in_doubt = True  # until the reader is there
            self._selection.set_back([(give, next_offset - 1)])
            self._is_in_doubt = False
        self._handed = None

    def position(self, queue: QueueName) -> int:
        """Return the offset of the next message of a queue; during `run`, of the first one that is not processed.

        Raises:
            InvalidUsage: the queue is not being read (see `assignment`), or the consumer is closed.
        """
        self._refuse_if_left()
        named = argument_checks.queue_of(queue)
        read = self._reader.position(named)
        handled = None if self._loop is None or self._is_in_doubt else self._loop.position(named)
        return read if handled is None else handled

    def committed(self, queue: QueueName) -> int | None:
        """Return the committed offset of a queue that this consumer reads; None if it knows of none.

        Raises:
            InvalidUsage: the queue is not being read (see `assignment`), or the consumer is closed.
        """
        self._refuse_if_left()
        named = argument_checks.queue_of(queue)
        self._reader.position(named)
        return self._control.commits().get(named)

    def lag(self, timeout: float = 5.0) -> dict[Queue, int]:
        """Return for each queue that is being read the number of offsets from what was read to its end.

        It sends one request to each broker. Call it in the polling thread; during `run`, any thread may call it. Queues
        of the retry topic are included: their messages wait for their next attempt.

        Args:
            timeout: seconds to wait for Kafka.

        Raises:
            InvalidUsage: another thread than the polling one calls it and `run` is not at work, or the consumer is
                closed.
            NotReachable: Kafka does not answer.
        """
        self._process.require()
        with self._connection.answering(timeout):
            if self.is_running and threading.current_thread() is not self._poller:
                return self._reader.when_polled(lambda: self._reader.lag(timeout), timeout)
            self._refuse_who_must_not_poll()
            return self._reader.lag(timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Commit processed messages and leave the group, which frees the queues at once. A second call does nothing.

        The last message counts as processed if `poll` or `commit` was called after it, or if a ``with`` block ends
        without an exception. Otherwise its handler may have failed, and the message is delivered again.

        Args:
            timeout: seconds to wait for Kafka's acknowledgement; without one, the queues become free when the session
                ends.

        Raises:
            InvalidUsage: it is called in a callback of `poll`.
        """
        if self._has_left or not self._process.is_current:
            return  # a forked process has neither the threads nor the membership
        me = threading.current_thread()
        if self._closer not in (None, me):
            return
        if me is self._poller and self._is_polling:
            raise InvalidUsage(
                "close() was called during poll() or run(), by a callback or a signal handler; "
                "call it when that has returned; stop() lets run() return"
            )
        deadline = self._leave_by = time.monotonic() + timeout
        try:
            self._closed, self._closer = True, me
            self._fetcher.close(timeout)
            # A poll() in another thread returns when it sees that the consumer is closed.
            idle = (
                self._polling.acquire(blocking=False)
                or not self._is_polling
                or self._polling.acquire(timeout=max(deadline - time.monotonic(), 0.0))
            )
            try:
                if idle:
                    self._recover()
                    self._reader.stop_all_but({})
                    self._tell(self._on_revoked, self._starts.ended())
            finally:
                self._control.leave(max(deadline - time.monotonic(), 0.0))
                if idle:
                    self._reader.close()
                    self._polling.release()
                self._has_left = True
        except BaseException:
            self._control.leave_by(deadline)  # in any case; the next call does what is left
            raise
        finally:
            self._closer = None

    def __enter__(self) -> Self:
        self.join()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and threading.current_thread() is self._poller and self._process.is_current:
                self._finish()
            self.close()
        except BaseException:
            if not self._has_left:  # nobody calls `close` again
                self._control.leave_by(time.monotonic() + LEAVE_MARGIN_S)
            raise

    def _finish(self) -> bool:
        """Record that the application has processed the last message; return whether that takes effect."""
        handed = self._handed
        if handed is None:
            return True
        counts = self._control.done(*handed)
        if self._sought is None or self._sought != handed[0].queue:
            self._reader.reach(handed)
        self._handed = None
        return counts

    def _recover(self) -> None:
        """After an exception, let the reader agree with what is processed; it may be interrupted, and called again."""
        if not self._is_in_doubt:
            return
        if self._loop is not None:
            self._loop.abandon()
            self._loop = None
        has_passed = self._handed is not None and self._handed[0].queue != self._sought
        self._reader.recover(self._handed if has_passed else None)
        self._selection.recover()
        self._control.changed.set()
        self._is_in_doubt = False

    def _next(self, timeout: float) -> Message | None:
        """Wait at most a slice of `timeout` seconds for a message to deliver; one that does not match is processed."""
        if self._reader.is_idle:
            self._control.changed.wait(min(timeout, RETRY_S))
            return None
        read = self._reader.poll(min(timeout, self._pace.wait_s))
        if read is None:
            self._follow_moves()
            return None
        self._pace.note()
        give, message = read
        offset = message.offset()
        assert offset is not None, "a message without an error has an offset"
        if self._control.is_paused:  # since this message was requested
            self._reader.set_back([(give, offset)])
            return None
        if not self._control.may_hand_out(give):
            return None
        if give.queue.topic == self._retry_topic:  # after a run(), until it is revoked; the next run() goes on here
            self._reader.set_back([(give, offset)])
            self._reader.hold_back([give.queue])
            return None
        if (passed := self._selection.passed(give, message, offset)) is not None:
            self._control.done(give, passed)
            self._reader.reach((give, passed))
            return None
        self._sought = None
        self._handed = give, offset + 1
        return message

    def _follow_moves(self) -> None:
        """Apply moves of positions without a message. The application has processed all delivered messages."""
        moves, self._reader.moves = self._reader.moves, []
        for move in moves:
            if not self._control.may_hand_out(move.give):
                continue  # a message before it may have been withheld
            if move.is_back:
                self._control.go_back(move.give, move.offset, move.leader_epoch)
            else:
                self._control.done(move.give, move.offset)
            self._reader.reach((move.give, move.offset))

    def _follow(self) -> None:
        """Apply assignments and revocations to the reader. The application has processed all delivered messages."""
        control, reader = self._control, self._reader
        if not control.changed.is_set() and not self._starts.is_due:
            return
        control.changed.clear()
        try:
            readable, draining = control.view()
            reader.stop_all_but(readable)
            reader.stop(control.is_paused)
            self._selection.follow()
            self._tell(self._on_revoked, self._starts.ended())
            control.released(draining)
            self._starts.begin(control.view()[0])
        except BaseException:
            control.changed.set()  # a callback failed: the next poll() continues
            raise

    def _hanging(self) -> str:
        """Describe what the application does instead of the next `poll`, as the end of a sentence."""
        handed, thread = self._handed, self._poller
        last = "" if handed is None else f"; its last message is offset {handed[1] - 1} of {handed[0].queue}"
        if thread is None:
            return last
        return f"{last}; thread {thread.name!r} is here:\n{stack_of(thread.ident)}"

    def _calls_at_work(self) -> list[CallAtWork]:
        """Return the calls of the handler, or the work on the message that `poll` has returned, the oldest first."""
        loop, handed, thread = self._loop, self._handed, self._poller
        if loop is not None:
            return loop.calls_at_work()
        if handed is None or thread is None or self._is_polling:
            return []
        last = handed[1] - 1
        return [CallAtWork(handed[0].queue, last, last, self._control.idle_ms, lambda: stack_of(thread.ident))]

    def _elsewhere(self, with_stack: bool) -> str:
        """Describe what the application does while no call is at work."""
        thread = self._poller
        if self._loop is not None or self._is_polling:
            return "it waits for messages"
        if thread is None:
            return "it has not polled yet"
        here = f":\n{stack_of(thread.ident)}" if with_stack else ""
        return f"thread {thread.name!r} is not in poll() or run(){here}"

    def _tell(self, callback: OnQueues | None, queues: list[Queue]) -> None:
        if callback is not None and queues:
            callback(queues)

    def _begin_polling(self, name: str) -> None:
        """Take the lock of `poll` and `run`, for the method of this name."""
        self._refuse_who_must_not_poll()
        if not self._polling.acquire(blocking=False):
            self._refuse_if_closed()
            if _calls_of(self, self._poller) > 1:
                raise InvalidUsage(
                    f"{name}() was called by a callback of poll() or run(); call it when that has returned"
                )
            # Otherwise an exception came before the lock was released. This call releases it.

    @property
    def _is_polling(self) -> bool:
        """Whether `poll` or `run` is at work."""
        return self._polling.locked() and _calls_of(self, self._poller) > 0

    def _refuse_who_must_not_poll(self) -> None:
        """Reject calls of a second thread, of a forked process, or after `close`."""
        self._process.require()
        self._refuse_if_closed()
        me = threading.current_thread()
        if self._poller is None:
            self._poller = me
        if self._poller is not me:
            raise InvalidUsage(
                f"this Consumer is polled by thread {self._poller.name!r}, and now by {me.name!r}; a call of poll() "
                "means that the last message is processed, so only one thread may poll"
            )

    def _refuse_if_left(self) -> None:
        """Reject calls of a forked process, or after `close` has returned; callbacks and calls at work may go on."""
        self._process.require()
        if self._has_left:
            self._refuse_if_closed()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise InvalidUsage("this Consumer is closed; create a new one")


def _calls_of(consumer: Consumer, thread: threading.Thread | None) -> int:
    """Return how many calls of `poll` and `run` of a consumer are at work in a thread.

    Its stack is certain. A lock or a flag is not: an exception of a signal handler may come before it is reset.
    """
    frame = None if thread is None or thread.ident is None else sys._current_frames().get(thread.ident)
    calls = 0
    while frame is not None:
        if frame.f_code in _POLLING and frame.f_locals.get("self") is consumer:
            calls += 1
        frame = frame.f_back
    return calls


_POLLING = (Consumer.poll.__code__, Consumer.run.__code__)
