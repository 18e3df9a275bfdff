"""End offsets of queues: the ends that the log contains, the new ones to report, and the query intervals."""

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from wakeroll_model.config import CONFIRM_MS, MAX_PULL_TIMEOUT_MS, REFRESH_MS
from wakeroll_model.events import UNREADABLE, Arrival, ObserverId, Offset
from wakeroll_model.queue import Queue
from wakeroll_model.queue_end import QueueEnd

ASK_MS = 100
"""Query interval for the ends of a topic with held pulls (ms)."""
SELDOM_MS = 5_000
"""Query interval for the ends of other topics (ms): topics without pulls, whose arrivals wake no pull, and topics whose
producers report arrivals with tags, where an end without a tag would wake every filtered hold for every message."""
WAITED_MS = MAX_PULL_TIMEOUT_MS
"""Time after the last pull of a topic during which pulls may be held (ms): the longest hold."""
TAGGED_MS = 60_000
"""Time after a topic's last arrival with a tag or properties in which more of them are expected (ms)."""
INSIST_MS = CONFIRM_MS + 500
"""An end below the log's is reported again after this time (ms): two reports `CONFIRM_MS` apart count."""
LOST_MS = 5_000
"""A report that is not in the log after this time is lost (ms)."""
REPEAT_MS = REFRESH_MS - SELDOM_MS
"""Age at which the end of a queue with pulls is reported again (ms); the next slow query is within `REFRESH_MS`."""

Where = tuple[str, int]
"""A Kafka queue: topic and number."""


class Pulled(Struct, tag_field="type", tag="pull"):
    """A pull, reduced to its queue and offset."""

    queue: Queue
    from_offset: Offset


class Arrived(Struct, tag_field="type", tag="arrival"):
    """An arrival, reduced to its queue, offset, origin and filter fields."""

    queue: Queue
    next_offset: Offset
    tags: Annotated[str, Meta(max_length=4_096)] | None = None
    tags_code: int | None = None
    properties: dict[str, str] | None = None
    observer: ObserverId = ""

    @property
    def has_filter_fields(self) -> bool:
        """Whether filters can be evaluated for its message."""
        return not (self.tags is None and self.tags_code is None and self.properties is None)


_decode = msgspec.json.Decoder(Pulled | Arrived).decode


def read(value: bytes | None) -> Pulled | Arrived | None:
    """Parse a record of the queues topic; None for other kinds of events and for unreadable records."""
    try:
        record: Pulled | Arrived = _decode(value or b"")
    except UNREADABLE:
        return None
    return record


class _LastReport(Struct):
    """This observer's last report of a queue."""

    next_offset: int
    """Reported end offset; -1 if there is none, or if it did not get into the log."""
    at_ms: int
    is_under_way: bool = False
    """Whether the report has not appeared in the log yet."""


