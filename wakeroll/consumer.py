"""The consumer that an application imports: it reads the queues that the coordinator assigns to it."""

import asyncio
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, overload

from confluent_kafka import Message
from msgspec import Meta

from wakeroll import argument_checks
from wakeroll.argument_checks import TopicChoice
from wakeroll.broker_check import look
from wakeroll.callbacks import ByQueue, OnAssigned, OnEnded, QueueName, check_callback, is_async_function
from wakeroll.calls_at_work import Application, CallAtWork
from wakeroll.client_settings import KafkaConfig
from wakeroll.connection import Connection, Topics
from wakeroll.errors import InvalidUsage
from wakeroll.event_loop import LoopClosed
from wakeroll.fetch import MOST_MESSAGES, Fetched, Fetcher
from wakeroll.heartbeat_thread import Control, stay_at_end
from wakeroll.inbox import Inbox
from wakeroll.marks import Marks
from wakeroll.message_selection import MessageSelection
from wakeroll.monotonic_clock import now_ms
from wakeroll.name_lists import names_of
from wakeroll.offset_queries import OffsetQueries, OffsetTarget, as_times, target_of
from wakeroll.outbox import Outbox
from wakeroll.own_process import OwnProcess
from wakeroll.pending_commits import OnCommit, PendingCommits
from wakeroll.polled_messages import PolledMessages
from wakeroll.push import limits
from wakeroll.push.outcomes import Handler, OnDeadLetter
from wakeroll.queue_starts import QueueStarts
from wakeroll.reader import Reader
from wakeroll.slice_by import SliceBy, slice_key
from wakeroll.sliced_reader import SlicedReader
from wakeroll.thread_stacks import calls_of, name_of, stack_of
from wakeroll.topic_subscriptions import Subscribed, TopicSubscriptions
from wakeroll_model.client import Client
from wakeroll_model.client_actions import Give
from wakeroll_model.config import MAX_TOPICS, NEVER_MS
from wakeroll_model.events import Mode, Policy
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import retry_topic_of

if TYPE_CHECKING:
    from wakeroll.push.push_loop import PushLoop
    from wakeroll.push.send_back import SendBack

log = logging.getLogger("wakeroll")

LEAVE_MARGIN_S = 1.0
"""Part of the time of close() that is kept for leaving the group if calls of run()'s handler do not return (s)."""


