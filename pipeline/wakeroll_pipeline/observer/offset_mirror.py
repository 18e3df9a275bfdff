"""The mirror: it copies the committed offsets of groups to Kafka's own groups of the same names.

So tools that read Kafka's group offsets (kafka-consumer-groups, lag exporters, autoscalers) keep working, and consumers
that return to Kafka's own groups continue where their group was. The mirror reads the decisions and commits its
position like any Kafka consumer, so after a restart it continues where it was.

For a partition that a group cuts into slices, the mirror writes the lowest offset of its slices; see `SlicedOffsets`.

Two mirrors may run at once: both write the newest offsets. Before a mirror writes, it reads up to the present end of
the decisions, and then writes within `RECENT_MS`. So a mirror that was suspended or disconnected continues to read
first. Kafka has no conditional commits: a mirror that is suspended in the moment between its last check and the request
can write an older offset once. Within seconds after it woke up, it has read the newer one and corrects the offset.
"""

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from wakeroll.connection import Connection
from wakeroll.errors import NotReachable
from wakeroll.kafka_groups import KafkaGroups
from wakeroll.log_reader import LogReader, LogReplaced, TopicWatch
from wakeroll.monotonic_clock import now_ms
from wakeroll_model.config import MAX_RECORD_BYTES
from wakeroll_model.decision_order import order_of, without_era
from wakeroll_model.decisions import Offset
from wakeroll_model.events import UNREADABLE
from wakeroll_model.queue import Queue
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.metrics.observer_metrics import ObserverMetrics
from wakeroll_pipeline.observer.sliced_offsets import SlicedOffsets

log = logging.getLogger(__name__)

WRITE_EVERY_S = 5.0
"""Interval in which offsets are written (s): the default commit interval of Kafka's consumers."""
LOOK_EVERY_S = 10.0
"""Interval of the queries for the partitions of the topic (s), because `wakeroll reshard` adds partitions."""
RECENT_MS = 5_000
"""Time after a query of the end of the decisions within which a mirror that has read up to it may write offsets
(ms)."""
_AT_ONCE_GROUPS = 100
"""Number of groups whose offsets are written between two checks."""
_ANSWER_S = 10.0
_SLICE_S = 0.5
_AT_ONCE = 1_000
_KIND = b'"kind":"offset"'

_decode = msgspec.json.Decoder(Offset).decode


class _Pending(NamedTuple):
    """A committed offset that is not written yet."""

    offset: int
    """The offset; for a partition that is cut, it is not used, but that of `SlicedOffsets`."""
    places: tuple[tuple[int, int], ...]
    """Partition and offset of its decision; for a partition that is cut, those of the first unwritten decisions."""


