"""The ledger of a watch: what real brokers recorded becomes tables, and a restart goes on where a process ended."""

import base64
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec import structs

from tests.support.coordinator_mutations import hostile_records, messages_of
from tests.support.damaged_tables import lose_a_file
from tests.support.waiting import wait_until
from wakeroll.connection import Connection, Topics
from wakeroll_model.coordinator_log.coordinator_records import CoordinatorRecord, read_record
from wakeroll_model.coordinator_log.kafka_events import KafkaEvent, Progress, Source
from wakeroll_model.coordinator_log.record_events import event_of, ids_of
from wakeroll_model.rows import RECORDED, SNAPSHOTS
from wakeroll_pipeline.kafka_watch import watched_ledger
from wakeroll_pipeline.kafka_watch.commit_sampling import CommitSampler, Mark
from wakeroll_pipeline.kafka_watch.record_decoding import RecordDecoder
from wakeroll_pipeline.kafka_watch.topic_facts import TopicFacts
from wakeroll_pipeline.kafka_watch.watched_ledger import Told, WatchedLedger
from wakeroll_pipeline.ledger.delta_files import open_delta
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.period import Period
from wakeroll_pipeline.live.ledger_reader import read_ledger
from wakeroll_pipeline.questions.replay_here import replay_here
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.storage.place import Place
from wakeroll_pipeline.storage.small_files import StorageFailed

GOLDEN = Path(__file__).parents[1] / "golden" / "coordinator_log" / "records-4.4.0.jsonl"
PARTITIONS = 4
BEGIN = Mark(0, 0)
MARKS = {0: Mark(70, 70), 1: Mark(80, 85), 2: Mark(90, 90)}


class RawRecord(NamedTuple):
    """A record that a broker wrote."""

    at_ms: int
    partition: int
    offset: int
    key: bytes
    value: bytes | None


def raw_records() -> list[RawRecord]:
    """Return the golden records in order of time."""
    lines = map(json.loads, GOLDEN.read_text().splitlines())
    found = [
        RawRecord(
            one["at_ms"],
            one["partition"],
            one["offset"],
            base64.b64decode(one["key"]),
            None if one["value"] is None else base64.b64decode(one["value"]),
        )
        for one in lines
    ]
    return sorted(found)


def told() -> Iterator[Told]:
    """Yield the events of the golden records, and the progress behind them."""
    read = [(raw, read_record(raw.key, raw.value)) for raw in raw_records()]
    names = {its: name for _, one in read if isinstance(one, CoordinatorRecord) for its, name in ids_of(one).items()}
    for raw, one in read:
        assert isinstance(one, CoordinatorRecord)
        event = event_of(one, Source(raw.partition, raw.offset), lambda its: names.get(its, its))
        if event is not None:
            yield Told(raw.at_ms, event)
    yield Told(read[-1][0].at_ms, Progress(next_offsets={"0": 70, "1": 80, "2": 90}, read_offsets={"1": 85}))


def opened(home: Path, **settings: int) -> WatchedLedger:
    return WatchedLedger(Settings(home=str(home), partitions=PARTITIONS, **settings))


