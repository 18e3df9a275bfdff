"""What the brokers deny: each role has the rights that it needs and no others, and each missing right is named."""

import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from tests.support.systems.certificates import Authority
from tests.support.systems.secured_broker import ANSWER_S
from tests.support.systems.secured_deployment import FREE, ORDERS, USERS, SecuredDeployment, secured_deployment
from tests.support.waiting import wait_until
from wakeroll import Consumer as OurConsumer
from wakeroll import WakerollError, origin_of
from wakeroll.connection import Topics
from wakeroll.errors import AccessDenied, LoginFailed
from wakeroll.failure_topics import ensure_failure_topics
from wakeroll.push import send_back
from wakeroll.push.send_back import Letter, SendBack
from wakeroll.steady_clients import UNUSED_GROUP
from wakeroll_model.chain import Head
from wakeroll_model.retry_topics import dead_letter_topic_of
from wakeroll_pipeline.kafka.control_topics import ensure_chain_topic
from wakeroll_pipeline.kafka.published_lines import LinePublisher, read_published
from wakeroll_pipeline.kafka.role_rights import Scope, rights_of
from wakeroll_pipeline.kafka.topic_admin import Cluster

pytestmark = pytest.mark.operate

PROBE = "probe"
"""A user that gets the rights of a role except one."""
TOPICS = Topics()
SCOPE = Scope(TOPICS)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredDeployment]:
    """A deployment without its processes."""
    with secured_deployment(tmp_path_factory.mktemp("denied"), PROBE) as deployment:
        yield deployment


def in_kafka(operation: str) -> str:
    return {"DescribeConfigs": "DESCRIBE_CONFIGS"}.get(operation, operation.upper())


def operations_of(secured: SecuredDeployment, user: str) -> dict[str, set[str]]:
    """Return what a user may do on the control topics, by the brokers' own answer."""
    found = Cluster(secured.broker.connection(user)).operations(TOPICS.all)
    return {topic: set() if isinstance(allowed, KafkaError) else set(allowed) for topic, allowed in found.items()}


@pytest.mark.parametrize("user", [user for user, roles in USERS.items() if len(roles) == 1])
def test_a_user_may_do_what_its_role_needs_and_nothing_else(secured: SecuredDeployment, user: str):
    needed = {
        right.name: {in_kafka(operation) for operation in right.operations} | {"DESCRIBE"}
        for right in rights_of(USERS[user], SCOPE)
        if right.kind == "topic"
    }

    assert operations_of(secured, user) == {topic: needed.get(topic, set()) for topic in TOPICS.all}


@pytest.mark.parametrize(
    ("user", "topic"),
    [
        ("billing", TOPICS.decisions),
        ("billing", TOPICS.inbox),
        ("shop", TOPICS.groups),
        ("ops", TOPICS.queues),
        ("page", TOPICS.groups),
        ("observer", TOPICS.inbox),
    ],
)
def test_a_record_that_a_role_must_not_append_is_refused(secured: SecuredDeployment, user: str, topic: str):
    """A client that could write an assignment would take any queue."""
    errors: list[KafkaError] = []
    plain = {"message.timeout.ms": 60_000, "log_level": 0, "enable.idempotence": False}
    producer = secured.broker.connection(user).producer(**plain)
    producer.produce(topic, b"{}", on_delivery=lambda error, _: errors.append(error))
    producer.flush(60)

    assert [error.code() for error in errors] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]


COMMANDS = {
    "observer": (["observe"], "observer"),
    "mirror": (["observe", "--mirror-offsets", ".*"], "observer"),
    "coordinator": (["run", "--only", "coordinate"], "all"),
    "recorder": (["run", "--only", "record"], "all"),
    "operator": (["configure", FREE, "--settle-ms", "1000"], "operator"),
    "viewer": (["state"], "all"),
    "upgrader": (["upgrade", "--execute"], "operator"),
    "resharder": (["reshard", "--partitions", "8"], "all"),
    "tap": (["tap", ORDERS], None),
}
"""Role -> a command of it, and its keys."""


def await_change(secured: SecuredDeployment, topic: str, operation: str) -> None:
    """Wait until the broker denies an operation."""
    wait_until(lambda: operation not in operations_of(secured, PROBE)[topic], "the broker applies the change")


