"""The reader of control topics: it notices that a topic was deleted and created again, or lost its tail.

Kafka's client alone does not (librdkafka 2.16, in `rd_kafka_topic_metadata_update`). After a topic was deleted and
created again, it continues at its old offset if the new log has that. And if the leader of the old partition had ever
changed, as by a restart of a broker, it treats the leader epoch of the new one as outdated metadata, and reads nothing
any more, without an error. Only a new client can read then.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec, TopicDescription

from wakeroll.connection import Connection, take
from wakeroll.errors import WakerollError
from wakeroll.log_position import LogPosition, TopicIdentity
from wakeroll.monotonic_clock import now_ms
from wakeroll.partition_offsets import ends_of

log = logging.getLogger("wakeroll")

LOOK_MS = 10_000
"""How often a reader with a watch queries the ids and the ends of its topics: two requests (ms)."""
_NEVER_MS = 2**62
_ANSWER_S = 1.0
_QUERY_S = 10.0
"""How long the answers to a query may take (s); the next query waits for them."""
_REFUSED = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION)
"""Errors for a position that is out of range; Kafka's client then stops reading the partition."""
_END: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]

Place = tuple[str, int]
"""Topic and partition."""
_Answer = TypeVar("_Answer")


class LogReplaced(WakerollError):
    """A topic has another log than the one that was read; the message names the evidence and possible causes.

    Attributes:
        topic: the topic.
        partition: the partition that shows it; -1: the id of the topic shows it.
    """

    def __init__(self, place: Place, next_offset: int, found: str) -> None:
        self.topic, self.partition = place
        where = self.topic if self.partition < 0 else f"{self.topic}-{self.partition}"
        read = "" if self.partition < 0 else f", but was read up to offset {next_offset}"
        super().__init__(
            f"{where} is not the log that this process has read so far: {found}{read}; the topic was deleted and "
            "created again, the brokers have lost records, or this is another cluster"
        )


class TopicWatch:
    """Queries ids and end offsets of topics now and then, and never waits for the answers. For one thread."""

    def __init__(self, connection: Connection, *, is_regular: bool = True) -> None:
        """Prepare; the first query creates the client.

        Args:
            connection: the brokers.
            is_regular: query at once, to know the ids of the start, and then every `LOOK_MS`; else only the ids, and
                only after `hurry`.
        """
        self._connection = connection
        self._is_regular = is_regular
        self._due_ms = 0 if is_regular else _NEVER_MS
        self._admin: AdminClient | None = None
        self._asked: Mapping[Place, int] = {}
        self._ids: Mapping[str, Future[TopicDescription]] = {}
        self._ends: Mapping[TopicPartition, Future[ListOffsetsResultInfo]] = {}

    def hurry(self) -> None:
        """Let the next `ask` send a query."""
        self._due_ms = 0

    def ask(self, positions: Mapping[Place, int]) -> None:
        """Send a query about these partitions if it is due and none is under way; `positions`: those of the reader."""
        if self._ids or not positions or now_ms() < self._due_ms:
            return
        self._due_ms = now_ms() + LOOK_MS if self._is_regular else _NEVER_MS
        if self._admin is None:
            self._admin = self._connection.admin(error_cb=lambda _: None, log_level=0)
        self._asked = dict(positions)
        topics = TopicCollection(sorted({topic for topic, _ in positions}))
        self._ids = self._admin.describe_topics(topics, request_timeout=_QUERY_S)
        if self._is_regular:
            ends = {TopicPartition(*place): _END for place in positions}
            self._ends = self._admin.list_offsets(ends, request_timeout=_QUERY_S)

    def answers(self) -> tuple[dict[str, str], dict[Place, tuple[int, int]]]:
        """Return the answers of the last query when all have come; else nothing.

        Returns:
            Topic -> its id; and partition -> the position that was given to `ask`, and the end offset.
        """
        is_answered = all(one.done() for one in self._ids.values()) and all(one.done() for one in self._ends.values())
        if not self._ids or not is_answered:
            return {}, {}
        described, listed, asked = self._ids, self._ends, self._asked
        self.forget()
        ids = {topic: str(found.topic_id) for topic, one in described.items() if (found := _result(one)) is not None}
        ends = {}
        for at, future in listed.items():
            answer, place = _result(future), (at.topic, at.partition)
            if answer is not None and answer.offset >= 0:  # of a dead leader, it is invalid (confluent-kafka 2.16)
                ends[place] = asked[place], answer.offset
        return ids, ends

    def forget(self) -> None:
        """Ignore the answers of a query that is under way."""
        self._ids, self._ends = {}, {}
        if not self._is_regular:
            self._admin = None  # its threads end


