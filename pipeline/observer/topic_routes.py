"""Which topics are subscribed, what their queues are, and when the shards must be told."""

import hashlib
from collections.abc import Mapping

import msgspec

from model.events import Route, RoutedQueue
from pipeline.kafka.topic_admin import Racks

REFRESH_MS = 30_000
"""All routes are told this often, which is less than a session: for fresh offsets, for a shard that started without its
state, and for a route that was lost."""
FORGET_READS = 600
"""A topic that nobody has asked for during so many reads, of a second each, is dropped: ten minutes.  Reads are counted
rather than minutes, so that a broker's outage, in which nobody can be heard, is not taken for silence."""
_ROOM_LENGTH = 255

Offsets = Mapping[tuple[str, int], tuple[int, int]]
"""(topic, queue_id) -> its first offset, and that of its next message."""


class Watch:
    """One subscribed topic: what is known of its queues, and what the shards were told last."""

    def __init__(self) -> None:
        self.rooms: dict[int, str] = {}
        """queue_id -> the rack of its leader, as far as two reads agree."""
        self.version = fingerprint({})
        self.absences = 0
        """Reads in a row, up to two, in which the topic did not exist."""
        self.reads_unheard = 0
        self._doubtful: set[int] = set()
        self._offsets: dict[int, tuple[int, int | None]] = {}
        self._told_version: str | None = None
        self._told_ms = 0
        self.topic_id = ""
        """Of the topic that the brokers have now; empty: not known."""
        self._told_ids = ["", ""]
        """Of the last two routes: a shard believes in another topic when two routes in a row say so."""

    def read(self, racks: Racks | dict[int, str | None]) -> None:
        """Take what the brokers say of the topic now.

        A broker that is starting, or behind, may know less than there is: a queue is gone when two reads in a row do
        not show it.  One without a leader is not gone, and stays in its room.
        """
        self.absences = 0 if racks else min(self.absences + 1, 2)
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
        """Forget the last read's doubts: it was not followed by another."""
        self._doubtful.clear()
        self.absences = 0

    def is_due(self, now_ms: int) -> bool:
        """Whether something new is to be told, or the old again."""
        return self.is_news or now_ms - self._told_ms >= REFRESH_MS

    @property
    def is_news(self) -> bool:
        """Whether queues or rooms are others than the shards were told."""
        return self.version != self._told_version or self._told_ids != [self.topic_id] * 2

    @property
    def is_told(self) -> bool:
        """Whether the shards were told anything."""
        return self._told_version is not None

    def tell(self, topic: str, offsets: Offsets, now_ms: int) -> Route:
        """Return the route as it is now; a queue whose offsets are not known has its last ones, none at first."""
        self._offsets = {
            queue_id: offsets.get((topic, queue_id)) or self._offsets.get(queue_id, (0, None))
            for queue_id in self.rooms
        }
        # Nobody has to be convinced by the first route of all.
        self._told_ids = [self._told_ids[1] if self.is_told else self.topic_id, self.topic_id]
        self._told_version, self._told_ms = self.version, now_ms
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
        return Route(topic=topic, queues=queues, version=self.version, topic_id=self.topic_id)

    def unsaid(self) -> None:
        """The last telling did not arrive: tell it again."""
        self._told_version = None


class RouteBook:
    """All subscribed topics.  One that never existed has no route; one that existed and is gone has an empty one."""

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}
        self._new: list[str] = []
        # Kept when a topic is dropped, and learnt from the log by an observer that starts: who subscribes a topic that
        # was deleted meanwhile must still be told that it is gone.
        self._existed: set[str] = set()

    @property
    def topics(self) -> list[str]:
        """The subscribed topics, sorted."""
        return sorted(self._watches)

    def watch(self, topic: str) -> Watch:
        """Return a subscribed topic."""
        return self._watches[topic]

    def take_new(self) -> list[str]:
        """Return the topics that were heard of since this was asked last, for the first time."""
        new, self._new = self._new, []
        return new

    def hear(self, topic: str) -> None:
        """Somebody subscribes `topic`."""
        if topic not in self._watches:
            self._watches[topic] = Watch()
            self._new.append(topic)
        self._watches[topic].reads_unheard = 0

    def remember(self, topic: str) -> None:
        """The log says that `topic` had queues."""
        self._existed.add(topic)

    def trust_all(self) -> None:
        """The brokers did not answer: two reads are in a row only without this between them."""
        for watch in self._watches.values():
            watch.trust()

    def forget(self) -> list[str]:
        """Count a read of everything; drop the topics that nobody has asked for lately, and return them."""
        for watch in self._watches.values():
            watch.reads_unheard += 1
        forgotten = [topic for topic, watch in self._watches.items() if watch.reads_unheard > FORGET_READS]
        for topic in forgotten:
            del self._watches[topic]
        return forgotten

    def due(self, now_ms: int) -> list[str]:
        """Return the topics whose routes must be told now; `now_ms` is any clock that never falls."""
        self._existed.update(topic for topic, watch in self._watches.items() if watch.rooms)
        return [
            topic
            for topic, watch in self._watches.items()
            if (watch.rooms or (watch.absences == 2 and topic in self._existed)) and watch.is_due(now_ms)
        ]

    def unsaid(self, topic: str) -> None:
        """A route did not arrive: it is due again."""
        if topic in self._watches:
            self._watches[topic].unsaid()


def fingerprint(rooms: Mapping[int, str]) -> str:
    """Return a name for these queues in these rooms: the same for the same, in any process.

    >>> fingerprint({1: "", 0: "a"}) == fingerprint({0: "a", 1: ""})
    True
    """
    return hashlib.blake2b(msgspec.json.encode(sorted(rooms.items())), digest_size=8).hexdigest()
