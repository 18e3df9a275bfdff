"""A watch of a broker whose `__consumer_offsets` has records that no coordinator wrote."""

import struct
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from bench.process_usage import resident_mib
from tests.support.coordinator_messages import body, encode
from tests.support.coordinator_mutations import Hostile, hostile_records
from tests.support.systems.coordinator_scenes import RANGE, SETTINGS, TOPIC, Scene
from tests.support.waiting import wait_until
from wakeroll_model.coordinator_log.message_schemas import ClassicGroupKey, ClassicGroupValue, ClassicMember
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.settings import Settings

pytestmark = [pytest.mark.operate, pytest.mark.e2e]

COUNT = 30_000
MOST_MIB = 700.0
PATIENCE_S = 300.0


def test_the_watch_counts_what_it_cannot_read_and_goes_on(tmp_path: Path):
    """Half of the records are there before it begins. A broker lets only its administrators' client id write them.

    Kafka's own coordinator does not survive them, so the generations behind them are written by the same hand.
    """
    home = Settings(home=str(tmp_path / "home"))
    with EmbeddedBroker(tmp_path / "broker", settings=SETTINGS) as broker:
        scene = Scene(broker.bootstrap, "victim", tmp_path)
        with scene.member("a", **RANGE):
            scene.settle(1)
        write(broker.bootstrap, [*hostile_records(1, COUNT // 2), generation(1)])
        command = [sys.executable, "-m", "wakeroll_pipeline.cli", "watch-kafka", "--bootstrap", broker.bootstrap]
        with Child("the watch", [*command, "--home", home.home], log=tmp_path / "watch.log") as watch:
            watch.wait_until(lambda: "the past of all groups is on record" in watch.log_tail(), PATIENCE_S)
            assert epochs(home, "later") == [1]
            write(broker.bootstrap, [*hostile_records(2, COUNT // 2), generation(2)])
            wait_until(
                lambda: epochs(home, "later") == [1, 2] or not watch.is_running,
                "the last generation is on record",
                patience_s=PATIENCE_S,
                state=watch.log_tail,
            )
            memory_mib = resident_mib(watch.pid)
            assert watch.stop() == 0
    said = (tmp_path / "watch.log").read_text()
    assert epochs(home, "victim")[:2] == [1, 2]
    assert "Traceback" not in said
    for reason in ("type", "version", "damaged"):
        assert f"for the reason {reason!r}" in said
    assert memory_mib < MOST_MIB


def write(bootstrap: str, records: Iterable[Hostile]) -> None:
    """Append records to all partitions in turn, without those that a compacted topic refuses: they have no key."""
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "__admin_client"})
    refused: list[KafkaError] = []

    def acknowledged(error: KafkaError | None, _: object) -> None:
        if error is not None:
            refused.append(error)

    for number, one in enumerate(one for one in records if one.key is not None):
        producer.produce(TOPIC, one.value, one.key, partition=number % 3, on_delivery=acknowledged)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert refused == []


def generation(number: int) -> Hostile:
    """Return a generation of one member, as a coordinator writes it."""
    one = ClassicMember(
        member_id="m-1", client_id="m", client_host="/h", session_timeout=6_000, subscription=b"", assignment=b""
    )
    value = ClassicGroupValue(
        protocol_type="consumer", generation=number, protocol="range", leader="m-1", members=[one]
    )
    return Hostile(struct.pack(">h", 2) + body(ClassicGroupKey(group="later"), 0, False), encode(value, 3))


def epochs(home: Settings, group_id: str) -> list[int]:
    query = "select epoch from rebalances where group_id = $group order by seq"
    with duck_ledger(home.warehouse) as ledger:
        return [int(str(epoch)) for (epoch,) in ledger.stream(query, group=group_id)]
