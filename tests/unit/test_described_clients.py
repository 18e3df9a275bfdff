"""How clients describe themselves: heartbeats say it once, and no decision about queues depends on it."""

import socket

import msgspec
import pytest
from hypothesis import given
from msgspec import UNSET, structs

from tests.support.control_log import TOPIC
from tests.support.histories.group_histories import PARTITION, History, plans
from tests.support.samples import sample
from tests.support.simulation.groups.group_simulation import GROUPS
from wakeroll import InvalidUsage
from wakeroll.argument_checks import about_of
from wakeroll_model import config
from wakeroll_model.client import Client, Preferences
from wakeroll_model.client_actions import Send
from wakeroll_model.decisions import AnyDecision, Assignment, Membership, Rejected
from wakeroll_model.events import About, Heartbeat, Subscription
from wakeroll_model.records import Record, read_event
from wakeroll_model.replay import encode_decision
from wakeroll_model.shard import Shard

ABOUT = About(host="pod-1", sdk="wakeroll/0.1", app_version="2", labels={"team": "cash"})
"""A description of a usual size."""


class Speaker:
    """A client, and the heartbeats that it sends."""

    def __init__(self, about: About | None = ABOUT) -> None:
        self.client = Client("billing", "c", Preferences(subscriptions=[Subscription(topic="orders")]), about=about)
        self.now_ms = 0
        self.said: list[Heartbeat] = []
        self.note(self.client.join("i-1", self.now_ms))

    def note(self, outputs: list[object]) -> None:
        self.said += [one.event for one in outputs if isinstance(one, Send) and isinstance(one.event, Heartbeat)]

    def pass_seconds(self, count: int) -> None:
        for _ in range(count):
            self.now_ms += 1_000
            self.note(self.client.on_time(self.now_ms))

    def acknowledge(self) -> None:
        self.note(self.client.acknowledged(self.client._sent_ms, self.now_ms))

    def receive(self, shard: str = "groups-1.1", seq: int = 1, epoch: int = 1) -> None:
        assignment = Assignment(
            shard=shard,
            seq=seq,
            group_id="billing",
            client_id="c",
            instance_id=self.client.instance_id,
            epoch=epoch,
            queues=[],
            revoke=[],
            state="stable",
            heartbeat_ms=10_000,
            session_timeout_ms=45_000,
            revoke_timeout_ms=30_000,
        )
        self.note(self.client.receive(assignment, self.now_ms))

    def described(self) -> list[bool]:
        """Return for each heartbeat since the last call whether it describes the client."""
        said, self.said = self.said, []
        return [beat.about is not None for beat in said]


# --- what a client sends ---


def test_a_client_describes_itself_until_its_first_assignment():
    """A heartbeat may get lost with its broker, or come while another instance has the client_id."""
    speaker = Speaker()
    speaker.acknowledge()
    speaker.pass_seconds(20)
    assert speaker.described() == [True, True, True]

    speaker.receive()
    speaker.pass_seconds(30)

    assert speaker.described() == [False] * 3


def test_a_client_describes_itself_again_when_the_coordinator_may_have_forgotten_it():
    """In another era, members return by heartbeats without news."""
    speaker = Speaker()
    speaker.receive()
    speaker.described()
    speaker.acknowledge()

    speaker.receive("groups-1.2", epoch=2**32 + 1)
    assert speaker.described() == [True]
    speaker.pass_seconds(10)
    assert speaker.described() == [True]
    speaker.acknowledge()
    speaker.pass_seconds(20)
    assert speaker.described() == [False, False]


def test_the_next_instance_describes_itself_too():
    speaker = Speaker()
    speaker.receive()
    speaker.pass_seconds(45)
    speaker.described()

    speaker.note(speaker.client.join("i-2", speaker.now_ms))

    assert speaker.described() == [True]


def test_a_heartbeat_without_news_is_as_small_as_that_of_a_client_without_a_description():
    """Heartbeats are most of the volume of a ledger."""
    sizes: list[list[int]] = []
    for about in (ABOUT, None):
        speaker = Speaker(about)
        speaker.receive()
        speaker.acknowledge()
        speaker.pass_seconds(10)
        sizes.append([len(encode_decision(beat)) for beat in speaker.said])

    first, *others = sizes[0]
    assert others == sizes[1][1:]
    assert first - sizes[1][0] == len(msgspec.json.encode(ABOUT)) + len(',"about":')


# --- what decides ---


def described_as(record: Record, about: About | None, partitions: int = 4) -> Record:
    """Return a record with another description of its client, or without one, if it is a heartbeat."""
    event = read_event(record, partitions)
    if not isinstance(event, Heartbeat):
        return record
    return structs.replace(record, value=encode_decision(structs.replace(event, about=about)))


def some_description(number: int) -> About | None:
    """Return the description in a heartbeat: often another one, or none."""
    return About(app_version=str(number % 5), host="pod") if number % 3 else None


def undescribed(decisions: list[AnyDecision]) -> list[bytes]:
    """Return decisions as bytes, without descriptions and the numbers of the decisions."""
    found = []
    for decision in decisions:
        if isinstance(decision, Membership):
            if decision.change == "described":
                continue
            decision = structs.replace(decision, about=UNSET, detail=decision.detail.partition("; version")[0])
        if isinstance(decision, Rejected):
            decision = structs.replace(decision, raw="")
        found.append(encode_decision(structs.replace(decision, seq=0)))
    return found


