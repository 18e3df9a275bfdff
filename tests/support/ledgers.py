"""Ledgers made without a broker: what clients and the observer append, what is decided about it, and their tables."""

import json
import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path

import pyarrow as pa
from msgspec import structs
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.support.control_log import START_MS, ControlLog
from wakeroll.connection import Topics
from wakeroll_model.decisions import AnyDecision, Assignment, Cause, Handover, Membership, Offset
from wakeroll_model.events import (
    About,
    Ahead,
    AnyEvent,
    Arrival,
    Commit,
    CommittedOffset,
    Configure,
    Heartbeat,
    Kick,
    Level,
    Pull,
    Reset,
    ResetOffset,
    Route,
    RoutedQueue,
    Subscription,
    Tick,
    Unregister,
)
from wakeroll_model.feature_levels import NEWEST
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision
from wakeroll_model.resharding import split
from wakeroll_model.rows import SNAPSHOTS, TABLES, SnapshotRow, Table
from wakeroll_model.shard import Shard
from wakeroll_model.snapshot_proof import hash_of
from wakeroll_pipeline.jobs import record
from wakeroll_pipeline.ledger.arrow_schemas import arrow_table
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.ledger.retention import DAY_MS, forget, past_of
from wakeroll_pipeline.ledger.table_creation import create_tables, path_of
from wakeroll_pipeline.operators.ledger_rows import KafkaRecord
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.storage.parquet_files import STATES

PARTITIONS = 4
PUBLISHED_LATER_MS = 300


