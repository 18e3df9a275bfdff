"""The operator's side on a real broker, with the real machine and real consumers: offsets reset, settings changed."""

import json
import re
import shlex
import signal
import subprocess
import sys
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions

from tests.support.systems.coordinator_thread import Coordinator
from tests.support.systems.decision_sink import Sink
from tests.support.waiting import wait_until
from wakeroll import Admin, Consumer, ConsumerFenced, EpochMs, InvalidUsage, Queue, RequestRefused, RequestUnanswered
from wakeroll.connection import Connection, Topics
from wakeroll.kafka_groups import KafkaGroups
from wakeroll.keys import DEV_KEYS, add_key, key_to_sign, new_key, new_signer, read_keys
from wakeroll.outbox import Outbox
from wakeroll.partition_offsets import ends_of
from wakeroll_model import feature_levels
from wakeroll_model.decisions import Offset, Rejected
from wakeroll_model.events import Commit, CommittedOffset, Configure, Level, Reset
from wakeroll_model.replay import encode_decision
from wakeroll_pipeline.cli.answer_schemas import answer_schemas
from wakeroll_pipeline.kafka.control_topics import ensure_topics

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("sink")]

PATIENCE_S = 120.0
MORNING_MS = 1_782_874_800_000
"""2026-07-01T03:00:00Z."""
PAGE = (Path(__file__).parents[2] / "docs" / "tutorial-operators.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^wakeroll (?:reset-offsets|configure|import-offsets) .*$", PAGE, flags=re.MULTILINE)