class Consumer:
    """A member of a consumer group that reads the queues assigned to it by the group's coordinator.

    A call of `poll` or `consume` means that the application has processed the messages of the last call: their offsets
    may be committed. With `marks_done`, a message is processed when `done` is called for it. A revoked queue is
    released in such a call, and not earlier. A thread of its own sends heartbeats, so a slow handler does not end the
    session.

    Calls may come from different threads, one after the other. `done`, `pause`, `resume`, `stop`, `fetch` and the
    methods that only return something may be called by any thread at any time.

    Delivery is at least once. Messages that were processed and committed are not delivered again; after a crash, those
    processed in the last `commit_interval` are. Nothing is repeated when consumers join and leave normally.

    >>> with Consumer("billing", ["orders"], "localhost:9092") as consumer:  # doctest: +SKIP
    ...     for message in consumer:
    ...         print(message.value())
    """

    def __init__(
        self,
        group_id: str,
        topics: TopicChoice | None,
        bootstrap: str | Iterable[str],
        *,
        pattern: str | None = None,
        client_id: str | None = None,
        consume_from: Policy = "last",
        consume_from_ms: int | None = None,
        mode: Mode = "clustering",
        strategy: str | None = None,
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
        keys: str | os.PathLike[str] | None = None,
        on_assigned: OnAssigned | None = None,
        on_revoked: OnEnded | None = None,
        on_lost: OnEnded | None = None,
        connect_timeout: float = 10.0,
        poll_timeout: float | None = 300.0,
        last_will: bool | str = True,
        inspectable: bool = True,
        marks_done: bool = False,
        slice_by: SliceBy | None = None,
    ) -> None:
        """Connect to the brokers. The first `poll`, `run` or `fetch`, or `join`, joins the group; so does ``with``.

        Args:
            group_id: the group; letters, digits, ``. _ -``.
            topics: names, or a mapping of name to filter: tags like ``"paid || refunded"``, or `Sql92`. Only messages
                that match are delivered; the tag and the properties of a message are its headers, as `Producer` writes
                them. A message that does not match counts as processed. Or a compiled pattern, as for `pattern`, alone
                or as a key of the mapping, with the filter of all topics that match it.
            bootstrap: ``host:port[,host:port]`` of the brokers, or a list of such addresses.
            pattern: regular expression in the syntax of RE2, without look-around and back-references: topics whose
                whole names match it are read too, without a filter, and topics that appear later are read from their
                first message within seconds. `topics` may then be None. It never matches internal topics, those of the
                control plane, and those of failed messages.
            client_id: this member's name, unique among all consumers; generated if omitted.
            consume_from: where to start a queue that the group has not read yet: ``last``, ``first`` or ``timestamp``.
                Topics and queues that are created after the subscription are read from their first message.
            consume_from_ms: epoch milliseconds, for ``timestamp``.
            mode: ``clustering``: the members share the queues; ``broadcasting``: each member reads every queue and
                commits its own offsets under its `client_id`, which must stay the same after a restart.
            strategy: the strategy that assigns the queues; the coordinator uses the oldest member's. None: that of the
                running group, and ``SPREAD`` in a new one.
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
                not sent.
            commit_interval: seconds between two commits of processed messages. Offsets are also committed when a queue
                is revoked and on leaving. None: only `commit` commits. A start offset found by `consume_from` is
                always committed at once.
            kafka_config: more Kafka client settings, for example for the login, in librdkafka's or Java's names.
            prefix: prefix of the control plane's topic names.
            keys: file with the client key of this group, which signs its events; None: they are not signed.
            on_assigned: called in `poll` or `run` with the consumer and newly assigned queues. It may return where to
                start some of them: queue -> place, as for `seek`. Messages produced after the call are read.
            on_revoked: called in `poll`, `run` or `close` with the consumer and queues that are revoked. No further
                message of them is delivered, and no other member owns them yet: finish open work here, and call
                `commit`.
            on_lost: the same with queues that another member may own already, as after the end of a session: do not
                commit anything for them. None: `on_revoked` is called for them too.
            connect_timeout: seconds to wait for a broker.
            poll_timeout: seconds without a call of `poll`, `commit` and the like, after which this consumer leaves, so
                that other members get its queues; the next call joins again. `run` leaves when no call has returned for
                its `handle_timeout`, and no worker is free for the next. None: it stays (Kafka's
                ``max.poll.interval.ms``).
            last_will: if this process dies, a small helper process commits the processed messages and frees the queues
                at once, before the session ends; see docs/last-will.md. An address, such as
                ``unix:/run/wakeroll/will.sock``: a ``wakeroll last-will`` listens there and does it. True: the address
                in the environment variable WAKEROLL_LAST_WILL, if it is set, and otherwise a process of its own. False:
                no last will.
            inspectable: whether this consumer's answer to `wakeroll inspect` contains the stacks of its calls too:
                names of functions and lines of code, no values.
            marks_done: whether a message that `poll` or `consume` returned is processed when `done` is called for it,
                and not with the next call; for applications that finish messages in another order.
            slice_by: what orders the messages of topics that the group cuts into slices, see docs/slices.md: the name
                of a header, or a function of a message that returns text, bytes or None, always the same for the same
                message. None: the key. All members must have the same: they compare the function's name.

        Raises:
            InvalidUsage: an argument is not valid.
            NotReachable: no broker answered in time, or it has no control plane.
        """
        group_id, client_id = argument_checks.group_id_of(group_id), argument_checks.client_id_of(client_id)
        subscriptions, chosen = argument_checks.wanted_of(topics, pattern)
        self._topics = TopicSubscriptions(subscriptions, retry_topic_of(group_id), chosen)
        commit_interval_ms = argument_checks.milliseconds_of(commit_interval)
        poll_timeout_s = argument_checks.poll_timeout_of(poll_timeout)
        # Here, because they load more of Python than the rest of a consumer.
        from wakeroll.last_will.executor_link import address_of
        from wakeroll.last_will.member_will import will_for

        executor = address_of(last_will, os.environ)
        preferences = argument_checks.preferences_of(
            subscriptions,
            consume_from,
            consume_from_ms,
            pattern=chosen.text,
            pattern_expression=chosen.filter[0],
            pattern_expression_type=chosen.filter[1],
            mode=mode,
            strategy=argument_checks.DEFAULT_STRATEGY if strategy is None else strategy,
            strategy_by_default=strategy is None,
            strategy_params=strategy_params or {},
            orderly=orderly,
            room=room,
            weight=weight,
        )
        for name, callback in (("on_assigned", on_assigned), ("on_revoked", on_revoked), ("on_lost", on_lost)):
            check_callback(name, callback, may_be_async=False)
        about = argument_checks.about_of(host, app_version, labels or {})
        if strategy is None and strategy_params:
            raise InvalidUsage("strategy_params were given without a strategy; name the strategy that they are for")
        if strategy is not None and not allow_unknown_strategy:
            argument_checks.require_strategy(strategy, argument_checks.ALLOW_UNKNOWN)
        key = slice_key(slice_by)
        client_keys = () if keys is None else (argument_checks.client_key_of(keys, group_id),)
        connection = Connection(
            argument_checks.addresses_of(bootstrap), kafka_config or {}, Topics(prefix), client_keys
        )
        with ExitStack() as undo:
            outbox = Outbox(connection, group_id)  # first, because a producer needs 55 ms to connect
            undo.callback(outbox.close)
            found = look(connection, [subscription.topic for subscription in subscriptions], connect_timeout)
            self._reader = SlicedReader(Reader(connection), key)
            undo.callback(self._reader.close)
            undo.pop_all()
        self.group_id = group_id
        self.client_id = client_id
        self._orderly = orderly
        self._poll_timeout = poll_timeout
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._on_lost = on_lost
        self._connection = connection
        self._connect_timeout = connect_timeout
        self._mode = mode
        self._retry_topic = retry_topic_of(group_id)
        self._has_failure_topics = False
        self._fetcher = Fetcher(connection, group_id, client_id, self._topics, key)
        client = Client(group_id, client_id, preferences, commit_interval_ms, about, key.told)
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
        self._caller: int | None = None
        """Thread of the last call of `poll`, `consume` or `run`."""
        self._closer: threading.Thread | None = None
        self._polling = threading.Lock()
        self._closed = False
        """Whether `close` was called."""
        self._has_left = False
        """Whether `close` has done its work."""
        self._is_in_doubt = False
        """Whether a call ended by an exception, which a signal handler may raise at any point. Then messages may have
        been read that the application did not receive."""
        self._selection = MessageSelection(self._control, self._reader)
        self._marks = Marks(self._control.done) if marks_done else None
        self._leaving: dict[Queue, int] = {}
        """Revoked queues with messages that are not done -> when they are released in any case, by the SDK's clock."""
        self._polled = PolledMessages(self._control, self._reader, self._selection, self._retry_topic, self._marks)
        self._queries = OffsetQueries(connection, group_id)
        self._commits = PendingCommits()
        self._starts = QueueStarts(
            self._control, self._reader, lambda queues: None if (consumer := me()) is None else consumer._begun(queues)
        )
        self._loop: PushLoop | None = None
        """The loop of `run`; None while `run` does not run."""
        self._send_back: SendBack | None = None
        """Stores the failed messages of the last `run`; None before the first one."""
        self._stopping = False
        """Whether `stop` was called, and no `run` has ended since."""
        self._leave_by = math.inf
        """When `close` leaves the group, by the monotonic clock."""
        leaving = weakref.finalize(self, self._control.abandon)
        leaving.atexit = False  # type: ignore[misc]  # it is a property; at the end, `heartbeat_thread` leaves

    def join(self) -> None:
        """Join the group now instead of in the first `poll`, `run` or `fetch`; a second call does nothing.

        Queues are assigned soon after, and nothing is read before `poll` or `run`.

        Raises:
            InvalidUsage: the consumer is closed, or belongs to a forked process.
            NotReachable: no broker answered in time.
        """
        self._refuse_if_left()
        self._control.join()

    def poll(self, timeout: float = 1.0) -> Message | None:
        """Return the next message, or None if none came within `timeout` seconds.

        While a group is paused (`wakeroll pause`), none comes; the consumer keeps its queues.

        It may take somewhat longer than `timeout` when it queries Kafka for the start of new queues, or when callbacks
        are slow.

        An exception of a signal handler, such as KeyboardInterrupt, may end it at any point: the next call returns the
        first message that is not processed. If the exception may also have come after a message was returned, before
        the application had processed it, call `put_back` first.

        Raises:
            InvalidUsage: the consumer is closed, or is used by a second thread at once, or by a forked process.
            ConsumerFenced: the coordinator removed this consumer; it does not rejoin by itself.
            BaseException: an exception of a callback. If `on_assigned` raised it, the next call calls `on_assigned`
                again.
        """
        # One line: an exception of a signal handler must not come between a message and its receiver.
        return self._receive("poll", 1, timeout, alone=True) if (ready := self._swift()) is None else ready

    def consume(self, num_messages: int = 500, timeout: float = 1.0) -> list[Message]:
        """Return the next messages, of one queue or of several, or none if none came within `timeout` seconds.

        It waits for the first message only, and returns it with those that are there already. Messages of a queue are
        in order of offset. The next call of `consume` or `poll` means that all of them are processed; `commit` can mark
        fewer. In all else it behaves like `poll`.

        Args:
            num_messages: maximum number of messages, 1 to 100,000.
            timeout: seconds to wait for the first one.

        Raises:
            InvalidUsage: an argument is not valid, or as for `poll`.
            ConsumerFenced: the coordinator removed this consumer; it does not rejoin by itself.
            BaseException: an exception of a callback, as for `poll`.
        """
        argument_checks.checked("num_messages", num_messages, Annotated[int, Meta(ge=1, le=MOST_MESSAGES)])
        return self._receive("consume", num_messages, timeout, alone=False)

    def __iter__(self) -> Iterator[Message]:
        """Return the messages, one by one, until the consumer is closed.

        >>> with Consumer("billing", ["orders"], "localhost:9092") as consumer:  # doctest: +SKIP
        ...     for message in consumer:
        ...         print(message.value())
        """
        while not self._closed:
            try:
                message = self.poll()
            except InvalidUsage:
                if self._closed:  # by another thread, meanwhile
                    return
                raise
            if message is not None:
                yield message

    def _swift(self) -> Message | None:
        """Return the next message if it was read ahead and nothing else must be done first; else None."""
        polling = self._polling
        if not polling.acquire(False):
            return None
        try:
            try:
                self._caller = threading.get_ident()
                return self._polled.next()
            finally:
                polling.release()
        except BaseException:
            self._polled.abandon()
            self._is_in_doubt = True
            raise

    @overload
    def _receive(self, name: str, most: int, timeout: float, *, alone: Literal[True]) -> Message | None: ...

    @overload
    def _receive(self, name: str, most: int, timeout: float, *, alone: Literal[False]) -> list[Message]: ...

    def _receive(self, name: str, most: int, timeout: float, *, alone: bool) -> list[Message] | Message | None:
        """Check the membership, and return the next messages, or only one; `name` is the method that was called."""
        if not timeout >= 0:
            raise InvalidUsage(f"timeout is {timeout!r}; it must be 0 or more seconds (math.inf waits forever)")
        deadline = time.monotonic() + timeout
        self._begin_polling(name)
        is_confirmed = False
        try:
            try:
                self._control.join()
                self._polled.confirm()
                is_confirmed = True
                self._recover()
                self._read_retries(with_retries=False)
                while True:
                    self._control.called()
                    self._refuse_if_closed()
                    self._commits.serve()
                    self._follow()
                    self._control.check()
                    left = max(deadline - time.monotonic(), 0.0)
                    messages = self._polled.take(most, left, alone=alone)
                    if messages or not left:
                        self._control.called()
                        if alone:
                            return messages[0] if messages else None
                        return messages
            finally:
                self._polling.release()
        except BaseException:
            if is_confirmed:
                self._polled.abandon()  # nobody received it
            self._is_in_doubt = True
            stay_at_end()
            raise

    def done(self, *messages: Message) -> bool:
        """Mark messages as processed, in a consumer with `marks_done`. Any thread may call it, in any order.

        The committed offset of a queue is that of its first message that is not done. While a queue is revoked, it is
        released when all its messages are done, at the latest after nine tenths of the group's revoke timeout, unless
        the consumer is ``orderly``. Go on calling `poll` or `consume` meanwhile: these calls release it.

        Args:
            messages: the objects that `poll` or `consume` has returned.

        Returns:
            Whether all of them are marked. A message of a queue that was lost, or a message before a `seek` or
            `put_back`, is not marked, and is delivered again.

        Raises:
            InvalidUsage: the consumer has no `marks_done`, or is closed.
        """
        self._refuse_if_left()
        if self._marks is None:
            raise InvalidUsage(
                "done() needs a Consumer with marks_done=True; without it, the next poll() or consume() means that the "
                "messages of the last one are processed"
            )
        self._control.noticed()
        marked = [self._marks.mark(message) for message in messages]  # all of them, also after one that is not
        return all(marked)

    def fetch(self, queue: QueueName, offset: int, wait: float = 20.0, *, max_messages: int = 500) -> Fetched:
        """Return messages of a queue from an offset on; if there are none, wait for some.

        It is independent of `poll` and of ownership: any queue of this consumer's topics may be fetched, whichever
        member owns it, and nothing is committed. Messages that do not match the topic's filter are left out. While it
        waits, it sends no requests to Kafka: the coordinator holds the pull.

        Any thread may call it. Several threads may call it at once, one for each queue.

        Args:
            queue: a `Queue`, or a topic and a number.
            offset: where to start; if that message is already deleted, the first message of the queue.
            wait: seconds to wait for messages, at most 600; 0 checks the queue only once. The call takes five seconds
                longer if the coordinator does not answer, and up to five seconds longer if Kafka does not answer.
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
        """Raise an error if the membership has ended; a running fetch calls it repeatedly."""
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
        retry_delays: Sequence[int] | None = None,
        on_dead_letter: OnDeadLetter | None = None,
        handle_timeout: float = limits.HANDLE_TIMEOUT_S,
        stop_timeout: float = 30.0,
    ) -> None:
        """Call a handler with batches of messages, until `stop` or `close` is called.

        Use it instead of `poll`, from one thread. Messages are processed when the handler returns; an offset is
        committed when all messages below it are. With ``orderly``, a queue has one call at a time, in order of offset.
        Otherwise, messages of a queue with the same key are handled one after the other, and messages with different
        keys at the same time.

        A revoked queue is released when the calls that have messages of it have returned. Messages that were read ahead
        are left to the next owner, except for those before a processed one, which are handled first: so consumers that
        come and go repeat nothing. Unless the consumer is ``orderly``, the queue is released after nine tenths of the
        group's revoke timeout in any case, and the next owner receives the messages of those calls again. The log
        (logger ``wakeroll``) shows which of these happened. A call that does not return blocks only its queue or key,
        but the offsets of its queue are not committed beyond its messages.

        Messages that the handler returns in a `Retry` are stored in the topic ``retry.<group>`` and delivered again
        later, to any member that runs a handler: after 10 s, 30 s, 1 to 10 minutes and up to 2 hours, or after
        `retry_delays`. After 16 retries, or when the handler returns `DeadLetter`, they are stored in ``dlq.<group>``
        (see ``wakeroll dlq``). `origin_of` returns where a message comes from. A message counts as processed when it is
        stored there, so none is lost; if this process dies in between, it is both stored and delivered again. When the
        handler raises an `Exception` in a call with one message, that message is retried. In a call with several
        messages, the one that failed is not known: each message is handled again in a call of its own, at once, and
        only those that fail there are retried.

        In a group that is ``orderly`` or broadcasts, messages wait in place instead, for a second by default, and the
        number of attempts is lost when the process ends. In an orderly group, messages of the call that follow a
        retried one are delivered again after it, also those that the handler returned as `DeadLetter` or as `Retry`;
        these attempts do not count.

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
            batch_size: maximum number of messages per call.
            prefetch: maximum number of messages of a queue that are read and not processed; then reading of the queue
                stops. It also stops when twice as many offsets lie after the oldest unprocessed message of the queue.
            prefetch_bytes: maximum number of bytes of these messages' values per queue. Each message takes 0.5 KiB of
                memory besides its value and key. Kafka's client has up to 16 MiB more for all queues together (its
                setting ``queued.max.messages.kbytes``), and as much for a fetch from each broker.
            on_error: ``retry``, or ``raise``: an exception of the handler ends this method, and nothing is retried.
            max_retries: retries of a message before it is a dead letter; 0: none. None: without limit if ``orderly``,
                otherwise as many as `retry_delays` has, or 16.
            retry_delays: whole seconds before the first retry, the second and so on, each from 1 to 604,800 (7 days);
                the last one counts for all that follow. None: the levels of RocketMQ. A `Retry` with a level has the
                delay of that level.
            on_dead_letter: called with a message that is not retried any more, before it is stored as a dead letter;
                with its `Origin`, as the dead letter will have it; and with the exception of its last call, if it
                raised one. If it returns True, the application has taken the message, and nothing is stored. If it
                raises an `Exception`, that is logged, and the message is stored. It may be called again for a message,
                as after a crash. It is called where the handler is; an ``async`` function needs an ``async`` handler.
            handle_timeout: seconds after which a call that does not return counts as failed, as if it had raised. An
                ``async`` call is cancelled; the result of any other call does not count any more, and another thread
                takes its place. Without effect if messages wait in place.
            stop_timeout: seconds that calls may take to return after `stop`, or after a call has raised; at most a day.

        Raises:
            InvalidUsage: an argument is not valid, the consumer is closed, or is used by a second thread at once, or by
                a forked process.
            ConsumerFenced: the coordinator removed this consumer; it does not rejoin by itself.
            AccessDenied: the brokers deny this user to write to a topic for failed messages.
            WakerollError: a topic for failed messages cannot be created, or its settings would lose messages.
            BaseException: what a callback raised, or the handler: other exceptions than `Exception`, such as
                SystemExit, and with ``on_error="raise"`` all. The messages of that call are not processed: the next
                `run` or `poll`, or another member, receives them again.
        """
        self._run(
            handler,
            loop=None,
            workers=workers,
            batch_size=batch_size,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            on_error=on_error,
            max_retries=max_retries,
            retry_delays=retry_delays,
            on_dead_letter=on_dead_letter,
            handle_timeout=handle_timeout,
            stop_timeout=stop_timeout,
        )

    def _run(
        self,
        handler: Handler,
        *,
        loop: asyncio.AbstractEventLoop | None,
        workers: int,
        batch_size: int,
        prefetch: int,
        prefetch_bytes: int,
        on_error: Literal["retry", "raise"],
        max_retries: int | None,
        retry_delays: Sequence[int] | None,
        on_dead_letter: OnDeadLetter | None,
        handle_timeout: float,
        stop_timeout: float,
    ) -> None:
        """Run as described for `run`; an ``async`` handler is called in this event loop, if it is one."""
        # Here, because an application that polls needs none of it.
        from wakeroll.failure_topics import ensure_failure_topics
        from wakeroll.push.failure_handling import RetryRules
        from wakeroll.push.push_loop import PushLoop
        from wakeroll.push.send_back import SendBack

        push_limits = limits.PushLimits(workers, batch_size, prefetch, prefetch_bytes)
        if not callable(handler):
            raise InvalidUsage(f"handler is {handler!r}; it must be a function of a list of messages")
        if self._marks is not None:
            raise InvalidUsage("run() needs a Consumer without marks_done=True, which is for poll() and consume()")
        if not stop_timeout >= 0:
            raise InvalidUsage(f"stop_timeout is {stop_timeout!r}; it must be 0 or more seconds")
        if on_error not in ("retry", "raise"):
            raise InvalidUsage(f"on_error is {on_error!r}; it must be 'retry' or 'raise'")
        in_place = self._orderly or self._mode == "broadcasting"
        if on_error == "retry" and not in_place and len(self._topics.own) >= MAX_TOPICS:
            raise InvalidUsage(
                f"this consumer has {len(self._topics.own)} topics; with the retry topic, it must have at most "
                f"{MAX_TOPICS - 1}; or pass on_error='raise'"
            )
        longest_s = argument_checks.LONGEST_S  # Python's locks cannot wait for `math.inf`
        hang_timeout = None if self._poll_timeout is None else handle_timeout
        rules = RetryRules(in_place, max_retries, handle_timeout, self._orderly, retry_delays, on_dead_letter)
        if is_async_function(on_dead_letter) and not is_async_function(handler):
            raise InvalidUsage("on_dead_letter is an async function, which needs an async handler")
        self._begin_polling("run")
        try:
            try:
                self._control.join()
                self._control.called()
                self._polled.confirm()
                self._recover()
                self._polled.give_back()
                self._reader.go_on(self._reader.queues)
                if on_error == "retry" and not self._has_failure_topics:
                    # An exception of a signal handler inside Kafka's admin client would become a SystemError.
                    ensure = partial(
                        ensure_failure_topics,
                        self._connection,
                        self.group_id,
                        self._connect_timeout,
                        retries=not in_place,
                        topics=self._topics.topics,
                    )
                    self._control.beside(ensure)
                    self._has_failure_topics = True
                self._read_retries(with_retries=on_error == "retry" and not in_place)
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
                    on_ended=self._ended,
                    name=f"wakeroll-{self.client_id}",
                    hang_timeout=hang_timeout,
                    clock=self._connection.clock,
                    event_loop=loop,
                )
                self._loop.run(
                    self._goes_on,
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

    def _goes_on(self) -> bool:
        """Return whether `run` continues; its loop calls this in each round."""
        self._commits.serve()
        return not self._stopping and not self._closed

    def _end_run(self, problem: BaseException) -> None:
        """End `run` because the thread that stores failed messages has ended."""
        self._has_failure_topics = False
        if (loop := self._loop) is not None:
            loop.end(problem)

    def _read_retries(self, *, with_retries: bool) -> None:
        if with_retries != self._topics.has_retries:
            self._control.resubscribe(lambda: self._topics.take_retries(with_retries))

    @property
    def is_running(self) -> bool:
        """Whether `run` runs now."""
        return self._loop is not None and not self._is_in_doubt

    def stop(self) -> None:
        """Let `run` return when all running calls have returned; any thread and any signal handler may call it.

        If `run` is not running, the next call of it returns at once. The consumer stays a member and keeps its queues:
        call `close`, or `run` again.

        Raises:
            InvalidUsage: the consumer is closed.
        """
        self._refuse_if_left()
        self._stopping = True

    def _end_soon(self) -> None:
        """Let `run` return, as `stop` does; the consumer may be closed."""
        self._stopping = True

    def _lose_calls(self) -> None:
        """Let `run` end, because the event loop in which it calls the handler is closed."""
        if (loop := self._loop) is not None:
            loop.lose_calls(LoopClosed())

    def _forget_stop(self) -> None:
        """Let the next `run` consume even if `stop` was called after the last one. The polling thread calls it."""
        self._stopping = False

    def refused(self) -> int:
        """Return how many failed messages wait in place now because their topic refuses them.

        The retry topic or the dead letter topic refuses them (too large, denied, or by its settings), or has not
        acknowledged them for a minute. They hold the committed offsets of their queues. The number is 0 unless `run` is
        running, and may be half a minute late if their queues were lost. Any thread may call it.

        Raises:
            InvalidUsage: the consumer is closed.
        """
        self._refuse_if_left()
        return 0 if self._send_back is None else self._send_back.waiting

    def commit(
        self,
        timeout: float = 5.0,
        *,
        message: Message | None = None,
        offsets: ByQueue[int | tuple[int, str]] | None = None,
        asynchronous: bool = False,
        on_commit: OnCommit | None = None,
    ) -> bool:
        """Commit all delivered messages now, including those of the last call; with `marks_done`, those that are done.

        In a callback of `close`, the last messages are included only if they are known to be processed; see `close`.
        During `run`, any thread may call it; it commits the messages whose calls have returned.

        With `message` or `offsets`, earlier delivered messages of their queues are processed, later ones are not, and
        nothing else is committed now. Neither is possible during `run`. Committed offsets never decrease.

        Args:
            timeout: seconds to wait for Kafka's acknowledgement.
            message: a message that `poll` or `consume` has returned: it and all before it in its queue are processed.
            offsets: queue -> offset of the next message to process, at most the one after the last delivered message;
                or that and a text of at most 4,096 characters, which is recorded with the commit (`metadata` in the
                table `offsets`) but not in a last will.
            asynchronous: whether to return at once.
            on_commit: called if `asynchronous`, with whether Kafka acknowledged the commit in time, and with the
                offsets; in a later `poll`, `consume`, `commit` or `close`, or by the thread of `run`.

        Returns:
            Whether Kafka acknowledged the commit. If not (a timeout, or queues that were lost meanwhile), messages may
            be delivered again, to this consumer or to another one. The next commit includes the offsets that Kafka
            did not receive. If `asynchronous`: whether the queues are still assigned to this consumer.

        Raises:
            InvalidUsage: an argument is not valid, such as an offset beyond what was delivered; the consumer is closed,
                or is used by a second thread at once, or by a forked process.
        """
        if not timeout >= 0:
            raise InvalidUsage(f"timeout is {timeout!r}; it must be 0 or more seconds")
        if on_commit is not None and not asynchronous:
            raise InvalidUsage("on_commit needs asynchronous=True; otherwise commit() returns the outcome")
        if message is not None and offsets is not None:
            raise InvalidUsage("message and offsets were both given; pass one of them")
        if (loop := self._loop) is not None and not self._is_in_doubt:
            self._process.require()
            if message is not None or offsets is not None:
                raise InvalidUsage("commit() has neither message nor offsets during run(): results of calls count")
            loop.report()
        elif threading.current_thread() is not self._closer:
            self._refuse_at_once("commit")
        self._control.called()
        if message is not None:
            offsets = {self._reader.queue_of(message): (message.offset() or 0) + 1}
        queues: list[Queue] | None = None
        if offsets is None:
            counts = self._is_polling or self._polled.confirm()
        else:
            given = {argument_checks.queue_of(queue): offset for queue, offset in offsets.items()}
            wanted = {one: offset for queue, offset in given.items() for one in self._reader.named(queue)}
            queues = list(wanted)
            counts = self._confirm_below(wanted, capped=wanted.keys() - given)
        timeout = min(timeout, argument_checks.LONGEST_S)
        if not asynchronous:
            is_committed = self._control.commit(timeout, queues)
            self._commits.serve()
            return is_committed and counts
        processed = self._control.processed()
        told = {queue: offset for queue, offset in processed.items() if queues is None or queue in queues}
        self._commits.add(self._control.begin_commit(timeout, queues), counts, told, on_commit)
        return counts

    def _confirm_below(self, offsets: Mapping[Queue, int | tuple[int, str]], capped: Container[Queue]) -> bool:
        """Mark messages below these offsets as processed; return whether this consumer has all the queues.

        `capped`: slices of partitions that were named as a whole; only their delivered messages are marked.
        """
        known = {queue: self._polled.delivered(queue) for queue in offsets}
        wanted = {queue: argument_checks.offset_and_text_of(queue, given) for queue, given in offsets.items()}
        for queue, (offset, text) in wanted.items():
            if (delivered := known[queue]) is not None and offset > delivered[1]:
                if queue in capped:
                    wanted[queue] = delivered[1], text
                    continue
                raise InvalidUsage(
                    f"offset {offset} of {queue} is beyond what was delivered: the next message has offset "
                    f"{delivered[1]}"
                )
        for queue, (offset, text) in wanted.items():
            if (delivered := known[queue]) is not None:
                self._polled.confirm_below(delivered[0], offset)
                if text:
                    self._control.describe(delivered[0], offset, text)
        return None not in known.values()

    def subscribe(self, topics: TopicChoice | None = None, *, pattern: str | None = None) -> None:
        """Replace the subscribed topics by these. Any thread may call it, also during `run`, and in callbacks.

        The change is sent at once. The queues of topics that are no longer subscribed are then revoked as in any
        hand-over, in `poll` or `run`, with `on_revoked` and a commit of the processed messages; until then, their
        messages are delivered. Members may change their topics one after the other: the queues of a topic belong to the
        members that subscribe it.

        Args:
            topics: as for the constructor. If a filter changes, the queues of its topic are handed over to this
                consumer itself, with a commit, `on_revoked` and `on_assigned`: the new filter applies to all messages
                that were not handed out, from the committed offset on.
            pattern: as for the constructor. Until an observer has evaluated it, the topics of the former pattern stay
                subscribed.

        Raises:
            InvalidUsage: an argument is not valid, or the consumer is closed, or belongs to a forked process. The
                topics stay as they were.
            AccessDenied: the principal may not read a topic that is new.
            NotReachable: no broker answered in time.
        """
        self._refuse_if_left()
        wanted, chosen = argument_checks.wanted_of(topics, pattern)
        if new := [one.topic for one in wanted if self._topics.get(one.topic) is None]:
            look(self._connection, new, self._connect_timeout)
        self._control.resubscribe(lambda: self._topics.change(wanted, chosen))

    def subscription(self) -> Subscribed:
        """Return the topics that are subscribed, with their filters, and the pattern: those of the last `subscribe`.

        Raises:
            InvalidUsage: the consumer is closed.
        """
        self._refuse_if_left()
        return self._topics.in_words()

    def assignment(self, *, with_retries: bool = False) -> list[Queue]:
        """Return the queues that are being read, sorted; they change only in `poll`, `run` and `close`.

        Args:
            with_retries: whether to return the queues of the retry topic too, which `run` reads.

        Raises:
            InvalidUsage: the consumer is closed.
        """
        self._refuse_if_left()
        return self._reader.queues if with_retries else self._own(self._reader.queues)

    def _named(self, queues: Iterable[QueueName]) -> list[Queue]:
        """Return the queues that an application names, with the slices here in place of a partition that is cut."""
        return [one for queue in queues for one in self._reader.named(argument_checks.queue_of(queue))]

    def _own(self, queues: Iterable[Queue]) -> list[Queue]:
        """Leave out queues of the retry topic."""
        return [queue for queue in queues if queue.topic != self._retry_topic]

    def queue_of(self, message: Message) -> Queue:
        """Return the queue of a message that this consumer has delivered; of a topic that is cut, the slice.

        It is correct while the queue is assigned to this consumer. Any thread may call it.

        Raises:
            InvalidUsage: the consumer is closed, or `slice_by` returned a value that is neither text nor bytes nor
                None.
        """
        self._refuse_if_left()
        return self._reader.queue_of(message)

    def pause(self, queues: Iterable[QueueName]) -> None:
        """Read no further messages of these queues, until `resume`, or until they are revoked. Any thread may call it.

        They stay assigned to this consumer. The pause takes effect at the next `poll`; during `run`, within a moment,
        and messages that were read before are handled.

        Raises:
            InvalidUsage: a queue is not being read (see `assignment`), or the consumer is closed.
        """
        self._refuse_if_left()
        self._reader.pause(self._named(queues))
        self._control.changed.set()  # what was read ahead is read again later
        self._connection.clock.on_change()

    def paused(self) -> list[Queue]:
        """Return the queues that `pause` has stopped, sorted. Any thread may call it.

        Raises:
            InvalidUsage: the consumer is closed.
        """
        self._refuse_if_left()
        return self._reader.paused

    def resume(self, queues: Iterable[QueueName]) -> None:
        """Continue reading queues that `pause` has stopped. Any thread may call it.

        Raises:
            InvalidUsage: a queue is not being read (see `assignment`), or the consumer is closed.
        """
        self._refuse_if_left()
        self._reader.resume(self._named(queues))
        self._connection.clock.on_change()

    def seek(self, queue: QueueName, offset: OffsetTarget, timeout: float = 5.0) -> None:
        """Continue reading a queue at this place. During `run`, only `on_assigned` may call it.

        A committed offset never goes back: after a crash or a hand-over, the queue continues at the committed offset if
        that is higher. `wakeroll reset-offsets` and `Admin.reset` set it back. Skipped messages count as processed when
        the next delivered message is processed.

        An application that stores offsets together with its results returns them from `on_assigned`.

        Args:
            queue: a `Queue`, or a topic and a number.
            offset: an offset; ``first`` or ``last``, the end; or a time, an `EpochMs` or a datetime with a zone: the
                first message at or after it, the end if there is none.
            timeout: seconds to wait for Kafka, unless an offset was given.

        Raises:
            InvalidUsage: the queue is not being read, there is no such place, or `run` is at work.
            NotReachable: Kafka does not answer.
        """
        named = argument_checks.queue_of(queue)
        place = target_of(offset)
        self._refuse_at_once("seek")
        if not self._is_polling:
            self._recover()
        elif self._loop is not None and not self._starts.is_telling:
            raise InvalidUsage("seek() was called during run(); call it in on_assigned, or use poll()")
        wanted = self._reader.named(named)
        for one in wanted:
            self._reader.position(one)  # or it raises an error
        found = self._queries.at({named: place}, timeout)[named]
        self._is_in_doubt = True  # until the reader is there
        for one in wanted:
            self._polled.seek(one, found)
        self._is_in_doubt = False

    def put_back(self) -> None:
        """Let the next call return the messages of the last `poll` or `consume` again, as if that had not been called.

        It does nothing without such a call, or for queues that were lost meanwhile. So call it before the next `poll`
        whenever the last message may not be processed, as after an exception of a signal handler.

        Raises:
            InvalidUsage: the consumer is closed, or is used by a second thread at once, or by a forked process.
        """
        self._refuse_at_once("put_back")
        if not self._is_in_doubt:
            self._is_in_doubt = True  # until the reader is there
            self._polled.put_back()
            self._is_in_doubt = False
        self._polled.forget_in_hand()

    def position(self, queue: QueueName) -> int:
        """Return the offset of the next message to deliver; during `run`, of the first one that is not processed.

        Raises:
            InvalidUsage: the queue is not being read (see `assignment`), or the consumer is closed.
        """
        self._refuse_if_left()
        return min(map(self._position, self._reader.named(argument_checks.queue_of(queue))))

    def _position(self, queue: Queue) -> int:
        read = self._polled.position(queue)
        handled = None if self._loop is None or self._is_in_doubt else self._loop.position(queue)
        return read if handled is None else handled

    def committed(self, queue: QueueName, timeout: float = 5.0) -> int | None:
        """Return the committed offset of a queue of the group; None if there is none. Any thread may call it.

        A consumer has the committed offsets of its own queues. For any other queue, it reads the decisions about the
        group of the last week, as far as they still exist; this needs the right to read the decisions topic.

        Args:
            queue: a `Queue`, or a topic and a number.
            timeout: seconds to wait for each answer of Kafka, if the queue is another one.

        Raises:
            InvalidUsage: the consumer is closed.
            AccessDenied: the brokers deny this user to read the decisions.
            NotReachable: Kafka does not answer.
        """
        self._refuse_if_left()
        named = argument_checks.queue_of(queue)
        if self._control.give_of(named) is not None:
            return self._control.commits().get(named)
        return self._queries.committed(named, self.client_id, timeout)

    def first_offset(self, queue: QueueName, timeout: float = 5.0) -> int:
        """Return the offset of the first message that any queue still has. Any thread may call it.

        Raises:
            InvalidUsage: the consumer is closed.
            NotReachable: Kafka does not answer within `timeout` seconds, or has no such queue.
        """
        return self._at(queue, "first", timeout)

    def end_offset(self, queue: QueueName, timeout: float = 5.0) -> int:
        """Return the offset of the next message that is sent to any queue. Any thread may call it.

        Raises:
            InvalidUsage: the consumer is closed.
            NotReachable: Kafka does not answer within `timeout` seconds, or has no such queue.
        """
        return self._at(queue, "last", timeout)

    def offsets_for_times(self, times: ByQueue[int | datetime], timeout: float = 5.0) -> dict[Queue, int]:
        """Return for each of some queues the offset of the first message at or after a time.

        The queues need not be assigned to this consumer; any thread may call it. If there is no such message, the
        offset is the end of the queue.

        Args:
            times: queue -> epoch milliseconds, or a datetime with a zone.
            timeout: seconds to wait for Kafka.

        Raises:
            InvalidUsage: a time is not valid, or the consumer is closed.
            NotReachable: Kafka does not answer, or has no such queue.
        """
        self._refuse_if_left()
        return self._queries.at(
            as_times((argument_checks.queue_of(queue), time) for queue, time in times.items()), timeout
        )

    def _at(self, queue: QueueName, place: OffsetTarget, timeout: float) -> int:
        self._refuse_if_left()
        named = argument_checks.queue_of(queue)
        return self._queries.at({named: place}, timeout)[named]

    def lag(self, timeout: float = 5.0, *, with_retries: bool = False) -> dict[Queue, int]:
        """Return for each queue that is being read the number of offsets from the next message to deliver to its end.

        It sends one request to each broker. During `run`, any thread may call it.

        Args:
            timeout: seconds to wait for Kafka.
            with_retries: whether to return the queues of the retry topic too, whose messages wait for their next
                attempt in `run`.

        Raises:
            InvalidUsage: the consumer is closed, or another thread is in `poll` or `consume`.
            NotReachable: Kafka does not answer.
        """
        self._process.require()
        with self._connection.answering(timeout):
            if self.is_running and threading.get_ident() != self._caller:
                lag = self._reader.when_polled(lambda: self._reader.lag(timeout), timeout)
            else:
                self._refuse_at_once("lag")
                read = self._reader.lag(timeout)
                lag = {
                    one: left + self._reader.position(one) - self._polled.position(one) for one, left in read.items()
                }
        return lag if with_retries else {queue: lag[queue] for queue in self._own(lag)}

    def close(self, timeout: float = 5.0) -> None:
        """Commit processed messages and leave the group, which frees the queues at once. A second call does nothing.

        The last messages count as processed if `poll`, `consume` or `commit` was called after them, or if a ``with``
        block ends without an exception. Otherwise their handler may have failed, and they are delivered again.

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
        if self._is_polling:
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
                or not any(self._calls_at_work_in().values())
                or self._polling.acquire(timeout=max(deadline - time.monotonic(), 0.0))
            )
            try:
                if idle:
                    self._recover()
                    self._polled.clear()
                    self._reader.stop_all_but({})
                    self._tell_ended(self._starts.ended())
            finally:
                self._control.leave(max(deadline - time.monotonic(), 0.0))
                if idle:
                    self._reader.close()
                    self._polling.release()
                self._has_left = True
            self._commits.end()
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
            if kind is None and self._process.is_current and not self._other_caller():
                self._polled.confirm()
            self.close()
        except BaseException:
            if not self._has_left:  # nobody calls `close` again
                self._control.leave_by(time.monotonic() + LEAVE_MARGIN_S)
            raise

    def _recover(self) -> None:
        """After an exception, set the reader back to unprocessed messages; it may be interrupted, and called again."""
        if not self._is_in_doubt:
            return
        if self._loop is not None:
            self._loop.abandon()
            self._loop = None
        if self._marks is not None:
            self._marks.free_lock()
        self._polled.recover()
        self._control.changed.set()
        self._is_in_doubt = False

    def _follow(self) -> None:
        """Apply assignments and revocations to the reader; all delivered messages were received."""
        control, reader = self._control, self._reader
        if self._leaving:
            self._release()
        if not control.changed.is_set() and not self._starts.is_due:
            return
        control.changed.clear()
        try:
            readable, draining = control.view()
            self._polled.give_back()
            reader.stop_all_but(readable)
            reader.stop(control.is_paused)
            self._selection.follow()
            ended = self._starts.ended()
            if self._marks is not None:
                self._marks.forget_all_but([*readable, *draining])
            self._tell_ended(ended)
            self._release_or_wait(draining)
            self._starts.begin(control.view()[0], but_not=self._leaving)
        except BaseException:
            control.changed.set()  # a callback failed: the next poll() continues
            raise

    def _release_or_wait(self, draining: list[Queue]) -> None:
        """Release revoked queues, except for those with messages that are not done."""
        open_queues = set() if self._marks is None else set(self._marks.open_queues())
        self._control.released([queue for queue in draining if queue not in open_queues])
        until = (
            NEVER_MS if self._orderly else now_ms() + round(self._control.revoke_timeout_s * 1_000 * limits.GIVE_UP_AT)
        )
        for queue in open_queues.intersection(draining):
            self._leaving.setdefault(queue, until)

    def _release(self) -> None:
        """Release revoked queues whose messages are done, and those that must not wait any longer."""
        assert self._marks is not None, "without marks, all messages are processed before a queue is revoked"
        draining, ended = set(self._control.view()[1]), list[Queue]()
        for queue, until_ms in list(self._leaving.items()):
            left = self._marks.open_in(queue) if queue in draining else []
            if left and now_ms() < until_ms:
                continue
            if left:
                log.warning(
                    "gave up %s: messages that are not done: %d, from offset %d on; they will be delivered again to "
                    "the next owner",
                    queue,
                    len(left),
                    left[0],
                )
            self._marks.forget(queue)
            ended.append(queue)
            del self._leaving[queue]
        if ended:
            self._control.released(ended)
            self._control.changed.set()  # a queue that came back meanwhile can be read now

    def _hanging(self) -> str:
        """Describe what the application does instead of the next `poll`, as the end of a sentence."""
        in_hand, thread = self._polled.in_hand, self._caller
        last = f"; its last message is offset {in_hand[-1].end - 1} of {in_hand[-1].give.queue}" if in_hand else ""
        if thread is None:
            return last
        return f"{last}; thread {name_of(thread)!r} is here:\n{stack_of(thread)}"

    def _calls_at_work(self) -> list[CallAtWork]:
        """Return the running calls of the handler, or the work on the messages of the last `poll`, the oldest first."""
        loop, thread = self._loop, self._caller
        if loop is not None:
            return loop.calls_at_work()
        in_hand = [(one.give.queue, one.first, one.end - 1) for one in self._polled.in_hand]
        if self._marks is not None:
            left = [(queue, self._marks.open_in(queue)) for queue in self._marks.open_queues()]
            in_hand = [(queue, offsets[0], offsets[-1]) for queue, offsets in left if offsets]
        if not in_hand or thread is None or self._calls_at_work_in().get(thread):
            return []
        idle_ms = self._control.idle_ms
        return [CallAtWork(queue, first, last, idle_ms, lambda: stack_of(thread)) for queue, first, last in in_hand]

    def _elsewhere(self, with_stack: bool) -> str:
        """Describe what the application does while no call runs."""
        thread = self._caller
        if self._loop is not None or any(self._calls_at_work_in().values()):
            return "it waits for messages"
        if thread is None:
            return "it has not polled yet"
        here = f":\n{stack_of(thread)}" if with_stack else ""
        return f"thread {name_of(thread)!r} is not in poll() or run(){here}"

    def _begun(self, queues: list[Queue]) -> None:
        """Call `on_assigned`, and start queues at the places that it returns."""
        if self._on_assigned is None or not (own := self._own(queues)):
            return
        starts = self._on_assigned(self, own)
        if starts is None:
            return
        if not isinstance(starts, Mapping):
            raise InvalidUsage(
                f"on_assigned returned {starts!r}; it must return None, or queues and where to start them"
            )
        named = {argument_checks.queue_of(queue): place for queue, place in starts.items()}
        new = {queue: [one for one in self._reader.named(queue) if one in own] for queue in named}
        if others := [str(queue) for queue, some in new.items() if not some]:
            raise InvalidUsage(
                f"on_assigned returned a start of {', '.join(others)}; it was called with {names_of(own)}"
            )
        places = {one: place for queue, place in named.items() for one in new[queue]}
        for queue, offset in self._queries.at(places, self._connect_timeout).items():
            self.seek(queue, offset)

    def _tell_ended(self, ended: list[Give]) -> None:
        """Call the callbacks for assignments that are not read any more."""
        lost = [give.queue for give in ended if self._control.give_of(give.queue) != give]
        self._ended([give.queue for give in ended if give.queue not in lost], lost)

    def _ended(self, revoked: list[Queue], lost: list[Queue]) -> None:
        revoked, lost = self._own(revoked), self._own(lost)
        if self._on_lost is None:
            revoked, lost = sorted([*revoked, *lost]), []
        try:
            if self._on_lost is not None and lost:
                self._on_lost(self, lost)
        finally:  # an exception does not hide that others are revoked: nobody is told that again
            if self._on_revoked is not None and revoked:
                self._on_revoked(self, revoked)

    def _begin_polling(self, name: str) -> None:
        """Take the lock of `poll`, `consume` and `run`; `name` is the method that was called."""
        self._process.require()
        self._refuse_if_closed()
        me = threading.get_ident()
        if not self._polling.acquire(blocking=False):
            self._refuse_if_closed()
            if self._calls_at_work_in().get(me, 0) > 1:  # this one, and the one that has called it
                raise InvalidUsage(
                    f"{name}() was called by a callback of poll(), consume() or run(); call it when that has returned"
                )
            self._refuse_at_once(name)
            # Otherwise an exception came before the lock was released. This call releases it.
        self._caller = me

    @property
    def _is_polling(self) -> bool:
        """Whether this thread is in `poll`, `consume` or `run`: in a callback."""
        return self._polling.locked() and self._calls_at_work_in().get(threading.get_ident(), 0) > 0

    def _calls_at_work_in(self) -> dict[int, int]:
        """Return the threads that are in `poll`, `consume` or `run` of this consumer -> how often.

        The stacks of threads are reliable. A lock or a flag is not: an exception of a signal handler may come before it
        is reset.
        """
        return calls_of(self, _POLLING) if self._polling.locked() else {}

    def _other_caller(self) -> int | None:
        """Return another thread that is in `poll`, `consume` or `run` of this consumer; None if there is none."""
        me = threading.get_ident()
        return next((thread for thread in self._calls_at_work_in() if thread != me), None)

    def _refuse_at_once(self, name: str) -> None:
        """Reject calls while another thread is in such a call, in a forked process, or after `close`."""
        self._process.require()
        self._refuse_if_closed()
        if (other := self._other_caller()) is not None:
            raise InvalidUsage(
                f"thread {threading.current_thread().name!r} called {name}() while thread {name_of(other)!r} is in a "
                "call of this Consumer; calls may come from different threads, but one after the other"
            )

    def _refuse_if_left(self) -> None:
        """Reject calls of a forked process, or after `close` has returned; callbacks and running calls may go on."""
        self._process.require()
        if self._has_left and self._closer is None:
            self._refuse_if_closed()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise InvalidUsage("this Consumer is closed; create a new one")


_POLLING = (Consumer._swift.__code__, Consumer._receive.__code__, Consumer._run.__code__)
"""Code of the methods that occupy the consumer: while a thread runs one of them, no other may."""
