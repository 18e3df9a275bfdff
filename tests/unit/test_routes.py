"""What the observer makes of what it reads: when a queue is gone, and when the shards are told."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakeroll_model.queue import Queue
from wakeroll_pipeline.observer import subscribed_topics
from wakeroll_pipeline.observer.subscribed_topics import OffsetsSet, Subscribed
from wakeroll_pipeline.observer.ticks import next_due_s
from wakeroll_pipeline.observer.topic_routes import FORGET_READS, REFRESH_MS, RouteBook, Watch, fingerprint

TWO = {0: "a", 1: "b"}


def told(book: RouteBook, now_ms: int = 0) -> list[tuple[str, dict[int, str]]]:
    """Tell what is due, and return it: (topic, queue -> room)."""
    routes = [book.watch(topic).next_route(topic, {}, now_ms) for topic in book.due(now_ms)]
    return [(route.topic, {queue.queue_id: queue.room for queue in route.queues}) for route in routes]


def book_of(*reads: dict[int, str | None]) -> RouteBook:
    book = RouteBook()
    book.note_subscription("orders")
    for racks in reads:
        book.watch("orders").read(racks)
    return book


def test_a_topic_is_told_once_when_it_is_found():
    """The shards compare versions; what they know already only costs them time."""
    book = book_of(TWO)

    assert told(book) == [("orders", TWO)]
    assert told(book) == []


def test_added_queues_are_told_at_once():
    book = book_of(TWO)
    told(book)

    book.watch("orders").read({**TWO, 2: "a"})

    assert told(book) == [("orders", {**TWO, 2: "a"})]


def test_a_queue_is_gone_after_two_reads():
    """A broker that has just started may know less than there is; clients would drop live queues."""
    book = book_of(TWO)
    told(book)

    book.watch("orders").read({0: "a"})
    assert told(book) == []

    book.watch("orders").read({0: "a"})
    assert told(book) == [("orders", {0: "a"})]


def test_a_queue_that_comes_back_was_never_gone():
    book = book_of(TWO)
    told(book)

    for racks in ({0: "a"}, TWO, {0: "a"}, TWO):
        book.watch("orders").read(racks)

    assert told(book) == []


def test_two_reads_with_silence_between_them_are_not_two_in_a_row():
    """What a broker says before and after an outage is twice the word of a broker in trouble."""
    book = book_of(TWO)
    told(book)

    for _ in range(3):
        book.watch("orders").read({})
        book.trust_all()

    assert told(book) == []


def test_a_queue_without_a_leader_keeps_its_room():
    """An election is no move: a room that went and came would be two rebalances for nothing."""
    book = book_of(TWO)
    told(book)

    book.watch("orders").read({0: "a", 1: None})

    assert told(book) == []


def test_a_new_queue_without_a_leader_has_no_room_yet():
    assert told(book_of({0: None})) == [("orders", {0: ""})]


def test_a_leader_in_another_room_is_news():
    book = book_of(TWO)
    told(book)

    book.watch("orders").read({0: "a", 1: "a"})

    assert told(book) == [("orders", {0: "a", 1: "a"})]


def test_a_topic_that_does_not_exist_has_an_empty_route_after_two_reads():
    """Groups that subscribe it consume it from its first message if it is created later. One read is no proof."""
    assert told(book_of({})) == []

    book = book_of({}, {})
    assert told(book) == [("orders", {})]

    book.watch("orders").read(TWO)
    assert told(book) == [("orders", TWO)]


def test_a_topic_created_between_the_first_two_reads_is_marked_as_new():
    """It has no empty route, and its messages so far must not be skipped either."""

    def route_of(*reads):
        book = book_of(*reads)
        return [book.watch(topic).next_route(topic, {}, 0).is_new for topic in book.due(0)]

    assert [route_of({}, TWO), route_of(TWO), route_of(TWO, {}, TWO)] == [[True], [False], [False]]
    watch = book_of({}, TWO).watch("orders")
    assert [watch.next_route("orders", {}, now_ms).is_new for now_ms in (0, 1)] == [True, False]
    watch.mark_lost()
    assert watch.next_route("orders", {}, 2).is_new


def test_a_deleted_topic_has_an_empty_route_and_a_new_one_when_it_is_back():
    book = book_of(TWO)
    told(book)

    book.watch("orders").read({})
    assert told(book) == []
    book.watch("orders").read({})
    assert told(book) == [("orders", {})]
    book.watch("orders").read({})
    assert told(book) == []
    book.watch("orders").read({0: "a"})
    assert told(book) == [("orders", {0: "a"})]


def test_a_topic_deleted_while_no_observer_lived_is_told_by_the_next():
    """It never saw the topic."""
    book = book_of({})
    assert told(book) == []

    book.watch("orders").read({})

    assert told(book) == [("orders", {})]


def test_everything_is_told_again_after_a_minute():
    """For a shard that lost its state, and for fresh offsets."""
    book = book_of(TWO)
    told(book)

    assert told(book, REFRESH_MS - 1) == []
    assert told(book, REFRESH_MS) == [("orders", TWO)]
    assert told(book, REFRESH_MS + 1) == []


def test_a_route_that_did_not_arrive_is_told_again():
    book = book_of(TWO)
    told(book)

    book.mark_lost("orders")

    assert told(book) == [("orders", TWO)]


def test_a_topic_that_nobody_asks_for_is_dropped_and_found_again():
    book = book_of(TWO)
    told(book)

    forgotten = [book.forget() for _ in range(FORGET_READS + 1)]
    assert forgotten == [[]] * FORGET_READS + [["orders"]]
    assert (told(book, REFRESH_MS), book.topics, book.take_new()) == ([], [], ["orders"])

    book.note_subscription("orders")
    assert book.take_new() == ["orders"]


def test_a_topic_is_new_once():
    book = RouteBook()
    book.note_subscription("orders")
    book.note_subscription("orders")

    assert (book.take_new(), book.take_new(), book.topics) == (["orders"], [], ["orders"])


def test_offsets_are_those_of_this_read_or_else_the_last_ones():
    """A leader that does not answer says nothing about its queue's messages."""
    watch = Watch()
    watch.read({0: "", 1: "", 2: ""})
    watch.next_route("orders", {("orders", 0): (0, 7), ("orders", 1): (2, 5)}, 0)

    route = watch.next_route("orders", {("orders", 0): (3, 9)}, 0)

    assert [(queue.min_offset, queue.max_offset) for queue in route.queues] == [(3, 9), (2, 5), (0, None)]


