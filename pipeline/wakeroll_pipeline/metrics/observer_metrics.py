"""Metrics of `wakeroll observe`: the records that it appends, its topics and queues, and the mirror of offsets."""

from collections.abc import Mapping
from typing import Literal

from confluent_kafka import KafkaError, Message
from prometheus_client import CollectorRegistry, Counter, Gauge

from wakeroll_model.records import shard_of
from wakeroll_pipeline.metrics.health import Health
from wakeroll_pipeline.metrics.process_metrics import new_registry

Kind = Literal["tick", "route", "arrival", "matches"]
_LAPSE_S = 15.0
"""How long an observer counts as ready after its last tick (s)."""
FULL = "queue full"
"""Cause of a failure: Kafka's client has no room for the record."""


class ObserverMetrics:
    """The metrics of one observer. For any thread."""

    def __init__(self, registry: CollectorRegistry | None = None, *, mirrors: bool = False) -> None:
        """Register the metrics.

        Args:
            registry: receives the metrics; None: a new one, with the metrics of this process.
            mirrors: whether this observer mirrors offsets; if not, it has no metrics of the mirror.
        """
        self.registry = registry = registry or new_registry()
        self.health = Health(
            "no broker has acknowledged a tick yet", lapsed="no broker has acknowledged a tick", lapse_s=_LAPSE_S
        )
        self.mirror = MirrorMetrics(registry if mirrors else None)
        self._ticks = Counter(
            "wakeroll_observer_ticks", "Ticks that a broker has acknowledged.", ["shard"], registry=registry
        )
        self._last_tick = Gauge(
            "wakeroll_observer_last_tick_timestamp_seconds",
            "Time of the last acknowledgement of a tick (Unix time, clock of this machine).",
            ["shard"],
            registry=registry,
        )
        self._routes = Counter(
            "wakeroll_observer_routes",
            "Routes that a broker has acknowledged; a route is sent to every shard of the groups.",
            registry=registry,
        )
        self._arrivals = Counter(
            "wakeroll_observer_arrivals",
            "Arrivals (reports of the end offset of a queue) that a broker has acknowledged.",
            registry=registry,
        )
        self._matches = Counter(
            "wakeroll_observer_matches",
            "Lists of topics that match a pattern, for one group each, that a broker has acknowledged.",
            registry=registry,
        )
        self._ends = Counter(
            "wakeroll_observer_end_offsets_read", "End offsets of queues that brokers have returned.", registry=registry
        )
        self._failures = Counter(
            "wakeroll_observer_failed_deliveries",
            "Records of the observer that are not known to be in the log, by the name of the error of Kafka's client.",
            ["record", "cause"],
            registry=registry,
        )
        self._topics = Gauge(
            "wakeroll_observer_topics", "Topics whose routes are followed, because groups use them.", registry=registry
        )
        self._queues = Gauge("wakeroll_observer_queues", "Queues whose end offsets are read.", registry=registry)
        self._unreadable = Gauge(
            "wakeroll_observer_unreadable_queues",
            "Queues whose end offset could not be read at the last attempt.",
            registry=registry,
        )

    def delivered(self, kind: Kind, message: Message, error: KafkaError | None) -> None:
        """Count the delivery report of a record.

        Args:
            kind: type of the record.
            message: the record.
            error: error because of which the record may not be in the log; None if it is in the log.
        """
        if error is not None:
            self.failed(kind, error.name())
        elif kind == "tick":
            shard = shard_of(message.topic() or "", message.partition() or 0)
            self._ticks.labels(shard).inc()
            self._last_tick.labels(shard).set_to_current_time()
            self.health.ready()
        else:
            counters = {"route": self._routes, "arrival": self._arrivals, "matches": self._matches}
            counters[kind].inc()

    def failed(self, kind: Kind, cause: str) -> None:
        """Count a record that was not appended, or whose acknowledgement did not arrive."""
        self._failures.labels(kind, cause).inc()

    def follows_topics(self, topics: int) -> None:
        """Record how many topics are followed."""
        self._topics.set(topics)

    def follows_queues(self, queues: int) -> None:
        """Record the number of queues whose ends are read."""
        self._queues.set(queues)

    def read_ends(self, ends: int, unreadable: int) -> None:
        """Count end offsets that were read; `unreadable` is the number of queues without a readable one."""
        self._ends.inc(ends)
        self._unreadable.set(unreadable)


class MirrorMetrics:
    """The metrics of the mirror of offsets."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        """Register the metrics, or not: an observer that mirrors nothing does not expose zeros."""
        self._groups = Gauge(
            "wakeroll_observer_mirrored_groups",
            "Groups whose offsets were written to Kafka since the start.",
            registry=registry,
        )
        self._offsets = Counter(
            "wakeroll_observer_mirrored_offsets", "Committed offsets that were written to Kafka.", registry=registry
        )
        self._refused = Gauge(
            "wakeroll_observer_mirror_refused_groups",
            "Groups whose offsets Kafka refuses, for example because its group of this name has members.",
            registry=registry,
        )
        self._unread = Gauge(
            "wakeroll_observer_mirror_unread_records",
            "Records of the decisions topic that the mirror has not read yet.",
            registry=registry,
        )
        self._caught_up = Gauge(
            "wakeroll_observer_mirror_last_write_timestamp_seconds",
            "Time at which the mirror last had written all offsets that it knew (Unix time); 0 before.",
            registry=registry,
        )
        self._known: set[str] = set()

    def wrote(self, offsets: Mapping[str, int], refused: int) -> None:
        """Record one round of writing.

        Args:
            offsets: group -> number of its offsets that Kafka has accepted.
            refused: number of groups with offsets that Kafka refuses.
        """
        self._known.update(group for group, count in offsets.items() if count)
        self._groups.set(len(self._known))
        self._offsets.inc(sum(offsets.values()))
        self._refused.set(refused)
        if not refused:
            self._caught_up.set_to_current_time()

    def unread(self, records: int) -> None:
        """Record the lag of the mirror."""
        self._unread.set(records)
