"""More shards for a deployment: the states are divided at known positions of the log, and everything goes on."""

import json
import shutil
import time

import pytest
from msgspec import structs
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.archived_states import shards_of
from tests.support.systems.deployment import Log, decided, deploy, told, written
from tests.support.systems.replicas import replica_of
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll.epoch_ms import now_ms
from wakeroll.errors import InvalidUsage
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_pipeline.jobs import coordinate, record
from wakeroll_pipeline.jobs.reshard import reshard
from wakeroll_pipeline.kafka.control_topics import InvalidTopics, ensure_topics
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.period import Period
from wakeroll_pipeline.ledger.spark_ledger import SparkLedger
from wakeroll_pipeline.ledger.tables import open_views
from wakeroll_pipeline.live.ledger_reader import read_ledger
from wakeroll_pipeline.questions.explain import explain
from wakeroll_pipeline.questions.quality.all_rules import all_rules
from wakeroll_pipeline.questions.quality.history_in_duckdb import history_in_duckdb
from wakeroll_pipeline.questions.quality.rule import HISTORY
from wakeroll_pipeline.questions.replay_check import replay_group
from wakeroll_pipeline.questions.replay_in_spark import replay_in_spark
from wakeroll_pipeline.recovery.checkpoint_state import refuse_foreign
from wakeroll_pipeline.recovery.log_gaps import refuse_to_forget
from wakeroll_pipeline.recovery.replica_start import join
from wakeroll_pipeline.recovery.restore_plan import prepare_restore
from wakeroll_pipeline.recovery.snapshots import SnapshotWriter
from wakeroll_pipeline.runtime.deciding_queries import query_of, topics_of
from wakeroll_pipeline.runtime.process_locks import process_locks
from wakeroll_pipeline.settings import Settings

pytestmark = pytest.mark.spark

MOVES, STAYS = "taxes", "billing"
MEMBERS = [(MOVES, "a"), (MOVES, "b"), (STAYS, "s"), (STAYS, "t")]
QUEUES = [Queue("orders", "", number) for number in range(4)]


def start(spark: SparkSession, settings: Settings) -> list[StreamingQuery]:
    return [coordinate.start(spark, settings), record.start(spark, settings)]


def stop(queries: list[StreamingQuery]) -> None:
    for query in queries:
        query.processAllAvailable()
        query.stop()


def share(
    log: Log, settings: Settings, query: StreamingQuery, members: list[tuple[str, str]], count: int
) -> dict[tuple[str, str], list[int]]:
    """Let time pass until the members have so many queues in all; each answers what it was told."""

    def found() -> dict[tuple[str, str], list[int]]:
        return {member: queues for member, queues in told(settings).items() if member in members}

    def is_shared() -> bool:
        log.tick()
        query.processAllAvailable()
        log.answer(settings, members)
        query.processAllAvailable()
        return len(found()) == len(members) and sum(map(len, found().values())) == count

    wait_until(is_shared, "each member has its queues", patience_s=PATIENCE_WITH_SPARK_S, state=found)
    return found()


