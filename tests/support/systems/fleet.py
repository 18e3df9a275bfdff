"""A whole system with consumers at work, and what must hold of it whatever died meanwhile."""

import os
import sys
import threading
import uuid
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka.admin import NewTopic
from pyspark.sql import Row, SparkSession

from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll.connection import Connection
from wakeroll_model.config import CONTROL_PARTITIONS
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision, replay
from wakeroll_pipeline.ledger.tables import open_views
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.local_system import LocalSystem
from wakeroll_pipeline.local.story_checks import balance, doubly_owned, read_handled
from wakeroll_pipeline.local.traffic import Traffic
from wakeroll_pipeline.runtime.run_status import read_status
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage.place import Folder

GROUP = "billing"
CLIENTS = ("c1", "c2", "c3")
QUEUES = 8
PER_SECOND = 200
"""Messages that are produced per second."""


def make_topic(connection: Connection, topic: str, queues: int) -> None:
    """Make a topic of messages, with as many replicas as the brokers' settings say."""
    admin = connection.admin()  # which must be there until the answer is
    admin.create_topics([NewTopic(topic, queues, -1)])[topic].result(30)


class Fleet:
    """Observer, jobs, a producer of 200 messages a second and three consumer processes, for the time of a `with`."""

    def __init__(self, bootstrap: str, folder: Path, topic: str = "", **more: object) -> None:
        """Prepare; `more` are further settings, or others; `topic` is that of the messages, one of its own if empty."""
        name = uuid.uuid4().hex[:6]
        usual = {
            "prefix": f"fleet-{name}",
            "home": str(folder / "home"),
            "checkpoints": str(folder / "checkpoints"),
            # All of it shares this machine with other tests, and nobody here measures how fast a decision comes.
            "batch_interval_ms": 1_000,
            "snapshot_interval_ms": 20_000,
        }
        self.settings = Settings(bootstrap=bootstrap, **{**usual, **more})
        self.system = LocalSystem(self.settings)
        self.topic = topic or f"orders-{name}"
        self.traffic = Traffic(self.settings.connection, self.topic, per_second=PER_SECOND)
        self._logs = {client: folder / client for client in CLIENTS}
        self._consumers = [self._consumer(client, folder) for client in CLIENTS]

    def __enter__(self) -> Self:
        make_topic(self.settings.connection, self.topic, QUEUES)
        try:
            self.system.start(threading.Event())
            self.start_clients()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start_clients(self) -> None:
        """Start the producer and the consumers, for the topic that is there."""
        self.traffic.start()
        for each in self._consumers:
            each.start()

    def stop(self) -> None:
        """Stop everything in good order."""
        with ExitStack() as last_first:
            last_first.callback(self.system.stop)
            for each in self._consumers:
                last_first.callback(each.stop)
            last_first.callback(self.traffic.close)

    @property
    def environment(self) -> dict[str, str]:
        """The settings, for commands about this system."""
        return self.settings.environment()

    def let_leave(self, client: str) -> None:
        """Stop a consumer in good order: it releases its queues."""
        self._consumers[CLIENTS.index(client)].stop()

    def wait_for_more(self, messages: int) -> None:
        """Wait until so many more messages are produced, and so many more are consumed."""
        for what, count in (("produced", lambda: len(self.traffic.produced)), ("consumed", self._consumed)):
            enough = count() + messages
            wait_until(
                lambda count=count, enough=enough: count() >= enough,
                f"{messages} more messages are {what}",
                patience_s=PATIENCE_WITH_SPARK_S,
                state=self._log_tails,
            )

    def wait_until_decided(self) -> None:
        """Wait until the driver of the last start has decided a batch."""
        wait_until(self._is_deciding, "the driver decides", patience_s=PATIENCE_WITH_SPARK_S)

    def wait_until_consumed(self) -> None:
        """Produce no more, and wait until all that was produced is consumed."""
        self.traffic.close()
        wait_until(
            lambda: not self.traffic.produced - {(one.queue_id, one.offset) for one in read_handled(self._logs)},
            "every message is consumed",
            patience_s=PATIENCE_WITH_SPARK_S,
            state=self._log_tails,
        )

    def changes(self, spark: SparkSession) -> Counter[str]:
        """Return how often members joined, left, expired and so on, according to the tables."""
        open_views(spark, self.settings.warehouse)
        rows = spark.sql(f"select change from memberships where group_id = '{GROUP}'").collect()
        return Counter(row.change for row in rows)

    def check_messages(self, spark: SparkSession, warehouse: Folder | None = None) -> None:
        """Judge what consumers did, by their own logs: no message was lost, and no queue had two owners."""
        open_views(spark, warehouse or self.settings.warehouse)
        grants = spark.sql(
            "select queue.queue_id, count(*) as n from handovers "
            f"where group_id = '{GROUP}' and `to` is not null group by 1"
        ).collect()
        handled = read_handled(self._logs)
        assert balance(self.traffic.produced, handled).lost == 0
        assert doubly_owned(handled, {row.queue_id: row.n for row in grants}) == set()

    def check(self, spark: SparkSession, warehouse: Folder | None = None, *, all_stayed: bool = True) -> list[Row]:
        """Judge what a stopped system has left: its tables, and its consumers' own logs; return the decisions.

        Nothing is missing or repeated in the tables, a replay says the same, nobody was evicted, no message was lost,
        and no queue had two owners.

        Args:
            spark: a session.
            warehouse: a copy of the tables; None: the tables themselves.
            all_stayed: whether each member must have joined only once, and none may have expired.
        """
        open_views(spark, warehouse or self.settings.warehouse)
        events = spark.sql("select * from events order by topic, partition, offset").collect()
        decisions = spark.sql("select shard, seq, json from decisions order by shard, seq").collect()
        members = spark.sql(f"select client_id, change from memberships where group_id = '{GROUP}'").collect()
        _check_gaps(events)
        newest = {row.shard: row.seq for row in decisions}
        again = [
            (decision.shard, decision.seq, encode_decision(decision).decode())
            for decision in replay(map(_record_of, events), CONTROL_PARTITIONS, refused={})
        ]
        # The last events may have been archived when nobody decided any more.
        assert [tuple(row) for row in decisions] == sorted(one for one in again if one[1] <= newest.get(one[0], 0))
        if all_stayed:
            assert [row.client_id for row in members if row.change == "expired"] == []
            assert sorted(row.client_id for row in members if row.change == "joined") == list(CLIENTS)
        self.check_messages(spark, warehouse)
        return decisions

    def _consumed(self) -> int:
        return len(read_handled(self._logs))

    def _log_tails(self) -> str:
        """Return the ends of the logs of all processes, for the message of a failure."""
        children = (self.system.observer, self.system.jobs, *self._consumers)
        return "\n".join(f"{child.name} ({child.returncode}): {child.log_tail()}" for child in children)

    def _is_deciding(self) -> bool:
        status = read_status(self.settings.work_folder)
        if status is None or status.pid != self.system.jobs.pid:
            return False
        return any(one.batch >= 0 for name, one in status.queries.items() if name.startswith("coordinate"))

    def _consumer(self, client: str, folder: Path) -> Child:
        connection = self.settings.connection
        argv = [
            sys.executable,
            "-m",
            "wakeroll_pipeline.local.worker",
            "--bootstrap",
            connection.bootstrap,
            "--group",
            GROUP,
        ]
        argv += ["--prefix", connection.topics.prefix, "--client", client, "--topic", self.topic]
        argv += ["--log", str(self._logs[client])]
        return Child(f"consumer {client}", argv, log=folder / f"{client}.log", env=dict(os.environ))


def _check_gaps(events: list[Row]) -> None:
    highest: dict[tuple[str, int], int] = {}
    for row in events:
        at = (row.topic, row.partition)
        assert row.offset == highest.get(at, -1) + 1, f"{at} has a gap or a repetition at {row.offset}"
        highest[at] = row.offset


def _record_of(row: Row) -> Record:
    key, value = (None if part is None else bytes(part) for part in (row.key, row.value))
    return Record(row.topic, row.partition, row.offset, row.at_ms, key, value)
