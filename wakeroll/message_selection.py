"""The messages of each queue that a consumer delivers, and those that it must not commit, for other members' filters.

While members of a group have different filters of a topic, a message is passed over only if none of them matches. The
offset of the first message that matches only other members' filters is the barrier of its queue: no commit passes it,
and the next owner starts there at the latest. Messages that were processed already for a filter are not delivered again
for it.
"""

from collections.abc import Iterable

from confluent_kafka import Message

from wakeroll.headers import wants
from wakeroll.heartbeat_thread import Control
from wakeroll.sliced_reader import SlicedReader
from wakeroll.topic_filters import parsed_filter, select
from wakeroll_model.client_actions import Give
from wakeroll_model.decisions import OtherFilter
from wakeroll_model.events import Ahead
from wakeroll_model.filters import FilterError, ParsedSubscription, parse
from wakeroll_model.queue import Queue

UNKNOWN = -1
"""Initial value of a barrier: the client must receive the first one, whatever it is."""


class _Selected:
    """The messages of one assignment of a queue, as far as they were read."""

    __slots__ = (
        "ahead",
        "barrier",
        "first_kept",
        "give",
        "is_plain",
        "known_below",
        "new_filters",
        "next",
        "others",
        "own",
    )

    def __init__(self, give: Give, others: list[ParsedSubscription], new_filters: int) -> None:
        self.give = give
        self.new_filters = new_filters
        """`Control.new_filters` as of the filters of other members that it began with, or before."""
        self.own = parsed_filter(*give.filter)
        """The consumer's own filter; None if it wants all messages."""
        self.others = others
        """Filters of other members."""
        self.ahead = [
            (parsed, one) for one in give.start.ahead if (parsed := _parsed(one.expression, one.expression_type))
        ]
        """Filters of which the messages below an offset are processed already."""
        self.next = 0
        """Offset after the last message that was read; unused if only the consumer's own filter matters."""
        self.known_below = 0
        """Messages below this offset were delivered before, and are read again to find those that match other members'
        filters; 0 if no message is read again."""
        self.first_kept: int | None = None
        """Offset of the first message that matches only other members' filters; None if there was none."""
        self.barrier: int | None = None
        """The barrier that was last sent to the client; None if there is none."""
        self.is_plain = not (self.others or self.ahead)
        """Whether only the consumer's own filter matters."""


