"""The true state of a world: what is in the log, what applications handled, and what must never be."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from confluent_kafka import Message

from tests.support.simulation.ring.ring_kafka import RingLog
from tests.support.simulation.ring.ring_subscriptions import (
    APPEARING,
    Beaten,
    Choices,
    Wanted,
    filter_at,
    is_wanted,
    matches,
)
from wakeroll.connection import Topics
from wakeroll.origin import origin_of
from wakeroll.testing.memory_log import Stored, message_of
from wakeroll_model.decisions import BY_THE_LOG, BY_THE_SLICES, AnyDecision, Assignment, Offset, OtherFilter
from wakeroll_model.events import Commit, Heartbeat, Mode
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import dead_letter_topic_of, has_failed_messages, retry_topic_of
from wakeroll_model.slices import cut, key_of_offset, slice_of

Place = tuple[str, int, int, bytes]
"""Topic, partition and offset of a message where it was first delivered from, and its value: after a log has lost its
tail, other messages have the offsets of the lost ones."""

LONG_CALL_S = 4.0
"""A process without brokers may have a message of a queue that is another's if it handles it for longer than this."""
MOST_JOINS = 4
JOINS_S = 8.0
"""A client joins no more often than `MOST_JOINS` times in this time (s)."""
GROUPS = Topics().groups
PLAIN = ("orders", "returns", *APPEARING)
"""Topics of messages, without those of failed ones."""
FINEST = 8
"""Largest number of slices in a world: a message belongs to one of so many cells of its partition."""

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
    cells: frozenset[Queue]
    """Parts of the queue that its messages are in."""
    keys: frozenset[bytes]
    """Keys of its messages; none of messages of the retry topic, which have no order."""
    began_s: float
    frozen_until_s: float
    """Until when the process was frozen at the begin."""
    is_given_up: bool = False
    """Whether `run` has returned without it, after `stop_timeout`: its messages are delivered again."""


@dataclass(frozen=True)
class Known:
    """What an assignment tells a member."""

    epoch: int
    others: tuple[OtherFilter, ...]
    """Filters of other members."""
    own: Beaten | None
    """What the coordinator knew that the member subscribes itself; others may have the same filter."""
    queues: frozenset[Queue]

    def wants(self, message: Message) -> bool:
        """Return whether another member wants a message, as far as the member knows."""
        tags = None if self.own is None else self.own.tags(message.topic() or "")
        return (tags is not None and is_wanted(message, tags)) or any(matches(message, one) for one in self.others)