class Story:
    """Groups on four shards.  Clients do at once what they are told; nothing happens but what a test says."""

    def __init__(self, era: int = 1) -> None:
        """Start with an empty log, in this era."""
        self._era = era
        self.now_ms = START_MS
        """Log time."""
        self.rows: list[tuple[str, int, int, int, bytes | None, bytes | None]] = []
        """All records of Kafka in order: topic, partition, offset, log time, key, value."""
        self.decisions: list[AnyDecision] = []
        self.snapshots: list[tuple[object, ...]] = []
        self._log = ControlLog(PARTITIONS, queues=True)
        self._shards: dict[tuple[str, int], Shard] = {}
        self._offsets = {partition: count() for partition in range(PARTITIONS)}
        self._told: dict[tuple[str, str], Assignment] = {}
        self._news: dict[tuple[str, str], None] = {}
        self._wishes: dict[tuple[str, str], dict[str, object]] = {}
        self._instances: dict[tuple[str, str], str] = {}
        self._unanswered: dict[tuple[str, str], Heartbeat] = {}
        self._lives = count(1)
        self._pulls = count(1)

    def route(self, topic: str, queues: int, *, ends: int = 0, first: int = 0) -> None:
        """Let the observer tell of a topic; each of its queues has the messages from `first` on, up to `ends`."""
        routed = [
            RoutedQueue(topic=topic, broker="", queue_id=number, min_offset=first, max_offset=ends)
            for number in range(queues)
        ]
        self.append(Route(topic=topic, queues=routed, version=str(queues)))

    def join(self, group_id: str, client_id: str, *topics: str, keeps: bool = False, **wishes: object) -> None:
        """Let a new life of a client join; if it `keeps` its wishes, its later heartbeats repeat them."""
        subscriptions = [Subscription(topic=topic) for topic in topics]
        self._wishes[group_id, client_id] = {"subscriptions": subscriptions, **(wishes if keeps else {})}
        self._instances[group_id, client_id] = f"life-{next(self._lives)}"
        self._unanswered[group_id, client_id] = Heartbeat(
            group_id=group_id,
            client_id=client_id,
            instance_id=self._instances[group_id, client_id],
            **{"subscriptions": subscriptions, **wishes},
        )
        self.append(self._unanswered[group_id, client_id])

    def restate(self, group_id: str, client_id: str, **wishes: object) -> None:
        """Let a member send other preferences, from now on."""
        self._wishes[group_id, client_id] |= wishes
        self._beat(group_id, client_id)

    def leave(self, group_id: str, client_id: str) -> None:
        """Let a client leave in good order."""
        instance_id = self._instances[group_id, client_id]
        self._told.pop((group_id, client_id), None)
        self._unanswered.pop((group_id, client_id), None)
        self._news.pop((group_id, client_id), None)
        self.append(Unregister(group_id=group_id, client_id=client_id, instance_id=instance_id))

    def crash(self, group_id: str, client_id: str) -> None:
        """Let a client be silent from now on."""
        del self._told[group_id, client_id]
        self._news.pop((group_id, client_id), None)

    def commit(self, group_id: str, offset: int, ahead: tuple[Ahead, ...] = ()) -> None:
        """Let every client of a group commit this offset for all it owns."""
        for (its_group, client_id), told in self._told.items():
            if its_group == group_id and told.queues:
                offsets = [CommittedOffset(queue=one.queue, offset=offset, ahead=ahead) for one in told.queues]
                names = {"group_id": group_id, "client_id": client_id, "instance_id": told.instance_id}
                self.append(Commit(**names, epoch=told.epoch, offsets=offsets))

    def configure(self, group_id: str, **settings: object) -> None:
        """Let an operator change a group's settings."""
        self.append(Configure(group_id=group_id, **settings))

    def pull(self, group_id: str, client_id: str, topic: str, queue_id: int, from_offset: int) -> None:
        """Let a client wait for messages of a queue."""
        self.append(
            Pull(
                request_id=f"{client_id}-waits:{next(self._pulls)}",
                group_id=group_id,
                client_id=client_id,
                instance_id=f"{client_id}-waits",
                queue=Queue(topic, "", queue_id),
                from_offset=from_offset,
            )
        )

    def arrive(self, topic: str, queue_id: int, next_offset: int) -> None:
        """Let a message arrive."""
        self.append(Arrival(queue=Queue(topic, "", queue_id), next_offset=next_offset))

    def nonsense(self, value: bytes = b"nonsense", partition: int = 0, key: bytes | None = None) -> None:
        """Let somebody append what is no event, or an event where it does not belong."""
        self._apply(self._log.write(value, self.now_ms - START_MS, partition, key))

    def raise_level(self, level: int) -> None:
        """Let an operator raise the feature level of every shard."""
        self.append(Level(level=level))

    def pass_seconds(self, seconds: int, *, silently: bool = False) -> None:
        """Let time pass: ticks each second, heartbeats as answers and every ten seconds; silently: ticks alone."""
        for _ in range(seconds):
            self.now_ms += 1_000
            self.append(Tick())
            if silently:
                continue
            everybody = (self.now_ms - START_MS) % 10_000 == 0
            news, self._news = self._news, {}
            for who in list(self._told) if everybody else list(news):
                self._beat(*who)
            for first in list(self._unanswered.values()) if everybody else []:
                self.append(first)

    def snapshot(self) -> None:
        """Keep the state of every shard, as `record` does now and then."""
        for (topic, partition), shard in self._shards.items():
            self.snapshots.append(_snapshot(topic, partition, shard.offset, shard, shard.body()))

    def grow(self, partitions: int) -> None:
        """Divide the shards, and keep their first states, as `wakeroll reshard` does."""
        ends, shards = self._log.grow(partitions), {}
        for (topic, partition), shard in self._shards.items():
            offset = ends[topic, partition]
            for number, body in split(topic, partition, shard.body(), partitions, offset=offset).items():
                shards[topic, number] = Shard(topic, number, partitions, body, raises=True)
                after = offset - 1 if number == partition else -1
                self.snapshots.append(_snapshot(topic, number, after, shard, body))
        self._shards = shards
        self._offsets = {number: self._offsets.get(number, count()) for number in range(partitions)}

    def lose_state(self) -> None:
        """Let the coordinator lose its checkpoints, without a snapshot: it reads the log again, in a new era."""
        for where, lost in self._shards.items():
            again = Shard(*where, PARTITIONS, era=lost.era + 1, quiet_until=lost.offset + 1, raises=True)
            self.snapshots.append(_snapshot(*where, -1, again, again.body()))
            for row in self.rows:
                if row[:2] == where:
                    again.apply(Record(*row))
            self._shards[where] = again

    def append(self, event: AnyEvent) -> None:
        """Append an event, and let clients hear what is decided."""
        for one in self._log.append(event, self.now_ms - START_MS):
            self._apply(one)

    def assignments(self, group_id: str) -> list[Assignment]:
        """Return the newest assignment of each live member of a group."""
        return [told for (its_group, _), told in self._told.items() if its_group == group_id]

    def beat_of(self, group_id: str, client_id: str) -> Heartbeat:
        """Return the heartbeat that a client sends now."""
        told = self._told[group_id, client_id]
        return Heartbeat(
            group_id=group_id,
            client_id=client_id,
            instance_id=told.instance_id,
            epoch=told.epoch,
            owned=[assigned.queue for assigned in told.queues],
            **self._wishes[group_id, client_id],
        )

    def _beat(self, group_id: str, client_id: str) -> None:
        self.append(self.beat_of(group_id, client_id))

    def _apply(self, one: object) -> None:
        where = one.topic, one.partition
        if where not in self._shards:
            self._shards[where] = Shard(*where, self._log.partitions, era=self._era, raises=True)
        self.rows.append((one.topic, one.partition, one.offset, one.timestamp_ms, one.key, one.value))
        for decision in self._shards[where].apply(one):
            self.decisions.append(decision)
            published = one.timestamp_ms + PUBLISHED_LATER_MS
            offset = next(self._offsets[one.partition])
            self.rows.append((Topics().decisions, one.partition, offset, published, b"", encode_decision(decision)))
            if isinstance(decision, Assignment):
                who = decision.group_id, decision.client_id
                self._told[who] = decision
                self._unanswered.pop(who, None)
                self._news[who] = None


