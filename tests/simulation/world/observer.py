"""The observer of a world: it ticks, and says which queues there are and where their leaders stand."""

from typing import TYPE_CHECKING

from model.events import Route, RoutedQueue, Tick
from model.queue import Queue
from world.plan import TOPICS

if TYPE_CHECKING:
    from world.world import World

ROOMS = ("r0", "r1")
NOWHERE = ""
"""The room of a queue whose leader nobody knows."""


class Observer:
    """Appends ticks every second, routes every minute and when a topic changes."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.routed = dict(zip(TOPICS, world.plan.queues, strict=True))
        """Topic -> how many queues it has; 0: it is gone."""
        self.rooms: dict[Queue, str] = {}
        self.dead_until_ms = 0

    def start(self) -> None:
        """Begin."""
        self._route_all()
        self._world.after(100, self._tick)

    def queues(self, topic: str) -> list[Queue]:
        """Return the queues that a topic has now."""
        return [Queue(topic, "", number) for number in range(self.routed[topic])]

    def set_queues(self, topic: str, count: int) -> None:
        """A topic has so many queues from now on; none: it is gone."""
        self.routed[topic] = count
        self._route(topic)

    def come_back(self, topic: str) -> None:
        """A topic that is gone is there again, with as many queues as at first."""
        if not self.routed[topic]:
            self.set_queues(topic, self._world.plan.queues[TOPICS.index(topic)])

    def move(self, queue: Queue, room: str) -> None:
        """A queue's leader stands in another room from now on."""
        self.rooms[queue] = room
        self._route(queue.topic)

    def find_leaders(self) -> None:
        """Every queue's leader is somewhere again."""
        for queue, room in list(self.rooms.items()):
            if room == NOWHERE:
                self.move(queue, ROOMS[0])

    def room(self, queue: Queue) -> str:
        """Return where a queue's leader stands."""
        return self.rooms.get(queue, ROOMS[queue.queue_id % len(ROOMS)])

    def _tick(self) -> None:
        self._world.after(1_000, self._tick)
        self._world.after(self._world.rng.choice((0, 0, 1, 15, 40)), self._append_tick)

    def _append_tick(self) -> None:
        if self._world.now_ms >= max(self.dead_until_ms, self._world.broker.dark_until_ms):
            self._world.broker.append(Tick(), self._world.now_ms)

    def _route_all(self) -> None:
        self._world.after(60_000, self._route_all)
        for topic in TOPICS:
            self._route(topic)

    def _route(self, topic: str) -> None:
        world = self._world
        if world.now_ms < max(self.dead_until_ms, world.broker.dark_until_ms):
            world.after(1_000, self._route, topic)
            return
        queues = [
            RoutedQueue(
                topic=topic,
                broker="",
                queue_id=queue.queue_id,
                room=self.room(queue),
                max_offset=world.ends.get(queue, 0),
            )
            for queue in self.queues(topic)
        ]
        version = ",".join(one.room for one in queues) + f":{len(queues)}"
        world.broker.append(Route(topic=topic, queues=queues, version=version), world.now_ms)