@dataclass
class GroupTruth:
    """What is true of one group, or of one member of a broadcasting group."""

    group_id: str
    client_id: str
    """The member of a broadcasting group; empty if it is a whole group."""
    last: Wanted
    """What all members subscribe in the end."""
    changes: bool
    """Whether members subscribe something else than others, or than before."""
    max_retries: int | None
    revoke_timeout_s: float
    handle_timeout_s: float
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
    """Cell -> offset to which an operator has skipped."""
    set_to: dict[Queue, int] = field(default_factory=dict)
    """Cell -> offset that an operator has set last."""
    committed: dict[Queue, int] = field(default_factory=dict)
    """Cell -> offset below which its messages are processed."""
    in_order: dict[tuple[Queue, bytes], int] = field(default_factory=dict)
    """Partition and key -> offset below which all messages of the key were handed out, or nobody wants them."""
    begun: set[Place] = field(default_factory=set)
    """Places of messages that were handed out at any time."""
    known: dict[str, list[Known]] = field(default_factory=lambda: defaultdict(list))
    """Client -> what its assignments told it."""
    sent: dict[tuple[str, Queue], list[tuple[int, int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Client and queue -> moment, epoch and offset of its commits in the log, also of those that the coordinator has
    rejected."""
    resent: set[int] = field(default_factory=set)
    """Numbers of letters that an operator has sent again."""
    dropped: set[int] = field(default_factory=set)


class Truth:
    """Judges as the world goes on; the first finding ends it."""

    def __init__(self, log: RingLog, *, is_sliced: bool) -> None:
        self.log = log
        self.is_sliced = is_sliced
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
        self._truncated: set[Queue] = set()
        """Partitions that have lost their tails."""
        self._cells: dict[Place, Queue] = {}
        """Place of a message -> the part of its partition that it is in."""
        self._seen: dict[str, int] = {}
        self._instances: set[str] = set()
        self.newest_instance: dict[str, str] = {}
        """Client -> its newest instance that is in the log."""
        self._joins: dict[str, list[float]] = defaultdict(list)
        self.choices: dict[str, Choices] = {}
        """Client -> what its newest consumer has subscribed."""
        self._beats: dict[tuple[str, str], list[Beaten]] = defaultdict(list)
        """Group and client -> its heartbeats in the log, of which each one subscribes something else than before."""
        self._moment = 0
        log.listeners.append(self._stored)

    def moment(self) -> int:
        """Return a number above all that were returned before."""
        self._moment += 1
        return self._moment

    def find(self, rule: str, says: str) -> None:
        """Note that a claim does not hold."""
        self.findings.append(Finding(rule, f"at {self.log.scheduler.now_s:.2f} s: {says}"))

    # --- what applications do ---

    def begin(
        self, process: str, group_id: str, queue: Queue, messages: list[Message], *, asked: int, in_turn: bool = False
    ) -> Call:
        """Note that an application begins to handle messages of a queue.

        `asked`: the moment at which it called for them; 0 if it did not. `in_turn`: whether messages of a key must be
        handled one after the other, as `run` does.
        """
        scheduler = self.log.scheduler
        now_s = scheduler.now_s
        places = [place_of(message) for message in messages]
        cells = frozenset(self.cell_of(queue, message) for message in messages)
        is_ordered = not has_failed_messages(queue.topic)
        keys = frozenset(_key_of(message) for message in messages if is_ordered and message.key() is not None)
        call = Call(process, group_id, queue, places, cells, keys, now_s, scheduler.frozen_until_s(process))
        for message in messages if is_ordered else ():
            self._check_subscribed(process, queue, message, asked)
        if is_ordered:
            self._check_order(call, messages)
        for other in self._others(call, in_turn):
            if not (self._is_excused(other, now_s) or self._is_excused(call, now_s) or self.overlaps_allowed):
                self.find(
                    "two readers" if process != other.process else "two calls",
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
            # In broadcasting, a failed message is retried in place; those behind it come again if the filter changes.
            may_repeat = self.repeats_allowed or (bool(group.client_id) and group.changes)
            if not may_repeat and group.handled[place] > 1:
                self.find("repeat", f"{call.process} handles {place} again in a world without faults")

    def give_up_calls(self, process: str) -> None:
        """Note that `run` has returned in a process; it has waited for its calls as long as it was told to."""
        for call in self.calls:
            call.is_given_up |= call.process == process

    def forget_calls(self, process: str) -> None:
        """Forget the calls of a process that was killed."""
        self.calls = [call for call in self.calls if call.process != process]

    def _check_subscribed(self, process: str, queue: Queue, message: Message, asked: int) -> None:
        """Judge whether an application may receive a message: it has the queue, and wants the message by now."""
        choices = self.choices[process]
        assigned = choices.assigned_since(queue, _key_of(message))
        if assigned is None:
            self.find("not assigned", f"{process} receives {place_of(message)}, of a queue that it was not assigned")
        elif not any(is_wanted(message, tags) for tags in choices.filters(queue.topic, max(assigned, asked))):
            self.find("filter", f"{process} receives {place_of(message)}, which it does not want")

    def _check_order(self, call: Call, messages: list[Message]) -> None:
        """Judge whether all messages of a key that come before these ones have been handed out before."""
        group, records = self.groups[call.group_id], self.log.topics[call.queue.topic][call.queue.queue_id].records
        for message, place in zip(messages, call.places, strict=True):
            group.begun.add(place)
            if message.key() is None or group.changes or call.queue in self._truncated:
                continue  # there is no order, or not this one
            key, offset = _key_of(message), place[2]
            first = max(group.in_order.get((call.queue, key), 0), group.skipped.get(self._cells[place], 0))
            for record in records[first:offset]:
                before = message_of(call.queue.topic, call.queue.queue_id, record)
                if record.key == key and not (
                    place_of(before) in group.begun
                    or record.offset < self.log.topics[call.queue.topic][call.queue.queue_id].first
                    or not is_wanted(before, group.last.tags)
                ):
                    self.find("order", f"{call.process} begins {place} before {place_of(before)}, of the key {key!r}")
            group.in_order[call.queue, key] = max(first, offset + 1)

    def _others(self, call: Call, in_turn: bool) -> list[Call]:
        """Return the calls that have messages of the same queue or slice.

        These are calls of other processes, and with `in_turn` those of this process that have messages of a key of it.
        """
        return [
            other
            for other in self.calls
            if (other.group_id, other.queue) == (call.group_id, call.queue)
            and ((in_turn and call.keys & other.keys) if other.process == call.process else call.cells & other.cells)
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
            queues = frozenset(one.queue for one in decision.queues)
            known = Known(decision.epoch, tuple(decision.others or ()), self._beaten(decision), queues)
            self.groups[decision.group_id].known[decision.client_id].append(known)

    def _beaten(self, decision: Assignment) -> Beaten | None:
        """Return what the coordinator knew that a client subscribes, when it assigned its queues; None if nothing."""
        beats, cause = self._beats[decision.group_id, decision.client_id], decision.cause
        known = [beat for beat in beats if beat.partition == cause.partition and beat.offset <= cause.offset]
        former = (beat for beat in reversed(beats) if beat.partition != cause.partition)
        return known[-1] if known else next(former, None)

    def _offset(self, decision: Offset, group: GroupTruth) -> None:
        queue, offset, cells = decision.queue, decision.offset, self.cells(decision.queue)
        before = {cell: group.committed.get(cell, 0) for cell in cells}
        if decision.deleted:
            return  # of a slice that others replace
        if decision.reset_by == BY_THE_SLICES:
            if offset > min(before.values()) and queue.whole not in self._truncated:
                self.find("a new slice", f"{queue} begins at {offset}, and of {before} not all is processed")
            return
        if decision.reset_by not in (None, BY_THE_LOG):
            self._reset(decision, group, before)
        elif decision.reset_by is None:
            self._check_commit(decision, group, before)
            if queue.whole not in self._truncated:
                # An owner of several former slices commits what is true of all of them.
                group.committed |= {cell: max(offset, known_offset) for cell, known_offset in before.items()}
                return
        group.committed |= dict.fromkeys(cells, offset)

    def _reset(self, decision: Offset, group: GroupTruth, before: Mapping[Queue, int]) -> None:
        """Note that an operator has set an offset: what was handled from there on must be handled again."""
        offset = decision.offset
        group.set_to |= dict.fromkeys(before, offset)
        for place in {*group.handled, *group.attempts, *group.dead}:
            if self._cells.get(place) in before and place[2] >= offset:
                for known in (group.handled, group.attempts, group.dead):
                    known.pop(place, None)
        for cell, known_offset in before.items():
            if offset > known_offset:
                group.skipped[cell] = max(group.skipped.get(cell, 0), offset)

    def _check_commit(self, decision: Offset, group: GroupTruth, before: Mapping[Queue, int]) -> None:
        """Judge whether everything is handled that a member commits."""
        queue, offset = decision.queue, decision.offset
        partition = self.log.topics[queue.topic][queue.queue_id]
        for record in partition.records[max(min(before.values()), partition.first) : offset]:
            if record.leader_epoch > (decision.leader_epoch or 0):
                return  # the log has lost what was committed
            cell = self.cell_of(queue.whole, message_of(queue.topic, queue.queue_id, record))
            if record.offset >= before.get(cell, offset) and not self._may_pass(decision, group, record):
                self.find(
                    "committed unhandled",
                    f"{decision.client_id} commits {queue} at {offset}, and {record.offset} is not handled",
                )
                return

    # --- parts of queues ---

    def cells(self, queue: Queue) -> list[Queue]:
        """Return the parts of a queue that no change of the number of slices divides; without slices, itself."""
        is_cut = self.is_sliced and not has_failed_messages(queue.topic)
        return cut(queue, FINEST) if is_cut else [queue]

    def cell_of(self, queue: Queue, message: Message) -> Queue:
        """Return the part of a whole queue that a message of it is in."""
        cells = self.cells(queue)
        return cells[slice_of(_key_of(message), len(cells))]

    def _may_pass(self, commit: Offset, group: GroupTruth, record: Stored) -> bool:
        """Return whether a member may commit beyond a record: it is ended, or no member wants it that it knows of.

        It knows its own subscription when the heartbeat with it is in the log before the commit. Of the other members,
        it knows the filters in its newest assignment, and in the newest one with this queue, because the next may be
        about other topics; and that they may have the filter by which it was assigned then. Whatever it had committed
        before it knew a filter may be lost to that filter.
        """
        queue = commit.queue
        message = message_of(queue.topic, queue.queue_id, record)
        if self._is_ended(group, queue, message):
            return True
        if has_failed_messages(queue.topic):
            return False
        sent = group.sent[commit.client_id, self.cell_of(queue.whole, message)]
        now = next((at for at, epoch, offset in sent if (epoch, offset) == (commit.epoch, commit.offset)), self._moment)
        beats = [beat for beat in self._beats[group.group_id, commit.client_id] if beat.at < now]
        own = filter_at(beats, queue.topic)
        if own is not None and is_wanted(message, own[0]):
            return any(at < own[1] and offset > record.offset for at, _, offset in sent)
        if group.client_id:
            return True  # the other members have offsets of their own
        known = [one for one in group.known[commit.client_id] if one.epoch <= commit.epoch]
        for told in (known, [one for one in known if queue in one.queues]):
            newest = max((one.epoch for one in told), default=-1)
            is_late = any(epoch < newest and offset > record.offset for _, epoch, offset in sent)
            if told and not is_late and all(one.wants(message) for one in told if one.epoch == newest):
                return False
        return True

    def _is_ended(self, group: GroupTruth, queue: Queue, message: Message) -> bool:
        """Return whether a message needs nothing more from where it is, if a member wants it."""
        origin, place = origin_of(message), place_of(message)
        if has_failed_messages(queue.topic) and (place in group.ended or group.highest.get(place, 0) > origin.attempt):
            return True  # also after a reset of the message's own queue
        return (
            bool(group.handled[place])
            or place in group.dead
            or group.attempts.get(place, 0) > origin.attempt
            or origin.offset < group.skipped.get(self._cells[place], 0)
            or (has_failed_messages(queue.topic) and (message.offset() or 0) < group.skipped.get(queue, 0))
        )

    def may_stay_beyond(self, group_id: str, queue: Queue, offset: int) -> bool:
        """Return whether an offset may be beyond the end of a log that has lost its tail, until there are messages.

        An operator has set it: the observer of the world does not tell ends of queues, by which a coordinator would let
        the owner go back. Or it is a slice that a reader of other slices got: it goes back by the next message's epoch.
        """
        group = self.groups.get(group_id)
        if group is None or queue.whole not in self._truncated:
            return False
        is_beyond = offset > self.log.topics[queue.topic][queue.queue_id].end
        is_set = all(group.set_to.get(cell) == offset for cell in self.cells(queue))
        return is_beyond and (is_set or queue.slices > 1)

    # --- the log ---

    def _stored(self, topic: str, number: int, record: Stored) -> None:
        if topic == GROUPS and b'"type":"heartbeat"' in (record.value or b""):
            beat = _decode_beat(record.value or b"")
            self._note_beat(beat)
            beats = self._beats[beat.group_id, beat.client_id]
            beaten = Beaten.of(beat, self.moment(), number, record.offset)
            if not beats or not beats[-1].is_like(beaten):
                beats.append(beaten)
        if topic == GROUPS and b'"type":"commit"' in (record.value or b""):
            self._committed(_decode_commit(record.value or b""))
        message = message_of(topic, number, record)
        if not has_failed_messages(topic):
            self._cells[place_of(message)] = self.cell_of(Queue(topic, "", number), message)
            return
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
        moment = self.moment()
        for audience in {commit.group_id, audience_of(commit.group_id, "broadcasting", commit.client_id)}:
            if audience not in self.groups:
                continue
            for entry in commit.offsets:
                for cell in self.cells(entry.queue):
                    sent = self.groups[audience].sent[commit.client_id, cell]
                    sent.append((moment, commit.epoch, entry.offset))

    def _note_beat(self, beat: Heartbeat) -> None:
        """Judge whether a client joins again and again."""
        joins = self._joins[beat.client_id]
        if beat.instance_id in self._instances:
            return
        self._instances.add(beat.instance_id)
        self.newest_instance[beat.client_id] = beat.instance_id
        joins.append(self.log.scheduler.now_s)
        if len(joins) > MOST_JOINS and joins[-1] - joins[-1 - MOST_JOINS] < JOINS_S:
            self.find("storm", f"{beat.client_id} has joined {MOST_JOINS + 1} times within {JOINS_S:g} s")

    def lose(self, topic: str, number: int, records: list[Stored]) -> None:
        """Note that the brokers have lost these records, even if they had acknowledged them."""
        self._truncated.add(Queue(topic, "", number))
        self._lost.update(place_of(message_of(topic, number, record)) for record in records)

    # --- the end ---

    def left(self, audience: str) -> list[Place]:
        """Return the messages that an audience wants, and has neither handled nor given up.

        If its filter has changed, it may have passed others before.
        """
        group = self.groups[audience]
        found = []
        for topic in self.topics(group.last):
            for number, partition in enumerate(self.log.topics[topic]):
                for record in partition.records[partition.first :]:
                    message = message_of(topic, number, record)
                    place = place_of(message)
                    cell = self.cell_of(Queue(topic, "", number), message)
                    if not (
                        group.handled[place]
                        or place in group.dead
                        or record.offset < group.skipped.get(cell, 0)
                        or (group.changes and record.offset < group.committed.get(cell, 0))
                        or not is_wanted(message, group.last.tags)
                    ):
                        found.append(place)
        return found

    def topics(self, wanted: Wanted) -> list[str]:
        """Return the topics that there are of a subscription."""
        there = [topic for topic in self.log.topics if topic not in self.log.deleted]
        return [topic for topic in there if topic in PLAIN and wanted.has(topic)]

    def check_acknowledged(self) -> None:
        """Judge whether each acknowledged message is in the log, where Kafka has said, unless the brokers lost it."""
        for topic, number, offset, value in self.acknowledged - self._lost:
            records = self.log.topics[topic][number].records
            if offset >= len(records) or records[offset].value != value:
                self.find("acknowledged", f"{topic}-{number} at {offset} is not the message that was acknowledged")


def audience_of(group_id: str, mode: Mode, client_id: str) -> str:
    """Return the name of those who share the messages of a member."""
    return group_id if mode == "clustering" else f"{group_id} for {client_id}"


def place_of(message: Message) -> Place:
    """Return where a message was first delivered from, and its value."""
    origin = origin_of(message)
    return origin.topic, origin.partition, origin.offset, message.value() or b""


def _key_of(message: Message) -> bytes:
    """Return the key of a message; its offset if it has none."""
    key = message.key()
    assert not isinstance(key, str), "the world sends bytes"
    return key_of_offset(message.offset() or 0) if key is None else key


def _origin_place(message: Message) -> Place | None:
    """Return where a dead letter comes from; None if it is a mark."""
    names = [name for name, _ in message.headers() or ()]
    return None if "wakeroll-settled" in names else place_of(message)


def _overlaps(spans: list[tuple[float, float]], begin_s: float, end_s: float) -> bool:
    return any(begin < end_s and end > begin_s for begin, end in spans)