class Reader:
    """A consumer and the offsets that it was handed: queue number -> offsets."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.offsets: dict[int, list[int]] = defaultdict(list)

    def read(self, count: int, *others: "Reader") -> None:
        """Poll until it was handed so many messages since it was made, and so was everybody else."""
        readers = (self, *others)

        def poll() -> None:
            for reader in readers:
                message = reader.consumer.poll(0.02)
                if message is not None:
                    reader.offsets[message.partition()].append(message.offset())

        wait_until(
            lambda: all(sum(map(len, reader.offsets.values())) >= count for reader in readers),
            f"each reader has {count} messages",
            between=poll,
            state=lambda: [dict(reader.offsets) for reader in readers],
        )

    def read_and_leave(self, count: int, sink: Sink) -> None:
        """Read up to so many messages, commit them and leave; all of it is on record then."""
        self.read(count)
        sink.leave(self.consumer)


@pytest.fixture
def join(coordinator, group_id) -> Iterator[Callable[..., Reader]]:
    """Make consumers that are closed after the test; they start at the first message and commit only when told."""
    with ExitStack() as stack:

        def make(topic: str, **settings) -> Reader:
            connection = coordinator.connection
            named = {"consume_from": "first", "commit_interval": None, "prefix": connection.topics.prefix, **settings}
            consumer = Consumer(group_id, [topic], connection.bootstrap, **named)
            stack.callback(consumer.close)
            consumer.join()
            return Reader(consumer)

        yield make


def rejections(coordinator, group_id: str) -> list[Rejected]:
    return [said for said in tuple(coordinator.decided) if isinstance(said, Rejected) and said.group_id == group_id]


def planned(plan) -> list[tuple[int, int | None, int, int | None]]:
    return [(row.queue.queue_id, row.committed, row.offset, row.difference) for row in plan.rows]


def test_who_is_online_reads_again_from_where_the_group_is_reset_to(coordinator, sink, admin, join, group_id):
    """And no commit of what was done before overrides it, whether its sender has heard of the reset or not."""
    topic = coordinator.topic(2)
    for number in (0, 1):
        coordinator.produce(topic, number, 50)
    reader = join(topic)
    reader.read(60)
    assert reader.consumer.commit(PATIENCE_S)
    committed = {number: offsets[-1] + 1 for number, offsets in reader.offsets.items()}
    for number, offset in committed.items():
        sink.wait_for(Offset, group_id=group_id, queue=Queue(topic, "", number), offset=offset)
    reader.read(100)

    plan = admin.plan_reset(group_id, "first")
    outcome = admin.reset(plan, by="mia")
    reader.consumer.commit()
    old = coordinator.beats(reader.consumer.client_id)[0]
    late = Commit(
        group_id=group_id,
        client_id=old.client_id,
        instance_id=old.instance_id,
        epoch=outcome.rebalance.epoch - 1,
        offsets=[CommittedOffset(queue=Queue(topic, "", number), offset=50) for number in (0, 1)],
    )
    outbox = Outbox(coordinator.connection, group_id)
    outbox.send(late)
    assert outbox.flush(PATIENCE_S)
    wait_until(lambda: rejections(coordinator, group_id), "the late commit is refused")

    assert planned(plan) == [(number, committed[number], 0, -committed[number]) for number in (0, 1)]
    assert {(queue.queue_id, owner) for queue, owner in outcome.offsets} == {(0, old.client_id), (1, old.client_id)}
    assert {(said.offset, said.reset_by, said.metadata) for said in outcome.offsets.values()} == {
        (0, "mia", "to the first message")
    }
    assert {said.rule for said in rejections(coordinator, group_id)} == {"commit"}
    assert coordinator.offsets(group_id, topic) == {0: 0, 1: 0}

    reader.read(200)
    assert dict(reader.offsets) == {number: [*range(50), *range(50)] for number in (0, 1)}
    assert reader.consumer.commit(PATIENCE_S)
    wait_until(
        lambda: coordinator.offsets(group_id, topic) == {0: 50, 1: 50}, "both queues are committed after the reset"
    )


def test_the_next_consumer_of_an_offline_group_starts_where_one_queue_was_reset_to(
    coordinator, sink, admin, join, group_id
):
    """The other queue goes on where it was; nobody need be there."""
    topic = coordinator.topic(2)
    for number in (0, 1):
        coordinator.produce(topic, number, 50)
    join(topic).read_and_leave(100, sink)

    plan = admin.plan_reset(group_id, 20, queue=Queue(topic, "", 1))
    outcome = admin.reset(plan)

    assert planned(plan) == [(1, 50, 20, -30)]
    assert [(queue.queue_id, owner, said.offset) for (queue, owner), said in outcome.offsets.items()] == [(1, "", 20)]
    reader = join(topic)
    reader.read(30)
    assert dict(reader.offsets) == {1: list(range(20, 50))}


def test_a_group_is_reset_to_a_time_in_every_topic_that_it_has(coordinator, sink, admin, join, group_id):
    """To the first message since then; where none is that late, to the end."""
    topics = [coordinator.topic(2), coordinator.topic(1)]
    producer = coordinator.connection.producer()
    for topic, number, minutes in ((topics[0], 0, 30), (topics[0], 1, 10), (topics[1], 0, 40)):
        for minute in range(minutes):
            producer.produce(topic, b"x", partition=number, timestamp=MORNING_MS + minute * 60_000)
    assert producer.flush(PATIENCE_S) == 0
    for topic, count in zip(topics, (40, 40), strict=True):
        join(topic).read_and_leave(count, sink)
    moment = datetime.fromtimestamp(MORNING_MS / 1000, UTC) + timedelta(minutes=19, seconds=1)

    plan = admin.plan_reset(group_id, moment)

    assert {(str(row.queue), row.committed, row.offset) for row in plan.rows} == {
        (f"{topics[0]}-0", 30, 20),
        (f"{topics[0]}-1", 10, 10),
        (f"{topics[1]}-0", 40, 20),
    }
    assert plan.asked == "to the first message since 2026-07-01T03:19:01.000Z"
    assert planned(admin.plan_reset(group_id, EpochMs(MORNING_MS), topic=topics[1])) == [(0, 40, 0, -40)]
    assert planned(admin.plan_reset(group_id, "last", topic=topics[1])) == [(0, 40, 40, 0)]

    admin.reset(plan)
    reader = join(topics[0])
    reader.read(10)
    assert dict(reader.offsets) == {0: list(range(20, 30))}


def test_a_group_is_shifted_and_takes_offsets_of_a_file_and_of_another_group(
    coordinator, sink, join, group_id, wakeroll, tmp_path
):
    """With the meaning of Kafka's tool: an offset that a queue does not have is its first message or its end."""
    topic = coordinator.topic(2)
    for number in (0, 1):
        coordinator.produce(topic, number, 20)
    join(topic).read_and_leave(40, sink)
    file = tmp_path / "offsets.csv"
    file.write_text(f"{topic},0,7\n{topic},1,99\n", encoding="utf-8")
    where = ["--bootstrap", coordinator.connection.bootstrap, "--prefix", coordinator.connection.topics.prefix]

    def reset(group: str, *words: str) -> dict[str, Any]:
        code, told, complaint = wakeroll("reset-offsets", group, *words, "--json", *where)
        assert code == 0, complaint
        return json.loads(told)

    def offsets(plan: dict[str, Any]) -> list[int]:
        return [one["offset"] for one in plan["rows"]]

    shifted = reset(group_id, "--shift-by", "-5", "--execute")
    assert (shifted["asked"], offsets(shifted)) == ("5 messages back", [15, 15])
    assert coordinator.offsets(group_id, topic) == {0: 15, 1: 15}
    ahead = reset(group_id, "--shift-by", "8")
    assert (offsets(ahead), len(ahead["notes"])) == ([20, 20], 2)
    assert ahead["notes"][0] == f"{topic}-0 has no offset 23; it has 0 to 20, so 20 is taken"
    assert offsets(reset(group_id, "--to-current")) == [15, 15]
    assert offsets(reset(group_id, "--by-duration", "PT1H")) == [0, 0]
    filed = reset(group_id, "--from-file", str(file), "--execute")
    assert (filed["asked"], offsets(filed)) == ("to the offsets in offsets.csv", [7, 20])
    like = reset(f"{group_id}-other", "--like", group_id, "--execute")
    assert (like["asked"], offsets(like)) == (f"to the offsets of group {group_id}", [7, 20])
    assert [one["committed"] for one in like["rows"]] == [None, None]

    code, _, complaint = wakeroll("reset-offsets", group_id, "--like", f"{group_id}x", *where)
    assert (code, f"no committed offset of group '{group_id}x'; is the name correct?" in complaint) == (2, True)
    code, _, complaint = wakeroll("reset-offsets", f"{group_id}-new", "--shift-by", "1", "--topic", topic, *where)
    assert (code, f"{topic}-0 has no committed offset to count from" in complaint) == (2, True)