@pytest.mark.operate
def test_the_shards_are_divided_and_groups_go_on(spark, broker, tmp_path, wakeroll, monkeypatch):
    """Epochs, owners, offsets and held pulls continue; the tables are whole, and a replay decides the same."""
    assert [partition_of(name.encode(), number) for name in (MOVES, STAYS) for number in (4, 8)] == [1, 5, 1, 1]
    old = deploy(broker, tmp_path, "reshard")
    log = Log(old)
    queries = start(spark, old)
    log.tick()
    log.route(4)
    for member in MEMBERS:
        log.beat(*member)
    before = share(log, old, queries[0], MEMBERS, 8)
    log.commit(old, "a", before[MOVES, "a"][0], 7, MOVES)
    stop(queries)
    moment_ms = now_ms()
    # No coordinator has applied these when the number changes.
    log.commit(old, "b", before[MOVES, "b"][0], 9, MOVES)
    log.beat(MOVES, "c")
    log.beat(STAYS, "u")
    log.tick()

    new = structs.replace(old, partitions=8)
    with pytest.raises(InvalidUsage, match="run `wakeroll reshard`"):
        refuse_foreign(new.checkpoint(query_of(new)), topics_of(new), 8)
    for name, value in old.environment().items():
        monkeypatch.setenv(name, value)
    began_s = time.monotonic()
    code, said, complaint = wakeroll("reshard", "--partitions", "8", "--bootstrap", old.bootstrap)
    took_s = time.monotonic() - began_s

    assert code == 0, complaint
    assert said.count("on, 8 partitions decide") == 8
    assert "next: set partitions = 8" in said
    assert {topic: len(racks) for topic, racks in Cluster(new.connection).racks(new.connection.topics.all).items()} == {
        topic: 8 if topic != new.connection.topics.inbox else new.inbox_partitions
        for topic in new.connection.topics.all
    }
    with pytest.raises(InvalidTopics, match="has 8 partitions, `partitions` is 4"):
        ensure_topics(old.connection, inbox_partitions=old.inbox_partitions)
    code, said, complaint = wakeroll("reshard", "--partitions", "8", "--json", "--bootstrap", old.bootstrap)
    assert code == 0, complaint
    assert json.loads(said) == {"partitions": 8, "positions": [], "published": 0}, "all is done already"
    refuse_to_forget(new)
    refuse_foreign(new.checkpoint("record"), (*topics_of(new), new.connection.topics.decisions), 8, may_grow=True)

    log = Log(new)
    log.raw(
        json.dumps(
            {
                "type": "heartbeat",
                "group_id": MOVES,
                "client_id": "a",
                "instance_id": "a-1",
                "subscriptions": [{"topic": "orders"}],
            }
        ).encode(),
        key=MOVES,
        partition=1,
    )
    queries = start(spark, new)
    members = [*MEMBERS, (MOVES, "c"), (STAYS, "u")]
    after = share(log, new, queries[0], members, 8)
    log.commit(new, "a", after[MOVES, "a"][0], 12, MOVES)
    log.tick()
    stop(queries)
    open_views(spark, new.warehouse)

    rows = [one for one in decided(new) if one.get("group_id") == MOVES]
    assert {one["shard"] for one in rows if one["kind"] == "handover"} == {"groups-1.1", "groups-5.1"}
    assert [one["rule"] for one in rows if one["kind"] == "rejected"] == ["partition"]
    assert all(set(after[member]) <= set(before[member]) for member in ((MOVES, "a"), (STAYS, "s")))
    query = f"select epoch from rebalances where group_id = '{MOVES}' order by era, seq"
    epochs = [row.epoch for row in spark.sql(query).collect()]
    assert epochs == sorted(set(epochs))
    offsets = {
        row.queue_id: row.committed_offset
        for row in spark.sql(
            f"select queue_id, committed_offset from current_offsets where group_id = '{MOVES}'"
        ).collect()
    }
    assert offsets == {before[MOVES, "a"][0]: 12, before[MOVES, "b"][0]: 9}

    assert_whole(spark, new)
    assert SnapshotWriter(spark, new).take(new).shards == 16
    with duck_ledger(new.warehouse) as ledger:
        shards = shards_of(ledger, 8, kinds=("groups",))
        checks = replay_group(ledger, 8, Period(), MOVES)
        answer = explain(ledger, MOVES, QUEUES[after[MOVES, "c"][0]]).answer
        found = history_in_duckdb(ledger.connection, all_rules()[HISTORY])
    assert {shard.partition for shard in shards if shard.group(MOVES)} == {5}
    assert {shard.partition for shard in shards if shard.group(STAYS)} == {1}
    assert {(one.shard, one.differences, one.unknown) for one in checks} == {
        ("groups-1.1", 0, 0),
        ("groups-5.1", 0, 0),
    }
    assert "is owned by c" in answer
    assert {name: count for name, count in found.counts.items() if count} == {}
    topics = new.connection.topics
    then, now = read_ledger(new.warehouse, topics, 8, moment_ms), read_ledger(new.warehouse, topics, 8)
    assert (then.partitions, now.partitions) == (4, 8)
    for model, expected in ((then, before), (now, after)):
        view = model.group_view(MOVES)
        assert {one.client_id: one.queues for one in view.members} == {
            client_id: len(queues) for (group_id, client_id), queues in expected.items() if group_id == MOVES
        }
    print(f"the command took {took_s:.1f} s")
    assert took_s < PATIENCE_WITH_SPARK_S

    replica = replica_of(new, "b")
    assert set(join(spark, replica).values()) == {1}
    assert len(join(spark, replica)) == 16

    shutil.rmtree(new.checkpoints)
    restored = prepare_restore(spark, new)
    assert [plan.is_new_era for plan in restored.plans.values()] == [False] * 16
    queries = start(spark, new)
    log.beat(MOVES, "d")
    share(log, new, queries[0], [*members, (MOVES, "d")], 8)
    stop(queries)
    open_views(spark, new.warehouse)
    assert_whole(spark, new)


def assert_whole(spark: SparkSession, settings: Settings) -> None:
    """No decision is there twice, no rule is broken, and all that was decided is decided again."""
    rows, checks = written(spark), replay_in_spark(SparkLedger(spark), settings.partitions, Period())

    assert len({(shard, seq) for shard, seq, _ in rows}) == len(rows)
    assert {(one.differences, one.unknown) for one in checks} == {(0, 0)}, checks
    assert sum(one.compared for one in checks) == len(rows)


def test_what_does_not_fit_is_refused(spark, broker, tmp_path):
    """Nothing is changed then."""
    settings = deploy(broker, tmp_path, "refused")

    with pytest.raises(InvalidUsage, match="must be a multiple of 4"):
        reshard(spark, settings, 6)
    with pytest.raises(InvalidUsage, match="Kafka cannot remove partitions"):
        reshard(spark, settings, 2)
    with pytest.raises(InvalidUsage, match="has no committed batch; start `wakeroll run`"):
        reshard(spark, settings, 8)
    with (
        process_locks(settings, ["coordinate"]),
        pytest.raises(InvalidUsage, match="already decides from this checkpoint"),
    ):
        reshard(spark, settings, 8)

    topics = settings.connection.topics
    racks = Cluster(settings.connection).racks([*topics.control, topics.decisions])
    assert {len(its) for its in racks.values()} == {4}
