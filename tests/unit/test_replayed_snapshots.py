"""Replay compares each snapshot on its way with the state that it has in hand."""

from pathlib import Path

import pytest
from msgspec import structs

from tests.support.control_log import START_MS
from tests.support.delta_tables import write_tables
from tests.support.ledgers import PARTITIONS, Story, a_day
from wakeroll_model.partitioner import partition_of
from wakeroll_model.shard_state import decode_state, encode_state
from wakeroll_model.snapshot_proof import proven
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.period import Period
from wakeroll_pipeline.ledger.stored_snapshots import row_of
from wakeroll_pipeline.questions.quality.history_in_duckdb import history_in_duckdb
from wakeroll_pipeline.questions.quality.snapshot_rules import HASH, RULES_OF_SNAPSHOTS
from wakeroll_pipeline.questions.replay_check import Checked, UnequalSnapshot
from wakeroll_pipeline.questions.replay_here import replay_here

HOME = ("wakeroll.groups", partition_of(b"billing", PARTITIONS))


def replayed(warehouse: Path, period: Period = Period()) -> list[Checked]:  # noqa: B008
    with duck_ledger(warehouse) as ledger:
        return replay_here(ledger, PARTITIONS, period)


def grown() -> Story:
    story = Story()
    story.route("orders", 4)
    story.join("billing", "c1", "orders")
    story.pass_seconds(10)
    story.snapshot()
    story.pass_seconds(5)
    story.grow(2 * PARTITIONS)
    story.join("billing", "c2", "orders")
    story.pass_seconds(10)
    story.snapshot()
    return story


def test_each_snapshot_on_the_way_is_compared_and_equal(tmp_path):
    story = a_day()
    write_tables(tmp_path, story)

    done = replayed(tmp_path)

    assert sum(one.snapshots for one in done) == len(story.snapshots) > 0
    assert [snapshot for one in done for snapshot in one.unequal] == []
    assert sum(one.differences for one in done) == 0


def test_a_replay_of_a_period_compares_those_that_it_passes(tmp_path):
    story = a_day()
    write_tables(tmp_path, story)
    end = Period(START_MS + 100_000)

    assert sum(one.snapshots for one in replayed(tmp_path, end)) == len(story.snapshots) // 2


def test_states_before_and_after_a_change_of_the_number_of_partitions_are_equal(tmp_path):
    """A snapshot at the last record of the old number has the state of the new one."""
    story = grown()
    write_tables(tmp_path, story)
    with duck_ledger(tmp_path) as ledger:
        done = replay_here(ledger, 2 * PARTITIONS, Period())

    after_the_first = [row for row in story.snapshots if row[2] >= 0]
    assert sum(one.snapshots for one in done) == len(after_the_first)
    assert [snapshot for one in done for snapshot in one.unequal] == []


def test_an_edited_state_with_a_matching_hash_differs(tmp_path):
    """Who edits a state can compute its hash; the log cannot be made to lead to it."""
    story = a_day()
    index = next(n for n, row in enumerate(story.snapshots) if row[:2] == HOME)
    row = row_of(story.snapshots[index])
    state = decode_state(row.body)
    state.entities = {name: body for name, body in state.entities.items() if name != "billing"}
    edited = proven(structs.replace(row, body=encode_state(state)))
    story.snapshots[index] = structs.astuple(edited)
    write_tables(tmp_path, story)

    done = replayed(tmp_path)

    assert [(one.shard, snapshot) for one in done for snapshot in one.unequal] == [
        (f"groups-{HOME[1]}.1", UnequalSnapshot(row.offset, ["group billing"]))
    ]


@pytest.mark.parametrize("part", ["a byte", "the hash"])
def test_a_damaged_snapshot_breaks_the_rule_of_check(tmp_path, part):
    story = a_day()
    row = row_of(story.snapshots[0])
    changed = {"a byte": {"body": row.body[:-1] + b"\x07"}, "the hash": {"row_hash": "0" * 64}}[part]
    story.snapshots[0] = structs.astuple(structs.replace(row, **changed))
    write_tables(tmp_path, story)

    with duck_ledger(tmp_path) as ledger:
        found = history_in_duckdb(ledger.connection, RULES_OF_SNAPSHOTS)

    assert dict(found.counts) == {HASH.name: 1}
    assert [at for _, at, *_ in found.rows] == [f"{row.topic}/{row.partition}/1/{row.offset}"]
