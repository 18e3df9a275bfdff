"""The tables and their answers, while a topic of a group is cut into 8 slices, into 4, and made whole again."""

import datetime
import json
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from tests.support.chained_ledgers import append, append_snapshots, create_tables
from tests.support.control_log import START_MS
from tests.support.ledgers import PARTITIONS, Story, a_day, commit_by_slice, whole_again
from wakeroll.connection import Topics
from wakeroll.errors import InvalidUsage
from wakeroll.reset import queue_of
from wakeroll_model.decisions import Handover
from wakeroll_model.queue import Queue
from wakeroll_model.slices import cut
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.ledger.daily_facts import facts_of
from wakeroll_pipeline.ledger.delta_files import quoted
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger, duck_ledger, open_ledger
from wakeroll_pipeline.live.ledger_reader import read_ledger
from wakeroll_pipeline.live.live_model import LiveModel, ViewSource
from wakeroll_pipeline.live.view_structs import GroupView
from wakeroll_pipeline.metrics.group_choice import GroupChoice
from wakeroll_pipeline.questions.explain import explain
from wakeroll_pipeline.questions.happenings import happenings
from wakeroll_pipeline.questions.quality.check_in_duckdb import check_in_duckdb
from wakeroll_pipeline.serve.live_metrics import LiveMetrics

ORDERS = [Queue("orders", "", number) for number in range(2)]
EIGHT = [piece for queue in ORDERS for piece in cut(queue, 8)]
FOUR = [piece for queue in ORDERS for piece in cut(queue, 4)]
CUT_S, FOUR_S, WHOLE_S = 11, 106, 111
"""Seconds of the story at which the slices of another number are assigned."""


def write(home: Path, story: Story, without: str = "") -> Path:
    folder = home / "warehouse"
    create_tables(folder, without)
    chains = Chains(folder)
    append(folder, story, chains, without=without)
    append_snapshots(folder, story, chains)
    return folder


@pytest.fixture(scope="module")
def story() -> Story:
    return whole_again()


@pytest.fixture(scope="module")
def warehouse(story: Story, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("sliced"), story)


@pytest.fixture(scope="module")
def at(story: Story, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], DuckLedger]]:
    """Open the ledger as it was so many seconds after the beginning of the story."""
    opened: dict[int, DuckLedger] = {}

    def at(second: int) -> DuckLedger:
        if second not in opened:
            part = Story()
            part.rows = [row for row in story.rows if row[3] <= START_MS + 1_000 * second + 999]
            opened[second] = open_ledger(write(tmp_path_factory.mktemp(f"at {second}"), part))
        return opened[second]

    yield at
    for ledger in opened.values():
        ledger.close()


def queues_in(ledger: DuckLedger, view: str, value: str) -> dict[Queue, Any]:
    """Return queue -> a value of the rows of `billing` in a view."""
    rows = ledger.rows(
        f"select topic, broker, queue_id, slice, {value} as value from {view} where group_id = 'billing'"
    )
    found = {Queue.of_columns(*tuple(row)[:4]): row.value for row in rows}
    assert len(found) == len(rows)
    return found


def owners_by_decisions(story: Story, second: int) -> dict[Queue, str]:
    """Return queue -> its owner by the hand-overs until a moment."""
    owners: dict[Queue, str | None] = {}
    for one in story.decisions:
        if isinstance(one, Handover) and one.group_id == "billing" and one.at_ms <= START_MS + 1_000 * second:
            owners[one.queue] = one.to
    return {queue: owner for queue, owner in owners.items() if owner is not None}


# --- tables and views ---


@pytest.mark.parametrize(
    ("second", "queues"), [(9, ORDERS), (14, EIGHT), (40, EIGHT), (100, EIGHT), (109, FOUR), (120, ORDERS)]
)
def test_each_queue_has_the_owner_of_the_decisions_at_any_moment(story, at, second, queues):
    """And queues that others have replaced are not listed any more."""
    found = queues_in(at(second), "current_assignments", "client_id")

    assert sorted(found) == queues
    assert found == owners_by_decisions(story, second)


