"""The page beside a system on this machine: `up --serve` and `demo --serve`."""

import json
import os
import socket
from urllib.request import urlopen

import pytest

from tests.support.delta_tables import write_tables
from tests.support.ledgers import a_day
from tests.support.waiting import wait_until
from wakeroll_pipeline.local.child_process import ChildFailed
from wakeroll_pipeline.local.local_page import local_page
from wakeroll_pipeline.settings import Settings

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0


def groups_at(address: str) -> list[str]:
    with urlopen(f"{address}api/groups?sort=name", timeout=PATIENCE_S) as answer:
        return [one["group_id"] for one in json.load(answer)["groups"]]


def test_the_tables_are_shown_at_the_address_that_is_provided(tmp_path):
    settings = Settings(home=str(tmp_path / "my home"))
    write_tables(settings.warehouse, a_day())

    with local_page(settings, 0) as page:
        page.check()
        wait_until(lambda: groups_at(page.address) == ["audit", "billing"], "the tables are read")
        port = int(page.address.rstrip("/").rpartition(":")[2])

    with socket.create_server(("127.0.0.1", port)):  # the process has ended
        pass


def test_a_page_that_cannot_be_served_is_an_error_with_its_log(tmp_path):
    with pytest.raises(ChildFailed, match="there are no tables in"), local_page(Settings(home=str(tmp_path)), 0):
        pass


def test_a_page_that_has_ended_is_an_error(tmp_path):
    """`up` looks every half second; otherwise nobody would notice."""
    settings = Settings(home=str(tmp_path))
    write_tables(settings.warehouse, a_day())

    with local_page(settings, 0) as page:
        os.kill(page.pid, 9)
        wait_until(lambda: not page.is_running, "the process has ended")
        with pytest.raises(ChildFailed, match=r"wakeroll serve ended with code -9; see .*serve\.log"):
            page.check()


@pytest.mark.parametrize("command", ["up", "demo"])
def test_a_port_in_use_is_refused_before_anything_is_started(tmp_path, wakeroll, command):
    """The demo would otherwise run for a minute before it fails."""
    home = tmp_path / "home"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said, complaint = wakeroll(command, "--serve", "--serve-port", str(port), "--home", str(home))

    assert (code, said) == (2, "")
    assert complaint == f"wakeroll: cannot listen on http://127.0.0.1:{port}/: Address already in use\n"
    assert not home.exists()
