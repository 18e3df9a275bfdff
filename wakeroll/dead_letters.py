"""The operator's tool for the dead letters of a group: list them, send them again, or drop them."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from wakeroll import argument_checks
from wakeroll.bulk_sender import BulkSender
from wakeroll.client_settings import KafkaConfig
from wakeroll.connection import Connection, Topics
from wakeroll.errors import InvalidUsage, NotReachable
from wakeroll.expectations import shown
from wakeroll.headers import pairs_of
from wakeroll.operator_name import this_user
from wakeroll.origin import HEADERS, Origin, headers_with, origin_of
from wakeroll.own_process import OwnProcess
from wakeroll.partition_offsets import Positions, ends_of
from wakeroll_model.retry_topics import dead_letter_topic_of, retry_topic_of

MARK = "wakeroll-settled"
"""Header of a record that names letters that were sent again or dropped; its value is JSON: see `_Mark`."""
SLICE_S = 0.5
"""Longest single wait for messages (s), during which Ctrl-C has no effect."""
BATCH = 100
"""Maximum number of messages taken at once; each may have megabytes."""
CHUNK = 5_000
"""Maximum number of letters that one mark settles, so that the mark stays far below a megabyte. A process that dies
before the mark is stored has sent at most as many letters that are not settled."""

Numbers = Literal["all"] | Iterable[int]
"""Numbers of letters, or ``all`` for all open ones."""


class Letter(NamedTuple):
    """A dead letter that was neither sent again nor dropped."""

    number: int
    """Its offset in the dead letter topic, which names it."""
    at_ms: int
    """When it was stored (epoch ms)."""
    origin: Origin
    """Where it comes from, how often it was tried, and the last error."""
    message: Message
    """The record in the dead letter topic, with key, value and headers of the failed message."""


class _Mark(msgspec.Struct):
    """Letters that were settled at once."""

    numbers: list[tuple[int, int]]
    """First and last number of each run."""
    how: str
    by: str


class _Scan(NamedTuple):
    """The first pass of `open` through the dead letter topic: it reads the marks."""

    first: int
    end: int
    settled: set[int]


class DeadLetters:
    """The dead letters of one group. For one thread.

    A letter that is sent again or dropped is settled: it is no longer listed. Settled letters at the beginning of the
    topic are deleted.

    >>> with DeadLetters("billing", "localhost:9092") as letters:  # doctest: +SKIP
    ...     for letter in letters.open():
    ...         print(letter.number, letter.origin.queue, letter.origin.error)
    ...     letters.resend("all")
    """

    def __init__(
        self,
        group_id: str,
        bootstrap: str | Iterable[str],
        *,
        kafka_config: KafkaConfig | None = None,
        connect_timeout: float = 10.0,
    ) -> None:
        """Prepare; the first method connects.

        Args:
            group_id: the group.
            bootstrap: ``host:port[,host:port]`` of the brokers, or a list of such addresses.
            kafka_config: more librdkafka settings, for example for the login.
            connect_timeout: seconds to wait for each answer of a broker.

        Raises:
            InvalidUsage: an argument is not valid.
        """
        self.group_id = argument_checks.group_id_of(group_id)
        self._topic = dead_letter_topic_of(group_id)
        self._retry_topic = retry_topic_of(group_id)
        self._timeout = connect_timeout
        self._process = OwnProcess("DeadLetters")
        self._connection = Connection(argument_checks.addresses_of(bootstrap), kafka_config or {}, Topics())
        self._consumer = self._connection.operators_consumer()
        self._positions = Positions(self._consumer, connect_timeout)
        self._closed = False
        self._place: tuple[object, int] | None = None
        """The call of `_read` that uses the consumer, and its position; None if the consumer reads nothing."""
        self._scans: dict[int, _Scan] = {}
        """Scans of the calls of `open` that have not ended, by identity."""

    def open(self) -> Iterator[Letter]:
        """Yield the letters that are not settled, in order of number; none if the group never had one.

        The caller may take as long as it likes for each letter, and call the other methods meanwhile: letters that they
        settle are not yielded any more. Letters that are stored after the first one was yielded are left out.

        Raises:
            InvalidUsage: this object is closed.
            NotReachable: no broker answers in time.
        """
        with self._answering():
            scan = self._scan()
        if scan is not None:
            self._scans[id(scan)] = scan
            try:
                yield from self._open(scan)
            finally:
                del self._scans[id(scan)]

    def groups(self) -> list[str]:
        """Return all groups that have a topic of dead letters, sorted: those whose members have called `run`.

        Raises:
            NotReachable: no broker answers in time.
        """
        with self._answering():
            topics = self._consumer.list_topics(timeout=self._timeout).topics
        prefix = dead_letter_topic_of("")
        return sorted(topic.removeprefix(prefix) for topic in topics if topic.startswith(prefix))

    def get(self, number: int) -> Letter:
        """Return one open letter.

        Raises:
            InvalidUsage: there is no such letter.
            NotReachable: no broker answers in time.
        """
        for letter in self.open():
            if letter.number == number:
                return letter
        raise self._no_letter(number)

    def resend(self, numbers: Numbers, *, to_origin: bool = False, by: str | None = None) -> int:
        """Send letters to the group again, as new messages with all their retries; they are settled then.

        They are settled after Kafka has stored them, 5,000 at a time, so none is lost; if this process dies in between,
        or two operators send the same letter, the group receives it twice.

        Args:
            numbers: of open letters, or ``all``. Without any number, nothing happens.
            to_origin: send them to the topics that they come from, where all groups receive them; otherwise only this
                group does, a second later. For a group that consumes in order, or broadcasts, it must be True.
            by: who does it, for the record; if omitted, this process's user and host.

        Returns:
            The number of letters.

        Raises:
            InvalidUsage: a letter is not open, the group has no retry topic, or this object is closed.
            NotReachable: no broker answers in time.
            WakerollError: Kafka does not accept a letter; some before it may have been sent, and are not settled.
        """
        wanted = _wanted(numbers)
        with self._answering():
            if not to_origin and wanted != frozenset() and not self._positions.queues(self._retry_topic):
                raise InvalidUsage(
                    f"group {self.group_id!r} has no topic {self._retry_topic}: its members retry in place; send the "
                    "letters to the topics that they come from, where all groups receive them (to_origin)"
                )
            return self._settle(wanted, "resent", by, lambda letters: self._send(letters, to_origin))

    def drop(self, numbers: Numbers, *, by: str | None = None) -> int:
        """Drop letters for good; see `resend`, which has the same arguments, results and errors."""
        wanted = _wanted(numbers)
        with self._answering():
            return self._settle(wanted, "dropped", by, lambda letters: sum(1 for _ in letters))

    def close(self) -> None:
        """Disconnect; no other method may be called then. A second call does nothing."""
        if not self._closed and self._process.is_current:
            self._closed = True
            self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answering(self) -> AbstractContextManager[None]:
        """Refuse a call in a fork or after `close`, and convert Kafka's errors; see `Connection.answering`."""
        self._process.require()
        if self._closed:
            raise InvalidUsage("this DeadLetters is closed; create a new one")
        return self._connection.answering(self._timeout)

    # --- reading ---

    def _scan(self) -> _Scan | None:
        """Read the marks; None if there is no dead letter topic."""
        if not self._positions.queues(self._topic):
            return None
        first, end = ends_of(self._consumer, TopicPartition(self._topic, 0), self._timeout)
        settled: set[int] = set()
        for message in self._read(first, end):
            if (mark := _mark_of(message)) is not None:
                settled.add(message.offset() or 0)
                for low, high in mark.numbers:
                    settled.update(range(max(low, first), min(high, end) + 1))
        return _Scan(first, end, settled)

    def _open(self, scan: _Scan) -> Iterator[Letter]:
        for message in self._read(scan.first, scan.end):
            number = message.offset() or 0
            if number not in scan.settled:
                yield Letter(number, message.timestamp()[1], origin_of(message), message)

    def _read(self, first: int, end: int) -> Iterator[Message]:
        """Yield the messages of the dead letter topic from `first` up to `end`.

        Between two messages, other calls of this method may use the consumer, and any time may pass.
        """
        me, position = object(), first
        try:
            while position < end:
                messages, position = self._batch(me, position, end)
                yield from messages
        finally:
            if self._place is not None and self._place[0] is me:
                self._place = None
                if not self._closed:
                    self._consumer.unassign()

    def _batch(self, reader: object, position: int, end: int) -> tuple[list[Message], int]:
        """Return the next messages below `end`, at least one unless there is none, and where to continue."""
        deadline = time.monotonic() + self._timeout
        with self._answering():
            if self._place != (reader, position):
                self._consumer.assign([TopicPartition(self._topic, 0, position)])
            found: list[Message] = []
            while not found and position < end:
                for message in self._consumer.consume(BATCH, SLICE_S):
                    error, at = message.error(), message.offset()
                    if error is not None:
                        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                            raise NotReachable(f"cannot read {self._topic}: {error.str()}")
                        continue
                    assert at is not None, "a message without an error has an offset"
                    position, deadline = at + 1, time.monotonic() + self._timeout
                    if at < end:
                        found.append(message)
                [here] = self._consumer.position([TopicPartition(self._topic, 0)])
                position = max(position, here.offset)  # Kafka's internal records have offsets, too
                if not found and position < end and time.monotonic() > deadline:
                    raise NotReachable(f"Kafka did not return the messages {position} to {end} of {self._topic}")
            self._place = reader, position
            return found, position

    # --- settling ---

    def _settle(
        self, wanted: frozenset[int] | None, how: str, by: str | None, handle: Callable[[Iterator[Letter]], int]
    ) -> int:
        """Send or drop letters and mark them as settled, chunk by chunk; None: all open ones. Return their number."""
        if wanted is not None and not wanted:
            return 0
        scan = self._scan() or _Scan(0, 0, set())
        for number in sorted(wanted or ()):
            if not scan.first <= number < scan.end or number in scan.settled:
                raise self._no_letter(number)
        by = this_user() if by is None else by
        letters = (letter for letter in self._open(scan) if wanted is None or letter.number in wanted)
        total = 0
        while True:
            chosen: list[int] = []
            count = handle(_noting(islice(letters, CHUNK), chosen))
            if count:
                self._mark(_Mark(_runs(chosen), how, by))
                for one in (scan, *self._scans.values()):
                    one.settled.update(chosen)
                total += count
            if count < CHUNK:
                break
        if total:
            self._trim(scan, scan.settled)
        return total

    def _send(self, letters: Iterator[Letter], to_origin: bool) -> int:
        count = 0
        with BulkSender(self._connection, self._timeout) as sender:
            for letter in letters:
                message = letter.message
                again = letter.origin._replace(attempt=1)
                own = [(name, value) for name, value in pairs_of(message) if name not in HEADERS]
                where: dict[str, Any] = {"topic": self._retry_topic, "partition": 0}
                if to_origin:
                    where = {"topic": letter.origin.topic, "partition": letter.origin.partition}
                sender.send(
                    value=message.value(),
                    key=message.key(),
                    headers=own if to_origin else headers_with(message, again),
                    **where,
                )
                count += 1
        return count

    def _mark(self, mark: _Mark) -> None:
        with BulkSender(self._connection, self._timeout) as sender:
            sender.send(topic=self._topic, partition=0, value=msgspec.json.encode(mark), headers=[(MARK, b"1")])

    def _trim(self, scan: _Scan, settled: set[int]) -> None:
        """Delete settled letters at the beginning of the topic; ignore an error, such as a missing right."""
        first_open = next((at for at in range(scan.first, scan.end) if at not in settled), scan.end)
        if first_open == scan.first:
            return
        admin = self._connection.admin(log_level=0)
        try:
            deleted = admin.delete_records([TopicPartition(self._topic, 0, first_open)], request_timeout=self._timeout)
            for answer in deleted.values():
                answer.result()
        except KafkaException:
            return

    def _no_letter(self, number: int) -> InvalidUsage:
        return InvalidUsage(f"group {self.group_id!r} has no open dead letter {number}")


