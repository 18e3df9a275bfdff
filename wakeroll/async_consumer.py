"""A consumer for asyncio: a `Consumer` in a thread of its own, and coroutines that wait for its calls."""

import asyncio
import functools
import logging
import os
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, cast

from confluent_kafka import Message

from wakeroll.argument_checks import TopicChoice
from wakeroll.call_thread import CallThread
from wakeroll.callbacks import AsyncOnAssigned, AsyncOnEnded, ByQueue, QueueName, check_callback, is_async_function
from wakeroll.client_settings import KafkaConfig
from wakeroll.consumer import Consumer
from wakeroll.errors import InvalidUsage, in_words
from wakeroll.event_loop import LoopCalls, LoopWatch, in_loop
from wakeroll.fetch import Fetched
from wakeroll.offset_queries import OffsetTarget
from wakeroll.own_process import OwnProcess
from wakeroll.push import limits
from wakeroll.push.outcomes import AsyncHandler, OnDeadLetter
from wakeroll.slice_by import SliceBy
from wakeroll.topic_subscriptions import Subscribed
from wakeroll_model.events import Mode, Policy
from wakeroll_model.queue import Queue

log = logging.getLogger("wakeroll")

SLICE_S = 0.2
"""Longest single poll of the thread (s); a cancelled `poll` and `close` wait at most as long."""

_Result = TypeVar("_Result")


