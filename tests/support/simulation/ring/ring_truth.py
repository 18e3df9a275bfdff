"""The true state of a world: what is in the log, what applications handled, and what must never be."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import msgspec
from confluent_kafka import Message

from tests.support.simulation.ring.ring_kafka import RingLog
from wakeroll.connection import Topics
from wakeroll.headers import TAGS_HEADER, pairs_of, texts_of
from wakeroll.origin import origin_of
from wakeroll.testing.memory_log import Stored, message_of
from wakeroll_model.decisions import BY_THE_LOG, AnyDecision, Assignment, Offset, OtherFilter
from wakeroll_model.events import Commit, Heartbeat, Mode
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import dead_letter_topic_of, has_failed_messages, retry_topic_of

Place = tuple[str, int, int, bytes]
"""Topic, partition and offset of a message where it was first delivered from, and its value: after a log has lost its
tail, other messages have the offsets of the lost ones."""

LONG_CALL_S = 4.0
"""A process without brokers may have a message of a queue that is another's if it handles it for longer than this."""
MOST_JOINS = 4
JOINS_S = 8.0
"""A client joins no more often than `MOST_JOINS` times in this time (s)."""
GROUPS = Topics().groups

_decode_beat = msgspec.json.Decoder(Heartbeat).decode
_decode_commit = msgspec.json.Decoder(Commit).decode


class Finding(AssertionError):
    """A claim that does not hold."""

    def __init__(self, rule: str, says: str) -> None:
        super().__init__(f"{rule}: {says}")
        self.rule = rule


@dataclass(eq=False)
class Call:
    """A message or a batch that an application handles."""

    process: str
    group_id: str
    queue: Queue
    places: list[Place]
    began_s: float
    frozen_until_s: float
    """Until when the process was frozen at the begin."""
    is_given_up: bool = False
    """Whether `run` has returned without it, after `stop_timeout`: its messages are delivered again."""