class EndBook:
    """End offsets of queues according to the log; `now_ms` is any clock that never goes back.

    It receives the same records as the coordinator (its own reports, those of other observers, hints, pulls), and
    derives the same ends from them. It reports ends of the brokers that differ, and repeats all ends now and then,
    because a report may be lost, and the coordinator may have lost its state.
    """

    def __init__(self, observer: str) -> None:
        """Begin without ends; `observer` is the id in this observer's reports."""
        self._observer = observer
        self._ends: dict[Where, QueueEnd] = {}
        """End of each queue in the coordinator's state."""
        self._reached: dict[Where, tuple[int, int]] = {}
        """Largest offset of a pull, and the time of that pull. The coordinator does not count it as an end."""
        self._reported: dict[Where, _LastReport] = {}
        self._fallen: set[Where] = set()
        """Queues that were shorter in the last query than in the log."""
        self._pulled_ms: dict[str, int] = {}
        self._tagged_ms: dict[str, int] = {}
        self._asked_ms: dict[str, int] = {}

    def receive(self, record: Pulled | Arrived, now_ms: int) -> None:
        """Process a record of the log.

        A client that pulls from an offset has read up to it, or has received a wake with it. If the queue ends below
        the offset, it was truncated while no observer was running.
        """
        if record.queue.broker:  # not Kafka's
            return
        topic, where = record.queue.topic, (record.queue.topic, record.queue.queue_id)
        match record:
            case Pulled():
                self._pulled_ms[topic] = now_ms
                if record.from_offset > self._reached.get(where, (0, 0))[0]:
                    self._reached[where] = record.from_offset, now_ms
            case Arrived():
                if record.has_filter_fields:
                    self._tagged_ms[topic] = now_ms
                self._receive_end(where, record, now_ms)

    def pulled(self, now_ms: int) -> list[str]:
        """Return the topics that may have held pulls, sorted."""
        return sorted(topic for topic in self._pulled_ms if self._is_pulled(topic, now_ms))

    def take_due(self, topics: Iterable[str], now_ms: int) -> list[str]:
        """Return those of the topics whose ends are due for a query, and schedule their next queries."""
        due = [topic for topic in topics if self._due_ms(topic, now_ms) <= now_ms]
        self._asked_ms.update(dict.fromkeys(due, now_ms))
        return due

    def take_news(self, ends: Mapping[Where, int], now_ms: int) -> list[Arrival]:
        """Return the arrivals to report now for the ends that brokers returned, and record them as reported.

        A queue counts as shorter only after two consecutive reads: a leader may lag behind acknowledged messages of a
        producer or another leader.
        """
        news = []
        for where, end in ends.items():
            last = self._reported.setdefault(where, _LastReport(-1, now_ms))
            if self._is_news(where, end, last, now_ms):
                self._reported[where] = _LastReport(end, now_ms, is_under_way=True)
                topic, queue_id = where
                news.append(Arrival(queue=Queue(topic, "", queue_id), next_offset=end, observer=self._observer))
        return news

    def mark_lost(self, queue: Queue, now_ms: int) -> None:
        """Mark the last report of a queue as lost, so that the next read repeats it."""
        self._reported[queue.topic, queue.queue_id] = _LastReport(-1, now_ms - REPEAT_MS)

    def keep(self, topics: Iterable[str], now_ms: int) -> None:
        """Forget all other topics, and all entries that are too old."""
        kept = set(topics)
        self._ends = {where: end for where, end in self._ends.items() if where[0] in kept}
        self._reached = {where: reached for where, reached in self._reached.items() if where[0] in kept}
        self._reported = {where: last for where, last in self._reported.items() if where[0] in kept}
        self._fallen = {where for where in self._fallen if where[0] in kept}
        self._asked_ms = {topic: at_ms for topic, at_ms in self._asked_ms.items() if topic in kept}
        self._pulled_ms = {topic: self._pulled_ms[topic] for topic in self.pulled(now_ms)}
        self._tagged_ms = {topic: at_ms for topic, at_ms in self._tagged_ms.items() if now_ms - at_ms <= TAGGED_MS}

    def _receive_end(self, where: Where, record: Arrived, now_ms: int) -> None:
        known = self._ends.setdefault(where, QueueEnd())
        if not record.observer:
            known.hint(record.next_offset, now_ms)
            return
        closed = known.report(record.next_offset, now_ms)
        if closed is not None and where in self._reached and closed.contradicts(*self._reached[where]):
            del self._reached[where]
        last = self._reported.get(where)
        if last is not None and record.observer == self._observer and record.next_offset == last.next_offset:
            last.is_under_way = False

    def _is_news(self, where: Where, end: int, last: _LastReport, now_ms: int) -> bool:
        """Return whether an end must be reported."""
        known = self._ends[where].reported_or_hinted(now_ms) if where in self._ends else 0
        if end < max(known, self._reached.get(where, (0, 0))[0]):
            if where not in self._fallen:
                self._fallen.add(where)
                return False
            return last.next_offset != end or now_ms - last.at_ms >= INSIST_MS
        self._fallen.discard(where)
        if last.is_under_way and now_ms - last.at_ms < LOST_MS:
            known = max(known, last.next_offset)
        is_old = now_ms - last.at_ms >= REPEAT_MS and self._is_pulled(where[0], now_ms)
        return end > known or is_old

    def _is_pulled(self, topic: str, now_ms: int) -> bool:
        return topic in self._pulled_ms and now_ms - self._pulled_ms[topic] <= WAITED_MS

    def _due_ms(self, topic: str, now_ms: int) -> int:
        asked_ms = self._asked_ms.get(topic)
        if asked_ms is None:
            return now_ms
        tagged = topic in self._tagged_ms and now_ms - self._tagged_ms[topic] <= TAGGED_MS
        return asked_ms + (ASK_MS if self._is_pulled(topic, now_ms) and not tagged else SELDOM_MS)
