"""How far queues reach: what the log has been told of it, what is news, and how often to ask."""

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from model.config import MAX_PULL_TIMEOUT_MS
from model.events import Arrival, Offset
from model.queue import Queue
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

Where = tuple[str, int]
"""A queue of Kafka's: topic and number."""


class Pulled(Struct, tag_field="type", tag="pull"):
    """A pull, as far as it says how far its queue reaches."""

    queue: Queue
    from_offset: Offset


class Arrived(Struct, tag_field="type", tag="arrival"):
    """An arrival, as far as it says how far its queue reaches, and whether it says more."""

    queue: Queue
    next_offset: Offset
    tags: Annotated[str, Meta(max_length=4_096)] | None = None
    tags_code: int | None = None
    properties: dict[str, str] | None = None
    truncated: bool = False

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


class EndBook:
    """How far the log says that queues reach; `now_ms` is any clock that never falls.

    It hears all arrivals, its observer's own and those of others: what the log says already is not said again.
    """

    def __init__(self) -> None:
        self._ends: dict[Where, int] = {}
        """As arrivals say, hence as the coordinator knows."""
        self._reached: dict[Where, int] = {}
        """As pulls say, which the coordinator does not take for an end."""
        self._under_way: dict[Where, int] = {}
        """Told, and not heard from the log yet."""
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
                self._reached[where] = max(self._reached.get(where, 0), said.from_offset)
            case Arrived():
                if said.says_more:
                    self._tagged_ms[topic] = now_ms
                if said.truncated:
                    self._ends[where] = said.next_offset
                    self._reached.pop(where, None)
                else:
                    self._ends[where] = max(self._ends.get(where, 0), said.next_offset)
                if self._under_way.get(where) == said.next_offset:
                    del self._under_way[where]

    def pulled(self, now_ms: int) -> list[str]:
        """Return the topics that somebody may wait for, sorted."""
        return sorted(topic for topic, at_ms in self._pulled_ms.items() if now_ms - at_ms <= WAITED_MS)

    def take_due(self, topics: Iterable[str], now_ms: int) -> list[str]:
        """Return those of the topics whose ends are to be asked for now; they are not due again before their time."""
        due = [topic for topic in topics if self._due_ms(topic, now_ms) <= now_ms]
        self._asked_ms.update(dict.fromkeys(due, now_ms))
        return due

    def take_news(self, ends: Mapping[Where, int]) -> list[Arrival]:
        """Return what the log does not say yet of the ends that brokers gave; it counts as told.

        A queue has become shorter if two reads in a row say so: a leader may be behind what a producer or another
        leader has acknowledged.
        """
        news = []
        for where, end in ends.items():
            told = self._under_way.get(where, self._ends.get(where, 0))
            has_fallen = end < (told if where in self._under_way else max(told, self._reached.get(where, 0)))
            if has_fallen and where not in self._fallen:
                self._fallen.add(where)
                continue
            self._fallen.discard(where)
            if has_fallen or end > told:
                self._under_way[where] = end
                topic, queue_id = where
                news.append(Arrival(queue=Queue(topic, "", queue_id), next_offset=end, truncated=has_fallen))
        return news

    def unsaid(self, queue: Queue) -> None:
        """What was told of a queue did not arrive: the log says what it said before."""
        self._under_way.pop((queue.topic, queue.queue_id), None)

    def keep(self, topics: Iterable[str], now_ms: int) -> None:
        """Forget what is known of all other topics, and what is too old to count."""
        kept = set(topics)
        self._ends = {where: end for where, end in self._ends.items() if where[0] in kept}
        self._reached = {where: end for where, end in self._reached.items() if where[0] in kept}
        self._under_way = {where: end for where, end in self._under_way.items() if where[0] in kept}
        self._fallen = {where for where in self._fallen if where[0] in kept}
        self._asked_ms = {topic: at_ms for topic, at_ms in self._asked_ms.items() if topic in kept}
        self._pulled_ms = {topic: at_ms for topic, at_ms in self._pulled_ms.items() if now_ms - at_ms <= WAITED_MS}
        self._tagged_ms = {topic: at_ms for topic, at_ms in self._tagged_ms.items() if now_ms - at_ms <= TAGGED_MS}

    def _due_ms(self, topic: str, now_ms: int) -> int:
        asked_ms = self._asked_ms.get(topic)
        if asked_ms is None:
            return now_ms
        waited = topic in self._pulled_ms and now_ms - self._pulled_ms[topic] <= WAITED_MS
        tagged = topic in self._tagged_ms and now_ms - self._tagged_ms[topic] <= TAGGED_MS
        return asked_ms + (ASK_MS if waited and not tagged else SELDOM_MS)
