"""A whole deployment with TLS, SCRAM and least rights: each role does its work, and no secret is anywhere else.

The rights are those that `wakeroll acls` prints. The jobs read their login in Java's names, all others in librdkafka's.
"""

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaException, Message, TopicPartition

from tests.support.systems.secured_deployment import (
    FREE,
    INVOICES,
    OLD,
    ORDERS,
    TENANT,
    SecuredDeployment,
    secured_deployment,
)
from tests.support.systems.web_site import served
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll import Consumer, Producer
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger, open_ledger
from wakeroll_pipeline.ledger.ledger import Row

pytestmark = [pytest.mark.operate, pytest.mark.spark]

LEGACY = "legacy"
"""A user of Kafka's own groups."""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredDeployment]:
    """The deployment with observer and jobs."""
    folder = tmp_path_factory.mktemp("secured")
    with secured_deployment(folder, LEGACY, "nobody") as deployment, deployment.running("observer", "jobs"):
        yield deployment


def send(system: SecuredDeployment, topic: str, count: int) -> None:
    with Producer(**system.login("shop")) as producer:
        for number in range(count):
            producer.send(topic, f"{number}", partition=number % 2)
        assert producer.flush(60)


def rows(system: SecuredDeployment, query: str) -> list[Row]:
    """Return the answer of the tables."""
    ledger = open_ledger(system.home / "warehouse")
    try:
        return ledger.rows(query)
    finally:
        ledger.close()


# --- each role does its work ---


@pytest.fixture(scope="module")
def consumed(system: SecuredDeployment) -> list[tuple[int, int]]:
    """Queue and offset of the messages that a client of the tenant has read; it has committed behind them."""
    send(system, ORDERS, 20)
    seen: list[tuple[int, int]] = []
    client = {"consume_from": "first", "keys": system.keys["client"], **system.login("billing")}
    with Consumer(TENANT, [ORDERS], **client) as consumer:

        def poll() -> None:
            message = consumer.poll(0.2)
            if message is not None:
                seen.append((message.partition(), message.offset()))

        wait_until(lambda: len(seen) == 20, "all messages are read", patience_s=PATIENCE_WITH_SPARK_S, between=poll)
        consumer.poll(0.1)
        assert consumer.commit(60.0)
    return seen


def test_a_client_polls_commits_and_is_on_record(system: SecuredDeployment, consumed: list[tuple[int, int]]):
    """From the heartbeat to the row in Delta, through Spark's source and sink, with a signature on each event."""

    def committed() -> dict[int, int]:
        found = rows(system, f"select queue_id, committed_offset from current_offsets where group_id = '{TENANT}'")
        return {row.queue_id: row.committed_offset for row in found}

    assert sorted(consumed) == [(queue, offset) for queue in (0, 1) for offset in range(10)]
    wait_until(
        lambda: committed() == {0: 10, 1: 10},
        "the commits are in the tables",
        patience_s=PATIENCE_WITH_SPARK_S,
        state=committed,
    )


def test_a_client_waits_for_messages_and_retries_failed_ones(system: SecuredDeployment):
    """Long polling needs the queues topic, failed messages need topics that an administrator created."""
    failed, done = [], []

    def handle(messages: list[Message]) -> None:
        if not failed:
            failed.extend(message.value() for message in messages)
            raise ValueError("the first call fails")
        done.extend(message.value() for message in messages)
        consumer.stop()

    with Consumer(FREE, [INVOICES], consume_from="first", **system.login("audit")) as consumer:
        send(system, INVOICES, 1)
        assert [message.value() for message in consumer.fetch((INVOICES, 0), 0, wait=60).messages] == [b"0"]
        consumer.run(handle, stop_timeout=60)

    assert failed == done == [b"0"]


