"""Tables are files too, and somebody deletes the wrong folder: what Kafka still has is written again, once."""

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.systems.deployment import Log, cut, deploy, make_again
from wakeroll.errors import InvalidUsage
from wakeroll_model.rows import EVENTS, EventRow
from wakeroll_pipeline.jobs import coordinate, record
from wakeroll_pipeline.jobs.repair import repair
from wakeroll_pipeline.ledger.arrow_schemas import arrow_table
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.ledger.delta_files import files_of, open_delta
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.proven_rows import chain_of
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.ledger.tables import open_views
from wakeroll_pipeline.questions.quality.chain_check import broken_chain
from wakeroll_pipeline.recovery.lost_tables import lost_tables, refuse_lost_tables
from wakeroll_pipeline.recovery.restore_plan import prepare_restore
from wakeroll_pipeline.recovery.write_turn import WriteTurn
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.sinks.table_fence import Fenced

pytestmark = pytest.mark.spark


@pytest.fixture
def settings(broker, tmp_path) -> Settings:
    return deploy(broker, tmp_path, "lost")


def run_once(spark, settings: Settings) -> None:
    """Decide and record all that is in the log."""
    refuse_lost_tables(settings)
    for query in (coordinate.start(spark, settings), record.start(spark, settings)):
        query.processAllAvailable()
        query.stop()


def rows(spark, settings: Settings) -> dict[str, list[tuple]]:
    """Return the keys of the rows of each table, sorted; a row that is there twice is twice in the list."""
    open_views(spark, settings.warehouse)
    queries = {
        "events": "select topic, partition, offset from events",
        "decisions": "select shard, seq, json from decisions",
        "assignments": "select shard, seq from assignments",
        "offsets": "select shard, seq from offsets",
    }
    return {name: sorted(map(tuple, spark.sql(query).collect())) for name, query in queries.items()}


@pytest.mark.operate
@pytest.mark.parametrize("lost", [("decisions",), ("events", "decisions", "assignments", "offsets", "snapshots")])
def test_lost_tables_are_written_again_and_the_others_keep_their_rows(spark, settings, lost):
    """`run` refuses to go on without their rows; after `restore`, each row is there once, and new ones follow."""
    log = Log(settings)
    log.tick()
    log.route(2)
    log.beat("billing", "a")
    log.pass_seconds(3)
    run_once(spark, settings)
    before = rows(spark, settings)
    assert all(before[name] for name in ("events", "decisions", "assignments"))

    for name in lost:
        shutil.rmtree(f"{settings.warehouse}/{name}")
    assert lost_tables(settings) == [name for name in ("events", "decisions", "assignments", "offsets") if name in lost]
    with pytest.raises(InvalidUsage, match=r"has no table .*decisions.*`wakeroll restore` lets the next run write"):
        run_once(spark, settings)
    restored = prepare_restore(spark, settings)
    assert restored.plans == {}
    assert "from the first records that Kafka has" in restored.notes[0]
    run_once(spark, settings)
    assert rows(spark, settings) == before

    log.beat("billing", "b")
    log.pass_seconds(3)
    run_once(spark, settings)
    after = rows(spark, settings)
    assert set(before["decisions"]) < set(after["decisions"])
    assert len(set(after["events"])) == len(after["events"])


@pytest.mark.operate
@pytest.mark.parametrize(
    "emptied", [("events",), ("decisions",), ("assignments",), ("events", "decisions", "assignments")]
)
def test_a_table_without_its_rows_is_lost_too(spark, settings, emptied):
    """Somebody deletes the rows and leaves the table: `run` would go on, and nobody would miss them."""
    log = Log(settings)
    log.tick()
    log.route(2)
    log.beat("billing", "a")
    log.pass_seconds(3)
    run_once(spark, settings)
    before = rows(spark, settings)

    for name in emptied:
        DeltaTable(f"{settings.warehouse}/{name}").delete()
    assert lost_tables(settings) == [*emptied]
    with pytest.raises(InvalidUsage, match=r"or no row of it.*`wakeroll restore` lets the next run write"):
        run_once(spark, settings)
    prepare_restore(spark, settings)
    run_once(spark, settings)

    assert rows(spark, settings) == before


