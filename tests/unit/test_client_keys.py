"""Keys of clients: tenants that share the control topics cannot act for each other's groups."""

import pickle
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakeroll import Consumer
from wakeroll.connection import Connection
from wakeroll.keys import InvalidKeys, add_key, entry_of, new_client_key, new_key, read_keys
from wakeroll_model import ed25519
from wakeroll_model.client_keys import FROM_CLIENTS, ClientKey, ClientSigner
from wakeroll_model.decisions import AnyDecision, Rejected
from wakeroll_model.events import (
    AnyEvent,
    Cancel,
    Commit,
    CommittedOffset,
    Failure,
    Failures,
    Heartbeat,
    Lock,
    Pull,
    Subscription,
    Unlock,
    Unregister,
)
from wakeroll_model.feature_levels import NEWEST
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record, entity_of
from wakeroll_model.replay import encode_decision, refused_in
from wakeroll_model.shard import Shard
from wakeroll_model.signing import DEV_KEYS, Key, Keys, OnRecord

A, NEXT_A = ClientKey("a-1", "a.", bytes(32)), ClientKey("a-2", "a.", bytes([1] * 32))
ED_A = ClientKey("a-3", "a.", bytes([5] * 32), ed25519.public_key_of(bytes([5] * 32)))
PUBLIC_A = ClientKey("a-3", "a.", b"", ED_A.public_key)
B = ClientKey("b-1", "b.", bytes([2] * 32))
KEYS = Keys.of(
    [Key("ops-1", "operator", bytes([3] * 32)), Key("obs-1", "observer", bytes([4] * 32))], [A, NEXT_A, PUBLIC_A, B]
)
ORDERS = Queue("orders", "", 0)
MEMBER = {"group_id": "a.billing", "client_id": "c1", "instance_id": "i1"}
START_MS = 1_700_000_000_000

EVENTS: list[AnyEvent] = [
    Heartbeat(**MEMBER, subscriptions=[Subscription(topic="orders")]),
    Unregister(**MEMBER),
    Commit(**MEMBER, epoch=1, offsets=[CommittedOffset(queue=ORDERS, offset=7)]),
    Failures(**MEMBER, failures=[Failure(queue=ORDERS, first_offset=1, last_offset=1, messages=1, attempt=1, level=1)]),
    Lock(**MEMBER, queues=[ORDERS]),
    Unlock(**MEMBER, queues=[ORDERS]),
    Pull(**MEMBER, request_id="i1:1", queue=ORDERS, from_offset=0),
    Cancel(group_id="a.billing", client_id="c1", request_id="i1:1", queue=ORDERS),
]


def record_of(event: AnyEvent, by: ClientKey | None = None, offset: int = 0) -> Record:
    """Make the record of an event, signed with a key."""
    topic = "wakeroll.queues" if isinstance(event, Pull | Cancel) else "wakeroll.groups"
    key, value = entity_of(event).encode(), msgspec.json.encode(event)
    if by is not None:
        value = ClientSigner(by, "0" * 16).sign(topic, key, value)
    return Record(topic, partition_of(key, 4), offset, START_MS + offset, key, value)


def applied(*records: Record, keys: Keys | OnRecord = KEYS) -> list[AnyDecision]:
    """Return the decisions of a new shard on these records, which are in its partition."""
    shard = Shard(records[0].topic, records[0].partition, 4, signatures=keys, level=NEWEST, raises=True)
    return [decision for record in records for decision in shard.apply(record)]


def refusals(decisions: list[AnyDecision]) -> list[str]:
    return [one.detail for one in decisions if isinstance(one, Rejected) and one.rule == "signature"]


def test_these_are_all_events_of_clients():
    assert {type(event) for event in EVENTS} == set(FROM_CLIENTS)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("key", [A, NEXT_A, ED_A], ids=lambda key: key.key_id)
def test_an_event_that_a_client_of_the_tenant_signed_takes_effect(event, key):
    """While keys are rotated, both count."""
    assert refusals(applied(record_of(event, key))) == []


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (None, "the value does not end with a signature"),
        (B, "the key 'b-1' does not cover this group"),
        (ClientKey("a-1", "a.", bytes([9] * 32)), "does not match this topic, key and value"),
        (ClientKey("ops-1", "a.", bytes([3] * 32)), "the key 'ops-1' does not cover this group"),
    ],
    ids=["nobody", "another tenant", "a guessed secret", "an operator's key"],
)
def test_whatever_anybody_else_appends_for_a_tenant_is_rejected(event, key, reason):
    """A forged heartbeat, unregister, commit, lock, pull or report of failures."""
    decisions = applied(record_of(event, key))

    [found] = refusals(decisions)
    assert reason in found
    assert len(decisions) == 1


