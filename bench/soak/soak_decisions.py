"""The decisions published during a soak: latencies of the probe, assignments of queues, and who publishes."""

import threading
from collections import Counter

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Message, TopicPartition

from bench.soak.soak_judge import QueueId
from wakeroll.connection import Connection, take
from wakeroll.headers import WRITER_HEADER
from wakeroll_model.decisions import AnyDecision, Assignment, Handover, Rebalance
from wakeroll_pipeline.local.traffic import PROBE_GROUP

_AT_ONCE = 500
_decode = msgspec.json.Decoder(AnyDecision).decode


class SoakDecisions(threading.Thread):
    """Reads the decisions topic from its start; of a decision that several coordinators publish, the first counts."""

    def __init__(self, connection: Connection, partitions: int) -> None:
        super().__init__(name="soak-decisions", daemon=True)
        # With "error", a partition is no longer read after its offset did not exist, as when a killed broker is back.
        # Decisions that are read again are known by their seq.
        self._consumer = connection.consumer(
            **{"fetch.wait.max.ms": 50, "log_level": 0, "auto.offset.reset": "earliest"}
        )
        topic = connection.topics.decisions
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        self._lock = threading.Lock()
        self._newest: dict[str, int] = {}
        self._grants: Counter[QueueId] = Counter()
        self._latencies_ms: list[int] = []
        self._last_ms: dict[str, int] = {}
        self._triggers: Counter[str] = Counter()
        self._ended = threading.Event()

    def run(self) -> None:
        """Read until `close`."""
        while not self._ended.is_set():
            messages = take(self._consumer, _AT_ONCE, 0.2)
            with self._lock:
                for message in messages:
                    if message.error() is None:
                        self._learn(message)
        self._consumer.close()

    def close(self) -> None:
        """Stop reading."""
        self._ended.set()
        self.join()

    def last_ms(self, replica: str) -> int:
        """Return when a replica last published a decision (epoch ms); 0 if it never did."""
        with self._lock:
            return self._last_ms.get(replica, 0)

    def take_latencies_ms(self) -> list[int]:
        """Return the times from a heartbeat's append to that of its assignment since the last call (ms)."""
        with self._lock:
            found, self._latencies_ms = self._latencies_ms, []
            return found

    def grants(self) -> dict[QueueId, int]:
        """Return how often each queue was assigned."""
        with self._lock:
            return dict(self._grants)

    def triggers(self) -> dict[str, int]:
        """Return how many rebalances each trigger has caused."""
        with self._lock:
            return dict(sorted(self._triggers.items()))

    def _learn(self, message: Message) -> None:
        at_ms = message.timestamp()[1]
        writer = dict(message.headers() or [])[WRITER_HEADER]
        assert isinstance(writer, bytes), "a coordinator names itself"
        replica = writer.decode().partition("@")[0]
        self._last_ms[replica] = max(at_ms, self._last_ms.get(replica, 0))
        decision = _decode(message.value() or b"")
        if decision.seq <= self._newest.get(decision.shard, 0):
            return
        self._newest[decision.shard] = decision.seq
        match decision:
            case Assignment(group_id=group_id) if group_id == PROBE_GROUP:
                self._latencies_ms.append(at_ms - decision.at_ms)
            case Handover(queue=queue, to=str()):
                self._grants[queue.topic, queue.queue_id] += 1
            case Rebalance(group_id=group_id) if group_id != PROBE_GROUP:
                self._triggers[decision.trigger] += 1
            case _:
                pass