class MessageSelection:
    """Selects the messages of a consumer's queues, by its filters and those of other members. For one thread."""

    def __init__(self, control: Control, reader: SlicedReader) -> None:
        """Begin without queues."""
        self._control = control
        self._reader = reader
        self._others: tuple[OtherFilter, ...] = ()
        self._new_filters = 0
        """`Control.new_filters` as of `_others`, or before."""
        self._queues: dict[Queue, _Selected] = {}
        self._last: _Selected | None = None
        """Cache: the queue of the last messages, because the next ones are mostly of the same queue."""

    def select(self, give: Give, messages: list[Message], end: int) -> tuple[list[Message], int]:
        """Select messages of a queue.

        Args:
            give: the assignment of the queue.
            messages: the next messages of the queue, in order of offset.
            end: offset after the last of them.

        Returns:
            The messages to deliver, and the offset up to which all others count as processed for this consumer.
        """
        one = self._last
        if one is None or one.give is not give:
            one = self._last = self._find(give)
        if one.is_plain:
            return select(one.own, messages), end
        if (first := messages[0].offset() or 0) < one.next:  # the log lost its tail: there are other messages now
            one.ahead, one.known_below = [], min(one.known_below, first)
            one.first_kept = None if one.first_kept is None or one.first_kept >= first else one.first_kept
        delivered = [message for message in messages if self._is_wanted(one, message)]
        one.next, processed = end, max(end, one.known_below)
        if end >= one.known_below:
            one.known_below = 0
        one.ahead = [(parsed, reached) for parsed, reached in one.ahead if reached.offset > end]
        self._set_barrier(one)
        one.is_plain = not (one.others or one.ahead or one.known_below)
        return delivered, processed

    def passed(self, give: Give, message: Message, offset: int) -> int | None:
        """Select one message, the next one of its queue.

        Returns:
            None if it is to be delivered; else the offset up to which all messages count as processed.
        """
        one = self._last
        if one is None or one.give is not give:
            one = self._last = self._find(give)
        if one.is_plain:
            return None if one.own is None or wants(one.own, message) else offset + 1
        delivered, processed = self.select(give, [message], offset + 1)
        return None if delivered else processed

    def follow(self) -> None:
        """Follow a change of the other members' filters.

        Messages that were skipped since the last commit are read again if a new filter may match them. Until then, no
        commit passes the last committed offset: see `Client.new_filters`.
        """
        new_filters = self._control.new_filters
        others, are_new = self._control.others, new_filters != self._new_filters
        if others == self._others and not are_new:
            return
        self._others, self._new_filters = others, new_filters
        reading = self._reader.assigned()
        for queue, one in list(self._queues.items()):
            if reading.get(queue) is not one.give:
                del self._queues[queue]
                continue
            now = self._others_of(queue.topic, others)
            if now == one.others and not are_new:
                continue
            before, one.others = one.others, now
            if now and (are_new or one.first_kept is not None or any(other not in before for other in now)):
                self._read_again(one)
            elif not now:
                one.first_kept, one.barrier = None, UNKNOWN
                self._set_barrier(one)
            one.is_plain = not (one.others or one.ahead or one.known_below)
        for queue in reading.keys() - self._queues.keys() if are_new else ():
            self._control.keep(reading[queue], None, new_filters)  # no message of it was read yet

    def recover(self) -> None:
        """Begin again after an exception that came at an unknown place, when the reader has recovered.

        Every queue for which other members' filters matter is read again from its committed offset; messages below the
        offset that the reader had reached are not delivered again. This call may be interrupted too, and repeated.
        """
        self._new_filters = self._control.new_filters
        self._last, self._others = None, self._control.others
        self._queues = {}
        for queue, give in self._reader.assigned().items():
            one = _Selected(give, self._others_of(queue.topic, self._others), self._new_filters)
            if one.is_plain:
                self._control.keep(give, None, self._new_filters)
            else:
                self._read_again(one)
            self._queues[queue] = one

    def set_back(self, positions: Iterable[tuple[Give, int]]) -> None:
        """Read queues again from these offsets on: messages from there on were not delivered, or not processed."""
        wanted = []
        for give, offset in positions:
            one = self._queues.get(give.queue)
            if one is not None and one.give is give and not one.is_plain:
                one.next = min(one.next, offset)
                one.known_below = min(one.known_below, offset)
                offset = one.next  # lower, if it reads again what others may want
            wanted.append((give, offset))
        self._reader.set_back(wanted)

    def seek(self, queue: Queue, offset: int) -> None:
        """Read a queue from an offset on for the application, and deliver all matching messages from there on."""
        self._reader.seek(queue, offset)
        give = self._control.view()[0].get(queue)
        if give is not None:
            one = self._find(give)
            one.ahead, one.known_below, one.next = [], 0, 0
            one.is_plain = not one.others

    def _find(self, give: Give) -> _Selected:
        one = self._queues.get(give.queue)
        if one is None or one.give is not give:
            # They may have changed since `follow`: by the call of `subscribe` for which the queue is assigned again.
            new_filters = self._control.new_filters
            others = self._others_of(give.queue.topic, self._control.others)
            one = self._queues[give.queue] = _Selected(give, others, new_filters)
        return one

    def _is_wanted(self, one: _Selected, message: Message) -> bool:
        """Return whether to deliver a message; note it if it matches only other members' filters."""
        offset = message.offset() or 0
        is_own = one.own is None or wants(one.own, message)
        if offset < one.known_below and is_own:
            return False
        if any(_is_below(message, reached) and wants(parsed, message) for parsed, reached in one.ahead):
            return False
        if is_own:
            return True
        if one.first_kept is None and any(wants(parsed, message) for parsed in one.others):
            one.first_kept = offset
        return False

    def _read_again(self, one: _Selected) -> None:
        """Read the messages since the last commit again, to find those that match the new filters of other members."""
        committed = self._control.keep_all(one.give)
        if committed is None:
            return
        one.first_kept, one.barrier = None, committed
        one.next = self._reader.position(one.give.queue)
        if committed < one.next:
            one.known_below, one.next = max(one.known_below, one.next), committed
            self._reader.set_back([(one.give, committed)])
        self._set_barrier(one)

    def _set_barrier(self, one: _Selected) -> None:
        """Move the barrier: commits may pass messages that are processed, delivered, or match no member's filter."""
        barrier = one.first_kept
        if barrier is None and one.next < one.known_below:
            barrier = one.next
        if barrier != one.barrier:
            one.barrier = barrier
            self._control.keep(one.give, barrier, max(one.new_filters, self._new_filters))

    def _others_of(self, topic: str, others: Iterable[OtherFilter]) -> list[ParsedSubscription]:
        return [
            parsed
            for other in others
            if other.topic in (topic, "") and (parsed := _parsed(other.expression, other.expression_type))
        ]


def _is_below(message: Message, reached: Ahead) -> bool:
    """Return whether a message is below the offset that a filter has reached, in the same log.

    If the log has lost its tail since, the messages that it now has there are of a later leader epoch.
    """
    if (message.offset() or 0) >= reached.offset:
        return False
    leader_epoch = message.leader_epoch()
    return leader_epoch is None or reached.leader_epoch is None or leader_epoch <= reached.leader_epoch


def _parsed(expression: str, expression_type: str) -> ParsedSubscription | None:
    """Parse a filter of another member; None if it is invalid, because no member can deliver by it."""
    try:
        return parse(expression, expression_type)
    except FilterError:
        return None
