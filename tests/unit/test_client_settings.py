"""Settings of Kafka's clients: a user's never undo those that wakeroll's guarantees need."""

import ast
import logging
import re
import time
from pathlib import Path
from typing import Any, cast

import pytest

from wakeroll import Admin, Consumer, DeadLetters, InvalidUsage, Producer
from wakeroll.client_settings import CONNECTION, JAVA, LOGIN, MESSAGES, RESERVED, Kind, Number, Word, checked_settings
from wakeroll.connection import Connection
from wakeroll.kafka_clients import KafkaClients, register, unregister

ROOT = Path(__file__).parents[2]
NOWHERE = "127.0.0.1:1"
RECORDER = "settings.test:1"
IN_OUR_CODE = sorted(path for folder in ("wakeroll", "pipeline") for path in (ROOT / folder).rglob("*.py"))
PREFERENCES = {
    "log_level": "a user who debugs wants to see more",
    "metadata.max.age.ms": "a new partition is found later or sooner",
    "metadata.recovery.strategy": "only for brokers that come back at other addresses",
    "reconnect.backoff.max.ms": "bounded by the table",
    "reconnect.backoff.ms": "bounded by the table",
    "retry.backoff.ms": "bounded by the table",
    "topic.metadata.refresh.interval.ms": "a new topic is found later or sooner",
    "socket.timeout.ms": "bounded by the table",
}
"""Settings of connections that wakeroll's clients set, and a user may set differently, with the reason."""


def refusal(config: dict[str, object]) -> str:
    with pytest.raises(InvalidUsage) as caught:
        checked_settings(config)
    return str(caught.value)


@pytest.mark.parametrize("name", RESERVED)
def test_what_our_guarantees_need_is_refused_with_what_to_use_instead(name):
    """With `auto.offset.reset=latest`, messages were never delivered after retention had cut the log."""
    assert f"{name} ({RESERVED[name]})" in refusal({name: "true"})


@pytest.mark.parametrize(
    "create",
    [
        lambda config: Consumer("billing", ["orders"], NOWHERE, kafka_config=config),
        lambda config: Producer(NOWHERE, kafka_config=config),
        lambda config: Admin(NOWHERE, kafka_config=config),
        lambda config: DeadLetters("billing", NOWHERE, kafka_config=config),
        lambda config: Connection(NOWHERE, config),
    ],
    ids=["Consumer", "Producer", "Admin", "DeadLetters", "jobs and commands"],
)
def test_every_client_refuses_before_it_connects_and_names_all_at_once(create):
    config = {"group.id": "billing", "enable.auto.commit": "true", "linger.ms": "fast", "fetch.min.byte": 1}
    with pytest.raises(InvalidUsage) as caught:
        create(config)

    for part in (
        "group.id (",
        "`group_id` names the group",
        "enable.auto.commit (",
        "`commit_interval`",
        "linger.ms (it is 'fast'; it must be a number from 0 to 900000)",
        "fetch.min.byte (not among the settings that wakeroll passes on; did you mean fetch.min.bytes?)",
    ):
        assert part in str(caught.value)


def test_a_refusal_contains_no_secret():
    assert "hunter2" not in refusal({"sasl.password": "hunter2", "sasl_password": "hunter2", "acks": "1"})


