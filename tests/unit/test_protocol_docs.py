"""docs/protocol.md says what the declarations say: whoever writes a client in another language has only that page."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec import structs

from wakeroll_model import config, ed25519
from wakeroll_model.client_keys import FROM_CLIENTS, ClientKey
from wakeroll_model.decisions import (
    RULES,
    AnyDecision,
    Change,
    Decision,
    FencedReason,
    How,
    LockOutcome,
    Rejected,
    Trigger,
    WakeReason,
)
from wakeroll_model.events import AnyEvent, Configure, Heartbeat, KeyChange
from wakeroll_model.group import GroupSettings
from wakeroll_model.instance_secrets import provable_id
from wakeroll_model.partitioner import murmur2, partition_of
from wakeroll_model.records import Record, read_event
from wakeroll_model.shard import Shard
from wakeroll_model.signing import ROLES, SIGNED_BY, Key, Keys, Signer
from wakeroll_model.slices import slice_of
from wakeroll_model.valid_keys import on_record

PAGE = (Path(__file__).parent.parent.parent / "docs" / "protocol.md").read_text(encoding="utf-8")

EVENTS = {event.__struct_config__.tag: event for event in get_args(AnyEvent)}
DECISIONS = {decision.__struct_config__.tag: decision for decision in get_args(AnyDecision)}

ROLE = re.compile("|".join(ROLES))

decode_event = msgspec.json.Decoder(AnyEvent).decode
decode_decision = msgspec.json.Decoder(AnyDecision).decode


def sections(chapter: str) -> dict[str, str]:
    """Return heading -> text of a chapter's sections: an event and a decision may have one name."""
    [text] = re.findall(rf"^## {chapter}\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", text, flags=re.MULTILINE | re.DOTALL))


def event_section(name: str) -> str:
    return sections("Events")[name]


def decision_section(name: str) -> str:
    return sections("Decisions")[name]


def example_in(section: str) -> str:
    [example] = re.findall(r"```json\n(.*?)```", section, flags=re.DOTALL)
    return example


def first_table_in(section: str) -> list[list[str]]:
    """Return the rows of a section's first table, without its heading."""
    table = re.search(r"(?:^\|.*\n)+", section, flags=re.MULTILINE)
    if table is None:
        return []
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table[0].splitlines()[2:]]


def fields_in(section: str) -> set[str]:
    return {field for row in first_table_in(section) for field in row[0].split(", ")}


def test_every_event_and_every_decision_has_a_section():
    assert sorted(sections("Events")) == sorted(EVENTS)
    assert sorted(sections("Decisions")) == sorted(DECISIONS)


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_the_example_of_an_event_is_one(name):
    """Copied from the page into a producer, it must be accepted."""
    example = example_in(event_section(name))

    event = decode_event(example)

    assert type(event) is EVENTS[name]
    assert json.loads(msgspec.json.encode(event)) == json.loads(example)


@pytest.mark.parametrize("name", ["heartbeat", "unregister", "commit", "configure", "reset", "lock", "unlock"])
def test_the_example_of_an_event_is_accepted_in_the_partition_that_the_page_names(name):
    event = read_event(Record("wakeroll.groups", 1, 0, 0, b"billing", example_in(event_section(name)).encode()), 4)

    assert type(event) is EVENTS[name]


@pytest.mark.parametrize("name", sorted(DECISIONS))
def test_the_example_of_a_decision_is_one(name):
    """Not a field too many or too few: it comes back as it stands there."""
    example = example_in(decision_section(name))

    decision = decode_decision(example)

    assert type(decision) is DECISIONS[name]
    assert json.loads(msgspec.json.encode(decision)) == json.loads(example)


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_the_table_of_an_event_has_all_its_fields(name):
    assert fields_in(event_section(name)) == set(EVENTS[name].__struct_encode_fields__)


