"""The topics of Kafka's groups by the answers of brokers: ids, partitions and ends, as routes."""

import logging
import time
from collections.abc import Collection, Iterable, Mapping

from confluent_kafka import KafkaError

from wakeroll.connection import Connection
from wakeroll_model.config import MAX_QUEUES
from wakeroll_model.coordinator_log.kafka_events import (
    AnyKafkaEvent,
    Committed,
    CurrentSeen,
    Described,
    ExpressionSeen,
    Generation,
    MemberSeen,
    TargetSeen,
    TopicsSeen,
)
from wakeroll_model.events import Route
from wakeroll_pipeline.kafka.topic_admin import Cluster, Racks
from wakeroll_pipeline.observer.topic_routes import RouteBook

log = logging.getLogger(__name__)

_URL_SAFE = str.maketrans("+/", "-_")
"""Alphabet in which Kafka prints ids; its C client uses the other one."""


class TopicFacts:
    """The topics of the groups that are watched. For one thread."""

    def __init__(self, connection: Connection, patience_s: float) -> None:
        """Prepare; nothing is sent yet.

        Args:
            connection: the brokers.
            patience_s: how long to wait for each answer (s).

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        self._cluster = Cluster(connection, patience_s=patience_s)
        self._book = RouteBook()
        self._names: dict[str, str] = {}
        """Id of a topic -> its name."""

    def name_of(self, topic_id: str) -> str:
        """Return the name of a topic by its id; the id itself if the topic is not known, as after its deletion."""
        return self._names.get(topic_id, topic_id)

    def learn(self, ids: Mapping[str, str]) -> None:
        """Note topic ids from a record."""
        self._names.update(ids)

    def learn_all(self, topics: Collection[str]) -> None:
        """Query the ids of all topics that are not known yet.

        Raises:
            NotReachable: no broker answered.
        """
        known = set(self._names.values())
        if unknown := [topic for topic in topics if topic not in known]:
            self._note_ids(self._cluster.racks(unknown))

    def hear(self, event: AnyKafkaEvent) -> None:
        """Note the topics of an event: their routes are due from now on."""
        self.hear_all(_topics_of(event))

    def hear_all(self, topics: Iterable[str]) -> None:
        """Note the topics of recorded groups."""
        for topic in topics:
            self._book.note_subscription(topic)

    def routes(self) -> list[Route]:
        """Query the topics of all groups, and return the routes that are new or due.

        Raises:
            NotReachable: no broker answered.
        """
        topics = self._book.topics
        if not topics:
            return []
        found = self._cluster.racks(topics)
        self._note_ids(found)
        for topic, racks in found.items():
            watch = self._book.watch(topic)
            if isinstance(racks, KafkaError):
                watch.trust()
            else:
                watch.read(racks)
        now_ms = int(time.monotonic() * 1_000)
        due = self._book.due(now_ms)
        led = (
            (topic, number)
            for topic in due
            if isinstance(racks := found[topic], Racks)
            for number, rack in racks.items()
            if rack is not None
        )
        offsets = self._cluster.offsets(led)
        told = [self._book.watch(topic).next_route(topic, offsets, now_ms) for topic in due]
        return [route for route in told if len(route.queues) <= MAX_QUEUES]

    def _note_ids(self, found: Mapping[str, Racks | KafkaError]) -> None:
        for topic, racks in found.items():
            if isinstance(racks, Racks) and racks.topic_id:
                self._names[racks.topic_id.translate(_URL_SAFE)] = topic


def _topics_of(event: AnyKafkaEvent) -> Iterable[str]:
    match event:
        case Generation() | Described():
            for one in event.members:
                yield from (*one.member.topics, *one.queues)
        case Committed():
            yield from {one.queue.topic for one in event.offsets}
        case MemberSeen():
            yield from () if event.member is None else event.member.topics
        case TargetSeen() | CurrentSeen() if event.protocol != "streams":
            yield from event.queues or ()
        case TopicsSeen() | ExpressionSeen():
            yield from event.topics or ()
        case _:
            return
