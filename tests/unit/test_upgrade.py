"""What release 0.1 has stored is read: its logs lead to the same decisions, its states continue, and are upgraded."""

import gzip
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET, Struct, structs

from tests.support.earlier_states import without_facts
from wakeroll_model import feature_levels
from wakeroll_model.decisions import AnyDecision, Cause, Rebalance, Rejected
from wakeroll_model.events import Level, Pull, Unregister
from wakeroll_model.group import Group, Member
from wakeroll_model.held_queue import HeldQueue
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import READABLE, VERSION, ShardState
from wakeroll_model.snapshot_proof import differences

FILES = sorted((Path(__file__).parents[1] / "golden" / "release-0.1").glob("*.gz"))


LAYOUT = msgspec.json.decode((FILES[0].parent / "layout.json").read_bytes(), type=dict[str, list[str]])
"""Stored structure of release 0.1 -> its fields, in order."""

RENAMED = {
    "told": "routed_topics",
    "heard_epoch": "received_epoch",
    "own_offsets": "broadcast_offsets",
    "unheard_since_ms": "lagging_since_ms",
    "unheard_epoch": "lagging_epoch",
}
"""Field as release 0.1 named it -> its name since. Structures are stored as arrays: no name is in them."""

encode = msgspec.json.Encoder().encode


class Stored(Struct):
    topic: str
    partition: int
    partitions: int
    records: list[tuple[int, bytes | None, bytes | None]]
    decisions: list[bytes]
    states: list[tuple[int, bytes]]

    def decided(self, shard: Shard, first: int = 0) -> list[bytes]:
        """Apply the records from an offset on; return the decisions."""
        return [
            encode_decision(decision)
            for offset, (timestamp_ms, key, value) in enumerate(self.records[first:], first)
            for decision in shard.apply(Record(self.topic, self.partition, offset, timestamp_ms, key, value))
        ]

    def upgrade(self, offset: int) -> Record:
        """Return the record that raises the level, in front of the one that has this offset until then."""
        timestamp_ms, _, _ = self.records[max(offset - 1, 0)]
        return Record(self.topic, self.partition, offset, timestamp_ms, None, encode(Level(level=2)))

    def misplaced(self) -> Record:
        """Return a record after the last one that belongs to another partition."""
        for number in range(100):
            queue = Queue(f"t{number}", "", 0)
            leave = Unregister(group_id=f"g{number}", client_id="c", instance_id="i")
            pull = Pull(request_id="i:1", group_id="g", client_id="c", instance_id="i", queue=queue, from_offset=0)
            key, event = (b"g%d" % number, leave) if self.topic.endswith("groups") else (queue.key.encode(), pull)
            if partition_of(key, self.partitions) != self.partition:
                break
        return Record(self.topic, self.partition, len(self.records) + 1, self.records[-1][0], key, encode(event))


@pytest.fixture(params=FILES, ids=lambda file: file.name.partition(".")[0])
def stored(request) -> Stored:
    return msgspec.msgpack.decode(gzip.decompress(request.param.read_bytes()), type=Stored)


def test_a_log_of_an_earlier_release_leads_to_the_same_decisions(stored):
    """Byte for byte, or a replay of the ledger would differ."""
    shard = Shard(stored.topic, stored.partition, stored.partitions)

    assert stored.decided(shard) == stored.decisions


def test_a_state_of_an_earlier_release_continues(stored):
    for offset, body in stored.states:
        shard = Shard(stored.topic, stored.partition, stored.partitions, body)
        said = stored.decided(shard, offset)

        assert said == stored.decisions[len(stored.decisions) - len(said) :]


