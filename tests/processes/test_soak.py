"""The soak's judge finds what it looks for, and its faults have a known order. tests/operate runs a small soak."""

import random
from collections.abc import Iterator

import pytest

from bench.consumer_logs import ConsumerLogs
from bench.decision_reader import PARTS, part_of, parts_of
from bench.figures import Latency
from bench.machine import this_machine
from bench.soak.soak_faults import FAULTS, in_turn
from bench.soak.soak_processes import SoakProcesses
from bench.soak.soak_run import BENCH, Claim, Occurred, Soak, Window, section
from bench.soak.soak_system import Shape
from tests.support.waiting import wait_until
from wakeroll_model.queue import Queue
from wakeroll_pipeline.local.child_process import Child

S = 1_000_000_000


def logs_with(tmp_path, *lines: tuple[str, int, int, float]) -> ConsumerLogs:
    """Return logs of messages of the queue orders-N, given as client, queue, offset and second."""
    log = tmp_path / "log"
    tmp_path.mkdir(exist_ok=True)
    text = (
        f"{client} orders {queue} {offset} {int(at * S)} {int(at * S) + 10} 5\n" for client, queue, offset, at in lines
    )
    log.write_text("".join(text))
    logs = ConsumerLogs()
    logs.follow([log, tmp_path / "none yet"])
    return logs


def test_a_message_that_nobody_handled_is_missing(tmp_path):
    """A repeated message does not replace it."""
    logs = logs_with(tmp_path, ("a", 0, 0, 1), ("a", 0, 2, 2), ("a", 0, 2, 3), ("a", 1, 0, 3))

    assert logs.missing({("orders", 0): 3, ("orders", 1): 1, ("orders", 2): 7}) == {("orders", 0): 1, ("orders", 2): 7}


def test_repetitions_are_counted_where_they_happen(tmp_path):
    logs = logs_with(tmp_path, ("a", 0, 0, 1), ("a", 0, 1, 2), ("b", 0, 1, 3), ("b", 0, 2, 4), ("b", 0, 1, 5))

    assert logs.repeats() == [3 * S, 5 * S]


def test_a_client_that_goes_on_after_its_queue_was_assigned_to_another_is_a_second_owner(tmp_path):
    """The queue was assigned twice; three changes of the client need three assignments."""
    messages = [("a", 0, 0, 1), ("b", 0, 1, 2), ("a", 0, 2, 3)]

    assert logs_with(tmp_path, *messages).two_owners({("orders", 0, 0): 2}) == [("orders", 0)]
    assert logs_with(tmp_path, *messages).two_owners({("orders", 0, 0): 3}) == []


def test_slices_of_a_queue_have_owners_of_their_own(tmp_path):
    """Two clients that handle messages of one queue in turn are two owners, except where each has slices of it."""
    offsets = {part: [offset for offset in range(100) if part_of(offset) == part] for part in range(PARTS)}
    apart = [("a", 0, offsets[0][0], 1), ("b", 0, offsets[7][0], 2), ("a", 0, offsets[0][1], 3)]
    mixed = [*apart, ("b", 0, offsets[0][2], 4), ("a", 0, offsets[0][3], 5)]
    once = {("orders", 0, part): 1 for part in range(PARTS)}

    assert logs_with(tmp_path / "apart", *apart).two_owners(once, ["orders"]) == []
    assert logs_with(tmp_path / "apart again", *apart).two_owners(once) == [("orders", 0)]
    assert logs_with(tmp_path / "mixed", *mixed).two_owners(once, ["orders"]) == [("orders", 0)]


def test_a_part_of_a_queue_is_assigned_with_each_slice_that_contains_it():
    slices = [Queue("orders", "", 3), Queue("orders", "", 3, 4, 1)]

    assert [[part for _, _, part in parts_of(queue)] for queue in slices] == [list(range(PARTS)), [2, 3]]


