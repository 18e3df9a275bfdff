"""The tables of a deployment whose number of shards has grown: each question is answered over the change."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.archived_states import shard_at, shards_of
from tests.support.control_log import QUEUES, START_MS, TOPIC
from tests.support.delta_tables import write_assignments, write_tables
from tests.support.ledgers import Story, offsets_of, owners_of
from wakeroll.connection import Topics
from wakeroll.errors import InvalidUsage
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_pipeline.ledger.archived_log import places_of
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger, duck_ledger
from wakeroll_pipeline.ledger.period import Period
from wakeroll_pipeline.ledger.shard_growth import Step, steps_of
from wakeroll_pipeline.live.ledger_reader import newest_snapshots, read_ledger
from wakeroll_pipeline.questions.explain import explain
from wakeroll_pipeline.questions.quality.all_rules import all_rules
from wakeroll_pipeline.questions.quality.history_in_duckdb import history_in_duckdb
from wakeroll_pipeline.questions.quality.rule import HISTORY
from wakeroll_pipeline.questions.replay_check import replay_group
from wakeroll_pipeline.questions.replay_here import replay_here

MOVES, STAYS = "taxes", "billing"
OLD, NEW = (partition_of(MOVES.encode(), number) for number in (4, 8))
GROWN_MS = START_MS + 40_000


def a_growing_day() -> Story:
    """Tell of two groups whose shard is divided while a member joins and a pull is held."""
    story = Story()
    story.route("orders", 4, ends=1_000)
    for group_id in (MOVES, STAYS):
        story.join(group_id, "c1", "orders")
    story.pass_seconds(10)
    story.commit(MOVES, 10)
    for number in range(4):
        story.pull("audit", "a1", "orders", number, 2_000)
        story.pull("audit", "a1", "orders", number, 2_000)
    story.pass_seconds(19)
    story.snapshot()
    story.pass_seconds(10)
    for group_id in (MOVES, STAYS):
        story.join(group_id, "c2", "orders")
    for number in range(4):
        story.pull("audit", "a1", "orders", number, 2_000)
    story.pass_seconds(1)
    assert story.now_ms == GROWN_MS
    story.grow(8)
    story.pass_seconds(30)
    story.commit(MOVES, 30)
    story.crash(STAYS, "c1")
    story.crash(MOVES, "c1")
    story.pass_seconds(60)
    story.snapshot()
    story.join(MOVES, "c3", "orders")
    story.pass_seconds(30)
    return story


@contextmanager
def ledger_of(story: Story, folder: Path) -> Iterator[DuckLedger]:
    write_tables(folder / "warehouse", story)
    write_assignments(folder / "warehouse", story)
    with duck_ledger(folder / "warehouse") as ledger:
        yield ledger


@pytest.mark.parametrize(
    "is_kept",
    [
        lambda _place, _offset, _number: True,
        # Retention has deleted the first states of old partitions, and all earlier ones.
        lambda place, offset, _number: place[1] >= 4 or offset > 70,
    ],
    ids=["all snapshots", "few snapshots"],
)
def test_a_replay_decides_the_same_before_and_after(tmp_path, is_kept: Callable[..., bool]):
    """The state is divided at the recorded position, as the tool did."""
    story = a_growing_day()
    story.snapshots = [row for row in story.snapshots if is_kept(row[:2], row[2], row[3])]

    with ledger_of(story, tmp_path) as ledger:
        checks = replay_here(ledger, 8, Period())
        of_group = replay_group(ledger, 8, Period(), MOVES)
        later = replay_here(ledger, 8, Period(GROWN_MS + 20_000))

    for found in (checks, later):
        assert {(one.differences, one.unknown) for one in found} == {(0, 0)}, found
    assert sum(one.compared for one in checks) == len(story.decisions)
    assert {one.shard for one in of_group if one.compared} == {f"groups-{OLD}.1", f"groups-{NEW}.1"}
    assert {(one.differences, one.unknown) for one in of_group} == {(0, 0)}


def test_a_group_is_found_where_it_is_and_where_it_was(tmp_path):
    with ledger_of(a_growing_day(), tmp_path) as ledger:
        steps = steps_of(ledger)

        assert {step.before for its in steps.values() for step in its} == {4}
        assert steps[TOPIC, NEW] == [Step(0, 4, 8, GROWN_MS)]
        assert len(steps) == 16
        assert places_of(ledger, MOVES, 8) == [(TOPIC, OLD), (TOPIC, NEW)]
        assert places_of(ledger, STAYS, 8) == [(TOPIC, OLD)]
        with pytest.raises(InvalidUsage, match="set the deployment's number of partitions"):
            places_of(ledger, MOVES, 3)


def test_a_state_is_rebuilt_on_both_sides_of_the_change(tmp_path):
    """What-if, `state` and the page of an earlier moment begin with it."""
    story = a_growing_day()
    with ledger_of(story, tmp_path) as ledger:
        then = shard_at(ledger, (TOPIC, OLD), 8, GROWN_MS - 500)
        now = shards_of(ledger, 8, kinds=("groups",))
        why = explain(ledger, MOVES, Queue("orders", "", 0)).answer
        broken = history_in_duckdb(ledger.connection, all_rules()[HISTORY]).counts
    assert {name: len(then.group(name).members) for name in (MOVES, STAYS)} == {MOVES: 2, STAYS: 2}
    assert {shard.partition for shard in now if shard.group(MOVES)} == {NEW}
    assert {shard.partition for shard in now if shard.group(STAYS)} == {OLD}
    assert "is owned by" in why
    assert {name: count for name, count in broken.items() if count} == {}

    for moment_ms, number, members in ((GROWN_MS - 2_000, 4, ["c1"]), (GROWN_MS + 60_000, 8, ["c1", "c2"])):
        model = read_ledger(tmp_path / "warehouse", Topics(), 8, moment_ms)
        assert model.partitions == number
        assert [one.client_id for one in model.group_view(MOVES).members] == members
    model = read_ledger(tmp_path / "warehouse", Topics(), 8)
    view = model.group_view(MOVES)
    owners = {(MOVES, one.topic, one.queue_id): one.owner for one in view.queues}
    assert owners == {place: owner for place, owner in owners_of(story).items() if place[0] == MOVES}
    offsets = {(MOVES, one.topic, one.queue_id): one.committed_offset for one in view.queues}
    assert offsets == {place: offset for place, offset in offsets_of(story).items() if place[0] == MOVES}
    assert {number for _, number in newest_snapshots(tmp_path / "warehouse")} == set(range(8))
    assert QUEUES in {topic for topic, _ in newest_snapshots(tmp_path / "warehouse")}