def _snapshot(topic: str, partition: int, offset: int, shard: Shard, body: bytes) -> tuple[object, ...]:
    """Return a row of the table `snapshots`; its columns have the order of the table's."""
    row = SnapshotRow(
        topic=topic,
        partition=partition,
        offset=offset,
        era=shard.era,
        version=shard.version,
        at_ms=shard.now_ms,
        body=body,
    )
    return (*structs.astuple(row)[:6], bytearray(body), hash_of(row))


def a_kick() -> Story:
    """Tell of c1 and c2, which share two queues, until an operator has just kicked c2."""
    story = Story()
    story.append(Level(level=4))
    story.route("orders", 2, ends=100)
    for client_id in ("c1", "c2"):
        story.join("billing", client_id, "orders")
        story.pass_seconds(3)
    story.append(Kick(request_id="r1", group_id="billing", client_id="c2", reason="it hangs", by="mia"))
    return story


def a_day() -> Story:
    """Tell of two groups: members come, leave and crash, a topic grows, settings change, offsets advance, some wait."""
    story = Story()
    story.route("orders", 8, ends=1_000)
    story.route("payments", 4, ends=500)
    story.join("billing", "c1", "orders")
    story.pass_seconds(5)
    story.join("billing", "c2", "orders")
    story.join("audit", "a1", "orders", "payments", strategy="SPREAD")
    story.pass_seconds(5)
    story.commit("billing", 100)
    story.join("billing", "c3", "orders")
    story.nonsense()
    story.pull("audit", "a1", "payments", 0, 500)  # the first of the queue: answered at once
    story.pull("audit", "a1", "payments", 0, 500)
    story.pass_seconds(10)
    story.arrive("payments", 0, 501)
    story.pull("audit", "a1", "payments", 0, 501)
    story.snapshot()
    story.commit("billing", 200)
    story.leave("billing", "c1")
    story.pass_seconds(10)
    story.crash("billing", "c2")
    story.pass_seconds(60)
    story.commit("billing", 300)
    story.route("orders", 10, ends=2_000)
    story.join("audit", "a2", "orders", "payments", strategy="SPREAD")
    story.pass_seconds(10)
    story.snapshot()
    story.configure("billing", strategy="BALANCED")
    story.pass_seconds(5)
    story.commit("audit", 400)
    story.pass_seconds(5)
    return story