def test_a_message_that_nobody_can_process_is_skipped_and_no_other(coordinator, sink, join, group_id, wakeroll):
    """The member has processed three messages; the fourth one ends each of its handlers."""
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 3)
    join(topic).read_and_leave(3, sink)
    coordinator.produce(topic, 0, 2)
    where = ["--bootstrap", coordinator.connection.bootstrap, "--prefix", coordinator.connection.topics.prefix]

    def skip(*words: str) -> tuple[int, dict[str, Any], str]:
        code, told, complaint = wakeroll("skip", group_id, f"{topic}-0", *words, "--json", *where)
        return code, json.loads(told or "{}"), complaint

    code, plan, complaint = skip()
    assert (code, plan["asked"], plan["is_executed"]) == (0, "past the message 3", False), complaint
    assert re.fullmatch(r"the message 3 has no key and \d+ bytes, and is of 20\d\d-\S+Z", plan["notes"][0]), plan
    assert [(one["committed"], one["offset"]) for one in plan["rows"]] == [(3, 4)]
    code, _, complaint = skip("--offset", "4", "--execute")
    assert (code, f"the next message of {topic}-0 has offset 3, not 4" in complaint) == (2, True)
    assert coordinator.offsets(group_id, topic) == {0: 3}

    code, done, complaint = skip("--offset", "3", "--execute")
    assert (code, done["is_executed"]) == (0, True), complaint
    reader = join(topic)
    reader.read_and_leave(1, sink)
    assert dict(reader.offsets) == {0: [4]}

    code, _, complaint = skip()
    assert (code, f"{topic}-0 has no message to skip: {group_id} has processed all before 5" in complaint) == (
        2,
        True,
    )
    code, _, complaint = wakeroll("skip", f"{group_id}-new", f"{topic}-0", *where)
    assert (code, f"{topic}-0 has no committed offset to count from" in complaint) == (2, True)
    code, _, complaint = wakeroll("skip", group_id, f"{topic}-7", *where)
    assert (code, f"no queue {topic}-7; {topic} has 1 queues" in complaint) == (2, True)


def test_a_queue_that_the_coordinator_does_not_know_is_refused_and_nothing_is_set(
    coordinator, sink, admin, join, group_id
):
    """Kafka has it, and its route has not come yet: better refused than set where nobody reads."""
    topic = coordinator.topic(2)
    coordinator.produce(topic, 0, 10)
    join(topic).read_and_leave(10, sink)
    more = coordinator.connection.admin()
    more.create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE_S)
    before = coordinator.offsets(group_id, topic)

    def sees_three() -> bool:
        return len(admin.plan_reset(group_id, "last", topic=topic).rows) == 3

    wait_until(sees_three, "the new partition can be asked about")
    with pytest.raises(
        RequestRefused, match=rf"\(reset\): there is no queue {topic}-2; {topic} has 2 queues"
    ) as refused:
        admin.reset(admin.plan_reset(group_id, "first", topic=topic))

    assert refused.value.rule == "reset"
    assert coordinator.offsets(group_id, topic) == before