def test_a_version_is_the_same_in_every_process():
    """A restarted observer must not rebalance every group by a new name for the old queues."""
    assert fingerprint({0: "a", 1: ""}) == "40a594de58b1f333"
    assert len({fingerprint(rooms) for rooms in ({}, {0: ""}, {0: "a"}, {1: "a"}, {0: "a", 1: ""})}) == 5


@given(st.lists(st.none() | st.dictionaries(st.integers(0, 3), st.none() | st.sampled_from("ab")), max_size=12))
def test_a_queue_is_kept_unless_two_reads_in_a_row_lack_it(reads):
    """None is a broker that did not answer."""
    watch = Watch()
    for racks in reads:
        if racks is None:
            watch.trust()
        else:
            watch.read(racks)

    def is_there(queue_id: int) -> bool:
        seen = [None if racks is None else queue_id in racks for racks in reads]
        if True not in seen:
            return False
        since = seen[len(seen) - seen[::-1].index(True) :]
        return (False, False) not in pairwise(since)

    assert watch.rooms.keys() == {queue_id for queue_id in range(4) if is_there(queue_id)}
    assert watch.version == fingerprint(watch.rooms)


@pytest.mark.parametrize(
    "junk",
    [
        None,
        b"",
        b"\xff\xfe",
        b"null",
        b"[1]",
        b'{"type":"tick"}',
        b'{"type":"heartbeat","subscriptions":7}',
        b'{"type":"heartbeat","subscriptions":[{"topic":"a b"}]}',
        b'{"type":"heartbeat","subscriptions":[' + b'{"topic":"t"},' * 1_000 + b'{"topic":"t"}]}',
        b'{"type":"route"}',
        b'{"type":"route","topic":"t","queues":[]}',
        b'{"type":"reset","offsets":[{"queue":"orders-1"}]}',
        b"[" * 100_000,
    ],
)
def test_junk_says_nothing(junk):
    """Anybody may write into the control topic; what the shards refuse is not routed either."""
    assert subscribed_topics.read(junk) is None


def test_a_heartbeat_says_what_it_subscribes_whatever_else_is_in_it():
    """A heartbeat of a newer client has fields that we do not know."""
    value = b'{"type":"heartbeat","group_id":1,"later":{},"subscriptions":[{"topic":"orders","expression":9}]}'

    said = subscribed_topics.read(value)

    assert isinstance(said, Subscribed)
    assert [wanted.topic for wanted in said.subscriptions] == ["orders"]


def test_a_reset_names_the_topics_whose_offsets_it_sets():
    """Offsets may be imported before anybody subscribes to the topic; a reset needs its route."""
    value = (
        b'{"type":"reset","group_id":"g","offsets":[{"queue":{"topic":"orders","broker":"","queue_id":1},"offset":7}]}'
    )

    said = subscribed_topics.read(value)

    assert isinstance(said, OffsetsSet)
    assert [entry.queue for entry in said.offsets] == [Queue("orders", "", 1)]


@given(st.floats(0, 1e6), st.floats(0, 1e5))
def test_ticks_stay_on_their_grid_and_are_never_made_up_for(start_s, late_s):
    """A laptop that slept for an hour sends one tick, not 3,600."""
    now_s = start_s + late_s

    due_s = next_due_s(start_s, now_s, 1.0)

    assert now_s < due_s <= now_s + 1.001
    assert abs(due_s - start_s - round(due_s - start_s)) < 1e-6