@pytest.mark.parametrize("name", sorted(DECISIONS))
def test_the_table_of_a_decision_has_all_its_own_fields(name):
    own = set(DECISIONS[name].__struct_encode_fields__) - set(Decision.__struct_encode_fields__)

    assert fields_in(decision_section(name)) == own


@pytest.mark.parametrize("name", sorted(EVENTS.keys() - {"configure", "tick"}))
def test_the_defaults_of_an_event_are_those_of_its_declaration(name):
    """An empty cell means required."""
    declared: dict[str, Any] = {}
    for field in msgspec.structs.fields(EVENTS[name]):
        if field.default is not msgspec.NODEFAULT:
            declared[field.encode_name] = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            declared[field.encode_name] = field.default_factory()
    told = {row[0]: row[1].strip("`") for row in first_table_in(event_section(name))}

    assert {field: json.loads(default) for field, default in told.items() if default} == declared


def test_the_settings_of_a_group_are_those_that_hold_until_they_are_set():
    settings = GroupSettings()
    told = {row[0]: row[1] for row in first_table_in(event_section("configure")) if "`" in row[1]}

    assert {name: json.loads(default.strip("`")) for name, default in told.items()} == {
        name: getattr(settings, name)
        for name in Configure.__struct_fields__
        if getattr(settings, name, None) is not None
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fenced", get_args(FencedReason)),
        ("rebalance", get_args(Trigger)),
        ("handover", get_args(How)),
        ("lock", get_args(LockOutcome)),
        ("wake", get_args(WakeReason)),
        ("membership", get_args(Change)),
    ],
)
def test_every_word_that_a_decision_may_use_is_explained(name, words):
    assert [word for word in words if not re.search(rf"\b{word}\b", decision_section(name))] == []


def test_the_rules_that_the_page_explains_are_those_that_reject():
    table = decision_section("rejected").partition("| rule | broken when |")[2].partition("\n\n")[0]

    assert set(re.findall(r"^\| ([a-z][a-z-]*) \|", table, flags=re.MULTILINE)) == {*RULES}


def test_the_bounds_that_the_page_names_are_those_of_the_configuration():
    numbers = {int(text.replace(",", "")) for text in re.findall(r"\d+(?:,\d{3})*", PAGE)}

    assert {
        config.MAX_QUEUES,
        config.MAX_TOPICS,
        config.MAX_DEPTH,
        config.MAX_DETAIL,
        config.MAX_RAW_BYTES // 1_024,
        config.MAX_RECORD_BYTES // 1_024 // 1_024,
        config.MAX_CAUSES,
        config.LONGEST_STEP_MS // 1_000,
        config.GRACE_MS // 1_000,
        config.HEARTBEAT_MS // 1_000,
        config.SESSION_TIMEOUT_MS // 1_000,
        config.REVOKE_TIMEOUT_MS // 1_000,
        config.MIN_SESSION_MS,
        config.MAX_SESSION_MS,
        config.DEFAULT_LIMITS.max_growth,
        config.ENDED_MS // 60_000,
        config.SLACK_MS // 1_000,
        config.CLIENT_MARGIN_MS // 1_000,
        config.LOCK_MS // 1_000,
        config.MAX_SIGNERS,
        *config.SIGNED_FOR.values(),
        config.SKIP_MS // 1_000,
        config.REFRESH_MS // 1_000,
        config.HINT_MS // 1_000,
        config.CONFIRM_MS // 1_000,
        config.REMEMBER_MS // 60_000,
        config.DEFAULT_LIMITS.max_holds_per_queue,
        config.DEFAULT_LIMITS.max_holds_per_shard,
        config.DEFAULT_LIMITS.max_lives_per_queue,
        config.DEFAULT_LIMITS.max_lives_per_shard,
        config.DEFAULT_LIMITS.max_pulled_queues,
        config.DEFAULT_LIMITS.max_filters_per_queue,
        config.DEFAULT_LIMITS.max_filters_per_shard,
    } - numbers == set()


