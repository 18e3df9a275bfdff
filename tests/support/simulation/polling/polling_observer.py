"""The observer of a world, as it is shipped but for its threads: it reads ends, and reports what is news."""

from typing import TYPE_CHECKING

from wakeroll_model.events import Arrival
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_pipeline.observer import end_offsets

if TYPE_CHECKING:
    from tests.support.simulation.polling.polling_world import World

LOOK_BACK_MS = 120_000
"""How much of the log a new one reads."""
NOTICE_MS = 1_000
"""After this it knows that a report did not get into the log, if it ever does."""


class Observer:
    """One process; a new one is another."""

    def __init__(self, world: "World", name: str) -> None:
        self._world = world
        self._book = end_offsets.EndBook(name)
        for coordinator in world.coordinators:
            for record in coordinator.log:
                if record.timestamp_ms >= world.broker.log_ms(world.now_ms) - LOOK_BACK_MS:
                    self.hear(record)

    def hear(self, record: Record) -> None:
        """Take a record of the log."""
        said = end_offsets.read(record.value)
        if said is not None:
            self._book.receive(said, self._world.now_ms)

    def look(self) -> list[Arrival]:
        """Read the ends that are due; return what to report."""
        world, now_ms = self._world, self._world.now_ms
        self._book.keep({*world.plan.topics, *self._book.pulled(now_ms)}, now_ms)
        due = self._book.take_due(world.plan.topics, now_ms)
        found = {
            (queue.topic, queue.queue_id): len(messages.log)
            for queue, messages in world.messages.items()
            if queue.topic in due
        }
        return self._book.take_news(found, now_ms)

    def miss(self, queue: Queue) -> None:
        """Hear that a report did not get into the log."""
        self._book.mark_lost(queue, self._world.now_ms)
