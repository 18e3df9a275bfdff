"""Every program in `examples/` does what it says, on a real broker."""

import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.kafka.control_topics import ensure_topics
from pipeline.local.child_process import Child
from tests.support.systems.coordinator_thread import Coordinator
from tests.support.waiting import wait_until
from wakeroll.connection import Connection

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def plane(broker) -> Iterator[Coordinator]:
    """A control plane whose topics have their usual names, as the examples expect."""
    connection = Connection(broker.bootstrap)
    ensure_topics(connection)
    thread = Coordinator(connection)
    thread.start()
    yield thread
    thread.stop()


def started(name: str, log: Path, *arguments: str) -> Child:
    """Start an example."""
    child = Child(name, [sys.executable, "-u", str(EXAMPLES / f"{name}.py"), *arguments], log=log, folder=ROOT)
    child.start()
    return child


def test_every_example_is_run_by_a_test():
    source = Path(__file__).read_text(encoding="utf-8")

    assert [path.stem for path in EXAMPLES.glob("*.py") if f'started("{path.stem}"' not in source] == []


def test_killed_again_and_again_every_order_is_added_once(plane, tmp_path):
    """The kills fall between two commits, so that messages are delivered again: the sums must not show it."""
    plane.configure("sums", session_timeout_ms=10_000, heartbeat_ms=500)
    plane.topic(2, "orders")
    producer = plane.connection.producer()
    log, path = tmp_path / "sums.log", tmp_path / "sums.db"
    expected: dict[str, int] = {}

    def order(count: int) -> None:
        for number in range(count):
            customer = f"customer-{number % 7}"
            producer.produce("orders", str(number).encode(), key=customer.encode())
            expected[customer] = expected.get(customer, 0) + number
        assert producer.flush(PATIENCE_S) == 0

    def sums() -> dict[str, int]:
        with closing(sqlite3.connect(path, timeout=60)) as database:
            return dict(database.execute("select customer, amount from sums"))

    def handled() -> int:
        return sum(map(int, re.findall(r"messages: (\d+)", log.read_text()))) if log.exists() else 0

    for _ in range(3):
        before = handled()
        child = started("effects_once", log, plane.connection.bootstrap, str(path))
        order(500)
        wait_until(lambda before=before: handled() > before + 100, "orders are being added", state=child.log_tail)
        child.kill()
    survivor = started("effects_once", log, plane.connection.bootstrap, str(path))
    wait_until(lambda: sums() == expected, "all orders are added", state=survivor.log_tail)
    survivor.stop()

    repeated = sum(map(int, re.findall(r"repeated: (\d+)", log.read_text())))
    assert repeated > 0, "no message was delivered twice, so the test shows nothing"
    assert sums() == expected
