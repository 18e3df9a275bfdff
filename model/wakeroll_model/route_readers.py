"""The groups that receive a route, by its topic; and the topics whose routes no group needs any more."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from wakeroll_model import config
from wakeroll_model.entity_machines import Entity, Machine
from wakeroll_model.events import Route
from wakeroll_model.shard_state import ShardState


class RouteReaders:
    """Topic -> the groups that subscribe it, and those that must receive every route of it."""

    def __init__(self, state: ShardState, machine: Machine) -> None:
        """Continue with the readers, the watchers and the routed topics of a state, which are changed in place."""
        self._state = state
        self._machine = machine
        self._topics: dict[str, tuple[list[str], list[str]]] = {}
        """Decoded entity -> the topics under which it is listed in `readers`, and in `watchers`."""

    def of(self, topic: str, *, is_changed: bool) -> tuple[str, ...]:
        """Return the names of the entities that receive a route of a topic, sorted."""
        listed = self._state.readers if is_changed else self._state.watchers
        return tuple(listed.get(topic, ()))

    def begin(self, name: str, entity: Entity) -> None:
        """Note the topics under which an entity is listed; call it before the entity changes."""
        self._topics[name] = self._machine.topics(entity), self._machine.watched(entity)

    def update(self, name: str, entity: Entity, *, subscribes: bool = True) -> None:
        """List an entity under its topics; `subscribes`: whether its subscriptions may have changed."""
        before = self._topics[name]
        topics = self._machine.topics(entity) if subscribes else before[0]
        now = topics, self._machine.watched(entity)
        if now != before:
            _enter(self._state.readers, name, before[0], now[0])
            _enter(self._state.watchers, name, before[1], now[1])
            self._topics[name] = now

    def drop(self, name: str, entity: Entity) -> None:
        """Forget a blank entity."""
        self.update(name, entity)
        del self._topics[name]

    def note_route(self, route: Route, now_ms: int) -> None:
        """Note that an observer has sent the route of a topic, at a time of the shard's clock."""
        state, topic = self._state, route.topic
        state.routed_topics.pop(topic, None)
        state.absent.pop(topic, None)
        topics = state.routed_topics if route.queues or state.level < 3 else state.absent
        topics[topic] = now_ms

    def unread(self, now_ms: int) -> Iterator[str]:
        """Yield, and forget, the topics that no observer has repeated for long and that no group subscribes."""
        yield from self._unread(self._state.routed_topics, now_ms, config.KEEP_ROUTE_MS)
        yield from self._unread(self._state.absent, now_ms, config.ABSENT_ROUTE_MS)

    def _unread(self, topics: dict[str, int], now_ms: int, keep_ms: int) -> Iterator[str]:
        while topics:
            topic, routed_ms = next(iter(topics.items()))
            if now_ms - routed_ms < keep_ms:
                return
            del topics[topic]
            if topic in self._state.readers:
                topics[topic] = now_ms
            else:
                yield topic


def _enter(index: dict[str, list[str]], name: str, before: list[str], topics: list[str]) -> None:
    """List a name under its new topics, in order, and remove it from those it no longer has."""
    was, now = set(before), set(topics)
    for topic in topics:
        if topic not in was:
            insort(index.setdefault(topic, []), name)
    for topic in before:
        if topic not in now:
            names = index.get(topic, [])
            place = bisect_left(names, name)
            if names[place : place + 1] == [name]:  # else the state comes from a version that did not list it
                del names[place]
            if topic in index and not names:
                del index[topic]