def test_tables_name_a_slice_beside_its_partition(at):
    """A queue that is not cut has null there, as in all rows of earlier releases."""
    rows = at(120).rows("select distinct slice from assignments where group_id = 'plain'")
    slices = at(120).rows("select distinct slice from offsets where queue_id = 0 and group_id = 'billing'")

    assert [row.slice for row in rows] == [None]
    assert sorted(row.slice or "" for row in slices) == sorted(
        ["", *(f"{number}/8" for number in range(8)), *(f"{number}/4" for number in range(4))]
    )


def test_the_offset_and_the_lag_of_each_slice_are_its_own(at):
    offsets = queues_in(at(100), "current_offsets", "committed_offset")
    lags = queues_in(at(100), "lag", "lag_messages")

    assert offsets == {queue: 400 + queue.slice for queue in EIGHT}
    assert lags == {queue: 600 - queue.slice for queue in EIGHT}


def test_a_slice_begins_with_what_the_slices_before_had_committed(at):
    """It has an offset before its owner commits, and the former slices have none any more."""
    assert queues_in(at(108), "current_offsets", "committed_offset") == {queue: 400 + 2 * queue.slice for queue in FOUR}


def test_no_pause_lasts_from_one_cut_to_the_next(at):
    """orders-0 was cut for 100 seconds, in which its slices were read."""
    rows = at(120).rows("select assigned_ms - released_ms as pause_ms from handovers where assigned_ms is not null")

    assert {row.pause_ms for row in rows} <= {None, 0}


# --- check ---


def broken(ledger: DuckLedger) -> set[str]:
    outcomes = check_in_duckdb(ledger)
    assert [one.not_checked for one in outcomes if one.not_checked] == []
    return {one.rule.name for one in outcomes if one.broken}


def test_the_ledger_is_sound(warehouse):
    with duck_ledger(warehouse) as ledger:
        assert broken(ledger) == set()


OF_THE_OTHER = "slice = '3/8' and how = 'first' and queue_id = 1"
PLANTED = {
    "two owners of a slice": ({"client_id": "'c9'"}, "slice = '3/8' and how = 'unregistered'"),
    "an owner of the whole partition": ({"queue_id": "0", "slice": "null"}, OF_THE_OTHER),
    "an owner of a slice that contains others": ({"queue_id": "0", "slice": "'1/4'"}, OF_THE_OTHER),
}
"""Fault -> new values of columns of `assignments`, and the rows that get them."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_wrong_owner_of_a_slice_is_found(warehouse, name):
    """Of the slice itself, and of one that has messages in common with it."""
    values, where = PLANTED[name]
    with duck_ledger(warehouse) as ledger:
        columns = [row.column_name for row in ledger.rows("describe assignments")]
        shown = ", ".join(
            f"case when {where} then {values.get(one, quoted(one))} else {quoted(one)} end as {quoted(one)}"
            for one in columns
        )
        ledger.connection.execute(f"create table planted as select {shown} from assignments")
        ledger.connection.execute("alter view assignments rename to sound_assignments")
        ledger.connection.execute("create view assignments as from planted")

        assert {"assignments.ownership", "assignments.decided"} <= broken(ledger)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of an earlier release, whose tables lack the column."""
    return write(tmp_path_factory.mktemp("earlier"), a_day(), without="slice")


def test_a_ledger_of_an_earlier_release_is_read_and_checked_as_before(earlier):
    with duck_ledger(earlier) as ledger:
        owners = ledger.rows("select queue_id, slice, client_id from current_assignments where group_id = 'billing'")
        offsets = ledger.rows("select count(*) as rows, count(slice) as slices from current_offsets")

        assert sorted((row.queue_id, row.slice, row.client_id) for row in owners) == [
            (number, None, "c3") for number in range(10)
        ]
        assert [(row.rows > 0, row.slices) for row in offsets] == [(True, 0)]
        assert explain(ledger, "billing", queue_of("orders-7")).answer.startswith("orders-7 of billing is owned by c3")
        assert broken(ledger) == set()


# --- explain and happened ---


