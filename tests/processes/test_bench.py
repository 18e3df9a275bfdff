"""The bench measures what it says, and its page says what was measured; how long things take is no test's business."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from prometheus_client import CollectorRegistry

from bench import client_throughput, group_changes, ledger_questions, page_load, report, sharing
from bench.__main__ import main
from bench.consumer_logs import Change, ConsumerLogs, Effect, effect_of
from bench.core import TINY, Results
from bench.decision_reader import Answer, Passed
from bench.deployment_events import Life
from bench.figures import Latency, latency_of
from bench.frame import NotMeasured, read, write
from bench.growing_ledger import GrowingLedger, Stored
from bench.ledger_questions import Growth, Size
from bench.page_readers import listen
from bench.path_latency import Wakes, Way, queryable
from bench.population import Population
from bench.process_usage import Command, resident_mib, run
from bench.replay_speed import log_of
from bench.report import BENCHES
from bench.sharing import moves, of_their_own, same_for_all
from tests.support.systems.web_site import answering
from wakeroll.connection import Topics
from wakeroll_model.decisions import AnyDecision
from wakeroll_model.events import Arrival, Heartbeat, Pull
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.replay import replay
from wakeroll_model.strategies import STRATEGIES
from wakeroll_pipeline.live.live_model import LiveModel, ViewSource
from wakeroll_pipeline.local.story_checks import Handled
from wakeroll_pipeline.serve.web_app import WebApp
from wakeroll_pipeline.settings import Settings

ONE = Queue("orders", "", 1)


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> Results:
    """A whole run, tiny, from the file that it writes: the page is made from the file, not from memory."""
    path = tmp_path_factory.mktemp("core") / "results.json"
    assert main(["core", "--tiny", "--json", str(path)]) == 0
    figures = read(path, Results)
    assert figures is not None
    return figures


def page_of(found: Results, **others: object) -> str:
    """Return the page of these figures, by the names of their measurements."""
    return report.page({"core": found, **others})


@pytest.mark.operate
def test_every_part_measures_every_size(found):
    """A size that is left out would be missed by nobody."""
    assert [(beat.members, beat.groups) for beat in found.heartbeats.beats] == [(2, 1), (2, 150), (4, 1), (4, 150)]
    assert [(one.woken, one.holds) for one in found.holds.wakings] == [(0, 10), (10, 10)]
    assert [(one.holds, one.queues, one.due) for one in found.holds.ticks] == [
        (5, 1, 0), (10, 1, 0), (5, 5, 0), (10, 10, 0), (10, 1, 1), (10, 10, 1),
    ]  # fmt: skip
    assert found.replay.replayed.events == TINY.events
    assert found.replay.large.members == TINY.large_groups * TINY.large_members


@pytest.mark.operate
def test_whatever_strategy_is_registered_is_measured(found):
    """A new strategy is one file; the bench needs no word of it."""
    measured = {shared.who for shared in found.strategies.same if shared.mode == "join"}

    assert measured >= set(STRATEGIES) - {"MACHINE_ROOM_NEARBY"}


@pytest.mark.operate
def test_figures_survive_their_file(found, tmp_path):
    """The page is made from the file, not from memory."""
    write(found, tmp_path / "results.json")

    assert read(tmp_path / "results.json", Results) == found


@pytest.mark.operate
def test_the_page_is_made_from_the_figures(found):
    """Every chapter has its table, with and without the figures of the whole path."""
    way = Way(Latency(300, 400, 800), Latency(9_000, 350, 700), Latency(2_000, 300, 600))
    wakes = Wakes(
        *(found.machine, 60, 30, 200, 16, 100, 199, 8),
        floor=Way(*[Latency(300, 200, 400)] * 3),
        ours=way,
        fetched=Latency(5_000, 360, 720),
        polled=Latency(6_000, 5, 9),
        queryable=Latency(3_000, 4_000, 9_000),
    )

    without, page = page_of(found), page_of(found, path_latency=wakes)

    assert "not measured yet" in without
    assert "| heartbeat to assignment, p50 against the floor's | <= 1.6 times | 2.00 times | no |" in page
    assert "| decision to queryable in Delta, p99 | <= 10,000 ms | 9.00 s | yes |" in page
    assert "Woken: 199 of the" in page
    assert "| a message's produce to its handler's call, in `fetch` | 5,000 | 360 ms | 720 ms |" in page
    assert "| an arrival's append to its wake's (200 waiting) | 9,000 | 350 ms | 700 ms | 200 ms" in page
    for strategy in STRATEGIES:
        assert f"| {strategy}" in page


def test_a_decision_can_be_asked_for_when_the_commit_with_its_row_is_there(tmp_path):
    """Whoever reads the table then has it; that its file is compacted later makes it no later."""
    table = str(tmp_path / "decisions")
    for at_ms in (1_000, 2_000, 3_000):
        write_deltalake(table, pa.table({"published_ms": [at_ms, at_ms + 10]}), mode="append")
    for version, committed_ms in enumerate((1_500, 2_700, 3_900)):
        committed_ns = committed_ms * 1_000_000
        os.utime(tmp_path / "decisions" / "_delta_log" / f"{version:020}.json", ns=(committed_ns, committed_ns))
    DeltaTable(table).optimize.compact()

    found = queryable(tmp_path / "decisions", since_ms=2_000)

    assert found == latency_of([700, 690, 900, 890])


@pytest.mark.operate
def test_growth_is_told_by_ten_times_the_events_and_beside_spark(found):
    """Sizes need not be ten times apart, and Spark need not be asked about all of them."""

    def size(events: int, seconds: float, mib: float, **spark: Command) -> Size:
        of_all = Command(seconds, mib)
        tables = {"events": Stored(rows=events, size=events * 40)}
        engines = {"duckdb": of_all, **spark}
        runs = {engine: dict.fromkeys(ledger_questions.COMMANDS, run) for engine, run in engines.items()}
        return Size(events, 60, 12, tables, runs)

    of_spark = Command(40, 500)
    sizes = [size(1_000, 8, 200, spark=of_spark), size(100_000, 32, 300)]
    ledgers = Growth(found.machine, 1_000, 4, "1g", sizes)

    page = page_of(found, ledger_questions=ledgers)

    assert "| `events` | 1,000 (0.0400) | 100,000 (4.00) |" in page
    assert "| `check`: every rule | 8.00 (5.00) | 32.0 (-) | x 2.00 |" in page
    assert "| `check`: every rule | 200 (500) | 300 (-) |" in page
    assert "Not measured yet: `python -m bench ledger_questions`" in page_of(found)


@pytest.mark.operate
def test_long_ledgers_are_judged_by_the_cpu_time_per_row(found):
    """Rows and files are those of all tables."""
    tables = {"events": Stored(1_000, 4_000_000, 3), "decisions": Stored(1_000, 1_000_000, 2)}
    runs = {"duckdb": dict.fromkeys(ledger_questions.LONG, Command(9, 700, 0.04))}
    ledgers = Growth(found.machine, 1_000, 4, "1g", [Size(1_000, 60, 12, tables, runs)])

    page = page_of(found, long_ledgers=ledgers)

    assert "| rows of all tables | 2,000 |\n| files | 5 |\n| MB of files | 5.00 |" in page
    assert (
        "| `check`: every rule: MiB | 700 |\n| its seconds of CPU | 0.0400 |\n| its µs of CPU per row | 20.0 |" in page
    )
    assert "Not measured yet: `python -m bench long_ledgers`" in page_of(found)


@pytest.mark.operate
def test_the_page_compares_push_consumption_with_a_bare_consumer(found):
    ways = [
        client_throughput.Way(0, False, 32, 100_000, 80_000),
        client_throughput.Way(1_000, True, 500, 100_000, 50_000, no_will_per_s=51_000),
    ]
    pushed = client_throughput.Pushed(found.machine, 2_000_000, 100, 8, 3, ways)

    page = page_of(found, push_throughput=pushed)

    assert "| none | none | 32 | 80,000 |  | 100,000 | 0.80 |" in page
    assert "| 1,000 | queue | 500 | 50,000 | 0.980 | 100,000 | 0.50 |" in page
    assert "Not measured yet: `python -m bench push_throughput`" in page_of(found)


@pytest.mark.operate
def test_the_page_compares_group_changes_with_those_of_kafkas_groups(found):
    effects = [Effect(1.5, 0.05, 0.25, 0), Effect(2.5, 0.06, 1.25, 3), Effect(3.5, 0.04, 0.5, 0)]
    ours = group_changes.Measured("wakeroll", 45_000, 10_000, {"join": effects, "crash": effects[:1]}, lost=0)
    theirs = group_changes.Measured("Kafka", 18_000, 1_000, {"join": effects[1:2]}, lost=2)
    changes = group_changes.Changes(found.machine, 3, 12, 300, [ours, theirs])

    page = page_of(found, group_changes=changes)

    assert "| wakeroll | 45 | 10 | 3 | 2.50 / 3.50 s | 0.05 / 0.06 s | 0.50 / 1.25 s | 1 |" in page
    assert "| Kafka | 18 | 1 | 1 | 2.50 / 2.50 s | 0.06 / 0.06 s | 1.25 / 1.25 s | 3 |" in page
    assert "Lost messages, in all groups together: 2." in page
    assert "**The fourth consumer leaves**" not in page
    assert "Not measured yet: `python -m bench group_changes`" in page_of(found)


@pytest.mark.operate
def test_the_page_says_what_serving_it_costs(found):
    loads = [
        page_load.Load(0, False, 0.05, 150.4, 0, 0, Latency(0, 0, 0)),
        page_load.Load(100, True, 0.755, 250.4, 0.95, 1_048_576, Latency(40, 900, 1_900), 2.5),
    ]
    served = page_load.Page(found.machine, 1_000, 100, 2, 30, 12_345, 8.25, "live", 0.4, loads)

    page = page_of(found, page_load=served)

    assert "| 0 | 5 % | 150 MiB |  |  |  |  |" in page
    assert "| 100 and one that nobody reads | 76 % | 250 MiB | 0.950 | 1,024 | 900 ms | 1,900 ms |" in page
    assert "nobody reads held 2.5 MiB at the end" in page
    assert "Not measured yet: `python -m bench page_load`" in page_of(found)


@pytest.mark.parametrize(
    ("path", "problem"),
    [("/events/nothing/here", "answered 'HTTP/1.1 404"), ("/events/groups/nobody", "nobody has ended")],
)
def test_a_page_that_stops_sending_is_not_measured(path, problem):
    """The figures of fewer readers would look like good ones."""
    model = LiveModel(Topics(), 4)
    web = WebApp(ViewSource(model), CollectorRegistry(), ["127.0.0.1"])

    with answering(web) as address, pytest.raises(NotMeasured, match=problem):
        asyncio.run(listen(address, [path], None, {}, warmup_s=60, seconds=60))


def test_an_ended_process_is_not_measured():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()

    with pytest.raises(NotMeasured, match=f"process {child.pid} has ended"):
        resident_mib(child.pid)
    assert resident_mib(os.getpid()) > 10


ROOT = Path(__file__).parents[2]


def test_every_measurement_that_a_page_names_exists():
    """A figure whose command is gone cannot be made again."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    named = {
        (page.name, name)
        for page in pages
        for name in re.findall(r"python -m bench[ .](\w+)", page.read_text(encoding="utf-8"))
    }

    known = {bench.name for bench in BENCHES} | {"NAME", "report"}
    assert {name for _, name in named} >= {"path_latency", "NAME"}
    assert [each for each in sorted(named) if each[1] not in known] == []


