"""The observers of a world: they tick, and say which queues there are and where their leaders stand."""

import re
from collections import deque
from random import Random
from typing import TYPE_CHECKING

from tests.support.simulation.groups.group_plan import TOPICS
from wakeroll_model.events import Matches, Route, RoutedQueue, Tick
from wakeroll_model.queue import Queue

if TYPE_CHECKING:
    from tests.support.simulation.groups.group_world import World

ROOMS = ("r0", "r1")
NOWHERE = ""
"""The room of a queue whose leader nobody knows."""
ROUTES_MS = 30_000
"""All routes are told this often."""


class Ticker:
    """One process of the observer: it ticks, and says how long it has been up."""

    def __init__(self, world: "World", number: int) -> None:
        self._world = world
        self.name = f"observer-{number}"
        self.alive = True
        self._uptime_ms = world.rng.randint(0, 10**9)
        world.after(world.rng.randint(0, world.plan.tick_ms), self._tick)

    def _tick(self) -> None:
        world = self._world
        if self.alive:
            world.after(world.plan.tick_ms, self._tick)
            uptime_ms = self._uptime_ms + world.now_ms
            later_ms = world.observer.late_ms if world.now_ms < world.observer.late_until_ms else 0
            later_ms = world.rng.randint(0, later_ms) if later_ms else world.rng.choice((0, 0, 1, 15, 40))
            world.after(later_ms, self._append, Tick(observer=self.name, uptime_ms=uptime_ms))

    def _append(self, tick: Tick) -> None:
        """A tick that cannot be appended is dropped."""
        world = self._world
        if world.now_ms >= max(world.unobserved_until_ms, world.broker.dark_until_ms):
            world.broker.append(tick, world.now_ms)


class Observer:
    """What all its processes know: the topics.  One of them appends all routes now and then, and what changes."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.routed = dict(zip(TOPICS, world.plan.queues, strict=True))
        """Topic -> how many queues it has; 0: it is gone."""
        self.rooms: dict[Queue, str] = {}
        self.late_until_ms = 0
        """Until then a tick may be late by ..."""
        self.late_ms = 0
        """... so much."""
        self.topic_ids = dict.fromkeys(TOPICS, "1")
        self.tickers: list[Ticker] = []
        self._patterns: set[tuple[str, str]] = set()
        """Group and pattern of its clients."""
        self._lists: deque[set[str]] = deque(maxlen=4)
        """The topics that existed when they were listed last, the newest last."""
        self._rng = Random(f"patterns {world.plan.seed}")  # of its own, so that older seeds stay the same

    def start(self) -> None:
        """Begin."""
        self._route_all()
        for _ in range(self._world.plan.observers):
            self.start_ticker()

    def start_ticker(self) -> None:
        """One more process ticks."""
        self.tickers.append(Ticker(self._world, len(self.tickers)))

    def end_ticker(self, number: int) -> None:
        """One of those that live ends; another one begins in its place if it was the last."""
        living = [ticker for ticker in self.tickers if ticker.alive]
        living[number % len(living)].alive = False
        if len(living) == 1:
            self.start_ticker()

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

    def delete(self, topic: str, *, tells: bool) -> None:
        """A topic is deleted, with all its messages; whether anybody sees that it is gone depends."""
        self.routed[topic] = 0
        self.topic_ids[topic] += "1"
        self._world.delete(topic)
        if tells:
            self._route(topic)

    def make(self, topic: str) -> None:
        """A topic that was deleted is made again."""
        self.come_back(topic)
        self._world.after(1_000, self._route, topic)  # two routes in a row prove that it is another topic

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

    def _route_all(self) -> None:
        self._world.after(ROUTES_MS, self._route_all)
        for topic in TOPICS:
            self._route(topic)
        self._match_all()

    def note_pattern(self, group_id: str, pattern: str) -> None:
        """A client subscribes a pattern; its group is told the topics soon, if it is a new one."""
        if (group_id, pattern) not in self._patterns:
            self._patterns.add((group_id, pattern))
            self._world.after(self._rng.choice((50, 300, 2_000)), self._match, group_id, pattern)

    def _match_all(self) -> None:
        """Tell all groups the topics of their patterns; at times by an observer that has listed them before."""
        self._lists.append({topic for topic in TOPICS if self.routed[topic]})
        listed = self._rng.choice(self._lists) if self._rng.random() < 0.3 else self._lists[-1]
        for group_id, pattern in sorted(self._patterns):
            self._match(group_id, pattern, listed)

    def _match(self, group_id: str, pattern: str, listed: set[str] | None = None) -> None:
        world = self._world
        if world.now_ms < max(world.unobserved_until_ms, world.broker.dark_until_ms):
            world.after(1_000, self._match, group_id, pattern)
            return
        existing = {topic for topic in TOPICS if self.routed[topic]} if listed is None else listed
        topics = sorted(topic for topic in existing if re.fullmatch(pattern, topic))
        world.broker.append(Matches(group_id=group_id, pattern=pattern, topics=topics), world.now_ms)

    def _route(self, topic: str) -> None:
        world = self._world
        if world.now_ms < max(world.unobserved_until_ms, world.broker.dark_until_ms):
            world.after(1_000, self._route, topic)
            return
        world.broker.append(self.route(topic), world.now_ms)
        if self._patterns:
            self._world.after(self._rng.choice((0, 10, 1_500)), self._match_all)

    def route(self, topic: str) -> Route:
        """Return what there is to say of a topic now."""
        queues = [
            RoutedQueue(
                topic=topic,
                broker="",
                queue_id=queue.queue_id,
                room=self.room(queue),
                max_offset=self._world.ends.get(queue, 0),
            )
            for queue in self.queues(topic)
        ]
        version = ",".join(one.room for one in queues) + f":{len(queues)}"
        return Route(topic=topic, queues=queues, version=version, topic_id=self.topic_ids[topic] if queues else "")
