"""The drill of docs/upgrading.md: from release 0.1 to this one and back, process by process, with consumers at work."""

import sys
from functools import partial
from pathlib import Path
from typing import Literal, Self

import pytest

from tests.support.running_processes import run_process
from tests.support.systems.earlier_release import LEVEL, EarlierRelease
from tests.support.systems.fleet import Fleet
from tests.support.systems.replicas import coordinator, log_of, publications, replica_of
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll.keys import key_to_sign
from wakeroll_model import feature_levels
from wakeroll_model.events import Level
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.kafka.shard_records import append_to_shards
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.local_system import LocalSystem
from wakeroll_pipeline.settings import Settings

pytestmark = [pytest.mark.operate, pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(3_600)]

Release = Literal["0.1", "this one"]
until = partial(wait_until, patience_s=PATIENCE_WITH_SPARK_S)
MESSAGES = 200
"""So many are consumed after each change."""


def wakeroll(settings: Settings, *words: str) -> str:
    """Run a command of this release to its end; return what it prints."""
    done = run_process([sys.executable, "-m", "wakeroll_pipeline.cli", *words], **settings.environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Deployment:
    """The processes of a fleet and a second coordinator, each of either release."""

    def __init__(self, fleet: Fleet, earlier: EarlierRelease) -> None:
        """Begin with release 0.1 everywhere; nothing is started."""
        self._fleet = fleet
        self._earlier = earlier
        fleet.system.observer = self._observer("0.1")
        fleet.system.jobs = self.coordinator("a", "0.1")
        self._second = self.coordinator("b", "0.1")

    def __enter__(self) -> Self:
        """Start the second coordinator; the fleet has started the other processes."""
        self._start("b", self._second)
        return self

    def __exit__(self, *_: object) -> None:
        self._second.stop()

    def coordinator(self, replica: str, release: Release) -> Child:
        """Describe a process of a coordinator."""
        settings = replica_of(self._fleet.settings, replica)
        if release == "0.1":
            return self._earlier.process("run", settings, name=f"run-{replica}")
        return coordinator(settings)

    def replace_observer(self, release: Release) -> None:
        """Give the observer another release."""
        self._fleet.system.observer.stop()
        self._fleet.system.observer = self._observer(release)
        self._fleet.system.observer.start()

    def replace_first(self, release: Release) -> None:
        """Give the first coordinator another release, while the second one decides."""
        self._fleet.system.jobs = self._replace("a", self._fleet.system.jobs, release)

    def replace_second(self, release: Release) -> None:
        """Give the second coordinator another release, while the first one decides."""
        self._second = self._replace("b", self._second, release)

    def stop_second(self) -> None:
        """Stop the second coordinator in good order."""
        assert self._second.stop() == 0, log_of(self._second)

    def _observer(self, release: Release) -> Child:
        settings = self._fleet.settings
        return self._earlier.process("observe", settings) if release == "0.1" else LocalSystem(settings).observer

    def _replace(self, replica: str, process: Child, release: Release) -> Child:
        code = process.stop()
        # Release 0.1 may hang while it stops in the middle of a batch; a supervisor kills it then, and so does `stop`.
        assert code == 0 or process.name.endswith(f"of release 0.1 {replica}"), log_of(process)
        following = self.coordinator(replica, release)
        self._start(replica, following)
        self._fleet.wait_for_more(MESSAGES)
        return following

    def _start(self, replica: str, process: Child) -> None:
        process.start()
        with publications(self._fleet.settings, from_now=True) as reader:
            wait_until(
                lambda: reader.has(replica),
                f"replica {replica} publishes",
                patience_s=PATIENCE_WITH_SPARK_S,
                state=process.log_tail,
            )


def test_a_deployment_is_upgraded_put_back_and_upgraded_for_good(broker: EmbeddedBroker, spark, tmp_path: Path):
    """Until the level is raised, both releases decide alike and read each other's states; then the earlier one refuses.

    No message is lost, no queue has two owners, and nobody is evicted.
    """
    fleet = Fleet(broker.bootstrap, tmp_path, replica="a")
    settings = fleet.settings
    ensure_topics(settings.connection)  # by itself, this release would begin a new deployment at its newest level
    places = [(topic, number) for topic in settings.connection.topics.control for number in range(settings.partitions)]
    key = key_to_sign(settings.read_keys(), "operator")
    append_to_shards(settings.connection, key, Level(level=LEVEL, by="release 0.1"), places)
    deployment = Deployment(fleet, EarlierRelease(tmp_path / "release"))
    with fleet, deployment:
        deployment.replace_observer("this one")
        deployment.replace_first("this one")
        deployment.replace_second("this one")
        deployment.replace_first("0.1")
        deployment.stop_second()
        deployment.replace_observer("0.1")
        fleet.wait_for_more(MESSAGES)
        deployment.replace_observer("this one")
        deployment.replace_first("this one")
        raised = wakeroll(settings, "upgrade", "--execute")
        fleet.wait_for_more(MESSAGES)
        fleet.wait_until_consumed()
        assert fleet.system.jobs.stop() == 0
        with deployment.coordinator("a", "0.1") as refusing:
            until(lambda: not refusing.is_running, "release 0.1 refuses the states of the new level")

    newest = feature_levels.OFFERED
    assert f"raised to level {newest}" in " ".join(raised.split())
    assert refusing.returncode not in (0, None)
    refusal = (
        f"is at feature level {newest}, but this release knows levels 1 to {LEVEL} and cannot decide at a later one"
    )
    assert refusal in log_of(refusing)
    fleet.check(spark)
    assert spark.table("divergences").count() == 0
    assert "decisions compared: equal" in wakeroll(settings, "replay")
    wakeroll(settings, "check")
