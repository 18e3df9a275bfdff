"""The observer's part of patterns: which topics match, and when which group is told."""

import msgspec
import pytest

from wakeroll.connection import Topics
from wakeroll.topic_patterns import may_match
from wakeroll_model.config import MAX_DETAIL, MAX_TOPICS
from wakeroll_model.events import Heartbeat, Matches
from wakeroll_pipeline.observer import subscribed_topics
from wakeroll_pipeline.observer.pattern_book import LIST_MS, PatternBook
from wakeroll_pipeline.observer.topic_routes import FORGET_READS, REFRESH_MS

NAMES = Topics()


def book_of(*patterns: str) -> PatternBook:
    book = PatternBook(NAMES)
    for pattern in patterns:
        book.note("billing", pattern)
    return book


def matches(pattern: str, *topics: str) -> Matches:
    return Matches(group_id="billing", pattern=pattern, topics=list(topics))


@pytest.mark.parametrize(
    "topic",
    [
        *("wakeroll.groups", "wakeroll.leases", "__consumer_offsets", "__transaction_state", "retry.billing"),
        *("dlq.audit", "%RETRY%billing", "%DLQ%billing", ".."),
    ],
)
def test_internal_topics_and_those_of_failed_messages_match_no_pattern(topic):
    assert not may_match(topic, NAMES)
    book = book_of(".*")

    assert book.learn([topic, "orders", "wakeroll-orders"], 0) == {"orders", "wakeroll-orders"}


def test_the_whole_name_must_match():
    book = book_of("orders", "(?i)ORDERS.+")
    book.learn(["orders", "orders.eu", "my-orders"], 0)

    assert book.due(0) == [matches("orders", "orders"), matches("(?i)ORDERS.+", "orders.eu")]


def test_a_group_is_told_at_first_then_of_each_change_and_now_and_then_again():
    """A lost record is told again at once, and a topic that was deleted when its route has said so."""
    book = book_of("o.*")
    assert book.due(0) == []  # the topics are not known yet
    book.learn(["orders"], 0)
    assert book.due(0) == [matches("o.*", "orders")]
    assert book.due(REFRESH_MS - 1) == []
    assert book.due(REFRESH_MS) == [matches("o.*", "orders")]
    book.learn(["orders", "others"], REFRESH_MS)
    assert book.due(REFRESH_MS) == [matches("o.*", "orders", "others")]
    book.mark_lost(matches("o.*", "orders", "others"))
    assert len(book.due(REFRESH_MS)) == 1
    book.repeat("returns")
    assert book.due(REFRESH_MS) == []
    book.repeat("others")
    assert len(book.due(REFRESH_MS)) == 1


def test_topics_are_listed_only_while_a_member_has_a_pattern():
    book = PatternBook(NAMES)
    assert not book.must_list(0)
    book.note("billing", "o.*")
    assert book.must_list(0)
    book.learn([], 0)
    assert not book.must_list(LIST_MS - 1)
    assert book.must_list(LIST_MS)
    book.postpone(LIST_MS)  # no broker has answered
    assert not book.must_list(LIST_MS + 999)
    assert book.must_list(LIST_MS + 1_000)
    book.learn([], 0)
    book.note("billing", "p.*")  # a member that joins waits for its topics
    assert book.must_list(1)
    for _ in range(FORGET_READS + 1):
        book.note("billing", "p.*")
        book.forget()
    assert [one.pattern for one in book.due(REFRESH_MS)] == []
    book.learn(["other", "part"], 2)
    assert book.due(REFRESH_MS) == [matches("p.*", "part")]


@pytest.mark.parametrize("pattern", ["(", "(?=a)b", r"(a)\1", "a{1001}", "(((a{100}){100}){100})"])
def test_a_pattern_that_re2_does_not_accept_is_named(pattern):
    """Also one that needs too much memory: the group and its log learn why it has no topics."""
    book = book_of(pattern)
    book.learn(["a"], 0)
    [told] = book.due(0)

    assert told.topics == []
    assert told.problem.startswith(f"pattern {pattern!r} is no expression of RE2: ")
    assert "\n" not in told.problem


def test_no_pattern_takes_long():
    """Python's `re` would not return from the first of these names."""
    book = book_of("(a|a)*(a|aa)*(.*.*.*)*b")
    book.learn([("a" * 240) + str(number) for number in range(1_000)], 0)

    assert book.due(0)[0].topics == []


def test_a_pattern_subscribes_at_most_a_thousand_topics():
    book = book_of("t.*")
    book.learn([f"t{number}" for number in range(MAX_TOPICS + 1)], 0)
    [told] = book.due(0)

    assert len(told.topics) == MAX_TOPICS
    assert told.problem == "pattern 't.*' matches 1001 topics; only 1000 of them are subscribed"
    book = book_of("t" * 600 + "|.*")
    book.learn([f"t{number}" for number in range(MAX_TOPICS + 1)], 0)
    assert len(book.due(0)[0].problem) == MAX_DETAIL


def test_the_observer_reads_the_patterns_of_heartbeats():
    beat = Heartbeat(group_id="billing", client_id="c1", instance_id="i1", pattern="o.*")
    record = subscribed_topics.read(msgspec.json.encode(beat))

    assert isinstance(record, subscribed_topics.Subscribed)
    assert record.by_pattern == ("billing", "o.*")


@pytest.mark.parametrize(
    "wrong", [{"pattern": ""}, {"pattern": 7}, {"pattern": "a" * 1_025}, {"group_id": "a b"}, {"group_id": None}]
)
def test_a_pattern_that_the_coordinator_refuses_is_not_followed(wrong):
    """The topics that a heartbeat names are followed whatever else is in it."""
    beat = {
        "type": "heartbeat",
        "group_id": "billing",
        "pattern": "o.*",
        "subscriptions": [{"topic": "orders"}],
    } | wrong
    record = subscribed_topics.read(msgspec.json.encode(beat))

    assert isinstance(record, subscribed_topics.Subscribed)
    assert [one.topic for one in record.subscriptions] == ["orders"]
    assert record.by_pattern is None