def test_a_slice_is_explained(at):
    explanation = explain(at(100), "billing", queue_of("orders-1/7of8"), START_MS + 50_000)

    assert explanation.answer == (
        "orders-1/7of8 of billing is owned by c3 since 2023-11-14T22:13:36.000Z (epoch 4), "
        "as of 2023-11-14T22:14:10.000Z"
    )
    assert [step.what for step in explanation.steps] == [
        "heartbeat of c3, c3 joined (orders)",
        "rebalance to epoch 4 by join: AVG shares 16 queues among 3 clients, 7 must move; slices: orders 8",
        "a revocation was sent to c2",
        "c2 released the queue",
        "the queue was assigned to c3, from offset 207",
    ]


def test_a_new_slice_tells_what_was_processed_before(at):
    explanation = explain(at(109), "billing", queue_of("orders-0/1of4"))

    assert explanation.steps[-1].what == (
        "the queue was assigned to c3 as its first owner, from offset 402; processed before: slice 3/8 to 403"
    )


def test_a_partition_that_is_cut_names_its_slices(at):
    """A user who asks for the whole queue learns its slices."""
    assert explain(at(109), "billing", queue_of("orders-0")).answer == (
        "orders-0 of billing is no queue any more since 2023-11-14T22:13:31.000Z (epoch 3), because the number of "
        "slices changed; its partition now has orders-0/0of4 of c3, orders-0/1of4 of c3, orders-0/2of4 of c3, "
        "orders-0/3of4 of c3"
    )
    with pytest.raises(
        InvalidUsage, match=r"orders-0/15of16 never had an owner in billing; its partition has orders-0/0of4"
    ):
        explain(at(109), "billing", queue_of("orders-0/15of16"))


@pytest.mark.parametrize("text", ["orders-0/8of8", "orders-0/1of3", "orders-0/1of128", "orders-0/of8", "orders-0/1"])
def test_a_slice_that_cannot_exist_is_refused(text):
    with pytest.raises(InvalidUsage, match="is not a queue; expected a topic and a number, like orders-3, or a slice"):
        queue_of(text)


def test_what_happened_names_slices(at):
    found = happenings(at(40), START_MS + 15_000, START_MS + 17_000, "billing")

    moved = [one.queue for one in found.events if one.kind == "hand-over"]
    assert sorted(moved) == [*(f"orders-0/{n}of8" for n in (6, 7)), *(f"orders-1/{n}of8" for n in (3, 4, 5, 6, 7))]


# --- daily facts ---


def facts_in(ledger: DuckLedger) -> dict[str, Any]:
    """Return the facts of `billing` on the day of the story."""
    facts = pa.table(facts_of(ledger, datetime.date(2023, 11, 14))).to_pylist()
    [row] = [row for row in facts if row["group_id"] == "billing"]
    return row


def test_a_day_counts_the_lag_of_a_partition_once(at):
    """By its lowest offset, also while some slices were committed and others were not."""
    facts = facts_in(at(100))

    assert facts["lag_at_end_messages"] == 2 * 600
    assert facts["lag_max_messages"] == 2 * 900
    assert facts["repeats_possible"] == 700
    assert facts["unowned_queue_ms"] == 0


def test_the_lowest_offset_of_slices_is_followed_through_changes_of_their_number(tmp_path):
    """Compared with the offsets as they are at the end."""
    story = whole_again()
    for number, offset in ((64, 905), (2, 950)):
        story.configure("billing", slices={"orders": number})
        story.pass_seconds(5)
        commit_by_slice(story, "billing", offset)
    with duck_ledger(write(tmp_path, story)) as ledger:
        facts = facts_in(ledger)
        lags = ledger.rows(
            "select queue_id, max(lag_messages) as lag from lag where group_id = 'billing' group by queue_id"
        )

    assert facts["lag_at_end_messages"] == sum(one.lag for one in lags) == 2 * 50


# --- page, lag and metrics ---


@pytest.fixture(scope="module")
def model(at) -> Callable[[int], LiveModel]:
    return lambda second: read_ledger(at(second).warehouse, Topics(), PARTITIONS)


def view_of(model: LiveModel) -> GroupView:
    view = model.group_view("billing")
    assert view is not None
    return view


