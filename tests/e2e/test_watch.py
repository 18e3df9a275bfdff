"""`watch`, and the commands that answer live from Kafka, on a real broker with a real coordinator."""

import json
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise

import msgspec
import pytest

from tests.support.delta_tables import write_tables
from tests.support.ledgers import a_day
from tests.support.systems.coordinator_thread import plane_of_its_own
from tests.support.systems.decision_sink import Sink
from tests.support.terminal_window import TerminalWindow
from tests.support.waiting import wait_until
from wakeroll import Consumer, InvalidUsage, NotReachable
from wakeroll_model.events import Pull
from wakeroll_model.queue import Queue
from wakeroll_pipeline.live.followed_brokers import followed_brokers
from wakeroll_pipeline.settings import Settings

pytestmark = pytest.mark.e2e

ESCAPE = "\x1b"


@pytest.fixture
def join(coordinator, sink: Sink, group_id: str) -> Iterator[Callable[..., Consumer]]:
    """Starts members of the test's group, each polled by a thread of its own, and stops them."""
    stopping, running = threading.Event(), []
    assert sink

    def start(topic: str, client_id: str) -> Consumer:
        connection = coordinator.connection
        consumer = Consumer(
            group_id,
            [topic],
            connection.bootstrap,
            client_id=client_id,
            prefix=connection.topics.prefix,
            consume_from="first",
        )

        def poll() -> None:
            with suppress(InvalidUsage):  # a test may close it
                while not stopping.is_set():
                    consumer.poll(0.1)

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        running.append((consumer, thread))
        return consumer

    yield start
    stopping.set()
    for consumer, thread in running:
        thread.join()
        consumer.close()


@pytest.fixture
def options(coordinator, tmp_path) -> list[str]:
    connection = coordinator.connection
    return ["--bootstrap", connection.bootstrap, "--prefix", connection.topics.prefix, "--home", str(tmp_path)]


@contextmanager
def watching(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str], list[str]]]:
    """Run `watch` with pipes; provide the process, and the lines of both of its outputs as they come."""
    command = [sys.executable, "-m", "wakeroll_pipeline.cli", "watch", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said: list[str] = []
    complained: list[str] = []
    readers = [
        threading.Thread(target=lines.extend, args=(stream,))
        for stream, lines in ((process.stdout, said), (process.stderr, complained))
    ]
    for reader in readers:
        reader.start()
    try:
        yield process, said, complained
    finally:
        process.kill()
        for reader in readers:
            reader.join()
        process.wait()


def test_a_terminal_follows_joins_and_sizes_and_is_left_as_it_was(coordinator, join, group_id, options):
    topic = coordinator.topic(4)
    window = TerminalWindow([sys.executable, "-m", "wakeroll_pipeline.cli", "watch", group_id, *options])
    try:
        window.wait_for(b"no group")
        assert b"\x1b[?1049h" in window.written  # the alternate screen

        join(topic, "first-member")
        window.wait_for(b"first-member")
        join(topic, "second-member")
        window.wait_for(b"second-member")
        window.resize(24, 60)
        # Lines are filled with blanks to the width of the window.
        wait_until(lambda: longest_line(window.read()) == 60, "the screen has the new width")
        window.resize(10, 100)
        wait_until(lambda: longest_line(window.read()) == 100, "the screen has the new width")

        window.type(b"\x03")
        assert window.wait_for_end() == 0
        text = window.written.decode()
        assert "Traceback" not in text
        begin, end = text.rindex("\x1b[?1049l"), text.rindex("\x1b[?25h")
        assert end > text.rindex("\x1b[?25l")  # the cursor is shown again
        assert group_id in text[begin:]  # the last state stays
    finally:
        window.close()


def longest_line(written: bytes) -> int:
    """Return the width of the last complete screen."""
    screen = written.decode(errors="replace").split("\x1b[H")[-2]
    return max(len(line) for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen).splitlines())


def test_a_pipe_gets_the_state_once_per_change_without_control_codes(coordinator, join, group_id, options):
    topic = coordinator.topic(4)
    join(topic, "c1")
    with watching(group_id, *options) as (process, said, complained):
        wait_until(lambda: any(line.startswith("c1 ") for line in said), "the member is shown", state=said.copy)
        join(topic, "c2")
        wait_until(lambda: any(re.match(r"\S+-\d +c2 ", line) for line in said), "it owns a queue", state=said.copy)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert ESCAPE not in "".join(said)
    assert complained == []


