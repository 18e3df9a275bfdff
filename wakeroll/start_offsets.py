"""The offsets at which new queues are read, found by queries that have a Kafka client of their own.

The client that reads messages would answer too late. If a client has metadata of a partition before it is assigned,
librdkafka (2.16) wakes its broker thread once for that partition, and after each wakeup this thread looks at all
partitions before it sends a request. Measured with 10,000 queues: a core is busy for 15 s, and other queries time out
meanwhile.
"""

from collections.abc import Callable, Mapping

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from wakeroll.connection import Connection
from wakeroll_model.client_actions import Give
from wakeroll_model.decisions import Start
from wakeroll_model.queue import Queue

RESOLVE_S = 2.0
"""How long to wait for the answer to a query (s); the next poll retries."""
MOST_AT_ONCE = 1_000
"""Maximum number of queues per query, so that reading of some queues begins even if a later query is not answered.
Measured: 0.1 s per query."""


class StartOffsets:
    """Finds the first offset to read of queues that are new to a consumer."""

    def __init__(self, connection: Connection, note: Callable[[KafkaError, str | None], object]) -> None:
        """Prepare; `note` is called with each error of Kafka and its topic, if it has one."""
        self._connection = connection
        self._note = note

    def find(self, gives: list[Give]) -> list[tuple[Give, int]]:
        """Return the queues whose offset was found, with that offset; leave out those without an answer."""
        found = [(give, give.start.offset) for give in gives if give.start.offset is not None]
        asked = [give for give in gives if give.start.offset is None]
        if not asked:
            return found
        # A client for these queries alone: queues without a committed offset are rare, connections cost all the time.
        client = self._connection.consumer(log_level=0)
        try:
            for at in range(0, len(asked), MOST_AT_ONCE):
                found += self._resolve(client, asked[at : at + MOST_AT_ONCE])
        except KafkaException as problem:
            self._note(problem.args[0], None)
        finally:
            client.close()
        return found

    def _resolve(self, client: Consumer, gives: list[Give]) -> list[tuple[Give, int]]:
        found = []
        by_queue = {give.queue: give for give in gives}
        wanted = {give.queue: _as_time(give.start) for give in gives}
        while wanted:
            answers = self._query(client, wanted)
            found += [(by_queue[queue], offset) for queue, offset in answers.items() if offset >= 0]
            # For a time after the last message Kafka returns "the end"; a second query resolves the end to an offset.
            wanted = {queue: offset for queue, offset in answers.items() if offset == OFFSET_END != wanted[queue]}
        return found

    def _query(self, client: Consumer, wanted: Mapping[Queue, int]) -> dict[Queue, int]:
        """Query the first offset at or after a time, or the first or last offset: one request per broker."""
        partitions = [TopicPartition(queue.topic, queue.queue_id, time) for queue, time in wanted.items()]
        answers = client.offsets_for_times(partitions, timeout=RESOLVE_S)
        for answer in answers:
            if answer.error is not None:
                self._note(answer.error, answer.topic)
        return {Queue(answer.topic, "", answer.partition): answer.offset for answer in answers if answer.error is None}


def _as_time(start: Start) -> int:
    """Return the argument of Kafka's query for an offset by time; first and last have special values."""
    match start.policy:
        case "first":
            return OFFSET_BEGINNING
        case "timestamp":
            return start.ms or 0
        case _:
            return OFFSET_END
