"""The messages of one queue between Kafka and the handler, with their states: waiting, running, finished."""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from confluent_kafka import Message

from wakeroll_model.client_actions import Give
from wakeroll_model.config import NEVER_MS

_WHOLE_QUEUE: Final = 0
"""The only lane of a queue that is consumed in order."""


State = Literal["waiting", "running", "failed", "held", "finished", "abandoned"]
"""State of a batch. Messages of a failed one are being stored in another topic, or wait for their next attempt here.
Those of a held one cannot be stored for now. An abandoned one will not be processed here, so its messages are delivered
again."""


def offset_of(message: Message) -> int:
    """Return the offset of a message that was received without an error."""
    offset = message.offset()
    assert offset is not None, "a message without an error has an offset"
    return offset


class Batch:
    """Messages of one queue for one call of the handler, in order of offset."""

    __slots__ = ("attempt", "bytes", "first", "is_overdue", "lane", "last", "messages", "state", "work")

    def __init__(self, work: "QueueWork", lane: int | None, messages: list[Message], attempt: int = 1) -> None:
        """Create a batch; `lane`: batches of one lane are handled one after the other, None: it waits for nobody."""
        self.work = work
        self.lane = lane
        self.messages = messages
        self.first = offset_of(messages[0])
        self.last = offset_of(messages[-1])
        self.bytes = sum(map(len, messages))
        self.state: State = "waiting"
        self.attempt = attempt
        """Number of this attempt, the same for all messages of the batch; counted here only for retries in place."""
        self.is_overdue = False
        """Whether its call took too long, so that the result of the call is ignored."""

    def extend(self, messages: list[Message]) -> int:
        """Add later messages to a batch that waits; return their size (bytes)."""
        size = sum(map(len, messages))
        self.messages += messages
        self.last = offset_of(messages[-1])
        self.bytes += size
        return size


class Part(NamedTuple):
    """Messages of a failed batch that the handler receives again in a call of their own."""

    messages: list[Message]
    attempt: int
    """Number of the attempt of that call, as in `Batch`."""


