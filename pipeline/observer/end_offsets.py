"""How far queues reach: what the log has been told of it, what is news, and how often to ask."""

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from model.config import CONFIRM_MS, MAX_PULL_TIMEOUT_MS, REFRESH_MS
from model.events import Arrival, ObserverId, Offset
from model.queue import Queue
from model.queue_end import QueueEnd
from model.records import UNREADABLE

ASK_MS = 100
"""How often to ask for the ends of a topic that somebody waits for."""
SELDOM_MS = 5_000
"""How often for those of other topics: of one that nobody pulls, whose arrivals wake nobody; and of one whose producers
say more of their messages than an end does, or every filtered hold would wake on every message."""
WAITED_MS = MAX_PULL_TIMEOUT_MS
"""Somebody may wait for a topic this long after its last pull: no pull is held for longer."""
TAGGED_MS = 60_000
"""Producers say more of a topic's messages until this long after the last of which they did."""
INSIST_MS = CONFIRM_MS + 500
"""An end below what the log says is reported again after this: two reports that are `CONFIRM_MS` apart are believed."""
LOST_MS = 5_000
"""A report that the log does not show after this is not there."""
TELL_MS = REFRESH_MS - SELDOM_MS
"""The end of a queue that somebody may wait for is reported again after this: with the first read then, in time."""

Where = tuple[str, int]
"""A queue of Kafka's: topic and number."""


class Pulled(Struct, tag_field="type", tag="pull"):
    """A pull, as far as it says how far its queue reaches."""

    queue: Queue
    from_offset: Offset


class Arrived(Struct, tag_field="type", tag="arrival"):
    """An arrival, as far as it says how far its queue reaches, who says so, and whether it says more."""

    queue: Queue
    next_offset: Offset
    tags: Annotated[str, Meta(max_length=4_096)] | None = None
    tags_code: int | None = None
    properties: dict[str, str] | None = None
    observer: ObserverId = ""

    @property
    def says_more(self) -> bool:
        """Whether a filter can judge its message."""
        return not (self.tags is None and self.tags_code is None and self.properties is None)


_decode = msgspec.json.Decoder(Pulled | Arrived).decode


def read(value: bytes | None) -> Pulled | Arrived | None:
    """Read a record of the queues' topic; None for whatever is neither, be it no event at all."""
    try:
        said: Pulled | Arrived = _decode(value or b"")
    except UNREADABLE:
        return None
    return said


class _Told(Struct):
    """What this observer reported last of a queue."""

    next_offset: int
    """-1: nothing, or it did not get into the log."""
    at_ms: int
    is_under_way: bool = False
    """The log has not shown it yet."""