def rows(home: Path, query: str) -> list[tuple[object, ...]]:
    with duck_ledger(home / "warehouse") as ledger:
        return [tuple(row) for row in ledger.stream(query)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A ledger that one process has written in two appends."""
    home = tmp_path_factory.mktemp("whole")
    events, ledger = list(told()), opened(home)
    assert ledger.is_new
    ledger.append(events[:100])
    ledger.append(events[100:])
    ledger.close()
    return home


EVERYTHING = "select shard, seq, at_ms, published_ms, json from decisions order by shard, seq"


def test_the_history_has_kafka_s_times_and_replays_to_the_same_decisions(whole):
    first_ms, last_ms = raw_records()[0].at_ms, raw_records()[-1].at_ms
    [(begin_ms, end_ms)] = rows(whole, "select min(at_ms), max(published_ms) from decisions")
    assert first_ms <= begin_ms <= end_ms <= last_ms
    groups = {"range", "cooperative", "consumer", "static-range", "static-consumer", "mixed", "expression", "sharing"}
    assert {name for (name,) in rows(whole, "select distinct group_id from rebalances")} == groups
    model = read_ledger(Place.of(whole / "warehouse"), Topics(), PARTITIONS)
    assert set(model.names()) == {*groups, "transactional"}
    assert model.now_ms == last_ms
    with duck_ledger(whole / "warehouse") as ledger:
        done = replay_here(ledger, PARTITIONS, Period())
    assert {(one.differences, one.not_recorded, one.unknown) for one in done} == {(0, 0, 0)}
    assert [(sum(one.compared for one in done),)] == rows(whole, "select count(*) from decisions")


def test_a_restart_goes_on_without_a_gap_or_a_repetition(whole, tmp_path):
    events = list(told())
    first = opened(tmp_path)
    first.append(events[:70])
    second = opened(tmp_path)  # without a snapshot: the first was killed
    assert not second.is_new
    second.append(events[70:150])
    second.close()
    third = opened(tmp_path)
    third.append(events[150:])
    third.close()
    assert rows(tmp_path, EVERYTHING) == rows(whole, EVERYTHING)
    assert opened(tmp_path).marks == MARKS


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("table", ["events", "decisions"])
def test_what_a_failed_append_has_cut_off_is_made_again(whole, tmp_path, monkeypatch, table, is_closed):
    """Also if the process ends in good order: its shards are ahead of the tables then, and no snapshot must say so."""
    ledger, append = opened(tmp_path), ArrowSink.append

    def full(sink: ArrowSink, found: object, path: Place, metadata: object = None) -> None:
        if path.name == table:
            raise OSError("the disk is full")
        append(sink, found, path, metadata)

    with monkeypatch.context() as fault:
        fault.setattr(ArrowSink, "append", full)
        with pytest.raises(StorageFailed, match=rf"^cannot write to .*/{table}: the disk is full$"):
            ledger.append(told())
    if is_closed:
        ledger.close()
    assert rows(tmp_path, EVERYTHING) == []
    again = opened(tmp_path)
    if table == "events":
        assert again.is_new
        again.append(told())
    assert again.marks == ({} if table == "events" else MARKS)
    assert rows(tmp_path, EVERYTHING) == rows(whole, EVERYTHING)
    assert rows(tmp_path, "select count(*) from snapshots") == [(0,)]


def test_a_watch_of_damaged_tables_ends_with_their_sentence(whole, wakeroll, tmp_path):
    """It needs no broker to see that; without the lost rows it could not go on where it was."""
    shutil.copytree(whole, tmp_path / "home")
    lost = lose_a_file(tmp_path / "home" / "warehouse" / "decisions")

    code, said, complaint = wakeroll("watch-kafka", "--bootstrap", "127.0.0.1:1", "--home", str(tmp_path / "home"))

    assert (code, said) == (3, "")
    warehouse = tmp_path / "home" / "warehouse"
    assert complaint == (
        f"wakeroll: cannot read table 'decisions': {lost}; put it back from a copy of the tables, or move {warehouse} "
        "away and start `wakeroll watch-kafka` again: it reads what Kafka's own record still has, from the beginning\n"
    )


DAY_MS = 86_400_000
CURRENT = "select group_id, topic, queue_id, client_id, epoch from current_assignments order by all"


def test_upkeep_bounds_the_tables_of_a_watch_that_never_ends(tmp_path, monkeypatch):
    """A watch is a service: small files become few, and rows older than the retention go, without a stop.

    Each append adds a file of events: that must not keep upkeep from the other tables.
    """
    events, now_ms = list(told()), round(time.time() * 1_000)
    ledger, third, appends = opened(tmp_path), len(events) // 3, 0
    with monkeypatch.context() as often:
        often.setattr(watched_ledger, "SNAPSHOT_S", 0.0)
        for days, some in ((50, events[:third]), (45, events[third : 2 * third]), (1, events[2 * third :])):
            began_ms = some[0].at_ms
            moved = [structs.replace(one, at_ms=now_ms - days * DAY_MS + one.at_ms - began_ms) for one in some]
            for first in range(0, third, 8):
                ledger.append(moved[first : first + 8])
                appends += 1
    ledger.close()
    before, ledger = rows(tmp_path, CURRENT), opened(tmp_path, upkeep_interval_ms=1_000)

    def is_done() -> bool:
        nonlocal appends
        appends += 1
        ledger.append([structs.replace(events[-1], at_ms=now_ms)])  # the progress, as every append has it
        [(old,)] = rows(tmp_path, f"select count(*) from events where at_ms < {now_ms - 46 * DAY_MS}")
        of_events, *others = numbers_of_files(tmp_path)
        # The records behind the newest snapshot but one of a shard stay, however old they are.
        return old < third / 10 and of_events < appends / 2 and max(others) <= 2

    wait_until(is_done, "the oldest rows are gone, and the files are few", state=lambda: numbers_of_files(tmp_path))
    ledger.close()
    assert rows(tmp_path, CURRENT) == before != []
    with duck_ledger(tmp_path / "warehouse") as whole:
        done = replay_here(whole, PARTITIONS, Period())
    assert {(one.differences, one.unknown) for one in done} == {(0, 0)}
    assert opened(tmp_path).marks == MARKS


def numbers_of_files(home: Path) -> list[int]:
    """Return the number of files of the newest version of each table that grows."""
    return [len(open_delta(Place.of(home / "warehouse" / table.name)).file_uris()) for table in (*RECORDED, SNAPSHOTS)]


def test_no_record_of_a_hostile_writer_ends_the_watch(tmp_path):
    """What can be read is on record, the rest is counted, and a replay decides the same."""
    topics = TopicFacts(Connection("127.0.0.1:1"), 1.0)
    decoder = RecordDecoder(topics, re.compile(".*", re.DOTALL), ())
    log, ledger, sampler = (
        messages_of(hostile_records(7, 3_000)),
        opened(tmp_path),
        CommitSampler(0, BEGIN, decoder.is_wanted),
    )
    for first in range(0, len(log), 500):
        found = [
            one
            for step in sampler.take(log[first : first + 500], 1_000)
            for records in step.groups
            for one in decoder.decode(records, topics.name_of)
        ]
        for one in found:
            if isinstance(one.event, KafkaEvent):
                topics.hear(one.event)
        ledger.append(found)
    ledger.close()

    assert decoder.skipped.keys() == {"no key", "type", "version", "damaged"}
    assert sum(decoder.skipped.values()) < len(log) * 3 / 4
    assert rows(tmp_path, "select count(*) > 100, count(*) filter (where kind = 'rejected') from decisions") == [
        (True, 0)
    ]
    with duck_ledger(tmp_path / "warehouse") as whole:
        done = replay_here(whole, PARTITIONS, Period())
    assert {(one.differences, one.not_recorded, one.unknown) for one in done} == {(0, 0, 0)}
    assert not opened(tmp_path).is_new
