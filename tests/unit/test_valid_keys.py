"""Keys on record: coordinators verify alike, whatever their key files say."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.control_log import TOPIC
from wakeroll_model import ed25519
from wakeroll_model.client_keys import ClientKey, ClientSigner
from wakeroll_model.config import MAX_KEYS
from wakeroll_model.decisions import AnyDecision, Rejected
from wakeroll_model.events import AnyEvent, Configure, Heartbeat, KeyChange, Level, Subscription, Tick
from wakeroll_model.feature_levels import NEWEST
from wakeroll_model.partitioner import partition_of
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision, refused_in
from wakeroll_model.shard import Shard
from wakeroll_model.signing import Key, Keys, OnRecord, Signatures, Signer
from wakeroll_model.valid_keys import MissingKeys, on_record

PARTITION = partition_of(b"billing", 4)
OLD, NEW = Key("ops-old", "operator", bytes([1] * 32)), Key("ops-new", "operator", bytes([2] * 32))
OBSERVER = Key("obs", "observer", bytes([3] * 32))
TENANT = ClientKey("tenant", "billing", bytes([4] * 32))
ALL = Keys.of([OLD, NEW, OBSERVER], [TENANT])


def public_key_of(number: int) -> tuple[bytes, bytes]:
    """Return a private key and its public key."""
    private_key = bytes([number] * 32)
    return private_key, ed25519.public_key_of(private_key)


ED_OPS, ED_NEXT = Key("ed-ops", "operator", *public_key_of(11)), Key("ed-next", "operator", *public_key_of(12))
ED_OBSERVER, ED_TENANT = Key("ed-obs", "observer", *public_key_of(13)), ClientKey("ed-t", "billing", *public_key_of(14))
OTHER_NEXT = Key("ed-next", "operator", *public_key_of(15))
"""A key that a file has under the name of another one."""
FIRST = Keys.of([OLD, OBSERVER])
BEAT = Heartbeat(group_id="billing", client_id="c1", instance_id="i1", subscriptions=[Subscription(topic="orders")])


class Log:
    """One partition of the groups; each key signs with a counter of its own."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._signers: dict[Key | ClientKey, Signer | ClientSigner] = {}

    def add(self, event: AnyEvent, by: Key | ClientKey | None = None) -> Record:
        """Append an event, signed with a key."""
        at, key = len(self.records), getattr(event, "group_id", "").encode() or None
        value = msgspec.json.encode(event)
        if by is not None:
            name = f"{len(self._signers):016x}"
            new = ClientSigner(by, name) if isinstance(by, ClientKey) else Signer(by, name)
            signer = self._signers.setdefault(by, new)
            if isinstance(signer, ClientSigner):
                value = signer.sign(TOPIC, key or b"", value)
            else:
                value = signer.sign(TOPIC, PARTITION, key, value, at)
        self.records.append(Record(TOPIC, PARTITION, at, 1_000 * (at + 1), key, value))
        return self.records[-1]

    def publish(self, *keys: Key | ClientKey, removed: tuple[str, ...] = (), by: Key = OLD) -> Record:
        """Append a record that adds and removes keys."""
        return self.add(KeyChange(added=[on_record(key) for key in keys], removed=list(removed), by="mia"), by)


def half(key: Key) -> Key:
    """Return a key as the file of a process has it that only verifies."""
    return msgspec.structs.replace(key, secret=b"")


def shard_of(keys: Signatures, body: bytes | None = None, level: int = NEWEST) -> Shard:
    return Shard(TOPIC, PARTITION, 4, body, signatures=keys, level=level, raises=True)


def rules(decisions: list[AnyDecision]) -> list[str]:
    return [one.rule for one in decisions if isinstance(one, Rejected)]


def applied(shard: Shard, log: Log) -> list[AnyDecision]:
    return [decision for record in log.records for decision in shard.apply(record)]


def test_only_keys_on_record_count_whatever_the_file_has():
    log = Log()
    log.publish(OLD, OBSERVER)
    log.add(Configure(group_id="billing", settle_ms=2_000), NEW)

    [refused] = applied(shard_of(ALL), log)

    assert isinstance(refused, Rejected)
    assert refused.detail == (
        "no key 'ops-new'; a configure requires the signature of an operator; keys of this role: ops-old"
    )


def test_without_a_record_the_file_decides_as_before():
    log = Log()
    log.add(Configure(group_id="billing", settle_ms=2_000), NEW)

    assert rules(applied(shard_of(ALL), log)) == []
    assert rules(applied(shard_of(FIRST), log)) == ["signature"]