def two_runs(spark, settings: Settings) -> dict[str, list[tuple]]:
    """Record in two batches, and store the lines of the chains, as `run` does each minute; return the rows."""
    log = Log(settings)
    log.tick()
    log.route(2)
    for client in ("a", "b"):
        log.beat("billing", client)
        log.pass_seconds(3)
        run_once(spark, settings)
    chains = Chains(settings.warehouse)
    chains.begin()
    chains.gather(ArrowSink().append)
    return rows(spark, settings)


@pytest.mark.operate
def test_a_table_without_its_newest_commits_is_lost(spark, settings):
    """A log that ends early is a valid log of a smaller table; the chain knows more."""
    before = two_runs(spark, settings)
    log = Path(f"{settings.warehouse}/events/_delta_log")
    commits = sorted(one for one in log.iterdir() if one.name.endswith(".json") and one.name[:20].isdigit())
    appends = [one for one in commits if '"add":' in one.read_text()]
    for one in commits[commits.index(appends[-1]) :]:
        one.unlink()

    assert lost_tables(settings) == ["events"]
    with pytest.raises(InvalidUsage, match="lacks files or the newest rows"):
        run_once(spark, settings)
    prepare_restore(spark, settings)
    run_once(spark, settings)

    assert rows(spark, settings) == before
    assert lost_tables(settings) == []
    with duck_ledger(settings.warehouse) as ledger:
        assert [*broken_chain(ledger, chain_of(ledger, EVENTS))] == []


@pytest.mark.operate
def test_a_table_without_some_files_is_lost(spark, settings):
    """The rows that it still has stay, the newest ones come with the next run, and a repair adds those between them."""
    before = two_runs(spark, settings)
    events = path_of(settings.warehouse, EVENTS)
    [*_, oldest] = files_of(open_delta(events), events)
    Path(oldest).unlink()

    assert lost_tables(settings) == ["events"]
    with pytest.raises(InvalidUsage, match="lacks files or the newest rows"):
        run_once(spark, settings)
    restored = prepare_restore(spark, settings)
    assert "1 files of events are missing" in restored.notes[1]
    run_once(spark, settings)
    repair(settings, lambda _: True)

    assert rows(spark, settings) == before
    assert lost_tables(settings) == []
    with duck_ledger(settings.warehouse) as ledger:
        assert [*broken_chain(ledger, chain_of(ledger, EVENTS))] == []


def lose_a_table(settings: Settings) -> None:
    shutil.rmtree(f"{settings.warehouse}/decisions")


def lose_the_log(settings: Settings) -> None:
    make_again(settings, settings.connection.topics.groups)


@pytest.mark.operate
@pytest.mark.parametrize("lose", [lose_a_table, lose_the_log])
def test_a_writer_that_wakes_up_after_a_restore_appends_nothing(spark, settings, lose):
    """Its rows are of the log before: new records have their offsets, and would be taken for written."""
    log = Log(settings)
    log.pass_seconds(3)
    run_once(spark, settings)
    groups = settings.connection.topics.groups
    asleep = ArrowSink(WriteTurn(settings).number)
    lose(settings)
    prepare_restore(spark, settings)

    row = EventRow(topic=groups, partition=0, offset=99, at_ms=1, key=b"", value=b"", type=None)
    with pytest.raises(Fenced):
        asleep.append(arrow_table(EventRow, [row]), path_of(settings.warehouse, EVENTS))

    run_once(spark, settings)
    assert (groups, 0, 99) not in rows(spark, settings)["events"]


@pytest.mark.operate
def test_rows_of_records_that_kafka_has_deleted_are_lost(spark, settings):
    """The tables begin where the log does; the decisions continue with the next number."""
    log = Log(settings)
    log.tick()
    log.route(2)
    log.beat("billing", "a")
    log.pass_seconds(3)
    run_once(spark, settings)
    last = dict(rows(spark, settings)["assignments"])
    topics = settings.connection.topics
    ends = cut(settings, *topics.control, topics.decisions)

    shutil.rmtree(str(settings.warehouse))
    prepare_restore(spark, settings)
    log.beat("billing", "b")
    log.pass_seconds(3)
    run_once(spark, settings)

    found = rows(spark, settings)
    assert all(offset >= ends[topic, partition] for topic, partition, offset in found["events"])
    assert found["decisions"]
    assert all(seq > last.get(shard, 0) for shard, seq, _ in found["decisions"])
