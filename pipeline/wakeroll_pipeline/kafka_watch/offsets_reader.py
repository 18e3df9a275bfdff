"""The records of `__consumer_offsets`, read without a group of Kafka, in the order of their times."""

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from operator import itemgetter

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from wakeroll.connection import Connection, take
from wakeroll.errors import NotReachable
from wakeroll.partition_offsets import ends_of
from wakeroll.steady_clients import UNUSED_GROUP
from wakeroll_model.coordinator_log.coordinator_records import TOPIC
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.kafka_watch.commit_sampling import RawRecord

log = logging.getLogger(__name__)

_AT_ONCE = 10_000
_MOST_AHEAD = 5_000
"""Records of a partition that wait for those of others, until it is read on (while the past is read)."""
_MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
_DENIED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, *_MISSING)


class NotReadable(Exception):
    """The brokers do not let this process read `__consumer_offsets`; the text says why."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(error.str())
        self.is_missing = error.code() in _MISSING
        """Whether there seems to be no such topic: it is hidden, or the cluster has never had a group."""


class OffsetsReader:
    """Reads all partitions of `__consumer_offsets`. For one thread.

    Records that were there at the start are returned in the order of their times, over all partitions: so the past has
    the order in which it happened. Later ones are returned as they come.
    """

    def __init__(self, connection: Connection, timeout: float) -> None:
        """Create the client; nothing is read before `begin`.

        Args:
            connection: the brokers.
            timeout: seconds to wait for a broker.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        self._connection = connection
        self._timeout = timeout
        self._consumer: Consumer = connection.consumer(
            **{
                "group.id": UNUSED_GROUP,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "queued.max.messages.kbytes": 32 * 1024,
                "fetch.message.max.bytes": 256 * 1024,
                "reconnect.backoff.max.ms": 1_000,
                "log_level": 0,
                "error_cb": lambda _: None,
            }
        )
        self._ends: dict[int, int] = {}
        """Partition -> its end at the start; only partitions whose past is not read yet."""
        self._ahead: dict[int, deque[RawRecord]] = {}
        """Partition -> records that wait for earlier ones of other partitions."""
        self._paused: set[int] = set()
        self._reached: dict[int, int] = {}
        """Partition -> time of its newest record that was read (epoch ms)."""
        self._returned: dict[int, int] = {}
        """Partition -> the highest time of a record that was returned (epoch ms)."""
        self._silence = Trouble(log, "the record of Kafka's groups can be read again")

    @property
    def is_past_read(self) -> bool:
        """Whether all records were returned that were there at the start."""
        return not self._ends and not any(self._ahead.values())

    def begin(self, next_offsets: Mapping[int, int]) -> int:
        """Begin behind what is on record; return the number of partitions.

        Args:
            next_offsets: partition -> offset of the first record to read; others begin with their first record.

        Raises:
            NotReadable: the topic is hidden, or this principal may not read it.
            NotReachable: no broker answered.
        """
        with self._connection.answering(self._timeout):
            found = self._consumer.list_topics(TOPIC, self._timeout).topics[TOPIC]
        if found.error is not None and found.error.code() in _DENIED:
            raise NotReadable(found.error)
        if found.error is not None or not found.partitions:
            raise NotReachable(f"cannot read the partitions of {TOPIC}")
        places = []
        for number in sorted(found.partitions):
            try:
                with self._connection.answering(self._timeout):
                    first, end = ends_of(self._consumer, TopicPartition(TOPIC, number), self._timeout)
            except KafkaException as error:
                if error.args[0].code() in _DENIED:
                    raise NotReadable(error.args[0]) from None
                raise
            begin = max(first, next_offsets.get(number, first))
            if number in next_offsets and first > next_offsets[number]:
                log.warning(
                    "%s-%d: records %d to %d were deleted before they were read",
                    TOPIC,
                    number,
                    next_offsets[number],
                    first - 1,
                )
            places.append(TopicPartition(TOPIC, number, begin))
            if begin < end:
                self._ends[number] = end
        self._consumer.assign(places)
        return len(places)

    def read(self, timeout: float) -> list[RawRecord]:
        """Return the next records; wait at most `timeout` seconds for one.

        Raises:
            NotReadable: the right to read was taken away.
        """
        found = [one for message in take(self._consumer, _AT_ONCE, timeout) if (one := self._record(message))]
        if self.is_past_read:
            return found
        for one in found:
            self._hold(one)
        self._let_go_on()
        return list(self._in_order())

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()

    def _record(self, message: Message) -> RawRecord | None:
        error, partition = message.error(), message.partition() or 0
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self._ends.pop(partition, None)
            elif error.code() in _DENIED:
                raise NotReadable(error)
            else:
                self._silence.began(f"the record of Kafka's groups cannot be read: {error.str()}; retrying")
            return None
        self._silence.ended()
        key, value = message.key(), message.value()
        assert not isinstance(key, str), "the client decodes nothing"
        at_ms = message.timestamp()[1]
        return RawRecord(at_ms, partition, message.offset() or 0, key, value)

    def _hold(self, one: RawRecord) -> None:
        self._ahead.setdefault(one.partition, deque()).append(one)
        self._reached[one.partition] = max(one.at_ms, self._reached.get(one.partition, one.at_ms))
        if one.offset + 1 >= self._ends.get(one.partition, 0):
            self._ends.pop(one.partition, None)

    def _let_go_on(self) -> None:
        """Pause the partitions that are far ahead of the others, and resume those that are not any more."""
        far = {number for number, waiting in self._ahead.items() if len(waiting) > _MOST_AHEAD and number in self._ends}
        if pause := far - self._paused:
            self._consumer.pause([TopicPartition(TOPIC, number) for number in sorted(pause)])
        if resume := self._paused - far:
            self._consumer.resume([TopicPartition(TOPIC, number) for number in sorted(resume)])
        self._paused = far

    def _in_order(self) -> Iterator[RawRecord]:
        """Yield the records that are not later than anything that the others may still have."""
        limit = min((self._reached.get(number, -1) for number in self._ends), default=None)
        ready: list[tuple[int, RawRecord]] = []
        for number, waiting in self._ahead.items():
            newest = self._returned.get(number, -1)
            while waiting and (limit is None or max(newest, waiting[0].at_ms) <= limit):
                one = waiting.popleft()
                newest = max(newest, one.at_ms)
                ready.append((newest, one))
            self._returned[number] = newest
        # A clock that was put back must not reorder the records of a partition; and the sort is stable.
        yield from (one for _, one in sorted(ready, key=itemgetter(0)))
