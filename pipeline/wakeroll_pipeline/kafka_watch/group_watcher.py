"""The process that records Kafka's own groups: it reads the records of their coordinator, or describes the groups."""

import logging
import re
import threading
import time
from collections.abc import Iterable, Mapping

from msgspec import Struct

from wakeroll.connection import Connection
from wakeroll.epoch_ms import now_ms
from wakeroll.errors import NotReachable
from wakeroll_model.coordinator_log.coordinator_records import TOPIC
from wakeroll_model.coordinator_log.kafka_events import (
    AnyKafkaEvent,
    Committed,
    Described,
    KafkaEvent,
    Progress,
)
from wakeroll_model.coordinator_log.kafka_names import group_name
from wakeroll_model.events import CommittedOffset
from wakeroll_model.queue import Queue
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.kafka_watch.commit_sampling import Mark, Step
from wakeroll_pipeline.kafka_watch.group_reader import AT_ONCE, GroupReader, Reading
from wakeroll_pipeline.kafka_watch.offsets_reader import NotReadable, OffsetsReader
from wakeroll_pipeline.kafka_watch.record_decoding import RecordDecoder
from wakeroll_pipeline.kafka_watch.sample_interval import SampleInterval
from wakeroll_pipeline.kafka_watch.topic_facts import TopicFacts
from wakeroll_pipeline.kafka_watch.watched_ledger import Told, WatchedLedger

log = logging.getLogger(__name__)

APPEND_S = 2.0
"""Time between two appends to the tables, if there are rows (s)."""
PAST_APPEND_S = 10.0
"""Time between two appends while the past is read (s), because each append has a fixed cost."""
APPEND_RECORDS = 50_000
"""Records after which an append follows at once."""
APPEND_BYTES = 32 * 1024 * 1024
"""Size of records after which an append follows at once."""
ROUTES_S = 5.0
"""Time between two queries of the topics of the groups (s)."""
IDS_S = 1.0
"""Minimum time between two queries because of an unknown topic id (s)."""
WITHOUT_MEMBERS_S = 60.0
"""Interval of descriptions of a group without members (s)."""
_SLICE_S = 0.2
_PAUSE_S = 1.0


class WatchRules(Struct, frozen=True, kw_only=True):
    """The groups to watch, and the interval of descriptions."""

    groups: re.Pattern[str]
    """Matches the whole names of Kafka's groups."""
    interval_s: float = 5.0
    """Time between two descriptions of a group, where `__consumer_offsets` cannot be read (s)."""


