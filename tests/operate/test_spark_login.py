"""Both jobs in one Spark session on brokers with a login: by password over TLS, and by certificate."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs
from pyspark.sql import SparkSession

from tests.support.systems.deployment import Log, told
from tests.support.systems.secured_deployment import USERS, SecuredDeployment, secured_deployment
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll import Consumer
from wakeroll.errors import AccessDenied
from wakeroll_pipeline.jobs import coordinate, record
from wakeroll_pipeline.ledger.tables import open_views
from wakeroll_pipeline.settings import Settings

pytestmark = [pytest.mark.operate, pytest.mark.spark]


@pytest.fixture(scope="module", params=["password", "certificate"])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredDeployment]:
    """A deployment without processes, on a broker of each sort."""
    folder = tmp_path_factory.mktemp(request.param)
    with secured_deployment(folder, by_certificate=request.param == "certificate") as deployment:
        yield deployment


@pytest.mark.parametrize("java", [False, True], ids=["librdkafka's names", "Java's names"])
def test_the_jobs_decide_and_record_and_their_plans_show_no_secret(
    secured: SecuredDeployment, spark: SparkSession, tmp_path: Path, java: bool
):
    """`explain` prints the options of a stream; Spark's log and its pages show the same plans."""
    home = str(tmp_path / "home")
    jobs = Settings(
        bootstrap=secured.broker.bootstrap,
        kafka_config=str(secured.broker.properties("jobs", java=java)),
        home=home,
        checkpoints=str(tmp_path / "checkpoints"),
        batch_interval_ms=200,
    )
    log = Log(structs.replace(jobs, kafka_config=str(secured.broker.properties("admin"))))
    queries = [coordinate.start(spark, jobs), record.start(spark, jobs)]
    group = f"group-{java}"
    try:
        queues = [{"topic": "orders", "broker": "", "queue_id": queue_id} for queue_id in range(2)]
        log.tick()
        log.everywhere(type="route", topic="orders", version="1", queues=queues)
        log.beat(group, "a")
        reader = structs.replace(jobs, kafka_config=str(secured.broker.properties("page")))

        def decided() -> bool:
            log.tick()
            queries[0].processAllAvailable()
            return told(reader).get((group, "a")) == [0, 1]

        wait_until(decided, "the member owns both queues", patience_s=PATIENCE_WITH_SPARK_S)
        queries[1].processAllAvailable()
        plans = "".join(query._jsq.explainInternal(True) for query in queries)
    finally:
        for query in queries:
            query.stop()
    open_views(spark, jobs.warehouse)

    assert spark.sql(f"select * from current_assignments where group_id = '{group}'").count() == 2
    assert "kafka" in plans.lower()
    assert [secret for secret in secrets_of(secured) if secret in plans] == []


def test_a_client_without_rights_is_refused_with_a_certificate_too(secured: SecuredDeployment):
    with pytest.raises(AccessDenied, match=r"the operation Write on the topic wakeroll\.groups"):
        Consumer("audit", ["orders"], **secured.login("post"))


def secrets_of(secured: SecuredDeployment) -> list[str]:
    """Return the random part of each password, and a line of each private key."""
    passwords = [password.rpartition("\\")[2] for password in secured.broker.passwords.values()]
    files = [file.read_text() for file in secured.broker.authority.folder.glob("*.pem")]
    keys = [text.splitlines()[1] for text in files if "PRIVATE" in text]
    assert len(passwords) > len(USERS)
    return passwords + keys
