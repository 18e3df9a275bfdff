"""Damaged snapshots: each kind of damage is named, the snapshot before is used, and the log from there on."""

import logging
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec import structs

from tests.support.archived_states import shards_of
from tests.support.delta_tables import write_tables
from tests.support.ledgers import PARTITIONS, Story, a_day
from wakeroll.connection import Topics
from wakeroll_model.entity_machines import MACHINES
from wakeroll_model.group import Group
from wakeroll_model.partitioner import partition_of
from wakeroll_model.rows import SnapshotRow
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import decode_state, encode_state
from wakeroll_model.snapshot_proof import differences, hash_of, problem_in, proven
from wakeroll_pipeline.ledger import stored_snapshots
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.shard_growth import steps_of
from wakeroll_pipeline.ledger.stored_snapshots import newest_of, row_of, snapshot_keys
from wakeroll_pipeline.live.ledger_reader import newest_snapshots, read_ledger

GROUPS = "wakeroll.groups"
HOME = (GROUPS, partition_of(b"billing", PARTITIONS))

Damage = Callable[[SnapshotRow, Story], SnapshotRow]


def of(story: Story) -> list[SnapshotRow]:
    """Return the snapshots of the shard of `billing`, the oldest first."""
    return [row_of(row) for row in story.snapshots if row[:2] == HOME]


def flipped(row: SnapshotRow, _story: Story) -> SnapshotRow:
    middle = len(row.body) // 2
    return structs.replace(row, body=row.body[:middle] + bytes([row.body[middle] ^ 1]) + row.body[middle + 1 :])


def zeros(row: SnapshotRow, _story: Story) -> SnapshotRow:
    return structs.replace(row, body=bytes(len(row.body)))


def moved(row: SnapshotRow, _story: Story) -> SnapshotRow:
    return structs.replace(row, offset=row.offset + 50)


def exchanged(row: SnapshotRow, story: Story) -> SnapshotRow:
    """Give it the body and the hash of another shard."""
    other = next(row_of(one) for one in story.snapshots if one[0] == GROUPS and one[:2] != HOME)
    return structs.replace(row, body=other.body, row_hash=other.row_hash)


def rubbish_without_hash(row: SnapshotRow, _story: Story) -> SnapshotRow:
    return structs.replace(row, body=b"rubbish", row_hash=None)


def cut_without_hash(row: SnapshotRow, _story: Story) -> SnapshotRow:
    return structs.replace(row, body=row.body[:-1], row_hash=None)


DAMAGES: list[Damage] = [flipped, zeros, moved, exchanged, rubbish_without_hash, cut_without_hash]


def damaged_newest(tmp_path: Path, damage: Damage) -> SnapshotRow:
    """Write tables in which the newest snapshot of the shard of `billing` is damaged; return the damaged row."""
    story = a_day()
    [_, newest] = of(story)
    bad = damage(newest, story)
    index = next(n for n, row in enumerate(story.snapshots) if row_of(row) == newest)
    story.snapshots[index] = (*structs.astuple(bad)[:6], bytearray(bad.body), bad.row_hash)
    write_tables(tmp_path, story)
    return bad


def differing(expected: Sequence[Shard], found: Sequence[Shard]) -> list[str]:
    """Return the parts in which the states of shards differ; the first moment of signers is not known to a story."""
    parts = [differences(one.topic, one.body(), other.body()) for one, other in zip(expected, found, strict=True)]
    return [part for its in parts for part in its if part != "signers"]


@pytest.fixture(autouse=True)
def nothing_was_warned_of(monkeypatch):
    monkeypatch.setattr(stored_snapshots, "_warned", set())


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_snapshot_is_named_and_the_one_before_it_is_used(tmp_path, caplog, damage):
    """In the disaster that needs it, a damaged state must neither be believed nor end in a traceback."""
    write_tables(tmp_path / "sound", a_day())
    bad = damaged_newest(tmp_path / "damaged", damage)
    [former, _] = of(a_day())

    with duck_ledger(tmp_path / "sound") as ledger:
        expected = shards_of(ledger, PARTITIONS)
    with caplog.at_level(logging.WARNING), duck_ledger(tmp_path / "damaged") as ledger:
        found = shards_of(ledger, PARTITIONS)
        steps_of(ledger)
    snapshots = newest_snapshots(tmp_path / "damaged")

    assert differing(expected, found) == []
    assert snapshots[HOME].offset == former.offset
    assert [one.name for one in caplog.records] == ["wakeroll.snapshots"], "one warning, however many read it"
    text = caplog.records[0].getMessage()
    assert text.startswith(
        f"the snapshot of groups-{HOME[1]} at offset {bad.offset}, era 1 is damaged in the table snapshots: "
    )


def test_the_page_shows_the_same_with_a_damaged_snapshot(tmp_path):
    """The slider and `serve`'s start read the same snapshots."""
    write_tables(tmp_path / "sound", a_day())
    damaged_newest(tmp_path / "damaged", flipped)

    sound, other = (read_ledger(tmp_path / name, Topics(), PARTITIONS) for name in ("sound", "damaged"))

    for group_id in ("audit", "billing"):
        views = [model.group_view(group_id) for model in (sound, other)]
        assert views[0] is not None
        assert [one.members for one in views] == [views[0].members] * 2
        assert [[(row.name, row.owner, row.lag_messages) for row in one.queues] for one in views] == [
            [(row.name, row.owner, row.lag_messages) for row in views[0].queues]
        ] * 2


