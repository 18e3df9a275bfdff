"""What a client checks before it joins: that a broker answers, and that it has a control plane."""

import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection

from wakeroll.broker_check import look
from wakeroll.connection import Connection
from wakeroll.errors import AccessDenied, LoginFailed, NotReachable
from wakeroll.kafka_clients import KafkaClients, register, unregister

ADDRESS = "scripted:9092"
CONTROL = {"wakeroll.groups": 8, "wakeroll.inbox": 16}
"""Topic -> number of its partitions."""
LOST = dict.fromkeys(CONTROL, KafkaError(KafkaError._TRANSPORT))
MISSING = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)

UNANSWERED = dict.fromkeys(CONTROL)

Answers = Mapping[str, int | KafkaError | None]
"""Topic -> the number of its partitions, an error, or no answer."""


class ScriptedAdmin:
    """An admin client that gives the answers of a script, one per request, and then the last one again."""

    def __init__(self, script: list[Answers], errors: list[int], config: dict[str, Any]) -> None:
        self._script = script
        self._errors = errors
        self._tell: Callable[[KafkaError], object] = config["error_cb"]

    def describe_topics(self, topics: TopicCollection, request_timeout: float) -> dict[str, "Future[SimpleNamespace]"]:
        assert request_timeout > 0
        answers = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        return {topic: _answer(answers.get(topic, MISSING)) for topic in topics.topic_names}

    def poll(self, _timeout: float) -> int:
        for code in self._errors:
            self._tell(KafkaError(code))
        return len(self._errors)


@pytest.fixture
def broker() -> Iterator[Callable[..., Connection]]:
    """Return a function that lets a broker give these answers, and Kafka's client report these errors."""

    def answering(*script: Answers, errors: tuple[int, ...] = ()) -> Connection:
        admin = cast("Any", lambda config: ScriptedAdmin(list(script), list(errors), config))
        register(ADDRESS, KafkaClients(admin=admin))
        return Connection(ADDRESS)

    yield answering
    unregister(ADDRESS)


def test_it_returns_the_partitions_of_the_inbox(broker):
    assert look(broker(CONTROL), [], 1.0).partitions == 16


def test_a_request_whose_connection_breaks_is_repeated(broker):
    """As when a broker restarts; the client that joins notices nothing."""
    assert look(broker(LOST, LOST, CONTROL), [], 10.0).partitions == 16


def test_a_request_that_stays_without_an_answer_is_repeated(broker):
    """A broker that was just resumed reports a cluster without brokers; the request then waits for one till its end."""
    assert look(broker(UNANSWERED, CONTROL), [], 600.0).partitions == 16


def test_a_broker_that_never_answers_is_reported_with_the_first_error_of_kafkas_client(broker):
    with pytest.raises(NotReachable, match=r"no Kafka broker answered at .* within 0\.2 s \(.*Host resolution"):
        look(broker(LOST, errors=(KafkaError._RESOLVE, KafkaError._TRANSPORT)), [], 0.2)


def test_a_host_that_accepts_connections_and_says_nothing_is_reported_in_time():
    """As a proxy without a backend does."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connection = Connection(f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(NotReachable, match=r"no Kafka broker answered at .* within 0\.5 s.*is it running"):
            look(connection, [], 0.5)


def test_a_rejected_login_ends_the_check_at_once(broker):
    """Kafka's client would try for ever; the user must not wait for the time limit."""
    with pytest.raises(LoginFailed, match="authentication failed at scripted:9092"):
        look(broker(LOST, errors=(KafkaError._AUTHENTICATION,)), [], 600.0)


def test_a_broker_without_a_control_plane_is_named(broker):
    with pytest.raises(NotReachable, match=r"no topic wakeroll\.inbox at scripted:9092; is the control plane running"):
        look(broker({"wakeroll.groups": 8}), [], 1.0)


def test_a_missing_right_is_named_with_its_operation(broker):
    denied = CONTROL | {"wakeroll.groups": KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)}

    with pytest.raises(AccessDenied, match=r"operation Describe on the topic wakeroll\.groups"):
        look(broker(denied), [], 10.0, rights=("Describe", "Read"))


def test_a_topic_that_does_not_exist_yet_is_only_a_warning(broker, caplog):
    with caplog.at_level(logging.WARNING, "wakeroll"):
        assert look(broker(CONTROL | {"orders": 4}), ["orders", "later"], 1.0).partitions == 16

    assert [record.getMessage() for record in caplog.records] == [
        "no topic later at scripted:9092 yet; waiting for it to be created"
    ]


def _answer(given: int | KafkaError | None) -> "Future[SimpleNamespace]":
    answer: Future[SimpleNamespace] = Future()
    if isinstance(given, KafkaError):
        answer.set_exception(KafkaException(given))
    elif given is not None:
        answer.set_result(SimpleNamespace(topic_id="", partitions=[None] * given))
    return answer