def _wanted(numbers: Numbers) -> frozenset[int] | None:
    """Return the numbers of a caller's argument; None for all.

    Raises:
        InvalidUsage: the argument is something else.
    """
    if isinstance(numbers, str) and numbers == "all":
        return None
    if isinstance(numbers, Iterable) and not isinstance(numbers, str | bytes):
        listed = frozenset(numbers)
        if all(isinstance(number, int) for number in listed):
            return listed
        numbers = sorted(listed, key=repr)  # an iterator is exhausted
    raise InvalidUsage(f"numbers is {shown(numbers)}; it must be 'all', or a list of numbers of letters")


def _noting(letters: Iterable[Letter], numbers: list[int]) -> Iterator[Letter]:
    """Yield letters, and append the number of each to a list."""
    for letter in letters:
        numbers.append(letter.number)
        yield letter


def _mark_of(message: Message) -> _Mark | None:
    """Return the mark in a record; None if it is a letter."""
    if [name for name, _ in pairs_of(message)] != [MARK]:
        return None  # a letter has headers with its origin, beside those of its producer
    try:
        return msgspec.json.decode(message.value() or b"", type=_Mark)
    except msgspec.MsgspecError:
        return _Mark([], "", "")  # not ours, and no letter either


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Return ascending numbers as runs of consecutive ones."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs
