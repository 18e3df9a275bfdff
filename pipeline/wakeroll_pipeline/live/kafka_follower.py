"""The thread that keeps the live model up to date: it reads the control topics and the decisions from the brokers."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from wakeroll.connection import Connection
from wakeroll.epoch_ms import now_ms
from wakeroll.errors import NotReachable, WakerollError
from wakeroll.log_reader import LogReader, LogReplaced, TopicWatch
from wakeroll.partition_offsets import ends_of
from wakeroll_model.config import MAX_RECORD_BYTES
from wakeroll_model.decisions import AnyDecision
from wakeroll_model.events import UNREADABLE
from wakeroll_model.feature_levels import UnknownLevel
from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.records import Record
from wakeroll_model.resharding import number_of
from wakeroll_model.signing import Signatures
from wakeroll_model.valid_keys import MissingKeys
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.live.decision_feed import HISTORY_MS, MOST_DECISIONS
from wakeroll_pipeline.live.ledger_reader import NOT_RECORDED, first_follower, newest_snapshots, read_recorded
from wakeroll_pipeline.live.live_model import LiveModel
from wakeroll_pipeline.live.shard_follower import ShardFollower
from wakeroll_pipeline.storage.place import Folder

log = logging.getLogger(__name__)

REFRESH_S = 1.0
"""Interval of updates of the summaries (s)."""
PROBE_S = 2.0
"""Time without records after which the follower checks whether the brokers can be reached (s)."""
LOOK_S = 10.0
"""Interval in which the topics are compared with those at the start (s)."""
HEAL_S = 30.0
"""Interval of the search for a snapshot, for a shard whose state differs from the coordinator's (s)."""
_SLICE_S = 0.2
_ANSWER_S = 1.0
_RETRY_S = 1.0
_AFTER_FAILURE_S = 5.0
_AT_ONCE = 2_000
_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)

_decode = msgspec.json.Decoder(AnyDecision).decode

Listener = Callable[[AnyDecision, int, int], object]
"""Receives a decision that was published since the start, its partition, and the log time of its append (epoch ms)."""