class OffsetMirror:
    """Follows the decisions and writes the newest committed offsets of matching groups to Kafka."""

    def __init__(
        self, connection: Connection, groups: re.Pattern[str], stop: threading.Event, metrics: ObserverMetrics
    ) -> None:
        """Create the clients; nothing is read yet.

        Args:
            connection: the brokers, and the names of the topics.
            groups: matches the whole names of the groups to be mirrored.
            stop: when set, all waits end.
            metrics: receive the numbers of written offsets and of unread decisions.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        self._topic = connection.topics.decisions
        self._groups = groups
        self._own_group = f"{connection.topics.prefix}.offset-mirror"
        self._stop = stop
        self._metrics = metrics
        self._cluster = Cluster(connection, patience_s=_ANSWER_S, stop=stop)
        self._kafka = KafkaGroups(connection, _ANSWER_S)
        settings = {
            "group.id": self._own_group,
            # If the oldest decisions were deleted meanwhile, the remaining ones have newer offsets.
            "auto.offset.reset": "earliest",
            "message.max.bytes": MAX_RECORD_BYTES,
            "queued.max.messages.kbytes": 16 * 1024,
            "log_level": 0,
            "error_cb": lambda _: None,
        }
        self._reader = LogReader(lambda: connection.consumer(**settings), TopicWatch(connection))
        self._newest: dict[tuple[int, str], tuple[int, int]] = {}
        """Partition and shard without its era -> place of the newest offset read; see `wakeroll_model.decision_order`.
        Partitions are read in any order."""
        self._of_groups: dict[str, tuple[int, int]] = {}
        """Group -> place of its newest offset read: `wakeroll reshard` may have moved it to another partition."""
        self._look_due_s = 0.0
        """When the partitions of the topic are queried again, by the monotonic clock (s)."""
        self._ends: dict[int, int] = {}
        """Partition -> end up to which decisions must be read before the next write; empty before the brokers are
        queried."""
        self._asked_ms = 0
        """When the brokers were queried for these ends, by `monotonic_clock` (ms)."""
        self._read: dict[int, int] = {}
        """Partition -> offset of the next decision to read."""
        self._committed: dict[int, int] = {}
        """Partition -> committed position of the mirror."""
        self._pending: dict[str, dict[Queue, _Pending]] = {}
        """Group -> whole queue -> its offset that is not written yet."""
        self._sliced = SlicedOffsets()
        self._written: Counter[str] = Counter()
        """Group -> number of its offsets that were written since all offsets were last written."""
        self._silence = Trouble(log, "offsets are mirrored again")
        self._refusals: dict[str, str] = {}
        """Group -> the reason why Kafka refuses its offsets."""

    def run(self) -> None:
        """Work until `stop` is set. If the broker or the topic is missing, wait for it."""
        try:
            due_s = 0.0
            while not self._stop.is_set():
                self._metrics.health.beat("mirror")
                try:
                    self._begin()
                    caught_up = self._receive()
                    if caught_up and time.monotonic() >= self._look_due_s:
                        self._grow()
                    self._metrics.mirror.unread(self._unread())
                    if caught_up and time.monotonic() >= due_s:
                        before_s, due_s = due_s, time.monotonic() + WRITE_EVERY_S  # also if Kafka does not answer
                        if not self._write():
                            due_s = before_s
                    self._silence.ended()
                except LogReplaced as problem:
                    self._start_over(problem)
                except NotReachable as problem:
                    if not self._stop.is_set():
                        self._silence.began(f"offsets are not mirrored: {problem}; retrying")
                        self._stop.wait(_SLICE_S)
        finally:
            self._reader.close()

    def _start_over(self, problem: LogReplaced) -> None:
        """Read the present log from its start. Offsets that were read and not written yet are still written."""
        log.warning("%s; its decisions are mirrored from its start", problem)
        self._newest.clear()
        self._of_groups.clear()
        self._committed = {}
        self._read = dict.fromkeys(self._read, 0)
        for of_group in self._pending.values():
            for queue, kept in of_group.items():
                of_group[queue] = kept._replace(places=tuple((partition, 0) for partition, _ in kept.places))
        self._reader.renew({(self._topic, partition): OFFSET_BEGINNING for partition in self._read})

    def _begin(self) -> None:
        """Begin to read at the committed position, or at the oldest decision; do nothing if this has been done."""
        if self._read:
            return
        racks = self._cluster.racks([self._topic])[self._topic]
        if isinstance(racks, KafkaError) or not racks:
            raise NotReachable(f"there is no topic {self._topic}; `wakeroll run` creates it")
        partitions = [TopicPartition(self._topic, number) for number in sorted(racks)]
        try:
            places = self._reader.consumer.committed(partitions, timeout=_ANSWER_S)
        except KafkaException as problem:
            raise NotReachable(f"cannot read the position of the mirror: {problem.args[0].str()}") from None
        for place in places:
            if place.offset < 0:
                place.offset = OFFSET_BEGINNING
        self._reader.begin({(self._topic, place.partition): place.offset for place in places})
        self._read = {place.partition: max(place.offset, 0) for place in places}

    def _grow(self) -> None:
        """Begin to read partitions that `wakeroll reshard` has added, after the old ones were read to their ends."""
        self._look_due_s = time.monotonic() + LOOK_EVERY_S
        racks = self._cluster.racks([self._topic])[self._topic]
        if isinstance(racks, KafkaError):
            return
        if news := sorted(racks.keys() - self._read.keys()):
            log.info("%s has %d partitions now; the new ones are mirrored too", self._topic, len(racks))
            new = {(self._topic, partition): OFFSET_BEGINNING for partition in news}
            self._reader.begin({(self._topic, partition): offset for partition, offset in self._read.items()} | new)
            self._read |= dict.fromkeys(news, 0)

    def _receive(self) -> bool:
        """Read some decisions; return whether there are no more now.

        Offsets of a backlog may be older than those that another mirror, or this one before a restart, has written.
        """
        messages = self._reader.take(_AT_ONCE, _SLICE_S)
        errors = [error for message in messages if (error := message.error()) is not None]
        for message in messages:
            if message.error() is None:
                self._note(message)
        if errors:
            raise NotReachable(f"cannot read {self._topic}: {errors[0].str()}")
        return not messages or (len(messages) < _AT_ONCE and not self._unread())

    def _unread(self) -> int:
        """Return the number of unread decisions, up to the ends in the last answers of the brokers."""
        unread = 0
        for partition, offset in self._read.items():
            place = TopicPartition(self._topic, partition)
            unread += max(self._reader.consumer.get_watermark_offsets(place, cached=True)[1] - offset, 0)
        return unread

    def _note(self, message: Message) -> None:
        partition, offset, value = message.partition(), message.offset(), message.value() or b""
        assert partition is not None, "a message without an error has a partition and an offset"
        assert offset is not None, "a message without an error has a partition and an offset"
        self._read[partition] = offset + 1
        if _KIND not in value:
            return
        try:
            decision = _decode(value)
        except UNREADABLE:
            return
        shard, place = (partition, without_era(decision.shard)), order_of(decision.shard, decision.seq)
        # Delivery is at least once, and a repetition has older offsets.
        if place <= self._newest.get(shard, (0, 0)):
            return
        self._newest[shard] = place
        # In a broadcasting group every client has offsets of its own, which Kafka's groups cannot represent.
        if decision.mode != "clustering" or decision.group_id == self._own_group:
            return
        if self._groups.fullmatch(decision.group_id) and place > self._of_groups.get(decision.group_id, (0, 0)):
            self._of_groups[decision.group_id] = place
            self._keep(decision, partition, offset)

    def _keep(self, decision: Offset, partition: int, offset: int) -> None:
        """Keep the newest offset of a queue until it is written."""
        group_id, queue, whole = decision.group_id, decision.queue, decision.queue.whole
        of_group = self._pending.setdefault(group_id, {})
        known = of_group.get(whole)
        if queue.slices > 1 or (group_id, whole) in self._sliced:
            before = None if known is None else known.offset
            self._sliced.note(group_id, queue, None if decision.deleted else decision.offset, before)
            # The earlier decisions are needed too, and at most one of each partition is the first.
            places = {partition: offset} | dict(known.places if known is not None else ())
            of_group[whole] = _Pending(decision.offset, tuple(places.items()))
        elif not decision.deleted:
            of_group[queue] = _Pending(decision.offset, ((partition, offset),))
        else:  # one that was written stays in Kafka's group
            of_group.pop(queue, None)

    def _write(self) -> bool:
        """Write the pending offsets, then commit the position; return False if newer decisions must be read first."""
        groups = list(self._pending)
        for begin in range(0, len(groups), _AT_ONCE_GROUPS):
            wanted: dict[str, dict[Queue, int]] = {}
            texts: dict[tuple[str, Queue], str] = {}
            refused: dict[str, dict[Queue, KafkaError]] = {}
            for group_id in groups[begin : begin + _AT_ONCE_GROUPS]:
                if (problem := self._learn_slices(group_id)) is not None:
                    refused[group_id] = dict.fromkeys(self._pending[group_id], problem)
                wanted[group_id] = {} if problem is not None else self._wanted(group_id, texts)
            if not self._has_read_all():
                return False
            refused |= self._kafka.write({group_id: offsets for group_id, offsets in wanted.items() if offsets}, texts)
            for group_id, offsets in wanted.items():
                of_group = refused.get(group_id, {})
                self._written[group_id] += sum(1 for queue in offsets if queue not in of_group)
                self._settle(group_id, offsets, of_group)
        self._metrics.mirror.wrote(self._written, len(self._refusals))
        self._written.clear()
        self._ends = {}
        self._commit()
        return True

    def _learn_slices(self, group_id: str) -> KafkaError | None:
        """Read the offsets of slices that were written before this start; return why Kafka refuses that.

        Raises:
            NotReachable: no broker answered in time.
        """
        pending = self._pending[group_id]
        if self._sliced.is_unknown(group_id, pending):
            stored = self._kafka.stored(group_id)
            if isinstance(stored, KafkaError):
                return stored
            self._sliced.learn(group_id, pending, stored)
        return None

    def _wanted(self, group_id: str, texts: dict[tuple[str, Queue], str]) -> dict[Queue, int]:
        """Return the offsets that Kafka's group must have, and add their texts.

        Partitions without any earlier offset, and with slices without an offset, are left out.
        """
        found: dict[Queue, int] = {}
        for whole, kept in self._pending[group_id].items():
            if (group_id, whole) not in self._sliced:
                found[whole] = kept.offset
            elif (lowest := self._sliced.lowest(group_id, whole)) is not None:
                found[whole], texts[group_id, whole] = lowest
        return found

    def _has_read_all(self) -> bool:
        """Return whether this mirror had read all decisions at some time within the last `RECENT_MS`.

        An empty answer to a fetch is no proof of that, because connections may be lost after a suspension.
        """
        if not self._ends:
            self._asked_ms = now_ms()
            logs = self._cluster.all_offsets((self._topic, partition) for partition in self._read)
            # If all records of a partition were deleted, there is nothing to read.
            self._ends = {partition: end if first < end else 0 for (_, partition), (first, end) in logs.items()}
        if now_ms() - self._asked_ms > RECENT_MS:
            self._ends = {}
            return False
        return all(self._read[partition] >= end for partition, end in self._ends.items())

    def _settle(self, group_id: str, written: dict[Queue, int], refused: dict[Queue, KafkaError]) -> None:
        """Keep the offsets that are not known yet, or that Kafka may accept later, and log the refusals."""
        kept = {queue: error for queue, error in refused.items() if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART}
        for queue, offset in written.items():
            if queue not in refused:
                self._sliced.wrote(group_id, queue, offset)
        of_group = self._pending.pop(group_id)
        if left := {queue: one for queue, one in of_group.items() if queue in kept or queue not in written}:
            self._pending[group_id] = left
        if not kept:
            if self._refusals.pop(group_id, None):
                log.info("the offsets of group %s are mirrored again", group_id)
            return
        error = next(iter(kept.values()))
        reason = (
            "Kafka's group of this name has members" if error.code() == KafkaError.UNKNOWN_MEMBER_ID else error.str()
        )
        if self._refusals.get(group_id) != reason:
            self._refusals[group_id] = reason
            log.warning("the offsets of group %s are not mirrored: %s; retrying", group_id, reason)

    def _commit(self) -> None:
        """Commit the position up to which all offsets are written."""
        positions = dict(self._read)
        for partition, offset in self._unwritten():
            positions[partition] = min(positions[partition], offset)
        if positions == self._committed:
            return
        try:
            self._reader.consumer.commit(
                offsets=[TopicPartition(self._topic, *position) for position in positions.items()], asynchronous=False
            )
        except KafkaException as problem:
            raise NotReachable(f"cannot commit the position of the mirror: {problem.args[0].str()}") from None
        self._committed = positions

    def _unwritten(self) -> Iterable[tuple[int, int]]:
        for of_group in self._pending.values():
            for kept in of_group.values():
                yield from kept.places