def test_a_line_without_its_end_is_read_later(tmp_path):
    """A killed process may leave one."""
    log, logs = tmp_path / "log", ConsumerLogs()
    log.write_text(f"a orders 0 0 {S} {S} 5\na orders 0 1 {S}")
    logs.follow([log])
    assert logs.missing({("orders", 0): 2}) == {("orders", 0): 1}

    log.write_text(f"a orders 0 0 {S} {S} 5\na orders 0 1 {S} {S} 7\n")
    logs.follow([log])

    assert logs.missing({("orders", 0): 2}) == {}


def test_every_fault_occurs_before_one_is_repeated():
    """The same seed repeats the order."""
    turns, again = in_turn(random.Random(7)), in_turn(random.Random(7))
    first = [next(turns) for _ in FAULTS]

    assert set(first) == set(FAULTS)
    assert first == [next(again) for _ in FAULTS]


@pytest.mark.parametrize(("clients", "groups"), [(1, 1), (25, 1), (26, 2), (500, 20)])
def test_groups_grow_in_number_with_the_clients(clients, groups):
    assert len(Shape(clients, 10, 200).groups) == groups


@pytest.fixture
def processes() -> Iterator[SoakProcesses]:
    """Processes that end with the test."""
    running = SoakProcesses()
    yield running
    running.end_all()


def ending_once(tmp_path) -> Child:
    """Return a process that ends with 3 when it is started for the first time."""
    script = f"if mkdir {tmp_path}/started; then exit 3; else echo again; exec sleep 600; fi"
    return Child("worker", ["sh", "-c", script], log=tmp_path / "worker.log")


def runs_again(processes: SoakProcesses) -> None:
    """Wait until the process was started for the second time."""
    worker = processes.children["worker"]
    wait_until(lambda: "again" in worker.log.read_text(), "the process runs again", state=worker.log_tail)


def test_a_process_that_ends_by_itself_is_noted_and_started_again(processes, tmp_path):
    """The main thread of a soak may wait for an operator's request, which needs the process that has ended."""
    processes.launch("worker", ending_once(tmp_path))

    runs_again(processes)

    assert processes.ended == [f"worker ended with 3; see {tmp_path / 'worker.log'}"]


def test_a_process_that_starts_while_the_broker_is_away_may_end(processes, tmp_path):
    """A coordinator that finds no broker for 10 s ends with a sentence, and its service manager starts it again."""
    with processes.outage():
        processes.launch("worker", ending_once(tmp_path))
        runs_again(processes)

    assert processes.ended == []


def test_a_killed_process_is_started_again_and_not_noted(processes, tmp_path):
    """A fault is no broken claim."""
    (tmp_path / "started").mkdir()
    processes.launch("worker", ending_once(tmp_path))
    runs_again(processes)
    before = processes.children["worker"].pid

    processes.kill("worker")

    wait_until(lambda: processes.children["worker"].pid not in {None, before}, "the process runs again")
    assert processes.ended == []


def test_the_chapter_names_a_claim_that_does_not_hold():
    latency = Latency(10, 100, 900)
    window = Window(60, 100, 1.5, latency, {"serve": 150.0}, 10, 1.5, 20, 2.5, latency, repeated=7)
    claims = [Claim("no message is lost", False, "3 messages of orders-1"), Claim("the page is live", True, "live")]
    faults = [Occurred(30, "kill writer", "coordinator a"), Occurred(60, "kill writer", "coordinator b")]
    found = Soak(
        this_machine(), 1, 30, 7, 100, 4, 132, 200, 60, [window], faults, 1_000, 1_007, 7, {"join": 4}, claims
    )  # fmt: skip

    text = section(found)

    assert "| no message is lost | 3 messages of orders-1 | **no** |" in text
    assert "kill writer (2)" in text
    assert "| 1.0 | 100 | 1.5 | 100 ms | 900 ms | 100 ms | 900 ms | 7 | 10 | 1.5 | 20 | 2.5 |" in text
    assert found.broken == claims[:1]
    assert "Not measured yet" in BENCH.sections(None)[0][1]
    assert BENCH.problems(found) == ["the claim does not hold: no message is lost; 3 messages of orders-1"]
