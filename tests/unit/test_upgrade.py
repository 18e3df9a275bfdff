"""What release 0.1 has stored is read: its logs lead to the same decisions, its states continue, and are upgraded."""

import gzip
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET, Struct, structs

from model import levels
from model.decisions import AnyDecision, Cause, Rebalance, Rejected
from model.events import Level
from model.group import Group, Member
from model.held_queue import HeldQueue
from model.records import Record
from model.replay import encode_decision
from model.shard import READABLE, VERSION, Shard, ShardState

FILES = sorted((Path(__file__).parents[1] / "golden" / "release-0.1").glob("*.gz"))


LAYOUT = msgspec.json.decode((FILES[0].parent / "layout.json").read_bytes(), type=dict[str, list[str]])
"""Stored structure of release 0.1 -> its fields, in order."""

encode_level = msgspec.json.Encoder().encode


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


@pytest.mark.parametrize("part", [0, 1, 2], ids=["at once", "in the middle", "late"])
def test_an_upgrade_changes_the_decisions_after_it_only(stored, part):
    """Before the record of the level they are those of release 0.1, byte for byte; after it they have what is new."""
    at = len(stored.records) * part // 3
    shard = Shard(stored.topic, stored.partition, stored.partitions)
    before = apply(shard, stored, range(at))
    upgrade = Record(stored.topic, stored.partition, at, stored.records[at][0], None, encode_level(Level(level=2)))
    assert shard.apply(upgrade) == []

    after = apply(shard, stored, range(at, len(stored.records)), later=1)

    assert [encode_decision(one) for one in before] == stored.decisions[: len(before)]
    assert all(is_new(one) for one in after if isinstance(one, Rejected) and one.rule == "partition")
    assert [as_before(one, at) for one in after] == stored.decisions[len(before) :]


def test_a_snapshot_of_an_earlier_release_is_upgraded(stored):
    for offset, body in stored.states:
        shard = Shard(stored.topic, stored.partition, stored.partitions, body)
        assert shard.level == levels.FIRST
        upgrade = Record(stored.topic, stored.partition, offset, 0, None, encode_level(Level(level=2)))
        assert shard.apply(structs.replace(upgrade, timestamp_ms=stored.records[offset - 1][0])) == []

        after = apply(shard, stored, range(offset, len(stored.records)), later=1)

        assert [as_before(one, offset) for one in after] == stored.decisions[len(stored.decisions) - len(after) :]


def test_some_log_has_a_record_in_the_wrong_partition():
    """Otherwise the tests above would compare nothing that is new."""
    logs = [msgspec.msgpack.decode(gzip.decompress(file.read_bytes()), type=Stored) for file in FILES]

    assert any(b'"rule":"partition"' in decision for log in logs for decision in log.decisions)


@pytest.mark.parametrize("kind", [ShardState, Group, Member, HeldQueue], ids=lambda kind: kind.__name__)
def test_fields_are_only_added_behind_those_of_an_earlier_release(kind):
    """At level 1 the release before this one must read the states of this one: then a deployment can return to it."""
    known = LAYOUT[kind.__name__]

    assert list(kind.__struct_fields__[: len(known)]) == known


def apply(shard: Shard, stored: Stored, offsets: range, later: int = 0) -> list[AnyDecision]:
    """Apply some of the records, each at an offset that is so much higher."""
    found: list[AnyDecision] = []
    for offset in offsets:
        timestamp_ms, key, value = stored.records[offset]
        found += shard.apply(Record(stored.topic, stored.partition, offset + later, timestamp_ms, key, value))
    return found


def is_new(rejected: Rejected) -> bool:
    """Return whether a rejection has what level 2 adds."""
    return rejected.partition is not UNSET and rejected.partitions is not UNSET


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