@pytest.mark.parametrize("role", COMMANDS)
def test_each_missing_right_is_named_with_its_topic_and_operation(
    secured: SecuredDeployment, tmp_path: Path, role: str
):
    """At the start, and not as a timeout: the process ends with the sentence."""
    words, keys = COMMANDS[role]
    secured.broker.forbid_everything(PROBE)
    acls = secured.acls(PROBE, role)
    for right in rights_of([role], SCOPE):
        if right.kind != "topic":
            continue
        lacking = right.operations[0]
        secured.broker.allow(acls)
        secured.broker.forbid(PROBE, right.name, in_kafka(lacking))
        await_change(secured, right.name, in_kafka(lacking))

        done = secured.as_user(PROBE, *words, "--home", str(tmp_path), keys=keys)

        assert done.returncode == 1, done.stdout + done.stderr
        assert f"deny 'probe', as {role}: {lacking}" in done.stderr
        assert f"on the topic {right.name}" in done.stderr
        assert f"wakeroll acls {role}=PRINCIPAL --prefix wakeroll prints the ACLs" in done.stderr


@pytest.mark.parametrize(("topic", "operation"), [(TOPICS.groups, "Write"), (TOPICS.inbox, "Read"), (ORDERS, "Read")])
def test_an_application_is_told_which_right_it_lacks(secured: SecuredDeployment, topic: str, operation: str):
    secured.broker.forbid_everything(PROBE)
    secured.grant(PROBE, "client")
    secured.broker.forbid(PROBE, topic, operation.upper())
    if topic in TOPICS.all:
        await_change(secured, topic, operation.upper())

    with pytest.raises(AccessDenied, match=f"the operation {operation} on the topic {re.escape(topic)}"):
        OurConsumer(FREE, [ORDERS], **secured.login(PROBE))


def test_no_right_on_the_unused_kafka_group_is_needed(secured: SecuredDeployment):
    """Kafka's client reports that it may not describe the group; no process of wakeroll joins it."""
    secured.broker.forbid_everything(PROBE)
    secured.grant(PROBE, "client")
    secured.broker.forbid_group(PROBE, UNUSED_GROUP)
    connection = secured.broker.connection(PROBE)
    bare = Consumer({"bootstrap.servers": connection.bootstrap, **connection.config, "group.id": UNUSED_GROUP})
    ours = connection.consumer()
    for consumer in (bare, ours):
        consumer.assign([TopicPartition(ORDERS, 0, OFFSET_BEGINNING)])
    producer = secured.broker.connection("shop").producer()
    producer.produce(ORDERS, b"", partition=0)
    assert producer.flush(60) == 0

    heard = {bare: set[int | None](), ours: set[int | None]()}

    def poll() -> None:
        for consumer, codes in heard.items():
            if (message := consumer.poll(0.1)) is not None:
                error = message.error()
                codes.add(None if error is None else error.code())

    denied = KafkaError.GROUP_AUTHORIZATION_FAILED
    wait_until(lambda: denied in heard[bare] and None in heard[ours], "both have heard of it", between=poll)

    assert heard[ours] == {None}
    for consumer in heard:
        consumer.close()


# --- a login that fails ---


@pytest.mark.parametrize(
    "command", ["observe", "run", "doctor", "state", "configure audit --settle-ms 1000", "tap orders"]
)
def test_a_wrong_password_is_an_error_within_seconds(secured: SecuredDeployment, tmp_path: Path, command: str):
    """Kafka's client tries for ever, and reports a timeout at most."""
    bootstrap, file = secured.broker.bootstrap, secured.broker.properties("observer", password="wrong password")

    done = secured.run(
        *command.split(), "--bootstrap", bootstrap, "--kafka-config", file, "--home", tmp_path, patience_s=60
    )

    assert done.returncode == 1, done.stdout + done.stderr
    assert f"authentication failed for 'observer' at {bootstrap}: " in done.stdout + done.stderr
    assert "wrong password" not in done.stdout + done.stderr


def test_an_application_with_a_wrong_password_is_told_at_once(secured: SecuredDeployment):
    wrong = secured.login("billing") | {"kafka_config": secured.broker.login("billing", password="wrong password")}

    with pytest.raises(LoginFailed, match="authentication failed for 'billing' at localhost:"):
        OurConsumer(FREE, [ORDERS], **wrong)