@pytest.mark.parametrize(("second", "queues"), [(9, ORDERS), (100, EIGHT), (109, FOUR), (120, ORDERS)])
def test_the_page_has_the_slices_with_their_owners(story, model, second, queues):
    view = view_of(model(second))

    assert [one.queue for one in view.queues] == queues
    assert {one.queue: one.owner for one in view.queues} == owners_by_decisions(story, second)
    assert [lane.queue for lane in view.lanes] == [str(queue) for queue in queues]
    assert (view.summary.queues, view.summary.unowned) == (len(queues), 0)


def test_sums_of_the_page_take_each_partition_once(model):
    view = view_of(model(100))

    assert [one.lag_messages for one in view.queues] == [600 - queue.slice for queue in EIGHT]
    assert (view.summary.lag_messages, view.summary.max_lag_messages) == (2 * 600, 600)
    assert {one.client_id: one.lag_messages for one in view.members} == {"c3": 600, "c4": 600}


def test_the_command_shows_the_lag_of_slices_and_of_partitions(at, wakeroll):
    home = str(at(100).warehouse.parent)
    code, text, _ = wakeroll("lag", "billing", "--home", home)
    answer = json.loads(wakeroll("lag", "billing", "--home", home, "--json")[1])

    assert code == 0
    assert "orders-1/7of8" in text
    assert [
        (one["name"], one["slices"], one["committed_offset"], one["lag_messages"]) for one in answer["partitions"]
    ] == [("orders-0", 8, 400, 600), ("orders-1", 8, 400, 600)]
    assert {(one["queue_id"], one["slice"]): one["lag_messages"] for one in answer["queues"]} == {
        (queue.queue_id, queue.slice_text): 600 - queue.slice for queue in EIGHT
    }


def test_metrics_have_a_series_per_partition_and_one_per_slice(model):
    """So sums over the names of Kafka's exporters count each partition once."""
    registry = CollectorRegistry()
    source = ViewSource(model(100))
    LiveMetrics(source, registry, GroupChoice(registry, 10), 100)
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for name, samples in groupby(
        (sample for family in registry.collect() for sample in family.samples), lambda one: one.name
    ):
        found[name] = {tuple(one.labels.values()): one.value for one in samples if "billing" in one.labels.values()}

    assert found["kafka_consumergroup_lag"] == {("billing", "orders", str(number)): 600 for number in range(2)}
    assert found["kafka_consumergroup_current_offset"] == {
        ("billing", "orders", str(number)): 400 for number in range(2)
    }
    assert found["wakeroll_slice_lag_messages"] == {
        ("billing", "orders", str(queue.queue_id), queue.slice_text): 600 - queue.slice for queue in EIGHT
    }
    assert found["wakeroll_slice_committed_offset"] == {
        ("billing", "orders", str(queue.queue_id), queue.slice_text): 400 + queue.slice for queue in EIGHT
    }


# --- commands ---


def test_a_replay_decides_the_same(warehouse, wakeroll):
    """Of the whole log, and from the snapshot on that was taken while the topic was cut."""
    home = str(warehouse.parent)

    assert wakeroll("replay", "--home", home)[0] == 0
    assert wakeroll("replay", "--home", home, "--from", "2023-11-14T22:14:30Z")[0] == 0


def test_explain_takes_the_name_of_a_slice(at, wakeroll):
    code, text, _ = wakeroll("explain", "billing", "orders-1/7of8", "--home", str(at(100).warehouse.parent))

    assert code == 0
    assert "orders-1/7of8 of billing is owned by c4 since" in " ".join(text.split())


def test_describe_and_groups_count_slices_as_queues(at, wakeroll):
    home = str(at(100).warehouse.parent)
    described = json.loads(wakeroll("describe", "billing", "--home", home, "--json")[1])
    listed = json.loads(wakeroll("groups", "--home", home, "--json")[1])

    assert [one["name"] for one in described["queues"]] == [str(queue) for queue in EIGHT]
    assert [(one["name"], one["value"]) for one in described["settings"] if one["name"] == "slices"] == [
        ("slices", '{"orders":8}')
    ]
    assert {one["group_id"]: (one["queues"], one["lag_messages"]) for one in listed["groups"]} == {
        "billing": (16, 2 * 600),
        "plain": (2, 2 * 500),
    }
