"""Groups of Kafka's own on a real broker: what members of each protocol do, and the records that the broker writes.

``python -m tests.support.systems.coordinator_scenes 4.4.0 FOLDER > records-4.4.0.jsonl`` makes the golden records.
"""

import base64
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.support.systems.kafka_member import member
from tests.support.waiting import PATIENCE_S, wait_until
from wakeroll_pipeline.local.broker import EmbeddedBroker

TOPIC = "__consumer_offsets"
SETTINGS = {
    "offsets.topic.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 100,
    "group.consumer.min.session.timeout.ms": 6_000,
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.heartbeat.interval.ms": 500,
}
RANGE = {"partition_assignment_strategy": "range", "session_timeout_ms": 6_000, "heartbeat_interval_ms": 500}
COOPERATIVE = RANGE | {"partition_assignment_strategy": "cooperative-sticky"}
CONSUMER = {"group_protocol": "consumer"}
PROTOCOLS = {"range": RANGE, "cooperative": COOPERATIVE, "consumer": CONSUMER}


class Scene:
    """One group, its topic and its members."""

    def __init__(self, bootstrap: str, group_id: str, folder: Path, queues: int = 4) -> None:
        self.bootstrap, self.group_id, self.topic, self.folder = bootstrap, group_id, f"{group_id}-topic", folder
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        wait_for(self.admin.create_topics([NewTopic(self.topic, queues, 1)]))
        producer = Producer({"bootstrap.servers": bootstrap})
        for number in range(40):
            producer.produce(self.topic, str(number).encode(), str(number).encode())
        producer.flush()

    def member(self, client_id: str, topic: str = "", **settings: str | int):
        return member(self.folder, self.bootstrap, self.group_id, topic or self.topic, client_id, **settings)

    def owners(self) -> dict[int, str]:
        """Return partition -> client.id of its owner, as the broker describes the group now."""
        try:
            its = self.admin.describe_consumer_groups([self.group_id])[self.group_id].result()
        except KafkaException:  # its coordinator is only being found
            return {}
        return {at.partition: one.client_id for one in its.members for at in one.assignment.topic_partitions}

    def settle(self, members: int, queues: int = 4) -> None:
        wait_until(
            lambda: len(self.owners()) == queues and len(set(self.owners().values())) == members,
            f"{members} members of {self.group_id} have {queues} partitions",
            state=self.owners,
        )

    def grow(self, queues: int) -> None:
        wait_for(self.admin.create_partitions([NewPartitions(self.topic, queues)]))


def wait_for(asked: dict[str, object]) -> None:
    for future in asked.values():
        future.result(PATIENCE_S)


def ordinary(scene: Scene, settings: dict[str, str | int]) -> None:
    """Members join, the topic grows, one leaves, one is killed."""
    quick = {"topic_metadata_refresh_interval_ms": 1_000}
    with scene.member("a", **settings, **quick), scene.member("b", **settings, **quick) as second:
        scene.settle(2)
        with scene.member("c", **settings, **quick) as third:
            scene.settle(3)
            scene.grow(6)
            scene.settle(3, 6)
            third.stop()
            scene.settle(2, 6)
        second.kill()
        scene.settle(1, 6)


def static(scene: Scene, settings: dict[str, str | int]) -> None:
    """A static member is restarted."""
    with scene.member("s1", group_instance_id="s-1", **settings):
        with scene.member("s2", group_instance_id="s-2", **settings):
            scene.settle(2)
        with scene.member("s3", group_instance_id="s-2", **settings):
            time.sleep(2)  # the broker describes it as before
            scene.settle(2)


def mixed(scene: Scene) -> None:
    """A group goes over from the classic protocol to KIP-848, member by member, and back."""
    with scene.member("old", **RANGE):
        scene.settle(1)
        with scene.member("new", **CONSUMER):
            scene.settle(2)
            time.sleep(1)
        scene.settle(1)


def by_expression(scene: Scene) -> None:
    """Members subscribe a regular expression; a matching topic is created."""
    with scene.member("r", f"^{scene.topic}.*", **CONSUMER):
        scene.settle(1)
        wait_for(scene.admin.create_topics([NewTopic(f"{scene.topic}-2", 2, 1)]))
        time.sleep(1)


def transactional(scene: Scene) -> None:
    """Offsets are committed in a transaction, and in one that is aborted."""
    producer = Producer({"bootstrap.servers": scene.bootstrap, "transactional.id": scene.group_id})
    consumer = Consumer({"bootstrap.servers": scene.bootstrap, "group.id": scene.group_id})
    producer.init_transactions()
    for offset, is_good in ((3, True), (7, False)):
        producer.begin_transaction()
        at = [TopicPartition(scene.topic, 0, offset)]
        producer.send_offsets_to_transaction(at, consumer.consumer_group_metadata())
        if is_good:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    consumer.close()


def sharing(scene: Scene) -> None:
    """Two members of a share group read the same partitions."""
    settings = {"bootstrap.servers": scene.bootstrap, "group.id": scene.group_id}
    members = [ShareConsumer(settings), ShareConsumer(settings)]
    for one in members:
        one.subscribe([scene.topic])
    end = time.monotonic() + 6
    while time.monotonic() < end:
        for one in members:
            one.poll(0.2)
    for one in members:
        one.close()


def play(broker: EmbeddedBroker, folder: Path, version: str) -> None:
    """Play all scenes at once that this version of Kafka knows: KIP-848 is in 4.0, share groups are in 4.2."""
    protocols = {name: its for name, its in PROTOCOLS.items() if name != "consumer" or version >= "4"}
    scenes = [
        *((ordinary, name, (settings,)) for name, settings in protocols.items()),
        *((static, f"static-{name}", (its,)) for name, its in protocols.items() if name != "cooperative"),
        (transactional, "transactional", ()),
        *([(by_expression, "expression", ()), (mixed, "mixed", ())] if version >= "4" else []),
        *([(sharing, "sharing", ())] if version >= "4.2" else []),
    ]
    with ThreadPoolExecutor(len(scenes)) as threads:
        done = [threads.submit(scene, Scene(broker.bootstrap, name, folder), *its) for scene, name, its in scenes]
        for one in done:
            one.result()


def records(bootstrap: str) -> Iterator[dict[str, object]]:
    """Yield all records of `__consumer_offsets`, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    numbers = consumer.list_topics(TOPIC, PATIENCE_S).topics[TOPIC].partitions
    for number in sorted(numbers):
        consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING)])
        while (message := consumer.poll(PATIENCE_S)) is not None:
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                break
            yield {
                "partition": number,
                "offset": message.offset(),
                "at_ms": message.timestamp()[1],
                "key": text(message.key()),
                "value": text(message.value()),
            }
    consumer.close()


def text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def main() -> None:
    """Play the scenes, and write the records without repeated commits."""
    version, folder = sys.argv[1], Path(sys.argv[2])
    with EmbeddedBroker(folder / "broker", version=version, settings=SETTINGS) as broker:
        play(broker, folder, version)
        newest = {}
        for one in records(broker.bootstrap):
            is_commit = base64.b64decode(one["key"] or "")[:2] in (b"\0\0", b"\0\1")
            newest[one["key"] if is_commit else (one["partition"], one["offset"])] = one
        for one in sorted(newest.values(), key=lambda its: (its["partition"], its["offset"])):
            print(json.dumps(one))


if __name__ == "__main__":
    main()
