"""A soak of `watch-kafka`: whatever members, topics and the watch itself suffer, the record is what Kafka says.

Groups of each protocol are changed at random: members join, leave, are killed and come back, topics grow, and the watch
is killed again and again. WATCH_SOAK_SECONDS and WATCH_SOAK_SEED make a longer or another one, WATCH_SOAK_KAFKA names
another version of the broker, and with WAKEROLL_KAFKA_TOOLS, Kafka's own tool is asked too.
"""

import base64
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.systems.coordinator_scenes import CONSUMER, COOPERATIVE, RANGE, SETTINGS, Scene, records
from tests.support.systems.group_oracle import GroupOracle, Owners
from tests.support.waiting import wait_until
from wakeroll_model.coordinator_log.coordinator_records import CoordinatorRecord, read_record
from wakeroll_model.coordinator_log.message_schemas import ClassicGroupValue, ConsumerGroupValue, TargetEpochValue
from wakeroll_model.coordinator_log.record_events import kafka_group_of
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.period import Period
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.questions.replay_here import replay_here
from wakeroll_pipeline.settings import Settings

pytestmark = [pytest.mark.operate, pytest.mark.e2e]

SECONDS = float(os.environ.get("WATCH_SOAK_SECONDS", "120"))
SEED = int(os.environ.get("WATCH_SOAK_SEED", "7"))
KAFKA = os.environ.get("WATCH_SOAK_KAFKA", "")
QUICK = {"topic_metadata_refresh_interval_ms": 1_000}
GROUPS = {"range": RANGE, "cooperative": COOPERATIVE, "static": RANGE, "kip-848": CONSUMER, "static-848": CONSUMER}
MOST_MEMBERS, MOST_QUEUES = 3, 9
PATIENCE_S = 180.0


class ChangingGroup:
    """A group whose members come and go at random."""

    def __init__(self, scene: Scene, settings: dict[str, str | int], random: random.Random) -> None:
        self.scene, self.name, self._settings, self._random = scene, scene.group_id, settings, random
        self.is_static = scene.group_id.startswith("static")
        self.members: dict[str, Child] = {}
        self._queues, self._started = 4, 0

    def join(self) -> None:
        self._started += 1
        free = [number for number in range(MOST_MEMBERS) if f"i{number}" not in self.members]
        settings: dict[str, str | int] = {**self._settings, **QUICK}
        name = f"m{self._started}"
        if self.is_static:
            name = f"i{self._random.choice(free)}"
            settings["group_instance_id"] = f"{self.name}-{name}"
        child = self.scene.member(name, **settings)
        child.start()
        self.members[name] = child

    def lose(self, *, is_killed: bool) -> None:
        child = self.members.pop(self._random.choice(sorted(self.members)))
        if is_killed:
            child.kill()
        else:
            child.stop()

    def grow(self) -> None:
        self._queues += 1
        self.scene.grow(self._queues)

    def change(self) -> str:
        """Do something that is possible now; return what."""
        possible = ["grow"] if self._queues < MOST_QUEUES else []
        possible += ["join"] * 3 if len(self.members) < MOST_MEMBERS else []
        possible += ["leave", "kill"] if self.members else []
        done = self._random.choice(possible)
        match done:
            case "join":
                self.join()
            case "grow":
                self.grow()
            case _:
                self.lose(is_killed=done == "kill")
        return done

    def stop(self) -> None:
        while self.members:
            self.lose(is_killed=False)