def test_a_removed_key_is_void_at_once_though_files_have_it():
    """As after a leak: nobody has to be restarted first."""
    log = Log()
    log.publish(OLD, NEW, OBSERVER)
    log.publish(removed=("ops-old",), by=NEW)
    log.add(Configure(group_id="billing", settle_ms=2_000), OLD)

    assert rules(applied(shard_of(ALL), log)) == ["signature"]


def test_a_process_that_lacks_a_key_does_not_decide():
    log = Log()
    log.publish(OLD, OBSERVER)
    shard = shard_of(FIRST)
    applied(shard, log)

    with pytest.raises(MissingKeys, match=rf"groups-{PARTITION} from offset 1 on .*: 'ops-new' \(role operator, "):
        shard.apply(log.publish(NEW))


def test_nor_does_it_begin_from_a_state_with_such_a_key():
    """The record may be long gone from the log when the process starts."""
    log = Log()
    log.publish(OLD, NEW, OBSERVER, TENANT)
    shard = shard_of(ALL)
    applied(shard, log)

    with pytest.raises(MissingKeys, match=r"'ops-new' \(role operator, .*'tenant' \(role client, "):
        shard_of(FIRST, shard.body())
    assert list(shard_of(ALL, shard.body()).keys) == ["ops-old", "ops-new", "obs", "tenant"]


def test_the_same_name_with_another_secret_is_another_key():
    """Two replicas with files that were made separately must not both decide."""
    log = Log()
    log.publish(OLD, NEW, OBSERVER)
    other = Keys.of([OLD, Key("ops-new", "operator", bytes([9] * 32)), OBSERVER])

    with pytest.raises(MissingKeys, match="other secrets: 'ops-new'"):
        applied(shard_of(other), log)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (KeyChange(removed=["ops-old"]), "no key of the role operator would be valid"),
        (KeyChange(removed=["obs"]), "no key of the role observer would be valid"),
        (
            KeyChange(added=[on_record(Key("obs", "observer", bytes([9] * 32)))]),
            "the key 'obs' is valid already, with another secret, role or groups",
        ),
        (
            KeyChange(added=[msgspec.structs.replace(on_record(NEW), groups="a.")]),
            "the key 'ops-new' has groups, but its role is operator",
        ),
        (
            KeyChange(added=[on_record(ClientKey(f"t-{n}", "a.", bytes(32))) for n in range(MAX_KEYS - 1)]),
            f"{MAX_KEYS + 1} keys would be valid; at most {MAX_KEYS} may be",
        ),
        (
            KeyChange(added=[msgspec.structs.replace(on_record(ED_OPS), fingerprint="0" * 32)]),
            "the fingerprint of the key 'ed-ops' is not that of its public key",
        ),
        (
            KeyChange(added=[on_record(Key("ed-ops", "operator", b"", b"\1" + bytes(31)))]),
            "the public key of 'ed-ops' is a point of small order",
        ),
    ],
    ids=["no operator", "no observer", "another secret", "groups", "too many", "fingerprint", "public key"],
)
def test_a_change_that_would_harm_changes_nothing(change, sentence):
    """Nobody could mend a deployment without an operator's key, or without a clock."""
    log = Log()
    log.publish(OLD, OBSERVER)
    shard = shard_of(ALL)
    applied(shard, log)

    [refused] = shard.apply(log.add(change, OLD))

    assert isinstance(refused, Rejected)
    assert (refused.rule, refused.detail.startswith(sentence)) == ("keys", True)
    assert list(shard.keys) == ["ops-old", "obs"]


def test_what_is_added_or_removed_twice_stays_as_it_is():
    """A command that did not get its answer is repeated."""
    log = Log()
    log.publish(OLD, NEW, OBSERVER)
    log.publish(OLD, NEW, OBSERVER)
    log.publish(removed=("ops-new", "nobody"))
    log.publish(removed=("ops-new", "nobody"))
    shard = shard_of(ALL)

    assert applied(shard, log) == []
    assert list(shard.keys) == ["ops-old", "obs"]


def test_a_lost_secret_is_declared_so_that_deciding_goes_on():
    """Every coordinator stops when the last copy of a secret is gone; its groups must not become everybody's."""
    log = Log()
    log.publish(OLD, NEW, OBSERVER, TENANT)
    first = shard_of(ALL)
    applied(first, log)
    lost = [on_record(NEW).fingerprint, on_record(TENANT).fingerprint]
    shard = shard_of(Keys.of([OLD, OBSERVER], lost=lost), first.body())

    forged = Key("ops-new", "operator", b"x")
    decisions = [shard.apply(log.add(BEAT)), shard.apply(log.add(Configure(group_id="billing", settle_ms=1), forged))]

    details = [one.detail for [one] in decisions if isinstance(one, Rejected)]
    assert "clients of the group 'billing' must sign with one of the client keys tenant" in details[0]
    assert details[1] == "the secret of the key 'ops-new' is lost"
    shard.apply(log.publish(removed=("ops-new", "tenant")))
    assert list(shard.keys) == ["ops-old", "obs"]


