"""The queues of every topic that a shard has heard of."""

from collections.abc import Iterable

import msgspec

from model.events import Route, RoutedQueue
from model.queue import Queue

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Route).decode


class Routes:
    """Topic -> its newest route.  Kept as bytes, for a batch needs few of them."""

    def __init__(self, encoded: dict[str, bytes]) -> None:
        self.encoded = encoded
        """Topic -> the route as msgpack: what the shard's state keeps."""
        self._decoded: dict[str, Route] = {}

    @property
    def topics(self) -> list[str]:
        """The topics that there ever was a route of, sorted."""
        return sorted(self.encoded)

    def get(self, topic: str) -> Route | None:
        """Return the newest route of a topic; None if there never was one."""
        if topic not in self._decoded:
            if topic not in self.encoded:
                return None
            self._decoded[topic] = _decode(self.encoded[topic])
        return self._decoded[topic]

    def queues(self, topic: str) -> list[Queue] | None:
        """Return a topic's queues in order, none if it is gone; None if it was never routed."""
        route = self.get(topic)
        return None if route is None else sorted({routed.queue for routed in route.queues})

    def details(self, queues: Iterable[Queue]) -> dict[Queue, RoutedQueue]:
        """Return what the newest routes say of these queues; without those that are not routed."""
        wanted = set(queues)
        routes = [self.get(topic) for topic in sorted({queue.topic for queue in wanted})]
        return {one.queue: one for route in routes if route for one in route.queues if one.queue in wanted}

    def learn(self, route: Route) -> bool:
        """Take a route; return whether queues or rooms differ from what was known (an equal version says no)."""
        known = self.get(route.topic)
        self._decoded[route.topic] = route
        # A new map, so that whoever kept the old one has the routes as they were.
        self.encoded = {**self.encoded, route.topic: _encode(route)}
        return known is None or known.version != route.version
