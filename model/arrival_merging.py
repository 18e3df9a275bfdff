"""What a producer tells of the queues that it makes grow: as few arrivals as wake the same pulls."""

from collections.abc import Mapping

from msgspec import structs

from model import config
from model.events import Arrival
from model.filters import tags_code
from model.queue import Queue

_Said = tuple[str | None, tuple[tuple[str, str], ...] | None]
"""What an arrival says of its message: tags and properties; None where it says nothing."""


class Arrivals:
    """Messages that Kafka has, and nobody was told of yet.

    Of messages of a queue that say the same of themselves the last one is enough: whom it does not wake, the earlier
    ones would not have woken either.  As long as no message of a topic has had a tag or a property, nothing is said of
    its messages but that they are there; then observers watch the topic as closely as one without such a producer.
    Where each message says something else, nothing is said of properties, and if need be of tags: whoever may want
    them is woken, and the coordinator does not hear of every single message.
    """

    def __init__(self) -> None:
        self._pending: dict[Queue, _Pending] = {}
        self._described: set[str] = set()
        """Topics of whose messages more is said."""

    def note(self, queue: Queue, offset: int, stored_ms: int | None, tags: str, properties: Mapping[str, str]) -> None:
        """Kafka has a message: at which offset, since when, with which tag ("" for none) and properties."""
        if tags or properties:
            self._described.add(queue.topic)
        is_described = queue.topic in self._described
        arrival = Arrival(
            queue=queue,
            next_offset=offset + 1,
            tags=tags if is_described else None,
            tags_code=tags_code(tags) if is_described else None,
            properties=dict(properties) if is_described else None,
            stored_ms=stored_ms,
        )
        self._pending.setdefault(queue, _Pending()).add(arrival)

    def take(self) -> list[Arrival]:
        """Return what is to be told now; it is not returned again."""
        pending, self._pending = self._pending, {}
        return [arrival for one in pending.values() for arrival in one.arrivals]

    def __len__(self) -> int:
        return sum(len(one.arrivals) for one in self._pending.values())


class _Pending:
    """The arrivals of one queue, `config.MAX_TOLD` at most."""

    def __init__(self) -> None:
        self._newest: dict[_Said, Arrival] = {}
        self._hidden: dict[str, None] = {}
        """Fields that are not told."""

    @property
    def arrivals(self) -> list[Arrival]:
        return list(self._newest.values())

    def add(self, arrival: Arrival) -> None:
        self._put(structs.replace(arrival, **self._hidden) if self._hidden else arrival)
        for hidden in (("properties",), ("tags", "tags_code")):
            if len(self._newest) > config.MAX_TOLD:
                self._hidden |= dict.fromkeys(hidden)
                told, self._newest = self.arrivals, {}
                for one in told:
                    self._put(structs.replace(one, **self._hidden))

    def _put(self, arrival: Arrival) -> None:
        properties = None if arrival.properties is None else tuple(sorted(arrival.properties.items()))
        said: _Said = arrival.tags, properties
        before = self._newest.get(said)
        if before is None or before.next_offset < arrival.next_offset:
            self._newest[said] = arrival