def test_who_only_shows_keys_may_lack_them():
    log = Log()
    log.publish(OLD, NEW, OBSERVER, TENANT)
    shard = shard_of(Keys.of([OLD], may_lack=True))

    assert applied(shard, log) == []
    assert list(shard.keys) == ["ops-old", "ops-new", "obs", "tenant"]


def test_a_removed_key_may_become_valid_again():
    """A rotation that was a mistake is taken back."""
    log = Log()
    log.publish(OLD, NEW, OBSERVER)
    log.publish(removed=("ops-old",), by=NEW)
    log.publish(OLD, by=NEW)
    log.add(Configure(group_id="billing", settle_ms=2_000), OLD)
    shard = shard_of(ALL)

    assert rules(applied(shard, log)) == []
    assert list(shard.keys) == ["ops-new", "obs", "ops-old"]


def test_nobody_but_an_operator_changes_keys():
    log = Log()
    log.publish(OLD, OBSERVER)
    log.publish(NEW, by=OBSERVER)
    log.publish(NEW, by=NEW)
    log.add(KeyChange(added=[on_record(NEW)]))
    shard = shard_of(ALL)

    assert rules(applied(shard, log)) == ["signature"] * 3
    assert list(shard.keys) == ["ops-old", "obs"]


def test_a_client_key_counts_from_the_next_heartbeat_on():
    """A routine heartbeat, which is not looked at, must not go on for ever without a signature."""
    log = Log()
    log.publish(OLD, OBSERVER)
    for _ in range(3):
        log.add(BEAT)
    log.publish(TENANT)
    log.add(BEAT)
    log.add(BEAT, TENANT)

    assert rules(applied(shard_of(ALL), log)) == ["signature"]


@pytest.mark.parametrize("level", range(1, 4))
def test_below_level_4_there_is_no_such_type(level):
    """A replica of the release before rejects the record; so must this one."""
    log = Log()
    log.publish(OLD, OBSERVER)
    unknown = Log()
    unknown.records.append(Record(TOPIC, PARTITION, 0, 1_000, None, b'{"type":"keys2"}'))
    shard = shard_of(FIRST, level=level)

    [refused], [other] = applied(shard, log), applied(shard_of(FIRST, level=level), unknown)

    assert isinstance(refused, Rejected)
    assert isinstance(other, Rejected)
    assert (refused.rule, refused.detail) == (other.rule, other.detail.replace("keys2", "keys"))
    assert not shard.keys


def test_public_keys_are_on_record_so_nobody_lacks_them():
    """A new key needs no new file, neither for coordinators nor for pages."""
    log = Log()
    log.publish(OLD, OBSERVER, ED_OPS, ED_TENANT)
    log.add(Configure(group_id="billing", settle_ms=2_000), ED_OPS)
    log.add(BEAT, ED_TENANT)
    log.add(Configure(group_id="billing", settle_ms=3_000), msgspec.structs.replace(OTHER_NEXT, key_id="ed-ops"))
    log.add(BEAT)
    shard = shard_of(FIRST)

    refused = [one.detail for one in applied(shard, log) if isinstance(one, Rejected)]

    assert refused[0] == "the signature by key 'ed-ops' does not match this topic, partition, key and value"
    assert refused[1].startswith("heartbeat: clients of the group 'billing' must sign with one of the client keys ed-t")
    assert len(refused) == 2
    assert list(shard_of(FIRST, shard.body()).keys) == ["ops-old", "obs", "ed-ops", "ed-t"]


def test_the_record_decides_which_public_key_a_name_means():
    """A file with another key of the name neither stops its process nor makes it decide otherwise."""
    log = Log()
    log.publish(OLD, OBSERVER, ED_NEXT)
    log.add(Configure(group_id="billing", settle_ms=2_000), ED_NEXT)
    confused = Keys.of([OLD, OBSERVER, OTHER_NEXT])

    assert rules(applied(shard_of(confused), log)) == []


