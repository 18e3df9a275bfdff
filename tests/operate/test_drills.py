"""The drills of the runbook, as an operator does them: scripts against a whole system with consumers at work."""

import json
import mmap
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from tests.support import planted_bug
from tests.support.running_processes import ROOT, run_process
from tests.support.systems.fleet import CLIENTS, GROUP, QUEUES, Fleet, make_topic
from tests.support.systems.service_commands import ServiceCommands
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll import Admin
from wakeroll_model.config import ERA_EPOCHS
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.local_system import LocalSystem

pytestmark = [pytest.mark.operate, pytest.mark.e2e, pytest.mark.spark]

until = partial(wait_until, patience_s=PATIENCE_WITH_SPARK_S)
HOUR_S = 3_600
SMALL = "192m"
"""Size of a disk that holds a young deployment."""


def services_of(fleet: Fleet, folder: Path, **more: Callable[[], object]) -> ServiceCommands:
    """Return the commands that stop and start `wakeroll run`, and others by their names."""

    def start() -> None:
        if not fleet.system.jobs.is_running:
            fleet.system.jobs.start()

    return ServiceCommands(folder / "services", {"stop-run": fleet.system.jobs.stop, "start-run": start, **more})


def drill(name: str, fleet: Fleet, services: ServiceCommands, *options: str) -> str:
    """Do a drill that stops and starts `wakeroll run`; return what it prints."""
    commands = ("--stop", services.command("stop-run"), "--start", services.command("start-run"))
    return drill_without_stop(name, fleet, *commands, *options)


def drill_without_stop(name: str, fleet: Fleet, *options: str) -> str:
    """Do a drill; return what it prints."""
    done = run_process([sys.executable, ROOT / "deploy" / "drills" / name, *options], **fleet.environment)
    assert done.returncode == 0, done.stdout + done.stderr + fleet.system.jobs.log_tail(60)
    print(done.stdout)
    return done.stdout


def members(fleet: Fleet) -> int:
    """Return the number of members of all groups, by the tables."""
    done = run_process([sys.executable, "-m", "wakeroll_pipeline.cli", "groups", "--json"], **fleet.environment)
    return sum(group["members"] for group in json.loads(done.stdout)["groups"])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder in a file system of its own, which is soon full."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "none", folder], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_lost_tables_are_written_again(broker: EmbeddedBroker, spark, tmp_path: Path):
    """Consumers do not notice; each row is there once, and a replay says the same."""
    with Fleet(broker.bootstrap, tmp_path) as fleet, services_of(fleet, tmp_path) as services:
        fleet.wait_for_more(300)
        said = drill("lost_tables.py", fleet, services)
        fleet.wait_for_more(300)
        fleet.wait_until_consumed()

    assert "has no table events, decisions, assignments, offsets, or no row of it, but" in said
    fleet.check(spark)


def test_lost_checkpoints_are_restored_from_snapshots(broker: EmbeddedBroker, spark, tmp_path: Path):
    """No member is evicted, and no decision differs from those before."""
    with Fleet(broker.bootstrap, tmp_path) as fleet, services_of(fleet, tmp_path) as services:
        fleet.wait_for_more(300)
        said = drill("restore_from_snapshots.py", fleet, services)
        fleet.wait_for_more(300)
        fleet.wait_until_consumed()

    assert "8 of 8 shards continue in their era" in said
    fleet.check(spark)


def test_a_copy_of_the_tables_made_while_they_are_written_is_restored(broker: EmbeddedBroker, spark, tmp_path: Path):
    """It is older than the decisions: the log has what it lacks, and every row is there once."""
    with Fleet(broker.bootstrap, tmp_path) as fleet, services_of(fleet, tmp_path) as services:
        fleet.wait_for_more(300)
        said = drill("restore_from_backup.py", fleet, services)
        fleet.wait_for_more(300)
        fleet.wait_until_consumed()

    assert "8 of 8 shards continue in their era" in said
    fleet.check(spark)


