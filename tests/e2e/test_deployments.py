"""A rolling restart and a member that flaps, on a real broker: `wakeroll sql` tells them apart by what clients said."""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from tests.support.delta_tables import append, write
from tests.support.statements import statement_of
from tests.support.systems.coordinator_thread import Coordinator
from tests.support.waiting import wait_until
from wakeroll import Consumer
from wakeroll.connection import Topics
from wakeroll.keys import key_to_sign, new_signer
from wakeroll_model import feature_levels
from wakeroll_model.events import Level
from wakeroll_model.partitioner import partition_of
from wakeroll_model.replay import encode_decision
from wakeroll_model.rows import ASSIGNMENTS, DECISIONS, EVENTS, OFFSETS, SNAPSHOTS
from wakeroll_model.signing import DEV_KEYS
from wakeroll_pipeline.ledger.arrow_schemas import arrow_table
from wakeroll_pipeline.operators.ledger_rows import KafkaRecord, read_decisions, rows_of
from wakeroll_pipeline.questions import marts

pytestmark = pytest.mark.e2e


class Worker(threading.Thread):
    """A consumer that polls, until it is stopped and leaves."""

    def __init__(self, coordinator: Coordinator, group_id: str, topic: str, client_id: str, version: str) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            group_id,
            [topic],
            coordinator.connection.bootstrap,
            client_id=client_id,
            prefix=coordinator.connection.topics.prefix,
            app_version=version,
            labels={"team": "cash"},
            host=f"pod-{client_id}-{version}",
        )
        self._stopping = threading.Event()
        self.start()
        wait_until(lambda: client_id in coordinator.members(group_id), f"{client_id} is in")

    def run(self) -> None:
        """Poll."""
        while not self._stopping.is_set():
            self._consumer.poll(0.1)
        self._consumer.close()

    def stop(self) -> None:
        """Leave."""
        self._stopping.set()
        self.join()


def record(coordinator: Coordinator, warehouse: Path) -> None:
    """Write what was decided into tables, as `record` does."""
    offsets: Counter[int] = Counter()
    records = []
    for decision in list(coordinator.decided):
        partition = partition_of((getattr(decision, "group_id", None) or decision.shard).encode(), 4)
        value = encode_decision(decision)
        records.append(
            KafkaRecord(Topics().decisions, partition, offsets[partition], decision.at_ms, None, value, None)
        )
        offsets[partition] += 1
    rows = rows_of([], read_decisions(records))
    for table in (DECISIONS, ASSIGNMENTS, OFFSETS):
        write(warehouse, table, arrow_table(table.row, [one.row for one in rows[table.name]]))
    for table in (EVENTS, SNAPSHOTS):
        append(warehouse, table, [])


@pytest.mark.operate
def test_a_rolling_restart_is_told_from_a_member_that_flaps(coordinator, group_id, tmp_path, wakeroll):
    """Three members go from version 1 to 2 one after the other; in another group one joins again and again."""
    coordinator.everywhere(Level(level=feature_levels.NEWEST), new_signer(key_to_sign(DEV_KEYS, "operator")))
    wait_until(lambda: set(coordinator.levels.values()) == {feature_levels.NEWEST}, "the newest level is in force")
    topic, names, flapping = coordinator.topic(3), ("c1", "c2", "c3"), f"{group_id}-f"
    with ExitStack() as stack:

        def start(group: str, client_id: str, version: str) -> Callable[[], None]:
            stop = Worker(coordinator, group, topic, client_id, version).stop
            stack.callback(stop)
            return stop

        old = [start(group_id, name, "1") for name in names]
        for name, stop in zip(names, old, strict=True):
            stop()
            start(group_id, name, "2")
            wait_until(lambda name=name: name in coordinator.owners(group_id).values(), f"{name} has a queue again")
        start(flapping, "f1", "7")
        for _ in range(3):
            start(flapping, "f2", "7")()
        wait_until(lambda: len(set(coordinator.owners(group_id).values())) == 3, "each new member has a queue")
        beats = coordinator.beats("c1")
    warehouse = tmp_path / "warehouse"
    record(coordinator, warehouse)
    done = marts.build(
        warehouse, tmp_path / "logs", "--select", "+storms", "--select", "+rebalance_cost", command="run"
    )
    assert [outcome for outcome in done if not outcome.is_good] == []

    [path] = (marts.PROJECT / "analyses").glob("20_*.sql")
    question = tmp_path / "question.sql"
    question.write_text(statement_of(path.read_text(encoding="utf-8")), encoding="utf-8")
    code, said, complaint = wakeroll("sql", "--file", str(question), "--home", str(tmp_path), "--format", "json")

    assert code == 0, complaint
    found = {row["group_id"]: row for row in msgspec.json.Decoder().decode_lines(said)}
    rolled, flapped = found[group_id], found[flapping]
    assert (rolled["looks_like"], rolled["from_version"], rolled["to_version"]) == ("rolling restart", "1", "2")
    assert (rolled["first_member"], rolled["members"], rolled["hosts"]) == ("c1", 3, 6)
    assert flapped["looks_like"] == "flapping of f2"
    assert rolled["rebalances"] >= 3
    assert {beat.about.app_version for beat in beats if beat.about is not None} == {"1", "2"}
    assert any(beat.about is None for beat in beats)
