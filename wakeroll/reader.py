"""The data side of the consumer: Kafka partitions, read with `assign` and without Kafka's own groups."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, Message, TopicPartition

from wakeroll.connection import Connection, take
from wakeroll.errors import InvalidUsage, NotReachable, WakerollError
from wakeroll.held_locks import free
from wakeroll.lost_positions import LostPositions, Position
from wakeroll.repeated_errors import repeated
from wakeroll.start_offsets import StartOffsets
from wakeroll_model.client_actions import Give
from wakeroll_model.queue import Queue

log = logging.getLogger("wakeroll")

_Result = TypeVar("_Result")
_Key = TypeVar("_Key", str, int)

LEARN_S = 0.5
"""How long to wait for the partitions of a topic (s); a later answer is used by the next query."""
FETCH_WAIT_MS = 100
"""How long a broker may hold a fetch that finds nothing (ms). Requests behind it on the same connection, such as the
fetch of a new queue or the query of its start, wait as long. Measured: with 500 ms, a reassigned queue is read 0.4 s
later."""
FETCH_BACKOFF_MS = 20
"""How long Kafka's client waits until it checks again whether its local queue, of `QUEUED_KIB` or 100,000 messages, has
room (ms). Its default of 1 s is longer than the queue lasts. Measured with 2 million messages in 8
queues: with 1 s, `Consumer.run` waits for 12 of 14 seconds; with 20 ms, it is ten times as fast."""
FEW_QUEUES = 1_000
"""Maximum number of queues of which Kafka's client may have metadata before they are assigned. With more, the search of
each assigned queue among them takes too long."""
QUEUED_KIB = 16 * 1024
"""How much Kafka's client reads ahead, of all queues together (KiB). It fetches when it has less, and then as much from
each broker: `fetch.max.bytes` follows this setting. Measured with 64 queues: with the default of 64 MiB, which allows
fetches of 50 MiB, a consumer takes 100 MiB more, and its messages per second are the same."""
REST_S = 1.0
"""How long Kafka's client is not polled, instead of being paused, if all queues are full (s). A pause discards what it
has read ahead, which it must fetch again then. It must be polled from time to time, for example to renew a token."""
FEW_RESUMED = 32
"""Maximum number of queues that are sought after they are resumed together. The thread of Kafka's client that reads
from a broker does not notice that a queue is resumed, and may sleep for a second if it has nothing else to read. A seek
wakes it."""
GATHER_S = 0.2
"""How long to collect further queues whose positions must be compared with the log (s), so that one query serves
all."""
MEND_AGAIN_S = 1.0
"""Pause between two queries about where to continue in queues whose position is lost (s)."""
FETCH_SETTINGS = {
    "fetch.wait.max.ms": FETCH_WAIT_MS,
    "fetch.queue.backoff.ms": FETCH_BACKOFF_MS,
    "queued.max.messages.kbytes": QUEUED_KIB,
    "enable.partition.eof": True,
}
"""librdkafka's settings of a consumer that reads messages. The end of a partition may be an offset after records that
are never delivered, such as the markers of transactions."""


class Move(NamedTuple):
    """A change of a position that no message caused."""

    give: Give
    """Assignment of the queue."""
    offset: int
    """The new position."""
    is_back: bool = False
    """Whether the log lost its tail from this offset on; otherwise no message before the position is left to
    deliver."""
    leader_epoch: int | None = None
    """If the log lost its tail: lower bound of the leader epoch of all messages from this offset on; None if not
    known."""


class Reader:
    """Reads the assigned queues, each from its start. Queues that stay keep their position. For one thread."""

    def __init__(self, connection: Connection) -> None:
        """Create a reader without queues, and let its client connect to a broker.

        Raises:
            InvalidUsage: Kafka's client rejects the settings of the connection.
        """
        self._consumer = connection.message_consumer(**FETCH_SETTINGS)
        self._connect(connection.topics.inbox)
        self._start_offsets = StartOffsets(connection, self._note)
        self._lost_positions = LostPositions(connection, self._note)
        self.moves: list[Move] = []
        """Moves of positions that the caller has not taken yet, in order."""
        self.on_leader_epoch: Callable[[Give, int, int | None], object] = lambda _give, _offset, _leader_epoch: None
        """Called with an assignment, an offset and the leader epoch of the messages from there on; None if not
        known."""
        self.leader_epoch_at: Callable[[Give, int], int | None] = lambda _give, _offset: None
        """Returns the leader epoch of the message before a position; None if not known."""
        self._leader_epochs: dict[tuple[str | None, int | None], int | None] = {}
        """Leader epoch of the last message of each queue, by topic and partition."""
        self._unproven: dict[Queue, int] = {}
        """Queues that were assigned at a position with a leader epoch -> the position. Until the first message arrives,
        the log may be another one, because Kafka's client does not validate the position of an assignment."""
        self._lost: dict[Queue, bool] = {}
        """Queues whose position may not exist in Kafka any more -> whether Kafka's client must be set to a new
        position, because it has stopped there, or has returned messages after the position."""
        self._mend_at = 0.0
        self._reading: dict[Queue, Give] = {}
        self._gives: dict[tuple[str | None, int | None], Give] = {}
        """Assignments by topic and partition, looked up for each message."""
        self._topics: set[str] = set()
        """Topics of all queues that were ever read: only their messages can arrive."""
        self._positions: dict[Queue, int] = {}
        """Offset of the next message of each queue. Kafka's client has it too, but another thread must not query the
        client: with confluent-kafka 2.16 that blocks both threads for ever."""
        self._reached: dict[Queue, tuple[Give, int]] = {}
        """Where to continue if the positions are in doubt: the start of each queue, or the offset that was processed or
        sought since. An entry of another assignment of the queue is ignored."""
        self._asked: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        """Calls that other threads have submitted to the polling thread."""
        self._full: set[Queue] = set()
        """Queues whose reading is stopped because too many messages are not processed."""
        self._paused: set[Queue] = set()
        """Queues that the application has paused. The set is replaced as a whole, by any thread."""
        self._stopped: set[Queue] = set()
        """Queues that are paused in Kafka's client now."""
        self.is_stopped = False
        """Whether all reading is stopped because the group is paused."""
        self._stops_changed = False
        """Whether `_stopped` may differ from what `_full`, `_paused` and `is_stopped` require."""
        self._rests_until = 0.0
        """When all queues, which are full, will be paused, by the monotonic clock (s); 0 if no such pause is due."""
        self._pausing = threading.RLock()

    @property
    def queues(self) -> list[Queue]:
        """Queues that are being read, sorted."""
        return sorted(self._reading.copy())  # a copy: another thread may call this

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to read now, and nothing else to do in `take`."""
        if not self._reading:
            return True
        return time.monotonic() < self._rests_until and not (self._asked or self._stops_changed)

    @property
    def is_mending(self) -> bool:
        """Whether the position of a queue is lost, so that Kafka must be queried where to continue."""
        return bool(self._lost)

    def start(self, gives: list[Give]) -> list[tuple[Give, int]]:
        """Read these queues too; return those whose start offset was found, with that offset, sorted by queue.

        Messages produced after this call are read, also with the policy ``last``.
        """
        found = self.find_starts(gives)
        self.begin(found)
        return sorted(found, key=lambda start: start[0].queue)

    def find_starts(self, gives: list[Give]) -> list[tuple[Give, int]]:
        """Return the offsets at which to start assigned queues; leave out queues without an answer of Kafka."""
        return self._start_offsets.find(gives)

    def begin(self, found: list[tuple[Give, int]]) -> None:
        """Read these queues too, each from this offset on."""
        if found:
            # Queues that nobody has read yet may be partitions that were just added to a topic. A topic that is new to
            # Kafka's client is found by the client itself too, but only within a second; and if its wall clock was set
            # back, only when its timer has waited for as long. For many queues, learning first would take longer than
            # their first messages: see `wakeroll.start_offsets`.
            read = {queue.topic for queue in self._reading}
            begun = {give.queue.topic for give, _ in found if give.start.offset is None}
            others = {give.queue.topic for give, _ in found if len(self._reading) <= FEW_QUEUES} - read
            self._learn_partitions(begun | others if len(found) <= FEW_QUEUES else begun & read)
            self._topics.update(give.queue.topic for give, _ in found)
            self._consumer.incremental_assign([_start_of(give, offset) for give, offset in found])
            for give, offset in found:
                queue, epoch = give.queue, give.start.leader_epoch if offset == give.start.offset else None
                self._reached[queue] = give, offset
                self._positions[queue] = offset
                self._note_start(queue, epoch)
                self._gives[queue.topic, queue.queue_id] = self._reading[queue] = give
            self._stops_changed |= self.is_stopped or self._rests_until > 0

    def assigned(self) -> dict[Queue, Give]:
        """Return the queues that are being read, with their assignments."""
        return self._reading.copy()

    def reach(self, place: tuple[Give, int]) -> None:
        """Note that all messages of an assignment below an offset are processed. Any thread may call it."""
        give = place[0]
        known = self._reached.get(give.queue)
        if known is not None and (known[0] is give or known[0] == give):
            self._reached[give.queue] = place

    def reached(self, give: Give) -> int:
        """Return the offset below which all messages of this assignment are processed, or were skipped by `seek`."""
        known, offset = self._reached.get(give.queue, (give, 0))
        return offset if known == give else 0

    def recover(self, in_hand: Iterable[tuple[Give, int]] = ()) -> None:
        """Read every queue again from its first unprocessed message.

        Call it after an exception that came at an unknown place, such as that of a signal handler: messages may have
        been read that the application did not receive, and the fields of this object may differ from the state of
        Kafka's client. Only `reached` is certain. This call may be interrupted too, and repeated.

        Args:
            in_hand: assignments and next offsets of messages that the application has: their queues are read from
                there.
        """
        free(self._pausing)
        reading = self._reading
        self._full.clear()
        self._gives = {(queue.topic, queue.queue_id): give for queue, give in reading.items()}
        self._positions = {queue: self.reached(give) for queue, give in reading.items()}
        for give, offset in in_hand:
            if reading.get(give.queue) == give:
                self._positions[give.queue] = offset
        self.moves = []
        self._lost.clear()
        self._unproven.clear()
        for queue, give in reading.items():
            self._note_start(queue, self.leader_epoch_at(give, self._positions[queue]))
        self._consumer.assign(
            [
                _at(queue, offset, self._leader_epochs[queue.topic, queue.queue_id])
                for queue, offset in self._positions.items()
            ]
        )
        self._consumer.resume(_partitions(reading))  # Kafka's client may keep any of them paused
        self._stopped = set()
        self._stop_or_go_on()

    def stop_all_but(self, gives: dict[Queue, Give]) -> list[Queue]:
        """Stop reading all queues that are not in `gives`; return them, sorted."""
        stopped = sorted(queue for queue, give in self._reading.items() if gives.get(queue) != give)
        if stopped:
            # Kafka's client keeps a partition paused when it is unassigned, and then does not read it if it comes back.
            self._consumer.resume(_partitions(self._stopped.intersection(stopped)))
            self._consumer.incremental_unassign(_partitions(stopped))
            self._stopped.difference_update(stopped)
            self._full.difference_update(stopped)
            with self._pausing:  # a queue that is paused meanwhile would not be read when it comes back
                self._paused = self._paused.difference(stopped)
                for queue in stopped:
                    del self._gives[queue.topic, queue.queue_id], self._positions[queue], self._reading[queue]
                    self._leader_epochs.pop((queue.topic, queue.queue_id), None)
                    self._is_found(queue)
                    self._reached.pop(queue, None)
            self.moves = [move for move in self.moves if move.give.queue in self._reading]
        return stopped

    def take(self, most: int, timeout: float) -> list[tuple[Give, list[Message]]]:
        """Return the next messages by queue, each with its assignment; wait at most `timeout` seconds for the first.

        A queue may occur several times.

        Raises:
            WakerollError: Kafka's client has failed permanently.
        """
        self._stops_changed |= 0 < self._rests_until <= time.monotonic()
        if self._lost or self._asked or self._stops_changed:
            self._do_what_is_asked()
            if self.moves:
                return []  # the caller must know of them before the next messages
        if time.monotonic() < self._rests_until:
            return []
        messages = take(self._consumer, most, timeout)
        others: list[Message] = []
        if any(map(Message.error, messages)):
            others = [message for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
            self._refuse_fatal(others)
        runs = []
        for topic, partition, of_queue in self._by_place(messages):
            give = self._gives.get((topic, partition))
            if give is None:
                continue
            last = of_queue[-1]
            if last.leader_epoch() != self._leader_epochs[topic, partition] and not self._is_proven(give, of_queue):
                continue
            runs.append((give, of_queue))
            self._positions[give.queue] = (last.offset() or 0) + 1
        for message in others:  # an end of a queue comes after its messages
            self._handle(message)
        return runs

    def _by_place(self, messages: list[Message]) -> Iterator[tuple[str | None, int | None, list[Message]]]:
        """Return messages by topic and partition, in their order.

        Names of topics are compared only if Kafka's client has ever read more than one topic.
        """
        for partition, of_partition in _runs_by(Message.partition, messages):
            if len(self._topics) == 1:
                yield of_partition[0].topic(), partition, of_partition
            else:
                for topic, of_queue in _runs_by(Message.topic, of_partition):
                    yield topic, partition, of_queue

    @property
    def held_back(self) -> Container[Queue]:
        """Queues that `hold_back` has stopped and `go_on` has not continued."""
        return self._full

    def hold_back(self, queues: list[Queue]) -> None:
        """Read no further messages of these queues, until `go_on`."""
        if queues:
            self._full.update(queues)
            self._stop_or_go_on()

    def go_on(self, queues: list[Queue]) -> None:
        """Continue reading these queues after `hold_back`, except for those that the application has paused."""
        if queues:
            self._full.difference_update(queues)
            self._stop_or_go_on()

    def stop(self, is_stopped: bool) -> None:
        """Stop reading all queues, including later ones; or continue with those not stopped for other reasons."""
        if is_stopped != self.is_stopped:
            self.is_stopped = is_stopped
            self._stop_or_go_on()

    def pause(self, queues: list[Queue]) -> None:
        """Read no further messages of these queues for the application, until `resume`. Any thread may call it.

        Raises:
            InvalidUsage: a queue is not being read.
        """
        with self._pausing:
            self._refuse_others(queues)
            self._paused = self._paused.union(queues)
            self._stops_changed = True

    @property
    def paused(self) -> list[Queue]:
        """The queues that `pause` has stopped, sorted."""
        return sorted(self._paused)

    def resume(self, queues: list[Queue]) -> None:
        """Continue reading queues that `pause` has stopped. Any thread may call it.

        Raises:
            InvalidUsage: a queue is not being read.
        """
        with self._pausing:
            self._refuse_others(queues)
            self._paused = self._paused.difference(queues)
            self._stops_changed = True

    def seek(self, queue: Queue, offset: int) -> None:
        """Read a queue from this offset on.

        Raises:
            InvalidUsage: the queue is not being read.
        """
        self._refuse_others([queue])
        self._reached[queue] = self._reading[queue], offset
        self._move([_at(queue, offset, None)])

    def position(self, queue: Queue) -> int:
        """Return the offset of the next message that `take` returns. Any thread may call it.

        Raises:
            InvalidUsage: the queue is not being read.
        """
        self._refuse_others([queue])
        return self._positions.get(queue, 0)

    def lag(self, timeout: float) -> dict[Queue, int]:
        """Return queue -> offsets from its position to its end, for the queues that are being read.

        Raises:
            KafkaException: no broker answers in time.
        """
        ends = self._consumer.offsets_for_times(
            [TopicPartition(queue.topic, queue.queue_id, OFFSET_END) for queue in self.queues], timeout=timeout
        )
        found = {Queue(end.topic, "", end.partition): end for end in ends}
        for end in ends:
            if end.error is not None:
                raise KafkaException(end.error)
        return {queue: max(end.offset - self.position(queue), 0) for queue, end in found.items()}

    def set_back(self, positions: Iterable[tuple[Give, int]]) -> None:
        """Read these assigned queues from these offsets on; do nothing for a queue that is there already."""
        offsets = [
            _at(give.queue, offset, self.leader_epoch_at(give, offset))
            for give, offset in positions
            if self._reading.get(give.queue) == give and self._positions[give.queue] != offset
        ]
        if offsets:
            self._move(offsets)
            for one in offsets:
                queue = Queue(one.topic, "", one.partition)
                self._note_start(queue, self.leader_epoch_at(self._reading[queue], one.offset))

    def close(self) -> None:
        """Stop reading everything."""
        self._reading.clear()
        self._gives.clear()
        self._consumer.close()

    def when_polled(self, call: Callable[[], _Result], timeout: float) -> _Result:
        """Let the polling thread make a call for another thread; return the result.

        Raises:
            NotReachable: no thread polls within `timeout` seconds.
        """
        result: Future[_Result] = Future()
        self._asked.append((result, call))
        try:
            return result.result(timeout)
        except TimeoutError:
            result.cancel()
            raise NotReachable(f"the consumer did not poll within {timeout:g} s") from None

    def _do_what_is_asked(self) -> None:
        """Mend lost positions, and make the calls of other threads."""
        if self._lost and time.monotonic() >= self._mend_at:
            self._mend()
        if self._stops_changed:
            self._stop_or_go_on()
        while self._asked:
            result, call = self._asked.popleft()
            if result.set_running_or_notify_cancel():
                try:
                    result.set_result(call())
                except Exception as problem:  # the thread that asked raises it
                    result.set_exception(problem)

    def _stop_or_go_on(self) -> None:
        """Pause and resume partitions in Kafka's client, in the polling thread: other threads would block it."""
        self._stops_changed = False
        wanted = set(self._reading) if self.is_stopped else (self._full | self._paused) & self._reading.keys()
        if self._may_rest and wanted != self._stopped:
            now = time.monotonic()
            self._rests_until = self._rests_until or now + REST_S
            if now < self._rests_until:
                return
        self._rests_until = 0.0
        resumed = self._stopped - wanted
        self._consumer.pause(_partitions(wanted - self._stopped))
        self._consumer.resume(_partitions(resumed))
        self._stopped = wanted
        for queue in resumed if len(resumed) <= FEW_RESUMED else ():
            leader_epoch = self._leader_epochs[queue.topic, queue.queue_id]
            with suppress(KafkaException):  # Kafka's client still looks for its beginning, and goes on after that
                self._consumer.seek(_at(queue, self._positions[queue], leader_epoch))

    @property
    def _may_rest(self) -> bool:
        """Whether nothing is to be read because all queues are full."""
        return not (self.is_stopped or self._lost) and bool(self._reading) and self._reading.keys() <= self._full

    def _refuse_others(self, queues: Iterable[Queue]) -> None:
        others = [str(queue) for queue in queues if queue not in self._reading]
        if others:
            raise InvalidUsage(f"this consumer does not read {', '.join(others)} now; see assignment()")

    def _connect(self, topic: str) -> None:
        """Query the ends of a partition, so that the client connects to its broker.

        Later, the first query would wait up to half a second (see `connection.RECONNECT_MS`). The partition must not be
        of a topic that is read, which may have many queues: see `FEW_QUEUES`.
        """
        with suppress(KafkaException):  # the first query for messages connects too
            self._consumer.get_watermark_offsets(TopicPartition(topic, 0), LEARN_S)

    def _learn_partitions(self, topics: Iterable[str]) -> None:
        """Query the partitions of topics: Kafka's client itself queries its metadata only every five minutes."""
        for topic in topics:
            try:
                self._consumer.list_topics(topic, timeout=LEARN_S)
            except KafkaException as problem:
                self._note(problem.args[0], topic)
                return

    def _refuse_fatal(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if (error := message.error()) is not None and error.fatal():
                raise WakerollError(f"Kafka's client failed: {error.str()}; close this Consumer and create a new one")

    def _handle(self, message: Message) -> None:
        """Process an event that is not a message: the end of a queue, or an error."""
        error, give = message.error(), self._gives.get((message.topic(), message.partition()))
        assert error is not None, "a message without an error is delivered"
        if error.code() == KafkaError._PARTITION_EOF:
            if give is not None:
                self._reach_end(give, message.offset() or 0)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET and give is not None:
            self._lost[give.queue] = True
        else:
            self._note(error, message.topic())

    def _reach_end(self, give: Give, end: int) -> None:
        """Process the end of a queue, which may be after records that are never delivered.

        At the position where an assignment began, it proves as little as the first message: see `_is_proven`. The
        position must not skip messages that are to be read again.
        """
        queue, position = give.queue, self._positions[give.queue]
        if queue in self._lost:
            self._lost[queue] |= end > position
        elif self._unproven.pop(queue, None) == position:
            if not self._lost:
                self._mend_at = max(self._mend_at, time.monotonic() + GATHER_S)
            self._lost[queue] = end > position
        elif end > position:
            self._positions[queue] = end
            self.moves.append(Move(give, end))

    def _is_proven(self, give: Give, messages: list[Message]) -> bool:
        """Return whether these messages, some of which have a new leader epoch, belong to the log that was read.

        The first message after a committed offset has another leader epoch than the message before it if a leader was
        elected in between. The log may have lost its tail in that election, and have grown past the offset since.
        """
        queue = give.queue
        place = queue.topic, queue.queue_id
        if self._unproven.pop(queue, None) == self._positions[queue]:
            self._lost[queue] = True
        if queue in self._lost:
            self._lost[queue] = True  # also if only its end was to be compared: these messages are read again
            return False
        for message in messages:
            if (leader_epoch := message.leader_epoch()) != self._leader_epochs[place]:
                self._leader_epochs[place] = leader_epoch
                self.on_leader_epoch(give, message.offset() or 0, leader_epoch)
        return True

    def _mend(self) -> None:
        """Continue in queues whose position is lost: at the first message, or where the log lost its tail."""
        self._mend_at = time.monotonic() + MEND_AGAIN_S
        positions = {
            queue: Position(self._positions[queue], self._leader_epochs[queue.topic, queue.queue_id])
            for queue in self._lost
        }
        for queue, (offset, reason) in self._lost_positions.find(positions).items():
            before, leader_epoch = positions[queue]
            if reason == "valid" and not self._lost[queue]:
                self._is_found(queue)
                continue
            # Messages that were deleted may have had later leaders.
            self._move([_at(queue, offset, None if reason == "expired" else leader_epoch)])
            match reason:
                case "expired":
                    log.warning("the messages %d to %d of %s were deleted unread", before, offset - 1, queue)
                    self.moves.append(Move(self._reading[queue], offset))
                case "truncated":
                    log.warning("%s lost its messages from %d on; continuing there, not at %d", queue, offset, before)
                    # Those that it has now, or will have, are of later leaders.
                    leader_epoch = None if leader_epoch is None else leader_epoch + 1
                    self.moves.append(Move(self._reading[queue], offset, True, leader_epoch))
                case "valid":
                    pass
            self._leader_epochs[queue.topic, queue.queue_id] = leader_epoch

    def _move(self, offsets: list[TopicPartition]) -> None:
        """Read these partitions from these offsets on."""
        self._consumer.incremental_unassign(offsets)
        self._consumer.incremental_assign(offsets)
        for one in offsets:
            queue = Queue(one.topic, "", one.partition)
            self._positions[queue] = one.offset
            self._leader_epochs[queue.topic, queue.queue_id] = None
            self._is_found(queue)

    def _note_start(self, queue: Queue, leader_epoch: int | None) -> None:
        """Note the leader epoch of the message before the position at which a queue is assigned; None if not known."""
        self._leader_epochs[queue.topic, queue.queue_id] = leader_epoch
        if leader_epoch is not None:
            self._unproven[queue] = self._positions[queue]

    def _is_found(self, queue: Queue) -> None:
        """Note that the position of a queue is found and need not be queried any more."""
        self._unproven.pop(queue, None)
        self._lost.pop(queue, None)
        self._lost_positions.forget(queue)

    def _note(self, error: KafkaError, topic: str | None) -> None:
        """Log each kind of Kafka error of a topic once, for all consumers; Kafka's client retries by itself."""
        where = topic or "its connection"
        if (others := repeated.words(f"Kafka's error {error.code()} for {where}")) is not None:
            log.warning("Kafka reports an error for %s: %s%s", where, error.str(), others)


def _runs_by(
    key_of: Callable[[Message], _Key | None], messages: list[Message]
) -> Iterator[tuple[_Key | None, list[Message]]]:
    """Return runs of consecutive messages with the same key; it costs about 0.05 us per message."""
    keys = list(map(key_of, messages))
    if keys and keys.count(keys[0]) == len(keys):  # mostly: Kafka's client returns what it fetched queue by queue
        yield keys[0], messages
        return
    begin = 0
    for key, same in groupby(keys):
        end = begin + len(list(same))
        yield key, messages[begin:end]
        begin = end


def _start_of(give: Give, offset: int) -> TopicPartition:
    """Return the start of an assignment for Kafka's client, with the leader epoch if that was committed."""
    return _at(give.queue, offset, give.start.leader_epoch if offset == give.start.offset else None)


def _at(queue: Queue, offset: int, leader_epoch: int | None) -> TopicPartition:
    """Return a position for Kafka's client.

    It has the leader epoch of the message before it, if that is known. By this epoch, the client detects that the log
    loses its tail before the first message from there arrives.
    """
    known = -1 if leader_epoch is None else leader_epoch
    return TopicPartition(queue.topic, queue.queue_id, offset, leader_epoch=known)


def _partitions(queues: Iterable[Queue]) -> list[TopicPartition]:
    return [TopicPartition(queue.topic, queue.queue_id) for queue in queues]
