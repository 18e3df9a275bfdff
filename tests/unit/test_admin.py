"""What an operator asks for, before anything is connected: places, plans, and a sentence for each mistake."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakeroll import Admin, EpochMs, InvalidUsage, NotReachable
from wakeroll.group_summary import History
from wakeroll.reset import Shift, in_words, place_of, plan_of, queue_of
from wakeroll.time_text import time_of
from wakeroll_model import config
from wakeroll_model.decisions import Membership, Offset, Rejected
from wakeroll_model.queue import Queue

NOWHERE = "127.0.0.1:1"
MORNING_MS = 1_782_874_800_000
"""2026-07-01T03:00:00Z."""


def queue(number: int, topic: str = "orders") -> Queue:
    return Queue(topic, "", number)


def committed(number: int, offset: int, client_id: str = "a", mode: str = "clustering") -> Offset:
    return Offset(group_id="billing", queue=queue(number), client_id=client_id, offset=offset, epoch=1, mode=mode)


@pytest.mark.parametrize(
    "text",
    [
        "2026-07-01T03:00:00Z",
        "2026-07-01T03:00Z",
        "2026-07-01 03:00:00.000+00:00",
        "2026-07-01T05:00:00+02:00",
        "20260701T030000Z",
        "1782874800000",
    ],
)
def test_a_time_may_be_written_in_several_ways(text):
    """ISO 8601 as people and programs write it, and the epoch milliseconds that tables show."""
    assert time_of(text) == EpochMs(MORNING_MS)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("yesterday", r"'yesterday' is not a time; expected a time like 2026-07-01T03:00:00Z, or epoch milliseconds"),
        ("", r"'' is not a time"),
        ("-5", r"'-5' is not a time"),
        ("1782874800.5", r"is not a time"),
        ("2026-13-01T00:00Z", r"is not a time"),
        ("2026-07-01T03:00:00", r"2026-07-01T03:00:00 has no time zone; write 2026-07-01T03:00:00Z"),
        ("2026-07-01", r"2026-07-01T00:00:00 has no time zone"),
        ("1969-12-31T23:59:59Z", r"-1000 is not a time; it must be 0 to 253402300799999 epoch ms"),
        ("999999999999999", r"999999999999999 is not a time"),
    ],
)
def test_what_is_no_time_is_refused(text, sentence):
    """Without a zone, two people would read two times in it; below 0, Kafka reads "first" and "last"."""
    with pytest.raises(InvalidUsage, match=sentence):
        time_of(text)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("20m ago", 20),
        ("-20m", 20),
        ("20m", 20),
        ("20 min ago", 20),
        ("1 hour ago", 60),
        ("an hour ago", 60),
        ("1h30m ago", 90),
        ("1 hour, 30 minutes ago", 90),
        ("2 Days Ago", 2 * 24 * 60),
        ("1w", 7 * 24 * 60),
        ("60000ms ago", 1),
        ("now", 0),
    ],
)
def test_a_time_may_count_back_from_now(text, minutes):
    """Nobody computes at three in the morning when 20 minutes ago was."""
    assert time_of(text, MORNING_MS) == MORNING_MS - minutes * 60_000


@pytest.mark.parametrize(
    "text", ["", "ago", "-", "m ago", "20 moons ago", "yesterday", "20m later", "+20m", "1.5h ago", "--20m", "1h 30"]
)
def test_what_does_not_count_back_is_no_time(text):
    with pytest.raises(InvalidUsage, match=r"is not a time; expected 20m ago, a time like 2026-07-01T03:00:00Z, or"):
        time_of(text, MORNING_MS)


def test_longer_ago_than_times_exist_is_refused():
    with pytest.raises(InvalidUsage, match="is not a time; it must be 0 to"):
        time_of("99999 days ago", MORNING_MS)


MOMENTS = st.datetimes(
    datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=st.sampled_from([UTC, timezone(timedelta(hours=-11))])
)


@given(moment=MOMENTS)
def test_a_datetime_becomes_the_first_millisecond_that_is_not_before_it(moment):
    """Kafka looks for the first message at or after it; rounded down, a message from before could be taken."""
    found = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=EpochMs.of(moment))

    assert timedelta(0) <= found - moment < timedelta(milliseconds=1)


def test_a_number_is_an_offset_unless_it_says_that_it_is_a_time():
    """Both are large numbers; taken for each other, a group would start anywhere."""
    assert type(place_of(MORNING_MS)) is int
    assert type(place_of(EpochMs(MORNING_MS))) is EpochMs
    assert place_of(datetime(2026, 7, 1, 3, tzinfo=UTC)) == EpochMs(MORNING_MS)
    assert str(EpochMs(MORNING_MS)) == "2026-07-01T03:00:00.000Z"


@pytest.mark.parametrize("where", ["earliest", "", -1, 2**63, True, 1.5, None, datetime(2026, 7, 1)])
def test_what_is_no_place_is_refused(where):
    with pytest.raises(InvalidUsage, match=r"it must be 'first', 'last', 'current', an offset|has no time zone"):
        place_of(where)


def test_a_queue_is_named_by_its_topic_and_number():
    """A topic's name may have hyphens and digits of its own."""
    assert queue_of("eu-orders-2026-3") == Queue("eu-orders-2026", "", 3)
    for text in ("orders", "orders-", "-3", "orders-x", "or ders-3", "orders-99999999999"):
        with pytest.raises(InvalidUsage, match=r"is not a queue; expected a topic and a number|a queue's topic is"):
            queue_of(text)


