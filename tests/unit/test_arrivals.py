"""What the observer makes of the ends of queues: which are news, and how often it asks."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakeroll_model.config import CONFIRM_MS, HINT_MS, REFRESH_MS
from wakeroll_model.events import Arrival, Pull
from wakeroll_model.queue import Queue
from wakeroll_model.queue_end import QueueEnd
from wakeroll_pipeline.observer import end_offsets
from wakeroll_pipeline.observer.end_offsets import (
    ASK_MS,
    INSIST_MS,
    LOST_MS,
    REPEAT_MS,
    SELDOM_MS,
    TAGGED_MS,
    WAITED_MS,
    Arrived,
    EndBook,
    Pulled,
)

ORDERS = Queue("orders", "", 0)
AT = ("orders", 0)
US = "o1"


def news(book: EndBook, end: int, now_ms: int = 0) -> list[int]:
    """Let the brokers tell an end; return what is reported of it."""
    reports = book.take_news({AT: end}, now_ms)
    assert all(report.observer == US for report in reports)
    return [report.next_offset for report in reports]


def book_of(*said: Pulled | Arrived) -> EndBook:
    book = EndBook(US)
    for each in said:
        book.receive(each, 0)
    return book


def hint(next_offset: int, **more: object) -> Arrived:
    return Arrived(queue=ORDERS, next_offset=next_offset, **more)


def report(next_offset: int, observer: str = US) -> Arrived:
    return Arrived(queue=ORDERS, next_offset=next_offset, observer=observer)


def pulled(from_offset: int = 0, topic: str = "orders") -> Pulled:
    return Pulled(queue=Queue(topic, "", 0), from_offset=from_offset)


def told(book: EndBook, end: int, until_ms: int, *, is_heard: bool = True) -> list[int]:
    """Let the brokers tell the same end ten times a second; return when it is reported, and have the log show that."""
    found = []
    for now_ms in range(0, until_ms + 1, ASK_MS):
        for each in news(book, end, now_ms):
            found.append(now_ms)
            if is_heard:
                book.receive(report(each), now_ms)
    return found


def asked(book: EndBook, until_ms: int) -> list[int]:
    """Return when the ends of orders are asked for, with a look at the clock each tenth of a second."""
    return [now_ms for now_ms in range(0, until_ms + 1, ASK_MS) if book.take_due(["orders"], now_ms)]


def test_only_changes_are_told():
    """A quiet topic costs its readers nothing, whatever the number of its queues."""
    book = book_of()

    assert [news(book, end) for end in (0, 5, 5, 5, 6)] == [[], [5], [], [], [6]]


@pytest.mark.parametrize("said", [hint(7), report(7, "o2")])
def test_what_the_log_says_already_is_not_told_again(said):
    """By a producer, by another observer, or by the one that died: a restart is no storm of arrivals."""
    book = book_of(said)

    assert [news(book, end) for end in (7, 9)] == [[], [9]]


def test_a_late_arrival_changes_nothing():
    book = book_of(hint(9), hint(7), report(8))

    assert news(book, 9) == []


def test_our_own_arrival_is_heard_without_being_told_again():
    """Its way through the log takes longer than the time until the next read."""
    book = book_of(pulled(3))

    assert news(book, 5) == [5]
    assert news(book, 8) == [8]
    book.receive(report(5), 0)
    assert news(book, 8) == []
    book.receive(report(8), 0)
    assert news(book, 8) == []


def test_an_arrival_that_did_not_get_into_the_log_is_told_again():
    """Else whoever waits would sleep until the next message."""
    book = book_of(report(5))
    assert news(book, 6) == [6]

    book.mark_lost(ORDERS, 0)

    assert news(book, 6) == [6]


def test_an_arrival_that_the_log_does_not_show_is_told_again():
    """Even if Kafka said that it has it."""
    book = book_of(report(5))
    assert news(book, 6) == [6]

    assert [news(book, 6, now_ms) for now_ms in (LOST_MS - 1, LOST_MS)] == [[], [6]]


def test_the_end_of_a_queue_that_somebody_waits_for_is_told_every_minute():
    """The coordinator may have lost what it knew, or a report; and whatever it believes wrongly heals."""
    book = book_of(pulled())

    found = told(book, 0, 3 * REFRESH_MS)

    assert found == [REPEAT_MS, 2 * REPEAT_MS, 3 * REPEAT_MS]
    assert REPEAT_MS + SELDOM_MS <= REFRESH_MS


def test_a_minutely_report_that_is_lost_is_told_again():
    book = book_of(pulled())
    assert news(book, 0, 0) == []
    assert news(book, 0, REPEAT_MS) == [0]

    book.mark_lost(ORDERS, REPEAT_MS + 1_000)

    assert news(book, 0, REPEAT_MS + 1_100) == [0]


def test_a_queue_that_nobody_waits_for_is_told_of_when_it_grows_only():
    """The coordinator does not listen to more."""
    assert told(book_of(), 7, 3 * REFRESH_MS) == [0]


def test_a_hint_is_confirmed_before_it_is_forgotten():
    """Producers only hint at ends."""
    assert told(book_of(pulled(), hint(7)), 7, HINT_MS) == [REPEAT_MS]


def test_a_queue_has_become_shorter_when_two_reads_in_a_row_say_so():
    """A leader may be a little behind what it has acknowledged to a producer."""
    book = book_of(report(100))

    assert [news(book, end) for end in (99, 100, 99, 101)] == [[], [], [], [101]]


@pytest.mark.parametrize(
    ("said", "times"), [(report(100), 3), (report(100, "o2"), 3), (hint(100), 2), (pulled(100), 2)]
)
def test_what_the_log_says_too_much_is_contradicted_until_that_is_believed(said, times):
    """A truncation, a late report, a lie, or a client that waits beyond the end.

    Two reports that are 2 s apart are believed, but not as long as they share a window with the wrong one.
    """
    book = book_of(said)

    assert told(book, 7, 20_000) == [100 + number * INSIST_MS for number in range(times)]
    assert INSIST_MS > CONFIRM_MS


def test_it_is_contradicted_until_the_log_shows_that():
    assert told(book_of(report(100)), 7, 10_000, is_heard=False) == [100, 2_600, 5_100, 7_600]


def test_a_queue_that_grows_after_it_was_truncated_is_told_with_its_growth():
    book = book_of(report(100))

    assert [news(book, end) for end in (7, 7, 7, 8, 9)] == [[], [7], [], [8], [9]]


def test_a_truncation_that_did_not_get_into_the_log_is_still_one():
    book = book_of(report(100))
    assert [news(book, 7), news(book, 7)] == [[], [7]]

    book.mark_lost(ORDERS, 0)

    assert news(book, 7) == [7]


def test_who_waits_at_the_end_does_not_tell_it():
    """The coordinator takes only arrivals for ends: somebody else may wait for a message before this one."""
    assert [news(book_of(pulled(7)), end) for end in (7, 8)] == [[7], [8]]


def test_a_queue_of_a_broker_is_not_kafkas():
    """The same topic and number on a RocketMQ broker is another queue."""
    book = book_of(Arrived(queue=Queue("orders", "broker-a", 0), next_offset=100))

    assert news(book, 7) == [7]
    assert book.pulled(0) == []


def test_who_waits_is_asked_for_every_tenth_of_a_second():
    assert asked(book_of(pulled()), 500) == [0, 100, 200, 300, 400, 500]


def test_a_topic_that_nobody_pulls_is_asked_for_seldom():
    """Plain Kafka consumers wait at the broker: an arrival for each of their messages would wake nobody."""
    assert asked(EndBook(US), 11_000) == [0, 5_000, 10_000]


def test_the_first_pull_of_a_topic_is_not_kept_waiting():
    book = EndBook(US)
    assert asked(book, 1_000) == [0]

    book.receive(pulled(), 1_000)

    assert book.take_due(["orders"], 1_001) == ["orders"]


def test_a_topic_whose_producers_tell_more_is_asked_for_seldom():
    """An end says nothing of tags: it would wake every filtered hold for every message."""
    for said in (hint(3, tags="paid"), hint(3, tags=""), hint(3, tags_code=0), hint(3, properties={})):
        assert asked(book_of(pulled(), said), 11_000) == [0, 5_000, 10_000]


def test_a_topic_is_asked_for_often_again_a_minute_after_the_last_tagged_arrival():
    book = book_of(pulled(), hint(3, tags="paid"))

    found = asked(book, TAGGED_MS + 300)

    assert found[-5:] == [55_000, 60_000, 60_100, 60_200, 60_300]


def test_nobody_waits_any_more_when_no_pull_can_be_held():
    book = book_of(pulled())

    assert (book.pulled(WAITED_MS), book.pulled(WAITED_MS + 1)) == (["orders"], [])
    assert book.take_due(["orders"], WAITED_MS) == ["orders"]
    assert book.take_due(["orders"], WAITED_MS + 1 + ASK_MS) == []


def test_a_topic_has_a_rhythm_of_its_own():
    book = book_of(pulled(), pulled(topic="sent"), hint(3, tags="paid"))

    assert [book.take_due(["orders", "sent"], now_ms) for now_ms in (0, ASK_MS, SELDOM_MS)] == [
        ["orders", "sent"],
        ["sent"],
        ["orders", "sent"],
    ]


def test_what_nobody_asks_for_is_forgotten():
    """Topics come and go; when one is back, its end is news again."""
    book = book_of(hint(5))
    book.take_due(["orders"], 0)

    book.keep([], 0)

    assert book.take_due(["orders"], 1) == ["orders"]
    assert news(book, 5) == [5]


STEPS = st.tuples(
    st.sampled_from(["end", "other", "hint", "hear", "lost", "refused"]),
    st.integers(0, 9),
    st.sampled_from([0, 100, 3_000]),
)


@given(st.lists(STEPS, max_size=30))
def test_once_all_is_quiet_the_coordinator_knows_the_end_and_nothing_more_is_told(steps):
    """Whatever the order of reads, of others' reports, of lies and losses: the last word is the truth, soon."""
    book, log, waiting, now_ms = book_of(pulled()), QueueEnd(), [], 0

    def append(said: Arrived) -> None:
        if said.observer:
            log.report(said.next_offset, now_ms)
        else:
            log.hint(said.next_offset, now_ms)
        book.receive(said, now_ms)

    for what, number, later_ms in steps:
        now_ms += later_ms
        if what == "end":
            waiting += book.take_news({AT: number}, now_ms)
        elif what in ("other", "hint"):
            append(report(number, "o2") if what == "other" else hint(number))
        elif waiting:
            one = waiting.pop(0)
            if what == "hear":
                append(report(one.next_offset))
            elif what == "refused":
                book.mark_lost(ORDERS, now_ms)
    since_ms = now_ms
    for now_ms in range(since_ms, since_ms + LOST_MS + 2 * INSIST_MS, ASK_MS):
        for one in book.take_news({AT: 4}, now_ms):
            append(report(one.next_offset))

    assert log.reported_or_hinted(now_ms) == 4
    assert book.take_news({AT: 4}, now_ms + ASK_MS) == []


def test_a_record_is_read_as_the_machines_read_it():
    """What is said of a queue's end, from the bytes of the events themselves."""
    pull = Pull(request_id="1:1", group_id="g", client_id="c", instance_id="1", queue=ORDERS, from_offset=5)
    arrival = Arrival(queue=ORDERS, next_offset=6, tags="paid", properties={"region": "EU"})

    assert end_offsets.read(msgspec.json.encode(pull)) == pulled(5)
    assert end_offsets.read(msgspec.json.encode(arrival)) == hint(6, tags="paid", properties={"region": "EU"})
    assert not hint(6).has_filter_fields


@pytest.mark.parametrize(
    "junk",
    [
        None,
        b"",
        b"\xff",
        b"null",
        b'{"type":"tick"}',
        b'{"type":"cancel","request_id":"1:1"}',
        b'{"type":"pull","queue":{"topic":"orders","broker":"","queue_id":0},"from_offset":-1}',
        b'{"type":"arrival","queue":{"topic":"a b","broker":"","queue_id":0},"next_offset":1}',
        b"[" * 100_000,
    ],
)
def test_junk_says_nothing(junk):
    assert end_offsets.read(junk) is None