def test_a_plan_of_what_is_not_there_names_it(coordinator, admin, group_id):
    """A typo must not start a group somewhere; a group of whom nothing is told can be planned for by topic."""
    topic = coordinator.topic(2)
    coordinator.produce(topic, 1, 5)
    for sentence, where, named in (
        (rf"contains no topics of group '{group_id}'", "first", {}),
        (r"no topic nowhere at ", "first", {"topic": "nowhere"}),
        (rf"no queue {topic}-2; {topic} has 2 queues", "first", {"queue": Queue(topic, "", 2)}),
        (r"no queue nowhere-0; nowhere has 0 queues", "first", {"queue": Queue("nowhere", "", 0)}),
        (rf"offset 6 does not exist: {topic}-0 has 0 to 0, {topic}-1 has 0 to 5", 6, {"topic": topic}),
        (r"set only one of them", "first", {"topic": topic, "queue": Queue(topic, "", 0)}),
    ):
        with pytest.raises(InvalidUsage, match=sentence):
            admin.plan_reset(group_id, where, **named)

    assert planned(admin.plan_reset(group_id, 5, queue=Queue(topic, "", 1))) == [(1, None, 5, None)]


def test_repetitions_and_what_nobody_can_read_do_not_change_what_is_committed(coordinator, admin, group_id):
    """A sink that tries again begins at an older decision; a newer coordinator may say what this version cannot read.

    A shard that started without its state counts from 1 again, under a new name.
    """
    topic = coordinator.topic(1)
    producer = coordinator.connection.producer()

    def publish(*values: bytes) -> None:
        for value in values:
            producer.produce(coordinator.connection.topics.decisions, value, key=group_id.encode())
        assert producer.flush(PATIENCE_S) == 0

    def offset(shard: str, seq: int, offset: int) -> bytes:
        queue = Queue(topic, "", 0)
        said = Offset(shard=shard, seq=seq, group_id=group_id, queue=queue, client_id="a", offset=offset, epoch=1)
        return encode_decision(said)

    publish(offset("groups-0.1", 7, 40), offset("groups-0.1", 8, 50))
    publish(offset("groups-0.1", 7, 40), b"{", b"", b'{"kind": "prophecy", "seq": 9}')
    assert [row.committed for row in admin.plan_reset(group_id, "last").rows] == [50]

    publish(offset("groups-0.2", 1, 30))
    assert [row.committed for row in admin.plan_reset(group_id, "last").rows] == [30]


def test_every_client_of_a_broadcasting_group_has_all_queues_and_is_reset(coordinator, sink, admin, join, group_id):
    """Each has offsets of its own, so each starts again; who left and comes back, too."""
    topic = coordinator.topic(2)
    for number in (0, 1):
        coordinator.produce(topic, number, 20)
    one, two, gone = (join(topic, mode="broadcasting", client_id=f"{name}-{group_id}") for name in "abc")
    one.read(40, two, gone)
    assert all(reader.offsets == {number: list(range(20)) for number in (0, 1)} for reader in (one, two, gone))
    assert one.consumer.commit(PATIENCE_S)
    for reader, offset in ((one, 20), (two, 0)):
        for number in (0, 1):
            named = {"client_id": reader.consumer.client_id, "queue": Queue(topic, "", number)}
            sink.wait_for(Offset, **named, offset=offset)
    gone.read_and_leave(40, sink)

    plan = admin.plan_reset(group_id, 10)
    outcome = admin.reset(plan)

    committed = {(row.client_id[0], row.queue.queue_id): row.committed for row in plan.rows}
    assert committed == {
        (name, number): offset for name, offset in (("a", 20), ("b", 0), ("c", 20)) for number in (0, 1)
    }
    assert {(owner[0], queue.queue_id, said.offset) for (queue, owner), said in outcome.offsets.items()} == {
        (name, number, 10) for name in "abc" for number in (0, 1)
    }
    one.read(60, two)
    again = {number: [*range(20), *range(10, 20)] for number in (0, 1)}
    assert (one.offsets, two.offsets) == (again, again)
    back = join(topic, mode="broadcasting", client_id=f"c-{group_id}")
    back.read(20)
    assert back.offsets == {number: list(range(10, 20)) for number in (0, 1)}


def test_a_clustering_consumer_in_a_broadcasting_group_is_fenced_and_told_why(coordinator, join, group_id):
    """In RocketMQ the two would consume side by side, and the group's offsets would mean nothing."""
    topic = coordinator.topic(2)
    coordinator.produce(topic, 0, 1)
    first = join(topic, mode="broadcasting")
    first.read(1)
    other = join(topic)

    with pytest.raises(
        ConsumerFenced,
        match=r"was refused: mode is 'clustering'; expected 'broadcasting', the mode of the group's oldest member",
    ) as fenced:
        other.read(1)

    assert fenced.value.reason == "refused"
    assert coordinator.members(group_id) == [first.consumer.client_id]