class QueueWork:
    """The messages of one assignment of a queue that were read and are not yet processed.

    Every message belongs to a batch. Batches of the same lane are handled one after the other: the whole queue is one
    lane if it is consumed in order, otherwise messages with equal keys are in the same lane, and messages without a key
    in none. It has no thread and no clock of its own; calls must not overlap.
    """

    def __init__(self, give: Give, start: int, *, batch_size: int, lanes: int, orderly: bool) -> None:
        """Begin without messages.

        Args:
            give: the assignment.
            start: offset of the first message that will be added.
            batch_size: maximum number of messages in a batch.
            lanes: number of lanes for messages with keys.
            orderly: whether all messages are handled in order of offset.
        """
        self.give = give
        self.messages = 0
        """Number of messages that are read and not processed."""
        self.bytes = 0
        """Size of the values of those messages (bytes)."""
        self.largest = 1
        """Size of the largest message so far (bytes); at least 1."""
        self.running = 0
        """Number of batches that the handler has now, or that failed."""
        self.is_stopped = False
        """Whether no messages are added any more."""
        self._is_halted = False
        """Whether no batch may begin any more."""
        self.until_ms = NEVER_MS
        """When the queue must be released, by the SDK's clock: no batch begins from then on."""
        self._end = start
        self._begun = start
        """Offset after the last message of all batches that began."""
        self._batch_size = batch_size
        self._lanes = lanes
        self._orderly = orderly
        self._batches: deque[Batch] = deque()
        """Batches by the offset of their first message; finished ones at the left end are removed."""
        self._waiting: dict[int, deque[Batch]] = {}
        """Lane that has a batch to be handled -> the batches that follow it."""
        self._last: dict[int | None, Batch] = {}
        """Lane -> the last batch that `add` has made for it; None: that of messages in no lane."""

    @property
    def position(self) -> int:
        """Offset below which all messages are processed, or do not match the filter."""
        batches = self._batches
        while batches and batches[0].state == "finished":
            batches.popleft()
        return batches[0].first if batches else self._end

    @property
    def is_settled(self) -> bool:
        """Whether no batch is running, none waits, and none is being stored elsewhere."""
        return not any(batch.state in ("waiting", "running", "failed") for batch in self._batches)

    @property
    def span(self) -> int:
        """Number of offsets from the oldest unprocessed message to the last one read, divided by the slices."""
        return (self._end - self.position) // self.give.queue.slices

    def add(self, messages: list[Message], end: int) -> list[Batch]:
        """Add the next messages.

        Args:
            messages: in order of offset; those that do not match the filter are left out.
            end: offset after the last message read, whether it matches or not.

        Returns:
            The batches that may be handled now, in order.
        """
        if self.is_stopped:
            return []
        if not messages:
            self._end = end
            return []
        self.messages += len(messages)
        self.largest = max(self.largest, *map(len, messages))
        keys = None if self._orderly else list(map(Message.key, messages))
        if keys is None:
            batches = self._batches_of(_WHOLE_QUEUE, messages)
        elif keys.count(None) == len(keys):
            batches = self._batches_of(None, messages)
        else:
            batches = self._by_key(keys, messages)
        self.bytes += sum(batch.bytes for batch in batches)
        self._batches += batches
        self._end = end  # not earlier: an exception of a signal handler must not leave a position behind the messages
        return [batch for batch in batches if self._is_next(batch)]

    def set_apart(self, messages: list[Message], end: int) -> Batch | None:
        """Add the next messages as those of a failed call: no call receives them, because they are stored elsewhere.

        Args:
            messages: in order of offset.
            end: offset after the last one.

        Returns:
            The failed batch; None if no messages are added any more.
        """
        if self.is_stopped:
            return None
        batch = Batch(self, None, messages)
        batch.state = "running"
        self.running += 1
        self.messages += len(messages)
        self.bytes += batch.bytes
        self._batches.append(batch)
        self._end = end
        self._begun = max(self._begun, end)
        self.fail(batch)
        return batch

    def begin(self, batch: Batch) -> bool:
        """Begin to handle a batch; return whether that is allowed."""
        if batch.state != "waiting":
            return False
        batch.state = "running"
        self.running += 1
        self._begun = max(self._begun, batch.last + 1)
        return True

    def finish(self, batch: Batch) -> Batch | None:
        """Note that a batch is processed; return the batch that may be handled now because of it."""
        self._leave(batch, "finished")
        self.messages -= len(batch.messages)
        self.bytes -= batch.bytes
        batch.messages = []  # it may wait behind an older one for long
        return self._following(batch)

    def hold(self, batch: Batch, messages: Sequence[Message], *, lets_pass: bool) -> Batch | None:
        """Note that some messages of a failed batch cannot be stored for now; the position does not pass them.

        Args:
            batch: failed, or held.
            messages: of the batch; its others are processed.
            lets_pass: whether the batches that follow in its lane need not wait for it.

        Returns:
            The batch that may be handled now because of it.
        """
        if self.is_stopped:
            self.abandon(batch)
            return None
        self._leave(batch, "held")
        kept = [message for message in batch.messages if any(message is one for one in messages)]
        size = sum(map(len, kept))
        self.messages -= len(batch.messages) - len(kept)
        self.bytes -= batch.bytes - size
        batch.messages, batch.bytes, batch.first = kept, size, offset_of(kept[0])
        self._batches = deque(sorted(self._batches, key=_first))
        if not lets_pass:
            return None
        following = self._following(batch)
        batch.lane = None
        return following

    def _following(self, batch: Batch) -> Batch | None:
        """Return the batch that is next in the lane of this one."""
        if batch.lane is None:
            return None
        waiting = self._waiting.get(batch.lane)
        if waiting:
            return waiting.popleft()
        self._waiting.pop(batch.lane, None)
        return None

    def fail(self, batch: Batch) -> bool:
        """Note that the handler did not process a batch; return whether that counts: its call was not overdue."""
        if batch.state != "running":
            return False
        batch.state = "failed"
        return True

    def divide(self, batch: Batch, parts: Sequence[Part]) -> list[Batch]:
        """Replace a failed batch by one batch per part; its messages that are in no part are processed.

        The new batches are handled in the place of the old one: those of a lane one after the other, before all that
        wait for the lane.

        Args:
            batch: failed.
            parts: at least one, in order of offset.

        Returns:
            The new batches that may be handled now. There are none if the parts are left to other members: a queue that
            was stopped does not retry, and in order, no message after the parts was handled.
        """
        new = [Batch(self, batch.lane, part.messages, part.attempt) for part in parts]
        if self._is_halted or (self.is_stopped and (self._orderly or any(part.attempt > 1 for part in parts))):
            batch.first = new[0].first  # those before it are processed
            self._batches = deque(sorted(self._batches, key=_first))
            self.abandon(batch)
            return []
        self._leave(batch, "finished")
        self.messages += sum(len(part.messages) for part in parts) - len(batch.messages)
        self.bytes += sum(one.bytes for one in new) - batch.bytes
        others = (one for one in self._batches if one is not batch)
        self._batches = deque(sorted([*others, *new], key=_first))
        if self._orderly:
            self._begun = new[0].first  # when it stops, the parts need not be handled here
        if batch.lane is None:
            return new
        self._waiting[batch.lane].extendleft(reversed(new[1:]))
        return new[:1]

    def abandon(self, batch: Batch) -> None:
        """Note that neither a batch that began nor those after it will be processed here."""
        self._abandon(batch)

    def _leave(self, batch: Batch, state: State) -> None:
        """Change the state of a batch that began."""
        if batch.state in ("running", "failed"):
            self.running -= 1
        batch.state = state

    def _abandon(self, batch: Batch) -> None:
        self._leave(batch, "abandoned")
        if batch.lane is not None:
            for following in self._waiting.pop(batch.lane, ()):
                following.state = "abandoned"

    def stop(self) -> int:
        """Add no further messages, and leave those that need not be handled here to other members.

        Messages before one that is processed or in a running call are still handled: otherwise that one would be
        delivered again. Messages that failed here are left to other members.

        Returns:
            The number of messages that were read and are left to other members.
        """
        before = self.messages
        if not self.is_stopped:
            self.is_stopped = True
            for batch in self._batches:
                if batch.state == "held" or (batch.state == "waiting" and batch.attempt > 1):
                    self._abandon(batch)
            for batch in self._batches:
                if batch.state == "waiting" and batch.last >= self._begun:
                    self._trim(batch)
            for lane, waiting in self._waiting.items():
                self._waiting[lane] = deque(batch for batch in waiting if batch.state == "waiting")
        return before - self.messages

    def halt(self) -> None:
        """Let no further batch begin."""
        self.is_stopped = self._is_halted = True
        for batch in self._batches:
            if batch.state == "waiting":
                batch.state = "abandoned"
        self._waiting.clear()

    def _trim(self, batch: Batch) -> None:
        """Leave messages that are in no batch that began to other members."""
        kept = [message for message in batch.messages if offset_of(message) < self._begun]
        self._end = min(self._end, offset_of(batch.messages[len(kept)]))
        size = sum(map(len, kept))
        self.messages -= len(batch.messages) - len(kept)
        self.bytes -= batch.bytes - size
        batch.messages, batch.bytes = kept, size
        if kept:
            batch.last = offset_of(kept[-1])
        else:
            batch.state = "finished"  # there is nothing in it, and the position is at most `_end`

    def _by_key(self, keys: Sequence[bytes | str | None], messages: list[Message]) -> list[Batch]:
        lanes: defaultdict[int | None, list[Message]] = defaultdict(list)
        count = self._lanes
        for key, message in zip(keys, messages, strict=True):
            lanes[None if key is None else hash(key) % count].append(message)
        batches = [batch for lane, some in lanes.items() for batch in self._batches_of(lane, some)]
        return sorted(batches, key=_first)

    def _batches_of(self, lane: int | None, messages: list[Message]) -> list[Batch]:
        """Fill the last batch of a lane if no call has it yet, and return new batches for the other messages."""
        most, begin, last = self._batch_size, 0, self._last.get(lane)
        if last is not None and last.state == "waiting" and (begin := most - len(last.messages)) > 0:
            self.bytes += last.extend(messages[:begin])
        new = [Batch(self, lane, messages[at : at + most]) for at in range(begin, len(messages), most)]
        if new:
            self._last[lane] = new[-1]
        return new

    def _is_next(self, batch: Batch) -> bool:
        """Return whether a new batch may be handled at once; otherwise let it wait for its lane."""
        if batch.lane is None:
            return True
        if batch.lane in self._waiting:
            self._waiting[batch.lane].append(batch)
            return False
        self._waiting[batch.lane] = deque()
        return True


def _first(batch: Batch) -> int:
    return batch.first
