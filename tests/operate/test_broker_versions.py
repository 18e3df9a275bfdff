"""The versions of Kafka's broker that wakeroll claims: consumers, a producer, the observer and the jobs, on each."""

import pytest

from tests.support.systems.fleet import Fleet
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.spark.jar_paths import broker_jars, our_jars
from wakeroll_pipeline.spark.jar_sums import JarsMissing

pytestmark = [pytest.mark.operate, pytest.mark.spark]

VERSIONS = [name.removeprefix("kafka-") for name in our_jars().other_brokers]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_story_is_the_same_on_each_version(version, spark, tmp_path):
    """A broker is killed in between, and a member leaves; nothing is lost, and a replay decides the same."""
    try:
        broker_jars(version)
    except JarsMissing as error:
        pytest.skip(str(error))
    with (
        EmbeddedBroker(tmp_path / "broker", version=version) as broker,
        Fleet(broker.bootstrap, tmp_path) as fleet,
    ):
        fleet.wait_for_more(400)
        broker.kill()
        broker.start()
        fleet.wait_for_more(400)
        fleet.let_leave("c3")
        fleet.wait_for_more(400)
        fleet.system.check()
        fleet.wait_until_consumed()

    fleet.check(spark)
    assert fleet.changes(spark)["left"] >= 1