class Watch:
    """The watch as users run it, in a process that may be killed."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._settings = Settings(home=str(folder / "home"))
        command = [sys.executable, "-m", "wakeroll_pipeline.cli", "watch-kafka", "--bootstrap", bootstrap]
        self.process = Child("the watch", [*command, "--home", self._settings.home], log=folder / "watch.log")

    def owners(self, group_id: str, at_ms: int) -> Owners:
        """Return who had what at a moment, by the tables."""
        query = """
            select topic, queue_id, client_id from assignments where group_id = $group and from_ms <= $at
            qualify row_number() over (partition by topic, queue_id order by seq desc) = 1
        """
        found = self.rows(query, group=group_id, at=at_ms)
        return {(str(topic), int(str(number))): str(name) for topic, number, name in found if name is not None}

    def offsets(self, group_id: str) -> dict[tuple[str, int], int]:
        query = """
            select topic, queue_id, committed_offset from offsets where group_id = $group
            qualify row_number() over (partition by topic, queue_id order by seq desc) = 1
        """
        return {(str(t), int(str(n))): int(str(at)) for t, n, at in self.rows(query, group=group_id)}

    def epochs(self, group_id: str) -> list[int]:
        query = "select json->>'$.epoch' from decisions where group_id = $group and kind = 'rebalance' order by seq"
        return [int(str(epoch)) for (epoch,) in self.rows(query, group=group_id)]

    def rows(self, query: str, **values: object) -> list[tuple[object, ...]]:
        with duck_ledger(self._settings.warehouse) as ledger:
            return [tuple(row) for row in ledger.stream(query, **values)]

    def differences(self) -> set[tuple[int, int, int]]:
        with duck_ledger(self._settings.warehouse) as ledger:
            done = replay_here(ledger, self._settings.partitions, Period())
        return {(one.differences, one.not_recorded, one.unknown) for one in done}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "broker", version=KAFKA, settings=SETTINGS) as running:
        yield running


def test_the_record_is_what_kafka_says_at_any_moment(broker: EmbeddedBroker, tmp_path: Path):
    chance, done, checked = random.Random(SEED), Counter[str](), Counter[str]()
    oracle, watch = GroupOracle(broker.bootstrap), Watch(broker.bootstrap, tmp_path)
    names = [name for name in GROUPS if not (KAFKA.startswith("3.") and name.endswith("848"))]
    groups = [ChangingGroup(Scene(broker.bootstrap, name, tmp_path), GROUPS[name], chance) for name in names]
    with ExitStack() as ending:
        ending.callback(watch.process.stop)
        for group in groups:
            ending.callback(group.stop)
            group.join()
            group.join()
        for _ in range(3):  # also while it makes its tables
            watch.process.start()
            time.sleep(chance.uniform(0.2, 3.0))
            watch.process.kill()
        watch.process.start()
        watch.process.wait_until(lambda: "reading the" in watch.process.log_tail(), PATIENCE_S)
        ends_s = time.monotonic() + SECONDS
        while time.monotonic() < ends_s:
            for group in chance.sample(groups, chance.randint(1, 3)):
                done[group.change()] += 1
            if chance.random() < 0.3:
                watch.process.kill()
                watch.process.start()
                done["kill of the watch"] += 1
            time.sleep(chance.choice([0.0, 0.5, 2.0, 4.0]))
            group = chance.choice(groups)
            if check(group, oracle, watch):
                checked[group.name] += 1
        for group in groups:
            wait_until(lambda its=group: check(its, oracle, watch), "it is stable", patience_s=PATIENCE_S)
        for group in groups:
            group.stop()
            wait_until(lambda its=group: oracle.owners(its.name) == {}, "it is empty", patience_s=PATIENCE_S)
        for group in groups:
            wait_until(
                lambda its=group: watch.offsets(its.name) == oracle.offsets(its.name),
                f"the offsets of {group.name} are those of Kafka",
                patience_s=PATIENCE_S,
                state=lambda its=group: (watch.offsets(its.name), oracle.offsets(its.name)),
            )
            assert check(group, oracle, watch)
    recorded, of_groups = epochs_of(broker.bootstrap)
    for group in groups:
        found = watch.epochs(group.name)
        assert [one for one in found if one in recorded[group.name]] == recorded[group.name], group.name
        # Before 4.4, no target is recorded for a KIP-848 group without members.
        assert {*found} <= {*recorded[group.name], *of_groups[group.name]}, group.name
        assert found == sorted({*found}), group.name
    assert watch.differences() == {(0, 0, 0)}
    print(f"seed {SEED}: {dict(done)}; compared: {dict(checked)}, {oracle.asked_tools} times by Kafka's tool")


def check(group: ChangingGroup, oracle: GroupOracle, watch: Watch) -> bool:
    """Compare the tables with what Kafka says, if it says the same for a moment; return whether it did."""
    before = oracle.owners(group.name)
    at_ms = int(time.time() * 1_000)
    by_tool = None if group.is_static else oracle.owners_by_tool(group.name)
    if before is None or oracle.owners(group.name) != before:
        return False
    if by_tool is not None:
        assert by_tool == before, "Kafka contradicts itself"
    wait_until(
        lambda: watch.owners(group.name, at_ms) == before,
        f"the owners of {group.name} at {at_ms} are those of Kafka",
        patience_s=PATIENCE_S,
        state=lambda: (watch.owners(group.name, at_ms), before, watch.process.log_tail()),
    )
    return True


def epochs_of(bootstrap: str) -> tuple[dict[str, list[int]], dict[str, set[int]]]:
    """Return what Kafka has on record of each group: its generations or target epochs in order, and its group epochs.

    A generation that is recorded again, because a static member came back, counts once.
    """
    found, of_groups = defaultdict[str, list[int]](list), defaultdict[str, set[int]](set)
    for one in records(bootstrap):
        key, value = base64.b64decode(str(one["key"])), one["value"]
        read = read_record(key, None if value is None else base64.b64decode(str(value)))
        assert isinstance(read, CoordinatorRecord)
        group, number = kafka_group_of(read), 0
        match read.value:
            case ClassicGroupValue():
                number = read.value.generation
            case TargetEpochValue():
                number = read.value.assignment_epoch
            case ConsumerGroupValue():
                of_groups[group].add(read.value.epoch)
        if number > 0 and number not in found[group]:
            found[group].append(number)
    return found, of_groups