class EndBook:
    """How far the log says that queues reach; `now_ms` is any clock that never falls.

    It hears all that the coordinator hears - its own reports, those of other observers, hints, pulls - and draws the
    same conclusions.  Reported is what differs from them, and everything once in a while: a report may be lost, and the
    coordinator may have lost what it knew.
    """

    def __init__(self, observer: str) -> None:
        """Know nothing yet; `observer` names who reports."""
        self._observer = observer
        self._ends: dict[Where, QueueEnd] = {}
        """As the coordinator believes."""
        self._reached: dict[Where, tuple[int, int]] = {}
        """The largest offset that a pull waits from, which is no end to the coordinator, and when that was said."""
        self._told: dict[Where, _Told] = {}
        self._fallen: set[Where] = set()
        """Shorter than the log says, when they were asked for last."""
        self._pulled_ms: dict[str, int] = {}
        self._tagged_ms: dict[str, int] = {}
        self._asked_ms: dict[str, int] = {}

    def hear(self, said: Pulled | Arrived, now_ms: int) -> None:
        """Take what a record of the log says.

        Who waits from an offset on has seen the queue reach it, or was told so: if it does not reach it now, it has
        become shorter while no observer looked.
        """
        if said.queue.broker:  # not Kafka's
            return
        topic, where = said.queue.topic, (said.queue.topic, said.queue.queue_id)
        match said:
            case Pulled():
                self._pulled_ms[topic] = now_ms
                if said.from_offset > self._reached.get(where, (0, 0))[0]:
                    self._reached[where] = said.from_offset, now_ms
            case Arrived():
                if said.says_more:
                    self._tagged_ms[topic] = now_ms
                self._hear_end(where, said, now_ms)

    def pulled(self, now_ms: int) -> list[str]:
        """Return the topics that somebody may wait for, sorted."""
        return sorted(topic for topic in self._pulled_ms if self._is_pulled(topic, now_ms))

    def take_due(self, topics: Iterable[str], now_ms: int) -> list[str]:
        """Return those of the topics whose ends are to be asked for now; they are not due again before their time."""
        due = [topic for topic in topics if self._due_ms(topic, now_ms) <= now_ms]
        self._asked_ms.update(dict.fromkeys(due, now_ms))
        return due

    def take_news(self, ends: Mapping[Where, int], now_ms: int) -> list[Arrival]:
        """Return what is to be reported now of the ends that brokers gave; it counts as told.

        A queue has become shorter if two reads in a row say so: a leader may be behind what a producer or another
        leader has acknowledged.
        """
        news = []
        for where, end in ends.items():
            told = self._told.setdefault(where, _Told(-1, now_ms))
            if self._is_news(where, end, told, now_ms):
                self._told[where] = _Told(end, now_ms, is_under_way=True)
                topic, queue_id = where
                news.append(Arrival(queue=Queue(topic, "", queue_id), next_offset=end, observer=self._observer))
        return news

    def unsaid(self, queue: Queue, now_ms: int) -> None:
        """What was told of a queue did not arrive: it is told again with the next read."""
        self._told[queue.topic, queue.queue_id] = _Told(-1, now_ms - TELL_MS)

    def keep(self, topics: Iterable[str], now_ms: int) -> None:
        """Forget what is known of all other topics, and what is too old to count."""
        kept = set(topics)
        self._ends = {where: end for where, end in self._ends.items() if where[0] in kept}
        self._reached = {where: reached for where, reached in self._reached.items() if where[0] in kept}
        self._told = {where: told for where, told in self._told.items() if where[0] in kept}
        self._fallen = {where for where in self._fallen if where[0] in kept}
        self._asked_ms = {topic: at_ms for topic, at_ms in self._asked_ms.items() if topic in kept}
        self._pulled_ms = {topic: self._pulled_ms[topic] for topic in self.pulled(now_ms)}
        self._tagged_ms = {topic: at_ms for topic, at_ms in self._tagged_ms.items() if now_ms - at_ms <= TAGGED_MS}

    def _hear_end(self, where: Where, said: Arrived, now_ms: int) -> None:
        known = self._ends.setdefault(where, QueueEnd())
        if not said.observer:
            known.hint(said.next_offset, now_ms)
            return
        closed = known.report(said.next_offset, now_ms)
        if closed is not None and where in self._reached and closed.contradicts(*self._reached[where]):
            del self._reached[where]
        told = self._told.get(where)
        if told is not None and said.observer == self._observer and said.next_offset == told.next_offset:
            told.is_under_way = False

    def _is_news(self, where: Where, end: int, told: _Told, now_ms: int) -> bool:
        """Say whether an end that was read is to be reported."""
        believed = self._ends[where].believed(now_ms) if where in self._ends else 0
        if end < max(believed, self._reached.get(where, (0, 0))[0]):
            if where not in self._fallen:
                self._fallen.add(where)
                return False
            return told.next_offset != end or now_ms - told.at_ms >= INSIST_MS
        self._fallen.discard(where)
        if told.is_under_way and now_ms - told.at_ms < LOST_MS:
            believed = max(believed, told.next_offset)
        is_old = now_ms - told.at_ms >= TELL_MS and self._is_pulled(where[0], now_ms)
        return end > believed or is_old

    def _is_pulled(self, topic: str, now_ms: int) -> bool:
        return topic in self._pulled_ms and now_ms - self._pulled_ms[topic] <= WAITED_MS

    def _due_ms(self, topic: str, now_ms: int) -> int:
        asked_ms = self._asked_ms.get(topic)
        if asked_ms is None:
            return now_ms
        tagged = topic in self._tagged_ms and now_ms - self._tagged_ms[topic] <= TAGGED_MS
        return asked_ms + (ASK_MS if self._is_pulled(topic, now_ms) and not tagged else SELDOM_MS)