def test_the_example_of_a_secret_is_right():
    assert f"`{provable_id('a secret')}`" in PAGE


def test_every_limit_stands_in_the_table_with_its_value():
    """Who meets one must find what it is, and what happens beyond it; a new one is not forgotten."""
    chapter = PAGE.partition("\n## Limits\n")[2]
    told = {row[0]: int(re.findall(r"[\d,]+", row[1])[0].replace(",", "")) for row in first_table_in(chapter)}
    limits = {name: value for name, value in vars(config).items() if name.startswith("MAX_")}
    limits |= structs.asdict(config.DEFAULT_LIMITS)

    values = vars(config) | structs.asdict(config.DEFAULT_LIMITS)
    assert {name: values[name] for name in told} == told
    assert limits.keys() - told.keys() == set()


def test_the_partitioners_examples_are_right():
    """Whoever writes a client tests his own partitioner with these."""
    assert '`billing` belongs to partition 1; `murmur2("foobar")` is -790332482' in PAGE
    assert (partition_of(b"billing", 4), murmur2(b"foobar") - 2**32) == (1, -790332482)


def test_the_examples_of_slices_are_right():
    """Authors of clients test their hash with these."""
    assert "Of 64 slices, `a` belongs to 16, `customer-17` to 56, and an empty\n  key to 0." in PAGE
    assert [slice_of(key, 64) for key in (b"a", b"customer-17", b"")] == [16, 56, 0]


def test_the_signatures_of_the_page_are_those_that_a_shard_verifies():
    """Whoever signs in another language tests his own signer with these."""
    [chapter] = re.findall(r"^## Signed records\n(.*?)(?=^## )", PAGE, flags=re.MULTILINE | re.DOTALL)
    [secret] = re.findall(r"`([0-9a-f]{64})`", chapter)
    [configure, tick] = re.findall(r"^\{.*\}$", chapter, flags=re.MULTILINE)
    keys = Keys.of([Key("ops-1", "operator", bytes.fromhex(secret)), Key("obs-1", "observer", bytes.fromhex(secret))])
    records = [
        Record("wakeroll.groups", 1, 500, 0, b"billing", configure.encode()),
        Record("wakeroll.queues", 0, 41, 0, None, tick.encode()),
    ]

    for record in records:
        shard = Shard(record.topic, record.partition, 4, signatures=keys)
        assert [one for one in shard.apply(record) if isinstance(one, Rejected)] == []


def test_the_client_s_signature_of_the_page_is_the_one_that_a_shard_verifies():
    [chapter] = re.findall(r"^## Client keys\n(.*?)(?=^## )", PAGE, flags=re.MULTILINE | re.DOTALL)
    [value] = re.findall(r"^\{.*\}$", chapter, flags=re.MULTILINE)
    key, group = ClientKey("tenant-1", "tenant.", bytes(range(32))), b"tenant.billing"

    record = Record("wakeroll.groups", partition_of(group, 4), 0, 0, group, value.encode())
    shard = Shard(record.topic, record.partition, 4, signatures=Keys.of([], [key]))

    assert [one for one in shard.apply(record) if isinstance(one, Rejected)] == []
    forged = structs.replace(record, value=value.replace('"c1"', '"c2"').encode())
    assert [one.rule for one in shard.apply(forged) if isinstance(one, Rejected)] == ["signature"]


