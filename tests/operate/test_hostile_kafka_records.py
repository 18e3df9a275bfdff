"""A watch of a broker whose `__consumer_offsets` has records that no coordinator wrote."""

import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from bench.process_usage import resident_mib
from tests.support.coordinator_mutations import hostile_records
from tests.support.systems.coordinator_scenes import RANGE, SETTINGS, TOPIC, Scene
from tests.support.waiting import wait_until
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.settings import Settings

pytestmark = [pytest.mark.operate, pytest.mark.e2e]

COUNT = 30_000
MOST_MIB = 700.0
PATIENCE_S = 300.0


def test_the_watch_counts_what_it_cannot_read_and_goes_on(tmp_path: Path):
    """Half of them are there before it begins; a broker lets only its administrators' client id write them."""
    home = Settings(home=str(tmp_path / "home"))
    with EmbeddedBroker(tmp_path / "broker", settings=SETTINGS) as broker:
        scene = Scene(broker.bootstrap, "victim", tmp_path)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": "__admin_client"})

        def write(seed: int) -> None:
            for number, one in enumerate(hostile_records(seed, COUNT // 2)):
                producer.produce(TOPIC, one.value, one.key, partition=number % 3)
                producer.poll(0)
            assert producer.flush(PATIENCE_S) == 0

        command = [sys.executable, "-m", "wakeroll_pipeline.cli", "watch-kafka", "--bootstrap", broker.bootstrap]
        with scene.member("a", **RANGE):
            scene.settle(1)
            write(1)
            with Child("the watch", [*command, "--home", home.home], log=tmp_path / "watch.log") as watch:
                watch.wait_until(lambda: "the past of all groups is on record" in watch.log_tail(), PATIENCE_S)
                write(2)
                with scene.member("b", **RANGE):
                    scene.settle(2)
                    wait_until(lambda: len(triggers(home)) == 2, "both joins are on record", patience_s=PATIENCE_S)
                memory_mib = resident_mib(watch.pid)
                assert watch.stop() == 0
                said = (tmp_path / "watch.log").read_text()
    assert triggers(home)[:2] == ["join", "join"]
    assert "Traceback" not in said
    for reason in ("no key", "type", "version", "damaged"):
        assert f"for the reason {reason!r}" in said
    assert memory_mib < MOST_MIB


def triggers(home: Settings) -> list[str]:
    with duck_ledger(home.warehouse) as ledger:
        query = "select trigger from rebalances where group_id = 'victim' order by seq"
        return [str(trigger) for (trigger,) in ledger.stream(query)]