def any_story(seed: int) -> Story:
    """Tell what some clients do in some order: they join, commit, leave or crash, and topics get more queues."""
    chance, story = random.Random(seed), Story()
    queues = {topic: chance.randint(1, 5) for topic in ("orders", "payments")}
    for topic, number in queues.items():
        story.route(topic, number, ends=chance.randint(0, 50))
    alive: set[tuple[str, str]] = set()
    for _ in range(chance.randint(10, 30)):
        who = chance.choice(("audit", "billing", "mail")), chance.choice(("c1", "c2", "c3"))
        match chance.randint(0, 9):
            case 0 | 1 | 2 | 3 if who not in alive:
                story.join(*who, *chance.sample(sorted(queues), chance.randint(1, 2)))
                alive.add(who)
            case 4 if who in alive:
                story.leave(*who)
                alive.discard(who)
            case 5:
                story.commit(who[0], chance.randint(1, 50))
            case 6:
                topic = chance.choice(sorted(queues))
                queues[topic] += 1
                story.route(topic, queues[topic], ends=60)
            case 7:
                story.snapshot()
            case _:
                story.pass_seconds(chance.randint(1, 20))
    story.pass_seconds(chance.choice((2, 60)))
    return story


def a_sliced_day() -> Story:
    """Tell of a topic with two partitions, which are not cut, in 8 slices, in 4, and whole again, while members change.

    The group `plain` has the same topic, which is not cut for it. The offsets that members commit differ by slice.
    """
    story = Story()
    story.append(Level(level=NEWEST))
    story.route("orders", 2, ends=1_000)
    story.join("plain", "p1", "orders")
    story.join("billing", "c1", "orders", keeps=True, slice_by="")
    story.pass_seconds(5)
    story.commit("billing", 100)
    story.commit("plain", 500)
    story.join("billing", "c2", "orders", keeps=True, slice_by="")
    story.pass_seconds(5)
    story.configure("billing", slices={"orders": 8})
    story.pass_seconds(5)
    commit_by_slice(story, "billing", 200)
    story.join("billing", "c3", "orders", keeps=True, slice_by="")
    story.pass_seconds(10)
    commit_by_slice(story, "billing", 300)
    story.snapshot()
    story.leave("billing", "c1")
    story.pass_seconds(10)
    story.crash("billing", "c2")
    story.pass_seconds(60)
    commit_by_slice(story, "billing", 400)
    story.join("billing", "c4", "orders", keeps=True, slice_by="")
    story.pass_seconds(10)
    story.configure("billing", slices={"orders": 4})
    story.pass_seconds(5)
    commit_by_slice(story, "billing", 600)
    return story


def whole_again() -> Story:
    """Tell of the sliced day until its topic is whole again."""
    story = a_sliced_day()
    story.configure("billing", slices={"orders": 1})
    story.pass_seconds(5)
    story.commit("billing", 900)
    story.snapshot()
    story.pass_seconds(5)
    return story


def commit_by_slice(story: Story, group_id: str, offset: int) -> None:
    """Let every member of a group commit for each of its slices: so many messages more than for the first slice."""
    for told in story.assignments(group_id):
        offsets = [CommittedOffset(queue=one.queue, offset=offset + one.queue.slice) for one in told.queues]
        names = {"group_id": group_id, "client_id": told.client_id, "instance_id": told.instance_id}
        if offsets:
            story.append(Commit(**names, epoch=told.epoch, offsets=offsets))


def three_days() -> Story:
    """Tell of two groups; for two days in between nothing was running."""
    story = Story()
    story.route("orders", 4, ends=100)
    story.join("billing", "c1", "orders")
    story.pass_seconds(12)
    story.join("billing", "c2", "orders")
    story.join("audit", "a1", "orders")
    story.pass_seconds(12)
    story.commit("billing", 10)
    story.commit("billing", 20)
    story.snapshot()
    story.pass_seconds(2)
    story.now_ms += 2 * DAY_MS
    story.pass_seconds(12)
    story.commit("billing", 30)
    story.join("billing", "c3", "orders")
    story.pass_seconds(12)
    story.snapshot()
    story.pass_seconds(1)
    return story


