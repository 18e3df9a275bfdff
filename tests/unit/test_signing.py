"""Signed records: what one byte of difference does, what a copy does, how keys change."""

import io
import pickle
import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from wakeroll_model import config, ed25519
from wakeroll_model.decisions import AnyDecision, Rejected
from wakeroll_model.entity_machines import MACHINES
from wakeroll_model.events import (
    AnyEvent,
    Arrival,
    Configure,
    Heartbeat,
    Reset,
    ResetOffset,
    Route,
    RoutedQueue,
    Subscription,
    Tick,
)
from wakeroll_model.feature_levels import NEWEST
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record, entity_of, read_event
from wakeroll_model.replay import encode_decision, refused_in
from wakeroll_model.shard import Shard
from wakeroll_model.signature_bytes import Signature, read_signature
from wakeroll_model.signing import (
    DEV_KEYS,
    SIGNED_BY,
    Key,
    Keys,
    OnRecord,
    Signer,
    Signers,
    admit,
    new_signers,
)

GROUPS, QUEUES = "wakeroll.groups", "wakeroll.queues"
PARTITION = partition_of(b"billing", 4)
ORDERS = Queue("orders", "", 0)
"""Belongs to the same partition as billing."""
START_MS = 1_700_000_000_000

OLD, NEW = Key("ops-1", "operator", bytes(32)), Key("ops-2", "operator", bytes([1] * 32))
OBSERVER = Key("obs-1", "observer", bytes([2] * 32))
KEYS = Keys.of([OLD, NEW, OBSERVER])
ED_OPS, ED_OBSERVER = (
    Key(role, role, private_key, ed25519.public_key_of(private_key))
    for role, private_key in (("operator", bytes([3] * 32)), ("observer", bytes([4] * 32)))
)
ED_KEYS = Keys.of([ED_OPS, ED_OBSERVER])
PUBLIC_KEYS = Keys.of(msgspec.structs.replace(key, secret=b"") for key in ED_KEYS.by_id.values())
"""What a process has that only verifies."""
PAIRS = [(KEYS, KEYS), (ED_KEYS, PUBLIC_KEYS)]
"""Keys that sign, and keys that verify."""

EVENTS: list[AnyEvent] = [
    Configure(group_id="billing", heartbeat_ms=2_000),
    Reset(request_id="r1", group_id="billing", offsets=[ResetOffset(queue=ORDERS, offset=7)], by="mia"),
    Route(topic="orders", queues=[RoutedQueue(topic="orders", broker="", queue_id=0)], version="1"),
    Tick(),
    Arrival(queue=ORDERS, next_offset=6, observer="o1"),
]


def unsigned(event: AnyEvent, offset: int = 5) -> Record:
    """Make the record of an event."""
    topic = QUEUES if isinstance(event, Arrival) else GROUPS
    value = msgspec.json.encode(event)
    return Record(topic, PARTITION, offset, START_MS + offset, entity_of(event).encode() or None, value)


def signed(
    event: AnyEvent, offset: int = 5, *, by: Signer | None = None, end: int | None = None, keys: Keys = KEYS
) -> Record:
    """Make the record of an event, signed by somebody new of the right role who knows the log's end."""
    record = unsigned(event, offset)
    by = by or Signer(keys.of_role(SIGNED_BY[type(event)])[-1], f"{offset:016x}")
    known = offset if end is None else end
    return msgspec.structs.replace(
        record, value=by.sign(record.topic, record.partition, record.key, record.value or b"", known)
    )


def judged(record: Record, keys: Keys = KEYS) -> AnyEvent | Rejected | None:
    """Return what a shard makes of a record that is its first one."""
    event = read_event(record, 4)
    return event if isinstance(event, Rejected) else admit(record, event, keys, new_signers(record.offset))


def rule_of(record: Record, keys: Keys = KEYS) -> str:
    """Return the rule that a record breaks."""
    found = judged(record, keys)
    assert isinstance(found, Rejected), found
    return found.rule


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize(("own", "others"), PAIRS, ids=["HMAC", "Ed25519"])
def test_what_its_role_has_signed_is_accepted(event, own, others):
    assert judged(signed(event, keys=own), others) == event


