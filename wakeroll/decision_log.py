"""The record of decisions about one group: a partition of the decisions topic, from its start or from now on."""

import logging
import time
from collections.abc import Iterator

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from model.decision_order import order_of
from model.decisions import Assignment, Fenced, Membership, Offset, Rebalance, Rejected
from model.records import UNREADABLE
from wakeroll.connection import take
from wakeroll.errors import NotReachable
from wakeroll.partition_offsets import ends_of

log = logging.getLogger("wakeroll")

BATCH = 500
"""Records taken at once; a partition holds what is decided about many groups."""
SLICE_S = 0.5
"""How long one wait may keep Ctrl-C from being heard."""

Said = Assignment | Fenced | Membership | Offset | Rebalance | Rejected
"""The kinds of decisions that tell an operator something; others are passed over."""
_decoder: msgspec.json.Decoder[Said] = msgspec.json.Decoder(Said)


class DecisionLog:
    """A reader of the decisions about a group, each once: their delivery is at least once.  For one thread.

    What an older era still appends, once a newer one has decided something, is skipped.

    Methods raise KafkaException when the broker does not answer a question in time.
    """

    def __init__(self, consumer: Consumer, at: TopicPartition, group_id: str, timeout: float) -> None:
        """Prepare to read; `from_the_start` or `from_now_on` begins.

        Args:
            consumer: made with `auto.offset.reset` earliest: when the oldest records go while they are read, the rest
                is what there is.
            at: the partition of the decisions that the group belongs to.
            group_id: whose decisions.
            timeout: seconds to wait for the broker.
        """
        self._consumer = consumer
        self._at = at
        self._key = group_id.encode()
        self._timeout = timeout
        self._next = 0
        self._seen: dict[str, tuple[int, int]] = {}
        """Shard without its era -> the place of the newest decision that was read, see `model.decision_order`."""

    def from_the_start(self) -> None:
        """Begin with the oldest decision that is still there."""
        self._begin(OFFSET_BEGINNING)

    def from_now_on(self) -> None:
        """Begin with the first decision that is appended after this call."""
        self._begin(self._ends()[1])

    def until_now(self) -> Iterator[Said]:
        """Yield all that is on record by now and was not returned yet.

        Raises:
            NotReachable: nothing comes any more, though there is more.
        """
        first, end = self._ends()
        self._next = max(self._next, first)
        heard = time.monotonic()
        while self._next < end:
            before = self._next
            yield from self.wait(SLICE_S)
            if self._next > before:
                heard = time.monotonic()
            elif time.monotonic() - heard > self._timeout:
                where = f"{self._at.topic}-{self._at.partition}"
                raise NotReachable(f"{where} is not read on at {before} of {end}: no record in {self._timeout:g} s")

    def wait(self, timeout: float) -> list[Said]:
        """Return the next decisions, in order; wait at most `timeout` seconds for some record to come."""
        messages = take(self._consumer, BATCH, min(timeout, SLICE_S))
        return [decision for message in messages if (decision := self._read(message)) is not None]

    def _begin(self, offset: int) -> None:
        self._next = max(offset, 0)
        self._consumer.assign([TopicPartition(self._at.topic, self._at.partition, offset)])

    def _ends(self) -> tuple[int, int]:
        return ends_of(self._consumer, self._at, self._timeout)

    def _read(self, message: Message) -> Said | None:
        """Decode what is about this group; what cannot be read is not for this version."""
        error = message.error()
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                log.debug("reading %s-%s: %s", self._at.topic, self._at.partition, error)
            return None
        offset = message.offset()
        assert offset is not None, "a message without an error has an offset"
        self._next = offset + 1
        if message.key() != self._key:
            return None
        try:
            decision = _decoder.decode(message.value() or b"")
        except UNREADABLE:
            return None
        shard, place = decision.shard.rpartition(".")[0], order_of(decision.shard, decision.seq)
        if place <= self._seen.get(shard, (0, 0)):
            return None
        self._seen[shard] = place
        return decision
