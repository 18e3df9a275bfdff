"""Every program in `examples/` does what it says, on a real broker."""

import json
import re
import socketserver
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Message

from tests.support.systems.coordinator_thread import Coordinator
from tests.support.waiting import wait_until
from wakeroll import Consumer, DeadLetters
from wakeroll.connection import Connection
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.ports import free_ports

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
    thread.topic(2, "orders")
    yield thread
    thread.stop()


def started(name: str, log: Path, *arguments: str) -> Child:
    """Start an example."""
    child = Child(name, [sys.executable, "-u", str(EXAMPLES / f"{name}.py"), *arguments], log=log, folder=ROOT)
    child.start()
    return child


def own_tests_of(name: str) -> str:
    """Run the tests of an example; return the end of the output."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / f"{name}.py")]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert answer.returncode == 0, answer.stdout
    return answer.stdout.splitlines()[-1]


def rows_of(path: Path, query: str) -> list[tuple]:
    """Return the rows of a query; none as long as there is no such table."""
    with closing(sqlite3.connect(path, timeout=60)) as database:
        try:
            return database.execute(query).fetchall()
        except sqlite3.OperationalError:
            return []


def produce(plane: Coordinator, topic: str, *messages: tuple[str | None, str]) -> None:
    """Append messages, each a key and a value."""
    producer = plane.connection.producer()
    for key, value in messages:
        producer.produce(topic, value.encode(), key=key)
    assert producer.flush(PATIENCE_S) == 0


def test_every_example_is_run_by_a_test():
    source = Path(__file__).read_text(encoding="utf-8")

    calls = ('started("{}"', 'own_tests_of("{}"')
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    elsewhere = {path.stem.removeprefix("test_") for path in (Path(__file__).parents[1] / "sql").glob("test_own_*.py")}
    assert {name for name in names - elsewhere if not any(call.format(name) in source for call in calls)} == set()


@pytest.mark.operate
def test_killed_again_and_again_every_order_is_added_once(plane, tmp_path, monkeypatch):
    """The kills fall between two commits, so that messages are delivered again: the sums must not show it."""
    monkeypatch.setenv("WAKEROLL_LAST_WILL", "off")  # or nothing would be delivered again
    plane.configure("sums", session_timeout_ms=10_000, heartbeat_ms=500)
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


def test_a_batch_is_stored_and_names_the_orders_that_it_cannot_store(plane, tmp_path):
    """A parsed order of an unknown customer waits; nonsense is a dead letter. The others of the batch are stored."""
    plane.topic(2, "archive-orders")
    path = tmp_path / "orders.db"
    orders = [("k", json.dumps({"id": number, "customer": f"c{number % 3}", "amount": 5})) for number in range(30)]
    produce(plane, "archive-orders", *orders, ("k", "?"), ("k", "[]"))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("create table customers (name text primary key)")
        database.executemany("insert into customers values (?)", [("c0",), ("c1",)])
    child = started("batch", tmp_path / "batch.log", plane.connection.bootstrap, "archive-orders", str(path))
    wait_until(lambda: len(rows_of(path, "select id from orders")) == 20, "known orders", state=child.log_tail)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("insert into customers values ('c2')")
    wait_until(lambda: len(rows_of(path, "select id from orders")) == 30, "all orders", state=child.log_tail)
    with DeadLetters("archive", plane.connection.bootstrap) as letters:
        values = wait_until(lambda: [one.message.value() for one in letters.open()], "dead letters")
    child.stop()

    assert sorted(values) == [b"?", b"[]"]


def test_an_async_handler_sends_a_hundred_requests_at_once_and_ends_on_a_signal(plane, tmp_path):
    """The service answers only when 50 requests wait; it refuses the first attempt of one message."""
    plane.topic(2, "mail-orders")
    together, refused, seen = threading.Barrier(50), threading.Event(), []

    class Service(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline().strip()
            if not refused.is_set():
                together.wait(PATIENCE_S)
            if line == b"7" and not refused.is_set():
                refused.set()
                self.wfile.write(b"busy\n")
                return
            seen.append(int(line))
            self.wfile.write(b"ok\n")

    class Server(socketserver.ThreadingTCPServer):
        request_queue_size = 128
        daemon_threads = True

    produce(plane, "mail-orders", *((None, str(number)) for number in range(50)))
    with Server(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = [str(part) for part in server.server_address]
        log = tmp_path / "mail.log"
        child = started("async_worker", log, plane.connection.bootstrap, "mail-orders", *address)
        wait_until(lambda: sorted(set(seen)) == list(range(50)), "all are sent", state=child.log_tail)
        child.stop()
        server.shutdown()

    assert "attempt 1 failed: the service answers b'busy" in log.read_text()
    assert "left the group" in log.read_text()


def test_in_order_the_events_of_an_account_wait_for_a_failed_one(plane, tmp_path):
    """Two members share the queues. What a failed event waits for comes from outside: an open account."""
    plane.topic(2, "account-events")
    path = tmp_path / "accounts.db"
    names = [f"account-{number}" for number in range(20)]
    for state in ("open", "blocked", "open", "closed"):
        produce(plane, "account-events", *((name, state) for name in names))
    produce(plane, "account-events", ("late", "blocked"), ("late", "closed"))
    members = [
        started("in_order", tmp_path / f"{name}.log", plane.connection.bootstrap, str(path)) for name in ("a", "b")
    ]
    wait_until(
        lambda: rows_of(path, "select count(*) from accounts where state = 'closed'") == [(20,)],
        "all accounts are closed",
        state=members[0].log_tail,
    )
    assert rows_of(path, "select state from accounts where name = 'late'") == []
    with closing(sqlite3.connect(path, timeout=60)) as database, database:
        database.execute("insert into accounts values ('late', 'open')")
    wait_until(
        lambda: rows_of(path, "select state from accounts where name = 'late'") == [("closed",)],
        "the failed events are repeated",
        state=members[0].log_tail,
    )
    for member in members:
        member.stop()

    history = rows_of(
        path, "select name, group_concat(state) from (select * from history order by rowid) group by name"
    )
    assert dict(history) == dict.fromkeys(names, "open,blocked,open,closed") | {"late": "blocked,closed"}


def test_dead_letters_are_sent_again_or_dropped_by_their_errors(plane, tmp_path):
    topic = plane.topic(1, "shipments")
    fails = {b"slow": TimeoutError("no answer"), b"?": json.JSONDecodeError("no JSON", "?", 0), b"odd": KeyError("x")}
    produce(plane, topic, *((None, value) for value in ("slow", "?", "odd", "fine", "slow")))
    processed: list[bytes | None] = []
    bootstrap = plane.connection.bootstrap

    def handle(messages: list[Message]) -> None:
        for message in messages:
            if message.value() in fails:
                raise fails[message.value()]
            processed.append(message.value())

    def errors() -> list[str]:
        with DeadLetters("shipping", bootstrap) as letters:
            return sorted(one.origin.error.partition(":")[0] for one in letters.open())

    with Consumer("shipping", [topic], bootstrap, consume_from="first") as consumer:
        running = threading.Thread(
            target=consumer.run, args=(handle,), kwargs={"batch_size": 1, "max_retries": 0}, daemon=True
        )
        running.start()
        wait_until(lambda: len(errors()) == 4, "dead letters", state=errors)
        del fails[b"slow"]
        child = started("dead_letters", tmp_path / "dlq.log", bootstrap, "shipping", str(tmp_path / "dropped.jsonl"))
        wait_until(lambda: processed.count(b"slow") == 2, "they are sent again", state=child.log_tail)
        wait_until(lambda: not child.is_running, "the script has ended", state=child.log_tail)
        consumer.stop()
        running.join(PATIENCE_S)

    log = (tmp_path / "dlq.log").read_text()
    assert "sent again: 2" in log
    assert "dropped: 1" in log
    assert errors() == ["KeyError"]
    [saved] = [json.loads(line) for line in (tmp_path / "dropped.jsonl").read_text().splitlines()]
    assert saved == {"topic": topic, "offset": 1, "value": "?", "error": "JSONDecodeError"}


def test_the_tests_of_a_handler_pass_without_a_broker():
    assert re.match(r"4 passed in ", own_tests_of("handler_with_tests"))


def test_a_sleeping_worker_ends_by_itself_and_goes_on_where_it_was(plane, tmp_path):
    """Twice, with a message each time: the second one must not receive the first message again."""
    topic, log = plane.topic(1), tmp_path / "worker.log"
    for number in range(2):
        produce(plane, topic, (None, f"order {number}"))
        child = started("sleeping_worker", log, plane.connection.bootstrap, topic)
        wait_until(lambda child=child: not child.is_running, "the worker has ended", state=child.log_tail)
        wait_until(lambda: plane.members("billing") == [], "the worker has left")

    assert re.findall(r"at (\d+): b'(.*)'", log.read_text()) == [("0", "order 0"), ("1", "order 1")]


def test_a_web_service_consumes_while_it_serves(plane, tmp_path):
    """It leaves the group in good order when it is stopped, so another one has its queues at once."""
    topic, [port] = plane.topic(2), free_ports(1)
    produce(plane, topic, ("mia", "3"), ("tom", "4"), ("mia", "5"))
    child = started("fastapi_worker", tmp_path / "service.log", plane.connection.bootstrap, topic, str(port))

    def answer(path: str) -> object:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as response:
                return json.load(response)
        except OSError:
            return None

    try:
        wait_until(lambda: answer("/health") == "consuming", "it serves", state=child.log_tail)
        wait_until(lambda: (answer("/sums/mia"), answer("/sums/tom")) == (8, 4), "it consumes", state=child.log_tail)
    finally:
        child.stop()
    wait_until(lambda: plane.offsets("sums-service", topic) and plane.members("sums-service") == [], "it has left")
    assert sum(plane.offsets("sums-service", topic).values()) == 3