def test_a_replay_finds_no_difference_to_the_states_that_follow_one_of_an_earlier_release(stored):
    """Those lack facts that only questions read, about members and queues from before."""
    middle = len(stored.records) // 2
    whole = Shard(stored.topic, stored.partition, stored.partitions)
    apply(whole, stored, range(middle))
    body = without_facts(whole.body()) if stored.topic.endswith("groups") else whole.body()
    continued = Shard(stored.topic, stored.partition, stored.partitions, body)
    assert differences(stored.topic, body, whole.body()) == []

    said = [
        [encode_decision(one) for one in apply(shard, stored, range(middle, len(stored.records)))]
        for shard in (whole, continued)
    ]

    assert said[0] == said[1]
    assert differences(stored.topic, continued.body(), whole.body()) == []


@pytest.mark.parametrize("part", [0, 1, 2], ids=["at once", "in the middle", "late"])
def test_an_upgrade_changes_the_decisions_after_it_only(stored, part):
    """Before the record of the level they are those of release 0.1, byte for byte; after it they have what is new."""
    at = len(stored.records) * part // 3
    shard = Shard(stored.topic, stored.partition, stored.partitions)
    before = apply(shard, stored, range(at))
    assert shard.apply(stored.upgrade(at)) == []

    after = apply(shard, stored, range(at, len(stored.records)), later=1)

    assert [encode_decision(one) for one in before] == stored.decisions[: len(before)]
    assert [as_before(one, at) for one in after] == stored.decisions[len(before) :]
    [rejected] = shard.apply(stored.misplaced())
    assert isinstance(rejected, Rejected)
    assert (rejected.rule, rejected.partitions) == ("partition", stored.partitions)
    assert rejected.partition not in (UNSET, stored.partition)


def test_a_snapshot_of_an_earlier_release_is_upgraded(stored):
    for offset, body in stored.states:
        shard = Shard(stored.topic, stored.partition, stored.partitions, body)
        assert shard.level == feature_levels.FIRST
        assert shard.apply(stored.upgrade(offset)) == []

        after = apply(shard, stored, range(offset, len(stored.records)), later=1)

        assert [as_before(one, offset) for one in after] == stored.decisions[len(stored.decisions) - len(after) :]


@pytest.mark.parametrize("kind", [ShardState, Group, Member, HeldQueue], ids=lambda kind: kind.__name__)
def test_fields_are_only_added_behind_those_of_an_earlier_release(kind):
    """At level 1 the release before this one must read the states of this one: then a deployment can return to it."""
    known = [RENAMED.get(name, name) for name in LAYOUT[kind.__name__]]

    assert list(kind.__struct_fields__[: len(known)]) == known


def apply(shard: Shard, stored: Stored, offsets: range, later: int = 0) -> list[AnyDecision]:
    """Apply some of the records, each at an offset that is so much higher."""
    found: list[AnyDecision] = []
    for offset in offsets:
        timestamp_ms, key, value = stored.records[offset]
        found += shard.apply(Record(stored.topic, stored.partition, offset + later, timestamp_ms, key, value))
    return found


def as_before(decision: AnyDecision, upgraded_at: int) -> bytes:
    """Return the bytes of a decision as they were without the level: its record moved all later ones by one."""

    def moved(cause: Cause) -> Cause:
        return structs.replace(cause, offset=cause.offset - 1) if cause.offset > upgraded_at else cause

    decision.cause = moved(decision.cause)
    if isinstance(decision, Rebalance):
        decision.causes = [moved(cause) for cause in decision.causes]
    if isinstance(decision, Rejected):
        decision.partition = decision.partitions = UNSET
        decision.detail = decision.detail.replace("heartbeat, level, lock", "heartbeat, lock")
    return encode_decision(decision)


def test_there_is_a_sample_of_both_kinds():
    assert {file.name.partition("-")[0] for file in FILES} == {"groups", "queues"}
    assert READABLE[0] < READABLE[-1] == VERSION


def test_the_documentation_lists_the_levels():
    page = (Path(__file__).parents[2] / "docs" / "upgrading.md").read_text()
    for level, change in feature_levels.CHANGES.items():
        since = {1: "0.1", 2: "0.1, for deployments that it begins"}.get(level, "0.2")
        assert f"| {level} | {since} | {change} |" in page
