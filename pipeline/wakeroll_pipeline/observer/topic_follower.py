"""A reader of a control topic that starts two minutes in the past."""

import logging
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from confluent_kafka import KafkaException, TopicPartition

from wakeroll.connection import Connection
from wakeroll.errors import NotReachable
from wakeroll.log_reader import LogReader, LogReplaced, TopicWatch
from wakeroll_model.config import MAX_RECORD_BYTES
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.kafka.topic_admin import Cluster

log = logging.getLogger(__name__)

LOOK_BACK_MS = 120_000
"""How far in the past reading starts (ms): far enough for a live client's heartbeat."""
_ANSWER_S = 1.5
_AT_ONCE = 1_000

_Record = TypeVar("_Record")


class Follower(Generic[_Record]):
    """Reads all partitions of a control topic, from two minutes ago on."""

    def __init__(
        self, connection: Connection, topic: str, understand: Callable[[bytes | None], _Record | None]
    ) -> None:
        """Create the client; `understand` parses the value of a record and returns None for records to be skipped."""
        self._topic = topic
        self._understand = understand
        self._partitions = 0
        self._trouble = Trouble(log, f"{self._topic} can be read again")
        settings = {
            # Lost records do no harm, because later ones repeat them: a heartbeat, a pull.
            "auto.offset.reset": "latest",
            "message.max.bytes": MAX_RECORD_BYTES,
            "queued.max.messages.kbytes": 16 * 1024,
            "reconnect.backoff.max.ms": 1_000,
            "log_level": 0,
            "error_cb": lambda _: None,
        }
        self._reader = LogReader(lambda: connection.consumer(**settings), TopicWatch(connection))

    def follow(self, partitions: int, cluster: Cluster) -> None:
        """Start to read all partitions, unless this has been done.

        Raises:
            NotReachable: no broker returned the start offsets.
        """
        if partitions == self._partitions:
            return
        # The ends are queried first: reading starts there if no record is young enough, so no record is skipped.
        ends = cluster.offsets((self._topic, partition) for partition in range(partitions))
        since_ms = int(time.time() * 1000) - LOOK_BACK_MS
        asked = [TopicPartition(self._topic, partition, since_ms) for partition in range(partitions)]
        try:
            starts = self._reader.consumer.offsets_for_times(asked, timeout=_ANSWER_S)
        except KafkaException as error:
            raise NotReachable(f"cannot read the start offsets of {self._topic}: {error.args[0].str()}") from None
        for start in starts:
            if start.error is not None or (self._topic, start.partition) not in ends:
                raise NotReachable(f"partition {start.partition} of {self._topic} has no leader yet")
            if start.offset < 0:
                start.offset = ends[self._topic, start.partition][1]
        self._reader.begin({(self._topic, start.partition): start.offset for start in starts})
        self._partitions = partitions

    def receive(self, timeout_s: float) -> Iterator[_Record]:
        """Wait up to `timeout_s` for records; yield the parsed values of at most a thousand.

        If the topic was created again, or lost its tail, the next `follow` starts to read it like the first one.
        """
        try:
            messages = self._reader.take(_AT_ONCE, timeout_s)
        except LogReplaced as problem:
            log.warning("%s; reading it again", problem)
            self._reader.renew({})
            self._partitions = 0
            return
        for message in messages:
            error = message.error()
            if error is not None:
                self._trouble.began(f"cannot read {self._topic}: {error.str()}")
                continue
            self._trouble.ended()
            if (record := self._understand(message.value())) is not None:
                yield record

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()