def test_settings_take_an_epoch_and_what_contradicts_them_is_refused(admin, group_id):
    """Before anybody has joined; a second change within the settle interval comes with the next tick."""
    done = [
        admin.configure(group_id, profile="rocketmq"),
        admin.configure(group_id, strategy="AVG_BY_CIRCLE"),
        admin.configure(group_id),
    ]

    assert [(each.epoch, each.trigger, each.strategy) for each in done] == [
        (1, "config", ""),
        (2, "config", "AVG_BY_CIRCLE"),
        (3, "config", "AVG_BY_CIRCLE"),
    ]
    with pytest.raises(RequestRefused, match=r"session_timeout_ms would be 30000; it must be at least 3 times"):
        admin.configure(group_id, session_timeout_ms=30_000)
    with pytest.raises(RequestRefused, match=r"nothing is cut into slices: .* is below feature level 5"):
        admin.configure(group_id, slices={"orders": 2})
    for wrong, sentence in (
        ({"heart_beat": 1}, r"no setting 'heart_beat'; there are: profile, strategy, .*max_members"),
        ({"handover": "gently"}, r"handover is 'gently'; it must be cooperative or eager"),
        ({"settle_ms": -1}, r"settle_ms is -1; it must be a whole number from 0 to"),
        ({"slices": {"orders": 3}}, r"slices: orders is 3; it must be a power of two from 1 to 64, 1 if it is not cut"),
        ({"slices": {}}, r"slices is \{\}; it must be"),
    ):
        with pytest.raises(InvalidUsage, match=sentence):
            admin.configure(group_id, **wrong)


@pytest.fixture
def key_file(tmp_path) -> Path:
    """A deployment's own keys."""
    for key in (new_key("observer", "obs-1"), new_key("operator", "ops-1")):
        add_key(tmp_path / "keys.toml", key)
    return tmp_path / "keys.toml"


def test_an_operator_whose_key_the_coordinator_does_not_have_is_refused(coordinator, group_id, key_file, wakeroll):
    """The sentence says which key was found and which there are, so that the right file can be named."""
    sentence = "no key 'ops-1'; a configure requires the signature of an operator; keys of this role: dev-operator"
    named = {"prefix": coordinator.connection.topics.prefix, "keys": key_file}
    with (
        Admin(coordinator.connection.bootstrap, **named) as admin,
        pytest.raises(RequestRefused, match=sentence) as refused,
    ):
        admin.configure(group_id, settle_ms=0)
    assert refused.value.rule == "signature"

    where = ("--bootstrap", coordinator.connection.bootstrap, "--prefix", named["prefix"])
    code, _, complaint = wakeroll("configure", group_id, "--settle-ms", "0", "--keys", str(key_file), *where)

    said = [line for line in complaint.splitlines() if not line.startswith("%")]  # the rest is of other tests' clients
    assert (code, said) == (1, [f"wakeroll: the coordinator rejected the request (signature): {sentence}"])


def test_a_request_that_nobody_answers_is_carried_out_when_the_coordinator_runs(broker, group_id, key_file):
    """It is on record, signed: an operator who repeats it would undo what was consumed in between."""
    connection = Connection(broker.bootstrap, topics=Topics(f"dark-{uuid.uuid4().hex[:6]}"))
    ensure_topics(connection)
    late = Coordinator(connection, read_keys(key_file))
    topic = late.topic(1)
    late.produce(topic, 0, 3)
    with Admin(connection.bootstrap, prefix=connection.topics.prefix, keys=key_file) as admin:
        plan = admin.plan_reset(group_id, "last", topic=topic)
        with pytest.raises(
            RequestUnanswered, match=r"is recorded \(dark-\w+\.groups-\d, offset \d+\) and will be executed"
        ):
            admin.reset(plan, timeout=0.1)
    assert late.offsets(group_id, topic) == {}

    late.start()
    try:
        wait_until(lambda: late.offsets(group_id, topic) == {0: 3}, "the reset is carried out")
    finally:
        late.stop()


@pytest.fixture(scope="module")
def raised(broker) -> Iterator[Coordinator]:
    """A coordinator at the newest level, whose decisions reach the inboxes."""
    connection = Connection(broker.bootstrap, topics=Topics(f"raised-{uuid.uuid4().hex[:6]}"))
    ensure_topics(connection)
    coordinator = Coordinator(connection)
    coordinator.everywhere(Level(level=feature_levels.NEWEST), new_signer(key_to_sign(DEV_KEYS, "operator")))
    coordinator.start()
    sink = Sink(coordinator)
    sink.start()
    yield coordinator
    sink.stop()
    coordinator.stop()