def two_eras() -> Story:
    """Tell of eras 9 and 10 of each shard, and of a log whose clock steps back; the last day is two days later.

    - `mail`: era 9 hands a queue to m2 and takes a commit; at the same log time era 10 takes a commit and m2 leaves.
    - `ads`: its only member dies with the state of era 9.
    - `billing`: 700 ms before c3 is given a queue, by the log's clock, everybody commits once more and c3 leaves.
    - `audit`: a2 leaves 700 ms before it joined.
    """
    story = Story(era=9)
    story.route("orders", 4, ends=1_000)
    story.route("mails", 2, ends=1_000)
    story.join("billing", "c1", "orders")
    story.join("audit", "a1", "orders")
    story.join("ads", "x1", "orders")
    story.join("mail", "m1", "mails")
    story.pass_seconds(60)
    story.join("billing", "c2", "orders")
    story.join("mail", "m2", "mails")
    story.pass_seconds(1)
    story.commit("billing", 10)
    story.commit("mail", 10)
    last_of_era_9_ms = story.now_ms
    story.lose_state()
    story.crash("ads", "x1")
    story.pass_seconds(60)
    story.now_ms, later_ms = last_of_era_9_ms, story.now_ms
    story.commit("mail", 20)
    story.leave("mail", "m2")
    story.now_ms = later_ms
    story.pass_seconds(5)
    story.join("billing", "c3", "orders")
    story.pass_seconds(2, silently=True)
    story.pass_seconds(1)
    story.commit("billing", 20)
    story.join("audit", "a2", "orders")
    story.now_ms -= 700
    story.commit("billing", 30)
    story.leave("billing", "c3")
    story.leave("audit", "a2")
    story.snapshot()
    story.now_ms += 2 * DAY_MS
    story.pass_seconds(12)
    story.snapshot()
    story.pass_seconds(1)
    return story


def a_long_life() -> Story:
    """Tell of five groups, two eras of each shard, a clock that steps back, a reset, and more shards at the end."""
    story = two_eras()
    story.join("stock", "s1", "orders", "mails")
    story.pass_seconds(20)
    story.commit("stock", 30)
    back = [ResetOffset(queue=Queue("mails", "", 0), offset=5)]
    story.append(Reset(request_id="back", group_id="stock", offsets=back, by="operator"))
    story.grow(8)
    story.pass_seconds(20)
    story.commit("stock", 60)
    story.snapshot()
    return story


def two_busy_days() -> Story:
    """Tell of what data people ask about: a deployment, a member that flaps, a killed member, and a lag that grows.

    - `shop`: three members join, are restarted one after the other, and a fourth one joins and leaves four times.
    - `mail`: each second brings ten messages per queue. m2 commits all of them, reads 30 more and is killed.
    - `night`: its only member leaves for good.
    - `slow`: on the second day, which is observed for 100 s, its lag is 0 for 40 s, 100 for 50 s and 1,000 for 10 s.
    """
    story = Story()
    story.route("orders", 4, ends=100)
    for number in (1, 2, 3):
        story.join("shop", f"s{number}", "orders")
        story.pass_seconds(12)
    story.commit("shop", 100)
    story.pass_seconds(100)
    for number in (1, 2, 3):
        story.leave("shop", f"s{number}")
        story.pass_seconds(10)
        story.join("shop", f"s{number}", "orders")
        story.pass_seconds(12)
    story.pass_seconds(100)
    for _ in range(4):
        story.join("shop", "s4", "orders")
        story.pass_seconds(12)
        story.leave("shop", "s4")
        story.pass_seconds(12)
    story.route("mails", 2, ends=1_000)
    story.route("logs", 1, ends=10)
    story.join("mail", "m1", "mails")
    story.join("night", "n1", "logs")
    story.join("slow", "l1", "logs")
    story.pass_seconds(12)
    story.join("mail", "m2", "mails")
    story.pass_seconds(12)
    story.leave("night", "n1")
    story.commit("slow", 10)
    for second in range(1, 81):
        for queue_id in (0, 1):
            story.arrive("mails", queue_id, 1_000 + 10 * second)
        story.pass_seconds(1)
        if second in (5, 10, 15, 20):
            story.commit("mail", 1_000 + 10 * second)
        if second == 23:
            story.crash("mail", "m2")
    story.now_ms += -story.now_ms % DAY_MS
    story.append(Tick())
    story.pass_seconds(40)
    story.arrive("logs", 0, 110)
    story.commit("mail", 1_300)
    story.pass_seconds(50)
    story.arrive("logs", 0, 1_010)
    story.pass_seconds(10)
    return story


