"""`wakeroll acls`: the least rights of each role, in three forms."""

import json
import re
from pathlib import Path

import pytest

from wakeroll.connection import Topics
from wakeroll_pipeline.kafka.role_rights import ROLES, Scope, rights_of

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def test_commands_name_principal_operations_and_topic(wakeroll):
    code, printed, _ = wakeroll("acls", "coordinator=User:wr", "--prefix", "pay", "--bootstrap", "b:1")

    assert code == 0
    assert printed.splitlines()[2:4] == [
        "kafka-acls.sh --bootstrap-server b:1 --command-config admin.properties --add --allow-principal User:wr "
        "--operation Write --operation DescribeConfigs --topic pay.inbox",
        "kafka-acls.sh --bootstrap-server b:1 --command-config admin.properties --add --allow-principal User:wr "
        "--operation Read --operation Write --operation DescribeConfigs --topic pay.decisions",
    ]


def test_a_principal_with_spaces_is_quoted(wakeroll):
    """A principal of TLS is a distinguished name."""
    _, printed, _ = wakeroll("acls", "watcher=User:CN=watch er,O=x")

    assert "--allow-principal 'User:CN=watch er,O=x'" in printed
    assert "--operation Read --topic __consumer_offsets" in printed
    assert "--operation Describe --topic '*'" in printed, "the names of topics, by their ids"


def test_json_has_the_names_of_kafka_s_admin_client(wakeroll):
    _, printed, _ = wakeroll("acls", "client=User:billing", "--topic", "orders", "--group", "billing", "--json")

    entries = json.loads(printed)["acls"]
    assert {(entry["resource_type"], entry["resource_name"], entry["operation"]) for entry in entries} == {
        ("TOPIC", "wakeroll.groups", "WRITE"),
        ("TOPIC", "wakeroll.queues", "WRITE"),
        ("TOPIC", "wakeroll.inbox", "READ"),
        ("TOPIC", "orders", "READ"),
        ("TOPIC", "retry.billing", "READ"),
        ("TOPIC", "retry.billing", "WRITE"),
        ("TOPIC", "dlq.billing", "WRITE"),
        ("GROUP", "wakeroll-unused", "DESCRIBE"),
    }
    assert {entry["pattern_type"] for entry in entries} == {"LITERAL"}


def test_a_principal_with_two_roles_has_each_right_once(wakeroll):
    """Kafka's client refuses a list with the same ACL twice."""
    _, printed, _ = wakeroll("acls", "coordinator=User:wr", "recorder=User:wr", "--json")

    entries = json.loads(printed)["acls"]
    places = [(entry["resource_name"], entry["operation"]) for entry in entries]
    assert len(places) == len(set(places))
    assert entries[0]["roles"] == ["coordinator", "recorder"]


def test_a_table_has_one_row_per_topic_or_group(wakeroll):
    _, printed, _ = wakeroll("acls", "observer=User:o", "--topic", "orders", "--table")

    assert re.search(r"User:o\s+. observer . topic\s+. orders\s+. Describe", printed)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("boss=User:x",), "no role 'boss'; there are: client, waker, producer, observer"),
        (("client",), "'client' is not ROLE=PRINCIPAL, such as client=User:billing"),
        (("client=billing",), "'client=billing' is not ROLE=PRINCIPAL"),
        (("client=User:x", "--topic", "a b"), "--topic is 'a b'; it must be 1 to 249 letters"),
    ],
)
def test_a_mistake_gets_one_sentence(wakeroll, arguments, sentence):
    code, _, said = wakeroll("acls", *arguments)

    assert (code, sentence in said) == (2, True), said


def test_only_the_coordinator_may_write_decisions_and_inboxes():
    """A client that could would give itself queues."""
    topics = Topics()
    writers = {
        role
        for role in ROLES
        for right in rights_of([role], Scope(topics, ("orders",), ("billing",)))
        if right.name in (topics.inbox, topics.decisions) and "Write" in right.operations
    }

    assert writers == {"coordinator", "resharder"}


def test_only_the_recorder_may_publish_lines_of_the_chains_and_who_compares_them_may_not():
    """An auditor's principal that could write there could let a forged history pass."""
    chain = Topics().chain
    rights = {role: right for role in ROLES for right in rights_of([role], Scope(Topics())) if right.name == chain}

    assert {role: right.operations for role, right in rights.items()} == {
        "publisher": ("Read", "Write"),
        "auditor": ("Read",),
        "administrator": ("Create", "Describe"),
    }


def test_no_role_of_an_application_may_read_the_control_topics():
    topics = Topics()
    readers = {
        role
        for role in ROLES
        for right in rights_of([role], Scope(topics, ("orders",), ("billing",)))
        if right.name == topics.groups and "Read" in right.operations
    }

    assert readers == {"observer", "mirror", "coordinator", "recorder", "viewer", "upgrader", "resharder"}


def test_the_page_lists_every_role():
    """Its table is for people who compare; the command is the truth."""
    text = PAGE.read_text(encoding="utf-8")

    assert [role for role in ROLES if f"| `{role}`" not in text] == []


def test_a_beginning_of_names_has_a_prefixed_pattern(wakeroll):
    """For members that subscribe a pattern: which topics match is not known when the rights are given."""
    grant = ("acls", "client=User:billing", "--topic", "orders.*", "--topic", "*")
    _, printed, _ = wakeroll(*grant)
    _, document, _ = wakeroll(*grant, "--json")

    assert "--operation Read --resource-pattern-type prefixed --topic orders." in printed.splitlines()[3]
    assert printed.splitlines()[4].endswith("--operation Read --topic '*'")
    named = {(entry["resource_name"], entry["pattern_type"]) for entry in json.loads(document)["acls"]}
    assert {("orders.", "PREFIXED"), ("*", "LITERAL")} < named
    code, _, problem = wakeroll("acls", "client=User:billing", "--topic", "or*ders")
    assert code == 2
    assert "or the beginning of names and '*'" in problem