def test_without_an_intact_snapshot_the_log_is_read_from_its_start(tmp_path):
    story = a_day()
    story.snapshots[:] = [(*row[:6], bytearray(b"rubbish"), row[7]) for row in story.snapshots]
    write_tables(tmp_path / "damaged", story)
    write_tables(tmp_path / "sound", a_day())

    with duck_ledger(tmp_path / "damaged") as damaged, duck_ledger(tmp_path / "sound") as sound:
        expected, found = (shards_of(ledger, PARTITIONS) for ledger in (sound, damaged))

    assert differing(expected, found) == []
    assert newest_snapshots(tmp_path / "damaged") == {}


def test_snapshots_of_an_earlier_release_have_no_hash_and_are_read(tmp_path, caplog):
    story = a_day()
    story.snapshots[:] = [(*row[:7], None) for row in story.snapshots]
    write_tables(tmp_path, story)

    with duck_ledger(tmp_path) as ledger:
        newest = {key.place: key.offset for key in newest_of(snapshot_keys(ledger))}

    assert {place: one.offset for place, one in newest_snapshots(tmp_path).items()} == newest
    assert caplog.records == []


def test_each_column_of_a_snapshot_is_in_its_hash():
    row = of(a_day())[0]
    others = [
        structs.replace(row, topic="wakeroll.queues"),
        structs.replace(row, partition=row.partition + 1),
        structs.replace(row, offset=row.offset + 1),
        structs.replace(row, era=2),
        structs.replace(row, version=row.version + 1),
        structs.replace(row, at_ms=row.at_ms + 1),
        structs.replace(row, body=row.body + b"\0"),
    ]

    assert proven(row) == row
    assert len({hash_of(one) for one in (row, *others)}) == 8
    assert [bool(problem_in(one)) for one in (row, *others)] == [False, *[True] * 7]


def test_the_hash_is_what_the_documentation_says():
    """Anybody can compute it: a line per column, and the body."""
    row = SnapshotRow(topic="t", partition=1, offset=3, era=2, version=4, at_ms=5, body=struct.pack("3B", 1, 2, 3))

    assert hash_of(row) == "6212ec8fbc2dabe913d6a8e31437a6c2ba39df70325fcb75089616766392da16"


def test_a_state_without_hash_of_another_era_is_refused():
    row = structs.replace(of(a_day())[0], era=2, row_hash=None)

    assert problem_in(row) == "its state is of era 1, and it has no hash"


def test_states_that_differ_name_the_parts():
    row = of(a_day())[1]
    shard = Shard(*HOME, PARTITIONS, row.body)
    other = of(a_day())[0].body

    assert differences(GROUPS, row.body, shard.body()) == []
    found = differences(GROUPS, row.body, other)
    assert {"offset", "seq", "clock", "group billing"} <= set(found)
    assert differences(GROUPS, b"rubbish", other)[0].startswith("the state cannot be decoded")


def changed(body: bytes, group_id: str, change: Callable[[Group], None]) -> bytes:
    """Return an encoded state in which one group is changed."""
    state = decode_state(body)
    group = MACHINES["groups"].decode(state.entities[group_id])
    change(group)
    state.entities[group_id] = MACHINES["groups"].encode(group)
    return encode_state(state)


def joined_later(group: Group) -> None:
    for member in group.members.values():
        member.joined_ms += 1


def joined_at_an_unknown_time(group: Group) -> None:
    for member in group.members.values():
        member.joined_ms = -1


def received_otherwise(group: Group) -> None:
    group.received = {queue: structs.replace(one, how="timeout") for queue, one in group.received.items()}


def received_in_an_unknown_way(group: Group) -> None:
    group.received = {}


def moved_more(group: Group) -> None:
    group.rebalanced = structs.replace(group.rebalanced, moved=1_000)


def rebalanced_at_an_unknown_time(group: Group) -> None:
    group.rebalanced = None


@pytest.mark.parametrize("change", [joined_later, received_otherwise, moved_more], ids=lambda change: change.__name__)
def test_another_fact_for_questions_is_a_difference(change):
    body = of(a_day())[-1].body

    assert differences(GROUPS, body, changed(body, "billing", change)) == ["group billing"]


@pytest.mark.parametrize(
    "change",
    [joined_at_an_unknown_time, received_in_an_unknown_way, rebalanced_at_an_unknown_time],
    ids=lambda change: change.__name__,
)
def test_a_fact_for_questions_that_one_state_lacks_is_no_difference(change):
    """A state of an earlier release lacks when members joined and how queues came to their owners."""
    body = of(a_day())[-1].body
    lacking = changed(body, "billing", change)

    assert lacking != body
    assert differences(GROUPS, body, lacking) == differences(GROUPS, lacking, body) == []
