"""The observer: by records of the log, it reports the time, the queues of topics, and their growth to the coordinator.

It has no state of its own: it reads everything from the log and the brokers, so it may stop and start at any time. Two
observers may run at once: a clock advances by the time between ticks, however many there are, and a repeated route or
arrival changes nothing.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message

from wakeroll.connection import Connection, is_legal
from wakeroll.errors import NotReachable
from wakeroll_model.config import DEFAULT_LIMITS, MAX_QUEUES, Limits
from wakeroll_model.events import Matches, Route
from wakeroll_model.partitioner import partition_of
from wakeroll_model.signing import Keys
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.kafka.refused_login import login_watched
from wakeroll_pipeline.kafka.rights_check import require_rights
from wakeroll_pipeline.kafka.topic_admin import Cluster, Racks
from wakeroll_pipeline.metrics.observer_metrics import FULL, Kind, ObserverMetrics
from wakeroll_pipeline.observer import subscribed_topics
from wakeroll_pipeline.observer.arrival_events import Announcer
from wakeroll_pipeline.observer.offset_mirror import OffsetMirror
from wakeroll_pipeline.observer.pattern_book import PatternBook
from wakeroll_pipeline.observer.signed_producers import ENDS_MS, SignedProducer
from wakeroll_pipeline.observer.subscribed_topics import GroupRecord, OffsetsSet, Subscribed
from wakeroll_pipeline.observer.ticks import Ticker, next_due_s
from wakeroll_pipeline.observer.topic_follower import Follower
from wakeroll_pipeline.observer.topic_routes import RouteBook, Watch

log = logging.getLogger(__name__)

POLL_S = 1.0
"""Interval of the queries for the queues of all subscribed topics (s)."""
_ANSWER_S = 3.0
_ROUTE_TIMEOUT_MS = 10_000
_LISTEN_S = 0.5
_FLUSH_S = 0.5


def observe(
    connection: Connection,
    keys: Keys,
    stop: threading.Event,
    limits: Limits = DEFAULT_LIMITS,
    mirrored: re.Pattern[str] | None = None,
    metrics: ObserverMetrics | None = None,
) -> None:
    """Send signed ticks, routes and arrivals until `stop` is set; then return within 2 seconds.

    If the broker or a topic is missing, wait for it. An error sets `stop` too. Each tick contains the limits of this
    deployment. The committed offsets of groups whose names match `mirrored` are copied to Kafka's own groups. `metrics`
    receive the sent records, the followed topics, and the rounds of each thread.

    Raises:
        InvalidUsage: Kafka's client rejects the settings, or there is no observer key.
        LoginFailed: the brokers reject the login at the start, or for 15 s later on.
        AccessDenied: the brokers deny a right at the start.
    """
    require_rights(connection, ["mirror" if mirrored else "observer"], _ANSWER_S, must_answer=False)
    cluster = Cluster(connection, patience_s=_ANSWER_S, stop=stop)
    metrics = metrics or ObserverMetrics(mirrors=mirrored is not None)
    ticker = Ticker(connection, keys, metrics, limits)
    announcer = Announcer(connection, keys, stop, metrics)
    router = Router(connection, keys, cluster, ticker, announcer, metrics)
    mirror = OffsetMirror(connection, mirrored, stop, metrics) if mirrored is not None else None
    log.info("observing %s for %s", connection.bootstrap, ", ".join(connection.topics.control))
    # Each has a thread of its own: waits of the router and the mirror delay neither the clock nor the wakes.
    with login_watched(connection, stop), ThreadPoolExecutor(3, "observer") as pool:
        working = [pool.submit(ticker.run, stop), pool.submit(announcer.run, stop)]
        if mirror is not None:
            working.append(pool.submit(mirror.run))
        try:
            router.run(stop)
        finally:
            stop.set()
            metrics.health.stopping()
            router.close()
        for work in working:
            work.result()
    log.info("stopped")


class _Appended(NamedTuple):
    """An event that is sent to the shards."""

    kind: Kind
    name: str
    """The event in words."""
    lost: Callable[[], None]
    """Called if it was not delivered."""


class Router:
    """Follows the subscriptions, queries the brokers for the queues of their topics, and sends routes to the shards."""

    def __init__(
        self,
        connection: Connection,
        keys: Keys,
        cluster: Cluster,
        ticker: Ticker,
        announcer: Announcer,
        metrics: ObserverMetrics,
    ) -> None:
        """Create the clients; no query is sent yet.

        `ticker` receives the control partitions and their ends, `announcer` the subscribed topics.
        """
        self._names = connection.topics
        self._cluster = cluster
        self._ticker = ticker
        self._announcer = announcer
        self._metrics = metrics
        self._book = RouteBook()
        self._patterns = PatternBook(connection.topics)
        self._control = {topic: Watch() for topic in connection.topics.control}
        self._follower: Follower[GroupRecord] = Follower(connection, connection.topics.groups, subscribed_topics.read)
        self._producer = SignedProducer(connection, keys, _ROUTE_TIMEOUT_MS)
        self._ends: dict[tuple[str, int], int] = {}
        """End offsets of the control partitions, as last returned by the brokers."""
        self._ends_s = 0.0
        self._silence = Trouble(log, "the broker answers")
        self._absence = Trouble(log, "the control topics exist")
        self._delivery = Trouble(log, "routes are delivered again")
        self._oddities: dict[str, str] = {}

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set."""
        due_s = time.monotonic()
        while not stop.is_set():
            self._metrics.health.beat("router")
            if time.monotonic() >= due_s:
                self._ask((*self._control, *self._book.topics), stop)
                for topic in self._book.forget():
                    log.info("topic %s has no subscribers any more", topic)
                self._patterns.forget()
                due_s = next_due_s(due_s, time.monotonic(), POLL_S)
            for record in self._follower.receive(min(max(due_s - time.monotonic(), 0), _LISTEN_S)):
                self._note(record)
            # Not delayed until the next poll: a joining client waits for the routes of its topics.
            if new := self._book.take_new():
                self._ask(new, stop)
            self._match(stop)
            self._announcer.subscribed = self._book.topics
            self._metrics.follows_topics(len(self._book.topics))
            self._producer.poll()

    def close(self) -> None:
        """Send pending records, and stop reading."""
        self._producer.flush(_FLUSH_S)
        self._follower.close()

    def _note(self, record: GroupRecord) -> None:
        match record:
            case Subscribed():
                self._subscribe(wanted.topic for wanted in record.subscriptions)
                if (by_pattern := record.by_pattern) is not None:
                    self._patterns.note(*by_pattern)
            case OffsetsSet():
                self._subscribe({entry.queue.topic for entry in record.offsets})

    def _subscribe(self, topics: Iterable[str]) -> None:
        for topic in topics:
            if is_legal(topic) and topic not in self._names.all:
                self._book.note_subscription(topic)

    def _match(self, stop: threading.Event) -> None:
        """List the topics of the cluster if that is due, and send the groups the topics that match their patterns.

        The routes of new topics go first, so that one target assigns their queues. A topic that does not exist any more
        is not listed; its last route has no queues.
        """
        now_ms = int(time.monotonic() * 1_000)
        if self._patterns.must_list(now_ms):
            try:
                found = self._patterns.learn(self._cluster.names(), now_ms)
            except NotReachable as error:
                self._patterns.postpone(now_ms)
                if not stop.is_set():
                    self._silence.began(f"{error}; retrying")
                return
            self._subscribe(found)
            if new := self._book.take_new():
                self._ask(new, stop)
        for matches in self._patterns.due(now_ms) if self._shards else ():
            self._tell(matches)

    def _tell(self, matches: Matches) -> None:
        key = matches.group_id.encode()
        lost = partial(self._patterns.mark_lost, matches)
        partition = partition_of(key, self._shards)
        self._append(_Appended("matches", f"the topics of pattern {matches.pattern!r}", lost), matches, partition, key)

    def _ask(self, topics: Iterable[str], stop: threading.Event) -> None:
        """Query the brokers for topics, and send the routes that are new or due."""
        try:
            found = self._cluster.racks(topics)
            self._take(found)
            self._learn_ends(found)
            if self._shards:
                self._follower.follow(self._shards, self._cluster)
                self._send_due(found)
        except NotReachable as error:
            if not stop.is_set():
                self._silence.began(f"{error}; retrying")
                self._book.trust_all()
        else:
            self._silence.ended()

    @property
    def _shards(self) -> int:
        return len(self._control[self._names.groups].rooms)

    def _take(self, found: dict[str, Racks | KafkaError]) -> None:
        """Process the brokers' answers: update the routes, or the control partitions for the ticker."""
        for topic, racks in found.items():
            watch = self._control.get(topic) or self._book.watch(topic)
            if isinstance(racks, KafkaError):
                watch.trust()
                self._remark(topic, f"cannot be read: {racks.str()}")
                continue
            watch.read(racks)
            if topic not in self._control:
                self._remark(topic, "" if racks or watch.existed else "does not exist")
        if missing := [topic for topic, watch in self._control.items() if not watch.rooms]:
            self._absence.began(f"there is no topic {' and no '.join(missing)}; `wakeroll run` creates it; waiting")
        else:
            self._absence.ended()

    def _learn_ends(self, found: dict[str, Racks | KafkaError]) -> None:
        """Query the ends of the control partitions, if one is new or a query is due, and pass them to the ticker."""
        led = {
            (topic, partition)
            for topic in self._control
            if not isinstance(racks := found.get(topic, Racks()), KafkaError)
            for partition, rack in racks.items()
            if rack is not None
        }
        now_s = time.monotonic()
        if led <= self._ends.keys() and now_s - self._ends_s < ENDS_MS / 1_000:
            return
        ends = self._cluster.ends(led)
        self._ends_s = now_s
        self._ends.update(ends)
        self._producer.learn(ends)
        partitions = ((topic, number) for topic, watch in self._control.items() for number in range(len(watch.rooms)))
        self._ticker.ends = {where: self._ends[where] for where in partitions if where in self._ends}

    def _send_due(self, found: dict[str, Racks | KafkaError]) -> None:
        """Send the due routes, among the topics that were just queried, to every shard."""
        now_ms = int(time.monotonic() * 1000)
        due = [topic for topic in self._book.due(now_ms) if topic in found]
        offsets = self._cluster.offsets(
            (topic, queue_id)
            for topic in due
            if not isinstance(racks := found[topic], KafkaError)
            for queue_id, rack in racks.items()
            if rack is not None
        )
        for topic in due:
            watch = self._book.watch(topic)
            news = watch.is_news
            route = watch.next_route(topic, offsets, now_ms)
            if len(route.queues) > MAX_QUEUES:
                self._remark(topic, f"has {len(route.queues)} queues; at most {MAX_QUEUES} are supported; not routed")
                continue
            if news and route.queues:
                log.info("topic %s has %d queues, version %s", topic, len(route.queues), route.version)
            elif news and watch.existed:
                log.info("topic %s was deleted", topic)
                self._patterns.repeat(topic)
            self._send(route)

    def _send(self, route: Route) -> None:
        lost = partial(self._book.mark_lost, route.topic)
        for partition in range(self._shards):
            self._append(_Appended("route", f"the route of {route.topic}", lost), route, partition)

    def _append(self, what: "_Appended", event: Route | Matches, partition: int, key: bytes | None = None) -> None:
        try:
            self._producer.produce(
                self._names.groups,
                msgspec.json.encode(event),
                partition,
                key=key,
                on_delivery=partial(self._delivered, what),
            )
        except BufferError:  # a million shards and topics; the next poll sends the rest
            self._metrics.failed(what.kind, FULL)
            what.lost()
        except KafkaException as error:
            self._metrics.failed(what.kind, error.args[0].name())
            self._delivery.began(f"cannot send {what.name}: {error.args[0].str()}")

    def _delivered(self, what: "_Appended", error: KafkaError | None, message: Message) -> None:
        self._metrics.delivered(what.kind, message, error)
        if error is None:
            self._delivery.ended()
        else:
            self._delivery.began(f"{what.name} was not delivered: {error.str()}")
            what.lost()

    def _remark(self, topic: str, oddity: str) -> None:
        """Log a problem of a topic once; "" means that it has none."""
        if oddity and self._oddities.get(topic) != oddity:
            log.warning("topic %s %s", topic, oddity)
        self._oddities[topic] = oddity