@dataclass
class GroupTruth:
    """What is true of one group, or of one member of a broadcasting group."""

    group_id: str
    client_id: str
    """The member of a broadcasting group; empty if it is a whole group."""
    last_tags: tuple[str, ...]
    """Tags that all members want in the end; none: all messages."""
    is_deployed: bool
    """Whether its members want other messages after a rolling deployment than before."""
    max_retries: int | None
    revoke_timeout_s: float
    handle_timeout_s: float
    topics: tuple[str, ...]
    handled: Counter[Place] = field(default_factory=Counter)
    """Place -> how often an application has handled the message since the last reset before it."""
    attempts: dict[Place, int] = field(default_factory=dict)
    """Place -> highest attempt that is in the retry topic."""
    dead: dict[Place, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Place -> numbers of its dead letters."""
    ended: set[Place] = field(default_factory=set)
    """Places of messages that were handled, or became dead letters, at any time."""
    highest: dict[Place, int] = field(default_factory=dict)
    """Place -> highest attempt that was ever in the retry topic."""
    skipped: dict[Queue, int] = field(default_factory=dict)
    """Queue -> offset to which an operator has skipped."""
    committed: dict[Queue, int] = field(default_factory=dict)
    tags: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Client -> tags that it wants."""
    former_tags: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Client -> tags that it wanted before it subscribed with others; only of clients that did."""
    others: dict[str, list[tuple[int, tuple[OtherFilter, ...]]]] = field(default_factory=lambda: defaultdict(list))
    """Client -> epochs of its assignments, each with the filters of other members that the client was sent."""
    sent: dict[tuple[str, Queue], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Client and queue -> epoch and offset of its commits, also of those that the coordinator has rejected."""
    resent: set[int] = field(default_factory=set)
    """Numbers of letters that an operator has sent again."""
    dropped: set[int] = field(default_factory=set)

    def may_receive(self, client_id: str, message: Message) -> bool:
        """Return whether a client wants a message, or wanted it: a change takes effect some time after the call."""
        former = self.former_tags.get(client_id)
        return _is_wanted(message, self.tags[client_id]) or (former is not None and _is_wanted(message, former))

    def must_receive(self, client_id: str, message: Message) -> bool:
        """Return whether a client wants a message, and always did."""
        return _is_wanted(message, self.tags[client_id]) and _is_wanted(
            message, self.former_tags.get(client_id, self.tags[client_id])
        )


class Truth:
    """Judges as the world goes on; the first finding ends it."""

    def __init__(self, log: RingLog) -> None:
        self.log = log
        self.groups: dict[str, GroupTruth] = {}
        """By audience: those who share the messages. That is a group, or a member of a broadcasting group."""
        self.calls: list[Call] = []
        self.findings: list[Finding] = []
        self.acknowledged: set[Place] = set()
        """Messages of producers that Kafka has acknowledged."""
        self.frozen: dict[str, list[tuple[float, float]]] = defaultdict(list)
        """Process -> begin and end of its suspensions."""
        self.cut: dict[str, list[tuple[float, float]]] = defaultdict(list)
        """Process -> begin and end of each time without brokers; the name "" is all processes."""
        self.repeats_allowed = True
        self.overlaps_allowed = False
        """Whether the coordinator has lost its state, which opens a window of the protocol."""
        self._lost: set[Place] = set()
        """Messages that the brokers have lost."""
        self._seen: dict[str, int] = {}
        self._instances: set[str] = set()
        self._joins: dict[str, list[float]] = defaultdict(list)
        log.listeners.append(self._stored)

    def find(self, rule: str, says: str) -> None:
        """Note that a claim does not hold."""
        self.findings.append(Finding(rule, f"at {self.log.scheduler.now_s:.2f} s: {says}"))

    # --- what applications do ---

    def change_tags(self, client_id: str, tags: tuple[str, ...]) -> None:
        """Note that a client subscribes with other tags, for all groups of readers that it belongs to."""
        for group in self.groups.values():
            if client_id in group.tags:
                group.former_tags[client_id], group.tags[client_id] = group.tags[client_id], tags

    def begin(self, process: str, group_id: str, queue: Queue, messages: list[Message]) -> Call:
        """Note that an application begins to handle messages of a queue."""
        scheduler = self.log.scheduler
        now_s = scheduler.now_s
        group, places = self.groups[group_id], [place_of(message) for message in messages]
        call = Call(process, group_id, queue, places, now_s, scheduler.frozen_until_s(process))
        for message in messages:
            if not has_failed_messages(queue.topic) and not group.may_receive(process, message):
                self.find("filter", f"{process} receives {place_of(message)}, which it does not want")
        for other in self._others(call):
            if not (self._is_excused(other, now_s) or self._is_excused(call, now_s) or self.overlaps_allowed):
                self.find(
                    "two readers",
                    f"{process} begins {queue} {places}, and {other.process} handles {other.places} "
                    f"since {other.began_s:.2f} s",
                )
        self.calls.append(call)
        return call

    def end(self, call: Call, handled: list[Message]) -> None:
        """Note that a call has ended, and which of its messages are handled."""
        if call in self.calls:
            self.calls.remove(call)
        group = self.groups[call.group_id]
        for message in handled:
            place = place_of(message)
            group.handled[place] += 1
            group.ended.add(place)
            if not self.repeats_allowed and group.handled[place] > 1:
                self.find("repeat", f"{call.process} handles {place} again in a world without faults")

    def give_up_calls(self, process: str) -> None:
        """Note that `run` has returned in a process; it has waited for its calls as long as it was told to."""
        for call in self.calls:
            call.is_given_up |= call.process == process

    def forget_calls(self, process: str) -> None:
        """Forget the calls of a process that was killed."""
        self.calls = [call for call in self.calls if call.process != process]

    def _others(self, call: Call) -> list[Call]:
        """Return the calls of other processes that have messages of the same queue."""
        return [
            other
            for other in self.calls
            if (other.group_id, other.queue) == (call.group_id, call.queue) and other.process != call.process
        ]

    def _is_excused(self, call: Call, now_s: float) -> bool:
        """Return whether another member may read the queue of a call that is not over; see docs/protocol.md."""
        if call.is_given_up:
            return True
        group = self.groups[call.group_id]
        lasts_s = now_s - call.began_s
        if lasts_s >= 0.9 * group.revoke_timeout_s - 0.3 or lasts_s >= group.handle_timeout_s:
            return True  # the window "timeout"
        if call.frozen_until_s >= call.began_s:
            return True
        if _overlaps(self.frozen[call.process], call.began_s - 0.01, now_s):
            return True  # the window "paused"
        cuts = [*self.cut[call.process], *self.cut[""]]
        return lasts_s > LONG_CALL_S and _overlaps(cuts, call.began_s - 60.0, now_s)

    # --- what the control plane decides ---

    def hear(self, decision: AnyDecision) -> None:
        """Judge a decision."""
        shard = decision.shard
        if decision.seq <= self._seen.get(shard, 0):
            return
        self._seen[shard] = decision.seq
        if isinstance(decision, Offset):
            audience = audience_of(decision.group_id, decision.mode, decision.client_id)
            if audience in self.groups:
                self._offset(decision, self.groups[audience])
        if isinstance(decision, Assignment) and decision.group_id in self.groups:
            others = tuple(decision.others or ())
            self.groups[decision.group_id].others[decision.client_id].append((decision.epoch, others))

    def _offset(self, decision: Offset, group: GroupTruth) -> None:
        queue, offset = decision.queue, decision.offset
        if decision.reset_by not in (None, BY_THE_LOG):
            before = group.committed.get(queue, 0)
            again = {*group.handled, *group.attempts, *group.dead}
            for place in again:
                if place[:2] == (queue.topic, queue.queue_id) and place[2] >= offset:
                    for known in (group.handled, group.attempts, group.dead):
                        known.pop(place, None)
            if offset > before:
                group.skipped[queue] = max(group.skipped.get(queue, 0), offset)
        elif decision.reset_by is None:
            partition = self.log.topics[queue.topic][queue.queue_id]
            begin = max(group.committed.get(queue, 0), partition.first)
            for record in partition.records[begin:offset]:
                if record.leader_epoch > (decision.leader_epoch or 0):
                    break  # the log has lost what was committed
                if not self._may_pass(decision, group, record):
                    self.find(
                        "committed unhandled",
                        f"{decision.client_id} commits {queue} at {offset}, and {record.offset} is not handled",
                    )
                    break
        group.committed[queue] = offset

    def _may_pass(self, commit: Offset, group: GroupTruth, record: Stored) -> bool:
        """Return whether a member may commit beyond a record: it is ended, or no member wants it that it knows of."""
        queue = commit.queue
        message = message_of(queue.topic, queue.queue_id, record)
        if self._is_ended(group, queue, message):
            return True
        if has_failed_messages(queue.topic) or group.must_receive(commit.client_id, message):
            return False
        if group.client_id:
            return True  # the other members have offsets of their own
        known = [(epoch, others) for epoch, others in group.others[commit.client_id] if epoch <= commit.epoch]
        newest = max((epoch for epoch, _ in known), default=-1)
        if any(epoch < newest and offset > record.offset for epoch, offset in group.sent[commit.client_id, queue]):
            return True  # it had committed the record before it knew of a filter that wants it
        return not all(any(_matches(message, other) for other in others) for epoch, others in known if epoch == newest)

    def _is_ended(self, group: GroupTruth, queue: Queue, message: Message) -> bool:
        """Return whether a message needs nothing more from where it is, if a member wants it."""
        origin, place = origin_of(message), place_of(message)
        if has_failed_messages(queue.topic) and (place in group.ended or group.highest.get(place, 0) > origin.attempt):
            return True  # also after a reset of the message's own queue
        return (
            bool(group.handled[place])
            or place in group.dead
            or group.attempts.get(place, 0) > origin.attempt
            or origin.offset < group.skipped.get(origin.queue, 0)
            or (message.offset() or 0) < group.skipped.get(queue, 0)
        )

    # --- the log ---

    def _stored(self, topic: str, number: int, record: Stored) -> None:
        if topic == GROUPS and b'"type":"heartbeat"' in (record.value or b""):
            self._beaten(record.value or b"")
        if topic == GROUPS and b'"type":"commit"' in (record.value or b""):
            self._committed(_decode_commit(record.value or b""))
        if not has_failed_messages(topic):
            return
        message = message_of(topic, number, record)
        origin = origin_of(message)
        for group in self.groups.values():
            if group.client_id not in ("", origin.client_id):
                continue
            if topic == dead_letter_topic_of(group.group_id) and (place := _origin_place(message)) is not None:
                group.dead[place].append(record.offset)
                group.ended.add(place)
            elif topic == retry_topic_of(group.group_id):
                place = place_of(message)
                for known in (group.attempts, group.highest):
                    known[place] = max(known.get(place, 0), origin.attempt)
                most = group.max_retries
                if most is not None and origin.attempt > most + 1:
                    self.find("attempts", f"attempt {origin.attempt} of {place}")

    def _committed(self, commit: Commit) -> None:
        """Note a commit that is in the log, before it is decided."""
        for entry in commit.offsets:
            if commit.group_id in self.groups:
                sent = self.groups[commit.group_id].sent[commit.client_id, entry.queue]
                sent.append((commit.epoch, entry.offset))

    def _beaten(self, value: bytes) -> None:
        """Judge whether a client joins again and again."""
        beat = _decode_beat(value)
        joins = self._joins[beat.client_id]
        if beat.instance_id in self._instances:
            return
        self._instances.add(beat.instance_id)
        joins.append(self.log.scheduler.now_s)
        if len(joins) > MOST_JOINS and joins[-1] - joins[-1 - MOST_JOINS] < JOINS_S:
            self.find("storm", f"{beat.client_id} has joined {MOST_JOINS + 1} times within {JOINS_S:g} s")

    def lose(self, topic: str, number: int, records: list[Stored]) -> None:
        """Note that the brokers have lost these records, even if they had acknowledged them."""
        self._lost.update(place_of(message_of(topic, number, record)) for record in records)

    # --- the end ---

    def left(self, audience: str) -> list[Place]:
        """Return the messages that an audience wants, and has neither handled nor given up.

        If its filter has changed, it may have passed others before.
        """
        group = self.groups[audience]
        found = []
        for topic in group.topics:
            for number, partition in enumerate(self.log.topics[topic]):
                queue = Queue(topic, "", number)
                begin = max(partition.first, group.committed.get(queue, 0) if group.is_deployed else 0)
                for record in partition.records[begin:]:
                    message = message_of(topic, number, record)
                    place = place_of(message)
                    if not (
                        group.handled[place]
                        or place in group.dead
                        or record.offset < group.skipped.get(queue, 0)
                        or not _is_wanted(message, group.last_tags)
                    ):
                        found.append(place)
        return found

    def check_acknowledged(self) -> None:
        """Judge whether each acknowledged message is in the log, where Kafka has said, unless the brokers lost it."""
        for topic, number, offset, value in self.acknowledged - self._lost:
            records = self.log.topics[topic][number].records
            if offset >= len(records) or records[offset].value != value:
                self.find("acknowledged", f"{topic}-{number} at {offset} is not the message that was acknowledged")


def audience_of(group_id: str, mode: Mode, client_id: str) -> str:
    """Return the name of those who share the messages of a member."""
    return group_id if mode == "clustering" else f"{group_id} for {client_id}"


def _is_wanted(message: Message, tags: tuple[str, ...]) -> bool:
    """Return whether a member with these tags wants a message."""
    return not tags or (texts_of(pairs_of(message)).get(TAGS_HEADER) or "") in tags


def _matches(message: Message, other: OtherFilter) -> bool:
    """Return whether a message matches the filter of another member."""
    tags = () if other.expression == "*" else tuple(other.expression.split(" || "))
    return other.topic in ("", message.topic()) and _is_wanted(message, tags)


def place_of(message: Message) -> Place:
    """Return where a message was first delivered from, and its value."""
    origin = origin_of(message)
    return origin.topic, origin.partition, origin.offset, message.value() or b""


def _origin_place(message: Message) -> Place | None:
    """Return where a dead letter comes from; None if it is a mark."""
    names = [name for name, _ in message.headers() or ()]
    return None if "wakeroll-settled" in names else place_of(message)


def _overlaps(spans: list[tuple[float, float]], begin_s: float, end_s: float) -> bool:
    return any(begin < end_s and end > begin_s for begin, end in spans)