def test_a_client_of_another_tenant_cannot_act_for_a_group(system: SecuredDeployment):
    """It may write to the control topics, but has no key for the group: its unregister is on record as rejected."""
    value = json.dumps({"type": "unregister", "group_id": TENANT, "client_id": "c", "instance_id": "i"})
    producer = system.broker.connection("audit").producer()
    producer.produce("wakeroll.groups", value, key=TENANT)
    assert producer.flush(60) == 0

    query = f"select detail from rejections where group_id = '{TENANT}' and rule = 'signature'"
    [row] = wait_until(lambda: rows(system, query), "the rejection is on record", patience_s=PATIENCE_WITH_SPARK_S)
    assert row.detail.startswith(f"unregister: clients of the group '{TENANT}' must sign with one of the client keys")


def test_an_operator_changes_a_group(system: SecuredDeployment):
    done = system.as_user("ops", "configure", FREE, "--settle-ms", "2000", keys="operator")
    reset = system.as_user("ops", "reset-offsets", TENANT, "--to-first", "--execute", keys="operator")

    assert (done.returncode, reset.returncode) == (0, 0), done.stderr + reset.stderr
    assert f"{FREE} is configured in epoch" in done.stdout


@pytest.mark.usefixtures("consumed")
def test_offsets_of_kafka_s_groups_are_imported_copied_and_watched(system: SecuredDeployment, tmp_path: Path):
    allow_kafka_groups(system)
    commit_in_kafka(system, {0: 3, 1: 4})

    done = system.as_user("ops", "import-offsets", OLD, "--execute", keys="operator")
    assert done.returncode == 0, done.stdout + done.stderr

    copier = system.process("copier", ["observe", "--mirror-offsets", TENANT], system.options("copier", "observer"))
    with copier as child:
        wait_until(lambda: committed_in_kafka(system).keys() == {0, 1}, "offsets are copied", state=child.log_tail)

    words = ["watch-kafka", "--groups", OLD, "--home", str(tmp_path)]
    with system.process("watch", words, system.options("watch")) as child:
        child.wait_until(lambda: "the past of all groups is on record" in child.log_tail(), PATIENCE_WITH_SPARK_S)
    assert watched_offsets(tmp_path) == 2


def test_a_watch_without_the_right_to_read_kafka_s_record_describes_the_groups(
    system: SecuredDeployment, tmp_path: Path
):
    """It says so once; `ops` may describe the group, and not read the topic."""
    allow_kafka_groups(system)
    commit_in_kafka(system, {0: 3, 1: 4})
    words = ["watch-kafka", "--groups", OLD, "--home", str(tmp_path), "--interval", "0.5"]
    with system.process("describe", words, system.options("ops")) as child:
        child.wait_until(lambda: "__consumer_offsets cannot be read" in child.log_tail(), PATIENCE_WITH_SPARK_S)
        wait_until(lambda: watched_offsets(tmp_path) == 2, "the described offsets are in the tables")
        assert child.log_tail().count("__consumer_offsets cannot be read") == 1


def watched_offsets(home: Path) -> int:
    """Return how many offsets of the watched group are in the tables of a watch."""
    with duck_ledger(home / "warehouse") as ledger:
        return len(ledger.rows(f"select * from current_offsets where group_id = '{OLD}'"))


def test_a_page_and_the_commands_show_the_groups(system: SecuredDeployment):
    """They verify the signatures too, so that they show what the coordinator decided."""
    with served(system.settings("page", keys="all")) as address:

        def groups() -> set[str]:
            with urllib.request.urlopen(f"{address}/api/groups", timeout=60) as answer:
                return {group["group_id"] for group in json.load(answer)["groups"]}

        wait_until(lambda: groups() >= {TENANT, FREE}, "the page shows both groups", state=groups)
    for words in (["state"], ["lag", TENANT], ["describe", TENANT]):
        done = system.as_user("page", *words, keys=None if words == ["lag", TENANT] else "all")
        assert done.returncode == 0, done.stderr
        assert TENANT in done.stdout


def test_dead_letters_are_listed(system: SecuredDeployment):
    done = system.as_user("post", "dlq", TENANT)

    assert done.returncode == 0, done.stdout + done.stderr