def test_a_kicked_consumer_hands_its_queues_over_and_stays_out(raised, group_id):
    """Nothing is handled twice, and the application learns who made it leave."""
    topic = raised.topic(2)
    where = {"prefix": raised.connection.topics.prefix, "consume_from": "first"}
    handled: list[tuple[int, int]] = []

    def read(consumer: Consumer) -> None:
        message = consumer.poll(0.05)
        if message is not None:
            handled.append((message.partition(), message.offset()))

    def join(client_id: str) -> Consumer:
        return Consumer(group_id, [topic], raised.connection.bootstrap, client_id=client_id, **where)

    with join("one") as one, join("two") as two, Admin(raised.connection.bootstrap, prefix=where["prefix"]) as admin:

        def read_both() -> None:
            read(one)
            read(two)

        def both_have_one() -> bool:
            return [len(consumer.assignment()) for consumer in (one, two)] == [1, 1]

        wait_until(both_have_one, "each has a queue", between=read_both)
        for number in (0, 1):
            raised.produce(topic, number, 20)
        wait_until(lambda: len(handled) == 40, "all messages are handled", between=read_both)

        outcome = admin.kick(group_id, "one", keep_out_ms=600_000, reason="stuck", by="mia")

        assert not outcome.is_gone
        assert outcome.detail.startswith(
            "kicked by mia: stuck; kept out for 600000 ms; if it lives, it hands 1 queue over"
        )
        fenced: list[ConsumerFenced] = []

        def read_until_fenced() -> None:
            try:
                read_both()
            except ConsumerFenced as problem:
                fenced.append(problem)

        wait_until(lambda: fenced, "the consumer learns that it was kicked", between=read_until_fenced)
        assert [(one.reason, one.by) for one in fenced] == [("kicked", "mia")]
        wait_until(lambda: len(two.assignment()) == 2, "the other has both queues", between=lambda: read(two))
        raised.produce(topic, 0, 1)
        raised.produce(topic, 1, 1)
        wait_until(lambda: len(handled) == 42, "the other handles both queues", between=lambda: read(two))
        assert len(set(handled)) == 42

        with (
            join("one") as again,
            pytest.raises(ConsumerFenced, match="stays out: client_id 'one' was kicked by mia: stuck") as out,
        ):
            wait_until(lambda: False, "it is fenced", between=lambda: read(again))
        assert (out.value.reason, out.value.by) == ("kicked", "mia")
        admin.readmit(group_id, "one")
        with join("one") as again:
            wait_until(lambda: again.assignment(), "it is let in", between=lambda: (read(two), read(again)))


def test_the_command_kick_says_what_will_happen_or_what_would_have_been_right(coordinator, raised, group_id, wakeroll):
    """A mistake exits with 2 and one line; a coordinator of an earlier level refuses clearly."""
    topic = raised.topic(1)
    where = ("--bootstrap", raised.connection.bootstrap, "--prefix", raised.connection.topics.prefix)
    with Consumer(group_id, [topic], where[1], prefix=where[3], client_id="c1") as consumer:
        wait_until(consumer.assignment, "it has its queue", between=lambda: consumer.poll(0.05))

        def complaint_of(*words: str) -> tuple[int, str]:
            code, _, complaint = wakeroll("kick", *words)
            return code, "\n".join(line for line in complaint.splitlines() if not line.startswith("%"))

        rejected = "wakeroll: the coordinator rejected the request (kick): client_id"
        assert complaint_of(group_id, "c2", *where) == (
            2,
            f"{rejected} 'c2' is no member of group '{group_id}'; its members: c1",
        )
        assert complaint_of("nothing", "c1", *where) == (
            2,
            f"{rejected} 'c1' is no member of group 'nothing'; its members: none",
        )
        assert complaint_of(group_id, "c1", "--readmit", *where) == (
            2,
            f"{rejected} 'c1' of group '{group_id}' is not kept out; kept out: none",
        )
        assert complaint_of(group_id, "c1", "--for", "soon", *where) == (
            2,
            "wakeroll: the time to keep the client out is 'soon'; write a whole number with its unit, like 90s, 10m or "
            "2h",
        )
        assert complaint_of(group_id, "c1", "--keys", "/nowhere/keys.toml", *where)[0] == 2
        earlier = ("--bootstrap", where[1], "--prefix", coordinator.connection.topics.prefix)
        assert complaint_of(group_id, "c1", *earlier) == (
            1,
            "wakeroll: the coordinator does not know the request 'kick': it needs feature level 4 (`wakeroll upgrade` "
            "raises it)",
        )

        code, said, complaint = wakeroll(
            "kick", group_id, "c1", "--for", "10m", "--reason", "stuck", "--by", "mia", *where
        )

        assert code == 0, complaint
        assert f"c1 must leave {group_id}: kicked by mia: stuck; kept out for 600000 ms; if it lives, it" in " ".join(
            said.split()
        )
        code, said, complaint = wakeroll("kick", group_id, "c1", "--readmit", *where)
        assert (code, said.split()) == (0, ["c1", "may", "join", group_id, "again"]), complaint


