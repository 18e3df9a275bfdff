"""Several writers of one store: of a file's creators one succeeds, and no commit to a table replaces another one."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.running_processes import ROOT
from tests.support.systems.s3_server import BUCKET, S3Server
from tests.support.systems.s3_writer import APPENDS, NAMES, WRITERS
from wakeroll_pipeline.ledger.delta_files import open_delta
from wakeroll_pipeline.storage import small_files

pytestmark = pytest.mark.operate


def write_together(store: S3Server, folder: Path, task: str, writers: int) -> list[str]:
    """Let several Spark processes begin a task at the same moment; return the lines that they print."""
    command = [sys.executable, "-m", "tests.support.systems.s3_writer", f"s3a://{BUCKET}/{folder.name}"]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, str(folder / str(number)), task, str(number)],
                    cwd=ROOT,
                    env={**os.environ, **store.environment},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for number in range(writers)
        ]
        for process in processes:
            stack.callback(process.kill)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        outputs = [process.communicate()[0] for process in processes]
    return [line for output in outputs for line in output.splitlines()]


@pytest.fixture
def store(s3: S3Server) -> Iterator[S3Server]:
    """A store whose answers take so long that all writers look before the first one writes."""
    with s3.failing(delay_s=0.1):
        yield s3


def test_of_many_creators_of_a_file_one_succeeds(store, tmp_path):
    """So Spark refuses a second driver that plans a batch with a number that is used, or commits it."""
    lines = write_together(store, tmp_path, "create", writers=1)
    creators = Counter(re.findall(r"^done (\d+)", "\n".join(lines), re.MULTILINE))
    puts = store.seen("PUT", r"/files/file-")

    assert len(lines) == WRITERS * NAMES
    assert creators == {str(number): 1 for number in range(NAMES)}, lines
    assert puts
    assert {one.headers.get("If-None-Match") for one in puts} == {"*"}
    contents = {
        name: small_files.read(store.place(tmp_path.name) / "files" / name)
        for name in small_files.names(store.place(tmp_path.name) / "files")
    }
    told = {f"file-{name}": number.encode() for name, number in re.findall(r"done (\d+) (\d+)", "\n".join(lines))}
    assert contents == told, "each file has the content of the writer that was told so"


def test_what_two_drivers_append_to_a_table_is_there(store, tmp_path, tell):
    """A commit that Delta reports as done must not be replaced by one of another process."""
    lines = write_together(store, tmp_path, "append", writers=2)
    done = {(int(writer), int(number)) for writer, number in re.findall(r"done (\d+) (\d+)", "\n".join(lines))}
    rows = open_delta(store.place(tmp_path.name) / "table").to_pyarrow_table().to_pylist()
    commits = store.seen("PUT", r"/table/_delta_log/\d+\.json")

    assert len(lines) == 2 * APPENDS
    assert {(row["writer"], row["number"]) for row in rows} >= done
    assert len(rows) == len({(row["writer"], row["number"]) for row in rows}), "no row is there twice"
    assert {one.headers.get("If-None-Match") for one in commits} == {"*"}
    refused = sorted(line for line in lines if line.startswith("refused"))
    tell(f"{len(done)} commits, {len(refused)} refused: {refused[:1]}")
