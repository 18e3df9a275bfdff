"""Where Kafka's partitions begin and end, and where a time lies in them."""

import time
from collections.abc import Iterable, Mapping

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from model.queue import Queue
from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage, NotReachable
from wakeroll.reset import ResetPoint

_NO_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_EXCEPTION)
_NO_LEADER = (KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION)
"""What is said of a partition that has just been made: it has a leader in a moment."""
_RETRY_S = 0.1

_SHOWN = 5
"""Queues that a sentence names; of a thousand, the first ones will do."""


def ends_of(consumer: Consumer, at: TopicPartition, timeout: float) -> tuple[int, int]:
    """Ask for the first offset of a partition and for that of the next record; a new one may have no leader yet.

    Raises:
        KafkaException: nobody tells within `timeout` seconds.
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
    """Asks about the partitions of topics; a consumer's questions, unlike a producer's, never create a topic.

    Methods raise KafkaException when no broker answers in time.
    """

    def __init__(self, consumer: Consumer, timeout: float) -> None:
        """Prepare to ask; `timeout` is how many seconds to wait for each answer."""
        self._consumer = consumer
        self._timeout = timeout

    def queues(self, topic: str) -> list[Queue]:
        """Return the queues of a topic, sorted; none if there is no such topic, or Kafka could not have one.

        Raises:
            NotReachable: the brokers have it, but do not tell.
        """
        found = self._consumer.list_topics(topic, self._timeout).topics[topic]
        if found.error is not None and found.error.code() not in _NO_TOPIC:
            raise NotReachable(f"Kafka does not tell about {topic}: {found.error.str()}")
        return [] if found.error is not None else [Queue(topic, "", number) for number in sorted(found.partitions)]

    def at(self, place: ResetPoint, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Return the offset of a place in each of these queues.

        A time after the last message is the end, as for `kafka-consumer-groups --to-datetime`.

        Raises:
            InvalidUsage: the place is an offset, and not every queue has it.
            NotReachable: Kafka does not tell for every queue.
        """
        wanted = list(queues)
        match place:
            case "first":
                return self._ask(dict.fromkeys(wanted, OFFSET_BEGINNING))
            case "last":
                return self._ask(dict.fromkeys(wanted, OFFSET_END))
            case EpochMs():
                found = self._ask(dict.fromkeys(wanted, int(place)))
                later = [queue for queue, offset in found.items() if offset == OFFSET_END]
                return found | self._ask(dict.fromkeys(later, OFFSET_END))
            case _:
                self._refuse_outside(place, wanted)
                return dict.fromkeys(wanted, place)

    def _refuse_outside(self, offset: int, queues: list[Queue]) -> None:
        """RocketMQ's admin command refuses such an offset too; the next consumer would not find it."""
        first, end = self.at("first", queues), self.at("last", queues)
        outside = [queue for queue in queues if not first[queue] <= offset <= end[queue]]
        if outside:
            named = ", ".join(f"{queue} has {first[queue]} to {end[queue]}" for queue in outside[:_SHOWN])
            more = f" and {len(outside) - _SHOWN} more queues" if len(outside) > _SHOWN else ""
            raise InvalidUsage(f"offset {offset} is not there: {named}{more} (the end counts)")

    def _ask(self, times: Mapping[Queue, int]) -> dict[Queue, int]:
        """Ask for the first offset at or after a time, or for the first or last of all: one request a broker."""
        if not times:
            return {}
        asked = [TopicPartition(queue.topic, queue.queue_id, when) for queue, when in times.items()]
        deadline = time.monotonic() + self._timeout
        while True:
            answers = self._consumer.offsets_for_times(asked, timeout=max(deadline - time.monotonic(), 0.1))
            wrong = next((answer for answer in answers if answer.error is not None), None)
            if wrong is None:
                return {Queue(answer.topic, "", answer.partition): answer.offset for answer in answers}
            assert wrong.error is not None, "it was chosen for its error"
            if wrong.error.code() not in _NO_LEADER or time.monotonic() > deadline:
                raise NotReachable(f"Kafka does not tell where {wrong.topic}-{wrong.partition} is: {wrong.error.str()}")
            time.sleep(_RETRY_S)