def test_a_member_whose_handlers_hang_says_where_they_are(raised, group_id, wakeroll):
    """The control thread answers; the answer is what `describe --member` shows afterwards."""
    topic = raised.topic(1)
    where = ("--bootstrap", raised.connection.bootstrap, "--prefix", raised.connection.topics.prefix)
    goes_on, has_begun = threading.Event(), threading.Event()

    def charge_a_card(_messages: object) -> None:
        has_begun.set()
        goes_on.wait()

    with Consumer(group_id, [topic], where[1], prefix=where[3], client_id="c1", consume_from="first") as consumer:
        raised.produce(topic, 0, 1)
        runs = threading.Thread(target=consumer.run, args=(charge_a_card,), kwargs={"on_error": "raise"})
        runs.start()
        try:
            wait_until(has_begun.is_set, "the handler hangs")
            code, said, complaint = wakeroll("inspect", group_id, "c1", "--reason", "no progress", *where)
            assert code == 0, complaint
            assert "calls at work: 1" in said
            assert f"with {topic}-0, offsets 0 to 0:" in said
            assert re.search(r"^ +File .*, in charge_a_card$", said, re.MULTILINE), said
            code, said, complaint = wakeroll("inspect", group_id, "c1", "--json", *where)
            assert (code, json.loads(said)["client_id"]) == (0, "c1"), complaint
            code, said, complaint = wakeroll("describe", group_id, "--member", "c1", *where)
            assert (code, "in charge_a_card" in said) == (0, True), complaint
            code, _, complaint = wakeroll("inspect", group_id, "c2", *where)
            rejected = "wakeroll: the coordinator rejected the request (inspect): client_id 'c2' is no member of group"
            assert (code, complaint.splitlines()[-1]) == (2, f"{rejected} '{group_id}'; its members: c1")
        finally:
            goes_on.set()
            consumer.stop()
            runs.join()


def test_a_group_and_its_offsets_are_deleted_only_when_nobody_uses_them(raised, group_id, wakeroll):
    """The commands name the members that forbid it; afterwards the group begins again without offsets."""
    topic = raised.topic(2)
    bootstrap, prefix = raised.connection.bootstrap, raised.connection.topics.prefix
    where = ("--bootstrap", bootstrap, "--prefix", prefix)
    refused = "wakeroll: the coordinator rejected the request (delete):"
    with Consumer(group_id, [topic], bootstrap, prefix=prefix, client_id="c1", consume_from="first") as consumer:
        for number in (0, 1):
            raised.produce(topic, number, 3)
        Reader(consumer).read(6)
        consumer.commit(10)
        code, _, complaint = wakeroll("delete-group", group_id, *where)
        forbidden = f"{refused} group {group_id!r} has 1 member: c1; wait until it is empty, or kick them"
        assert (code, complaint.splitlines()[-1]) == (2, forbidden)
        code, _, complaint = wakeroll("delete-offsets", group_id, "--topic", topic, *where)
        forbidden = f"{refused} {topic} is subscribed by 1 member: c1; stop them first"
        assert (code, complaint.splitlines()[-1]) == (2, forbidden)
    wait_until(lambda: not raised.members(group_id), "the group is empty")

    code, said, complaint = wakeroll("delete-offsets", group_id, "--queue", f"{topic}-1", "--json", *where)
    assert code == 0, complaint
    deleted = json.loads(said)
    jsonschema.validate(deleted, answer_schemas()["deleted_offsets.json"])
    assert [(one["queue"]["queue_id"], one["client_id"], one["offset"]) for one in deleted["offsets"]] == [(1, "", 3)]
    code, said, complaint = wakeroll("delete-offsets", group_id, "--topic", topic, *where)
    assert code == 0, complaint
    assert f"{topic}-0" in said
    code, said, complaint = wakeroll("delete-group", group_id, "--reason", "unused", "--by", "mia", "--json", *where)
    assert code == 0, complaint
    jsonschema.validate(json.loads(said), answer_schemas()["deleted_group.json"])
    assert json.loads(said) == {"group_id": group_id, "detail": "deleted by mia: unused"}
    code, _, complaint = wakeroll("delete-group", group_id, *where)
    assert (code, complaint.splitlines()[-1]) == (2, f"{refused} there is no group {group_id!r}")

    with Consumer(group_id, [topic], bootstrap, prefix=prefix, client_id="c2", consume_from="first") as consumer:
        Reader(consumer).read(6)


