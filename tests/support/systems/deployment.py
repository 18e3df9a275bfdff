"""What the Spark tests run: a deployment, what they append to its topics, and how they look at what comes of it."""

import json
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message, TopicPartition
from pyspark.sql import SparkSession

from tests.support.waiting import wait_until
from wakeroll.keys import key_to_sign, new_signer
from wakeroll_model.config import CONTROL_PARTITIONS, MAX_RECORD_BYTES
from wakeroll_model.decision_order import order_of
from wakeroll_model.decisions import AnyDecision
from wakeroll_model.partitioner import partition_of
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision, refused_in, replay
from wakeroll_model.signing import ROLES, Role
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.settings import Settings


def deploy(broker: EmbeddedBroker, folder: Path, name: str) -> Settings:
    """Make the topics of a control plane of its own; return what its jobs are told.

    Its paths have spaces in them, as those of users may.
    """
    settings = Settings(
        bootstrap=broker.bootstrap,
        prefix=f"{name}-{uuid.uuid4().hex[:6]}",
        home=str(folder / "a home"),
        checkpoints=str(folder / "check points"),
        # Else it would look for news a hundred times a second, and other tests need this machine too.
        batch_interval_ms=200,
    )
    ensure_topics(settings.connection)
    return settings


class Log:
    """What a test appends to the control topics."""

    def __init__(self, settings: Settings) -> None:
        self._topics = settings.connection.topics
        self._partitions = settings.partitions
        self._signers = {role: new_signer(key_to_sign(settings.read_keys(), role)) for role in ROLES}
        self._producer = settings.connection.producer(**{"message.max.bytes": MAX_RECORD_BYTES})
        self._uptime_ms = 0
        self._ends: dict[tuple[str, int], int] = {}
        """Of the partitions that records were appended to: who signs must know where they end."""

    def everywhere(self, **event: object) -> None:
        """Append an event to every partition of the groups' topic, as the observer does."""
        self._everywhere(self._topics.groups, json.dumps(event).encode())
        self.flush()

    def tick(self) -> None:
        """Append a tick to every control partition."""
        self._everywhere(self._topics.queues, b'{"type": "tick"}')
        self.everywhere(type="tick")

    def pass_seconds(self, seconds: int) -> None:
        """Let the clock of every shard go on by so much at once, as the ticks of an observer say."""
        for _ in range(-(-seconds // 3)):
            self._uptime_ms += 3_000  # the most that a tick counts for
            for topic in self._topics.control:
                tick = {"type": "tick", "observer": "test", "uptime_ms": self._uptime_ms}
                self._everywhere(topic, json.dumps(tick).encode())
        self.flush()

    def group(self, group_id: str, **event: object) -> None:
        """Append an event about a group."""
        self.raw(json.dumps({"group_id": group_id, **event}).encode(), key=group_id)

    def configure(self, group_id: str, **settings: object) -> None:
        """Append a group's settings, signed by an operator."""
        event = {"group_id": group_id, "type": "configure", **settings}
        self.raw(self.signed("operator", json.dumps(event).encode(), group_id.encode()), key=group_id)

    def level(self, level: int) -> None:
        """Append the feature level to every control partition, signed by an operator."""
        for topic in self._topics.control:
            value = json.dumps({"type": "level", "level": level}).encode()
            for partition in range(self._partitions):
                self.send(topic, self._sign("operator", topic, partition, None, value), partition=partition)
        self.flush()

    def signed(self, role: Role, value: bytes, key: bytes | None, partition: int | None = None) -> bytes:
        """Sign a value for a partition of the groups' topic, that of its key if none is named."""
        home = partition_of(key or b"", self._partitions) if partition is None else partition
        return self._sign(role, self._topics.groups, home, key, value)

    def _sign(self, role: Role, topic: str, partition: int, key: bytes | None, value: bytes) -> bytes:
        return self._signers[role].sign(topic, partition, key, value, end=self._ends.get((topic, partition), 0))

    def _everywhere(self, topic: str, value: bytes) -> None:
        for partition in range(self._partitions):
            self.send(topic, self._sign("observer", topic, partition, None, value), partition=partition)

    def queue(self, topic: str, queue_id: int, **event: object) -> None:
        queue = {"topic": topic, "broker": "", "queue_id": queue_id}
        value = json.dumps({"queue": queue, **event}).encode()
        self._producer.produce(self._topics.queues, value, key=f"{topic}@{queue_id}")
        self._producer.flush(30)

    def report(self, topic: str, queue_id: int, next_offset: int) -> None:
        """Tell where a queue of messages ends, signed as the observer does; unsigned, it would count as a hint."""
        queue = {"topic": topic, "broker": "", "queue_id": queue_id}
        value = json.dumps({"type": "arrival", "queue": queue, "next_offset": next_offset, "observer": "o1"}).encode()
        key = f"{topic}@{queue_id}".encode()
        home = partition_of(key, self._partitions)
        signed = self._sign("observer", self._topics.queues, home, key, value)
        self.send(self._topics.queues, signed, key=key, partition=home)
        self.flush()

    def pull(self, client_id: str, queue_id: int, from_offset: int, group_id: str = "billing", life: int = 1) -> None:
        """Let a client, for the first time in its life, wait for messages of a queue of orders."""
        instance_id = f"{client_id}-{life}"
        names = {"group_id": group_id, "client_id": client_id, "instance_id": instance_id}
        self.queue("orders", queue_id, type="pull", request_id=f"{instance_id}:1", from_offset=from_offset, **names)

    def route(self, queues: int) -> None:
        """Tell every shard that the topic orders has so many queues."""
        routed = [{"topic": "orders", "broker": "", "queue_id": queue_id} for queue_id in range(queues)]
        self.everywhere(type="route", topic="orders", version=str(queues), queues=routed)

    def commit(self, settings: Settings, client_id: str, queue_id: int, offset: int, group_id: str = "billing") -> None:
        """Let a member of a group commit an offset of a queue of orders, in the newest epoch that it was told."""
        epochs = [
            one["epoch"] for one in decided(settings) if one["kind"] == "assignment" and one["client_id"] == client_id
        ]
        committed = [{"queue": {"topic": "orders", "broker": "", "queue_id": queue_id}, "offset": offset}]
        names = {"client_id": client_id, "instance_id": f"{client_id}-1"}
        self.group(group_id, type="commit", epoch=max(epochs), offsets=committed, **names)

    def raw(self, value: bytes, key: str | None = None, **where: int) -> None:
        """Append anything to the groups' topic."""
        self.send(self._topics.groups, value, key=key, **where)
        self.flush()

    def send(self, topic: str, value: bytes | None, **more: Any) -> None:
        """Append anything anywhere, without waiting for its receipt; `more` is a key, a partition, on_delivery."""
        while True:
            try:
                self._producer.produce(topic, value, **{"on_delivery": self._received, **more})
                return
            except BufferError:  # too much is under way
                self._producer.poll(0.1)

    def flush(self) -> None:
        """Wait until all that was sent is in the log."""
        assert self._producer.flush(60) == 0, "the broker takes the records"

    def answer(self, settings: Settings, members: Iterable[tuple[str, str]], **more: object) -> None:
        """Let each of these members, (group, client), heartbeat that it has done all it was told; `more` is as ever."""
        newest = {(d["group_id"], d["client_id"]): d for d in decided(settings) if d["kind"] == "assignment"}
        for member in members:
            if member in newest:
                owned = [assigned["queue"] for assigned in newest[member]["queues"]]
                self.beat(*member, epoch=newest[member]["epoch"], owned=owned, **more)

    def beat(self, group_id: str, client_id: str, **more: object) -> None:
        wants = {"subscriptions": [{"topic": "orders"}], "instance_id": f"{client_id}-1", **more}
        self.group(group_id, type="heartbeat", client_id=client_id, **wants)

    def _received(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self._ends[message.topic(), message.partition()] = message.offset() + 1


def told(settings: Settings) -> dict[tuple[str, str], list[int]]:
    """Return what each client was told last: (group, client) -> its queues."""
    return {
        (decision["group_id"], decision["client_id"]): [
            assigned["queue"]["queue_id"] for assigned in decision["queues"]
        ]
        for decision in decided(settings)
        if decision["kind"] == "assignment"
    }


def decided(settings: Settings) -> list[dict[str, Any]]:
    """Return the decisions in Kafka, those of a group in order, also if it has moved to another partition."""
    records = read(settings, settings.connection.topics.decisions, settings.partitions)
    return sorted((json.loads(value) for _, value in records), key=lambda one: order_of(one["shard"], one["seq"]))


def inbox_of(settings: Settings, client_id: str) -> list[dict[str, Any]]:
    """Return what a client is told through its inbox."""
    records = read(settings, settings.connection.topics.inbox, settings.inbox_partitions)
    return [json.loads(value) for key, value in records if key == client_id.encode()]


def read(settings: Settings, topic: str, partitions: int) -> list[tuple[bytes, bytes]]:
    """Return the records of a topic, those of a partition in order: key and value."""
    consumer = settings.connection.consumer(**{"enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])
    found: list[tuple[bytes, bytes]] = []
    ended = 0
    while ended < partitions:
        message = consumer.poll(30)
        assert message is not None, "the broker answers"
        if message.error():
            ended += 1
        else:
            found.append((message.key(), message.value()))
    consumer.close()
    return found


def cut(settings: Settings, *topics: str) -> dict[tuple[str, int], int]:
    """Delete all records of these topics, as retention does; return the first offset of what comes, by place."""
    admin = settings.connection.admin()
    places = [(topic, number) for topic in topics for number in range(settings.partitions)]
    ends = Cluster(settings.connection).ends(places)
    deleted = admin.delete_records([TopicPartition(*place, offset) for place, offset in ends.items() if offset])
    for future in deleted.values():
        future.result(60)
    return ends


def make_again(settings: Settings, topic: str) -> None:
    """Delete a topic with all that is in it, and make it again."""
    admin = settings.connection.admin()
    admin.delete_topics([topic])[topic].result(60)
    wait_until(lambda: not Cluster(settings.connection).racks([topic])[topic], f"{topic} is deleted")
    ensure_topics(settings.connection)


def replayed(ledger: SparkSession) -> list[tuple[str, int, str]]:
    """Return what plain Python makes of the events in Delta: (shard, seq, json), sorted."""
    events = ledger.sql("select * from events order by topic, partition, offset").collect()
    records = [
        Record(row.topic, row.partition, row.offset, row.at_ms, _bytes(row.key), _bytes(row.value)) for row in events
    ]
    recorded = ledger.sql("select json from decisions where kind = 'rejected'").collect()
    refused = refused_in(msgspec.json.decode(row.json, type=AnyDecision) for row in recorded)
    return sorted((d.shard, d.seq, encode_decision(d).decode()) for d in replay(records, CONTROL_PARTITIONS, refused))


def written(ledger: SparkSession) -> list[tuple[str, int, str]]:
    """Return the decisions in Delta: (shard, seq, json), sorted."""
    rows = ledger.sql("select shard, seq, json from decisions").collect()
    return sorted(tuple(row) for row in rows)


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