def test_a_plan_says_how_far_each_queue_goes_back_or_forth():
    """Sorted as queues sort, not as their names do; what is not known has no difference."""
    history = History.of([committed(2, 50), committed(10, 7), committed(2, 60)])

    plan = plan_of("billing", "to offset 40", {queue(10): 40, queue(2): 40, queue(3): 40}, history)

    assert [(str(row.queue), row.committed, row.offset, row.difference) for row in plan.rows] == [
        ("orders-2", 60, 40, -20),
        ("orders-3", None, 40, None),
        ("orders-10", 7, 40, 33),
    ]
    assert [(entry.queue.queue_id, entry.offset) for entry in plan.offsets] == [(2, 40), (3, 40), (10, 40)]


def test_members_continue_in_another_shard_but_not_in_another_era():
    """`wakeroll reshard` moves a group within its era."""

    def membership(shard: str, seq: int, client_id: str, change: Any) -> Membership:
        return Membership(shard=shard, seq=seq, group_id="billing", client_id=client_id, change=change, epoch=seq)

    history = History.of(
        [
            membership("groups-0.1", 1, "", "emptied"),
            membership("groups-0.1", 2, "a", "joined"),
            membership("groups-0.1", 3, "b", "joined"),
            membership("groups-4.1", 4, "a", "left"),
        ]
    )
    assert history.members == {"b"}

    history.learn(Rejected(shard="queues-2.7", seq=9, group_id="billing", rule="bounds", detail=""))
    assert history.members == {"b"}, "a rejection by another shard is no new era of the group's"

    history.learn(membership("groups-4.2", 1, "c", "joined"))
    assert history.members == {"c"}


def test_a_plan_of_a_broadcasting_group_has_a_row_for_each_client_and_asks_once_a_queue():
    """Each client has an offset of its own, and a reset is for all of them."""
    own = [committed(0, 10, "a", "broadcasting"), committed(0, 20, "b", "broadcasting")]

    plan = plan_of("billing", "to the first message", {queue(0): 5}, History.of(own))

    assert [(row.client_id, row.committed, row.difference) for row in plan.rows] == [("a", 10, -5), ("b", 20, -15)]
    assert [(entry.queue.queue_id, entry.offset) for entry in plan.offsets] == [(0, 5)]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("first", "to the first message"),
        ("last", "to the end"),
        (40, "to offset 40"),
        ("current", "to the committed offset"),
        (Shift(-5), "5 messages back"),
        (EpochMs(MORNING_MS), "to the first message since 2026-07-01T03:00:00.000Z"),
    ],
)
def test_the_record_says_in_words_what_was_asked_for(place, words):
    """Who reads the tables in a month sees offsets, and should see the reason for them."""
    assert in_words(place) == words


def test_a_plan_fits_into_one_record_or_is_refused():
    """One request is all or nothing, so it must not be cut in two silently."""
    with pytest.raises(InvalidUsage, match=r"cannot reset 32769 queues at once, at most 32768; name a topic"):
        plan_of("billing", "to offset 0", {queue(number): 0 for number in range(config.MAX_QUEUES + 1)}, History())
    with pytest.raises(InvalidUsage, match=r"group 'billing' has no queue to reset"):
        plan_of("billing", "to offset 0", {}, History())


def test_an_admin_names_a_broker_that_does_not_answer_and_settings_that_are_wrong():
    with pytest.raises(NotReachable, match=r"no Kafka broker answered at 127\.0\.0\.1:1 within 0\.5 s"):
        Admin(NOWHERE, connect_timeout=0.5)
    with pytest.raises(InvalidUsage, match=r"cannot be set: no\.such\.setting \(not among"):
        Admin(NOWHERE, kafka_config={"no.such.setting": "1"})
    with pytest.raises(InvalidUsage, match=r"bootstrap is empty"):
        Admin("")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["reset-offsets", "g"],
            "0 targets are named; use exactly one of --to-first, --to-last, --to-current, --to-offset",
        ),
        (
            ["reset-offsets", "g", "--to-first", "--to-offset", "0"],
            "2 targets are named; use exactly one of --to-first",
        ),
        (["reset-offsets", "g", "--to-time", "noon"], "'noon' is not a time"),
        (["reset-offsets", "g", "--to-last", "--queue", "orders"], "'orders' is not a queue"),
        (["reset-offsets", "g", "--to-last", "--execute", "--dry-run"], "--execute and --dry-run exclude each other"),
        (["configure", "g", "--strategy-params", "[1]"], "--strategy-params is '[1]'; it must be a JSON object"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_on_the_command_line_gets_one_sentence_and_exit_code_2(arguments, sentence, wakeroll):
    """Before anything is connected: nobody listens where this points."""
    code, _, complaint = wakeroll(*arguments, "--bootstrap", NOWHERE)

    assert code == 2
    [said] = [line for line in complaint.splitlines() if line.startswith("wakeroll: ")]  # others are of Kafka's clients
    assert said.startswith(f"wakeroll: {sentence}")
