"""The files of a checkpoint after a power failure: any of the newest may be empty, cut, or full of zeros."""

import json
import random
import shutil
from pathlib import Path

import pytest

from tests.support.samples import sample
from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.recovery.batch_files import (
    COMMITS,
    PLANS,
    Batches,
    batches_of,
    discard_incomplete,
    numbers,
    planned_offsets,
)
from wakeroll_pipeline.recovery.checkpoint_state import progress_of
from wakeroll_pipeline.recovery.initial_state import adopted_file, read_restore
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage.place import Place

COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
ABOUT = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {"spark.sql.shuffle.partitions": "1"}})
GROUPS = ("wakeroll.groups", 0)


def plan_of(number: int) -> str:
    return f"v1\n{ABOUT}\n" + json.dumps({GROUPS[0]: {"0": 10 * (number + 1)}})


class Checkpoint:
    """A checkpoint of batches, each of 10 records."""

    def __init__(self, folder: Path, committed: int, planned: int) -> None:
        self.path = folder / "coordinate"
        self.place: Place = Place.of(str(self.path))
        self.write("metadata", '{"id":"1"}')
        self.write("sources/0/0", 'v1\n{"wakeroll.groups":{"0":0}}')
        for number in range(planned + 1):
            self.write(f"{PLANS}/{number}", plan_of(number))
        for number in range(committed + 1):
            self.write(f"{COMMITS}/{number}", COMMIT)

    def write(self, name: str, text: str) -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.with_name(f".{file.name}.crc").write_bytes(b"crc\0")

    def damage(self, name: str, rng: random.Random) -> None:
        body = (self.path / name).read_bytes()
        (self.path / name).write_bytes(rng.choice([b"", body[: rng.randrange(len(body) - 1)], bytes(len(body))]))

    def files(self) -> set[str]:
        return {f"{folder}/{number}" for folder in (PLANS, COMMITS) for number in numbers(self.place, folder)}


@pytest.mark.parametrize("seed", sample(range(300), quick=60))
def test_what_is_left_is_the_longest_complete_run_of_batches(tmp_path, seed, caplog):
    """Readers see the same batches before and after; a second start finds nothing to do."""
    rng = random.Random(seed)
    committed = rng.randint(1, 6)
    checkpoint = Checkpoint(tmp_path, committed, committed + rng.randint(0, 1))
    kept = rng.randint(0, committed - 1)
    newer = sorted(name for name in checkpoint.files() if int(name.partition("/")[2]) > kept)
    damaged = rng.sample(newer, rng.randint(0, len(newer))) + rng.sample(["metadata"], rng.randint(0, 1))
    for name in damaged:
        checkpoint.damage(name, rng)
    files = checkpoint.files()
    before, progress = batches_of(checkpoint.place), progress_of(checkpoint.place)
    discard_incomplete(checkpoint.place)

    assert before.committed >= kept
    assert (
        batches_of(checkpoint.place) == Batches(before.committed, min(before.planned, before.committed + 1)) or damaged
    )
    assert batches_of(checkpoint.place).committed == before.committed
    assert progress is not None
    assert progress.next == {GROUPS: 10 * (before.committed + 1)}
    assert numbers(checkpoint.place, COMMITS)[-1] == before.committed
    assert numbers(checkpoint.place, PLANS)[-1] in (before.committed, before.committed + 1)
    for number in numbers(checkpoint.place, PLANS):
        if number >= before.committed - 1:
            assert planned_offsets(checkpoint.place, number) == {GROUPS: 10 * (number + 1)}
    assert {"id"} == json.loads((checkpoint.path / "metadata").read_text()).keys()
    assert bool(caplog.records) == (checkpoint.files() != files or "metadata" in damaged)
    caplog.clear()
    discard_incomplete(checkpoint.place)
    assert not caplog.records


def test_a_query_that_has_committed_nothing_begins_again(tmp_path):
    """Nothing is known of its first plan, which may be the one that the disk did not get."""
    for name in ("sources/0/0", f"{PLANS}/0"):
        checkpoint = Checkpoint(tmp_path / name.replace("/", "-"), -1, 0)
        checkpoint.damage(name, random.Random(0))
        discard_incomplete(checkpoint.place)

        assert progress_of(checkpoint.place) is None
        assert checkpoint.files() == set()


@pytest.mark.parametrize(
    ("query", "step"), [("coordinate", "run `wakeroll restore`"), ("record.17", "writes no row twice")]
)
def test_without_a_complete_batch_the_file_the_reason_and_the_remedy_are_named(tmp_path, query, step):
    checkpoint = Checkpoint(tmp_path, 2, 2)
    for name in checkpoint.files():
        (checkpoint.path / name).write_bytes(b"")
    place = Place.of(str(checkpoint.path.rename(tmp_path / query)))
    with pytest.raises(InvalidUsage) as refused:
        discard_incomplete(place)

    assert f"{place}/{PLANS}/2 is empty" in str(refused.value)
    assert f"move {place} away" in str(refused.value)
    assert step in str(refused.value)
    assert numbers(place, PLANS) == [0, 1, 2]


def test_initial_states_that_are_cut_are_named_with_the_remedy(tmp_path):
    settings = Settings(checkpoints=str(tmp_path))
    file = adopted_file(settings)
    shutil.rmtree(file.parent.path, ignore_errors=True)
    file.path.parent.mkdir()
    for body in (b"", b"\x83\xa7versi", bytes(40)):
        file.path.write_bytes(body)
        with pytest.raises(InvalidUsage, match=r"is empty, cut or changed .*; move .* away and run `wakeroll restore`"):
            read_restore(settings)
