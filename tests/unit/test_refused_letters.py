"""Failed messages that their topic refuses: which errors mean that, and the line of the log with the remedy."""

import logging
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Message

from wakeroll import Consumer, origin_of
from wakeroll.connection import Connection
from wakeroll.push import refused_letters
from wakeroll.push.refused_letters import RefusedLetters, is_refusal
from wakeroll.testing import MemoryBroker

AGAIN_S = 30.0


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        broker.create_topic("orders")
        yield broker


@pytest.fixture
def message(broker: MemoryBroker) -> Message:
    broker.send("orders", "x" * 1_000, key="k")
    with Consumer("billing", ["orders"], broker.bootstrap, consume_from="first") as consumer:
        found = consumer.poll(30)
        assert found is not None
        return found


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.ERROR, logger="wakeroll")
    return caplog


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for a broker that does not exist."""
    monkeypatch.setattr(refused_letters, "ANSWER_S", 0.1)


def refused() -> RefusedLetters:
    """Return the reports of a run whose broker does not answer."""
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.password": "secret"}
    return RefusedLetters(Connection("127.0.0.1:1", {"sasl.username": "alice", **login}), "billing")


def report(letters: RefusedLetters, message: Message, code: int) -> None:
    letters.report("retry.billing", message, origin_of(message), KafkaError(code), AGAIN_S)


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
    ],
)
def test_a_topic_refuses_what_comes_again_until_somebody_changes_something(code):
    assert is_refusal(KafkaError(code))


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._PURGE_QUEUE,
        KafkaError._FATAL,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ],
)
def test_an_outage_is_no_refusal(code):
    """It is tried again every second, and not every half a minute."""
    assert not is_refusal(KafkaError(code))


def test_the_line_has_the_place_the_topic_and_the_size(message, lines):
    report(refused(), message, KafkaError.MSG_SIZE_TOO_LARGE)

    [line] = lines.messages
    assert line.startswith("cannot store the failed message 0 of orders-0 in retry.billing: ")
    assert "raise max.message.bytes. It waits in place: the committed offset of its queue does not pass it" in line
    assert line.endswith("it is sent again every 30 s")
    [size] = [int(word) for word in line.split() if word.isdigit() and int(word) > 1_000]
    assert size < 1_500, "the value has 1,000 bytes; the headers have some hundred"
    assert "max.message.bytes of the topic is" not in line, "nobody answers what it is"


def test_a_denied_user_is_named_with_the_command_that_prints_the_rights(message, lines):
    report(refused(), message, KafkaError.TOPIC_AUTHORIZATION_FAILED)

    [line] = lines.messages
    assert "'alice' needs the right to write there; `wakeroll acls client=PRINCIPAL --group billing` prints" in line


def test_a_topic_that_is_gone_and_cannot_be_created_is_reported_with_the_reason(message, lines):
    report(refused(), message, KafkaError.UNKNOWN_TOPIC_OR_PART)

    [line] = lines.messages
    assert "cannot list the topics at 127.0.0.1:1" in line


def test_a_topic_that_is_gone_is_created(broker, message, lines):
    letters = RefusedLetters(Connection(broker.bootstrap), "billing")
    report(letters, message, KafkaError.UNKNOWN_TOPIC_OR_PART)

    [line] = lines.messages
    assert "; the topic was created again. It waits in place" in line
    assert {"retry.billing", "dlq.billing"} <= set(Connection(broker.bootstrap).admin().list_topics(timeout=5).topics)


def test_any_other_refusal_names_the_settings(message, lines):
    report(refused(), message, KafkaError.INVALID_RECORD)

    [line] = lines.messages
    assert "; check the settings of the topic: cleanup.policy must be delete. It waits" in line


def test_the_log_is_not_flooded_and_counts_what_it_leaves_out(message, lines, monkeypatch):
    letters = refused()
    for _ in range(5):
        report(letters, message, KafkaError.INVALID_RECORD)
    assert len(lines.messages) == 1

    monkeypatch.setattr(letters, "_next_s", 0.0)  # ten seconds later
    report(letters, message, KafkaError.INVALID_RECORD)

    assert lines.messages[1].endswith("; and 4 others since the last such line")