def a_day_of_deployments() -> Story:
    """Tell of members that describe themselves, each with a host of its own.

    - `rolled`: three members of version 1 are restarted one after the other, as version 2.
    - `pods`: both members are replaced by others of the same version, which have generated names.
    - `flaps`: f2 joins and leaves four times beside f1, always as version 7.
    - `grows`: two members are added to one.
    - `silent`: its only member does not describe itself, and is restarted once.
    """
    story = Story()
    for _ in range(2):
        story.append(Level(level=4))
    story.route("orders", 4, ends=100)
    hosts = count(1)

    def join(group_id: str, client_id: str, version: str) -> None:
        about = About(host=f"pod-{next(hosts)}", app_version=version, labels={"team": "cash"})
        story.join(group_id, client_id, "orders", about=about)
        story.pass_seconds(12)

    def leave(group_id: str, client_id: str) -> None:
        story.leave(group_id, client_id)
        story.pass_seconds(3)

    for number in (1, 2, 3):
        join("rolled", f"r{number}", "1")
    for client_id in ("p-a1", "p-a2"):
        join("pods", client_id, "5")
    join("flaps", "f1", "7")
    join("grows", "g1", "1")
    story.join("silent", "s1", "orders")
    story.pass_seconds(150)
    for number in (1, 2, 3):
        leave("rolled", f"r{number}")
        join("rolled", f"r{number}", "2")
    for old, new in (("p-a1", "p-b1"), ("p-a2", "p-b2")):
        join("pods", new, "5")
        leave("pods", old)
    for _ in range(4):
        join("flaps", "f2", "7")
        leave("flaps", "f2")
    for client_id in ("g2", "g3"):
        join("grows", client_id, "1")
    leave("silent", "s1")
    story.join("silent", "s1", "orders")
    story.pass_seconds(20)
    return story


def killed_members() -> tuple[Story, list[tuple[str, int, int]]]:
    """Tell of a group whose members are killed, one after the other, at different moments between two commits.

    Four queues have ten new messages each per second, members read them at once and commit every five seconds. Ten
    members are killed, each in another second between two heartbeats and two commits. The last
    member lives: it loses the coordinator, reads on until its session has ended, and sends another heartbeat later.

    Returns:
        The story, and each lost member with its queues and the number of messages that are consumed twice.
    """
    story, second, repeats = Story(), 0, []
    story.route("mails", 4)

    def pass_seconds(count: int) -> None:
        nonlocal second
        for _ in range(count):
            second += 1
            for number in range(4):
                story.arrive("mails", number, 10 * second)
            story.pass_seconds(1)
            if second % 5 == 0:
                story.commit("mail", 10 * second)

    def queues_of(client_id: str) -> list[tuple[str, str, int]]:
        return [queue for queue, owner in owners_of(story).items() if owner == client_id]

    def unread_by_others(queues: list[tuple[str, str, int]]) -> int:
        committed = offsets_of(story)
        return sum(10 * second - committed[queue] for queue in queues)

    story.join("mail", "m0", "mails")
    pass_seconds(15)
    for number in range(10):
        client_id = f"k{number}"
        story.join("mail", client_id, "mails")
        pass_seconds(20 + (number - second) % 10)
        lost = queues_of(client_id)
        story.crash("mail", client_id)
        repeats.append((client_id, len(lost), unread_by_others(lost)))
        pass_seconds(60)
    story.join("mail", "alive", "mails")
    pass_seconds(20)
    lost, last = queues_of("alive"), story.beat_of("mail", "alive")
    story.crash("mail", "alive")
    while queues_of("alive"):
        in_doubt = unread_by_others(lost)
        pass_seconds(1)
    repeats.append(("alive", len(lost), in_doubt))
    pass_seconds(10)
    story.append(last)
    pass_seconds(10)
    return story, repeats


def owners_of(story: Story) -> dict[tuple[str, str, int], str | None]:
    """Return group, topic and queue_id -> the owner by the last hand-over, in the order in which they were decided."""
    handovers = _of_newest_era(story, Handover)
    return {(one.group_id, one.queue.topic, one.queue.queue_id): one.to for one in handovers}


def members_of(story: Story) -> set[tuple[str, str]]:
    """Return group and client_id of the clients whose last change was to join, or to want other topics."""
    changes = [one for one in _of_newest_era(story, Membership) if one.change not in ("conflict", "agreed")]
    last = {(one.group_id, one.client_id): one.change for one in changes if one.client_id}
    return {who for who, change in last.items() if change in ("joined", "resubscribed", "described")}


