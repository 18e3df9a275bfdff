"""What release 0.1 has stored is read: its logs lead to the same decisions, and its states continue."""

import gzip
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from model.records import Record
from model.replay import encode_decision
from model.shard import READABLE, VERSION, Shard

FILES = sorted((Path(__file__).parents[1] / "golden" / "release-0.1").glob("*.gz"))


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


def test_there_is_a_sample_of_both_kinds():
    assert {file.name.partition("-")[0] for file in FILES} == {"groups", "queues"}
    assert READABLE[0] < READABLE[-1] == VERSION