@pytest.mark.parametrize("bench", BENCHES, ids=lambda bench: bench.name)
def test_every_measurement_says_how_it_is_called(bench, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([bench.name, "--help"])

    assert f"Takes {bench.takes}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "differs", [["core", "--tiny"], ["path_latency", "--tls"], ["group_changes", "--only", "busy"]]
)
def test_figures_of_another_kind_do_not_replace_those_of_the_page(differs, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(differs)

    assert "these are not the figures of performance.md; name another file with --json" in capsys.readouterr().err


S = 1_000_000_000


def handed(*messages: tuple[float, str, int, int]) -> list[Handled]:
    """Return messages, given as seconds, client, queue and offset."""
    return [
        Handled(client_id, queue_id, offset, round(at_s * S), round(at_s * S))
        for at_s, client_id, queue_id, offset in sorted(messages)
    ]


def test_a_join_is_judged_by_the_first_message_of_the_new_consumer():
    """Queue 0 stays with a, queue 1 moves to b with two repeated messages; what is outside of the time is left out."""
    messages = handed(
        *((0.0, "a", 0, 0), (5.0, "a", 0, 1), (9.0, "a", 1, 0), (9.5, "a", 0, 2), (10.2, "a", 1, 1)),
        *((10.5, "a", 0, 3), (12.0, "b", 1, 0), (12.1, "b", 1, 1), (12.2, "b", 1, 2), (30.0, "b", 1, 2)),
    )

    effect = effect_of(Change("join", "b", 10 * S, 13 * S), messages)

    assert effect == Effect(first_s=2.0, kept_gap_s=1.0, moved_gap_s=1.8, repeated=2)


@pytest.mark.parametrize("kind", ["leave", "crash"])
def test_the_end_of_a_consumer_is_judged_by_the_last_of_its_queues_that_goes_on(kind):
    """One queue that waits for long is not hidden by another one that goes on at once."""
    messages = handed(
        *((9.0, "b", 0, 7), (9.1, "b", 1, 7), (9.2, "a", 2, 7)),
        *((10.1, "b", 0, 8), (10.2, "a", 2, 8), (11.0, "a", 0, 9), (14.0, "a", 1, 8)),
    )

    effect = effect_of(Change(kind, "b", 10 * S, 15 * S), messages)

    assert effect == Effect(first_s=4.0, kept_gap_s=1.0, moved_gap_s=4.9, repeated=0)


def test_a_change_without_the_messages_that_it_should_lead_to_is_not_measured():
    with pytest.raises(ValueError, match="after the crash of b, 1 queues had no message"):
        effect_of(Change("crash", "b", 10 * S, 15 * S), handed((9.0, "b", 0, 7)))


def test_the_log_of_a_killed_consumer_is_read_up_to_its_last_whole_line(tmp_path):
    """And a log is read on from there, when the rest of the line has come."""
    log, logs = tmp_path / "c1", ConsumerLogs()
    log.write_text("c1 began 5\nc1 orders 3 11 7 8 0\nc1 orders 3 1")
    logs.follow([log, tmp_path / "none yet"])
    assert logs.in_order() == [Handled("c1", 3, 11, 7, 8)]
    assert logs.began == {log: 5}

    log.write_text("c1 began 5\nc1 orders 3 11 7 8 0\nc1 orders 3 12 9 9 0\nc1 leaving 10\n")
    logs.follow([log])

    assert logs.in_order() == [Handled("c1", 3, 11, 7, 8), Handled("c1", 3, 12, 9, 9)]
    assert logs.last == {("orders", 3): Handled("c1", 3, 12, 9, 9)}
    assert logs.leaving == {log: 10}


@pytest.mark.operate
def test_a_run_on_a_busy_machine_says_that_it_does_not_count(found):
    """Figures measured beside somebody else's work look like any others."""
    busy, quiet = (msgspec.structs.replace(found.machine, load=load) for load in (1.0, 0.99))

    assert "does not count" in page_of(msgspec.structs.replace(found, machine=busy))
    assert "does not count" not in page_of(msgspec.structs.replace(found, machine=quiet))


def test_the_page_in_docs_is_the_one_that_its_figures_make():
    """Who changes the report, or the figures, makes the page again: `python -m bench report`."""
    assert report.PAGE.read_text(encoding="utf-8") == report.current()


@pytest.mark.operate
def test_kafka_is_beside_us_or_it_is_said_why_not(found):
    """Its uniform assignor promises sizes that differ by 1 at most when all want the same: then it was asked right."""
    kafkas = [shared for shared in found.strategies.same if shared.who == sharing.KAFKA]

    assert bool(kafkas) != bool(found.strategies.missing)
    assert all(shared.largest - shared.smallest <= 1 for shared in kafkas)


def test_copies_of_settled_groups_live_on_as_the_others_do():
    """A copy that were not settled would be told something at its first heartbeat, and that would be measured."""
    population = Population()
    population.settle_many([f"group-{number}" for number in range(130)], members=3, queues=12)

    for group_id, client_id in population.everybody():
        beat = population.beat(group_id, client_id)
        assert len(beat.owned) == 4
        assert population.append(beat) == []


def test_a_generated_log_is_one_that_clients_would_write():
    """Nothing of it is rejected, and it holds what a log holds."""
    records = log_of(events=500, groups=5)

    decisions = list(replay(records, 1))

    kinds = {str(decision.__struct_config__.tag) for decision in decisions}
    assert len(records) == 500
    assert "rejected" not in kinds
    assert kinds >= {"assignment", "membership", "rebalance", "handover", "offset", "fenced"}


class Heard:
    """All that was appended in a life, and decided."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.decisions: list[AnyDecision] = []

    def hear(self, record: Record, decisions: Sequence[AnyDecision]) -> None:
        self.records.append(record)
        self.decisions += decisions


@pytest.fixture(scope="module")
def lived() -> Heard:
    """A minute and a half of a few groups: long enough for who crashes to be missed and to come back."""
    heard = Heard()
    life = Life(30, 4, heard.hear)
    while life.second < 90:
        life.pass_second()
    return heard


def test_a_life_is_one_that_clients_would_lead(lived):
    """The tables and marts of a ledger without hand-overs, offsets or wakes would be measured while empty."""
    kinds = {str(decision.__struct_config__.tag) for decision in lived.decisions}
    changes = {getattr(decision, "change", None) for decision in lived.decisions}
    reasons = {getattr(decision, "reason", None) for decision in lived.decisions}

    # Who restarts waits for the end of its former life: `rejected`, in-use.
    assert kinds == {"assignment", "membership", "rebalance", "handover", "offset", "fenced", "wake", "rejected"}
    assert changes >= {"joined", "left", "expired"}
    assert reasons >= {"arrival", "timeout"}


def test_what_a_life_decided_is_decided_again_by_a_replay(lived):
    """Else `replay` would be measured while it collects differences."""
    for_each = {decision.shard: [] for decision in lived.decisions}
    again = {shard: [] for shard in for_each}
    for decision in lived.decisions:
        for_each[decision.shard].append(decision)
    for decision in replay(lived.records, 4):
        again[decision.shard].append(decision)

    assert again == for_each


def test_every_event_of_a_life_is_in_the_shard_it_belongs_to(lived):
    """And each partition of both topics counts its records from 0."""
    offsets: dict[tuple[str, int], list[int]] = {}
    for record in lived.records:
        offsets.setdefault((record.topic, record.partition), []).append(record.offset)
        assert record.key is None or partition_of(record.key, 4) == record.partition

    assert sorted(offsets) == [
        (f"wakeroll.{kind}", partition) for kind in ("groups", "queues") for partition in range(4)
    ]
    assert all(numbers == list(range(len(numbers))) for numbers in offsets.values())


def test_a_ledger_has_each_event_once(tmp_path):
    """In appends in the order of the log; the news come in one of their own."""
    settings = Settings(home=str(tmp_path))
    ledger = GrowingLedger(settings, groups=20)
    for events in (700, 1_500):
        ledger.grow(events)
    before, appends = ledger.events, ledger.appends
    ledger.grow(before + 15)

    rows = DeltaTable(tmp_path / "warehouse" / "events").to_pyarrow_table(columns=["topic", "partition", "offset"])
    offsets = sorted(
        row["offset"] for row in rows.to_pylist() if (row["topic"], row["partition"]) == ("wakeroll.groups", 1)
    )
    assert offsets == list(range(len(offsets)))
    assert ledger.second > 10
    assert 1_500 <= before < 1_700
    assert rows.num_rows == ledger.events >= before + 15
    assert ledger.appends == appends + 1


def test_a_command_that_ends_badly_is_not_measured(tmp_path):
    """The time of a failure would look like a good one."""
    fails = [sys.executable, "-c", "print('no such ledger'); raise SystemExit(3)"]

    with pytest.raises(NotMeasured, match=r"(?s)ended with 3.*no such ledger"):
        run(fails, tmp_path / "log", os.environ)


def test_a_case_is_the_same_each_time_and_wants_every_topic():
    """Both sides, and the next run, are asked the same."""
    case = of_their_own(100, 50, 200, 5)

    assert case == of_their_own(100, 50, 200, 5)
    assert {topic for wanted in case.wanted for topic in wanted} == set(range(100))
    assert len(case.queues) == 5_000
    assert same_for_all(1, 10, 3).subscriptions is None


def test_a_move_is_a_queue_that_two_have_had():
    """A queue of somebody who has gone, or a new one, is no move."""
    two = Queue("orders", "", 2)

    assert moves({ONE: "a", two: "a"}, {ONE: "a", two: "b"}) == 1


def test_percentiles_are_by_nearest_rank():
    """Of a hundred, p99 is the second largest."""
    assert latency_of(range(100, 0, -1)) == Latency(100, 50, 99)
    assert latency_of([]) == Latency(0, 0, 0)


class Written:
    """What passed through the floor, batch by batch."""

    def __init__(self, *batches: list[tuple[int, object]]) -> None:
        self._batches = list(batches)

    def read(self, _timeout_s: float) -> list[tuple[bytes, bytes, int]]:
        return [(b"%d" % at_ms, msgspec.json.encode(event), 1_000) for at_ms, event in self._batches.pop(0)]


def test_the_floor_is_asked_as_the_coordinator_is():
    """A pull waits for an arrival, once; one that comes late is answered at once."""
    early, late = (
        Pull(request_id=f"{name}:1", group_id="g", client_id=name, instance_id=name, queue=ONE, from_offset=0)
        for name in ("early", "late")
    )
    ears = Passed(Written([(100, early)], [(200, Arrival(queue=ONE, next_offset=3)), (300, late)]))

    assert ears.wakes(0) == []
    assert ears.wakes(0) == [Answer("early", 200, 800, 3, was_held=True), Answer("late", 300, 700, 3)]


def test_a_probe_at_the_floor_is_a_heartbeat_that_passed():
    """So its latency is from one append to the other, as an assignment's is."""
    beat = Heartbeat(group_id="g", client_id="probe", instance_id="i")

    assert Passed(Written([(400, beat)])).assignments(0) == [Answer("probe", 400, 600)]


def test_the_java_program_stands_where_it_is_looked_for():
    assert (Path(sharing.__file__).parent / "java" / "UniformBench.java").is_file()
