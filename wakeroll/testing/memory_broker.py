"""The broker and the coordinator of a test, in this process."""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

from confluent_kafka import Message

from wakeroll.argument_checks import queue_of
from wakeroll.consumer import Consumer
from wakeroll.dead_letters import DeadLetters, Letter
from wakeroll.errors import InvalidUsage
from wakeroll.headers import Property, headers_of
from wakeroll.kafka_clients import KafkaClients, register, unregister
from wakeroll.own_process import OwnProcess
from wakeroll.push.outcomes import Handler
from wakeroll.testing.delivery import Deliveries, Delivery
from wakeroll.testing.member_thread import Member
from wakeroll.testing.memory_clients import MemoryAdmin, MemoryConsumer, MemoryProducer
from wakeroll.testing.memory_coordinator import MemoryCoordinator
from wakeroll.testing.memory_log import MemoryLog, Partition
from wakeroll.testing.skipping_clock import START_MS, SkippingClock
from wakeroll.topic_slices import checked_slices
from wakeroll_model.config import NEVER_MS
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import retry_topic_of

PATIENCE_S = 30.0
"""How long a method waits for the handlers (s)."""
SLICE_S = 0.05
"""Interval of the checks of members (s)."""
RUN_ARGUMENTS = frozenset(
    {
        "workers",
        "batch_size",
        "prefetch",
        "prefetch_bytes",
        "on_error",
        "max_retries",
        "retry_delays",
        "on_dead_letter",
        "handle_timeout",
        "stop_timeout",
    }
)
"""Arguments of `Consumer.run`; all others of `join` are those of `Consumer`."""

_numbers = itertools.count(1)