def offsets_of(story: Story) -> dict[tuple[str, str, int], int]:
    """Return group, topic and queue_id -> the offset that was committed last."""
    offsets = [one for one in story.decisions if isinstance(one, Offset)]
    return {(one.group_id, one.queue.topic, one.queue.queue_id): one.offset for one in offsets}


def _of_newest_era(story: Story, kind: type[AnyDecision]) -> list[AnyDecision]:
    """Return the decisions of a kind; members and owners of an earlier era are forgotten by the next one."""
    newest = {one.shard.partition(".")[0]: one.shard for one in story.decisions}
    return [one for one in story.decisions if isinstance(one, kind) and one.shard in newest.values()]


def told_by_hand(*said: tuple[int, AnyDecision]) -> Story:
    """Tell of decisions that no machine made, each with its era and a cause of its own; nothing else happened."""
    story = Story()
    for number, (era, decision) in enumerate(said, 1):
        decision.shard, decision.seq = f"groups-2.{era}", number
        decision.at_ms = START_MS + 1_000 * number
        decision.cause = Cause("wakeroll.groups", 2, number)
        published_ms = decision.at_ms + PUBLISHED_LATER_MS
        story.rows.append((Topics().decisions, 2, number, published_ms, b"", encode_decision(decision)))
        story.decisions.append(decision)
    return story


def write_ledger(warehouse: Path, story: Story, batches: int = 2, chains: Chains | None = None) -> None:
    """Let `record` write the tables of a story, in so many batches, without Spark.

    With `chains`, a minute passes between two batches, so each has lines of its own, and the snapshots have lines too.
    """
    # A test run may take longer than the hour for which versions are kept by default.
    create_tables(warehouse, DAY_MS)
    _fold_versions(warehouse)
    write = record.writer(warehouse, Topics(), chains=chains)
    size = -(-len(story.rows) // batches)
    for number in range(batches):
        if chains is not None:
            chains.gather(ArrowSink().append)
        write(batch_of(story.rows[number * size : (number + 1) * size]))
    if story.snapshots:
        rows = [SnapshotRow(**dict(zip(SnapshotRow.__struct_fields__, row, strict=True))) for row in story.snapshots]
        sink = ArrowSink(properties=STATES, chains=chains)
        sink.append(arrow_table(SnapshotRow, rows), path_of(warehouse, SNAPSHOTS))
    if chains is not None:
        chains.gather(ArrowSink().append)


def _fold_versions(warehouse: Path) -> None:
    """Make one version of those of each new table, as Spark creates it: the first batch is version 1 of each."""
    for table in TABLES.values():
        first, *later = sorted((warehouse / table.name / "_delta_log").glob("*.json"))
        actions = {}
        for log in (first, *later):
            for line in log.read_text(encoding="utf-8").splitlines():
                actions |= json.loads(line)
            log.unlink()
        first.write_text("".join(f"{json.dumps({name: its})}\n" for name, its in actions.items()), encoding="utf-8")


def batch_of(rows: Sequence[tuple[object, ...]]) -> pa.Table:
    """Return records of a story as `record` receives them."""
    return pa.table(dict(zip(KafkaRecord._fields, zip(*rows, strict=True), strict=False)))


def forget_the_first_day(warehouse: Path, story: Story, chains: Chains | None = None) -> None:
    """Let upkeep delete what is old of a ledger, where only a day is kept; with `chains`, they have lines about it."""

    def rewriting(table: Table, ends: Mapping[str, int]) -> AbstractContextManager[None]:
        if chains is None:
            return nullcontext()
        return chains.rewriting(table, ends, "older than the retention", ArrowSink().append)

    past = past_of(warehouse, story.now_ms, DAY_MS, DAY_MS)
    for table in TABLES.values():
        forget(warehouse, table, past, rewriting)


def highest_positions(spark: SparkSession, warehouse: Path, table: Table) -> dict[tuple[object, ...], int]:
    """Return stream -> highest position that the table holds of it."""
    rows = (
        spark.read.format("delta")
        .load(path_of(warehouse, table).for_spark())
        .groupBy(*table.stream)
        .agg(f.max(table.position).alias("highest"))
        .collect()
    )
    return {tuple(row[column] for column in table.stream): row["highest"] for row in rows}
