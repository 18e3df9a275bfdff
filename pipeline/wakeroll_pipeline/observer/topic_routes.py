"""The subscribed topics, their queues, and the times at which routes are due."""

import hashlib
from collections.abc import Mapping

import msgspec

from wakeroll_model.events import Route, RoutedQueue
from wakeroll_pipeline.kafka.topic_admin import Racks

REFRESH_MS = 30_000
"""Interval in which each route is repeated (ms), less than a session: for new offsets, for a shard that started without
its state, and for a lost route."""
FORGET_READS = 600
"""Number of reads, one per second, after which a topic without subscribers is dropped: ten minutes. Reads are counted
instead of time, because no heartbeat arrives during an outage of the broker."""
_ROOM_LENGTH = 255

Offsets = Mapping[tuple[str, int], tuple[int, int]]
"""(topic, queue_id) -> first offset and end offset."""


class Watch:
    """One subscribed topic: its known queues, and the last route that was sent."""

    def __init__(self) -> None:
        self.rooms: dict[int, str] = {}
        """queue_id -> rack of its leader, as confirmed by two reads."""
        self.version = fingerprint({})
        self.absences = 0
        """Consecutive reads, up to two, in which the topic did not exist."""
        self.reads_unsubscribed = 0
        self.existed = False
        """Whether a read found the topic."""
        self._is_new: bool | None = None
        """Whether the first read did not find the topic; None before it."""
        self._doubtful: set[int] = set()
        self._offsets: dict[int, tuple[int, int | None]] = {}
        self._sent_version: str | None = None
        self._sent_ms = 0
        self.topic_id = ""
        """Id of the topic in the brokers now; empty if unknown."""
        self._sent_ids = ["", ""]
        """Topic ids in the last two routes: a shard accepts a new topic id when two consecutive routes have it."""

    def read(self, racks: Racks | dict[int, str | None]) -> None:
        """Process the brokers' current metadata of the topic.

        A broker that is starting or lagging may not have all queues in its metadata: a queue is gone only if two
        consecutive reads do not contain it. A queue without a leader is not gone, and keeps its room.
        """
        self.absences = 0 if racks else min(self.absences + 1, 2)
        if self._is_new is None:
            self._is_new = not racks
        self.existed |= bool(racks)
        self.topic_id = getattr(racks, "topic_id", "") or self.topic_id
        before = dict(self.rooms)
        missing = self.rooms.keys() - racks.keys()
        for queue_id in missing & self._doubtful:
            del self.rooms[queue_id]
        self._doubtful = missing - self._doubtful
        for queue_id, rack in racks.items():
            if rack is not None or queue_id not in self.rooms:
                self.rooms[queue_id] = (rack or "")[:_ROOM_LENGTH]
        if self.rooms != before:
            self.version = fingerprint(self.rooms)

    def trust(self) -> None:
        """Discard unconfirmed changes of the last read, because the next read failed."""
        self._doubtful.clear()
        self.absences = 0

    def is_due(self, now_ms: int) -> bool:
        """Return whether the route has changed, or must be repeated."""
        return self.is_news or now_ms - self._sent_ms >= REFRESH_MS

    @property
    def is_news(self) -> bool:
        """Whether the queues, their rooms or the topic id differ from the last route sent."""
        return self.version != self._sent_version or self._sent_ids != [self.topic_id] * 2

    @property
    def is_sent(self) -> bool:
        """Whether any route was sent."""
        return self._sent_version is not None

    def next_route(self, topic: str, offsets: Offsets, now_ms: int) -> Route:
        """Return the route to send now. A queue with unknown offsets keeps its previous ones; at first it has none."""
        self._offsets = {
            queue_id: offsets.get((topic, queue_id)) or self._offsets.get(queue_id, (0, None))
            for queue_id in self.rooms
        }
        # One read proves too little about a topic that the group may have offsets of; a shard takes it for new topics.
        is_new = bool(self._is_new and self.rooms and not self.is_sent)
        # The very first route is accepted at once, so its id counts twice.
        self._sent_ids = [self._sent_ids[1] if self.is_sent else self.topic_id, self.topic_id]
        self._sent_version, self._sent_ms = self.version, now_ms
        queues = [
            RoutedQueue(
                topic=topic,
                broker="",
                queue_id=queue_id,
                room=self.rooms[queue_id],
                min_offset=self._offsets[queue_id][0],
                max_offset=self._offsets[queue_id][1],
            )
            for queue_id in sorted(self.rooms)
        ]
        return Route(topic=topic, queues=queues, version=self.version, topic_id=self.topic_id, is_new=is_new)

    def mark_lost(self) -> None:
        """Mark the last route as lost, so that it is sent again."""
        self._sent_version = None


class RouteBook:
    """All subscribed topics. A topic that does not exist has an empty route.

    Groups that wait for it consume it from its first message when it is created.
    """

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}
        self._new: list[str] = []

    @property
    def topics(self) -> list[str]:
        """The subscribed topics, sorted."""
        return sorted(self._watches)

    def watch(self, topic: str) -> Watch:
        """Return the state of a subscribed topic."""
        return self._watches[topic]

    def take_new(self) -> list[str]:
        """Return the topics that were subscribed for the first time since the last call."""
        new, self._new = self._new, []
        return new

    def note_subscription(self, topic: str) -> None:
        """Record a subscription to `topic`."""
        if topic not in self._watches:
            self._watches[topic] = Watch()
            self._new.append(topic)
        self._watches[topic].reads_unsubscribed = 0

    def trust_all(self) -> None:
        """Record that the brokers did not answer: reads before and after this are not consecutive."""
        for watch in self._watches.values():
            watch.trust()

    def forget(self) -> list[str]:
        """Count a read of all topics; drop topics without recent subscriptions, and return them."""
        for watch in self._watches.values():
            watch.reads_unsubscribed += 1
        forgotten = [topic for topic, watch in self._watches.items() if watch.reads_unsubscribed > FORGET_READS]
        for topic in forgotten:
            del self._watches[topic]
        return forgotten

    def due(self, now_ms: int) -> list[str]:
        """Return the topics whose routes must be sent now; `now_ms` is any clock that never goes back."""
        return [
            topic
            for topic, watch in self._watches.items()
            if (watch.rooms or watch.absences == 2) and watch.is_due(now_ms)
        ]

    def mark_lost(self, topic: str) -> None:
        """Mark a route as lost: it is due again."""
        if topic in self._watches:
            self._watches[topic].mark_lost()


def fingerprint(rooms: Mapping[int, str]) -> str:
    """Return a fingerprint of these queues and rooms; equal input gives equal fingerprints, in any process.

    >>> fingerprint({1: "", 0: "a"}) == fingerprint({0: "a", 1: ""})
    True
    """
    return hashlib.blake2b(msgspec.json.encode(sorted(rooms.items())), digest_size=8).hexdigest()
