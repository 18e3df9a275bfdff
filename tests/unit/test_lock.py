"""Two writers of one table on a local file system lose each other's commits; so there is one."""

import os

import pytest

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.runtime.process_lock import only_one


def test_a_second_process_is_told_who_is_at_work(tmp_path):
    """One sentence that names the process, so that it can be stopped."""
    file = tmp_path / "checkpoints" / "coordinate.lock"
    with only_one(file, "decides from this checkpoint"), pytest.raises(InvalidUsage) as told, only_one(file, "decides"):
        pass

    assert str(told.value) == f"another process ({os.getpid()}) already decides; stop it first"


def test_a_lock_ends_with_its_holder(tmp_path):
    """A crash leaves no lock behind: the file stays, but nobody holds it."""
    file = tmp_path / "lock"
    with only_one(file, "works"):
        pass
    with only_one(file, "works"):
        assert file.exists()


def test_a_standby_is_one_of_record(wakeroll):
    """A second coordinator does not wait: it decides too, as a replica."""
    code, _, complaint = wakeroll("run", "--standby", "--only", "coordinate")

    assert (code, "use --replica instead" in complaint) == (2, True), complaint
