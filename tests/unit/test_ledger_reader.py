"""The page without a broker: the state at the end of the archived log, or at a moment in it, from the tables alone."""

import re
from pathlib import Path

import pytest

from tests.support.control_log import START_MS
from tests.support.delta_tables import write_tables
from tests.support.ledgers import PARTITIONS, Story, a_day, offsets_of, owners_of, three_days, two_eras
from tests.support.samples import sample
from wakeroll.connection import Topics
from wakeroll.errors import InvalidUsage
from wakeroll_model.events import Arrival
from wakeroll_model.queue import Queue
from wakeroll_model.rows import DECISIONS, EVENTS, OFFSETS, SNAPSHOTS
from wakeroll_pipeline.ledger import delta_files
from wakeroll_pipeline.ledger.delta_files import Period, files_of, open_delta
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.ledger import UnreadableTable
from wakeroll_pipeline.ledger.retention import DAY_MS
from wakeroll_pipeline.live import ledger_reader
from wakeroll_pipeline.live.decision_feed import SHOWN
from wakeroll_pipeline.live.ledger_reader import newest_snapshots, read_ledger, read_recorded, recent_decisions
from wakeroll_pipeline.live.live_model import LiveModel
from wakeroll_pipeline.questions.explain import explain, explain_nearby
from wakeroll_pipeline.storage.place import Place


def tables_of(story: Story, folder: Path) -> Path:
    warehouse = folder / "it's a warehouse"
    write_tables(warehouse, story)
    return warehouse


def owners(model: LiveModel) -> dict[tuple[str, str, int], str]:
    """Return group, topic and queue_id -> owner, as the page shows them."""
    found = {}
    for summary in model.groups_view().groups:
        view = model.group_view(summary.group_id)
        assert view is not None
        found |= {(summary.group_id, one.topic, one.queue_id): one.owner for one in view.queues}
    return found


def test_the_end_of_the_log_shows_the_owners_and_offsets_on_record(tmp_path):
    story = a_day()
    model = read_ledger(tables_of(story, tmp_path), Topics(), PARTITIONS)

    assert owners(model) == {place: client_id or "" for place, client_id in owners_of(story).items()}
    for (group_id, topic, number), offset in offsets_of(story).items():
        rows = {one.queue: one.committed_offset for one in model.group_view(group_id).queues}
        assert rows[Queue(topic, "", number)] == offset
    assert [one.kind for one in model.health().notices] == ["ledger"]


def test_without_snapshots_the_whole_log_is_read(tmp_path):
    story = a_day()
    story.snapshots.clear()

    assert owners(read_ledger(tables_of(story, tmp_path), Topics(), PARTITIONS)) == {
        place: client_id or "" for place, client_id in owners_of(story).items()
    }


@pytest.mark.parametrize(
    ("second", "members"), [(3, ["c1"]), (8, ["c1", "c2"]), (15, ["c1", "c2", "c3"]), (27, ["c2", "c3"])]
)
def test_an_earlier_moment_shows_the_members_of_that_time(tmp_path, second, members):
    """The newest snapshot is younger than the moment, so an older one, or the start of the log, is used."""
    model = read_ledger(tables_of(a_day(), tmp_path), Topics(), PARTITIONS, START_MS + second * 1_000)

    assert [one.client_id for one in model.group_view("billing").members] == members


def test_a_later_era_begins_with_its_own_snapshot(tmp_path):
    """Era 10 decided otherwise than era 9 would have about the same records."""
    story = two_eras()
    warehouse = tables_of(story, tmp_path)
    model = read_ledger(warehouse, Topics(), PARTITIONS)
    known = owners(model)

    assert {one.era for one in newest_snapshots(warehouse).values()} == {10}
    for place, client_id in owners_of(story).items():
        assert known.get(place, "") == (client_id or "")