class MemoryBroker:
    """Topics and a coordinator in memory, for tests of handlers; neither a broker nor Spark nor Java is needed.

    Members are real consumers: the same heartbeats, hand-overs, retries and commits as on Kafka. Failed messages wait
    by the broker's clock, which stands still until `run_until_done` or `advance` skips time, so a test does not wait
    for hours. Sessions go by the machine's clock. `Producer`, `DeadLetters`, `Admin` and any other `Consumer` connect
    to `bootstrap`.

    >>> def handle(messages):
    ...     for message in messages:
    ...         print(message.key(), message.value())
    >>> with MemoryBroker() as broker:
    ...     broker.create_topic("orders", queues=4)
    ...     _ = broker.send("orders", b"17", key=b"customer-7")
    ...     _ = broker.join("billing", ["orders"], handle)
    ...     broker.run_until_done()
    b'customer-7' b'17'
    """

    def __init__(self, *, real_time: bool = False, leader_epochs: bool = True) -> None:
        """Start with only the topics of the control plane.

        Args:
            real_time: whether failed messages also wait by the machine's clock, so that time passes without `advance`.
            leader_epochs: whether clients receive the leader epochs of messages, as from Kafka since 2.1.
        """
        self._log = MemoryLog()
        self._log.has_leader_epochs = leader_epochs
        self._clock = SkippingClock(self._log, goes_on=real_time)
        self._coordinator = MemoryCoordinator(self._log)
        self._deliveries = Deliveries()
        self._members: list[Member] = []
        self._host = f"memory-{next(_numbers)}"
        self._ports = itertools.count(1)
        self._addresses: dict[Consumer, str] = {}
        self._closed = False
        self._process = OwnProcess("MemoryBroker")
        self.bootstrap = self._new_address()
        """Address for `Consumer`, `Producer`, `DeadLetters` and `Admin` of this process."""

    # --- topics and messages ---

    def create_topic(self, topic: str, queues: int = 1) -> None:
        """Create a topic with this number of queues.

        Raises:
            InvalidUsage: the topic exists already, the number is not positive, or the broker is closed.
        """
        self._refuse_if_closed()
        if queues < 1:
            raise InvalidUsage(f"queues is {queues}; it must be 1 or more")
        if not self._log.create(topic, queues):
            raise InvalidUsage(f"topic {topic!r} exists already")

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        queue: int | None = None,
        tags: str = "",
        properties: Mapping[str, Property] | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> tuple[Queue, int]:
        """Store a message; return its queue and its offset.

        Args:
            topic: an existing topic.
            value: value of the message; text is encoded in UTF-8.
            key: key of the message; without a `queue`, it chooses the queue like Kafka's Java clients.
            queue: number of the queue; without one and without a key, the queues take turns.
            tags: tag of the message, for subscriptions like ``paid || refunded``.
            properties: properties for SQL92 conditions.
            headers: more headers.

        Raises:
            InvalidUsage: there is no such topic or queue, an argument is not valid, or the broker is closed.
        """
        self._refuse_if_closed()
        queues = self._queues_of(topic)
        key = key.encode() if isinstance(key, str) else key
        value = value.encode() if isinstance(value, str) else value
        all_headers = [*headers_of(tags, properties or {}), *headers]
        number = self._log.choose(topic, key) if queue is None else queue
        if not 0 <= number < len(queues):
            raise InvalidUsage(f"topic {topic!r} has no queue {number}; it has 0 to {len(queues) - 1}")
        stored = self._log.append(topic, number, key, value, all_headers, self._clock.epoch_ms())
        return queues[number], stored.offset

    def send_marker(self, queue: Queue | tuple[str, int]) -> int:
        """Store a record that no consumer receives, like the marker of a transaction; return its offset.

        Raises:
            InvalidUsage: there is no such queue, or the broker is closed.
        """
        named = self._existing(queue)
        at_ms = self._clock.epoch_ms()
        return self._log.append(named.topic, named.queue_id, None, None, [], at_ms, is_marker=True).offset

    # --- losses of the log ---

    def expire(self, queue: Queue | tuple[str, int], first: int) -> None:
        """Delete the messages of a queue below an offset, as retention does.

        Raises:
            InvalidUsage: there is no such queue, the offset is not from its first message to its end, or the broker is
                closed.
        """
        named = self._existing(queue)
        with self._log.lock:
            self._partition_with(named, first).first = first
            self._log.note_change()

    def truncate(self, queue: Queue | tuple[str, int], end: int) -> None:
        """Remove the messages of a queue from an offset on, as an unclean leader election does.

        A new leader epoch begins. Messages that are sent later get the offsets of the lost ones.

        Raises:
            InvalidUsage: there is no such queue, the offset is not from its first message to its end, or the broker is
                closed.
        """
        named = self._existing(queue)
        with self._log.lock:
            self._partition_with(named, end).begin_epoch(end)
            self._log.note_change()

    def elect(self, queue: Queue | tuple[str, int]) -> None:
        """Begin a new leader epoch of a queue, without a loss, as when a broker restarts.

        Raises:
            InvalidUsage: there is no such queue, or the broker is closed.
        """
        named = self._existing(queue)
        with self._log.lock:
            partition = self._log.topics[named.topic][named.queue_id]
            partition.begin_epoch(partition.end)
            self._log.note_change()

    # --- members ---

    def join(
        self, group_id: str, topics: Iterable[str] | Mapping[str, str], handler: Handler, **arguments: Any
    ) -> Member:
        """Let a new member join a group and run a handler, in a thread of its own.

        Args:
            group_id: the group.
            topics: existing topics, or a mapping of topic to filter.
            handler: the handler, as for `Consumer.run`; a function or an ``async`` function.
            arguments: arguments of `Consumer` and of `Consumer.run`. Unlike in `Consumer`, the default of
                `consume_from` is ``first``.

        Raises:
            InvalidUsage: there is no such topic, an argument is not valid, a member of this name runs already, or the
                broker is closed.
        """
        self._refuse_if_closed()
        if not callable(handler):
            raise InvalidUsage(f"handler is {handler!r}; it must be a function of a list of messages")
        for member in self._running():
            if member.client_id == arguments.get("client_id"):
                raise InvalidUsage(f"member {member.client_id!r} of group {member.group_id!r} runs already")
        names = [topics] if isinstance(topics, str) else list(topics)
        for topic in names:
            self._queues_of(topic)
        run_arguments = {name: arguments.pop(name) for name in RUN_ARGUMENTS & arguments.keys()}
        arguments.setdefault("consume_from", "first")
        address = self._new_address()  # of its own, so that a crash can cut it off
        consumer = Consumer(group_id, topics, address, **arguments)
        self._addresses[consumer] = address
        member = Member(
            consumer,
            handler,
            self._now_s,
            self._note,
            self._cut_off,
            self._clock.forget,
            commits=arguments.get("commit_interval", 5.0) is not None,
            **run_arguments,
        )
        self._members.append(member)
        # `run` refuses wrong arguments in the member's thread. Problems of other members are not those of this call.
        self._wait(
            lambda: member.thread_id in self._clock.rounds or member.has_ended,
            "the member has joined",
            PATIENCE_S,
            raises=False,
        )
        if not member.has_begun:
            member.raise_problem()
        return member

    def settle(self, timeout: float = PATIENCE_S) -> None:
        """Wait until each member has received its queues; calls of handlers may still run.

        Raises:
            TimeoutError: it takes longer than `timeout` seconds, as when a handler does not release a revoked queue.
            BaseException: the exception that ended a member.
        """
        self._wait(self._is_settled, "the queues are assigned", timeout)

    # --- time ---

    def run_until_done(self, timeout: float = PATIENCE_S) -> None:
        """Let time pass until every message is processed or a dead letter, and processed messages are committed.

        Delays of failed messages are skipped. It waits for all calls of handlers. Messages of queues that `pause` has
        stopped are left out until `resume`.

        Raises:
            InvalidUsage: no member runs, or the broker is closed.
            TimeoutError: it takes longer than `timeout` seconds, as when a handler does not return, or fails for ever.
            BaseException: the exception that ended a member, such as one of the handler with ``on_error="raise"``.
        """
        deadline = time.monotonic() + timeout
        while (due_ms := self._idle(deadline, timeout)) < NEVER_MS:
            self._clock.skip_to(due_ms)
        for member in self._running():
            if member.commits:
                member.consumer.commit(max(deadline - time.monotonic(), 0.1))

    def advance(self, seconds: float, *, wait: bool = True, timeout: float = PATIENCE_S) -> None:
        """Let time pass; return when all messages that are due by then are handled.

        Args:
            seconds: time to skip, by the broker's clock; 0 only handles messages that are due now.
            wait: whether to wait for the handlers; False if a handler hangs, for example.
            timeout: seconds to wait at most, by the machine's clock.

        Raises:
            InvalidUsage: no member runs, the broker is closed, or `seconds` is negative.
            TimeoutError: it takes longer than `timeout` seconds.
            BaseException: the exception that ended a member.
        """
        if not seconds >= 0:
            raise InvalidUsage(f"seconds is {seconds!r}; it must be 0 or more")
        self._refuse_if_closed()
        deadline = time.monotonic() + timeout
        then_ms = self._clock.now_ms() + round(seconds * 1_000)
        while wait and (due_ms := self._idle(deadline, timeout)) <= then_ms:
            self._clock.skip_to(due_ms)
        self._clock.skip_to(then_ms)
        if wait:
            self._idle(deadline, timeout)

    def wait_until(self, condition: Callable[[], object], timeout: float = PATIENCE_S) -> None:
        """Wait until a condition of the test is true, for example that a handler runs.

        Raises:
            TimeoutError: it is not true within `timeout` seconds.
            BaseException: the exception that ended a member.
        """
        self._wait(condition, "the condition is true", timeout)

    # --- results ---

    def deliveries(self, group_id: str) -> list[Delivery]:
        """Return all messages that handlers of the group received, in the order in which their calls ended."""
        self._process.require()
        return self._deliveries.of(group_id)

    def processed(self, group_id: str) -> list[Message]:
        """Return the messages that the group has processed, in the order in which their calls ended."""
        return [delivery.message for delivery in self.deliveries(group_id) if not delivery.failed]

    def failed(self, group_id: str) -> list[Delivery]:
        """Return the deliveries whose messages were not processed: they were retried, or are dead letters."""
        return [delivery for delivery in self.deliveries(group_id) if delivery.failed]

    def dead_letters(self, group_id: str) -> list[Letter]:
        """Return the group's dead letters that were neither sent again nor dropped.

        Raises:
            InvalidUsage: the broker is closed.
        """
        self._refuse_if_closed()
        with DeadLetters(group_id, self.bootstrap) as letters:
            return list(letters.open())

    def committed(self, group_id: str, client_id: str | None = None) -> dict[Queue, int]:
        """Return the committed offsets of the group's topics; in a broadcasting group, those of one member."""
        self._process.require()
        with self._log.lock:
            group = self._coordinator.group(group_id)
            if group is None:
                return {}
            own = None if client_id is None else group.broadcast_offsets.get(client_id)
            known = group.offsets if own is None else own.offsets
            retries = retry_topic_of(group_id)
            return {queue: known[queue] for queue in sorted(known) if queue.topic != retries}

    def assignment(self, group_id: str) -> dict[str, list[Queue]]:
        """Return the queues that each member of a group owns, without those of the retry topic."""
        self._process.require()
        with self._log.lock:
            owned = self._coordinator.assignment(group_id)
        retries = retry_topic_of(group_id)
        return {name: [queue for queue in queues if queue.topic != retries] for name, queues in owned.items()}

    def cut(self, group_id: str, topic: str, slices: int) -> None:
        """Cut each queue of a topic into slices for a group, like `wakeroll configure --slices`; 1 removes the slices.

        Raises:
            InvalidUsage: the number is not a power of two up to 64, the topic does not exist, or the broker is closed.
        """
        self._refuse_if_closed()
        self._queues_of(topic)
        self._coordinator.cut(group_id, checked_slices("slices", {topic: slices}))

    def redeliver(self, group_id: str, queue: Queue | tuple[str, int] | None = None, offset: int = 0) -> None:
        """Deliver messages from an offset on to the group again: those of a queue with its slices, or of all queues.

        Raises:
            InvalidUsage: the group has not committed an offset of this queue, or the broker is closed.
        """
        self._refuse_if_closed()
        known = self.committed(group_id)
        named = None if queue is None else queue_of(queue)
        wanted = [one for one in known if named in (None, one, one.whole)]
        if named is not None and not wanted:
            raise InvalidUsage(f"group {group_id!r} has no committed offset of {named}")
        self._coordinator.reset(group_id, {one: offset for one in wanted if offset < known[one]})

    def close(self) -> None:
        """Stop all members; a member whose handler does not return is crashed. A second call does nothing.

        Raises:
            BaseException: the exception that ended a member, if it was not raised to the test before.
        """
        if self._closed or not self._process.is_current:
            return
        problems = []
        for member in self._members:
            try:
                member.stop()
            except BaseException as problem:
                problems.append(problem)
        self._end()
        if problems:
            raise problems[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or not self._process.is_current:
            self.close()
            return
        for member in self._members:
            member.crash()
        self._end()

    # --- inside ---

    def _end(self) -> None:
        self._closed = True
        self._log.is_hurried = False
        for address in [self.bootstrap, *self._addresses.values()]:
            unregister(address)

    def _new_address(self) -> str:
        address = f"{self._host}:{next(self._ports)}"
        now_ms = self._clock.epoch_ms
        clients = KafkaClients(
            cast(Any, partial(MemoryProducer, self._log, now_ms)),
            cast(Any, partial(MemoryConsumer, self._log, now_ms)),
            cast(Any, partial(MemoryAdmin, self._log, now_ms)),
            self._clock,
        )
        register(address, clients)
        return address

    def _queues_of(self, topic: str) -> list[Queue]:
        partitions = self._log.topics.get(topic)
        if partitions is None:
            known = ", ".join(sorted(name for name in self._log.topics if not name.startswith("wakeroll.")))
            raise InvalidUsage(f"no topic {topic!r}; create_topic() creates it; there are: {known or 'none'}")
        return [Queue(topic, "", number) for number in range(len(partitions))]

    def _existing(self, queue: Queue | tuple[str, int]) -> Queue:
        """Return a queue of this broker.

        Raises:
            InvalidUsage: there is no such queue, or the broker is closed.
        """
        self._refuse_if_closed()
        named = queue_of(queue)
        count = len(self._queues_of(named.topic))
        if named.broker or named.queue_id >= count:
            raise InvalidUsage(f"topic {named.topic!r} has no queue {named.queue_id}; it has 0 to {count - 1}")
        return named

    def _partition_with(self, queue: Queue, offset: int) -> Partition:
        """Return the log of a queue that has this offset or ends there."""
        partition = self._log.topics[queue.topic][queue.queue_id]
        if not partition.first <= offset <= partition.end:
            raise InvalidUsage(f"{queue} has the offsets {partition.first} to {partition.end}, not {offset}")
        return partition

    def _now_s(self) -> float:
        return (self._clock.now_ms() - START_MS) / 1_000

    def _note(self, member: Member, messages: list[Message], at_s: float, result: object) -> None:
        self._deliveries.note(member.group_id, member.client_id, messages, at_s, result)

    def _cut_off(self, member: Member) -> None:
        with self._log.lock:
            self._log.cut_off.add(self._addresses[member.consumer])
            self._coordinator.evict(member.group_id, member.client_id)
            self._log.note_change()

    def _running(self) -> list[Member]:
        return [member for member in self._members if member.is_running]

    def _idle(self, deadline: float, timeout: float) -> int:
        """Wait until all members are idle; return when the next failed message is due.

        Raises:
            InvalidUsage: no member runs.
        """
        self._refuse_if_closed()
        self._wait(self._is_idle, "all that is due is handled", timeout, deadline)
        with self._log.lock:
            rounds = [self._clock.rounds[member.thread_id] for member in self._running()]
        if not rounds:
            raise InvalidUsage("no member runs; join() starts one")
        return min(one.idle_until_ms or NEVER_MS for one in rounds)

    def _is_idle(self) -> bool:
        with self._log.lock:
            for member in self._running():
                last = self._clock.rounds.get(member.thread_id)
                if last is None or last.version != self._log.version or last.idle_until_ms is None:
                    return False
            return self._is_settled()

    def _is_settled(self) -> bool:
        with self._log.lock:
            groups: dict[str, set[str]] = {}
            for member in self._running():
                groups.setdefault(member.group_id, set()).add(member.client_id)
            if not all(self._coordinator.is_settled(*group) for group in groups.items()):
                return False
            return all(
                member.assignment == self._coordinator.assignment(member.group_id)[member.client_id]
                or self._is_broadcasting(member)
                for member in self._running()
            )

    def _is_broadcasting(self, member: Member) -> bool:
        group = self._coordinator.group(member.group_id)
        return group is not None and group.mode == "broadcasting"

    def _wait(
        self,
        condition: Callable[[], object],
        what: str,
        timeout: float,
        deadline: float | None = None,
        *,
        raises: bool = True,
    ) -> None:
        """Wait until a condition is true; `raises`: raise the exception that ends a member meanwhile."""
        self._process.require()
        deadline = time.monotonic() + timeout if deadline is None else deadline
        with self._log.lock:
            self._log.is_hurried = True
        try:
            while True:
                for member in self._members if raises else ():
                    member.raise_problem()
                if condition():
                    return
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not within {timeout:g} s: {what}; {self._state()}")
                with self._clock.idle:
                    self._clock.idle.wait(SLICE_S)
        finally:
            self._log.is_hurried = False

    def _state(self) -> str:
        """Describe the members, for the message of an error."""
        texts = []
        for member in self._running():
            failed = [one for one in self.deliveries(member.group_id) if one.failed]
            last = f"; the last of {len(failed)} errors: {failed[-1].error}" if failed else ""
            texts.append(
                f"{member.client_id} reads {len(member.assignment)} queues, {member.calls} calls at work{last}"
            )
        return "; ".join(texts) or "no member runs"

    def _refuse_if_closed(self) -> None:
        """Reject calls after `close`, and in a forked process, which has none of the members' threads."""
        self._process.require()
        if self._closed:
            raise InvalidUsage("this MemoryBroker is closed; create a new one")