@given(st.sampled_from(EVENTS), st.data())
def test_a_changed_byte_of_a_signed_event_is_never_accepted(event, data):
    record = record_of(event, A)
    value = bytearray(record.value or b"")
    value[data.draw(st.integers(0, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    [found] = applied(msgspec.structs.replace(record, value=bytes(value)))

    assert isinstance(found, Rejected)


def test_a_signed_event_counts_in_its_own_topics_only():
    """The same group may exist under another prefix, with the same key."""
    record = record_of(EVENTS[0], A)

    assert "does not match this topic" in refusals(applied(msgspec.structs.replace(record, topic="other.groups")))[0]


def test_groups_that_no_key_covers_need_no_signature():
    free = msgspec.structs.replace(EVENTS[0], group_id="c.billing")

    assert refusals(applied(record_of(free))) == []
    assert refusals(applied(record_of(free), keys=Keys.of([], [ClientKey("all", "", bytes(32))]))) != []


def test_a_forged_event_leaves_the_group_as_it_was():
    """Not only is it rejected: no member, offset or queue of the tenant changes."""
    join, leave = record_of(EVENTS[0], A), record_of(EVENTS[1], offset=1)
    shard = Shard(join.topic, join.partition, 4, signatures=KEYS, raises=True)
    shard.apply(join)
    group = shard.group("a.billing")
    before = None if group is None else list(group.members)

    shard.apply(leave)

    group = shard.group("a.billing")
    assert before == ["c1"]
    assert group is not None
    assert list(group.members) == before


def test_a_replay_needs_no_client_keys():
    """The verdicts are on record, so the history stays readable when a key is gone."""
    records = [record_of(EVENTS[0], A), record_of(EVENTS[1], offset=1), record_of(EVENTS[1], A, offset=2)]
    first = applied(*records)
    [verdicts] = refused_in(first).values()

    again = applied(*records, keys=verdicts)

    assert [encode_decision(one) for one in again] == [encode_decision(one) for one in first]
    assert len(refusals(first)) == 1


def test_development_keys_require_nothing_of_clients():
    assert DEV_KEYS.clients == ()


# --- the key file and the SDK ---


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def test_client_keys_are_written_and_read_with_their_groups(wakeroll, file):
    code, said, _ = wakeroll("keys", "new", "--role", "client", "--groups", "a.", "--id", "a-1", "--file", str(file))
    add_key(file, new_key("operator", "ops-1"))

    keys = read_keys(file)
    assert (code, said) == (0, f"added the key 'a-1' of role client to {file}\n")
    assert [(key.key_id, key.groups) for key in keys.clients] == [("a-1", "a.")]
    assert keys.roles() == [("ops-1", "operator"), ("a-1", "client of a.*")]
    assert entry_of(keys.clients[0]) in file.read_text()
    with pytest.raises(InvalidKeys, match="already has a key 'a-1'"):
        add_key(file, new_client_key("b.", "a-1"))


def test_keys_of_clients_travel_to_executors_and_show_no_secret():
    secret = A.secret.hex()

    assert pickle.loads(pickle.dumps(KEYS)) == KEYS
    assert secret not in f"{A!r} {KEYS!r} {A.__rich_repr__()} {Connection('a:1', client_keys=(A,))!r}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            '[a]\nrole = "client"\nsecret = "{secret}"\n',
            "a key of the role client must have `groups`, and no other may",
        ),
        ('[a]\nrole = "operator"\ngroups = "a."\nsecret = "{secret}"\n', "must have `groups`, and no other may"),
        ('[a]\nrole = "client"\ngroups = 5\nsecret = "{secret}"\n', "`groups` of key 'a' in"),
        ('[a]\nrole = "client"\ngroups = "a b"\nsecret = "{secret}"\n', "must be the beginning of names of groups"),
        ('[a]\nrole = "king"\nsecret = "{secret}"\n', "must be operator, observer or client"),
    ],
)
def test_a_mistake_in_a_client_key_is_named_without_its_secret(file, text, sentence):
    file.write_text(text.format(secret="ab" * 32))

    with pytest.raises(InvalidKeys) as refused:
        read_keys(file)

    assert sentence in str(refused.value)
    assert "abab" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--role", "client"], "--role client needs --groups PREFIX"),
        (["--role", "operator", "--groups", "a."], "--groups is for --role client, not for 'operator'"),
        (["--role", "client", "--groups", "a b"], "the beginning of the groups is 'a b'"),
    ],
)
def test_a_wrong_client_key_is_refused_with_a_sentence(wakeroll, arguments, sentence):
    code, _, said = wakeroll("keys", "new", *arguments)

    assert (code, sentence in said) == (2, True), said


def test_a_consumer_whose_file_has_no_key_for_its_group_says_so_at_once(file):
    """Its heartbeats would be rejected one by one."""
    add_key(file, new_client_key("b.", "b-1"))

    with pytest.raises(InvalidKeys, match=r"there is no client key for the group 'a\.billing'"):
        Consumer("a.billing", ["orders"], "127.0.0.1:1", keys=file)