def test_verdicts_and_times_of_commits_are_those_of_the_log(tmp_path):
    """The lag is followed while the log is read; its end alone shows neither growth nor when a commit was."""
    story = Story()
    story.route("orders", 2, ends=100)
    story.join("billing", "c1", "orders")
    story.pass_seconds(10)
    story.commit("billing", 50)
    committed_ms = story.now_ms
    for ends in range(200, 2_000, 100):
        story.pass_seconds(10)
        story.route("orders", 2, ends=ends)
    story.pass_seconds(10)
    view = read_ledger(tables_of(story, tmp_path), Topics(), PARTITIONS).group_view("billing")

    assert view.summary.verdict == "stalled"
    assert committed_ms <= view.queues[0].committed_ms <= committed_ms + 5_000
    assert view.queues[0].trend == "rising"


@pytest.fixture
def days(tmp_path, monkeypatch) -> Path:
    """The tables of three days, with files of each day; no file counts as new because the test has just written it."""
    monkeypatch.setattr(delta_files, "_NEWEST_MS", -1)
    warehouse, story = tmp_path / "warehouse", three_days()
    for days in (range(1), range(1, 3)):
        part = Story()
        part.rows = [row for row in story.rows if (row[3] - START_MS) // DAY_MS in days]
        part.snapshots = [row for row in story.snapshots if (row[5] - START_MS) // DAY_MS in days]
        write_tables(warehouse, part)
    return warehouse


def zero_files(warehouse: Path, last_ms: int) -> int:
    """Overwrite the files of rows up to a time; return their number."""
    number = 0
    for table in (EVENTS, DECISIONS, OFFSETS):
        folder, delta = Place.of(warehouse / table.name), open_delta(warehouse / table.name)
        for file in map(Path, files_of(delta, folder, Period(table.at, 0, last_ms))):
            file.write_bytes(bytes(file.stat().st_size))
            number += 1
    return number


@pytest.mark.parametrize("seconds", [None, 2 * DAY_MS // 1_000 + 50], ids=["the end", "a moment of the last day"])
def test_files_of_days_before_the_snapshots_are_not_read(days, seconds):
    """A question about now must not take longer with each day that is kept."""
    moment_ms = None if seconds is None else START_MS + seconds * 1_000
    before = read_ledger(days, Topics(), PARTITIONS, moment_ms)
    assert zero_files(days, START_MS + DAY_MS) == 3
    after = read_ledger(days, Topics(), PARTITIONS, moment_ms)

    assert after.groups_view().groups == before.groups_view().groups
    assert owners(after) == owners(before)
    assert {client for (group, _, _), client in owners(after).items() if group == "billing"} >= {"c1", "c2"}


def test_without_newer_snapshots_older_files_are_read(days):
    """The first day's snapshots are the newest that are sound, and the log between is needed."""
    story = three_days()
    newest = max(row[5] for row in story.snapshots)
    expected = owners(read_ledger(days, Topics(), PARTITIONS))
    open_delta(days / "snapshots").delete(f"at_ms > {newest - DAY_MS}")

    assert owners(read_ledger(days, Topics(), PARTITIONS)) == expected
    zero_files(days, START_MS + DAY_MS)
    with pytest.raises(UnreadableTable, match="is damaged"):
        read_ledger(days, Topics(), PARTITIONS)


OWNED = [("billing", number) for number in range(4)] + [("audit", number) for number in range(4)]


@pytest.mark.parametrize("seconds", sample([None, 10, 20, 2 * DAY_MS // 1_000 + 10, 2 * DAY_MS // 1_000 + 45], quick=2))
@pytest.mark.parametrize(("group_id", "number"), OWNED)
def test_an_explanation_from_a_part_of_the_files_is_that_from_all(days, group_id, number, seconds):
    at_ms = None if seconds is None else START_MS + seconds * 1_000
    asked = group_id, Queue("orders", "", number), at_ms
    with duck_ledger(days) as ledger:
        try:
            expected = explain(ledger, *asked)
        except InvalidUsage as refusal:
            with pytest.raises(InvalidUsage, match=re.escape(str(refusal))):
                explain_nearby(ledger, *asked)
            return

        assert explain_nearby(ledger, *asked) == expected


def test_files_of_days_before_a_hand_over_are_not_read_to_explain_it(days):
    """c3 got its queue on the last day; the only queues of a1 were given to it on the first."""
    number = next(
        one for (group, _, one), client in owners_of(three_days()).items() if (group, client) == ("billing", "c3")
    )
    with duck_ledger(days) as ledger:
        expected = explain(ledger, "billing", Queue("orders", "", number))
    zero_files(days, START_MS + DAY_MS)

    with duck_ledger(days, only=SNAPSHOTS) as ledger:
        assert explain_nearby(ledger, "billing", Queue("orders", "", number)) == expected
        with pytest.raises(UnreadableTable, match="is damaged"):
            explain_nearby(ledger, "audit", Queue("orders", "", 0))


def test_the_end_of_a_queue_that_nobody_waits_for_is_that_of_its_last_arrival(tmp_path):
    """The shard of queues notes no end of it; a topic's route was older, and lag 0 would be a false comfort."""
    story = Story()
    story.route("orders", 1)
    story.join("billing", "c1", "orders", consume_from="last")
    story.pass_seconds(10)
    story.append(Arrival(queue=Queue("orders", "", 0), next_offset=605))
    view = read_ledger(tables_of(story, tmp_path), Topics(), PARTITIONS).group_view("billing")

    assert [(one.end_offset, one.lag_messages) for one in view.queues] == [(605, None)]


def test_of_many_decisions_the_newest_that_a_page_shows_are_read(tmp_path, monkeypatch):
    """A client that repeats its heartbeats leads to many assignments, which no page shows; a busy hour has millions."""
    monkeypatch.setattr(ledger_reader, "MOST_DECISIONS", 3)
    story = a_day()
    with duck_ledger(tables_of(story, tmp_path)) as ledger:
        read = [(one.shard, one.seq) for one, _, _ in recent_decisions(ledger, 0, 2**62)]

    shown = sorted((one for one in story.decisions if isinstance(one, SHOWN)), key=lambda one: (one.at_ms, one.seq))
    newest = {one.shard: one.seq for one in story.decisions}
    assert len(shown) > 3
    assert set(read) == {(one.shard, one.seq) for one in shown[-3:]} | set(newest.items())
    assert len(read) == len(set(read))


def test_the_newest_decision_of_each_shard_is_read_whatever_its_kind(tmp_path):
    """It tells which decisions of the model are published."""
    story = a_day()
    with duck_ledger(tables_of(story, tmp_path)) as ledger:
        read = [one for one, _, _ in recent_decisions(ledger, 0, 2**62)]

    last = {one.shard: one.seq for one in story.decisions}
    assert {shard: max(one.seq for one in read if one.shard == shard) for shard in last} == last
    assert [one for one in story.decisions if isinstance(one, SHOWN)] == sorted(
        (one for one in read if isinstance(one, SHOWN)), key=story.decisions.index
    )


def test_what_is_recorded_and_what_is_read_from_the_brokers_have_no_gap(tmp_path):
    """Decisions of the newest recorded millisecond may be in the tables in part, so all of them are read from Kafka."""
    story = a_day()
    recorded = read_recorded(tables_of(story, tmp_path), 0)

    published = {partition: at_ms for topic, partition, _, at_ms, _, _ in story.rows if topic == Topics().decisions}
    assert recorded.until_ms == published
    assert recorded.decisions
    assert all(at_ms < published[partition] for _, partition, at_ms in recorded.decisions)
    assert recorded.snapshots == newest_snapshots(tables_of(story, tmp_path / "again"))


def test_tables_of_another_number_of_partitions_are_refused(tmp_path):
    """`watch --home` of another deployment than that of the settings is a mistake, and no failure of the program."""
    with pytest.raises(
        InvalidUsage, match=rf"was made with {PARTITIONS} partitions, now there are 8; set `partitions`"
    ):
        read_ledger(tables_of(a_day(), tmp_path), Topics(), 8)


def test_a_folder_without_tables_is_refused(tmp_path):
    with pytest.raises(InvalidUsage, match="no table 'events'"):
        read_ledger(tmp_path, Topics(), PARTITIONS)


def test_a_follower_starts_without_tables(tmp_path):
    """`run` creates them later than `serve` starts."""
    assert newest_snapshots(tmp_path) == {}
