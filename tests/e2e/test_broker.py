"""The embedded broker as the rest of wakeroll uses it: a real JVM, started, stopped, killed and crowded."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.running_processes import lives
from tests.support.waiting import wait_until
from wakeroll_pipeline.local.broker import BrokerFailed, EmbeddedBroker
from wakeroll_pipeline.local.ports import HOST

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder whose name has what file names may have: Kafka's own settings give a comma a meaning."""
    return tmp_path / "my brökers, all"


def test_what_is_produced_is_consumed(broker):
    topic = new_topic(broker)

    produce(broker, topic, b"one", b"two")

    assert consume(broker, topic, 2) == [b"one", b"two"]


def test_a_record_of_eight_mebibytes_fits(broker):
    """A route or an assignment of very many queues is one record of a control topic."""
    topic = new_topic(broker, {"max.message.bytes": str(8 * 1024 * 1024)})
    value = os.urandom(8 * 1024 * 1024 - 1024)

    produce(broker, topic, value)

    assert consume(broker, topic, 1) == [value]


def test_a_topic_is_not_made_by_its_use(broker):
    """A mistyped name must be an error on a laptop too, as it is on most clusters."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    asked_for = admin.list_topics("mistyped", timeout=PATIENCE_S).topics["mistyped"]

    assert asked_for.error.name() == "UNKNOWN_TOPIC_OR_PART"
    assert "mistyped" not in admin.list_topics(timeout=PATIENCE_S).topics


def test_records_and_port_outlive_a_stop_and_a_crash(folder):
    """Clients hold the bootstrap address; a restart that moved it would lose them all."""
    broker = EmbeddedBroker(folder)
    with broker:
        address, topic = broker.bootstrap, new_topic(broker)
        produce(broker, topic, b"before the stop")
    stopped = broker.is_running

    with broker:
        produce(broker, topic, b"before the crash")
        broker.kill()
        killed = broker.is_running

    with EmbeddedBroker(folder) as another:
        kept = consume(another, topic, 2)
        again = another.bootstrap

    assert (stopped, killed) == (False, False)
    assert kept == [b"before the stop", b"before the crash"]
    assert again == address


def test_nothing_is_left_when_the_parent_is_killed(folder):
    """SIGKILL leaves a program no time to tidy up, and a forgotten broker would hold its port and folder for ever."""
    program = (
        "import sys, time; from pathlib import Path; from wakeroll_pipeline.local.broker import EmbeddedBroker\n"
        "broker = EmbeddedBroker(Path(sys.argv[1])); broker.start(); print(broker.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)

    # At once, on the very folder: the next broker waits for the last one to let go of it.
    with EmbeddedBroker(folder) as next_one:
        assert next_one.is_running
        assert not lives(pid)


def test_a_port_taken_by_somebody_else_is_left_to_them(folder, tmp_path):
    """The port of the last start is a wish; one that the caller names is an order, and is not replaced in silence."""
    with EmbeddedBroker(folder) as first:
        address = first.bootstrap
    port = int(address.removeprefix(f"{HOST}:"))

    with EmbeddedBroker(tmp_path / "somebody", port=port) as somebody:
        assert somebody.bootstrap == address
        with EmbeddedBroker(folder) as again:
            assert again.bootstrap != address
            assert new_topic(again) != new_topic(somebody)
        with pytest.raises(BrokerFailed, match=f"port {port} of 127.0.0.1 is in use"):
            EmbeddedBroker(tmp_path / "third", port=port).start()


@pytest.mark.operate
def test_a_port_lost_between_the_look_and_the_leap_is_replaced(folder):
    """Free ports are found by looking; with many tests on one machine, somebody else leaps first now and then."""
    taken: list[int] = []
    with socket.socket() as thief:
        stealing = threading.Thread(target=lambda: taken.append(steal_port(folder / "server.properties", thief)))
        stealing.start()
        with EmbeddedBroker(folder) as broker:
            stealing.join()
            assert broker.bootstrap != f"{HOST}:{taken[0]}"
            assert new_topic(broker)


def test_a_folder_has_one_broker(broker):
    """Two JVMs on the same files would destroy them; the sentence names the process that has them."""
    with pytest.raises(BrokerFailed, match=f"process {os.getpid()} already runs a broker on .*; stop that one first"):
        EmbeddedBroker(broker.folder).start()

    assert broker.is_running


def test_a_broker_that_cannot_start_says_why(folder):
    """The reason is in a log that nobody knows of yet, so it is quoted."""
    with EmbeddedBroker(folder):
        pass
    with pytest.raises(BrokerFailed, match=r"the broker ended with code 1; .*\nError occurred.*\nToo small maximum"):
        EmbeddedBroker(folder, heap="1k").start()


def new_topic(broker: EmbeddedBroker, config: dict[str, str] | None = None) -> str:
    """Make a topic of one partition; return its name."""
    topic = f"orders-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, config=config or {})])[topic].result(PATIENCE_S)
    return topic


def produce(broker: EmbeddedBroker, topic: str, *values: bytes) -> None:
    """Append records to partition 0 and wait until all are acknowledged."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.max.bytes": 10_000_000, "log_level": 0})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(PATIENCE_S) == 0


def consume(broker: EmbeddedBroker, topic: str, count: int) -> list[bytes]:
    """Return the first `count` records of partition 0."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []

    def read() -> None:
        values.extend(message.value() for message in consumer.consume(count - len(values), timeout=1))

    wait_until(lambda: len(values) >= count, f"{count} records of {topic} are read", between=read, state=values.copy)
    consumer.close()
    return values


def steal_port(properties: Path, thief: socket.socket) -> int:
    """Listen on the port that a broker is going to use, as soon as its settings name it; return the port."""

    def named() -> re.Match[str] | None:
        return re.search(rf"CLIENTS://{HOST}:(\d+),", properties.read_text()) if properties.exists() else None

    # Without a pause between two looks: the broker binds the port as soon as its JVM has started.
    found = wait_until(named, f"{properties} names a port", between=lambda: None)
    assert found is not None
    port = int(found[1])
    thief.bind((HOST, port))
    thief.listen()
    return port
