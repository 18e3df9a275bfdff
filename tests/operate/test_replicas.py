"""Whole systems with several coordinators, whose processes are killed and suspended at random moments.

KILLS=20 kills more often; SEED repeats the moments of another run.
"""

import os
import random
from functools import partial
from pathlib import Path

import pytest

from tests.support.running_processes import run_process
from tests.support.systems.fleet import GROUP, PER_SECOND, Fleet
from tests.support.systems.replicas import coordinator, log_of, pause, publications, replica_of, wake
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll import Admin
from wakeroll_model.events import Configure
from wakeroll_model.signing import DEV_KEYS
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.traffic import configure
from wakeroll_pipeline.settings import Settings

pytestmark = [pytest.mark.operate, pytest.mark.e2e, pytest.mark.spark]

KILLS = int(os.environ.get("KILLS", "3"))
SESSION_MS, SESSIONS = 12_000, 4
"""A session of a group, and how many of them a coordinator is suspended."""
LEASE_MS = 15_000
"""Longer than the broker is silent when this machine is busy with other tests."""

until = partial(wait_until, patience_s=PATIENCE_WITH_SPARK_S)


def writes_tables(child: Child) -> bool:
    """Return whether a process has ever begun to write the tables."""
    return "this process writes the tables from now on" in log_of(child)


def stands_by(child: Child, holder: str = "") -> bool:
    return f"standing by: {holder}" in log_of(child)


def snapshots_of(child: Child) -> bool:
    return "snapshots of" in log_of(child)


def publishes(settings: Settings, replica: str) -> None:
    """Wait until a replica publishes a new decision."""
    with publications(settings, from_now=True) as reader:
        until(lambda: reader.has(replica), f"replica {replica} publishes")


def test_coordinators_die_one_after_the_other_and_nobody_notices(broker: EmbeddedBroker, spark, tmp_path: Path):
    """No decision is missing or differs, no member is evicted, and no message is lost; one writes the tables."""
    seed = int(os.environ.get("SEED", str(random.randrange(10**6))))
    print(f"KILLS={KILLS} SEED={seed}")
    moments = random.Random(seed)
    with Fleet(broker.bootstrap, tmp_path, replica="a", lease_ms=LEASE_MS) as fleet:
        settings = fleet.settings
        replicas = {"a": fleet.system.jobs, "b": coordinator(replica_of(settings, "b"))}
        until(lambda: writes_tables(replicas["a"]) and snapshots_of(replicas["a"]), "the first one writes the tables")
        with replicas["b"]:
            publishes(settings, "b")
            until(lambda: stands_by(replicas["b"], "a@"), "the second one stands by")
            for number in range(KILLS):
                more = len(fleet.traffic.produced) + moments.randrange(1_500)
                until(lambda more=more: len(fleet.traffic.produced) >= more, "so many more messages are produced")
                victim, other = ("a", "b") if number % 2 == 0 else ("b", "a")
                replicas[victim].kill()
                publishes(settings, other)
                until(lambda other=other: writes_tables(replicas[other]), "the other one writes the tables")
                replicas[victim].start()
                publishes(settings, victim)
            for victim in moments.sample(["a", "b"], 2):
                replicas[victim].kill()
            for victim in moments.sample(["a", "b"], 2):
                replicas[victim].start()
            for name in ("a", "b"):
                publishes(settings, name)
            fleet.wait_until_consumed()
            until(lambda: any(map(writes_tables, replicas.values())), "one writes the tables")
            replicas["b"].stop()
            until(lambda: writes_tables(replicas["a"]), "the last one writes the tables")
        assert replicas["b"].returncode == 0, log_of(replicas["b"])

    fleet.check(spark)
    assert spark.table("divergences").count() == 0


def test_a_coordinator_suspended_for_several_sessions_evicts_nobody(broker: EmbeddedBroker, spark, tmp_path: Path):
    """It is the only one. It applies the heartbeats that it has missed, in their order, and then works as before."""
    with Fleet(broker.bootstrap, tmp_path) as fleet:
        session = Configure(group_id=GROUP, heartbeat_ms=2_000, session_timeout_ms=SESSION_MS)
        configure(fleet.settings.connection, DEV_KEYS, session)
        fleet.wait_for_more(400)
        pause(fleet.system.jobs)
        try:
            enough = len(fleet.traffic.produced) + PER_SECOND * SESSIONS * SESSION_MS // 1_000
            until(lambda: len(fleet.traffic.produced) >= enough, f"the messages of {SESSIONS} sessions are produced")
        finally:
            wake(fleet.system.jobs)
        with Admin(broker.bootstrap, prefix=fleet.settings.prefix) as admin:
            admin.configure(GROUP, settle_ms=100, timeout=PATIENCE_WITH_SPARK_S)  # it decides
        fleet.wait_for_more(400)
        fleet.system.check()
        fleet.wait_until_consumed()

    fleet.check(spark)


def test_a_writer_that_slept_longer_than_its_lease_writes_no_row_twice(broker: EmbeddedBroker, spark, tmp_path: Path):
    """Its successor has the tables; the sleeper wakes up in the middle of whatever it did, and ends."""
    with Fleet(broker.bootstrap, tmp_path, replica="a", lease_ms=LEASE_MS, locks="lease") as fleet:
        settings = fleet.settings
        first, second = fleet.system.jobs, coordinator(replica_of(settings, "b"))
        until(lambda: writes_tables(first) and snapshots_of(first), "the first one writes the tables")
        with second:
            until(lambda: stands_by(second, "a@"), "the second one stands by")
            pause(first)
            until(lambda: writes_tables(second), "the second one has taken over")
            until(lambda: snapshots_of(second), "the second one has written batches")
            wake(first)
            until(lambda: not first.is_running, "the first one has ended")
            assert first.returncode not in (0, None)
            # It meets the lease or a fence first: it was suspended anywhere.
            reasons = ("this process has lost the lease 'record' to b@", "another process writes")
            assert any(reason in log_of(first) for reason in reasons), log_of(first)
            first.start()
            until(lambda: stands_by(first, "b@"), "the first one stands by now")
            publishes(settings, "a")
            fleet.wait_until_consumed()
            second.stop()
            until(lambda: writes_tables(first), "the first one writes the tables again")

    fleet.check(spark)
    snapshots = spark.table("snapshots").groupBy("topic", "partition", "era", "offset").count()
    assert snapshots.where("count > 1").collect() == []


def test_a_coordinator_that_slept_is_replaced_on_its_checkpoint(broker: EmbeddedBroker, spark, tmp_path: Path):
    """A second process with the same name waits for the lease, is refused while the first one works, and takes over."""
    with Fleet(broker.bootstrap, tmp_path, lease_ms=LEASE_MS, locks="lease") as fleet:
        settings, first = fleet.settings, fleet.system.jobs
        refused = run_process(coordinator(settings).argv, **settings.environment())
        assert refused.returncode == 2
        assert "already decides from this checkpoint; stop it first" in refused.stderr
        pause(first)
        second = coordinator(settings, name="second")
        with second:
            until(lambda: "running coordinate, record" in log_of(second), "the second one has taken over")
            publishes(settings, "")
            wake(first)
            until(lambda: not first.is_running, "the first one has ended")
            assert "has lost the lease" in log_of(first) or "oncurrent" in log_of(first), log_of(first)
            fleet.wait_until_consumed()
            second.stop()
        assert second.returncode == 0, log_of(second)

    fleet.check(spark)
