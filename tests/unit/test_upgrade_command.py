"""The `upgrade` command before it asks a broker, and what `doctor` says about levels."""

import os

import pytest

from wakeroll_model.feature_levels import NEWEST, OFFERED
from wakeroll_pipeline.cli.doctor_command import level_check
from wakeroll_pipeline.runtime.run_status import Status, read_status, running, write_status
from wakeroll_pipeline.settings import Settings

OF_ALL = {"groups-0": 1, "groups-1": 1, "queues-0": 1}


def status(pid: int = 0, **more: object) -> Status:
    return Status(pid or os.getpid(), "host:9092", 0, 0, {}, **more)


@pytest.fixture
def ended() -> int:
    """The pid of a process that has ended."""
    pid = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(pid, 0)
    return pid


def test_a_level_that_this_release_does_not_know_is_refused(wakeroll):
    code, _, complaint = wakeroll("upgrade", "--level", str(OFFERED + 1), "--bootstrap", "127.0.0.1:1")

    assert code == 2
    assert f"--level is {OFFERED + 1}, but this release offers levels 1 to {OFFERED}" in complaint


def test_an_older_coordinator_is_named_before_anything_is_appended(wakeroll, tmp_path):
    """It would decide by the old rules after the record, so its decisions would differ from those of the others."""
    folder = Settings(home=str(tmp_path)).work_folder
    write_status(folder, status(newest_level=NEWEST))
    write_status(folder, status(), "b")

    code, _, complaint = wakeroll("upgrade", "--execute", "--home", str(tmp_path), "--bootstrap", "127.0.0.1:1")

    assert code == 2
    assert f"the replica 'b' (process {os.getpid()}) is of an older release, which knows feature levels up to 1" in (
        complaint
    )


def test_a_status_file_of_release_0_1_means_level_1(tmp_path):
    """It has neither the levels of the shards nor the newest one."""
    tmp_path.joinpath("run.json").write_text(
        f'{{"pid":{os.getpid()},"bootstrap":"host:9092","started_ms":0,"told_ms":0,"queries":{{}}}}'
    )

    found = read_status(tmp_path)

    assert found is not None
    assert (found.newest_level, found.shard_levels) == (1, {})
    assert list(running(tmp_path)) == [""]


def test_neither_ended_processes_nor_those_that_only_write_tables_are_running_coordinators(tmp_path, ended):
    write_status(tmp_path, status(ended))
    write_status(tmp_path, status(decides=False), "writer")
    write_status(tmp_path, status(), "a")

    assert list(running(tmp_path)) == ["a"]


@pytest.mark.parametrize(
    ("found", "newest", "ok", "told"),
    [
        (OF_ALL, NEWEST, True, f"3 shards are at feature level 1; the process knows levels up to {NEWEST}"),
        (OF_ALL | {"groups-0": 2}, NEWEST, True, "3 shards are at feature level 1 to 2"),
        (OF_ALL, 1, False, "the process knows levels up to 1"),
        ({}, NEWEST, True, "no shard had a batch yet"),
    ],
    ids=["not raised", "raised in part", "older process", "no batch"],
)
def test_doctor_tells_levels_and_what_to_do(found, newest, ok, told):
    check = level_check(found, newest)

    assert (check.ok, told in check.found) == (ok, True)
    assert ("wakeroll upgrade" in check.fix) == (ok and found != {})
    assert ("restart it" in check.fix) == (not ok)