class GroupWatcher:
    """Watches all matching groups. For one thread."""

    def __init__(self, connection: Connection, ledger: WatchedLedger, rules: WatchRules, timeout: float = 10.0) -> None:
        """Create the clients.

        Args:
            connection: the brokers.
            ledger: the tables, which no other process writes.
            rules: the groups to watch.
            timeout: seconds to wait for a broker.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        self._connection = connection
        self._ledger = ledger
        self._rules = rules
        self._timeout = timeout
        self._topics = TopicFacts(connection, timeout)
        own = (f"{connection.topics.prefix}.offset-mirror",)
        self._decoder = RecordDecoder(self._topics, rules.groups, own)
        self._interval = SampleInterval()
        self._told: list[Told] = []
        self._waiting_records = 0
        """Number of records whose events wait for the next append."""
        self._waiting_bytes = 0
        self._marks: Mapping[int, Mark] = dict(ledger.marks)
        self._appended_s = time.monotonic()
        self._routed_s = -ROUTES_S
        self._asked_s = -IDS_S
        self._outage = Trouble(log, "Kafka's groups can be watched again")
        self.is_past_read = False
        """Whether all records that Kafka had at the start are recorded here."""

    def run(self, stop: threading.Event) -> None:
        """Watch until `stop` is set."""
        reader = OffsetsReader(self._connection, self._timeout, self._decoder.is_wanted)
        try:
            self._watch(reader, stop)
            self._take(reader.flush())
            self._append()  # not after an exception: a failed append must be followed by a new start
        finally:
            self._decoder.report()
            reader.close()
            self._ledger.close()

    def _watch(self, reader: OffsetsReader, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                try:
                    partitions = self._begin(reader)
                except NotReachable as problem:
                    self._outage.began(f"Kafka's groups are not watched: {problem}; retrying")
                    partitions = 0
                else:
                    self._outage.ended()
                if partitions:
                    log.info("reading the %d partitions of %s", partitions, TOPIC)
                    self._follow(reader, stop)
                else:
                    stop.wait(_PAUSE_S)
        except NotReadable as problem:
            log.warning(
                "%s cannot be read: %s; groups are described every %g s instead, without what happens in between; "
                "`wakeroll acls watcher=PRINCIPAL` prints the right that is missing",
                TOPIC,
                problem,
                self._rules.interval_s,
            )
            self._describe_all(stop)

    # --- by the record ---

    def _begin(self, reader: OffsetsReader) -> int:
        """Begin to read; return the number of partitions, 0 if the cluster has had no group yet.

        Raises:
            NotReadable: the topic is hidden, or this principal may not read it.
            NotReachable: no broker answered.
        """
        try:
            partitions = reader.begin(self._marks)
        except NotReadable as problem:
            # Kafka creates the topic for the first group.
            if not problem.is_missing:
                raise
            if not GroupReader(self._connection, self._timeout).list().is_empty:
                self.is_past_read = True
                return 0
            partitions = reader.begin(self._marks)
        self._marks = reader.marks
        self._begin_topics()
        return partitions

    def _follow(self, reader: OffsetsReader, stop: threading.Event) -> None:
        began_s = time.monotonic()
        self._interval.begin_past(reader.past_records)
        while not stop.is_set():
            self._interval.adjust()
            self._take(reader.read(_SLICE_S, self._interval.ms))
            is_past_read = reader.is_past_read
            if is_past_read and not self.is_past_read:
                self._append()
                self._interval.end_past()
                took_s = time.monotonic() - began_s
                log.info("the past of all groups is on record: %d records in %.1f s", reader.count, took_s)
            self.is_past_read |= is_past_read
            self._route_if_due(stop)
            if time.monotonic() - self._appended_s >= (APPEND_S if self.is_past_read else PAST_APPEND_S):
                self._append()

    def _take(self, steps: Iterable[Step]) -> None:
        """Decode steps; append when there are many."""
        for step in steps:
            with self._interval.counted():
                for records in step.groups:
                    self._hear(self._decoder.decode(records, self._topic_of))
                    self._waiting_records += len(records)
                    self._waiting_bytes += sum(map(len, records))
            if self._waiting_records >= APPEND_RECORDS or self._waiting_bytes >= APPEND_BYTES:
                self._append()

    def _begin_topics(self) -> None:
        """Query the ids of all topics, and note the topics of the recorded groups."""
        self._topics.learn_all(self._all_topics())
        for shard in self._ledger.shards.values():
            for name in shard.names():
                if (group := shard.group(name)) is not None:
                    topics = {*group.followed_topics, *(queue.topic for queue in group.offsets)}
                    self._topics.hear_all(topics)

    def _all_topics(self) -> list[str]:
        admin = self._connection.admin(error_cb=lambda _: None, log_level=0)
        with self._connection.answering(self._timeout):
            return sorted(admin.list_topics(timeout=self._timeout).topics)

    def _topic_of(self, topic_id: str) -> str:
        """Return the name of a topic; query it if it may be new."""
        name = self._topics.name_of(topic_id)
        if name == topic_id and time.monotonic() - self._asked_s >= IDS_S:
            self._asked_s = time.monotonic()
            try:
                self._topics.learn_all(self._all_topics())
            except NotReachable as problem:
                log.warning("the name of topic %s is not known: %s", topic_id, problem)
            name = self._topics.name_of(topic_id)
        return name

    def _hear(self, told: Iterable[Told]) -> None:
        for one in told:
            self._told.append(one)
            if isinstance(one.event, KafkaEvent):
                self._topics.hear(one.event)

    def _route_if_due(self, stop: threading.Event) -> None:
        """Append routes for the topics of the groups from the brokers' answers, when the past is read."""
        if not self.is_past_read or time.monotonic() - self._routed_s < ROUTES_S:
            return
        self._routed_s = time.monotonic()
        try:
            at_ms = now_ms()
            self._told += [Told(at_ms, route) for route in self._topics.routes()]
            self._outage.ended()
        except NotReachable as problem:
            if not stop.is_set():
                self._outage.began(f"the ends of topics are not known: {problem}; retrying")

    def _append(self) -> None:
        """Append the events that were read, and the progress of reading."""
        self._appended_s = time.monotonic()
        self._waiting_records = self._waiting_bytes = 0
        if not self._told:
            return
        with self._interval.counted():
            told, self._told = self._told, []
            if self._marks:
                told.append(Told(max(one.at_ms for one in told), _progress(self._marks)))
            self._ledger.append(told)
        self._appended_s = time.monotonic()

    # --- by descriptions ---

    def _describe_all(self, stop: threading.Event) -> None:
        reader = GroupReader(self._connection, self._timeout)
        descriptions = _Descriptions(self._rules)
        due_s = time.monotonic()
        self.is_past_read = True
        while not stop.is_set():
            try:
                if time.monotonic() >= due_s:
                    due_s = time.monotonic() + self._rules.interval_s
                    listing = reader.list()
                    due = descriptions.due(listing.is_empty)
                    for first in range(0, len(due), AT_ONCE):
                        if stop.is_set():
                            break
                        found = reader.read(dict(due[first : first + AT_ONCE]))
                        at_ms = now_ms()
                        for group, reading in found.items():
                            self._hear(Told(at_ms, one) for one in descriptions.take(group, reading))
                    self._route_if_due(stop)
                    self._append()
                self._outage.ended()
            except NotReachable as problem:
                self._outage.began(f"Kafka's groups are not watched: {problem}; retrying")
            stop.wait(_SLICE_S)


