"""Arrivals from a producer: the smallest number of `arrival` events that wakes the same pulls."""

from collections.abc import Mapping

from msgspec import structs

from wakeroll_model import config
from wakeroll_model.events import Arrival
from wakeroll_model.filters import tags_code
from wakeroll_model.queue import Queue

_Filtered = tuple[str | None, tuple[tuple[str, str], ...] | None]
"""Tags and properties in an arrival; each None if the arrival does not contain it."""


class Arrivals:
    """Messages that Kafka has acknowledged and that no `arrival` event has reported yet.

    Of several messages of a queue with the same tags and properties, only the last one is reported, because it wakes
    all pulls that the earlier ones would wake. While no message of a topic has had a tag or a property, arrivals do not
    describe its messages; observers then watch the topic as closely as one without such a producer. If too many
    messages of a queue differ, their properties are left out, and then their tags: pulls that may match are woken, and
    the coordinator does not receive an event for every message.
    """

    def __init__(self) -> None:
        self._pending: dict[Queue, _Pending] = {}
        self._described: set[str] = set()
        """Topics whose messages are described by tags and properties."""

    def note(
        self, queue: Queue, offset: int, stored_ms: int | None, tags: str | None, properties: Mapping[str, str] | None
    ) -> None:
        """Note a message that Kafka acknowledged: its offset, its time, its tag ("" for none) and its properties.

        Time, tag and properties are None if an arrival cannot have them.
        """
        if tags or properties:
            self._described.add(queue.topic)
        is_described = queue.topic in self._described
        arrival = Arrival(
            queue=queue,
            next_offset=offset + 1,
            tags=tags if is_described else None,
            tags_code=tags_code(tags) if is_described and tags is not None else None,
            properties=dict(properties) if is_described and properties is not None else None,
            stored_ms=stored_ms,
        )
        self._pending.setdefault(queue, _Pending()).add(arrival)

    def take(self) -> list[Arrival]:
        """Return the arrivals to send now; they are not returned again."""
        pending, self._pending = self._pending, {}
        return [arrival for one in pending.values() for arrival in one.arrivals]

    def __len__(self) -> int:
        return sum(len(one.arrivals) for one in self._pending.values())


class _Pending:
    """The arrivals of one queue, at most `config.MAX_TOLD`."""

    def __init__(self) -> None:
        self._newest: dict[_Filtered, Arrival] = {}
        self._hidden: dict[str, None] = {}
        """Fields that are left out."""

    @property
    def arrivals(self) -> list[Arrival]:
        return list(self._newest.values())

    def add(self, arrival: Arrival) -> None:
        self._put(structs.replace(arrival, **self._hidden) if self._hidden else arrival)
        for hidden in (("properties",), ("tags", "tags_code")):
            if len(self._newest) > config.MAX_TOLD:
                self._hidden |= dict.fromkeys(hidden)
                kept, self._newest = self.arrivals, {}
                for one in kept:
                    self._put(structs.replace(one, **self._hidden))

    def _put(self, arrival: Arrival) -> None:
        properties = None if arrival.properties is None else tuple(sorted(arrival.properties.items()))
        filtered: _Filtered = arrival.tags, properties
        before = self._newest.get(filtered)
        if before is None or before.next_offset < arrival.next_offset:
            self._newest[filtered] = arrival
