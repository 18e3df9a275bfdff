"""`wakeroll serve` as a process: it starts, refuses what cannot work with a sentence, and ends at a signal."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.control_log import START_MS
from tests.support.delta_tables import write_tables
from tests.support.ledgers import a_day
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command on a port that the system chooses; provide the process and the address that it prints."""
    command = [sys.executable, "-m", "wakeroll_pipeline.cli", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"(http://\S+)/ ", line)
        assert found, f"{line} {process.stderr and process.stderr.read()}"
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


def get(address: str) -> str:
    with urlopen(address, timeout=PATIENCE_S) as answer:
        return answer.read().decode()


def test_the_tables_alone_are_served_until_a_signal(tmp_path):
    write_tables(tmp_path / "home" / "warehouse", a_day())
    with serving("--home", str(tmp_path / "home")) as (process, address):
        groups = wait_until(lambda: json.loads(get(f"{address}/api/groups?sort=name"))["groups"], "the tables are read")
        past = json.loads(get(f"{address}/api/groups?at={START_MS + 3_000}"))["groups"]
        process.send_signal(signal.SIGTERM)

        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert [one["group_id"] for one in past] == ["billing"]
    assert [one["group_id"] for one in groups] == ["audit", "billing"]


def test_tables_that_grow_are_read_again(tmp_path):
    """`record` appends to them while the page is open, on another machine perhaps."""
    warehouse = tmp_path / "home" / "warehouse"
    story = a_day()
    write_tables(warehouse, story)
    begin = len(story.rows)
    with serving("--home", str(tmp_path / "home")) as (_, address):
        wait_until(lambda: json.loads(get(f"{address}/api/groups"))["groups"], "the tables are read")
        story.join("mailing", "m1", "orders")
        story.pass_seconds(3)
        story.rows, story.snapshots = story.rows[begin:], []
        write_tables(warehouse, story)

        wait_until(lambda: "mailing" in get(f"{address}/api/groups"), "the new records are read")


def test_a_port_in_use_is_a_sentence(tmp_path, wakeroll):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, told = wakeroll("serve", "--port", str(port), "--home", str(tmp_path))

    assert code == 2
    assert told == f"wakeroll: cannot listen on http://127.0.0.1:{port}/: Address already in use\n"


def test_nothing_to_show_is_a_sentence(tmp_path: Path, wakeroll):
    code, _, told = wakeroll("serve", "--port", "0", "--home", str(tmp_path))

    assert code == 2
    assert "no broker is named, and there are no tables in" in told


@pytest.mark.parametrize("host", ["no.such.host.invalid", "999.1.1.1", "a b"])
def test_an_address_that_is_none_is_a_sentence(tmp_path, wakeroll, host):
    code, _, told = wakeroll("serve", "--port", "0", "--host", host, "--home", str(tmp_path))

    assert code == 2
    reason = "Name or service not known|Temporary failure in name resolution"  # the second one if no DNS answers
    assert re.fullmatch(rf"wakeroll: cannot listen on http://{re.escape(host)}:0/: ({reason})\n", told)