class AsyncConsumer:
    """A member of a group in an asyncio program; its methods are those of `Consumer`, as coroutines.

    ``async with`` joins and leaves; ``async for`` returns the messages. All methods are for one event loop. The
    callbacks are called with this consumer and the queues: ``async`` functions in the event loop, ordinary ones in the
    thread of this consumer.

    A task may be cancelled at any await. If that happens while the consumer joins or leaves, its thread still ends, and
    it is no member of the group. The same holds if the event loop is closed before the consumer: it leaves within a
    second or two, and messages that are not processed then are left to the other members. Callbacks are called for that
    only if this object still exists; ``async`` ones only in an event loop that is open.

    >>> async def main():
    ...     async with AsyncConsumer("billing", ["orders"], "localhost:9092") as consumer:
    ...         async for message in consumer:
    ...             print(message.value())
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
        on_assigned: AsyncOnAssigned | None = None,
        on_revoked: AsyncOnEnded | None = None,
        on_lost: AsyncOnEnded | None = None,
        connect_timeout: float = 10.0,
        poll_timeout: float | None = 300.0,
        last_will: bool | str = True,
        inspectable: bool = True,
        marks_done: bool = False,
        slice_by: SliceBy | None = None,
    ) -> None:
        """Prepare; ``async with`` joins the group. The arguments are those of `Consumer`.

        Raises:
            InvalidUsage: a callback cannot be called. ``async with`` checks the other arguments.
        """
        for name, callback in (("on_assigned", on_assigned), ("on_revoked", on_revoked), ("on_lost", on_lost)):
            check_callback(name, callback, may_be_async=True)
        me = weakref.ref(self)  # the consumer in the thread must not keep this object alive
        make = functools.partial(
            Consumer,
            group_id,
            topics,
            bootstrap,
            pattern=pattern,
            client_id=client_id,
            consume_from=consume_from,
            consume_from_ms=consume_from_ms,
            mode=mode,
            strategy=strategy,
            strategy_params=strategy_params,
            allow_unknown_strategy=allow_unknown_strategy,
            orderly=orderly,
            room=room,
            weight=weight,
            app_version=app_version,
            labels=labels,
            host=host,
            commit_interval=commit_interval,
            kafka_config=kafka_config,
            prefix=prefix,
            keys=keys,
            on_assigned=_called(me, on_assigned),
            on_revoked=_called(me, on_revoked),
            on_lost=_called(me, on_lost),
            connect_timeout=connect_timeout,
            poll_timeout=poll_timeout,
            last_will=last_will,
            inspectable=inspectable,
            marks_done=marks_done,
            slice_by=slice_by,
        )

        def join() -> Consumer:
            consumer = make()
            consumer.join()
            return consumer

        self._make = join
        self._consumer: Consumer | None = None
        self._thread = CallThread("wakeroll-async")
        """The thread that makes all calls of the consumer, in order."""
        self._under_way: set[Future[Any]] = set()
        """Calls that the thread has not made yet. While there is none, the event loop may take messages that were read
        ahead."""
        self._calls = LoopCalls()
        """Callbacks that run in the event loop."""
        self._watch: LoopWatch[AsyncConsumer] | None = None
        """None before this consumer joins."""
        self._process = OwnProcess("AsyncConsumer")
        """The process in which this consumer joined; None before it joins."""
        self._closed = False

    @property
    def group_id(self) -> str:
        """The group."""
        return self._joined.group_id

    @property
    def client_id(self) -> str:
        """This member's name."""
        return self._joined.client_id

    async def poll(self, timeout: float = 1.0) -> Message | None:
        """Return the next message, or None if none came in time; the previous message counts as processed.

        If the task is cancelled, no message is lost: the next `poll` returns it.

        Raises:
            InvalidUsage: the consumer is closed, or has not joined.
            ConsumerFenced: the coordinator removed this consumer; it does not rejoin by itself.
        """
        consumer = self._joined
        if not self._under_way and (message := consumer._swift()) is not None:
            return message
        return await self._receive(lambda consumer, slice_s: consumer.poll(slice_s), timeout)

    async def consume(self, num_messages: int = 500, timeout: float = 1.0) -> list[Message]:
        """Return the next messages of one or several queues; see `Consumer.consume`.

        If the task is cancelled, no message is lost: the next call returns them.
        """
        return await self._receive(lambda consumer, slice_s: consumer.consume(num_messages, slice_s), timeout) or []

    async def _receive(self, call: Callable[[Consumer, float], _Result], timeout: float) -> _Result:
        """Let the thread call a method that returns messages, with short timeouts up to the whole timeout."""
        consumer = self._joined
        self._refuse_in_callback()
        if not timeout >= 0:
            raise InvalidUsage(f"timeout is {timeout!r}; it must be 0 or more seconds (math.inf waits forever)")
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            left = max(deadline - asyncio.get_running_loop().time(), 0.0)
            received = self._submit(functools.partial(call, consumer, min(left, SLICE_S)))
            try:
                found = await in_loop(received)
            except asyncio.CancelledError:
                self._submit(functools.partial(_put_back, consumer, received))
                raise
            if found not in (None, []) or not left:
                return found
            consumer = self._joined

    def done(self, *messages: Message) -> bool:
        """Mark messages as processed, in a consumer with `marks_done`; see `Consumer.done`."""
        return self._joined.done(*messages)

    def queue_of(self, message: Message) -> Queue:
        """Return the queue of a delivered message; of a topic that is cut, the slice. See `Consumer.queue_of`."""
        return self._joined.queue_of(message)

    def __aiter__(self) -> AsyncIterator[Message]:
        """Return the messages until the consumer is closed."""
        return self._messages()

    async def run(
        self,
        handler: AsyncHandler,
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
        """Call a coroutine function with batches of messages in this event loop; see `Consumer.run`.

        It returns after `stop`. If the task is cancelled, running calls end first, as after `stop`.

        Raises:
            InvalidUsage: the handler is no ``async`` function, or as for `Consumer.run`.
        """
        if not is_async_function(handler):
            raise InvalidUsage(f"the handler is {handler!r}; it must be an async function")
        loop, consumer = asyncio.get_running_loop(), self._joined
        self._refuse_in_callback()
        run = functools.partial(
            consumer._run,
            handler,
            loop=loop,
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
        running = in_loop(self._submit(run))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            consumer._end_soon()
            self._submit(consumer._forget_stop)  # the run may have ended before
            await asyncio.wait([running])
            raise

    def stop(self) -> None:
        """Let `run` return when all running calls have returned."""
        self._joined.stop()

    async def fetch(self, queue: QueueName, offset: int, wait: float = 20.0, *, max_messages: int = 500) -> Fetched:
        """Return messages of a queue from an offset on; see `Consumer.fetch`. Several may run at once.

        If the task is cancelled, a thread still waits until `wait` is over, or until `close`.
        """
        return await _beside(functools.partial(self._joined.fetch, queue, offset, wait, max_messages=max_messages))

    async def commit(
        self,
        timeout: float = 5.0,
        *,
        message: Message | None = None,
        offsets: ByQueue[int | tuple[int, str]] | None = None,
    ) -> bool:
        """Commit all delivered messages now, or those before a message or before offsets; see `Consumer.commit`."""
        return await self._call_beside_run(
            functools.partial(self._joined.commit, message=message, offsets=offsets), timeout
        )

    async def lag(self, timeout: float = 5.0, *, with_retries: bool = False) -> dict[Queue, int]:
        """Return for each queue the number of offsets to its end; see `Consumer.lag`."""
        return await self._call_beside_run(functools.partial(self._joined.lag, with_retries=with_retries), timeout)

    async def seek(self, queue: QueueName, offset: OffsetTarget, timeout: float = 5.0) -> None:
        """Continue reading a queue at this place; see `Consumer.seek`."""
        await self._call(self._joined.seek, queue, offset, timeout)

    async def subscribe(self, topics: TopicChoice | None = None, *, pattern: str | None = None) -> None:
        """Replace the subscribed topics by these; see `Consumer.subscribe`."""
        await _beside(functools.partial(self._joined.subscribe, topics, pattern=pattern))

    def subscription(self) -> Subscribed:
        """Return the subscribed topics and the pattern; see `Consumer.subscription`."""
        return self._joined.subscription()

    def assignment(self, *, with_retries: bool = False) -> list[Queue]:
        """Return the queues that are being read, sorted; see `Consumer.assignment`."""
        return self._joined.assignment(with_retries=with_retries)

    def pause(self, queues: Iterable[QueueName]) -> None:
        """Read no further messages of these queues; see `Consumer.pause`."""
        self._joined.pause(queues)

    def paused(self) -> list[Queue]:
        """Return the queues that `pause` has stopped, sorted."""
        return self._joined.paused()

    def resume(self, queues: Iterable[QueueName]) -> None:
        """Continue reading queues that `pause` has stopped."""
        self._joined.resume(queues)

    def refused(self) -> int:
        """Return how many failed messages wait because their topic refuses them; see `Consumer.refused`."""
        return self._joined.refused()

    def position(self, queue: QueueName) -> int:
        """Return the offset of the next message of a queue; see `Consumer.position`."""
        return self._joined.position(queue)

    async def committed(self, queue: QueueName, timeout: float = 5.0) -> int | None:
        """Return the committed offset of any queue of the group; see `Consumer.committed`."""
        return await _beside(functools.partial(self._joined.committed, queue, timeout))

    async def first_offset(self, queue: QueueName, timeout: float = 5.0) -> int:
        """Return the offset of the first message of any queue; see `Consumer.first_offset`."""
        return await _beside(functools.partial(self._joined.first_offset, queue, timeout))

    async def end_offset(self, queue: QueueName, timeout: float = 5.0) -> int:
        """Return the offset of the next message that is sent to any queue; see `Consumer.end_offset`."""
        return await _beside(functools.partial(self._joined.end_offset, queue, timeout))

    async def offsets_for_times(self, times: ByQueue[int | datetime], timeout: float = 5.0) -> dict[Queue, int]:
        """Return the offsets of the first messages at or after some times; see `Consumer.offsets_for_times`."""
        return await _beside(functools.partial(self._joined.offsets_for_times, times, timeout))

    async def close(self, timeout: float = 5.0) -> None:
        """Commit processed messages and leave the group; see `Consumer.close`. A second call does nothing."""
        await self._close(lambda consumer: consumer.close(timeout))

    async def __aenter__(self) -> Self:
        if self._consumer is not None or self._closed:
            raise InvalidUsage("this AsyncConsumer has been used; create a new one")
        self._process = OwnProcess("AsyncConsumer")
        self._calls.begin(asyncio.get_running_loop())
        joining: Future[Consumer] = self._thread.submit(self._make)
        end = functools.partial(_end, joining, self._thread, self._calls)
        self._watch = LoopWatch(asyncio.get_running_loop(), self, end, "wakeroll-async-watch")
        try:
            consumer = await in_loop(joining)
            self._consumer = consumer
        except BaseException:
            self._closed = True
            self._watch.end()
            self._thread.submit(functools.partial(_leave_if_joined, joining))
            self._thread.end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(lambda consumer: consumer.__exit__(kind, problem, trace))

    @property
    def _joined(self) -> Consumer:
        if self._closed and not self._calls.is_of_callback:  # callbacks of `close` may use it
            raise InvalidUsage("this AsyncConsumer is closed; create a new one")
        if self._consumer is None:
            raise InvalidUsage("this AsyncConsumer has not joined; use `async with`")
        self._process.require()
        return self._consumer

    async def _messages(self) -> AsyncIterator[Message]:
        swift, under_way = self._joined._swift, self._under_way
        while not self._closed:
            message = None if under_way else swift()
            if message is None:
                message = await self.poll(SLICE_S)
            if message is not None:
                yield message

    def _submit(self, call: Callable[[], _Result]) -> "Future[_Result]":
        """Let the thread make a call."""
        made = self._thread.submit(call)
        self._under_way.add(made)
        made.add_done_callback(self._under_way.discard)
        return made

    def _refuse_in_callback(self) -> None:
        if self._calls.is_in_callback:
            raise InvalidUsage(
                "a callback of this AsyncConsumer called poll(), consume(), run() or close(), which waits for the "
                "callback; call it when that has returned"
            )

    async def _call(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Let the thread make a call, and wait for it; the call goes on if this task is cancelled meanwhile."""
        call = functools.partial(function, *arguments)
        # While the thread waits for a callback, it makes the calls of that callback.
        return await in_loop(self._calls.submit(call) if self._calls.is_in_callback else self._submit(call))

    async def _call_beside_run(self, function: Callable[[float], _Result], timeout: float) -> _Result:
        """Make a call that any thread may make; during `run`, which occupies the consumer's thread, in another one."""
        if self._joined.is_running and not self._calls.is_in_callback:
            return await _beside(functools.partial(function, timeout))
        return await self._call(function, timeout)

    async def _close(self, leave: Callable[[Consumer], None]) -> None:
        if self._closed or not self._process.is_current:
            return
        self._refuse_in_callback()
        self._closed = True
        if self._watch is not None:
            self._watch.end()
        if self._consumer is None:
            self._thread.end()
            return
        self._consumer._end_soon()
        # With this object: the callbacks of `close` receive it, also if nobody else refers to it any more.
        leaving = self._submit(functools.partial(_leave, self, leave, self._consumer))
        self._thread.end()  # now, because this task may be cancelled while it waits
        try:
            await in_loop(leaving)
        except asyncio.CancelledError:
            leaving.add_done_callback(_log_problem)
            raise


def _called(
    me: "weakref.ref[AsyncConsumer]", callback: AsyncOnAssigned | AsyncOnEnded | None
) -> Callable[[Consumer, list[Queue]], Any] | None:
    """Return a callback for the consumer in the thread; it calls the application's callback."""
    if callback is None:
        return None
    in_its_loop = is_async_function(callback)

    def call(_consumer: Consumer, queues: list[Queue]) -> Any:
        owner = me()
        if owner is None:  # it is garbage, and the consumer leaves
            return None
        if not in_its_loop:
            return owner._calls.make_here(lambda: callback(owner, queues))
        return owner._calls.make(lambda: cast(Coroutine[Any, Any, Any], callback(owner, queues)))

    return call


async def _beside(call: Callable[[], _Result]) -> _Result:
    """Make a call in a thread of its own.

    A thread of the event loop's executor would not do: all of them may be busy, the application may have shut the
    executor down, and a fetch that waits there would keep the interpreter from ending.
    """
    thread = CallThread("wakeroll-async-call")
    made = thread.submit(call)
    thread.end()
    return await in_loop(made)


def _end(joining: "Future[Consumer]", thread: CallThread, calls: LoopCalls, owner: AsyncConsumer | None) -> None:
    """Leave the group because the event loop is closed, or the consumer was garbage-collected without `close`."""
    if owner is not None:
        owner._closed = True
    if joining.done() and joining.exception() is None:
        consumer = joining.result()
        consumer._end_soon()
        consumer._lose_calls()
        if owner is not None:
            log.warning(
                "the event loop of %s of group %s was closed before this AsyncConsumer, which leaves now; call `close`",
                consumer.client_id,
                consumer.group_id,
            )
    calls.fail()
    thread.submit(functools.partial(_leave_if_joined, joining)).add_done_callback(_log_problem)
    thread.end()


def _leave(_owner: AsyncConsumer, leave: Callable[[Consumer], None], consumer: Consumer) -> None:
    """In the thread: leave the group."""
    leave(consumer)


def _log_problem(leaving: "Future[None]") -> None:
    """Log the exception of a call of `close` whose caller does not wait any more."""
    if (problem := leaving.exception()) is not None:
        log.warning("close() of an AsyncConsumer raised an exception: %s", in_words(problem))


def _put_back(consumer: Consumer, received: "Future[Any]") -> None:
    """In the thread: take back messages that the application did not receive."""
    if received.exception() is None and received.result() not in (None, []):
        consumer.put_back()


def _leave_if_joined(joining: "Future[Consumer]") -> None:
    """In the thread: leave the group if a cancelled task has joined it."""
    if joining.exception() is None:
        joining.result().close()
