"""What a producer tells of the queues that it makes grow: as few arrivals as wake the same pulls."""

from collections.abc import Mapping

from model.events import Arrival
from model.filters import tags_code
from model.queue import Queue

_Said = tuple[Queue, str | None, tuple[tuple[str, str], ...]]
"""What an arrival says besides the offset."""


class Arrivals:
    """Messages that Kafka has, and nobody was told of yet.

    Of messages of a queue that say the same of themselves the last one is enough: whom it does not wake, the earlier
    ones would not have woken either.  As long as no message of a topic has had a tag or a property, nothing is said of
    its messages but that they are there; then observers watch the topic as closely as one without such a producer.
    """

    def __init__(self) -> None:
        self._pending: dict[_Said, Arrival] = {}
        self._described: set[str] = set()
        """Topics of whose messages more is said."""

    def note(self, queue: Queue, offset: int, stored_ms: int | None, tags: str, properties: Mapping[str, str]) -> None:
        """Kafka has a message: at which offset, since when, with which tag ("" for none) and properties."""
        if tags or properties:
            self._described.add(queue.topic)
        described = queue.topic in self._described
        said: _Said = queue, tags if described else None, tuple(sorted(properties.items()))
        before = self._pending.get(said)
        if before is None or before.next_offset <= offset:
            self._pending[said] = Arrival(
                queue=queue,
                next_offset=offset + 1,
                tags=tags if described else None,
                tags_code=tags_code(tags) if described else None,
                properties=dict(properties) if described else None,
                stored_ms=stored_ms,
            )

    def take(self) -> list[Arrival]:
        """Return what is to be told now; it is not returned again."""
        pending, self._pending = self._pending, {}
        return list(pending.values())

    def __len__(self) -> int:
        return len(self._pending)