@pytest.mark.parametrize("event", EVENTS[:-1], ids=lambda event: type(event).__name__)
def test_what_nobody_has_signed_is_refused(event):
    assert rule_of(unsigned(event)) == "signature"


def test_an_arrival_that_nobody_has_signed_is_a_hint():
    """Producers have no keys, and may say what their messages are; anybody may write the name of an observer."""
    arrival = EVENTS[-1]

    assert judged(unsigned(arrival)) == msgspec.structs.replace(arrival, observer="")


@given(event=st.sampled_from(EVENTS), pair=st.sampled_from(PAIRS), data=st.data())
def test_a_flipped_bit_of_the_value_is_never_accepted(event, pair, data):
    """Of the event, of the signature's own fields, of the proof or of the brackets; an arrival may become a hint."""
    record = signed(event, keys=pair[0])
    value = bytearray(record.value or b"")
    place = data.draw(st.integers(0, len(value) - 1))
    value[place] ^= 1 << data.draw(st.integers(0, 7))

    found = judged(msgspec.structs.replace(record, value=bytes(value)), pair[1])

    assert isinstance(found, Rejected) or (isinstance(found, Arrival) and not found.observer)


@given(event=st.sampled_from(EVENTS), pair=st.sampled_from(PAIRS), data=st.data())
def test_a_flipped_bit_of_the_key_is_never_accepted(event, pair, data):
    """Whether or not the key is the one that the event belongs under."""
    record = signed(event, keys=pair[0])
    key = bytearray(record.key or b"")
    if key:
        key[data.draw(st.integers(0, len(key) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    other = msgspec.structs.replace(record, key=bytes(key))

    if record.key is None or key:
        assert pair[1].problem(other, event, read_signature(other.value or b"", NEWEST)) != ""
        assert isinstance(judged(other, pair[1]), Rejected)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("elsewhere", [{"topic": "other.groups"}, {"partition": PARTITION + 1}])
@pytest.mark.parametrize(("own", "others"), PAIRS, ids=["HMAC", "Ed25519"])
def test_a_signature_is_good_for_one_partition_of_one_topic(event, elsewhere, own, others):
    """Else an operator's word to one deployment would be heard in another one that has the same keys."""
    moved = msgspec.structs.replace(signed(event, keys=own), **elsewhere)

    assert others.problem(moved, event, read_signature(moved.value or b"", NEWEST)).endswith(
        "topic, partition, key and value"
    )


@pytest.mark.parametrize("more", [b" ", b"\n", b"{}", b',"by":"mallory"}'])
def test_nothing_may_stand_behind_a_signature(more):
    record = signed(Tick())
    assert record.value is not None

    assert rule_of(msgspec.structs.replace(record, value=record.value + more)) in ("signature", "json")
    assert rule_of(msgspec.structs.replace(record, value=record.value[:-1] + more)) in ("signature", "json")


def test_parts_cannot_be_moved_from_one_to_the_next():
    """Each has its length before it: a group `bill` and a value that begins with `ing` is no group `billing`."""
    record = signed(EVENTS[0])
    assert record.value is not None
    moved = msgspec.structs.replace(record, key=b"bill", value=b"ing" + record.value)

    assert KEYS.problem(moved, EVENTS[0], read_signature(moved.value or b"", NEWEST)) != ""


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_each_role_says_what_is_its_own(event):
    """The observer's key does not move offsets, and the operator's does not tell the time."""
    other = OBSERVER if SIGNED_BY[type(event)] == "operator" else NEW

    assert rule_of(signed(event, by=Signer(other, "0" * 16))) == "signature"


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (
            unsigned(Tick()),
            "a tick requires the signature of an observer; the value does not end with a signature",
        ),
        (
            signed(Tick(), by=Signer(NEW, "0" * 16)),
            "the key 'ops-2' has the role 'operator'; a tick requires the signature of an observer",
        ),
        (
            signed(EVENTS[0], by=Signer(Key("dev-operator", "operator", b"x"), "0" * 16)),
            "no key 'dev-operator'; a configure requires the signature of an operator; keys of this role: ops-1, ops-2",
        ),
        (
            signed(EVENTS[0], by=Signer(Key("ops-2", "operator", b"x"), "0" * 16)),
            "the signature by key 'ops-2' does not match this topic, partition, key and value",
        ),
        (
            signed(EVENTS[0], end=6),
            "the signature is valid below offset 100006; expected at most 100005, 100000 above the record's offset",
        ),
    ],
)
def test_a_refusal_says_what_was_found_and_what_is_needed(record, sentence):
    found = judged(record)

    assert isinstance(found, Rejected)
    assert (found.rule, found.detail) == ("signature", sentence)


def test_a_public_key_is_no_secret_of_an_hmac():
    """Everybody knows it; a forger takes it for the secret, and hopes that the signature says how it is verified."""
    forger = Signer(msgspec.structs.replace(ED_OPS, secret=ED_OPS.public_key, public_key=b""), "0" * 16)

    found = judged(signed(EVENTS[0], by=forger), PUBLIC_KEYS)

    assert isinstance(found, Rejected)
    assert found.detail == "the signature by key 'operator' does not match this topic, partition, key and value"


@pytest.mark.parametrize("kept", [0, 1, 32, 85])
def test_a_shortened_proof_is_refused(kept):
    """Thirty-two digits of it look like a MAC."""
    record = signed(EVENTS[0], keys=ED_KEYS)
    value = record.value or b""
    cut = msgspec.structs.replace(record, value=value[: len(value) - 88 + kept] + b'"}')

    found = judged(cut, PUBLIC_KEYS)

    assert isinstance(found, Rejected)
    assert found.rule == "signature"


def test_a_proof_has_one_text():
    """The last digit has four spare bits: a decoder that ignores them would accept sixteen texts."""
    record = signed(EVENTS[0], keys=ED_KEYS)
    value = record.value or b""
    digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

    texts = [value[:-3] + digits[number : number + 1] + b'"}' for number in range(64)]

    accepted = [judged(msgspec.structs.replace(record, value=one), PUBLIC_KEYS) == EVENTS[0] for one in texts]
    assert [text for text, is_accepted in zip(texts, accepted, strict=True) if is_accepted] == [value]


@pytest.mark.parametrize(("own", "others"), [(KEYS, ED_KEYS), (ED_KEYS, KEYS)])
def test_one_kind_of_proof_does_not_pass_for_the_other(own, others):
    """A new key file may have keys with the names of an old one."""
    record = signed(EVENTS[0], keys=own)
    name = own.of_role("operator")[-1].key_id
    renamed = Keys.of([msgspec.structs.replace(others.of_role("operator")[-1], key_id=name)])

    found = judged(record, renamed)

    assert isinstance(found, Rejected)
    assert found.detail == f"the signature by key {name!r} does not match this topic, partition, key and value"


def test_keys_are_rotated_while_both_are_valid():
    """Coordinator first, then who signs, then the old one goes: nothing is refused in between."""
    before, both, after = Keys.of([OLD, OBSERVER]), KEYS, Keys.of([NEW, OBSERVER])
    by_old, by_new = (signed(EVENTS[0], by=Signer(key, "0" * 16)) for key in (OLD, NEW))

    assert [judged(by_old, keys) == EVENTS[0] for keys in (before, both, after)] == [True, True, False]
    assert [judged(by_new, keys) == EVENTS[0] for keys in (before, both, after)] == [False, True, True]
    assert [keys.of_role("operator")[-1].key_id for keys in (before, both, after)] == ["ops-1", "ops-2", "ops-2"]


def test_a_signature_runs_out_by_the_logs_offsets():
    """No clock is asked: the same record is stale in every replay, and wherever batches end."""
    event, longest = EVENTS[0], config.SIGNED_FOR["operator"]
    record = signed(event, 5)

    last, late = (msgspec.structs.replace(record, offset=5 + longest + more) for more in (-1, 0))

    shard_before = new_signers(5)
    assert admit(last, event, KEYS, shard_before) == event
    found = admit(late, event, KEYS, new_signers(5))
    assert isinstance(found, Rejected)
    assert found.rule == "stale"
    assert found.detail == (
        "the signature of signer 0000000000000005 (key 'ops-2') was valid below offset 100005; the record is at "
        "offset 100005: it came too late, or is a copy"
    )


def test_a_repeated_record_and_one_that_was_overtaken_are_silent():
    """The observer's producer may repeat; and a copy must not cost a decision each time."""
    signers, by = new_signers(0), Signer(OBSERVER, "0" * 16)
    first, second, third = (signed(Tick(), offset, by=by) for offset in (5, 6, 7))

    found = [
        admit(msgspec.structs.replace(record, offset=at), Tick(), KEYS, signers)
        for at, record in enumerate((first, first, third, second, third), 5)
    ]

    assert found == [Tick(), None, Tick(), None, None]


# --- who remembers what ---


def test_a_copy_is_never_new_however_many_signers_there_are(monkeypatch):
    """Nor where the shard has not seen the original, for its log was cut; and a signer who knows the end is heard."""
    monkeypatch.setattr(config, "MAX_SIGNERS", 3)
    monkeypatch.setattr(config, "SIGNED_FOR", {"operator": 20, "observer": 20})
    for seed in range(2_000):
        dice = random.Random(seed)
        first = dice.randrange(12)
        signers, counts = new_signers(first)["operator"], Counter[str]()
        said: list[Signature] = []
        for offset in range(50):
            if said and dice.random() < 0.4:
                copy = dice.choice(said[-20:])
                assert offset < first or signers.find(copy, offset) != "new", seed
                continue
            who, behind = dice.choice("abcdefgh"), dice.choice([0, 0, dice.randrange(12)])
            counts[who] += 1
            end = max(offset - behind, 0)
            signature = Signature("ops", who, counts[who], end + 20, b"", b"")
            said.append(signature)
            if offset >= first:
                assert signers.find(signature, offset) == "new" or end < offset, seed
            assert len(signers.newest) <= 3


def test_what_is_kept_of_signers_is_bounded_and_goes():
    """A thousand operators leave 256 names, and none when the log has gone on."""
    signers = Signers(-1)
    for number in range(1_000):
        assert signers.find(Signature("ops", f"{number:016}", 1, number + 100_000, b"", b""), number) == "new"
    assert len(signers.newest) == config.MAX_SIGNERS

    signers.find(Signature("ops", "last", 1, 300_000, b"", b""), 200_000)

    assert list(signers.newest) == ["last"]


def test_who_signs_often_is_not_forgotten_for_others(monkeypatch):
    """The observer ticks each second; its router, which is heard once a minute, may be a minute behind the end."""
    monkeypatch.setattr(config, "MAX_SIGNERS", 2)
    signers = Signers(-1)
    found = [
        signers.find(Signature("obs", who, count, 1_000, b"", b""), offset)
        for offset, (who, count) in enumerate([("ticker", 1), ("other", 1), ("ticker", 2)])
    ]

    signers.find(Signature("obs", "third", 1, 1_000, b"", b""), 3)

    assert found == ["new"] * 3
    assert list(signers.newest) == ["ticker", "third"]


# --- in a shard ---


def apply(records: list[Record], signatures: Any, *, cut: int = 0) -> tuple[list[AnyDecision], bytes]:
    """Return what one shard of groups decides, and its state; saved and loaded after each `cut` records."""
    shard, decisions = Shard(GROUPS, PARTITION, 4, signatures=signatures), []
    for number, record in enumerate(records, 1):
        decisions += shard.apply(record)
        if cut and number % cut == 0:
            shard = Shard(GROUPS, PARTITION, 4, shard.body(), signatures=signatures)
    return decisions, shard.body()


def a_log_with_forgeries() -> list[Record]:
    """Return what a group lives through, with records between that somebody without a key appends."""
    observer, operator = Signer(OBSERVER, "0" * 16), Signer(NEW, "1" * 16)
    route, gone = EVENTS[2], Route(topic="orders", version="0")
    beat = Heartbeat(group_id="billing", client_id="a", instance_id="a1", subscriptions=[Subscription(topic="orders")])
    makers = [
        lambda at: signed(route, at, by=observer),
        lambda at: unsigned(beat, at),
        lambda at: signed(EVENTS[0], at, by=operator),
        lambda at: unsigned(gone, at),
        lambda at: signed(Tick(), at, by=observer),
        lambda at: unsigned(Configure(group_id="billing", max_members=1), at),
        lambda at: signed(EVENTS[1], at, by=operator),
        lambda at: signed(Tick(), at, by=Signer(NEW, "2" * 16)),
        lambda at: signed(Tick(), at, by=observer),
    ]
    records = [make(at) for at, make in enumerate(makers)]
    copies = [msgspec.structs.replace(records[of], offset=at) for at, of in enumerate((0, 2, 6, 8, 4), len(records))]
    return records + copies


def test_what_is_forged_or_copied_changes_nothing():
    """The state is that of the honest records alone, but for the numbers of the refusals."""
    records = a_log_with_forgeries()
    honest = [records[number] for number in (0, 1, 2, 4, 6, 8)]

    decisions, _ = apply(records, KEYS)
    expected, _ = apply(honest, None)

    assert [one.cause.offset for one in decisions if isinstance(one, Rejected)] == [3, 5, 7]
    others = [one for one in decisions if not isinstance(one, Rejected)]
    for one in (*others, *expected):
        one.seq = 0
    assert others == expected


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_a_replay_needs_no_secrets(cut):
    """What was refused is on record; counts and what is void follow from the records."""
    records = a_log_with_forgeries()
    decisions, body = apply(records, KEYS, cut=cut)
    on_record = refused_in(decisions)

    again, body_again = apply(records, on_record[GROUPS, PARTITION])

    assert list(map(encode_decision, again)) == list(map(encode_decision, decisions))
    assert body_again == body


def test_a_copy_of_a_record_that_a_new_era_has_not_seen_is_stale():
    """The log has a gap behind the snapshot: a signer that is known from before it may have counted on in the gap."""
    operator = Signer(NEW, "1" * 16)
    seen, in_the_gap = (signed(EVENTS[0], at, by=operator) for at in (5, 20))
    shard = Shard(GROUPS, PARTITION, 4, signatures=KEYS)
    shard.apply(seen)

    again = Shard(GROUPS, PARTITION, 4, shard.body(), era=2, signatures=KEYS)
    decided = [
        [one.rule for one in again.apply(record) if isinstance(one, Rejected)]
        for record in (
            unsigned(Heartbeat(group_id="billing", client_id="a", instance_id="a1"), 50),
            msgspec.structs.replace(in_the_gap, offset=51),
            msgspec.structs.replace(seen, offset=52),
            signed(EVENTS[0], 53, by=operator),
        )
    ]

    assert decided == [[], ["stale"], ["stale"], []]


def test_a_machine_is_told_whose_word_an_arrival_is():
    """It may believe the observer further than a producer; in a replay it hears the same."""
    arrival = EVENTS[-1]
    heard: list[str] = []

    def told(signatures: Any) -> list[str]:
        shard = Shard(QUEUES, PARTITION, 4, signatures=signatures)
        step = MACHINES["queues"].step

        def listening(queue: Any, event: Any, moment: Any, cause: Any, around: Any) -> list[AnyDecision]:
            heard.append(event.observer)
            return step(queue, event, moment, cause, around)

        shard._machine = msgspec.structs.replace(shard._machine, step=listening)
        heard.clear()
        for record in (unsigned(arrival, 0), signed(arrival, 1)):
            shard.apply(record)
        return list(heard)

    assert told(KEYS) == told(OnRecord()) == ["", "o1"]
    assert told(None) == ["o1", "o1"]


def test_a_log_of_before_signatures_is_replayed_as_it_was():
    records = [unsigned(event, offset) for offset, event in enumerate(EVENTS[:4])]

    assert apply(records, OnRecord())[0] == apply(records, None)[0] != []


# --- secrets ---


def test_no_secret_shows_where_keys_are_shown():
    """In a log, a traceback, or what Spark says of the function that has them in it."""
    key = Key("night", "operator", b"\xde\xad\xbe\xef" * 8)
    shown = io.StringIO()
    Console(file=shown).print(key, Keys.of([key]))

    for text in (repr(key), repr(Keys.of([key])), str(key), f"{Keys.of([key])}", shown.getvalue()):
        assert "night" in text
        assert "xde" not in text
        assert "deadbeef" not in text


def test_keys_travel_to_executors():
    assert pickle.loads(pickle.dumps(KEYS)) == KEYS


def test_the_development_keys_have_all_roles():
    assert [(key.key_id, key.role) for key in DEV_KEYS.by_id.values()] == [
        ("dev-operator", "operator"),
        ("dev-observer", "observer"),
    ]
