"""Small files in a real S3 store: conditional writes, moves, and a store that fails."""

import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tests.support.systems.s3_server import S3Server
from wakeroll_pipeline.recovery.checkpoint_state import last_batch, progress_of, set_aside
from wakeroll_pipeline.storage import object_files, small_files
from wakeroll_pipeline.storage.place import Place
from wakeroll_pipeline.storage.small_files import StorageFailed

pytest.importorskip("moto.server", reason="needs the package moto: pip install 'moto[s3,server]'")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server, pytest.MonkeyPatch.context() as environment:
        for name, value in server.environment.items():
            environment.setenv(name, value)
        yield server


@pytest.fixture
def folder(store: S3Server, request: pytest.FixtureRequest) -> Place:
    return store.place(request.node.name)


def test_a_file_is_written_read_and_deleted(folder):
    file = folder.child("deep", "file")
    missing = small_files.read(file)
    small_files.write(file, b"1")
    small_files.write(file, b"2")

    assert (missing, small_files.read(file), small_files.exists(file)) == (None, b"2", True)
    assert (small_files.names(folder), small_files.names(folder / "deep")) == (["deep"], ["file"])
    small_files.delete(file)
    small_files.delete(file)
    assert (small_files.exists(file), small_files.exists(folder), small_files.names(folder)) == (False, False, [])


def test_of_many_writers_one_creates_a_file(folder):
    with ThreadPoolExecutor(8) as threads:
        created = list(threads.map(lambda n: small_files.create(folder / "lease", str(n).encode()), range(32)))

    [winner] = [number for number, is_created in enumerate(created) if is_created]
    assert small_files.read(folder / "lease") == str(winner).encode()


def checkpoint_at(place: Place) -> None:
    for batch in range(3):
        offsets = f'v1\n{{"batchId": {batch}}}\n{{"topic": {{"0": {10 * batch + 10}}}}}'
        small_files.write(place.child("offsets", str(batch)), offsets.encode())
        small_files.write(place.child("commits", str(batch)), b"v1\n{}")
        small_files.write(place.child("state", "0", "0", f"{batch + 1}.changelog"), b"state")
    small_files.delete(place.child("commits", "2"))


def test_a_checkpoint_is_read_and_set_aside(folder):
    checkpoint_at(folder / "coordinate")
    before = progress_of(folder / "coordinate")
    aside = set_aside(folder / "coordinate")

    assert before is not None
    assert (before.next["topic", 0], before.planned["topic", 0]) == (20, 30)
    assert progress_of(folder / "coordinate") is None
    assert progress_of(aside) == before
    assert small_files.names(folder) == ["coordinate.set-aside"]


def test_marks_of_hadoops_folders_do_not_stop_a_move(folder, store):
    """Spark leaves them: empty objects with a slash at the end, which the client does not know by this name."""
    checkpoint_at(folder / "coordinate")
    for name in ("coordinate/", "coordinate/state/"):
        mark = urllib.request.Request(f"{store.endpoint}/{folder.bucket}/{folder.key}/{name}", b"", method="PUT")
        urllib.request.urlopen(mark, timeout=60).close()
    before = progress_of(folder / "coordinate")

    aside = set_aside(folder / "coordinate")

    assert progress_of(folder / "coordinate") is None
    assert progress_of(aside) == before


def test_a_move_that_is_interrupted_leaves_a_checkpoint_that_can_be_used(folder, store, monkeypatch):
    """It is copied first, and loses its last commits first: no batch counts as done whose state is gone."""
    monkeypatch.setattr(object_files, "_RETRY_S", 0)
    object_files._store.cache_clear()
    left = []
    for number in range(20):
        checkpoint = folder / f"checkpoint-{number}"
        checkpoint_at(checkpoint)
        with store.failing(dies_after=number), suppress(StorageFailed):
            small_files.move_folder(checkpoint, folder / f"aside-{number}")
        states = {int(name.partition(".")[0]) for name in small_files.names(checkpoint.child("state", "0", "0"))}
        left.append((last_batch(checkpoint), len(states)))
        assert set(range(1, last_batch(checkpoint) + 2)) <= states, number
    object_files._store.cache_clear()

    assert {(1, 3), (0, 3), (-1, 3), (-1, 0)} <= set(left), "the move was interrupted at each of these points"


def test_a_store_that_refuses_many_requests_is_asked_again(folder, store):
    with store.failing(every_nth=3):
        for number in range(20):
            small_files.write(folder / str(number), b"x")
        assert len(small_files.names(folder)) == 20


def test_a_request_that_was_refused_once_is_no_second_writer(folder, store):
    """503 means that nothing was written: the repeated request creates the file."""
    with store.failing(every_nth=2):
        assert [small_files.create(folder / str(number), b"x") for number in range(10)] == [True] * 10