class KafkaFollower(threading.Thread):
    """Reads the log from the newest snapshots on, and continues after every outage of the brokers."""

    def __init__(
        self,
        connection: Connection,
        model: LiveModel,
        signatures: Signatures,
        warehouse: Folder | None = None,
        listener: Listener | None = None,
        beat: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Create the clients; nothing is read before `start`.

        Args:
            connection: the brokers.
            model: receives the records; no other thread may apply any.
            signatures: verify signed records.
            warehouse: folder of the tables, for snapshots; None: the log is read from its start.
            listener: receives the new decisions, in this thread.
            beat: receives the name of this thread in each round, even if the brokers cannot be reached.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        super().__init__(name="kafka-follower", daemon=True)
        self._topics = connection.topics
        self._model = model
        self._signatures = signatures
        self._warehouse = warehouse
        self._listener = listener
        self._beat = beat
        self._stop_requested = threading.Event()
        self._cluster = Cluster(connection, patience_s=PROBE_S, stop=self._stop_requested)
        settings = {
            "message.max.bytes": MAX_RECORD_BYTES,
            "queued.max.messages.kbytes": 16 * 1024,
            "reconnect.backoff.max.ms": 1_000,
            "topic.metadata.refresh.interval.ms": 10_000,
            "fetch.wait.max.ms": 200,
            "log_level": 0,
            "error_cb": lambda _: None,
        }
        self._reader = LogReader(lambda: connection.consumer(**settings), TopicWatch(connection), self._restart)
        self._next: dict[ControlPartition, int] = {}
        """Topic and partition -> offset of the next record to read, for control topics and decisions."""
        self._ends: dict[ControlPartition, int] = {}
        """End offsets at the start."""
        self._starts: dict[ControlPartition, int] = {}
        self._is_recreated = False
        """Whether a control topic was recreated, or lost its tail, so that existing snapshots are of a former log."""
        self._has_grown = False
        """Whether the number of partitions has changed since the start."""
        self._received_s = time.monotonic()
        self._looked_s = time.monotonic()
        self._healed_s = time.monotonic()
        self._trouble_since_s: float | None = None
        self._outage = Trouble(log, "the log can be read again")

    def stop(self) -> None:
        """End the thread, and wait for its end."""
        self._stop_requested.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """Follow the log until `stop`."""
        refreshed_s, is_caught_up = 0.0, False
        try:
            while not self._stop_requested.is_set():
                self._beat(self.name)
                try:
                    self._begin()
                    self._receive()
                    self._probe()
                except LogReplaced as problem:
                    log.warning("%s; the logs are read from their starts", problem)
                    self._start_over()
                except WakerollError as problem:
                    self._in_trouble(str(problem))
                    self._stop_requested.wait(_RETRY_S)
                except (UnknownLevel, MissingKeys) as problem:
                    # To go on at an older level, or with other keys, would show other owners than the coordinator's.
                    self._in_trouble(str(problem))
                    self._forget_places()
                    self._stop_requested.wait(_AFTER_FAILURE_S)
                except Exception as failure:
                    # A page that stands still and calls itself live would be worse than one that begins again.
                    log.exception("the live model failed and begins again")
                    self._in_trouble(f"this process failed and begins again ({type(failure).__name__}); see its log")
                    self._forget_places()
                    self._stop_requested.wait(_AFTER_FAILURE_S)
                now_s = time.monotonic()
                was_caught_up, is_caught_up = is_caught_up, self.is_caught_up
                if now_s - refreshed_s >= REFRESH_S or was_caught_up != is_caught_up:
                    refreshed_s = now_s
                    self._heal(now_s)
                    self._tidy(now_s)
        finally:
            self._reader.close()

    @property
    def is_caught_up(self) -> bool:
        """Whether the log has been read to the ends that it had at the start."""
        with self._model.lock:
            return bool(self._next) and all(self._next.get(place, 0) >= end for place, end in self._ends.items())

    @property
    def progress(self) -> int:
        """Sum of the offsets that have been reached; it changes as long as records arrive."""
        with self._model.lock:
            return sum(self._next.values())

    # --- the start ---

    def _begin(self) -> None:
        """Find the topics, and read from the newest snapshots on; do nothing if this has been done."""
        if self._next:
            return
        partitions = self._partitions()
        places = [(topic, number) for topic in self._topics.control for number in range(partitions)]
        decisions = [(self._topics.decisions, number) for number in range(partitions)]
        from_ms = now_ms() - HISTORY_MS
        warehouse = None if self._is_recreated else self._warehouse
        recorded = NOT_RECORDED if warehouse is None else read_recorded(warehouse, from_ms)
        offsets = self._cluster.all_offsets([*places, *decisions])
        # The ends were queried after the snapshots were read. So a snapshot behind the end is of a log that is gone.
        snapshots = {place: one for place, one in recorded.snapshots.items() if one.offset < offsets[place][1]}
        known = {number for topic, number in snapshots if topic == self._topics.groups}
        since = self._cluster.since(
            {place: recorded.until_ms.get(place[1], from_ms) if place[1] in known else from_ms for place in decisions}
        )
        if any(number_of(found.body) != partitions for found in recorded.snapshots.values()):
            raise NotReachable("the newest snapshots have another number of partitions: `wakeroll reshard` is at work")
        with self._model.lock:
            self._model.partitions = partitions
            for place in places:
                first, end = offsets[place]
                found = snapshots.get(place)
                if found is None and self._has_grown:
                    # The log before the change was decided with another number: only members can be learned from it.
                    new = ShardFollower(place, partitions, self._signatures, learns_era=1, first=first)
                else:
                    era = 1 if found is None else found.era
                    new = first_follower(place, partitions, self._signatures, found, era, first)
                self._put(new, first)
                self._ends[place], self._starts[place] = end, self._next[place]
            for place in decisions:
                first, end = offsets[place]
                self._next[place] = max(first, since.get(place, first), end - MOST_DECISIONS // partitions)
                self._ends[place] = end
            for decision, number, published_ms in recorded.decisions:
                if number in known:
                    self._model.note_decision(number, decision, published_ms)
        self._assign()
        log.info("following %s and %s in %d partitions", *self._topics.control, partitions)

    def _partitions(self) -> int:
        """Return the number of partitions of the control topics.

        Raises:
            NotReachable: a topic does not exist or cannot be described, or their numbers differ.
        """
        topics = (*self._topics.control, self._topics.decisions)
        numbers = {}
        for topic, racks in self._cluster.existing(topics).items():
            numbers[topic] = len(racks)
            self._reader.identify(topic, racks.topic_id)
        if len(set(numbers.values())) > 1:
            found = ", ".join(f"{topic} has {number}" for topic, number in numbers.items())
            raise NotReachable(f"the control topics have different numbers of partitions: {found}")
        number = numbers[self._topics.groups]
        if self._next and number != self._model.partitions:
            log.info("the control topics have %d partitions now; their logs are read from new snapshots", number)
            self._has_grown = True
            self._forget_places()
        return number

    def _forget_places(self) -> None:
        """Forget how far the log was read, so that `_begin` begins again."""
        for offsets in (self._next, self._ends, self._starts):
            offsets.clear()

    def _start_over(self) -> None:
        """Drop the state, so that `_begin` begins again with the present logs, whose decisions count from 1."""
        self._is_recreated = True
        self._forget_places()
        self._reader.renew({})
        with self._model.lock:
            self._model.feed.forget_order()

    def _put(self, follower: ShardFollower, first: int) -> None:
        self._model.put_shard(follower)
        self._next[follower.place] = max(follower.next_offset, first)

    def _assign(self) -> None:
        # A client that has queried a partition of each topic receives the first records in 4 ms instead of 600.
        for topic in sorted({topic for topic, _ in self._next}):
            with suppress(KafkaException):
                ends_of(self._reader.consumer, TopicPartition(topic, 0), _ANSWER_S)
        self._reader.begin(self._next)

    # --- the log ---

    def _receive(self) -> None:
        messages = self._reader.take(_AT_ONCE, _SLICE_S)
        if not messages:
            return
        now_s = time.monotonic()
        with self._model.lock:
            for message in messages:
                error = message.error()
                if error is None:
                    self._received_s = now_s
                    self._read(message, now_s)
                elif error.code() in _GONE:
                    self._looked_s = -LOOK_S  # the next probe finds out

    def _read(self, message: Message, now_s: float) -> None:
        place, offset, value = _place(message), message.offset(), message.value()
        assert offset is not None, "a message without an error has an offset"
        self._next[place] = offset + 1
        at_ms = message.timestamp()[1]
        if place[0] != self._topics.decisions:
            key = message.key()
            self._model.apply(Record(*place, offset, at_ms, _bytes(key), _bytes(value)), now_s)
            if offset < self._ends[place]:
                self._date_back(place, at_ms, now_s)
            return
        try:
            decision = _decode(value or b"")
        except UNREADABLE:
            return
        is_new = self._model.note_decision(place[1], decision, at_ms)
        if is_new and self._listener is not None and offset >= self._ends[place]:
            self._listener(decision, place[1], at_ms)

    def _date_back(self, place: ControlPartition, at_ms: int, now_s: float) -> None:
        """Set the age of a tick that was in the log at the start: it does not prove that an observer runs now."""
        follower = self._model.shards[place]
        if follower.tick_received_s == now_s:
            follower.tick_received_s = now_s - max(now_ms() - at_ms, 0) / 1_000

    def _restart(self, place: ControlPartition, first: int) -> None:
        """Continue in a partition whose next records were deleted."""
        log.warning("%s-%s continues at %d: the log has no record %d", *place, first, self._next[place])
        follower = self._model.shards.get(place)
        if follower is None:
            self._next[place] = first
        else:
            body, era = follower.shard.body(), follower.progress.era
            with self._model.lock:
                self._put(self._learner(place, body, era, first), first)

    def _learner(self, place: ControlPartition, body: bytes, era: int, first: int) -> ShardFollower:
        return ShardFollower(place, self._model.partitions, self._signatures, body=body, learns_era=era, first=first)

    # --- from time to time ---

    def _probe(self) -> None:
        """Check whether the brokers can be reached and have the same topics, if a check is due."""
        now_s = time.monotonic()
        if now_s - self._received_s >= PROBE_S or now_s - self._looked_s >= LOOK_S:
            self._partitions()
            self._received_s = self._looked_s = time.monotonic()
        self._trouble_since_s = None
        self._outage.ended()

    def _in_trouble(self, text: str) -> None:
        self._outage.began(f"cannot follow the log: {text}; retrying")
        if self._trouble_since_s is None:
            self._trouble_since_s = time.monotonic()
        self._model.facts = msgspec.structs.replace(
            self._model.facts, trouble=text, trouble_ms=round((time.monotonic() - self._trouble_since_s) * 1_000)
        )

    def _heal(self, now_s: float) -> None:
        """Replace shards whose coordinator began a later era, or decided differently, by snapshots of its state."""
        later = dict(self._model.later_eras)
        doubtful = {
            one.name: one.progress.era
            for one in self._model.shards.values()
            if one.is_learning or one.progress.is_different
        }
        if not later and (not doubtful or now_s - self._healed_s < HEAL_S):
            return
        self._healed_s = now_s
        wanted = doubtful | later
        snapshots = {} if self._warehouse is None else newest_snapshots(self._warehouse, wanted)
        replaced = False
        for place, follower in list(self._model.shards.items()):
            if follower.name not in wanted:
                continue
            era, found = wanted[follower.name], snapshots.get(place)
            if found is not None and found.era == era and self._is_newer(follower, found.offset, era):
                new = ShardFollower(place, self._model.partitions, self._signatures, body=found.body)
                log.info("%s continues from the snapshot at %d of era %d", follower.name, found.offset, era)
            elif follower.name in later:
                new = self._learner(place, follower.shard.body(), era, follower.next_offset)
                log.info("%s has begun era %d; its state is learned from the log", follower.name, era)
            else:
                continue
            with self._model.lock:
                self._put(new, 0)
            replaced = True
        if replaced:
            self._assign()

    def _is_newer(self, follower: ShardFollower, offset: int, era: int) -> bool:
        """Return whether a snapshot is newer than the start of a follower, or of a later era."""
        return follower.is_learning or follower.progress.era != era or offset > follower.progress.began

    def _tidy(self, now_s: float) -> None:
        """Update the facts about the progress of reading, and the summaries."""
        model = self._model
        with model.lock:
            for follower in model.shards.values():
                follower.encode_if_due(now_s)
        control = self._starts
        read = sum(min(self._next[place], self._ends[place]) - start for place, start in control.items())
        in_trouble = self._trouble_since_s is not None
        model.facts = msgspec.structs.replace(
            model.facts,
            is_begun=bool(self._next),
            read=max(read, 0),
            to_read=sum(max(self._ends[place] - start, 0) for place, start in control.items()),
            trouble=model.facts.trouble if in_trouble else "",
            trouble_ms=round((now_s - self._trouble_since_s) * 1_000) if self._trouble_since_s is not None else 0,
        )
        model.refresh()


def _place(message: Message) -> ControlPartition:
    topic, partition = message.topic(), message.partition()
    assert topic is not None, "a message of an assigned partition has a topic"
    assert partition is not None, "a message of an assigned partition has a partition"
    return topic, partition


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