def test_a_snapshot_of_the_volume_is_restored(broker: EmbeddedBroker, spark, tmp_path: Path):
    """It has tables and checkpoints as they were in one moment, in the middle of batches, and lacks the last write."""
    home = tmp_path / "home"
    with ExitStack() as stack:
        fleet = stack.enter_context(Fleet(broker.bootstrap, tmp_path, checkpoints=str(home / "checkpoints")))

        def snapshot() -> None:
            """Copy the folder while none of the processes that write to it runs."""
            with suspended(fleet.system.jobs.pid):
                shutil.copytree(home, tmp_path / "home.drill-copy", symlinks=True)
            # The node had not written the newest commit of a table to the volume yet.
            log = tmp_path / "home.drill-copy" / "warehouse" / "assignments" / "_delta_log"
            max(log.glob("*.json")).write_bytes(b"")

        services = stack.enter_context(services_of(fleet, tmp_path, snapshot=snapshot))
        fleet.wait_for_more(300)
        said = drill("restore_from_backup.py", fleet, services, "--copy", services.command("snapshot"))
        fleet.wait_for_more(300)
        fleet.wait_until_consumed()

    assert (home / "checkpoints" / "coordinate.set-aside").is_dir()
    assert "8 of 8 shards continue in their era" in said
    fleet.check(spark)


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    """Suspend a process with all of its children, its JVM and its workers."""
    family = [pid]
    for parent in family:
        children = Path(f"/proc/{parent}/task/{parent}/children")
        family += [int(child) for child in children.read_text().split()] if children.exists() else []
    for one in family:
        os.kill(one, signal.SIGSTOP)
    try:
        yield
    finally:
        for one in reversed(family):
            os.kill(one, signal.SIGCONT)


def test_a_full_disk_stops_decisions_and_nothing_is_lost(broker: EmbeddedBroker, spark, small_disk, tmp_path: Path):
    """The process says that there is no room, ends, and continues with the same decisions as soon as there is some."""
    places = {name: str(small_disk / name) for name in ("home", "checkpoints")}
    with Fleet(broker.bootstrap, tmp_path, **places) as fleet, services_of(fleet, tmp_path) as services:
        fleet.wait_for_more(300)
        said = drill("disk_full.py", fleet, services)
        fleet.wait_for_more(300)
        fleet.wait_until_consumed()

    assert re.search(r"wakeroll: .*No space left on device", said), said
    fleet.check(spark)


def test_a_deployment_moves_to_another_cluster(broker: EmbeddedBroker, spark, tmp_path: Path):
    """Settings and epochs continue, nobody is evicted, and the messages of the new cluster are consumed once."""
    with ExitStack() as stack:
        other = stack.enter_context(EmbeddedBroker(tmp_path / "other broker"))
        old = stack.enter_context(Fleet(broker.bootstrap, tmp_path / "old", checkpoints=str(tmp_path / "checkpoints")))
        with Admin(broker.bootstrap, prefix=old.settings.prefix) as admin:
            admin.configure(GROUP, session_timeout_ms=33_000)
        old.wait_for_more(300)
        old.wait_until_consumed()
        for client in CLIENTS:
            old.let_leave(client)
        new = Fleet(
            other.bootstrap,
            tmp_path / "new",
            prefix=old.settings.prefix,
            checkpoints=old.settings.checkpoints,
            topic=old.topic,
        )
        make_topic(new.settings.connection, new.topic, QUEUES)

        def stop() -> None:
            old.system.stop()

        def start() -> None:
            new.system.observer.start()
            new.system.jobs.start()

        stack.callback(new.stop)
        until(lambda: members(old) == 0, "the old tables show that all members have left")
        with ServiceCommands(tmp_path / "services", {"stop-run": stop, "start-run": start}) as services:
            said = drill("move_brokers.py", old, services, "--to", other.bootstrap, "--to-home", new.settings.home)
        new.start_clients()
        new.wait_for_more(300)
        new.wait_until_consumed()
        for client in CLIENTS:
            new.let_leave(client)
        new.system.stop()

    assert "begins era 2 from the checkpoint" in said
    new.check_messages(spark)
    assert new.changes(spark)["expired"] == 0
    epochs = [row.epoch for row in spark.sql(f"select epoch from rebalances where group_id = '{GROUP}'").collect()]
    assert min(epochs) > ERA_EPOCHS
    assigned = spark.sql("select json from decisions where kind = 'assignment'").collect()
    assert {json.loads(row.json)["session_timeout_ms"] for row in assigned} == {33_000}