def test_a_command_refuses_a_file_with_such_a_setting(wakeroll, tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("auto.offset.reset=latest\n")
    code, _, complaint = wakeroll("lag", "--bootstrap", NOWHERE, "--kafka-config", str(file))

    assert code == 2
    assert "auto.offset.reset (`consume_from` says where" in " ".join(complaint.split())
    assert "Traceback" not in complaint


# --- the table, and what Kafka's client says of it ---


def values_of(kind: Kind) -> list[object]:
    """Return values at the bounds of a setting."""
    match kind:
        case Number(low, high, _):
            return [low, str(high)]
        case Word(words):
            return list(words)
        case "flag":
            return [True, "false"]
        case "function":
            return [lambda *_: ("token", time.time() + 3_600)]  # a token for `oauth_cb`; others ignore it
        case "logger":
            return [logging.getLogger("kafka")]
        case _:
            return []


NEEDS = {
    "client.dns.lookup": {"sasl.mechanism": "GSSAPI"},
    "fetch.message.max.bytes": {"receive.message.max.bytes": 2**31 - 1},
    "fetch.max.bytes": {"receive.message.max.bytes": 2**31 - 1},
    "message.max.bytes": {"receive.message.max.bytes": 2**31 - 1},
    "linger.ms": {"message.timeout.ms": 1_000_000},
    "oauth_cb": {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"},
    "queue.buffering.max.ms": {"message.timeout.ms": 1_000_000},
}
"""Settings that Kafka's client accepts only together with others."""


@pytest.mark.parametrize(("name", "kind"), [*CONNECTION.items(), *MESSAGES.items()], ids=str)
def test_kafkas_client_knows_each_setting_and_its_bounds(name, kind):
    """The table is ours; the client decides what a setting means."""
    for value in values_of(kind):
        connection = Connection(NOWHERE, {"log_level": 0, **NEEDS.get(name, {}), name: value})
        connection.message_consumer().close()
        connection.consumer().close()
        connection.message_producer().close()
        connection.producer().close()
        connection.admin()


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, kind.high + 1) for name, kind in {**CONNECTION, **MESSAGES}.items() if isinstance(kind, Number)]
    + [(name, "maybe") for name, kind in {**CONNECTION, **MESSAGES}.items() if kind == "flag" or isinstance(kind, Word)]
    + [("stats_cb", "print"), ("logger", print), ("linger.ms", -1), ("linger.ms", "nan"), ("log_level", 2.5)],
)
def test_a_value_of_another_type_is_refused(name, value):
    assert f"{name} (it " in refusal({name: value})


def test_settings_of_messages_reach_the_clients_of_messages_only():
    """A fetch that waits for a megabyte would hold back assignments too."""
    made: list[dict[str, object]] = []
    keep = cast(Any, made.append)
    register(RECORDER, KafkaClients(producer=keep, consumer=keep))
    try:
        connection = Connection(RECORDER, {"fetch.min.bytes": 1_000_000, "client.id": "billing", "linger.ms": "20"})
        for make in (connection.message_consumer, connection.consumer):
            make(**{"auto.offset.reset": "earliest"})
        for make in (connection.message_producer, connection.producer):
            make()
    finally:
        unregister(RECORDER)

    assert [one.get("fetch.min.bytes") for one in made] == ["1000000", None, "1000000", None]
    assert [one.get("linger.ms") for one in made] == ["20", None, "20", 0]
    assert [one["client.id"] for one in made] == ["billing"] * 4
    assert [one.get("auto.offset.reset") for one in made] == ["earliest", "earliest", None, None]


def test_no_setting_that_our_code_needs_may_be_overridden():
    """Each setting that a module of ours passes to a client is reserved, left out for it, or only a preference."""
    ours = {
        name for path in IN_OUR_CODE for name in _settings_in(path) if name in {**CONNECTION, **RESERVED, **MESSAGES}
    }
    assert {"group.id", "auto.offset.reset", "message.timeout.ms", "enable.partition.eof"} <= ours

    assert {name for name in ours if name in CONNECTION} <= PREFERENCES.keys() | {"bootstrap.servers"}


def _settings_in(path: Path) -> set[str]:
    """Return the names of settings that a module gives to a client by its own: keys of dicts, and keyword arguments."""
    if path.name in ("client_settings.py", "client_properties.py", "java_properties.py", "login_errors.py"):
        return set()
    if path.name == "kafka_demo.py":  # settings of members of Kafka's own groups, which are no clients of ours
        return set()
    tree = ast.parse(path.read_text())
    keys = {
        key.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    }
    words = {one.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for one in node.keywords}
    return {key for key in keys | words if isinstance(key, str) and key != "logger"}  # a field of log lines


def test_exceptions_of_callbacks_are_logged(caplog):
    """In Kafka's client they would end the thread that polls it, such as the one that sends heartbeats."""
    _, objects = checked_settings({"stats_cb": lambda _: 1 / 0})
    objects["stats_cb"]("{}")

    assert "the callback stats_cb of kafka_config failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_the_page_lists_what_may_be_set():
    text = (ROOT / "docs/sdk.md").read_text()
    section = text[text.index("## Settings of Kafka's clients") :]
    section = section[: section.index("\n## ", 5)]
    named = set(re.findall(r"`([a-z_.]+)`", section))

    settable = {*CONNECTION, *MESSAGES, *JAVA}
    assert {name for name in settable if not name.startswith(LOGIN)} <= named
    assert RESERVED.keys() <= named
    assert all(RESERVED[name] in section for name in RESERVED)
