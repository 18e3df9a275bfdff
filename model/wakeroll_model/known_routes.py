"""The queues of every topic for which a shard has a route."""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from wakeroll_model.events import Route, RoutedQueue
from wakeroll_model.queue import Queue

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Route).decode


class _Change(Struct):
    """A change of the routes; a route is msgpack, None if there is none."""

    topic: str
    before: bytes | None
    after: bytes | None


class Routes:
    """Topic -> its newest route. Routes are stored as bytes, because a batch needs only few of them."""

    def __init__(self, encoded: dict[str, bytes]) -> None:
        """Continue with these routes; the map is changed in place."""
        self.encoded = encoded
        """Topic -> its route as msgpack: the part that the shard's state stores."""
        self._decoded: dict[str, Route] = {}
        self._queues: dict[str, tuple[Queue, ...]] = {}
        self._details: dict[str, dict[Queue, RoutedQueue]] = {}
        self._journal: list[_Change] = []

    @property
    def topics(self) -> list[str]:
        """The topics with a known route, sorted."""
        return sorted(self.encoded)

    def get(self, topic: str) -> Route | None:
        """Return the newest route of a topic; None if there is none."""
        if topic not in self._decoded:
            if topic not in self.encoded:
                return None
            self._decoded[topic] = _decode(self.encoded[topic])
        return self._decoded[topic]

    def queues(self, topic: str) -> tuple[Queue, ...] | None:
        """Return a topic's queues in order, empty if it was deleted; None if it was never routed."""
        if topic not in self._queues:
            route = self.get(topic)
            if route is None:
                return None
            self._queues[topic] = tuple(sorted({routed.queue for routed in route.queues}))
        return self._queues[topic]

    def details(self, queues: Iterable[Queue]) -> dict[Queue, RoutedQueue]:
        """Return these queues as the newest routes describe them; leave out queues without a route.

        A slice is described as its whole queue.
        """
        wanted: dict[Queue, list[Queue]] = {}
        for queue in dict.fromkeys(queues):
            wanted.setdefault(queue.whole, []).append(queue)
        routes = [self.get(topic) for topic in sorted({queue.topic for queue in wanted})]
        details = [one for route in routes if route for one in route.queues]
        return {queue: one for one in details for queue in wanted.get(one.queue, ())}

    def detail(self, queue: Queue) -> RoutedQueue | None:
        """Return a queue as the newest route describes it; None if it is not routed."""
        details = self._details.get(queue.topic)
        if details is None:
            route = self.get(queue.topic)
            details = self._details[queue.topic] = {one.queue: one for one in route.queues} if route else {}
        return details.get(queue.whole)

    def lacks(self, queue: Queue) -> bool:
        """Return whether a topic is routed without this queue; False if the topic was never routed."""
        return self.detail(queue) is None and self.get(queue.topic) is not None

    def forget(self, topic: str) -> None:
        """Forget a topic."""
        self._change(topic, None)

    def learn(self, route: Route) -> bool:
        """Store a route; return whether it concerns all groups that subscribe its topic.

        It does if queues or rooms differ from those of the former route (with an equal version, they do not), if the
        topic was recreated under the same name, or if a queue ends earlier than before.
        """
        known = self.get(route.topic)
        self._change(route.topic, _encode(route))
        self._decoded[route.topic] = route
        return known is None or known.version != route.version or _is_another(known, route)

    # --- routes of the past ---

    @property
    def mark(self) -> int:
        """Number of changes since the last `forget_changes`; it identifies the current routes."""
        return len(self._journal)

    def at(self, mark: int) -> "Routes":
        """Return the routes as of a mark: a copy if they have changed since."""
        if mark == self.mark:
            return self
        encoded = dict(self.encoded)
        for change in reversed(self._journal[mark:]):
            _put(encoded, change.topic, change.before)
        past = Routes(encoded)
        past._journal = self._journal[:mark]
        return past

    def follow(self, other: "Routes", mark: int) -> None:
        """Apply to this copy the changes of the original up to a mark, which is not before this copy's own mark."""
        for change in other._journal[self.mark : mark]:
            self._change(change.topic, change.after)

    def forget_changes(self) -> None:
        """Forget the changes so far; marks begin again at 0."""
        self._journal.clear()

    def _change(self, topic: str, after: bytes | None) -> None:
        self._journal.append(_Change(topic, self.encoded.get(topic), after))
        _put(self.encoded, topic, after)
        self._decoded.pop(topic, None)
        self._queues.pop(topic, None)
        self._details.pop(topic, None)


def _put(encoded: dict[str, bytes], topic: str, route: bytes | None) -> None:
    if route is None:
        encoded.pop(topic, None)
    else:
        encoded[topic] = route


def _is_another(known: Route, route: Route) -> bool:
    """Return whether a topic with the same queues was recreated or truncated."""
    if known.topic_id != route.topic_id:
        return True
    ends = {one.queue: one.max_offset or 0 for one in known.queues}
    return any(one.max_offset is not None and one.max_offset < ends.get(one.queue, 0) for one in route.queues)
