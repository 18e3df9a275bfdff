"""Small files in a local folder: atomic writes, and writes under a condition.  In S3: `tests/operate`."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.place import Place


@pytest.fixture
def folder(tmp_path) -> Place:
    return Place.of(tmp_path / "a folder")


def test_a_file_is_written_read_and_deleted(folder):
    file = folder.child("deep", "file")
    missing = small_files.read(file)
    small_files.write(file, b"1")
    small_files.write(file, b"2")

    assert (missing, small_files.read(file), small_files.exists(file)) == (None, b"2", True)
    assert (small_files.names(folder), small_files.names(folder / "deep")) == (["deep"], ["file"])
    small_files.delete(file)
    small_files.delete(file)
    assert (small_files.exists(file), small_files.names(folder / "nothing")) == (False, [])


def test_of_many_writers_one_creates_a_file(folder):
    """A lease that two processes believe to hold is none."""
    with ThreadPoolExecutor(8) as threads:
        created = list(threads.map(lambda n: small_files.create(folder / "lease", str(n).encode()), range(32)))

    [winner] = [number for number, is_created in enumerate(created) if is_created]
    assert small_files.read(folder / "lease") == str(winner).encode()


def test_a_folder_is_moved_and_deleted(folder):
    small_files.write(folder.child("from", "commits", "0"), b"0")
    small_files.move_folder(folder / "from", folder / "to")
    small_files.move_folder(folder / "from", folder / "other")

    assert small_files.names(folder) == ["to"]
    small_files.delete_folder(folder / "to")
    assert small_files.names(folder) == []


def test_a_store_without_a_client_is_one_sentence():
    with pytest.raises(InvalidUsage, match=r"hdfs://.*it reads checkpoints and tables in local folders, s3a://"):
        small_files.read(Place.of("hdfs://name/a"))