class LogReader:
    """Reads partitions of control topics with a client of Kafka, and replaces this client when that is necessary.

    For one thread.
    """

    def __init__(
        self,
        connect: Callable[[], Consumer],
        watch: TopicWatch | None = None,
        on_gap: Callable[[Place, int], object] = lambda _place, _first: None,
        borrowed: Consumer | None = None,
    ) -> None:
        """Create the client; `begin` sets the partitions and offsets to read.

        Args:
            connect: creates a client of Kafka.
            watch: queries ids and ends of the topics; None: the caller calls `look`.
            on_gap: called with a partition and its first offset when the reader continues there, because earlier
                records were deleted before they were read. It is not called if Kafka's client does so itself
                (`auto.offset.reset`).
            borrowed: the first client of Kafka, if the caller has one; the caller closes it.
        """
        self._connect = connect
        self._watch = watch
        self._on_gap = on_gap
        self._borrowed = borrowed
        self.consumer = connect() if borrowed is None else borrowed
        """The present client, for queries too."""
        self._positions: dict[Place, LogPosition] = {}
        self._identities: dict[str, TopicIdentity] = {}
        self._refused: set[Place] = set()

    def begin(self, starts: Mapping[Place, int]) -> None:
        """Read these partitions and no others, each from an offset on, which may be `OFFSET_BEGINNING`."""
        now = now_ms()
        self._positions = {place: LogPosition(max(offset, 0), now) for place, offset in starts.items()}
        self._refused = set()
        if self._watch is not None:
            self._watch.forget()
        self.consumer.assign([TopicPartition(*place, offset) for place, offset in starts.items()])

    def renew(self, starts: Mapping[Place, int]) -> None:
        """Continue with a new client of Kafka at these offsets; the topics may be others than before."""
        self._reconnect()
        self._identities = {}
        self.begin(starts)

    def positions(self) -> dict[Place, int]:
        """Return the offset of the next record of each partition."""
        return {place: position.next_offset for place, position in self._positions.items()}

    def take(self, most: int, timeout: float) -> list[Message]:
        """Return received records and errors, at most `most`; wait at most `timeout` seconds for the first one.

        Raises:
            LogReplaced: a partition has another log than the one that was read; records of this call are dropped. Call
                `renew` to read the present log.
        """
        self._resolve_refused()  # the caller has processed all records before them
        self._ask_now_and_then()
        messages, now = take(self.consumer, most, timeout), now_ms()
        taken = []
        for message in messages:
            place, error = (message.topic() or "", message.partition() or 0), message.error()
            if error is not None and error.code() in _REFUSED:
                self._refused.add(place)
                continue
            position = self._positions.get(place)
            if error is None and position is not None:
                self._raise_if(place, position.read(message.offset() or 0, message.leader_epoch(), now))
            taken.append(message)
        return taken

    def look(self, place: Place, first: int, end: int) -> None:
        """Compare a position with the first offset and the end of its partition, queried after the last `take`.

        Raises:
            LogReplaced: as `take`.
        """
        position = self._positions[place]
        self._raise_if(place, position.look(first, end, now_ms(), was_refused=place in self._refused))
        if place in self._refused:
            self._refused.discard(place)
            self._assign()
            self._on_gap(place, position.next_offset)
        self._help_the_stuck()

    def identify(self, topic: str, topic_id: str) -> None:
        """Compare the id of a topic with the one before; empty: it is not known.

        Raises:
            LogReplaced: as `take`.
        """
        self._raise_if((topic, -1), self._identities.setdefault(topic, TopicIdentity()).look(topic_id))

    def close(self) -> None:
        """Stop reading."""
        if self.consumer is not self._borrowed:
            self.consumer.close()

    def _assign(self) -> None:
        self.consumer.assign([TopicPartition(*place, offset) for place, offset in self.positions().items()])

    def _reconnect(self) -> None:
        if self.consumer is self._borrowed:
            self.consumer.unassign()
        else:
            self.consumer.close()
        self.consumer = self._connect()

    def _resolve_refused(self) -> None:
        """Find out whether refused positions were deleted, or never existed in the present log."""
        for place in sorted(self._refused):
            try:
                first, end = ends_of(self.consumer, TopicPartition(*place), _ANSWER_S)
            except KafkaException as problem:
                log.debug("cannot read the end offset of %s-%s: %s", *place, problem)
                return  # the next call tries again
            self.look(place, first, end)

    def _ask_now_and_then(self) -> None:
        if self._watch is None:
            return
        ids, ends = self._watch.answers()
        for topic, topic_id in ids.items():
            self.identify(topic, topic_id)
        now = now_ms()
        for place, (asked, end) in ends.items():
            position = self._positions.get(place)
            # An end between both was overtaken by records that were read since the query.
            if position is not None and place not in self._refused and not asked <= end < position.next_offset:
                self._raise_if(place, position.look(0, end, now))
        self._help_the_stuck()
        self._watch.ask(self.positions())

    def _help_the_stuck(self) -> None:
        """Replace the client of Kafka if records exist and none arrives."""
        now = now_ms()
        if stuck := [place for place, position in self._positions.items() if position.is_stuck(now)]:
            log.info("%s-%s has records that do not come; reading with a new client of Kafka", *stuck[0])
            self._reconnect()
            self._assign()
            for position in self._positions.values():
                position.renewed(now)
            if self._watch is not None:
                self._watch.hurry()

    def _raise_if(self, place: Place, found: str) -> None:
        if found:
            position = self._positions.get(place)
            raise LogReplaced(place, 0 if position is None else position.next_offset, found)


def _result(future: Future[_Answer]) -> _Answer | None:
    try:
        return future.result()
    except KafkaException:
        return None