def test_doctor_names_the_user_and_its_roles(system: SecuredDeployment):
    done = system.as_user("root", "doctor", "--home", str(system.home), keys="all")

    assert done.returncode == 0, done.stdout
    said = re.search(r"login    'root' by SCRAM-SHA-512 over SASL_SSL; it has the rights of (.*)", done.stdout)
    assert said is not None, done.stdout
    roles = said.group(1).split(", ")
    assert {"administrator", "recorder"} <= set(roles)
    assert {"client", "coordinator", "resharder"}.isdisjoint(roles)


# --- no secret is where others read ---


def test_no_password_or_key_is_in_any_log_table_checkpoint_or_output(system: SecuredDeployment):
    secrets = secrets_of(system)
    printed = [
        system.as_user("root", "doctor", "--home", str(system.home), keys="all"),
        system.as_user("nobody", "state"),
        system.as_user("nobody", "run", java=True),
    ]
    files = [path for path in system.folder.rglob("*") if path.is_file() and path not in system.keys.values()]

    found = [(path.name, name) for path in files for name, secret in secrets.items() if secret in content_of(path)]
    found += [
        (str(done.args), name)
        for done in printed
        for name, secret in secrets.items()
        if secret.decode() in done.stdout + done.stderr
    ]
    assert found == []
    assert {"run.json", "run.log", "observe.log"} <= {path.name for path in files}
    assert len([path for path in files if path.suffix == ".parquet"]) > 3


def test_no_secret_is_in_the_arguments_or_the_environment_of_a_process(system: SecuredDeployment):
    """Everybody on a machine may list the arguments of a process."""
    secrets = secrets_of(system)
    texts = {path.name: text_of(path / "cmdline") + text_of(path / "environ") for path in Path("/proc").glob("[0-9]*")}
    ours = {number: text for number, text in texts.items() if str(system.folder) in text}

    found = [(number, name) for number, text in ours.items() for name in secrets if secrets[name].decode() in text]

    assert len(ours) >= 3
    assert found == []


def secrets_of(system: SecuredDeployment) -> dict[str, bytes]:
    """Return what nobody may find: the random part of each password, and the secret of each key."""
    secrets = {user: password.rpartition("\\")[2].encode() for user, password in system.broker.passwords.items()}
    keys = re.findall(r'secret = "(.+)"', system.keys["all"].read_text())
    assert len(keys) == 3
    return secrets | {f"key {number}": secret.encode() for number, secret in enumerate(keys)}


def content_of(path: Path) -> bytes:
    """Return what is in a file; nothing if it is no longer there: the deployment works meanwhile."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def text_of(path: Path) -> str:
    return content_of(path).decode(errors="replace")


# --- Kafka's own groups ---


def allow_kafka_groups(system: SecuredDeployment) -> None:
    places = (("GROUP", OLD), ("GROUP", TENANT), ("TOPIC", ORDERS))
    entries = [
        {
            "resource_type": kind,
            "resource_name": name,
            "pattern_type": "LITERAL",
            "principal": f"User:{LEGACY}",
            "host": "*",
            "operation": "READ",
            "permission_type": "ALLOW",
        }
        for kind, name in places
    ]
    system.broker.allow(json.dumps({"acls": entries}))


def kafka_consumer(system: SecuredDeployment, group: str) -> KafkaConsumer:
    login = system.broker.login(LEGACY)
    return KafkaConsumer({"bootstrap.servers": system.broker.bootstrap, **login, "group.id": group})


def commit_in_kafka(system: SecuredDeployment, offsets: dict[int, int]) -> None:
    consumer = kafka_consumer(system, OLD)
    places = [TopicPartition(ORDERS, partition, offset) for partition, offset in offsets.items()]

    def committed() -> bool:
        try:  # the first request creates the topic of offsets
            consumer.commit(offsets=places, asynchronous=False)
        except KafkaException:
            return False
        return True

    wait_until(committed, "offsets are committed")
    consumer.close()


def committed_in_kafka(system: SecuredDeployment) -> dict[int, int]:
    consumer = kafka_consumer(system, TENANT)
    try:
        found = consumer.committed([TopicPartition(ORDERS, number) for number in (0, 1)], timeout=30)
        return {one.partition: one.offset for one in found if one.offset >= 0}
    except KafkaException:
        return {}
    finally:
        consumer.close()
