"""The decisions about one group, read from its partition of the decisions topic, from the start or from now on."""

import logging
import time
from collections.abc import Iterator
from typing import Self

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from wakeroll.connection import Connection
from wakeroll.errors import NotReachable
from wakeroll.log_reader import LogReader, LogReplaced, TopicWatch
from wakeroll.login_errors import denied, is_denied
from wakeroll.partition_offsets import Positions, ends_of
from wakeroll_model.decision_order import order_of, without_era
from wakeroll_model.decisions import Assignment, Fenced, Membership, Offset, Rebalance, Rejected
from wakeroll_model.events import UNREADABLE
from wakeroll_model.partitioner import partition_of

log = logging.getLogger("wakeroll")

BATCH = 500
"""Maximum number of records taken at once; a partition has the decisions about many groups."""
SLICE_S = 0.5
"""Longest single wait, during which Ctrl-C has no effect (s)."""

Said = Assignment | Fenced | Membership | Offset | Rebalance | Rejected
"""The kinds of decisions that operators need; other kinds are skipped."""
_decoder: msgspec.json.Decoder[Said] = msgspec.json.Decoder(Said)


class DecisionLog:
    """A reader of the decisions about a group. It returns each decision once, although delivery is at least once.

    Decisions of an older era that follow one of a newer era are skipped. If the topic is created again or loses its
    tail meanwhile, the present log is read from its start, and the order of its decisions is tracked from there.

    Methods raise KafkaException when the broker does not answer in time. For one thread.
    """

    def __init__(self, reader: LogReader, at: TopicPartition, group_id: str, timeout: float) -> None:
        """Prepare to read; call `from_the_start` or `from_now_on` to begin.

        Args:
            reader: its clients have `auto.offset.reset` set to earliest: if the oldest records are deleted during the
                reading, they continue with the remaining ones.
            at: the partition of the decisions topic for the group.
            group_id: the group.
            timeout: seconds to wait for the broker.
        """
        self._reader = reader
        self._at = at
        self._key = group_id.encode()
        self._timeout = timeout
        self._next = 0
        self._ahead: TopicPartition | None = None
        """The partition in which the group will continue after a resharding; both partitions are read until it does."""
        self._seen: dict[str, tuple[int, int]] = {}
        """Shard without its era -> place of the newest decision read; see `wakeroll_model.decision_order`. Rejections
        may be of
        other shards than the group's."""
        self._is_replaced = False

    @classmethod
    def of_group(
        cls, connection: Connection, consumer: Consumer, group_id: str, timeout: float, *, is_lasting: bool = False
    ) -> Self:
        """Find the partition of a group's decisions; see `DecisionLog`.

        Args:
            connection: the brokers.
            consumer: an `operators_consumer`, which the caller closes after the log.
            group_id: the group.
            timeout: seconds to wait for the broker.
            is_lasting: whether the log is followed for long, so that the id of its topic is checked now and then.

        Raises:
            NotReachable: there is no topic of decisions.
            KafkaException: no broker answers in time.
        """
        topic = connection.topics.decisions
        at = _partition_of(consumer, topic, group_id.encode(), timeout)
        if at is None:
            raise NotReachable(f"no topic {topic} at {connection.bootstrap}; is the control plane running?")
        watch = TopicWatch(connection) if is_lasting else None
        reader = LogReader(connection.operators_consumer, watch, borrowed=consumer)
        return cls(reader, at, group_id, timeout)

    def follow_the_group(self) -> None:
        """Query whether `wakeroll reshard` has given the group another partition; if so, continue there.

        The command adds the partitions first, and then appends the group's last decisions to the old one. So both are
        read until the new one has a decision about the group.

        Raises:
            NotReachable: no broker answers in time.
            KafkaException: the same.
        """
        at = _partition_of(self._reader.consumer, self._at.topic, self._key, self._timeout)
        if at is not None and at.partition not in (self._at.partition, self._ahead and self._ahead.partition):
            self._ahead = at
            self._assign(self._next)

    def from_the_start(self) -> None:
        """Begin with the oldest decision that still exists."""
        self._begin(OFFSET_BEGINNING)

    def from_now_on(self) -> None:
        """Begin with the first decision that is appended after this call."""
        self._begin(self._ends()[1])

    def until_now(self) -> Iterator[Said]:
        """Yield all decisions recorded up to now that were not returned yet.

        Raises:
            NotReachable: no record arrives in time, although the end is not reached.
        """
        first, end = self._ends()
        self._next = max(self._next, first)
        heard = time.monotonic()
        at = self._at
        while self._at is at and self._next < end:
            before = self._next
            yield from self.wait(SLICE_S)
            if self._next > before:
                heard = time.monotonic()
            elif time.monotonic() - heard > self._timeout:
                where = f"{self._at.topic}-{self._at.partition}"
                raise NotReachable(f"cannot read {where} from {before} to {end}: no record in {self._timeout:g} s")

    def wait(self, timeout: float) -> list[Said]:
        """Return the next decisions, in order; wait at most `timeout` seconds for a record.

        Raises:
            AccessDenied: the principal may not read the decisions.
        """
        try:
            messages = self._reader.take(BATCH, min(timeout, SLICE_S))
        except LogReplaced as problem:
            self._start_over(problem)
            return []
        said: list[Said] = []
        is_ahead = False
        for message in messages:
            if self._ahead is None or message.partition() == self._at.partition:
                said += self._read(message)
            else:
                is_ahead |= message.error() is None and message.key() == self._key
        return said + self._go_ahead() if is_ahead else said

    def was_replaced(self) -> bool:
        """Return whether the log was found to be replaced since the last call, so that decisions may be missing."""
        was, self._is_replaced = self._is_replaced, False
        return was

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()

    def _start_over(self, problem: LogReplaced) -> None:
        log.warning("%s; reading it from its start", problem)
        self._seen.clear()
        self._ahead, self._is_replaced, self._next = None, True, 0
        self._reader.renew({(self._at.topic, self._at.partition): OFFSET_BEGINNING})

    def _go_ahead(self) -> list[Said]:
        """Continue in the new partition; return the rest of the old one, which was decided earlier."""
        ahead, self._ahead = self._ahead, None
        assert ahead is not None, "it was read"
        self._assign(self._next)
        rest: list[Said] = []
        try:
            rest.extend(self.until_now())  # keeps what came before an error
        except (KafkaException, NotReachable) as problem:
            log.debug("the end of %s-%s is not reached: %s", self._at.topic, self._at.partition, problem)
            self._ahead = ahead  # it is read from its start again, which leads here again
            self._assign(self._next)
            return rest
        self._at = ahead
        self.from_the_start()
        return rest

    def _begin(self, offset: int) -> None:
        self._next = max(offset, 0)
        self._assign(offset)

    def _assign(self, offset: int) -> None:
        """Read the partition from an offset on, and the new partition, if there is one, from its start."""
        places = {(self._at.topic, self._at.partition): offset}
        if self._ahead is not None:
            places[self._ahead.topic, self._ahead.partition] = OFFSET_BEGINNING
        self._reader.begin(places)

    def _ends(self) -> tuple[int, int]:
        return ends_of(self._reader.consumer, self._at, self._timeout)

    def _read(self, message: Message) -> list[Said]:
        """Return the decision in a record if it is about this group; ignore formats of other versions."""
        error = message.error()
        if error is not None:
            if is_denied(error):
                raise denied(self._at.topic, "Read")
            if error.code() != KafkaError._PARTITION_EOF:
                log.debug("reading %s-%s: %s", self._at.topic, self._at.partition, error)
            return []
        offset = message.offset()
        assert offset is not None, "a message without an error has an offset"
        self._next = offset + 1
        if message.key() != self._key:
            return []
        try:
            decision = _decoder.decode(message.value() or b"")
        except UNREADABLE:
            return []
        shard, place = without_era(decision.shard), order_of(decision.shard, decision.seq)
        if place <= self._seen.get(shard, (0, 0)):
            return []
        self._seen[shard] = place
        return [decision]


def _partition_of(consumer: Consumer, topic: str, key: bytes, timeout: float) -> TopicPartition | None:
    """Query which partition of the decisions topic has the decisions of a group; None: there is no such topic."""
    partitions = len(Positions(consumer, timeout).queues(topic))
    return TopicPartition(topic, partition_of(key, partitions)) if partitions else None
