"""The live model on a real broker: eras that change, logs that are cut or begin again, keys that do not fit."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from tests.support.delta_tables import append
from tests.support.systems.coordinator_thread import Coordinator
from tests.support.waiting import wait_until
from wakeroll.connection import Connection, Topics
from wakeroll_model.config import CONTROL_PARTITIONS
from wakeroll_model.decisions import Cause, Membership
from wakeroll_model.events import Heartbeat, Route, RoutedQueue, Subscription, Tick
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision
from wakeroll_model.rows import SNAPSHOTS, TABLES
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import VERSION
from wakeroll_model.signing import DEV_KEYS, Key, Keys
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.live import kafka_follower
from wakeroll_pipeline.live.kafka_follower import KafkaFollower
from wakeroll_pipeline.live.live_model import LiveModel
from wakeroll_pipeline.live.view_structs import GroupView

pytestmark = pytest.mark.e2e

GROUP = "billing"
HOME = partition_of(GROUP.encode(), CONTROL_PARTITIONS)


@pytest.fixture
def writer(broker) -> Iterator[Coordinator]:
    """A control plane of its own: it ticks, and none of its decisions is published."""
    connection = Connection(broker.bootstrap, topics=Topics(f"follow-{uuid.uuid4().hex[:6]}"))
    ensure_topics(connection)
    coordinator = Coordinator(connection)
    coordinator.start()
    yield coordinator
    coordinator.stop()


@contextmanager
def following(writer: Coordinator, keys: Keys = DEV_KEYS, warehouse: Path | None = None) -> Iterator[LiveModel]:
    model = LiveModel(writer.connection.topics, CONTROL_PARTITIONS)
    follower = KafkaFollower(writer.connection, model, keys, warehouse)
    follower.start()
    try:
        yield model
    finally:
        follower.stop()


def beat(writer: Coordinator, epoch: int = -1, owned: tuple[Queue, ...] = (), client_id: str = "c1") -> None:
    event = Heartbeat(
        group_id=GROUP,
        client_id=client_id,
        instance_id=f"instance-of-{client_id}",
        epoch=epoch,
        owned=list(owned),
        subscriptions=[Subscription(topic="orders")],
    )
    producer = writer.connection.producer()
    producer.produce(writer.connection.topics.groups, msgspec.json.encode(event), key=GROUP.encode(), partition=HOME)
    assert producer.flush(30) == 0


def route(writer: Coordinator, queues: int) -> None:
    routed = [RoutedQueue(topic="orders", broker="", queue_id=number, max_offset=10) for number in range(queues)]
    writer.everywhere(Route(topic="orders", queues=routed, version=str(queues)))


def publish(writer: Coordinator, era: int, seq: int) -> None:
    """Publish a decision of the group's shard, of an era that the model has not seen."""
    decision = Membership(group_id=GROUP, client_id="c1", change="joined", epoch=1)
    decision.shard, decision.seq = f"groups-{HOME}.{era}", seq
    decision.cause = Cause(writer.connection.topics.groups, HOME, 1)
    producer = writer.connection.producer()
    producer.produce(writer.connection.topics.decisions, encode_decision(decision), key=GROUP.encode(), partition=HOME)
    assert producer.flush(30) == 0


def view(model: LiveModel) -> GroupView | None:
    return model.group_view(GROUP)


def owners(model: LiveModel) -> list[str]:
    found = view(model)
    return [] if found is None else [one.owner for one in found.queues]


def members(model: LiveModel) -> list[str]:
    found = view(model)
    return [] if found is None else [one.client_id for one in found.members]


def notices(model: LiveModel) -> list[str]:
    return [one.kind for one in model.health().notices]


def test_a_group_is_followed_from_its_first_record(writer):
    route(writer, 2)
    beat(writer)
    with following(writer) as model:
        wait_until(lambda: owners(model) == ["c1", "c1"], "c1 owns both queues", state=lambda: owners(model))


def test_a_later_era_is_learned_from_heartbeats(writer):
    """The coordinator was restored, and there are no tables: owners are those that heartbeats report."""
    route(writer, 2)
    beat(writer)
    with following(writer) as model:
        wait_until(lambda: owners(model) == ["c1", "c1"], "c1 owns both queues")
        publish(writer, era=2, seq=1)
        wait_until(lambda: "learning" in notices(model), "the era is noticed", state=lambda: notices(model))

        beat(writer, epoch=2**32 + 1, owned=(Queue("orders", "", 0),))
        beat(writer, epoch=2**32 + 1, owned=(Queue("orders", "", 1),), client_id="c2")
        wait_until(lambda: owners(model) == ["c1", "c2"], "the reported owners are shown", state=lambda: owners(model))


def test_a_snapshot_of_the_later_era_ends_the_learning(writer, tmp_path, monkeypatch):
    """`record` writes one every ten minutes; the model continues from it as the coordinator does."""
    monkeypatch.setattr(kafka_follower, "HEAL_S", 0.5)
    route(writer, 2)
    beat(writer)
    with following(writer, warehouse=tmp_path) as model:
        wait_until(lambda: owners(model) == ["c1", "c1"], "c1 owns both queues")
        place = (writer.connection.topics.groups, HOME)
        with model.lock:
            restored = Shard(*place, CONTROL_PARTITIONS, model.shards[place].shard.body(), era=2)
        publish(writer, era=2, seq=1)
        wait_until(lambda: "learning" in notices(model), "the era is noticed")

        tick = Record(*place, restored.offset, restored.tick_ms, None, msgspec.json.encode(Tick()))
        restored.apply(tick)
        for table in TABLES.values():
            row = (*place, restored.offset, 2, VERSION, restored.now_ms, restored.body(), None)
            append(tmp_path, table, [row] if table is SNAPSHOTS else [])
        wait_until(lambda: "learning" not in notices(model), "the snapshot is used", state=lambda: notices(model))
        assert model.shards[place].shard.era == 2