def _progress(marks: Mapping[int, Mark]) -> Progress:
    its = sorted(marks.items())
    return Progress(
        next_offsets={str(number): mark.next_offset for number, mark in its},
        read_offsets={str(number): mark.read_offset for number, mark in its if mark.read_offset > mark.next_offset},
    )


class _Descriptions:
    """The descriptions of groups so far: only differences from the last one are recorded."""

    def __init__(self, rules: WatchRules) -> None:
        self._rules = rules
        self._last: dict[str, tuple[object, dict[Queue, int]]] = {}
        """Kafka group -> its members and offsets by the last description."""
        self._due_s: dict[str, float] = {}
        self._problems: dict[str, str] = {}

    def due(self, listed: Mapping[str, bool]) -> list[tuple[str, bool]]:
        """Return the groups to describe now -> whether the group has no members."""
        now_s = time.monotonic()
        found = {name: empty for name, empty in listed.items() if name and self._rules.groups.fullmatch(name)}
        found |= {name: True for name, (members, _) in self._last.items() if members and name not in found}
        due = [(name, empty) for name, empty in sorted(found.items()) if not empty or now_s >= self._due_s.get(name, 0)]
        self._due_s |= {name: now_s + WITHOUT_MEMBERS_S for name, empty in due if empty}
        return due

    def take(self, group: str, reading: Reading) -> list[AnyKafkaEvent]:
        """Return the events of a description."""
        if reading.problem:
            if self._problems.get(group) != reading.problem:
                log.warning("group %s is not watched: %s", group, reading.problem)
            self._problems[group] = reading.problem
            return []
        self._problems.pop(group, None)
        name = group_name(group)
        raw = "" if name == group else group
        events: list[AnyKafkaEvent] = []
        known, offsets = self._last.get(group, ((), {}))
        members: object = known
        if reading.members is not None:
            members = reading.members
            if members != known:
                events.append(
                    Described(group_id=name, kafka_group=raw, assignor=reading.assignor, members=list(reading.members))
                )
        news = [
            CommittedOffset(queue=queue, offset=at)
            for queue, at in sorted(reading.offsets.items())
            if offsets.get(queue) != at
        ]
        gone = sorted(offsets.keys() - reading.offsets.keys())
        if news or gone:
            events.append(Committed(group_id=name, offsets=news, deleted=gone))
        self._last[group] = members, dict(reading.offsets)
        return events