def test_the_readmes_commands_show_a_plan_carry_it_out_and_configure(coordinator, sink, join, group_id, wakeroll):
    """As they stand, but for the names of the broker, the group and the topic; a plan asks nobody for anything."""
    topic = coordinator.topic(2)
    for number in (0, 1):
        coordinator.produce(topic, number, 20)
    join(topic).read_and_leave(40, sink)
    KafkaGroups(coordinator.connection, PATIENCE_S).write({group_id: {Queue(topic, "", 1): 5}})
    names = {"billing": group_id, "orders": topic, "host:9092": coordinator.connection.bootstrap}

    said = []
    for command in COMMANDS:
        words = [names.get(word, word) for word in shlex.split(command, comments=True)[1:]]
        code, told, complaint = wakeroll(*words, "--prefix", coordinator.connection.topics.prefix)
        assert code == 0, complaint
        said.append(" ".join(told.split()))

    assert [command.split()[1] for command in COMMANDS] == [
        "reset-offsets",
        "reset-offsets",
        "configure",
        "import-offsets",
    ]
    plan, done, configured, imported = said
    assert f"{topic}-0 │ 20 │" in plan
    assert "nothing has changed; repeat the command with --execute to carry out the plan" in plan
    assert re.search(rf"{topic}-0 │ 20 │ 0 │ -20 │ .* done, in epoch .*{topic}-1 │ 0 │ no owner yet", done)
    assert coordinator.offsets(group_id, topic) == {0: 0, 1: 0}
    assert f"{group_id} is configured in epoch" in configured
    assert f"{topic}-1 │ 0 │ 5 │" in imported
    asked = [event for event in coordinator.heard if getattr(event, "group_id", None) == group_id]
    assert [event.asked for event in asked if isinstance(event, Reset)] == ["to the first message"]
    assert [event.profile for event in asked if isinstance(event, Configure)] == ["rocketmq"]

    where = ["--topic", topic, "--bootstrap", names["host:9092"], "--prefix", coordinator.connection.topics.prefix]
    for mode, recorded in ([], []), (["--execute"], [(0, 3), (1, 3)]):
        code, told, complaint = wakeroll("reset-offsets", group_id, "--to-offset", "3", *mode, "--json", *where)
        document = json.loads(told)
        assert (code, document["is_executed"], document["asked"]) == (0, bool(mode), "to offset 3"), complaint
        assert [(one["queue"]["queue_id"], one["offset"], one["difference"]) for one in document["rows"]] == [
            (0, 3, 3), (1, 3, 3)
        ]  # fmt: skip
        assert [(one["queue"]["queue_id"], one["offset"]) for one in document["recorded"]] == recorded
        jsonschema.validate(document, answer_schemas()["plan.json"])


def test_ctrl_c_while_the_coordinator_is_awaited_says_that_the_request_is_still_carried_out(broker, group_id):
    """It is on record by then: who interrupts the command must know that it is still carried out."""
    connection = Connection(broker.bootstrap, topics=Topics(f"nobody-{uuid.uuid4().hex[:6]}"))
    ensure_topics(connection)
    command = [sys.executable, "-m", "wakeroll_pipeline.cli", "pause", group_id]
    where = ["--bootstrap", broker.bootstrap, "--prefix", connection.topics.prefix]
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
    process = subprocess.Popen([*command, *where], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, former)
    consumer = connection.operators_consumer()
    groups = connection.topics.groups

    def recorded() -> bool:
        partitions = consumer.list_topics(groups, 10).topics[groups].partitions
        ends = [ends_of(consumer, TopicPartition(groups, one), 10)[1] for one in partitions]
        return sum(ends) > 0

    wait_until(recorded, "the request is in the log")
    process.send_signal(signal.SIGINT)
    said, complaint = process.communicate(timeout=60)
    consumer.close()

    assert (process.returncode, said) == (130, "")
    assert "wakeroll: interrupted; if the request is in the log already, the coordinator still carries" in complaint
    assert "Traceback" not in complaint
