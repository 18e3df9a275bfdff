"""`happened --follow`: from Kafka on a real broker with a real coordinator, and from tables that grow."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.support.delta_tables import write_tables
from tests.support.ledgers import Story
from tests.support.systems.decision_sink import Sink
from tests.support.waiting import wait_until
from wakeroll import Consumer, InvalidUsage
from wakeroll_model.decisions import Membership

pytestmark = pytest.mark.e2e


@contextmanager
def following(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Run `happened --follow` with a pipe; provide the process, and the lines of its output as they come."""
    command = [sys.executable, "-m", "wakeroll_pipeline.cli", "happened", "--follow", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    said: list[str] = []
    reader = threading.Thread(target=said.extend, args=(process.stdout,))
    reader.start()
    try:
        yield process, said
    finally:
        process.kill()
        reader.join()
        process.wait()


@contextmanager
def member(coordinator, group_id: str, topic: str, client_id: str) -> Iterator[Consumer]:
    """Let a member read a topic meanwhile."""
    connection, stopping = coordinator.connection, threading.Event()
    consumer = Consumer(group_id, [topic], connection.bootstrap, client_id=client_id, prefix=connection.topics.prefix)

    def poll() -> None:
        with suppress(InvalidUsage):
            while not stopping.is_set():
                consumer.poll(0.1)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield consumer
    finally:
        stopping.set()
        thread.join()
        consumer.close()


def keys_of(events: list[dict]) -> list[tuple[str, int]]:
    return [(one["shard"], one["seq"]) for one in events]


def test_events_follow_each_other_as_they_are_decided_each_once(coordinator, sink: Sink, group_id, tmp_path, wakeroll):
    """The sink publishes each decision twice, as a coordinator that was killed does."""
    topic = coordinator.topic(4)
    where = ["--bootstrap", coordinator.connection.bootstrap, "--prefix", coordinator.connection.topics.prefix]
    where += ["--home", str(tmp_path)]
    with member(coordinator, group_id, topic, "first"):
        sink.wait_for(Membership, group_id=group_id, client_id="first", change="joined")
        with following(group_id, "--since", "20m", "--json", *where) as (process, said):
            wait_until(lambda: any("first: joined" in line for line in said), "the join before the start is printed")
            wait_until(lambda: any("→ first" in line for line in said), "its first queues are printed")
            with member(coordinator, group_id, topic, "second"):
                wait_until(lambda: any("first → second" in line for line in said), "the hand-over is printed")
            wait_until(lambda: any("second → first" in line for line in said), "the hand-over back is printed")
            sink.wait_until_left("second")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
    followed = [json.loads(line) for line in said]

    code, answer, _ = wakeroll("happened", group_id, "--since", "20m", "--json", *where)
    then = json.loads(answer)["happened"]["events"]

    assert code == 0
    assert len(set(keys_of(followed))) == len(followed)
    assert keys_of(followed) == keys_of(then)[: len(followed)]
    assert followed == then[: len(followed)]


def test_a_group_without_events_is_known_and_another_is_not(coordinator, sink: Sink, group_id, tmp_path, wakeroll):
    where = ["--bootstrap", coordinator.connection.bootstrap, "--prefix", coordinator.connection.topics.prefix]
    where += ["--home", str(tmp_path)]
    with member(coordinator, group_id, coordinator.topic(1), "c1"):
        sink.wait_for(Membership, group_id=group_id, client_id="c1", change="joined")
        quiet = wakeroll("happened", group_id, "--since", "1 ms", *where)
        unknown = wakeroll("happened", f"{group_id}x", *where)

    assert (quiet[0], "Nothing: no change of members" in quiet[1]) == (0, True)
    assert unknown[0] == 2
    assert f"wakeroll: no group '{group_id}x'; did you mean {group_id}" in unknown[2]


def test_tables_that_grow_are_followed(tmp_path):
    """Of a recorder on another machine, only the tables are there."""
    story = Story()
    story.route("orders", 2, ends=10)
    story.join("billing", "c1", "orders")
    story.pass_seconds(2)
    write_tables(tmp_path / "warehouse", story)
    with following("--json", "--home", str(tmp_path)) as (process, said):
        wait_until(lambda: any("c1: joined" in line for line in said), "what was there before is printed")
        before = len(story.rows)
        story.join("billing", "c2", "orders")
        story.pass_seconds(2)
        later = Story()
        later.rows = story.rows[before:]
        write_tables(tmp_path / "warehouse", later)
        wait_until(lambda: any("c1 → c2" in line for line in said), "what was added is printed")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    found = [json.loads(line) for line in said]

    assert len(set(keys_of(found))) == len(found)
