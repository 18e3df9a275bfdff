"""Checkpoints are files, and files get lost: groups go on from their snapshots, and no row is written twice."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.spark_tables import append
from tests.support.systems.deployment import Log, cut, decided, deploy, make_again, replayed, told, written
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll.errors import InvalidUsage
from wakeroll_model.config import ERA_EPOCHS
from wakeroll_model.feature_levels import NEWEST
from wakeroll_model.rows import SNAPSHOTS
from wakeroll_model.shard_state import READABLE
from wakeroll_pipeline.jobs import coordinate, record
from wakeroll_pipeline.jobs.supervise import JobFailed, raise_if_dead
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.ledger.period import Period
from wakeroll_pipeline.ledger.schemas import schema_of
from wakeroll_pipeline.ledger.spark_ledger import SparkLedger
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.ledger.tables import open_views
from wakeroll_pipeline.operators.shard_operator import Counts
from wakeroll_pipeline.questions.replay_in_spark import replay_in_spark
from wakeroll_pipeline.recovery.batch_files import discard_incomplete
from wakeroll_pipeline.recovery.checkpoint_state import last_batch, progress_of, refuse_foreign
from wakeroll_pipeline.recovery.log_gaps import refuse_shortened, refuse_to_forget
from wakeroll_pipeline.recovery.log_marks import Mark, Marks, marks_of, refuse_replaced
from wakeroll_pipeline.recovery.restore_plan import prepare_restore
from wakeroll_pipeline.recovery.snapshots import SnapshotWriter
from wakeroll_pipeline.runtime.run_status import Status, write_status
from wakeroll_pipeline.settings import Settings

pytestmark = pytest.mark.spark


@pytest.fixture
def settings(broker, tmp_path) -> Settings:
    return deploy(broker, tmp_path, "restore")


def start(spark: SparkSession, settings: Settings) -> list[StreamingQuery]:
    return [coordinate.start(spark, settings), record.start(spark, settings)]


def stop(queries: list[StreamingQuery]) -> None:
    for query in queries:
        query.processAllAvailable()
        query.stop()


def share(
    log: Log,
    settings: Settings,
    queries: list[StreamingQuery],
    expected: dict[str, list[int]],
    group_id: str = "billing",
    **more: object,
) -> None:
    """Let time pass until each member of a group has been told these queues; each answers what it was told."""
    members = [(group_id, client_id) for client_id in expected]

    def told_so() -> bool:
        log.tick()
        queries[0].processAllAvailable()
        log.answer(settings, members, **more)
        queries[0].processAllAvailable()
        found = told(settings)
        return all(found.get(member) == expected[member[1]] for member in members)

    wait_until(told_so, "each member has its assignment", patience_s=PATIENCE_WITH_SPARK_S)


def commit_slices(log: Log, client_id: str, epoch: int, offsets: dict[tuple[int, int], int]) -> None:
    """Let a member of `audit` commit an offset for each of these slices of two: (partition, slice) -> offset."""
    committed = [
        {"queue": {"topic": "orders", "broker": "", "queue_id": number, "slices": 2, "slice": part}, "offset": offset}
        for (number, part), offset in offsets.items()
    ]
    log.group("audit", type="commit", epoch=epoch, offsets=committed, client_id=client_id, instance_id=f"{client_id}-1")


def newest_assignment(settings: Settings, client_id: str) -> dict[str, Any]:
    """Return what a client was told last."""
    return [one for one in decided(settings) if one["kind"] == "assignment" and one["client_id"] == client_id][-1]


def eras(spark: SparkSession) -> dict[str, set[str]]:
    """Return machine -> the eras of its recorded decisions."""
    found: dict[str, set[str]] = {}
    for shard, _, _ in written(spark):
        found.setdefault(shard.partition("-")[0], set()).add(shard.rpartition(".")[2])
    return found


def assert_replayed(spark: SparkSession, settings: Settings) -> None:
    """Whatever eras there are: all that was decided is decided again, and no identity is used twice."""
    rows, checks = written(spark), replay_in_spark(SparkLedger(spark), settings.partitions, Period())

    assert len({(shard, seq) for shard, seq, _ in rows}) == len(rows)
    assert {(one.differences, one.unknown) for one in checks} == {(0, 0)}, checks
    assert sum(one.compared for one in checks) == len(rows)


def test_checkpoints_are_lost_and_the_groups_go_on(spark, settings, tmp_path, monkeypatch):
    """Epochs, owners and identities continue from the snapshot; what is decided again is the same, and skipped.

    So do the slices of the group `audit`: what was committed of them before the snapshot, and between it and the loss.
    """
    log = Log(settings)
    queries = start(spark, settings)
    log.level(NEWEST)
    log.tick()
    log.route(4)
    log.beat("billing", "a")
    share(log, settings, queries, {"a": [0, 1, 2, 3]})
    log.configure("audit", slices={"orders": 2}, session_timeout_ms=1_800_000)
    log.beat("audit", "x", slice_by="")
    share(log, settings, queries, {"x": [0, 0, 1, 1, 2, 2, 3, 3]}, "audit", slice_by="")
    epoch_of_x = newest_assignment(settings, "x")["epoch"]
    commit_slices(log, "x", epoch_of_x, {(0, 0): 7, (0, 1): 9, (1, 0): 20})
    queries[0].processAllAvailable()
    assert SnapshotWriter(spark, settings).take(settings).shards == 8
    commit_slices(log, "x", epoch_of_x, {(0, 1): 30, (1, 1): 10})
    log.beat("billing", "b")
    share(log, settings, queries, {"a": [0, 1], "b": [2, 3]})
    stop(queries)
    open_views(spark, settings.warehouse)
    before = written(spark)
    epoch = max(row.epoch for row in spark.sql("select epoch from rebalances").collect())

    monkeypatch.chdir(tmp_path)
    shutil.move(settings.checkpoints, "checkpoints")
    with pytest.raises(InvalidUsage, match=r"if its checkpoint is \S+/checkpoints/coordinate, set --checkpoints"):
        refuse_to_forget(structs.replace(settings, checkpoints=""))  # where releases before had it
    shutil.rmtree("checkpoints")
    with pytest.raises(InvalidUsage, match=r"shards; if the checkpoint was lost.* run `wakeroll restore` first"):
        refuse_to_forget(settings)
    with pytest.raises(InvalidUsage, match="was made with 4 partitions, `partitions` is 8"):
        prepare_restore(spark, structs.replace(settings, partitions=8))
    restored = prepare_restore(spark, settings)
    refuse_to_forget(settings)
    queries = start(spark, settings)
    log.beat("billing", "c")
    share(log, settings, queries, {"a": [0, 1], "b": [2], "c": [3]})
    log.configure("audit", slices={"orders": 1})
    share(log, settings, queries, {"x": [0, 1, 2, 3]}, "audit", slice_by="")
    stop(queries)
    open_views(spark, settings.warehouse)
    after = written(spark)
    starts = {one["queue"]["queue_id"]: one["start"] for one in newest_assignment(settings, "x")["queues"]}
    offsets = spark.sql("select queue_id, slice, committed_offset from current_offsets where group_id = 'audit'")

    assert sorted(tuple(row) for row in offsets.collect()) == [(0, None, 7), (1, None, 10)]
    assert starts[0] == {"offset": 7, "done": [{"slices": 2, "slice": 1, "offset": 30}]}
    assert starts[1] == {"offset": 10, "done": [{"slices": 2, "slice": 0, "offset": 20}]}
    assert [plan.is_new_era for plan in restored.plans.values()] == [False] * 8
    assert set(before) < set(after)
    assert eras(spark) == {"groups": {"1"}}
    assert max(row.epoch for row in spark.sql("select epoch from rebalances").collect()) > epoch
    assert after == replayed(spark)
    assert_replayed(spark, settings)
    rows = spark.sql(
        "select count(*) as n, count(distinct topic, partition, offset) as d, max(offset) as high from events"
    ).collect()[0]
    assert rows.n == rows.d


@pytest.mark.operate
def test_without_snapshots_the_log_is_read_again_in_a_new_era(spark, settings):
    """Nothing that was decided before is published again, and no identity is used twice."""
    log = Log(settings)
    queries = start(spark, settings)
    log.tick()
    log.route(2)
    log.beat("billing", "a")
    share(log, settings, queries, {"a": [0, 1]})
    stop(queries)
    old = [(settings.connection.topics.groups, 0, 5, 1, READABLE[0] - 1, 0, bytearray(b"state"), None)]
    append(spark.createDataFrame(old, schema_of(SNAPSHOTS.row)), path_of(settings.warehouse, SNAPSHOTS))

    shutil.rmtree(Path(settings.checkpoints))
    with pytest.raises(InvalidUsage, match=f"have version {READABLE[0] - 1}, .* restore with --from-log"):
        prepare_restore(spark, settings)
    plans = prepare_restore(spark, settings, from_log=True).plans.values()
    queries = start(spark, settings)
    for _ in range(4):
        log.answer(settings, [("billing", "a")])
        queries[0].processAllAvailable()
        log.pass_seconds(15)
    log.beat("billing", "b")  # before a session has passed, a newcomer would wait
    share(log, settings, queries, {"a": [0], "b": [1]})
    stop(queries)
    SnapshotWriter(spark, settings).take(settings)
    open_views(spark, settings.warehouse)

    joined = spark.sql("select client_id, epoch, shard from memberships where change = 'joined'").collect()
    assert all(plan.is_new_era for plan in plans)
    assert sorted((row.client_id, row.shard.rpartition(".")[2]) for row in joined) == [
        ("a", "1"),
        ("a", "2"),
        ("b", "2"),
    ]
    assert_replayed(spark, settings)


@pytest.mark.operate
def test_a_pause_that_was_longer_than_a_retention_is_no_end(spark, settings, caplog):
    """It starts, says what it skipped, and keeps what operators and clients have set.

    No queue has two owners: what a member does not claim is given to nobody for a session.
    """
    topics, log = settings.connection.topics, Log(settings)
    queries = start(spark, settings)
    log.tick()
    log.route(4)
    log.configure("billing", session_timeout_ms=60_000)
    for client_id in ("a", "b"):
        log.beat("billing", client_id)
    share(log, settings, queries, {"a": [0, 1], "b": [2, 3]})
    log.commit(settings, "a", 0, offset=42)
    log.pull("w", 3, from_offset=9)
    stop(queries)

    log.configure("billing", strategy="AVG_BY_CIRCLE")
    log.tick()
    cut(settings, *topics.control)
    log.tick()
    log.answer(settings, [("billing", "a")])
    queries = start(spark, settings)
    warned = [record.getMessage() for record in caplog.records if record.name == "wakeroll.run"]
    log.tick()
    queries[0].processAllAvailable()
    claimed = told(settings)
    log.queue("orders", 3, type="arrival", next_offset=10)
    log.pull("w", 3, from_offset=9, life=2)
    for _ in range(4):
        log.pass_seconds(20)
        log.answer(settings, [("billing", "a")])
        queries[0].processAllAvailable()
    share(log, settings, queries, {"a": [0, 1, 2, 3]})
    log.commit(settings, "a", 0, offset=40)
    log.commit(settings, "a", 1, offset=43)
    stop(queries)
    assert SnapshotWriter(spark, settings).take(settings).shards == 8
    open_views(spark, settings.warehouse)

    said = [json.loads(text) for shard, _, text in written(spark) if shard.endswith(".2")]
    assignments = [one for one in said if one["kind"] == "assignment"]
    offsets = spark.sql("select queue_id, committed_offset from current_offsets where group_id = 'billing'").collect()
    for text in ("before the coordinator read them", "begins era 2 from the checkpoint", "before they were recorded"):
        assert len([one for one in warned if text in one]) == 8, text
    assert claimed == {("billing", "a"): [0, 1], ("billing", "b"): [2, 3]}, "nobody has heard of b since"
    assert {one["session_timeout_ms"] for one in assignments} == {60_000}
    assert min(one["epoch"] for one in assignments) >= ERA_EPOCHS
    assert [one["request_id"] for one in said if one["kind"] == "wake"] == ["w-2:1"], "who waited before is forgotten"
    assert sorted(tuple(row) for row in offsets) == [(0, 42), (1, 43)]
    assert_replayed(spark, settings)


@pytest.mark.operate
def test_a_topic_that_was_made_again_is_refused_until_it_is_restored(spark, settings):
    """A checkpoint that has read more than there is would wait for ever; and the same offsets are other records now."""
    topics, log = settings.connection.topics, Log(settings)
    queries = start(spark, settings)
    log.tick()
    log.route(2)
    log.beat("billing", "a")
    share(log, settings, queries, {"a": [0, 1]})
    log.commit(settings, "a", 0, offset=42)
    stop(queries)
    make_again(settings, topics.groups)

    for query in (coordinate.NAME, record.NAME):
        with pytest.raises(InvalidUsage, match=f"{topics.groups}-0 .*ends at 0, .* `wakeroll restore`"):
            refuse_shortened(settings, query)
    log.tick()
    log.answer(settings, [("billing", "a")])
    restored = prepare_restore(spark, settings)
    queries = start(spark, settings)
    share(log, settings, queries, {"a": [0, 1]})
    log.commit(settings, "a", 0, offset=40)
    log.commit(settings, "a", 1, offset=43)
    stop(queries)
    open_views(spark, settings.warehouse)

    offsets = spark.sql("select queue_id, committed_offset from current_offsets where group_id = 'billing'").collect()
    assert [place[0] for place, plan in restored.plans.items() if plan.is_new_era] == [topics.groups] * 4
    assert len(restored.notes) == 4
    assert eras(spark)["groups"] == {"1", "2"}
    assert sorted(tuple(row) for row in offsets) == [(0, 42), (1, 43)]


@pytest.mark.operate
def test_a_log_that_is_longer_again_is_recognized_as_another_one(spark, settings):
    """Its offsets continue those of the checkpoint, but its records were lost and replaced: nothing else shows it."""
    groups, log, counts = settings.connection.topics.groups, Log(settings), Counts.start(spark)
    queries = [coordinate.start(spark, settings, counts), record.start(spark, settings)]
    log.tick()
    log.route(2)
    log.beat("billing", "a")
    share(log, settings, queries, {"a": [0, 1]})
    stop(queries)
    status = Status(os.getpid(), settings.bootstrap, 0, 0, {}, marks=dict(counts.marks.value))
    write_status(settings.work_folder, status)
    marks = marks_of(settings)
    refuse_replaced(settings)
    make_again(settings, groups)
    while any(reached < mark.offset + 2 for reached, mark in reached_by(settings, marks)):
        log.tick()

    refuse_shortened(settings, coordinate.NAME)
    with pytest.raises(
        InvalidUsage, match=rf"{groups}-0 \(and 3 more partitions\) no longer has .* `wakeroll restore`"
    ):
        refuse_replaced(settings)
    restored = prepare_restore(spark, settings)
    refuse_replaced(settings)
    queries = start(spark, settings)
    share(log, settings, queries, {"a": [0, 1]})
    stop(queries)
    open_views(spark, settings.warehouse)

    assert sorted(marks) == sorted(
        (topic, number) for topic in settings.connection.topics.control for number in range(4)
    )
    assert [place for place, plan in restored.plans.items() if plan.is_new_era] == [(groups, at) for at in range(4)]
    assert "has lost records of the state" in restored.plans[groups, 0].text
    assert eras(spark)["groups"] == {"1", "2"}


def reached_by(settings: Settings, marks: Marks) -> list[tuple[int, Mark]]:
    """Return the end of each partition, with its mark."""
    return [(end, marks[place]) for place, end in Cluster(settings.connection).ends(marks).items()]


def damage(file: Path, how: str) -> None:
    """Leave a file as a machine does that lost power: empty, cut, or with zeros; its checksum stays."""
    body = file.read_bytes()
    file.write_bytes({"empty": b"", "cut": body[: len(body) // 2], "zeros": bytes(len(body))}[how])


@pytest.mark.operate
def test_files_of_a_checkpoint_that_a_power_failure_left_incomplete_count_as_not_written(spark, settings, caplog):
    """The batches since are repeated: the same decisions, the same rows."""
    log = Log(settings)
    queries = start(spark, settings)
    log.tick()
    log.route(4)
    log.beat("billing", "a")
    share(log, settings, queries, {"a": [0, 1, 2, 3]})
    stop(queries)
    open_views(spark, settings.warehouse)
    before = written(spark)

    for query in ("coordinate", "record"):
        checkpoint = settings.checkpoint(query)
        last = last_batch(checkpoint)
        left = last - (2 if last > 1 else 1)
        assert left >= 0
        for number in range(left + 1, last + 1):
            damage(checkpoint.path / "commits" / str(number), "empty" if number == last else "cut")
        damage(checkpoint.path / "offsets" / str(last), "zeros")
        damage(checkpoint.path / "metadata", "cut")
        damage(checkpoint.path / "sources" / "0" / "0", "empty")  # it is not read any more
        refuse_foreign(checkpoint, [topic for topic, _ in progress_of(checkpoint).next], settings.partitions)
        discard_incomplete(checkpoint)
        assert f"The query repeats its batches from {left + 1} on" in caplog.text
        assert last_batch(checkpoint) == left
    queries = start(spark, settings)
    log.beat("billing", "b")
    share(log, settings, queries, {"a": [0, 1], "b": [2, 3]})
    stop(queries)
    open_views(spark, settings.warehouse)
    after = written(spark)

    assert set(before) < set(after)
    assert eras(spark) == {"groups": {"1"}}
    assert_replayed(spark, settings)


@pytest.mark.operate
def test_a_damaged_state_is_named_with_the_remedy_which_works(spark, settings):
    log = Log(settings)
    queries = start(spark, settings)
    log.tick()
    log.route(4)
    log.beat("billing", "a")
    share(log, settings, queries, {"a": [0, 1, 2, 3]})
    SnapshotWriter(spark, settings).take(settings)
    stop(queries)
    checkpoint = settings.checkpoint("coordinate")
    for file in (checkpoint.path / "state").rglob("*.changelog"):
        damage(file, "empty")
    for file in (checkpoint.path / "state").rglob("*.zip"):
        damage(file, "empty")

    query = coordinate.start(spark, settings)
    log.tick()
    with pytest.raises(JobFailed) as failed:
        wait_until(lambda: raise_if_dead(query), "the query fails", patience_s=PATIENCE_WITH_SPARK_S)
    assert f"move {checkpoint} away and run `wakeroll restore`" in str(failed.value)

    checkpoint.path.rename(checkpoint.path.with_name("damaged"))
    prepare_restore(spark, settings)
    queries[0] = coordinate.start(spark, settings)
    log.beat("billing", "b")
    share(log, settings, queries, {"a": [0, 1], "b": [2, 3]})
    queries[0].stop()
