"""Errors of each message: a broker that is away for an hour must not fill the disk with lines about it."""

import time

import pytest
from confluent_kafka import KafkaError

from wakeroll import Producer
from wakeroll.reader import Reader
from wakeroll.repeated_errors import EVERY_S, RepeatedErrors
from wakeroll.testing import MemoryBroker


def test_lost_messages_are_logged_once(caplog):
    """There may be 100,000 of them when a topic is deleted under a producer."""
    with MemoryBroker() as broker, Producer(broker.bootstrap) as producer:
        for _ in range(100):
            producer.send("no-such-topic", b"1")
        assert not producer.flush()

    lines = [text for text in caplog.messages if "was lost" in text]
    assert len(lines) == 1
    assert lines[0].startswith("a message for no-such-topic was lost: ")


def test_further_errors_are_counted_and_logged_each_minute(monkeypatch: pytest.MonkeyPatch):
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    errors = RepeatedErrors()

    assert [errors.words("a") for _ in range(4)] == ["", None, None, None]
    assert errors.words("b") == ""
    now_s[0] = EVERY_S
    assert errors.words("a") == "; and 3 others since the last such line"
    assert errors.words("a") is None
    assert errors.words("b") == ""


def test_an_error_of_kafka_is_logged_once_for_all_consumers_of_a_process(caplog):
    readers = [Reader.__new__(Reader) for _ in range(3)]
    denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)

    for reader in readers:
        reader._note(denied, "orders-of-this-test")
        reader._note(denied, "payments-of-this-test")

    lines = [record.getMessage() for record in caplog.records if "of-this-test" in record.getMessage()]
    assert [line.partition(" for ")[2].partition(":")[0] for line in lines] == [
        "orders-of-this-test",
        "payments-of-this-test",
    ]