@given(plans)
def test_no_decision_about_queues_depends_on_a_description(plan):
    """Members that describe themselves, change that, or do not: byte for byte the same, at the newest level."""
    one, other = (Shard(TOPIC, PARTITION, 4, level=4, raises=True) for _ in range(2))

    for number, record in enumerate(History(plan).records):
        described, bare = (described_as(record, about) for about in (some_description(number), None))
        assert undescribed(one.apply(described)) == undescribed(other.apply(bare))


@pytest.mark.parametrize("seed", sample(range(6), quick=2))
def test_in_no_world_a_decision_about_queues_depends_on_a_description(seed):
    """With crashes, losses, resets, strangers, and members that come back with another version."""
    world = GROUPS.world(GROUPS.draw(seed)).run()
    count = len(world.broker.log)
    for partition, records in enumerate(world.broker.log):
        one, other = (Shard(world.broker.topic, partition, count, level=4) for _ in range(2))
        bare = [described_as(record, None, count) for record in records]
        for told, untold in zip(records, bare, strict=True):
            assert undescribed(one.apply(told)) == undescribed(other.apply(untold))


@pytest.mark.parametrize("seed", sample(range(12), quick=3))
def test_in_the_end_each_member_is_known_by_its_own_description(seed):
    """Whatever was lost: heartbeats, the state, or the process before, which had another version."""
    world = GROUPS.world(GROUPS.draw(seed, is_raised=True)).run()
    for coordinator in world.coordinators:
        shard = Shard(TOPIC, coordinator.partition, len(world.coordinators), coordinator.saved[-1][1])
        if shard.level < 4:
            continue  # with its state and its log, the shard has lost the record that raised its level
        for process in world.living():
            group = shard.group(process.group_id)
            member = None if group is None else group.members.get(process.client_id)
            if member is not None and member.instance_id == process.client.instance_id:
                assert member.about == process.about


def test_below_level_4_a_record_with_any_description_is_decided_as_one_without():
    """A client of a later release may be there before the level is raised, and the release before does not read it."""
    text = b'{"type":"heartbeat","group_id":"billing","client_id":"c","instance_id":"i"%s}'
    for about in (b',"about":{"app_version":"1"}', b',"about":7', b',"about":{"labels":{"":"x"}}'):
        values = text % b"", text % about
        one, other = (read_event(Record(TOPIC, 1, 0, 0, b"billing", value), 4, level=3) for value in values)
        assert one == other
        assert isinstance(one, Heartbeat)


def test_a_description_that_is_too_long_is_rejected_by_its_size():
    about = About(host="h" * 253, app_version="v" * 64, labels={f"label-{number}": "x" * 40 for number in range(8)})
    beat = Heartbeat(group_id="billing", client_id="c", instance_id="i", about=about)

    refusal = read_event(Record(TOPIC, 1, 0, 0, b"billing", encode_decision(beat)), 4)

    assert isinstance(refusal, Rejected)
    size = len(msgspec.json.encode(about))
    assert refusal.rule == "bounds"
    assert refusal.detail == f"heartbeat: `about` has {size} bytes; it must have at most 512"


def test_a_state_of_the_release_before_has_members_without_a_description():
    """Its last fields are missing; the state is read all the same."""
    shard = Shard(TOPIC, 1, 4, level=3)
    beat = Heartbeat(
        group_id="billing", client_id="c", instance_id="i", subscriptions=[Subscription(topic="orders")], about=ABOUT
    )
    shard.apply(Record(TOPIC, 1, 0, 0, b"billing", encode_decision(beat)))
    state = msgspec.msgpack.decode(shard.body())
    [(name, encoded)] = state[7].items()
    group = msgspec.msgpack.decode(encoded)
    members = group[3]
    for member in members.values():
        del member[-1]
    state[7][name] = msgspec.msgpack.encode(group)

    read = Shard(TOPIC, 1, 4, msgspec.msgpack.encode(state)).group("billing")

    assert read is not None
    assert read.members["c"].about is None


# --- the arguments of the SDK ---


def test_the_sdk_tells_host_and_library_by_itself():
    about = about_of("", "1.4", {"team": "cash"})

    assert about.host == socket.gethostname()
    assert about.sdk.startswith("wakeroll/")
    assert (about.app_version, about.labels) == ("1.4", {"team": "cash"})


def test_the_host_is_not_told_if_the_application_does_not_want_it():
    assert about_of(None, "", {}).host == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("", "1.4\n", {}), r"app_version is '1\.4\\n'; it must be 0 to 64 printable ASCII characters"),
        (("", 2, {}), r"app_version is 2; it must be 0 to 64 printable ASCII characters"),
        (("", "", {"a b": "c"}), r"labels is \{'a b': 'c'\}; each name must be 1 to 63 characters of A-Za-z0-9\._/-"),
        (("", "", {"a": 1}), r"labels is \{'a': 1\}; each value must be 0 to 63 printable ASCII characters"),
        (("", "", ["a"]), r"labels is \['a'\]; it must be an object of at most 8 entries"),
        (("", "", {str(n): "" for n in range(9)}), r"it must be an object of at most 8 entries"),
        (("h" * 254, "", {}), r"host is 'h+\.\.\.; it must be 0 to 253 printable ASCII characters"),
        (
            ("h" * 253, "v" * 64, {str(n): "x" * 63 for n in range(4)}),
            rf"host, app_version and labels have \d+ bytes as JSON; they must have at most {config.MAX_ABOUT_BYTES}",
        ),
    ],
)
def test_a_wrong_description_is_refused_by_the_argument(arguments, sentence):
    with pytest.raises(InvalidUsage, match=sentence):
        about_of(*arguments)