def test_a_process_without_the_library_does_not_decide(monkeypatch):
    """Not by an error at the first signature, which others may have sent at any time."""
    log = Log()
    log.publish(OLD, OBSERVER)
    shard = shard_of(FIRST)
    applied(shard, log)
    monkeypatch.setattr(ed25519, "is_available", lambda: False)

    with pytest.raises(MissingKeys, match=r"cannot use: 'ed-ops'; Ed25519 keys need the extra `ed25519`; install it"):
        shard.apply(log.publish(ED_OPS))


@pytest.mark.parametrize("level", range(1, 4))
def test_below_level_4_an_ed25519_signature_is_none(level):
    """A replica of the release before reads none, so the bytes of the rejection are those of an unsigned record."""
    log, unsigned = Log(), Log()
    log.add(Tick(), ED_OBSERVER)
    unsigned.add(Tick())
    log.add(Configure(group_id="billing", settle_ms=1), ED_OPS)
    unsigned.add(Configure(group_id="billing", settle_ms=1))
    log.add(BEAT, ED_TENANT)
    unsigned.add(BEAT)
    keys = Keys.of([ED_OPS, ED_OBSERVER], [ED_TENANT])

    refused, others = (applied(shard_of(keys, level=level), one) for one in (log, unsigned))

    assert rules(refused) == ["signature"] * 3
    assert [msgspec.structs.replace(one, raw="") for one in refused] == [
        msgspec.structs.replace(one, raw="") for one in others
    ]
    assert rules(applied(shard_of(keys, level=4), log)) == []


def test_an_operator_with_public_keys_only_raises_the_level():
    """A deployment may begin with them: the release before knows no `level` record, whatever key signs it."""
    log = Log()
    log.add(Level(level=NEWEST), ED_OPS)
    log.publish(ED_OPS, ED_OBSERVER, by=ED_OPS)
    log.add(Tick(), ED_OBSERVER)
    shard = shard_of(Keys.of([half(ED_OPS), half(ED_OBSERVER)]), level=1)

    assert applied(shard, log) == []
    assert (shard.level, list(shard.keys)) == (NEWEST, ["ed-ops", "ed-obs"])
    assert shard.tick_ms == 3_000


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just(BEAT), st.sampled_from([None, TENANT, ED_TENANT])),
        st.tuples(st.just(Tick()), st.just(OBSERVER)),
        st.builds(
            lambda ms, by: (Configure(group_id="billing", settle_ms=ms), by),
            st.sampled_from([1, 2]),
            st.sampled_from([OLD, NEW, ED_OPS, ED_NEXT]),
        ),
        st.builds(
            lambda added, removed, by: (KeyChange(added=[on_record(key) for key in added], removed=removed), by),
            st.lists(st.sampled_from([OLD, NEW, OBSERVER, TENANT, ED_OPS, ED_NEXT, ED_TENANT]), max_size=2),
            st.lists(st.sampled_from(["ops-old", "ops-new", "obs", "tenant", "ed-ops", "ed-next", "ed-t"]), max_size=1),
            st.sampled_from([OLD, NEW, ED_OPS]),
        ),
    ),
    max_size=40,
)


@given(
    EVENTS,
    st.permutations([OLD, NEW, OBSERVER, Key("spare", "observer", bytes([7] * 32))]),
    st.lists(st.sampled_from([ED_OPS, half(ED_OPS), half(ED_NEXT), OTHER_NEXT, half(ED_OBSERVER)]), max_size=4),
    st.integers(0, 40),
)
def test_replicas_with_other_files_decide_alike_or_not_at_all(events, order, public, restart):
    """The files of replicas change one after the other; here one has other keys, in another order, and restarts.

    Of Ed25519 keys, it has private ones, public ones, none, or another one of the name.
    """
    log = Log()
    log.publish(OLD, OBSERVER)
    for event, by in events:
        log.add(event, by)
    first, second = shard_of(ALL), shard_of(Keys.of([*order, *public], [TENANT]))

    for number, record in enumerate(log.records):
        if number == restart:
            second = shard_of(Keys.of([*public[::-1], *order[::-1]], [TENANT]), second.body())
        assert [*map(encode_decision, first.apply(record))] == [*map(encode_decision, second.apply(record))]
    assert first.body() == second.body()


@given(EVENTS)
def test_a_replay_needs_no_secret(events):
    log = Log()
    log.publish(OLD, OBSERVER)
    for event, by in events:
        log.add(event, by)
    decided = applied(shard_of(ALL), log)

    replayed = applied(shard_of(refused_in(decided).get((TOPIC, PARTITION), OnRecord())), log)

    assert [*map(encode_decision, replayed)] == [*map(encode_decision, decided)]
