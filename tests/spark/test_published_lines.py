"""The recorder publishes the newest lines of the chains when it ends, and `restore` those that were lost with them."""

import shutil
from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry

from tests.support.systems.deployment import Log, deploy
from wakeroll.epoch_ms import now_ms
from wakeroll_model.chain import counting
from wakeroll_pipeline.jobs import coordinate, record
from wakeroll_pipeline.jobs.recording_part import Recording
from wakeroll_pipeline.jobs.supervise import stop_between_batches
from wakeroll_pipeline.kafka.control_topics import ensure_chain_topic
from wakeroll_pipeline.kafka.published_lines import LinePublisher, read_published
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.metrics.run_metrics import RunMetrics
from wakeroll_pipeline.questions.quality.all_rules import all_rules
from wakeroll_pipeline.questions.quality.chain_check import ChainCheck
from wakeroll_pipeline.questions.quality.published_check import check_published
from wakeroll_pipeline.questions.quality.rule import HISTORY
from wakeroll_pipeline.recovery.restore_plan import prepare_restore
from wakeroll_pipeline.runtime.process_locks import process_locks
from wakeroll_pipeline.settings import Settings

pytestmark = pytest.mark.spark


@pytest.fixture
def settings(broker, tmp_path) -> Settings:
    settings = deploy(broker, tmp_path, "published")
    assert ensure_chain_topic(settings.connection) is None
    return settings


def run_once(spark, settings: Settings, name: str) -> dict[str, float | None]:
    """Decide and record all that is in the log, as `run` does; return table -> newest line, as the metric says."""
    registry = CollectorRegistry()
    metrics = RunMetrics(decides=True, writes=True, registry=registry)
    with ExitStack() as stack:
        locks = stack.enter_context(process_locks(settings, [coordinate.NAME, record.NAME]))
        publisher = LinePublisher(settings.connection, name)
        recording = Recording(spark, settings, metrics, locks, now_ms(), publisher)
        for query in (coordinate.start(spark, settings), recording.start()):
            query.processAllAvailable()
            stop_between_batches(query, 0.0)
        recording.close()
    tables = ("events", "decisions", "assignments")
    return {table: registry.get_sample_value("wakeroll_chain_newest_line", {"table": table}) for table in tables}


def newest(settings: Settings) -> dict[str, tuple[int, str]]:
    """Return table -> its newest line."""
    check = ChainCheck()
    with duck_ledger(settings.warehouse) as ledger:
        found = [one for table in check.tables_of(all_rules()[HISTORY]) for one in check.broken(ledger, table)]
    assert found == []
    return {head.table: (head.number, head.line_hash) for head in check.heads}


@pytest.mark.operate
def test_a_recorder_publishes_the_newest_lines_and_restore_those_that_were_lost(spark, settings):
    log, topic = Log(settings), settings.connection.topics.chain
    log.tick()
    log.route(2)
    log.beat("billing", "a")
    log.pass_seconds(3)
    figures = run_once(spark, settings, "one")
    first = newest(settings)
    published = read_published(settings.connection) or []
    assert {one.table: (one.number, one.line_hash) for one in published} == first
    assert figures == {table: first[table][0] for table in ("events", "decisions", "assignments")}

    log.beat("billing", "b")
    log.pass_seconds(3)
    run_once(spark, settings, "two")
    published = read_published(settings.connection) or []
    assert {one.by.partition("-")[0] for one in published} == {"one", "two"}
    assert {one.table: (one.number, one.line_hash) for one in published} == newest(settings)
    assert check_published(settings.warehouse, published, topic).broken == 0

    location, _ = settings.warehouse.for_deltalake()
    shutil.rmtree(location)
    assert check_published(settings.warehouse, published, topic).broken == len(counting(published))
    notes = prepare_restore(spark, settings).notes
    assert any(f"their lines in {topic} do not count any more" in note for note in notes), notes
    run_once(spark, settings, "three")

    published = read_published(settings.connection) or []
    result = check_published(settings.warehouse, published, topic)
    assert (result.broken, result.skipped, result.not_checked) == (0, "", "")
    assert {one.by.partition("-")[0] for one in counting(published)} == {"three"}