def test_the_ed25519_signatures_of_the_page_are_those_that_everybody_verifies():
    """By the public key of the page alone, and made of its private key: a vector for libraries in other languages."""
    [chapter] = re.findall(r"^## Ed25519 keys\n(.*?)(?=^## )", PAGE, flags=re.MULTILINE | re.DOTALL)
    private_key, public_key = map(bytes.fromhex, re.findall(r"`([0-9a-f]{64})`", chapter))
    configure, unregister = (line.encode() for line in re.findall(r"^\{.*\}$", chapter, flags=re.MULTILINE))
    operator, client = Key("ops-2", "operator", b"", public_key), ClientKey("tenant-2", "tenant.", b"", public_key)
    records = [
        Record("wakeroll.groups", 1, 500, 0, b"billing", configure),
        Record("wakeroll.groups", partition_of(b"tenant.billing", 4), 0, 0, b"tenant.billing", unregister),
    ]

    for record in records:
        shard = Shard(record.topic, record.partition, 4, signatures=Keys.of([operator], [client]), level=4)
        assert [one for one in shard.apply(record) if isinstance(one, Rejected)] == []
    assert ed25519.public_key_of(private_key) == public_key
    signer = Signer(structs.replace(operator, secret=private_key), "0123456789abcdef")
    unsigned = b'{"type":"configure","group_id":"billing","settle_ms":2000}'
    assert signer.sign("wakeroll.groups", 1, b"billing", unsigned, 500) == configure


def test_the_fingerprints_of_the_page_are_those_of_its_secret():
    [chapter] = re.findall(r"^### keys\n(.*?)(?=^## )", PAGE, flags=re.MULTILINE | re.DOTALL)
    [example] = re.findall(r"```json\n(.*?)```", chapter, flags=re.DOTALL)
    secret = bytes(range(32))

    keys = [on_record(Key("ops-2", "operator", secret)), on_record(ClientKey("tenant-1", "tenant.", secret))]
    keys.append(on_record(Key("ops-3", "operator", secret, ed25519.public_key_of(secret))))

    assert msgspec.json.decode(example, type=KeyChange).added == keys


def test_every_event_of_a_client_is_listed_for_its_key():
    [chapter] = re.findall(r"^## Client keys\n(.*?)(?=^## )", PAGE, flags=re.MULTILINE | re.DOTALL)

    assert {str(event.__struct_config__.tag) for event in FROM_CLIENTS} <= set(re.findall(r"`(\w+)`", chapter))


def test_the_function_of_the_page_signs_as_the_observer_and_operators_do():
    """It is all that somebody has who writes an operator's tool."""
    [code] = re.findall(r"```python\n(import hashlib.*?)```", PAGE, flags=re.DOTALL)
    page: dict[str, Any] = {}
    exec(code, page)
    secret, name = bytes(range(32)), "0123456789abcdef"
    for role, topic, partition, key, value in (
        ("operator", "wakeroll.groups", 1, b"billing", b'{"type":"configure","group_id":"billing"}'),
        ("observer", "prefix.queues", 12, None, b'{"type":"tick"}'),
    ):
        ours = Signer(Key("k-1", role, secret), name).sign(topic, partition, key, value, 500)
        until = 500 + config.SIGNED_FOR[role]
        assert page["sign"](value, topic, partition, key, secret, "k-1", name, 1, until) == ours


def test_the_roles_of_the_page_are_those_that_a_shard_asks_for():
    [chapter] = re.findall(r"^## Signed records\n(.*?)(?=^## )", PAGE, flags=re.MULTILINE | re.DOTALL)
    told = {name: row[1] for row in first_table_in(chapter) for name in row[0].replace("`", "").split(", ")}

    assert {name: SIGNED_BY[EVENTS[name]] for name in told} == {name: ROLE.search(told[name])[0] for name in told}
    assert len(told) == len(SIGNED_BY)


def test_the_patterns_of_names_are_those_of_the_declarations():
    declared = json.dumps(msgspec.json.schema(Heartbeat))
    rows = re.findall(r"^\| (\w+) \| `(\[.*?\]\{.*?\})` \|$", PAGE, flags=re.MULTILINE)

    assert [name for name, _ in rows] == ["group_id", "client_id", "instance_id", "topic"]
    assert [pattern for _, pattern in rows if pattern.replace("\\|", "|") not in declared] == []
