"""The control plane's topics on a real broker: made, checked, refused."""

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from tests.support.waiting import wait_until
from wakeroll.connection import Connection, Topics
from wakeroll.errors import InvalidUsage, NotReachable
from wakeroll_pipeline.kafka.control_topics import InvalidTopics, check_topics, ensure_topics
from wakeroll_pipeline.kafka.topic_admin import Cluster

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0


@pytest.fixture
def connection(broker) -> Connection:
    """A connection whose topics are not there yet."""
    return Connection(broker.bootstrap, topics=Topics(f"topics-{uuid.uuid4().hex[:6]}"))


def make(connection: Connection, topic: str, partitions: int, **settings: str) -> None:
    config = {name.replace("_", "."): value for name, value in settings.items()}
    admin = connection.admin()  # it must live as long as its answers are waited for
    admin.create_topics([NewTopic(topic, partitions, config=config)])[topic].result(PATIENCE_S)


def alter(connection: Connection, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = connection.admin()
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


def test_missing_topics_are_made_with_the_settings_that_the_log_needs(connection):
    """LogAppendTime above all: the log is the clock."""
    assert ensure_topics(connection, partitions=3, inbox_partitions=5) == []

    cluster = Cluster(connection, patience_s=PATIENCE_S)
    sizes = [len(racks) for racks in cluster.racks(connection.topics.all).values()]
    assert sizes == [3, 3, 5, 3]
    day_ms = 24 * 3_600_000
    for settings, days in zip(cluster.settings(connection.topics.all).values(), (7, 1, 1, 7), strict=True):
        assert settings["message.timestamp.type"] == "LogAppendTime"
        assert settings["cleanup.policy"] == "delete"
        assert settings["max.message.bytes"] == str(8 * 1024 * 1024)
        assert settings["retention.ms"] == str(days * day_ms)
    assert check_topics(connection, partitions=3, inbox_partitions=5) == []


def test_processes_that_start_together_make_them_together(connection):
    """`up` starts several that each look first."""
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ensure_topics, [connection] * 4))

    assert answers == [[], [], [], []]


def test_another_number_of_partitions_is_refused(connection):
    """A group's records would be spread over two shards, hence two coordinators."""
    ensure_topics(connection, partitions=6, inbox_partitions=2)

    with pytest.raises(InvalidTopics) as refused:
        ensure_topics(connection, partitions=4, inbox_partitions=2)

    groups, *others = str(refused.value).splitlines()
    assert groups == (
        f"{connection.topics.groups} has 6 partitions, `partitions` is 4; if the deployment has 6 shards, set it to 6; "
        "if partitions were added since, run `wakeroll reshard --partitions 6`, which divides the state of the shards "
        "among them"
    )
    assert len(others) == 2


def test_clients_times_are_refused_until_they_are_mended(connection):
    """A client whose clock is an hour ahead would expire everybody."""
    topic = connection.topics.groups
    make(connection, topic, 4)

    with pytest.raises(InvalidTopics) as refused:
        ensure_topics(connection)

    change = f"--alter --entity-type topics --entity-name {topic} --add-config message.timestamp.type=LogAppendTime"
    assert str(refused.value) == (
        f"{topic} has message.timestamp.type=CreateTime, it must be LogAppendTime, because the log is the clock; "
        f"to fix this: kafka-configs.sh --bootstrap-server {connection.bootstrap} {change}"
    )
    alter(connection, topic, "message.timestamp.type", "LogAppendTime")
    # The controller's change reaches the broker later.
    wait_until(lambda: not any(finding.fatal for finding in check_topics(connection)), "the change is effective")
    assert ensure_topics(connection) == []


def test_a_compacted_topic_is_refused(connection):
    """It takes no record without a key, so no tick either."""
    make(connection, connection.topics.queues, 4, cleanup_policy="compact", message_timestamp_type="LogAppendTime")

    with pytest.raises(InvalidTopics, match=r"cleanup\.policy=compact, it must be delete"):
        ensure_topics(connection)


def test_less_than_best_is_told_and_not_refused(connection):
    """Many clusters do not let one choose; small groups work all the same."""
    topic = connection.topics.inbox
    make(
        connection, topic, 16, message_timestamp_type="LogAppendTime", max_message_bytes="1000000", retention_ms="60000"
    )

    findings = ensure_topics(connection)

    assert [(finding.topic, finding.fatal) for finding in findings] == [(topic, False), (topic, False)]
    assert "at most 1000000 bytes, a large group needs 8388608" in findings[0].text
    assert "60000 ms, it should be 86400000 ms or longer" in findings[1].text


def test_more_than_needed_is_fine(connection):
    make(
        connection,
        connection.topics.queues,
        4,
        message_timestamp_type="LogAppendTime",
        max_message_bytes="9000000",
        retention_ms="-1",
    )

    assert ensure_topics(connection) == []


def test_doctor_makes_nothing(connection):
    findings = check_topics(connection)

    assert [str(finding) for finding in findings] == [
        f"there is no topic {topic} at {connection.bootstrap}; `wakeroll up` and `wakeroll run` create it"
        for topic in connection.topics.all
    ]
    racks = Cluster(connection, patience_s=PATIENCE_S).racks(connection.topics.all)
    assert list(racks.values()) == [{}, {}, {}, {}]


def test_more_replicas_than_brokers_are_refused_in_one_sentence(connection):
    with pytest.raises(InvalidTopics, match=rf"\Acannot create the topic {connection.topics.prefix}\.\w+: .*replicat"):
        ensure_topics(connection, replication=3)


@pytest.mark.parametrize("ask", [ensure_topics, check_topics])
def test_a_broker_that_is_away_is_named_in_bounded_time(ask):
    """Some questions of Kafka's client would wait for ever."""
    began_s = time.monotonic()

    with pytest.raises(NotReachable) as error:
        ask(Connection("127.0.0.1:1"), patience_s=1.0)

    assert str(error.value).startswith("no Kafka broker answered at 127.0.0.1:1 within 1 s (")
    assert "Connection refused" in str(error.value)
    assert time.monotonic() - began_s < PATIENCE_S


def test_offsets_are_not_waited_for_for_ever():
    with pytest.raises(NotReachable):
        Cluster(Connection("127.0.0.1:1"), patience_s=0.5).offsets([("orders", 0)])


def test_offsets_of_a_topic_that_is_just_being_made_are_waited_for(connection):
    """A broker may report a leader that another one does not know yet; a query must not stop because of that."""
    topic = connection.topics.groups
    cluster = Cluster(connection, patience_s=PATIENCE_S)
    with ThreadPoolExecutor(1) as pool:
        assert cluster.offsets([(topic, 0)]) == {}
        asked = pool.submit(cluster.all_offsets, [(topic, 0), (topic, 1)])
        make(connection, topic, 2)

        assert asked.result(2 * PATIENCE_S) == {(topic, 0): (0, 0), (topic, 1): (0, 0)}


def test_a_partition_without_a_leader_is_named(connection):
    """Without its offsets, an era or a gap could be missed."""
    topic = connection.topics.groups
    make(connection, topic, 1)

    ended = threading.Event()
    ended.set()  # otherwise it waits for a leader until its patience ends
    with pytest.raises(NotReachable, match=f"^{topic}-7 has no leader"):
        Cluster(connection, stop=ended).all_offsets([(topic, 0), (topic, 7)])


def test_a_setting_that_kafka_does_not_know_is_a_mistake():
    with pytest.raises(InvalidUsage, match="mistyped"):
        ensure_topics(Connection("127.0.0.1:1", {"mistyped": "1"}))
