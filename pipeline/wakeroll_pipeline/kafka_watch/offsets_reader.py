"""The records of `__consumer_offsets`, read without a consumer group, in the order of their times."""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import attrgetter

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import TopicMetadata

from wakeroll.connection import Connection, take
from wakeroll.errors import NotReachable
from wakeroll.partition_offsets import ends_of
from wakeroll.steady_clients import UNUSED_GROUP
from wakeroll_model.coordinator_log.coordinator_records import TOPIC
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.kafka_watch.commit_sampling import CommitSampler, Mark, Step, offset_of

log = logging.getLogger(__name__)

_AT_ONCE = 10_000
_MOST_AHEAD = 5_000
"""Maximum number of records of a partition that wait for those of other partitions, while the past is read."""
_BYTES_PER_RECORD = 1_000
"""Size above which a record counts as several records (bytes)."""
_PATIENCE_S = 1.0
"""Time after which the check begins whether the client can connect at all (s)."""
_MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
_DENIED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, *_MISSING)


class NotReadable(Exception):
    """The brokers do not allow this process to read `__consumer_offsets`; the text has the reason."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(error.str())
        self.is_missing = error.code() in _MISSING
        """Whether the topic seems to be missing: it is hidden, or the cluster has never had a group."""


class OffsetsReader:
    """Reads all partitions of `__consumer_offsets`. For one thread.

    The records at the start are returned in the order of their times, over all partitions: so the past has the order in
    which it happened. Later records are returned as they come. Commits are sampled.
    """

    def __init__(self, connection: Connection, timeout: float, is_wanted: Callable[[bytes], bool]) -> None:
        """Create the client; nothing is read before `begin`.

        Args:
            connection: the brokers.
            timeout: seconds to wait for a broker.
            is_wanted: whether a group is watched, by its name in the keys.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        self._connection = connection
        self._timeout = timeout
        self._is_wanted = is_wanted
        self._consumer: Consumer = connection.consumer(
            **{
                "group.id": UNUSED_GROUP,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "queued.max.messages.kbytes": 32 * 1024,
                "fetch.message.max.bytes": 256 * 1024,
                "fetch.queue.backoff.ms": 20,
                "reconnect.backoff.max.ms": 1_000,
                "log_level": 0,
                "error_cb": self._remember,
            }
        )
        self._reason = ""
        self._unreachable = ""
        """Reason why the client cannot connect to any broker; empty if it can."""
        self._ends: dict[int, int] = {}
        """Partition -> its end at the start; only partitions whose past is not read yet."""
        self._samplers: dict[int, CommitSampler] = {}
        self._waiting: dict[int, deque[Step]] = {}
        """Partition -> steps that wait for earlier ones of other partitions."""
        self._ahead: Counter[int] = Counter()
        """Partition -> size of its waiting steps, in records."""
        self._paused: set[int] = set()
        self._marks: dict[int, Mark] = {}
        self.past_records = 0
        """Upper bound of the records at the start that were not recorded: compaction may have removed some."""
        self.count = 0
        """Number of records that were read."""
        self._silence = Trouble(log, "the record of Kafka's groups can be read again")

    @property
    def is_past_read(self) -> bool:
        """Whether all records that existed at the start were returned."""
        return not self._ends and not any(self._waiting.values())

    @property
    def marks(self) -> Mapping[int, Mark]:
        """Partition -> progress of recording after all returned steps, including the last one."""
        return self._marks

    def begin(self, marks: Mapping[int, Mark]) -> int:
        """Begin after the recorded part; return the number of partitions.

        Args:
            marks: partition -> progress of recording it; other partitions begin with their first record.

        Raises:
            NotReadable: the topic is hidden, or this principal may not read it.
            NotReachable: no broker answered.
        """
        found = self._topic()
        if found.error is not None and found.error.code() in _DENIED:
            raise NotReadable(found.error)
        if found.error is not None or not found.partitions:
            raise NotReachable(f"cannot read the partitions of {TOPIC}")
        places = []
        self._ends, self.past_records = {}, 0
        for number in sorted(found.partitions):
            try:
                with self._connection.answering(self._timeout):
                    first, end = ends_of(self._consumer, TopicPartition(TOPIC, number), self._timeout)
            except KafkaException as error:
                if error.args[0].code() in _DENIED:
                    raise NotReadable(error.args[0]) from None
                raise
            mark = marks.get(number, Mark(first, first))
            if first > mark.next_offset:
                log.warning(
                    "%s-%d: records %d to %d were deleted before they were read",
                    TOPIC,
                    number,
                    mark.next_offset,
                    first - 1,
                )
            mark = Mark(max(first, mark.next_offset), max(first, mark.read_offset))
            places.append(TopicPartition(TOPIC, number, mark.next_offset))
            self._marks[number] = mark
            self._samplers[number] = CommitSampler(number, mark, self._is_wanted, number / len(found.partitions))
            if mark.next_offset < end:
                self._ends[number] = end
                self.past_records += end - mark.next_offset
        self._consumer.assign(places)
        return len(places)

    def _topic(self) -> TopicMetadata:
        """Return the brokers' metadata of the topic; do not wait for them if each connection is refused."""
        self._unreachable = ""
        ends_s = time.monotonic() + self._timeout
        while True:
            try:
                with self._connection.answering(self._timeout):
                    found: TopicMetadata = self._consumer.list_topics(TOPIC, _PATIENCE_S).topics[TOPIC]
                    return found
            except NotReachable:
                self._consumer.poll(0)  # lets the client report its errors
                if self._unreachable:
                    at = self._connection.bootstrap
                    raise NotReachable(f"no Kafka broker answered at {at} ({self._unreachable})") from None
                if time.monotonic() >= ends_s:
                    raise

    def _remember(self, error: KafkaError) -> None:
        if error.code() == KafkaError._TRANSPORT:
            self._reason = error.str()
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._unreachable = self._reason or error.str()

    def read(self, timeout: float, interval_ms: int) -> Iterator[Step]:
        """Yield the next steps; each must be processed before the next; wait at most `timeout` seconds for a record.

        Args:
            timeout: how long to wait (s).
            interval_ms: time between two samples of the commits of a partition (ms).

        Raises:
            NotReadable: the right to read was revoked.
        """
        was_past_read, unread = self.is_past_read, {*self._ends}
        runs = list(self._runs(take(self._consumer, _AT_ONCE, timeout)))
        fresh = [self._samplers[number].take(run, interval_ms) for number, run in runs]
        if was_past_read:
            late = (sampler.flush(interval_ms / 1_000) for sampler in self._samplers.values())
            yield from self._returned(chain(*fresh, *late))
            return
        for number, run in runs:
            if offset_of(run[-1]) + 1 >= self._ends.get(number, 0):
                self._ends.pop(number, None)
        self._wait(fresh)
        ended = unread - self._ends.keys() if self._ends else self._samplers
        self._wait(self._samplers[number].flush() for number in sorted(ended))
        self._let_go_on()
        yield from self._returned(self._in_order())

    def flush(self) -> Iterator[Step]:
        """Yield the commits that are held back, when the past is read."""
        if self.is_past_read:
            yield from self._returned(chain(*(sampler.flush() for sampler in self._samplers.values())))

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()

    def _runs(self, messages: list[Message]) -> Iterator[tuple[int, list[Message]]]:
        """Yield the records among messages by partition, in the order in which they came."""
        errors = list(map(Message.error, messages))
        if any(errors):
            for message, error in zip(messages, errors, strict=True):
                if error is not None:
                    self._note(error, message.partition() or 0)
            messages = [one for one, error in zip(messages, errors, strict=True) if error is None]
        if messages:
            self._silence.ended()
        self.count += len(messages)
        for number, run in groupby(messages, Message.partition):
            yield number or 0, list(run)

    def _note(self, error: KafkaError, partition: int) -> None:
        """Process an error that the client reports, or the end of a partition."""
        if error.code() == KafkaError._PARTITION_EOF:
            self._ends.pop(partition, None)
        elif error.code() in _DENIED:
            raise NotReadable(error)
        else:
            self._silence.began(f"the record of Kafka's groups cannot be read: {error.str()}; retrying")

    def _returned(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yield steps, and move the marks with them."""
        for step in steps:
            self._marks[step.partition] = step.mark
            yield step
        for number, sampler in self._samplers.items():
            if not self._waiting.get(number):
                self._marks[number] = sampler.mark

    def _wait(self, found: Iterable[Sequence[Step]]) -> None:
        for step in chain.from_iterable(found):
            self._waiting.setdefault(step.partition, deque()).append(step)
            self._ahead[step.partition] += _size(step)

    def _let_go_on(self) -> None:
        """Pause the partitions that are far ahead of the others, and resume the others."""
        far = {number for number in self._ends if self._ahead[number] > _MOST_AHEAD}
        if pause := far - self._paused:
            self._consumer.pause([TopicPartition(TOPIC, number) for number in sorted(pause)])
        if resume := self._paused - far:
            self._consumer.resume([TopicPartition(TOPIC, number) for number in sorted(resume)])
        self._paused = far

    def _in_order(self) -> list[Step]:
        """Return the steps that are not later than any record that other partitions may still have."""
        limit = min((self._samplers[number].reached_ms for number in self._ends), default=None)
        ready: list[Step] = []
        for number, waiting in self._waiting.items():
            while waiting and (limit is None or waiting[0].at_ms <= limit):
                self._ahead[number] -= _size(waiting[0])
                ready.append(waiting.popleft())
        return sorted(ready, key=attrgetter("at_ms"))  # the sort is stable


def _size(step: Step) -> int:
    """Return the size of a step in records; a large record counts as several ones."""
    return sum(len(records) + sum(map(len, records)) // _BYTES_PER_RECORD for records in step.groups)
