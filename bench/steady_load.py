"""Steady load: messages for queues in turn, and the heartbeats of a deployment that they do not change."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
from confluent_kafka import KafkaError, KafkaException
from msgspec import structs

from bench.decision_reader import QueueId
from bench.population import Population
from bench.running_system import make_topic
from wakeroll.connection import Connection, close_producer
from wakeroll.epoch_ms import now_ms
from wakeroll_model.feature_levels import NEWEST
from wakeroll_model.shard_state import decode_state, encode_state
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.kafka.topic_admin import Cluster, Racks
from wakeroll_pipeline.recovery.initial_state import Beginning, Restore, name_of, prepare
from wakeroll_pipeline.settings import Settings

EACH = 10
"""Members of a group."""
_SLOTS = 20
"""Parts of a second, over which the heartbeats of a second are spread."""

Beats = Sequence[tuple[str, bytes]]
"""Group and record of the heartbeat of each member."""
_FLUSH_S = 60.0
_FULL_S = 0.1
_REFRESH_MS = 5_000


class SteadyTraffic(threading.Thread):
    """Produces until it is closed; late messages are produced at once. Nobody else produces to these topics."""

    def __init__(self, connection: Connection, queues: Sequence[QueueId], per_second: int) -> None:
        """Prepare; `per_second` is the number of messages of all queues together."""
        super().__init__(name="steady-traffic", daemon=True)
        self._connection = connection
        self._queues = list(queues)
        self._pause_s = 1 / per_second
        self._ended = threading.Event()

    def add(self, queues: Sequence[QueueId]) -> None:
        """Produce to further queues too."""
        self._queues = [*self._queues, *queues]

    def run(self) -> None:
        """Produce until `close`."""
        producer = self._connection.producer(**{"topic.metadata.refresh.interval.ms": _REFRESH_MS, "log_level": 0})
        due_s, number = time.monotonic(), 0
        while not self._ended.wait(max(0.0, due_s - time.monotonic())):
            queues = self._queues
            topic, queue_id = queues[number % len(queues)]
            try:
                producer.produce(topic, b"%d" % number, partition=queue_id)
            except BufferError:  # the broker is down
                producer.poll(_FULL_S)
                continue
            except KafkaException as problem:
                if problem.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                    raise
                # The partition is new, and the producer does not know it yet: the next queue has its turn.
            producer.poll(0)
            number += 1
            due_s += self._pause_s
        producer.flush(_FLUSH_S)

    def close(self) -> None:
        """Stop, and wait until the broker has acknowledged all messages. A second call does nothing."""
        self._ended.set()
        self.join()


def settle(settings: Settings, members: int) -> Beats:
    """Settle groups, with a queue for each member, and prepare their state for `run`; return the heartbeats."""
    connection = settings.connection
    ensure_topics(connection, partitions=1, inbox_partitions=settings.inbox_partitions)
    if not members:
        return []
    population = Population()
    population.now_ms = now_ms()
    population.settle_many([f"group-{number}" for number in range(members // EACH)], EACH, EACH)
    state = decode_state(population.shard.body())
    body = encode_state(structs.replace(state, offset=-1, level=NEWEST))
    topics = connection.topics
    shards = {name_of((topics.groups, 0)): Beginning(body=body), name_of((topics.queues, 0)): Beginning(level=NEWEST)}
    prepare(settings, Restore.of(shards))
    # Without its topics, the observer would report them as missing, and each heartbeat would be answered.
    known = Cluster(connection).racks(sorted(set(population.topics.values())))
    for topic in [name for name, racks in known.items() if not isinstance(racks, Racks) or not racks]:
        make_topic(connection, topic, EACH)
    return [(who[0], msgspec.json.encode(population.beat(*who))) for who in population.everybody()]


@contextmanager
def flood(connection: Connection, beats: Beats, rate: float) -> Iterator[None]:
    """Send so many heartbeats per second, of one member after the other, during a `with` block."""
    ended = threading.Event()

    def send() -> None:
        producer, sent, began_s = connection.producer(log_level=0), 0, time.monotonic()
        while not ended.wait(1 / _SLOTS):
            due = int((time.monotonic() - began_s) * rate)
            for number in range(sent, due):
                group_id, value = beats[number % len(beats)]
                producer.produce(connection.topics.groups, value, key=group_id)
            producer.poll(0)
            sent = max(sent, due)
        close_producer(producer, 5)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
