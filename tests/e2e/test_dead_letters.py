"""The dead letters of a group on a real broker: listed, shown, sent again and dropped, in Python and as a command."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jsonschema
import pytest
from confluent_kafka import Message, TopicPartition

from tests.support.waiting import wait_until
from wakeroll import Consumer, DeadLetter, DeadLetters, InvalidUsage, Origin, origin_of
from wakeroll.failure_topics import ensure_failure_topics
from wakeroll_model.retry_topics import dead_letter_topic_of, retry_topic_of
from wakeroll_pipeline.cli.answer_schemas import answer_schemas
from wakeroll_pipeline.cli.app import run_app

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0


@pytest.fixture
def topic(coordinator) -> str:
    return coordinator.topic(1)


@pytest.fixture
def letters(coordinator, group_id) -> Iterator[DeadLetters]:
    with DeadLetters(group_id, coordinator.connection.bootstrap) as found:
        yield found


@pytest.fixture
def consumer_of(coordinator, group_id, topic) -> Callable[[], Consumer]:
    def make(**settings) -> Consumer:
        prefix = coordinator.connection.topics.prefix
        bootstrap = coordinator.connection.bootstrap
        return Consumer(
            group_id, [topic], bootstrap, consume_from="first", prefix=prefix, commit_interval=0.2, **settings
        )

    return make


@contextmanager
def running(consumer: Consumer, handler: Callable[[list[Message]], object]) -> Iterator[None]:
    """Run a handler until the block ends."""
    thread = threading.Thread(target=consumer.run, args=(handler,), kwargs={"batch_size": 1, "workers": 1}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        consumer.stop()
        thread.join()
        consumer.close()


@pytest.fixture
def five(coordinator, group_id, topic, consumer_of) -> list[int]:
    """Let five messages of the group be dead letters; return their numbers."""
    producer = coordinator.connection.producer()
    for number in range(5):
        headers = [("region", b"EU")]
        producer.produce(topic, f"order {number}".encode(), key=f"key {number}".encode(), headers=headers)
    producer.flush(PATIENCE_S)
    with running(consumer_of(), lambda _: DeadLetter(reason="no such customer")):
        wait_until(lambda: coordinator.offsets(group_id, topic) == {0: 5}, "all are dead")
    return list(range(5))


def first_offset_of(coordinator, topic: str) -> int:
    consumer = coordinator.connection.consumer()
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S)[0]
    finally:
        consumer.close()


def numbers(letters: DeadLetters) -> list[int]:
    return [letter.number for letter in letters.open()]


def test_a_group_without_a_failure_has_no_dead_letters(letters, group_id):
    assert numbers(letters) == []
    assert letters.drop("all") == 0
    with pytest.raises(InvalidUsage, match=f"group '{group_id}' has no open dead letter 3"):
        letters.get(3)


@pytest.mark.usefixtures("five")
def test_a_letter_is_what_failed_and_why(letters, topic):
    letter = letters.get(3)

    assert (letter.message.value(), letter.message.key()) == (b"order 3", b"key 3")
    assert (letter.origin.topic, letter.origin.offset, letter.origin.error) == (topic, 3, "no such customer")
    assert letter.message.headers()[0] == ("region", b"EU")


@pytest.mark.usefixtures("five")
def test_letters_that_are_sent_again_are_delivered_to_the_group_with_all_their_retries(letters, consumer_of):
    seen: list[Origin] = []

    assert letters.resend([1, 3], by="mia") == 2
    assert numbers(letters) == [0, 2, 4]
    with running(consumer_of(), lambda messages: seen.extend(map(origin_of, messages))):
        wait_until(lambda: len(seen) == 2, "both are delivered")

    assert sorted((origin.offset, origin.attempt) for origin in seen) == [(1, 1), (3, 1)]
    with pytest.raises(InvalidUsage, match="no open dead letter 1"):
        letters.resend([1])
    assert numbers(letters) == [0, 2, 4]


def test_letters_can_be_sent_to_the_topic_that_they_come_from(coordinator, topic, five, letters):
    assert letters.resend("all", to_origin=True) == 5

    consumer = coordinator.connection.consumer()
    consumer.assign([TopicPartition(topic, 0, 5)])
    again = consumer.consume(5, PATIENCE_S)
    consumer.close()
    assert [message.value() for message in again] == [b"order %d" % number for number in five]
    assert [message.headers() for message in again] == [[("region", b"EU")]] * 5
    assert numbers(letters) == []


@pytest.mark.usefixtures("five")
def test_settled_letters_at_the_beginning_are_deleted(coordinator, group_id, letters):
    topic = dead_letter_topic_of(group_id)

    assert letters.drop([0, 2]) == 2
    assert (numbers(letters), first_offset_of(coordinator, topic)) == ([1, 3, 4], 1)
    assert letters.drop([1]) == 1
    assert (numbers(letters), first_offset_of(coordinator, topic)) == ([3, 4], 3)
    assert letters.drop("all") == 2
    assert numbers(letters) == []


def test_a_death_between_sending_and_settling_repeats_letters_and_loses_none(five, letters, monkeypatch):
    """The mark comes last: without it, the letters are still open."""

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(DeadLetters, "_mark", die)
        with pytest.raises(KeyboardInterrupt):
            letters.resend("all")

    assert numbers(letters) == five
    assert letters.resend("all") == 5
    assert numbers(letters) == []


def test_a_group_that_retries_in_place_is_told_its_only_way(coordinator, group_id, letters):
    ensure_failure_topics(coordinator.connection, group_id, PATIENCE_S, retries=False)
    producer = coordinator.connection.producer()
    producer.produce(dead_letter_topic_of(group_id), b"1", partition=0)
    producer.flush(PATIENCE_S)

    with pytest.raises(InvalidUsage, match=f"has no topic {retry_topic_of(group_id)}: its members retry in place"):
        letters.resend("all")
    assert numbers(letters) == [0]


def test_rubbish_in_the_topic_is_a_letter_or_nothing_and_no_error(coordinator, group_id, letters):
    ensure_failure_topics(coordinator.connection, group_id, PATIENCE_S)
    topic = dead_letter_topic_of(group_id)
    producer = coordinator.connection.producer()
    producer.produce(topic, None, partition=0, headers=[("wakeroll-offset", b"\xff")])
    producer.produce(topic, b"[", partition=0, headers=[("wakeroll-settled", b"1")])
    everything = b'{"numbers": [[-5, 1000000000000000000]], "how": "dropped", "by": "x"}'
    producer.produce(topic, b"letter", partition=0)
    producer.flush(PATIENCE_S)
    assert [letter.origin.topic for letter in letters.open()] == [topic, topic]

    producer.produce(topic, everything, partition=0, headers=[("wakeroll-settled", b"1")])
    producer.produce(topic, b"later", partition=0)
    producer.flush(PATIENCE_S)

    assert numbers(letters) == []


@pytest.mark.usefixtures("five")
def test_the_command_line_lists_shows_sends_and_drops(coordinator, group_id, topic, capsys):
    bootstrap = coordinator.connection.bootstrap

    def dlq(*options: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            run_app(["dlq", group_id, "--bootstrap", bootstrap, *options])
        captured = capsys.readouterr()
        return ended.value.code, captured.out + captured.err

    code, listed = dlq("--limit", "2")
    assert (code, listed.count("no such customer")) == (0, 2)
    assert f"{topic}-0" in listed
    assert "and 3 more" in listed
    code, shown = dlq("--show", "4")
    assert code == 0
    assert [word for word in ("order 4", "key 4", "region", "offset 4") if word not in shown] == []
    documents = [json.loads(dlq(*words, "--json")[1]) for words in (("--limit", "2"), ("--show", "4"))]
    assert (documents[0]["total"], [one["number"] for one in documents[0]["letters"]]) == (5, [0, 1])
    assert (documents[1]["letter"]["key"], documents[1]["letter"]["value"]) == ("key 4", "order 4")
    assert dlq("--resend", "0,2-3") == (0, "sent again: 3\n")
    documents.append(json.loads(dlq("--drop", "all", "--json")[1]))
    assert documents[2] == {"group_id": group_id, "dropped": 2}
    for document in documents:
        jsonschema.validate(document, answer_schemas()["dlq.json"])
    assert "no such customer" not in dlq()[1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--show", "9"], "has no open dead letter 9"),
        ([], "has no topic of dead letters: there is no such group, or no member of it has called run; the groups"),
        (["--drop", "all"], "has no topic of dead letters: there is no such group"),
        (["--drop", "x"], "'x' names no letters; write numbers like 3,7-9, or all"),
        (["--drop", "9-3"], "'9-3' must be an ascending range of at most 1000000 numbers"),
        (["--drop", "1", "--show", "1"], "--show, --resend and --drop exclude each other"),
        (["--to-origin"], "--to-origin is for --resend"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(coordinator, group_id, capsys, options, sentence):
    code = run_app(["dlq", group_id, "--bootstrap", coordinator.connection.bootstrap, *options])

    assert code == 2
    assert sentence in capsys.readouterr().err


def test_letters_are_settled_while_they_are_listed(letters, five):
    """`drop` reads with the same client as the loop around it, and deletes what the loop would read next."""
    seen = []
    for letter in letters.open():
        seen.append(letter.number)
        if len(seen) == 2:
            letters.drop(five[:4])
        assert letters.get(five[4]).number == five[4]

    assert seen == [*five[:2], five[4]]
    assert letters.drop([]) == 0
    assert [letter.number for letter in letters.open()] == [five[4]]