def test_a_deployment_gets_more_shards(broker: EmbeddedBroker, spark, tmp_path: Path):
    """Groups move to other shards with their members, epochs and offsets; their consumers do not join again."""
    with Fleet(broker.bootstrap, tmp_path) as fleet:
        number = 2 * fleet.settings.partitions
        grown = LocalSystem(structs.replace(fleet.settings, partitions=number))
        stop = fleet.system.jobs.stop

        def start() -> None:
            fleet.system.jobs = grown.jobs
            grown.jobs.start()

        with ServiceCommands(tmp_path / "services", {"stop-run": stop, "start-run": start}) as services:
            fleet.wait_for_more(300)
            said = drill("more_shards.py", fleet, services, "--partitions", str(number))
            fleet.wait_for_more(300)
            fleet.wait_until_consumed()

    assert said.count(f"on, {number} partitions decide") == number
    changes = fleet.changes(spark)  # those that left when the test ended may be in the tables, or not yet
    assert (changes["joined"], changes["expired"]) == (len(CLIENTS), 0)
    fleet.check_messages(spark)


def test_a_record_that_the_coordinator_cannot_process_is_found(broker: EmbeddedBroker, spark, tmp_path: Path):
    """It is rejected, with its reason; the consumers do not notice."""
    with Fleet(broker.bootstrap, tmp_path) as fleet:
        fleet.wait_for_more(300)
        said = drill_without_stop("poison_record.py", fleet)
        fleet.wait_until_consumed()

    assert "it must be a whole number" in said
    fleet.check(spark)


def test_a_record_that_makes_the_machine_fail_is_found(
    broker: EmbeddedBroker, spark, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """A real bug, planted in the processes of the coordinator: `doctor` counts it, and all other groups go on."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "tests" / "planted"), str(ROOT)]))
    beat = {
        "type": "heartbeat",
        "group_id": "drill",
        "client_id": planted_bug.CLIENT,
        "instance_id": "one",
        "subscriptions": [{"topic": "orders"}],
    }
    with Fleet(broker.bootstrap, tmp_path) as fleet:
        fleet.wait_for_more(300)
        said = drill_without_stop("poison_record.py", fleet, "--value", json.dumps(beat), "--rule", "internal")
        fleet.wait_until_consumed()

    assert "1 events failed since process" in said
    with planted_bug.planted():
        fleet.check(spark)


@pytest.fixture
def shifted_broker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[EmbeddedBroker, Callable[[int], None]]]:
    """A broker of its own, and a function that shifts its clock by so many seconds while it runs."""
    library, shift = tmp_path / "shifted_clock.so", tmp_path / "shift"
    source = ROOT / "tests" / "support" / "systems" / "shifted_clock.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-pthread"], check=True)
    shift.write_bytes(struct.pack("q", 0))
    with shift.open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:

        def set_clock(seconds: int) -> None:
            shared[:] = struct.pack("q", seconds)

        with monkeypatch.context() as environment:
            environment.setenv("LD_PRELOAD", str(library))
            environment.setenv("SHIFTED_CLOCK", str(shift))
            running = EmbeddedBroker(tmp_path / "broker")
            running.start()
        yield running, set_clock
        running.stop()


def test_a_clock_that_jumps_ends_no_session(shifted_broker, spark, tmp_path: Path):
    """Log times jump an hour ahead and back; the coordinator counts ticks."""
    broker, set_clock = shifted_broker
    clock = {"jump": lambda: set_clock(HOUR_S), "back": lambda: set_clock(0)}
    with Fleet(broker.bootstrap, tmp_path) as fleet, ServiceCommands(tmp_path / "services", clock) as services:
        fleet.wait_for_more(300)
        commands = ("--jump", services.command("jump"), "--back", services.command("back"))
        drill_without_stop("clock_jump.py", fleet, *commands)
        fleet.wait_for_more(300)
        fleet.wait_until_consumed()

    fleet.check(spark)
    groups = fleet.settings.connection.topics.groups
    [row] = spark.sql(f"select max(at_ms) - min(at_ms) as ms from events where topic = '{groups}'").collect()
    assert row.ms > HOUR_S * 1_000, "the log has times of both clocks"