def test_a_group_that_does_not_exist_yet_is_awaited(coordinator, join, group_id, options):
    topic = coordinator.topic(2)
    with watching(group_id, *options) as (_, said, complained):
        wait_until(lambda: complained, "it is told")
        assert complained[0].startswith(f"no group '{group_id}'")
        join(topic, "c1")
        wait_until(lambda: any(line.startswith("c1 ") for line in said), "the member is shown")


def test_json_has_one_document_per_change(coordinator, join, group_id, options):
    topic = coordinator.topic(4)
    join(topic, "c1")
    with watching("--json", *options) as (process, said, _):
        wait_until(lambda: members_of(said, group_id) == 1, "the first member is counted")
        join(topic, "c2")
        wait_until(lambda: members_of(said, group_id) == 2, "the second member is counted")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    documents = [json.loads(line) for line in said]
    contents = [(one["groups"], one["health"]["state"], kinds_of(one)) for one in documents]
    assert all(before != after for before, after in pairwise(contents))


def kinds_of(document: dict) -> list[str]:
    return [one["kind"] for one in document["health"]["notices"]]


@pytest.mark.operate
def test_an_outage_is_told_and_the_view_continues(tmp_path):
    """Nobody starts `watch` again because a broker was restarted."""
    with plane_of_its_own(tmp_path / "broker") as (broker, coordinator):
        coordinator.configure("first")
        options = ["--bootstrap", broker.bootstrap, "--home", str(tmp_path)]
        with watching("--json", *options) as (process, said, _):
            wait_until(lambda: names_of(said) == ["first"], "the group is shown")
            broker.kill()
            wait_until(lambda: "broker-gone" in kinds_of(json.loads(said[-1])), "the outage is told")
            assert names_of(said) == ["first"]

            broker.start()
            wait_until(lambda: "broker-gone" not in kinds_of(json.loads(said[-1])), "the outage is over")
            coordinator.configure("second")
            wait_until(lambda: names_of(said) == ["first", "second"], "the new group is shown")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0


def names_of(said: list[str]) -> list[str]:
    return [one["group_id"] for one in json.loads(said[-1])["groups"]] if said else []


def members_of(said: list[str], group_id: str) -> int:
    groups = json.loads(said[-1])["groups"] if said else []
    return next((one["members"] for one in groups if one["group_id"] == group_id), 0)


