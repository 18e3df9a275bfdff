"""The leases of this process: a thread reads their log in Kafka, claims them and renews them.

Other threads query here whether this process may act. See `wakeroll_model.lease_contender` for the rules.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, Producer, TopicPartition

from wakeroll.connection import Connection, close_producer
from wakeroll.errors import NotReachable, WakerollError
from wakeroll.log_reader import LogReader, LogReplaced, TopicWatch
from wakeroll.monotonic_clock import now_ms
from wakeroll.partition_offsets import ends_of
from wakeroll_model.events import UNREADABLE
from wakeroll_model.lease_contender import Contender, State
from wakeroll_model.lease_log import AnyLeaseRecord, decode, encode
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.kafka.topic_admin import Cluster, Racks

log = logging.getLogger("wakeroll.run")

_ANSWER_S = 30.0
_LONGEST_POLL_S = 0.25
_AT_ONCE = 1_000
_LOOK_S = 2.0
"""Longest wait for the id of the topic (s)."""
_RELEASE_S = 3.0
"""Longest wait for the acknowledgement of a release (s); without it, others wait until the lease expires."""


_RANDOM_PART = "#"
"""Separator between the name of a process and the part that makes its id unique."""


class LeaseLost(WakerollError):
    """Another process has claimed a lease of this process; the message names both."""


class ProcessLease:
    """One lease that this process has or waits for. For any thread."""

    def __init__(self, name: str, contender: Contender, changed: threading.Condition, look: Callable[[], bool]) -> None:
        """Do not call it: `LeaseKeeper` creates leases."""
        self.name = name
        self._contender = contender
        self._changed = changed
        self._look = look

    @property
    def state(self) -> State:
        """The state of this process; see `Contender.state`."""
        with self._changed:
            return self._contender.state(now_ms())

    @property
    def term(self) -> int:
        """Number of the period in which this process has the lease; later holders have higher numbers; -1 before.

        The numbers begin again if the topic is created again: see `wakeroll_model.lease_log.turn_number`.
        """
        with self._changed:
            return self._contender.term

    @property
    def log(self) -> str:
        """Id of the topic with the records of the lease; empty if the brokers have no such ids."""
        with self._changed:
            return self._contender.lease.log

    @property
    def holder(self) -> str:
        """Name of the process that has the lease, like ``b@host:4321``; empty if none is known."""
        with self._changed:
            lease = self._contender.lease
            return "" if lease.is_released else _shown(lease.holder)

    def wait(self, timeout_s: float) -> bool:
        """Wait until this process has the lease, at most `timeout_s` seconds; return whether it has it."""
        with self._changed:
            return self._changed.wait_for(lambda: self._contender.is_held(now_ms()), timeout_s)

    def confirm(self) -> None:
        """Return if this process has the lease; while its renewals do not return, wait for them.

        After it returns, no other process has had the lease before the call.

        Raises:
            LeaseLost: another process has the lease, or this one has released it.
        """
        with self._changed:
            while (state := self._contender.state(now_ms())) != "held":
                self._raise_if_gone(state)
                self._changed.wait(_LONGEST_POLL_S)

    def prove(self) -> None:
        """Return if this process has the lease in the log that exists now; wait for the brokers.

        After it returns, no other process had claimed the lease before the call. Unlike `confirm`, this needs no
        assumption about clocks: it waits until a record that was appended during the call is read in the log.

        Raises:
            LeaseLost: as `confirm`.
        """
        with self._changed:
            sent = self._contender.sent
            self._contender.renew_now()
            while not self._contender.has_proved(sent):
                self._raise_if_gone(self._contender.state(now_ms()))
                self._changed.wait(_LONGEST_POLL_S)
        while not self._look():
            self.raise_if_lost()
        self.raise_if_lost()

    def is_confirmed(self) -> bool:
        """Return whether this process has the lease; False at once while its renewals do not return.

        Raises:
            LeaseLost: as `confirm`.
        """
        with self._changed:
            state = self._contender.state(now_ms())
            self._raise_if_gone(state)
            return state == "held"

    def raise_if_lost(self) -> None:
        """Raise `LeaseLost` if another process has the lease; a doubtful lease is not lost yet."""
        with self._changed:
            self._raise_if_gone(self._contender.state(now_ms()))

    def _raise_if_gone(self, state: State) -> None:
        if state == "lost":
            holder = self._contender.lease.holder
            to = f" to {_shown(holder)}" if holder else ", whose topic was deleted or has lost records"
            raise LeaseLost(
                f"this process has lost the lease {self.name!r}{to}: it "
                "was suspended, or did not reach the brokers, for longer than lease_ms; start it again, and it waits"
            )
        if state == "ended":
            raise LeaseLost(f"this process has released the lease {self.name!r}")


class LeaseKeeper:
    """Contends for leases for the time of a `with` block; at its end they are released."""

    def __init__(self, connection: Connection, name: str, lease_ms: int, leases: Sequence[str]) -> None:
        """Prepare; nothing is read yet.

        Args:
            connection: the brokers. The topic of the leases must exist.
            name: name of this process, for the messages of others.
            lease_ms: duration of its leases.
            leases: names of the leases that this process requests.
        """
        self._connection = connection
        self._lease_ms = lease_ms
        self._names = tuple(leases)
        self._holder = f"{name}{_RANDOM_PART}{uuid.uuid4().hex[:12]}"
        self._place = TopicPartition(connection.topics.leases, 0)
        self._contenders: dict[str, Contender] = {}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._read = -1
        """Offset up to which the log was read."""
        self._log = ""
        """Id of the topic that is read; empty if the brokers have no such ids."""
        self._is_replaced = False
        """Whether the topic has another log now that was not read yet."""
        self._watch = TopicWatch(connection)
        self._quiet = {"error_cb": self._note_error, "log_level": 0, "reconnect.backoff.max.ms": 1_000}
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)
        self._trouble = Trouble(log, "leases can be renewed again")

    def __enter__(self) -> Self:
        """Read the log to its end, and begin to contend.

        Raises:
            NotReachable: no broker answers.
        """
        self._reader = LogReader(
            lambda: self._connection.consumer(**{"fetch.wait.max.ms": 100, **self._quiet}),
            self._watch,
            lambda _place, first: self._skip_to(first),
        )
        self._producer = self._make_producer()
        try:
            self._log = self._id_of_topic(_ANSWER_S)
            first, end = ends_of(self._reader.consumer, self._place, _ANSWER_S)
            self._read = first - 1
            self._reader.begin({(self._place.topic, self._place.partition): first})
            self._reader.identify(self._place.topic, self._log)
            self._contenders = {
                name: Contender(name, self._holder, self._lease_ms, now_ms(), first=first, log=self._log)
                for name in self._names
            }
            deadline_s = time.monotonic() + _ANSWER_S
            while self._read < end - 1:
                if time.monotonic() > deadline_s:
                    raise NotReachable(f"cannot read {self._place.topic} to its end within {_ANSWER_S:g} s")
                self._receive()
        except KafkaException as problem:
            self._reader.close()
            raise NotReachable(f"cannot read {self._place.topic}: {problem.args[0].str()}") from None
        except WakerollError:
            self._reader.close()
            raise
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the leases, and stop."""
        self._stop.set()
        self._thread.join(_ANSWER_S)
        with self._changed:
            for contender in self._contenders.values():
                self._append(contender.end(now_ms()))
            self._changed.notify_all()
        close_producer(self._producer, _RELEASE_S)
        self._reader.close()

    def __getitem__(self, name: str) -> ProcessLease:
        """Return one of the leases, inside the `with` block."""
        return ProcessLease(name, self._contenders[name], self._changed, self._look)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._contend()
            except (KafkaException, BufferError, WakerollError) as problem:
                self._trouble.began(f"leases cannot be renewed: {problem}; retrying")
                self._stop.wait(_LONGEST_POLL_S)

    def _contend(self) -> None:
        self._receive()
        with self._changed:
            for contender in self._contenders.values():
                self._append(contender.next_record(now_ms(), self._read))
            self._changed.notify_all()
        self._producer.poll(0)

    def _receive(self) -> None:
        if self._is_replaced:
            self._begin_again()
        try:
            messages = self._reader.take(_AT_ONCE, min(_LONGEST_POLL_S, self._lease_ms / 10_000))
        except LogReplaced as problem:
            log.warning("%s; leases begin again", problem)
            self._cut_off()
            self._begin_again()
            return
        with self._changed:
            for message in messages:
                if (error := message.error()) is None:
                    self._note(message)
                else:
                    self._note_error(error)

    def _note(self, message: Message) -> None:
        offset = message.offset()
        assert offset is not None, "a message without an error has an offset"
        self._read = offset
        self._trouble.ended()
        try:
            record = decode(message.value() or b"")
        except UNREADABLE:
            return  # it is of another version
        for contender in self._contenders.values():
            if contender.lease.is_foreign(record):
                self._watch.hurry()
            contender.read(offset, record)

    def _skip_to(self, first: int) -> None:
        """Note that the records before `first` were deleted before they were read."""
        self._read = first - 1
        with self._changed:
            for contender in self._contenders.values():
                contender.lease.skip(first)

    def _cut_off(self) -> None:
        """Note that the topic has another log than before: holders have lost their leases, and all processes wait."""
        with self._changed:
            self._is_replaced = True
            for contender in self._contenders.values():
                contender.begin_again(0, "")
            self._changed.notify_all()

    def _begin_again(self) -> None:
        """Read the present log.

        Raises:
            KafkaException, NotReachable: no broker answers.
            LoginFailed: the brokers reject the login.
        """
        log_id = self._id_of_topic(_LOOK_S)
        self._reader.renew({(self._place.topic, self._place.partition): OFFSET_BEGINNING})
        self._reader.identify(self._place.topic, log_id)
        first, _ = ends_of(self._reader.consumer, self._place, _ANSWER_S)
        close_producer(self._producer, 0)  # like a consumer, it may take the new topic for outdated metadata
        self._producer = self._make_producer()
        with self._changed:
            self._log, self._read, self._is_replaced = log_id, first - 1, False
            for contender in self._contenders.values():
                contender.begin_again(first, log_id)

    def _look(self) -> bool:
        """Compare the id of the topic with that of the log that was read; return False if the brokers do not answer."""
        try:
            found = self._id_of_topic(_LOOK_S)
        except WakerollError as problem:
            self._trouble.began(f"leases cannot be renewed: {problem}; retrying")
            return False
        if found != self._log:
            self._cut_off()
        return True

    def _id_of_topic(self, patience_s: float) -> str:
        """Return the id of the topic of the leases.

        Raises:
            NotReachable: no broker answers, or there is no such topic.
            LoginFailed: the brokers reject the login.
        """
        cluster = Cluster(self._connection, patience_s=patience_s, stop=self._stop)
        until_s = time.monotonic() + patience_s
        while True:
            found = cluster.racks([self._place.topic])[self._place.topic]
            if isinstance(found, Racks) and found:
                return found.topic_id
            if time.monotonic() > until_s or self._stop.wait(_LONGEST_POLL_S):
                raise NotReachable(f"the brokers do not know the topic {self._place.topic}")

    def _make_producer(self) -> Producer:
        # A renewal that arrives twice does no harm, and one that arrives too late has no effect.
        sends = {"enable.idempotence": False, "message.timeout.ms": self._lease_ms}
        return self._connection.producer(**sends, **self._quiet)

    def _append(self, record: AnyLeaseRecord | None) -> None:
        if record is not None:
            self._producer.produce(
                self._place.topic,
                encode(record),
                key=record.lease,
                partition=self._place.partition,
                on_delivery=self._delivered,
            )

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self._trouble.ended()
        else:
            self._note_error(error)

    def _note_error(self, error: KafkaError) -> None:
        """Note an error; until the brokers answer again, the silence of other processes does not count."""
        for contender in self._contenders.values():
            contender.disturbed()
        self._trouble.began(f"leases cannot be renewed: {error.str()}; retrying")


def _shown(holder: str) -> str:
    return holder.partition(_RANDOM_PART)[0]