@pytest.mark.operate
def test_a_change_of_the_number_of_shards_is_followed(writer, tmp_path, monkeypatch):
    """The model begins again, with the snapshots that `wakeroll reshard` writes."""
    monkeypatch.setattr(kafka_follower, "LOOK_S", 0.2)
    moved = partition_of(b"taxes", 2 * CONTROL_PARTITIONS)
    assert moved >= CONTROL_PARTITIONS
    event = Heartbeat(group_id="taxes", client_id="c1", instance_id="i1", subscriptions=[Subscription(topic="orders")])
    with following(writer, warehouse=tmp_path) as model:
        route(writer, 2)
        producer = writer.connection.producer()
        producer.produce(writer.connection.topics.groups, msgspec.json.encode(event), key=b"taxes")
        assert producer.flush(30) == 0
        wait_until(lambda: writer.members("taxes") == ["c1"], "the member has joined")
        wait_until(lambda: model.group_view("taxes") is not None, "the group is followed")

        writer.grow(2 * CONTROL_PARTITIONS)
        rows = [
            (*place, writer.positions.get(place, 0) - 1, 1, VERSION, 0, body, None)
            for place, body in writer.begun.items()
        ]
        for table in TABLES.values():
            append(tmp_path, table, rows if table is SNAPSHOTS else [])

        wait_until(lambda: model.partitions == 2 * CONTROL_PARTITIONS, "the new partitions are followed")
        wait_until(lambda: model.shards[writer.connection.topics.groups, moved].at_ms > 0, "the new shard is followed")
        wait_until(
            lambda: (view := model.group_view("taxes")) and [one.client_id for one in view.members] == ["c1"],
            "the group is there",
        )
        wait_until(lambda: model.group_view("taxes").queues[0].owner == "c1", "its queue has its owner")


def test_a_log_whose_beginning_was_deleted_is_learned(writer):
    """Kafka deletes records after a week; without a snapshot, the state before them is not known."""
    route(writer, 1)
    beat(writer)
    delete_records(writer, 1)
    route(writer, 1)
    beat(writer, epoch=7, owned=(Queue("orders", "", 0),))
    with following(writer) as model:
        wait_until(lambda: owners(model) == ["c1"], "the reported owner is shown", state=lambda: owners(model))
        # The notices are of the last refresh, and the owners may have been shown while the log was still being read.
        wait_until(lambda: "learning" in notices(model), "the learning is told", state=lambda: notices(model))


def delete_records(writer: Coordinator, count: int) -> None:
    writer._producer.flush(30)
    places = [TopicPartition(writer.connection.topics.groups, number, count) for number in range(CONTROL_PARTITIONS)]
    admin = writer.connection.admin()  # which must be there until the answer is
    for answer in admin.delete_records(places).values():
        answer.result(30)


def test_a_control_topic_that_is_recreated_is_followed_again(writer):
    """Somebody deleted the deployment's topics and started it again under the same names."""
    route(writer, 2)
    for _ in range(5):
        beat(writer)
    with following(writer) as model:
        wait_until(lambda: owners(model) == ["c1", "c1"], "c1 owns both queues")
        admin, topic = writer.connection.admin(), writer.connection.topics.groups
        admin.delete_topics([topic])[topic].result(30)
        wait_until(lambda: "broker-gone" in notices(model), "the topic is missed", state=lambda: notices(model))
        config = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": str(8 * 1024 * 1024)}
        admin.create_topics([NewTopic(topic, CONTROL_PARTITIONS, 1, config=config)])[topic].result(30)
        wait_until(lambda: "broker-gone" not in notices(model), "the topic is found", state=lambda: notices(model))

        beat(writer, client_id="c3")
        wait_until(lambda: "c3" in members(model), "the new log is read", state=lambda: members(model))


def test_records_of_other_keys_are_told(writer):
    """`serve` was started without the --keys of the deployment."""
    others = Keys.of([Key("other", "observer", b"x" * 32), Key("other-2", "operator", b"y" * 32)])
    with following(writer, keys=others) as model:
        # Until each shard has refused a tick, some have none, and "no-ticks" is told too.
        wait_until(lambda: notices(model) == ["other-keys"], "only the keys are told", state=lambda: notices(model))


def test_a_tick_that_is_in_the_log_at_the_start_is_not_received_now(writer):
    """Its age counts from its append: that an old tick is read shows no living observer."""
    with following(writer) as model:
        wait_until(lambda: heard(model) and None not in heard(model), "every shard has a tick")
    writer.stop()
    began_s = time.monotonic()
    with following(writer) as model:
        wait_until(lambda: model.facts.to_read and model.facts.read == model.facts.to_read, "the log is read")
        received_s = heard(model)

    assert all(one_s is not None and one_s < began_s for one_s in received_s)


def heard(model: LiveModel) -> list[float | None]:
    """Return when each shard received its newest tick, by the monotonic clock (s)."""
    return [one.tick_received_s for one in tuple(model.shards.values())]