def test_a_pipe_whose_reader_has_ended_is_no_error(coordinator, join, options):
    topic = coordinator.topic(4)
    join(topic, "c1")
    command = [sys.executable, "-m", "wakeroll_pipeline.cli", "watch", "--json", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        join(topic, "c2")
        process.wait(120)
        assert process.stderr.read() == ""


def test_once_prints_one_state(coordinator, join, group_id, options, wakeroll):
    topic = coordinator.topic(2)
    join(topic, "c1")
    wait_until(lambda: coordinator.members(group_id) == ["c1"], "the member has joined")

    code, said, complaint = wakeroll("watch", group_id, "--once", *options)

    assert (code, complaint) == (0, "")
    assert f"{group_id}  healthy" in said
    assert said.startswith("live ")


def test_an_unknown_group_is_a_sentence(options, sink, wakeroll):
    assert sink
    for command in (["watch", "--once"], ["groups"], ["describe"], ["lag"]):
        code, said, complaint = wakeroll(*command, "nobody", *options)

        assert (code, said) == (2, "")
        assert complaint.startswith("wakeroll: no group 'nobody'")


def test_state_reads_the_members_from_kafka(coordinator, join, group_id, options, wakeroll):
    """Without tables: from the start of the log."""
    topic = coordinator.topic(2)
    join(topic, "c1")
    wait_until(lambda: coordinator.members(group_id) == ["c1"], "the member has joined")

    code, said, _ = wakeroll("state", "--json", *options)
    answer = json.loads(said)

    assert code == 0
    [group] = [one for one in answer["groups"] if one["group_id"] == group_id]
    assert [one["client_id"] for one in group["members"]] == ["c1"]
    assert answer["source"] == "live"
    assert re.search(r"^live  .* UTC  tick \d+ ms old$", wakeroll("state", *options)[1], re.MULTILINE)


def test_a_broker_that_is_found_by_itself_does_not_replace_the_tables(tmp_path, wakeroll, monkeypatch):
    """`state` answers from the tables unless the user names a broker, whether `run` is active in the home or not."""
    write_tables(tmp_path / "warehouse", a_day())

    code, said, complaint = wakeroll("state", "--json", "--home", str(tmp_path))

    assert (code, complaint) == (0, "")
    assert json.loads(said)["source"] == "ledger"
    monkeypatch.setenv("WAKEROLL_BOOTSTRAP", "nowhere")
    assert wakeroll("state", "--home", str(tmp_path)) == (
        2,
        "",
        "wakeroll: bootstrap is 'nowhere'; it must be host:port[,host:port]\n",
    )


def test_lag_counts_from_the_ends_that_the_brokers_report(coordinator, join, group_id, options, wakeroll):
    """The coordinator of this test reports no ends at all."""
    topic = coordinator.topic(2)
    coordinator.produce(topic, 0, 5)
    consumer = join(topic, "c1")
    wait_until(lambda: coordinator.offsets(group_id, topic).get(0) == 5, "the messages are committed")
    consumer.close()
    coordinator.produce(topic, 0, 7)

    code, said, _ = wakeroll("lag", group_id, "--json", *options)
    [row] = [one for one in json.loads(said)["queues"] if one["queue_id"] == 0]

    assert code == 0
    assert (row["committed_offset"], row["end_offset"], row["lag_messages"]) == (5, 12, 7)
    [total] = [
        one for one in json.loads(wakeroll("lag", "--json", *options)[1])["groups"] if one["group_id"] == group_id
    ]
    assert total["lag_messages"] == 7
    assert "lag of the groups" in wakeroll("lag", *options)[1]


def test_describe_shows_pulls_that_are_held_now(coordinator, join, group_id, options, wakeroll):
    topic = coordinator.topic(1)
    join(topic, "c1")
    wait_until(lambda: coordinator.members(group_id) == ["c1"], "the member has joined")
    pull_for(coordinator, group_id, Queue(topic, "", 0))

    code, said, _ = wakeroll("describe", group_id, "--holds", "--json", *options)
    answer = json.loads(said)

    assert code == 0
    assert [(one["queue"], one["client_id"]) for one in answer["holds"]] == [(f"{topic}-0", "c1")]
    assert [one["client_id"] for one in answer["members"]] == ["c1"]
    assert "held for" in wakeroll("describe", group_id, "--holds", *options)[1]


def pull_for(coordinator, group_id: str, queue: Queue) -> None:
    """Send a pull that waits, and wait until the coordinator has it."""
    life = uuid.uuid4().hex
    names = {"group_id": group_id, "client_id": "c1", "instance_id": life}
    pull = Pull(request_id=f"{life}:1", queue=queue, from_offset=0, timeout_ms=600_000, **names)
    producer = coordinator.connection.producer()
    producer.produce(coordinator.connection.topics.queues, msgspec.json.encode(pull), key=queue.key.encode())
    assert producer.flush(60) == 0
    wait_until(lambda: pull in coordinator.heard, "the pull is held")


def test_brokers_that_do_not_answer_are_an_error_with_the_reason(tmp_path):
    settings = Settings(bootstrap="127.0.0.1:1", home=str(tmp_path))

    with (
        followed_brokers(settings) as brokers,
        pytest.raises(NotReachable, match=r"cannot read the log for 5 s; .*127\.0"),
    ):
        brokers.wait_until_current(threading.Event(), patience_s=5)


def test_the_tables_alone_are_shown_with_their_age(tmp_path, wakeroll):
    write_tables(tmp_path / "warehouse", a_day())

    code, said, complaint = wakeroll("watch", "billing", "--home", str(tmp_path))

    assert (code, complaint) == (0, "")
    assert re.search(r"this is the end of the archived log, [\d,]+ d old", said)
    assert "c3" in said
    document = json.loads(wakeroll("watch", "--json", "--home", str(tmp_path))[1])
    assert [one["group_id"] for one in document["groups"]] == ["audit", "billing"]


def test_without_tables_and_brokers_the_error_names_the_remedy(tmp_path, wakeroll):
    code, _, complaint = wakeroll("watch", "--home", str(tmp_path))

    assert code == 2
    assert complaint.startswith(f"wakeroll: no tables in {tmp_path}/warehouse; ")
