"""What the observer makes of the ends of queues: which are news, and how often it asks."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.events import Arrival, Pull
from model.queue import Queue
from pipeline import ends
from pipeline.ends import ASK_MS, SELDOM_MS, TAGGED_MS, WAITED_MS, Arrived, EndBook, Pulled

ORDERS = Queue("orders", "", 0)
AT = ("orders", 0)


def news(book: EndBook, end: int) -> list[tuple[int, bool]]:
    """Let the brokers tell an end; return what is news of it: (next_offset, truncated)."""
    return [(arrival.next_offset, arrival.truncated) for arrival in book.take_news({AT: end})]


def book_of(*said: Pulled | Arrived) -> EndBook:
    book = EndBook()
    for each in said:
        book.hear(each, 0)
    return book


def grown(next_offset: int, **more: object) -> Arrived:
    return Arrived(queue=ORDERS, next_offset=next_offset, **more)


def pulled(from_offset: int = 0, topic: str = "orders") -> Pulled:
    return Pulled(queue=Queue(topic, "", 0), from_offset=from_offset)


def asked(book: EndBook, until_ms: int) -> list[int]:
    """Return when the ends of orders are asked for, with a look at the clock each tenth of a second."""
    return [now_ms for now_ms in range(0, until_ms + 1, ASK_MS) if book.take_due(["orders"], now_ms)]


def test_only_changes_are_told():
    """A quiet topic costs its readers nothing, whatever the number of its queues."""
    book = EndBook()

    assert [news(book, end) for end in (0, 5, 5, 5, 6)] == [[], [(5, False)], [], [], [(6, False)]]


def test_what_the_log_says_already_is_not_told_again():
    """By a producer, by another observer, or by the one that died: a restart is no storm of arrivals."""
    book = book_of(grown(7))

    assert [news(book, end) for end in (7, 9)] == [[], [(9, False)]]


def test_a_late_arrival_changes_nothing():
    book = book_of(grown(9), grown(7))

    assert news(book, 9) == []


def test_our_own_arrival_is_heard_without_being_told_again():
    """Its way through the log takes longer than the time until the next read."""
    book = book_of(pulled(3))

    assert news(book, 5) == [(5, False)]
    assert news(book, 8) == [(8, False)]
    book.hear(grown(5), 0)
    assert news(book, 8) == []
    book.hear(grown(8), 0)
    assert news(book, 8) == []


def test_an_arrival_that_did_not_get_into_the_log_is_told_again():
    """Else whoever waits would sleep until the next message."""
    book = book_of(grown(5))
    assert news(book, 6) == [(6, False)]

    book.unsaid(ORDERS)

    assert news(book, 6) == [(6, False)]


def test_a_queue_has_become_shorter_when_two_reads_in_a_row_say_so():
    """A leader may be a little behind what it has acknowledged to a producer; a truncation wakes everybody."""
    book = book_of(grown(100))
    assert [news(book, end) for end in (99, 100, 99, 101)] == [[], [], [], [(101, False)]]

    assert [news(book, end) for end in (7, 7, 7, 8)] == [[], [(7, True)], [], [(8, False)]]


def test_a_truncation_that_did_not_get_into_the_log_is_still_one():
    book = book_of(grown(100))
    assert [news(book, 7), news(book, 7)] == [[], [(7, True)]]

    book.unsaid(ORDERS)

    assert [news(book, 7), news(book, 7)] == [[], [(7, True)]]


def test_a_truncation_in_the_log_counts():
    """Another observer was faster."""
    book = book_of(grown(100), grown(7, truncated=True))

    assert [news(book, 7), news(book, 7)] == [[], []]


def test_who_waits_beyond_the_end_shows_that_the_queue_became_shorter():
    """The topic was made anew while no observer lived: nothing else would ever wake this client."""
    book = book_of(pulled(100))

    assert [news(book, 7), news(book, 7), news(book, 7)] == [[], [(7, True)], []]


def test_who_waits_at_the_end_does_not_tell_it():
    """The coordinator takes only arrivals for ends: somebody else may wait for a message before this one."""
    assert [news(book_of(pulled(7)), end) for end in (7, 8)] == [[(7, False)], [(8, False)]]


def test_a_queue_of_a_broker_is_not_kafkas():
    """The same topic and number on a RocketMQ broker is another queue."""
    book = book_of(Arrived(queue=Queue("orders", "broker-a", 0), next_offset=100))

    assert news(book, 7) == [(7, False)]
    assert book.pulled(0) == []


def test_who_waits_is_asked_for_every_tenth_of_a_second():
    assert asked(book_of(pulled()), 500) == [0, 100, 200, 300, 400, 500]


def test_a_topic_that_nobody_pulls_is_asked_for_seldom():
    """Plain Kafka consumers wait at the broker: an arrival for each of their messages would wake nobody."""
    assert asked(EndBook(), 11_000) == [0, 5_000, 10_000]


def test_the_first_pull_of_a_topic_is_not_kept_waiting():
    book = EndBook()
    assert asked(book, 1_000) == [0]

    book.hear(pulled(), 1_000)

    assert book.take_due(["orders"], 1_001) == ["orders"]


def test_a_topic_whose_producers_tell_more_is_asked_for_seldom():
    """An end says nothing of tags: it would wake every filtered hold for every message."""
    for said in (grown(3, tags="paid"), grown(3, tags=""), grown(3, tags_code=0), grown(3, properties={})):
        assert asked(book_of(pulled(), said), 11_000) == [0, 5_000, 10_000]


def test_a_topic_is_asked_for_often_again_a_minute_after_the_last_tagged_arrival():
    book = book_of(pulled(), grown(3, tags="paid"))

    found = asked(book, TAGGED_MS + 300)

    assert found[-5:] == [55_000, 60_000, 60_100, 60_200, 60_300]


def test_nobody_waits_any_more_when_no_pull_can_be_held():
    book = book_of(pulled())

    assert (book.pulled(WAITED_MS), book.pulled(WAITED_MS + 1)) == (["orders"], [])
    assert book.take_due(["orders"], WAITED_MS) == ["orders"]
    assert book.take_due(["orders"], WAITED_MS + 1 + ASK_MS) == []


def test_a_topic_has_a_rhythm_of_its_own():
    book = book_of(pulled(), pulled(topic="sent"), grown(3, tags="paid"))

    assert [book.take_due(["orders", "sent"], now_ms) for now_ms in (0, ASK_MS, SELDOM_MS)] == [
        ["orders", "sent"],
        ["sent"],
        ["orders", "sent"],
    ]


def test_what_nobody_asks_for_is_forgotten():
    """Topics come and go; when one is back, its end is news again."""
    book = book_of(grown(5))
    book.take_due(["orders"], 0)

    book.keep([], 0)

    assert book.take_due(["orders"], 1) == ["orders"]
    assert news(book, 5) == [(5, False)]


@given(st.lists(st.tuples(st.sampled_from(["end", "other", "hear", "lost"]), st.integers(0, 9)), max_size=30))
def test_once_all_is_quiet_the_log_says_the_end_and_nothing_more_is_told(steps):
    """Whatever the order of reads, of other observers' arrivals and of losses: the last word is the truth."""
    book, log, waiting = EndBook(), 0, []

    def append(next_offset: int, truncated: bool) -> None:
        nonlocal log
        log = next_offset if truncated else max(log, next_offset)
        book.hear(grown(next_offset, truncated=truncated), 0)

    for what, number in steps:
        if what == "end":
            waiting += book.take_news({AT: number})
        elif what == "other":
            append(number, truncated=False)
        elif waiting and what == "hear":
            arrival = waiting.pop(0)
            append(arrival.next_offset, arrival.truncated)
        elif waiting:
            waiting.pop(0)
            book.unsaid(ORDERS)
    for _ in range(9):
        for arrival in waiting:
            append(arrival.next_offset, arrival.truncated)
        waiting = book.take_news({AT: 4})

    assert (log, waiting) == (4, [])


def test_a_record_is_read_as_the_machines_read_it():
    """What is said of a queue's end, from the bytes of the events themselves."""
    pull = Pull(request_id="1:1", group_id="g", client_id="c", instance_id="1", queue=ORDERS, from_offset=5)
    arrival = Arrival(queue=ORDERS, next_offset=6, tags="paid", properties={"region": "EU"})

    assert ends.read(msgspec.json.encode(pull)) == pulled(5)
    assert ends.read(msgspec.json.encode(arrival)) == grown(6, tags="paid", properties={"region": "EU"})
    assert not grown(6).says_more


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
    assert ends.read(junk) is None