def test_a_broker_that_the_authority_did_not_certify_gets_no_password(secured: SecuredDeployment, tmp_path: Path):
    """Somebody may only claim to be the broker."""
    other = {"ssl.ca.location": str(Authority(tmp_path / "other").certificate)}
    login = secured.login("billing")

    with pytest.raises(LoginFailed, match=r"the TLS connection to localhost:\d+ failed: .*check ssl\.ca\.location"):
        OurConsumer(FREE, [ORDERS], **login | {"kafka_config": login["kafka_config"] | other})


def test_a_member_that_may_not_store_failed_messages_does_not_start(secured: SecuredDeployment):
    """Otherwise it would notice that with the first message that fails."""
    secured.broker.forbid_everything(PROBE)
    secured.grant(PROBE, "client", groups=[FREE])
    connection = secured.broker.connection(PROBE)
    letters = dead_letter_topic_of(FREE)
    ensure_failure_topics(connection, FREE, ANSWER_S)
    secured.broker.forbid(PROBE, letters, "WRITE")

    def refused() -> str:
        try:
            ensure_failure_topics(connection, FREE, ANSWER_S)
        except WakerollError as problem:
            return str(problem)
        return ""

    sentence = wait_until(refused, "the broker applies the change")

    assert f"on the topic {letters}" in sentence or f"topic {letters}" in sentence
    assert "wakeroll acls client=PRINCIPAL" in sentence


def test_a_failed_message_that_is_denied_waits_until_the_right_is_granted(
    secured: SecuredDeployment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The right may be lost while members run, and each of them would end otherwise."""
    monkeypatch.setattr(send_back, "HELD_AGAIN_S", 1.0)
    secured.broker.forbid_everything(PROBE)
    problems: list[BaseException] = []
    stored, held = threading.Event(), threading.Event()
    sender = SendBack(secured.broker.connection(PROBE), FREE, problems.append)
    message = Message(topic=ORDERS, partition=0, offset=7, value=b"v")

    def on_held(messages: Sequence[Message]) -> bool:
        assert list(messages) == [message]
        held.set()
        return True

    sender.send([Letter(message, origin_of(message), 0)], stored.set, on_held)
    wait_until(held.is_set, "the message is held")
    assert not stored.is_set()
    secured.grant(PROBE, "client", groups=[FREE])
    wait_until(stored.is_set, "the message is stored")
    sender.close()

    assert problems == []
    [line, *_] = [record.message for record in caplog.records if "cannot store" in record.message]
    assert f"the failed message 7 of {ORDERS}-0 in {dead_letter_topic_of(FREE)}" in line
    assert f"wakeroll acls client=PRINCIPAL --group {FREE}" in line


def test_lines_of_the_chains_are_published_with_the_right_only_and_everything_else_goes_on(
    secured: SecuredDeployment, caplog: pytest.LogCaptureFixture
):
    """As after an upgrade: the ACLs of the release before know neither the topic nor the roles."""
    secured.broker.forbid_everything(PROBE)
    secured.grant(PROBE, "recorder")
    probe, root = secured.broker.connection(PROBE), secured.broker.connection("root")

    finding = ensure_chain_topic(probe)
    assert finding is not None
    assert not finding.fatal
    assert f"cannot describe the topic {TOPICS.chain}: " in finding.text
    assert "wakeroll acls publisher=PRINCIPAL --prefix wakeroll prints the ACLs" in finding.text
    with pytest.raises(AccessDenied, match=f"deny 'probe' Read on {TOPICS.chain}; .* wakeroll acls auditor=PRINCIPAL"):
        read_published(probe)
    assert ensure_chain_topic(root) is None

    def is_allowed(operation: str) -> bool:
        found = Cluster(probe).operations([TOPICS.chain])[TOPICS.chain]
        return not isinstance(found, KafkaError) and operation in found

    secured.grant(PROBE, "auditor")
    wait_until(lambda: is_allowed("READ"), "the broker applies the change")
    assert ensure_chain_topic(probe) is None
    publisher = LinePublisher(probe, "one")
    for number in (1, 2):
        publisher.publish([Head("events", number, "0" * 64)])
    publisher.close()
    [warning] = [one.getMessage() for one in caplog.records if "are not published" in one.getMessage()]
    assert "uthoriz" in warning
    assert read_published(probe) == []

    secured.grant(PROBE, "publisher")
    wait_until(lambda: is_allowed("WRITE"), "the broker applies the change")
    publisher.publish([Head("events", 3, "0" * 64)])
    publisher.close()
    assert [one.number for one in read_published(probe) or ()] == [3]
