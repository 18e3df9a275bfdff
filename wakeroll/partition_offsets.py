"""Offsets of Kafka's partitions: the first one, the end, and the offset for a time."""

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage, NotReachable
from wakeroll.login_errors import denied, is_denied
from wakeroll_model.queue import Queue

if TYPE_CHECKING:
    from wakeroll.reset import ResetPoint

_NO_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_EXCEPTION)
_NO_LEADER = (KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._UNKNOWN_PARTITION)
"""Errors for a partition that has no leader yet: it was just created, or its broker was just resumed."""
_RETRY_S = 0.1

_SHOWN = 5
"""Number of queues that an error message names."""


def ends_of(consumer: Consumer, at: TopicPartition, timeout: float) -> tuple[int, int]:
    """Return the first offset and the end offset of a partition; retry while it has no leader.

    Raises:
        KafkaException: no broker answers within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return consumer.get_watermark_offsets(at, max(deadline - time.monotonic(), 0.1))
        except KafkaException as problem:
            if problem.args[0].code() not in _NO_LEADER or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_S)


class Positions:
    """Queries about partitions and offsets, made by a consumer, because a producer's queries could create a topic.

    Methods raise KafkaException when no broker answers in time.
    """

    def __init__(self, consumer: Consumer, timeout: float) -> None:
        """Prepare; each answer is waited for at most `timeout` seconds."""
        self._consumer = consumer
        self._timeout = timeout

    def queues(self, topic: str) -> list[Queue]:
        """Return the queues of a topic, sorted; none if the topic does not exist or its name is not valid in Kafka.

        Raises:
            AccessDenied: the principal may not describe the topic.
            NotReachable: the brokers do not return the metadata of the topic.
        """
        found = self._consumer.list_topics(topic, self._timeout).topics[topic]
        if is_denied(found.error):
            raise denied(topic, "Describe")
        if found.error is not None and found.error.code() not in _NO_TOPIC:
            raise NotReachable(f"cannot read the partitions of {topic}: {found.error.str()}")
        return [] if found.error is not None else [Queue(topic, "", number) for number in sorted(found.partitions)]

    def at(self, place: "ResetPoint", queues: Iterable[Queue]) -> dict[Queue, int]:
        """Return the offset of a reset target in each of these queues.

        For a time after the last message, this is the end offset, as with `kafka-consumer-groups --to-datetime`.

        Raises:
            InvalidUsage: the target is an offset that not every queue has.
            NotReachable: Kafka does not return an offset for every queue.
        """
        wanted = list(queues)
        match place:
            case "first":
                return self._ask(dict.fromkeys(wanted, OFFSET_BEGINNING))
            case "last":
                return self._ask(dict.fromkeys(wanted, OFFSET_END))
            case EpochMs():
                return self.at_times(dict.fromkeys(wanted, place))
            case _:
                self._refuse_outside(place, wanted)
                return dict.fromkeys(wanted, place)

    def at_times(self, times: Mapping[Queue, EpochMs]) -> dict[Queue, int]:
        """Return for each queue the offset of the first message at or after a time; its end if there is none.

        Raises:
            NotReachable: Kafka does not return an offset for every queue.
        """
        found = self._ask({queue: int(time) for queue, time in times.items()})
        later = [queue for queue, offset in found.items() if offset == OFFSET_END]
        return found | self._ask(dict.fromkeys(later, OFFSET_END))

    def ranges(self, queues: Iterable[Queue]) -> dict[Queue, tuple[int, int]]:
        """Return the first offset and the end offset of these queues; leave out those without an answer of Kafka."""
        wanted = self._with_leader(queues)
        found: list[dict[Queue, int]] = []
        for place in (OFFSET_BEGINNING, OFFSET_END) if wanted else ():
            asked = [TopicPartition(queue.topic, queue.queue_id, place) for queue in wanted]
            answers = self._consumer.offsets_for_times(asked, timeout=self._timeout)
            found.append({Queue(at.topic, "", at.partition): at.offset for at in answers if at.error is None})
        return {queue: (found[0][queue], found[1][queue]) for queue in wanted if all(queue in each for each in found)}

    def _with_leader(self, queues: Iterable[Queue]) -> list[Queue]:
        """Leave out queues without a leader: a query about one waits for a leader until the timeout, and fails."""
        leaders: dict[str, set[int]] = {}
        kept = []
        for queue in queues:
            if queue.topic not in leaders:
                found = self._consumer.list_topics(queue.topic, self._timeout).topics[queue.topic]
                leaders[queue.topic] = {number for number, at in found.partitions.items() if at.leader >= 0}
            if queue.queue_id in leaders[queue.topic]:
                kept.append(queue)
        return kept

    def _refuse_outside(self, offset: int, queues: list[Queue]) -> None:
        """Reject an offset that a queue does not have, as RocketMQ's admin command does: no consumer could read it."""
        first, end = self.at("first", queues), self.at("last", queues)
        outside = [queue for queue in queues if not first[queue] <= offset <= end[queue]]
        if outside:
            named = ", ".join(f"{queue} has {first[queue]} to {end[queue]}" for queue in outside[:_SHOWN])
            more = f" and {len(outside) - _SHOWN} more queues" if len(outside) > _SHOWN else ""
            raise InvalidUsage(f"offset {offset} does not exist: {named}{more} (the end offset is allowed)")

    def _ask(self, times: Mapping[Queue, int]) -> dict[Queue, int]:
        """Query the first offset at or after a time, or the first or last offset: one request per broker."""
        if not times:
            return {}
        asked = [TopicPartition(queue.topic, queue.queue_id, when) for queue, when in times.items()]
        deadline = time.monotonic() + self._timeout
        while True:
            answers = self._consumer.offsets_for_times(asked, timeout=max(deadline - time.monotonic(), 0.1))
            wrong = next((answer for answer in answers if answer.error is not None), None)
            if wrong is None:
                return {Queue(answer.topic, "", answer.partition): answer.offset for answer in answers}
            assert wrong.error is not None, "the answer was chosen because it has an error"
            if wrong.error.code() not in _NO_LEADER or time.monotonic() > deadline:
                raise NotReachable(f"cannot read the offsets of {wrong.topic}-{wrong.partition}: {wrong.error.str()}")
            time.sleep(_RETRY_S)
