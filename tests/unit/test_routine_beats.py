"""Routine heartbeats: the machine is skipped, and nothing else is different."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.control_log import TOPIC, ControlLog
from tests.support.histories.group_histories import PARTITION, History, plans
from tests.support.samples import sample
from tests.support.simulation.groups.group_simulation import GROUPS
from wakeroll_model import Queue, group_machine
from wakeroll_model.client_keys import ClientKey
from wakeroll_model.config import Limits
from wakeroll_model.decisions import AnyDecision, Assignment, Membership, Rejected
from wakeroll_model.events import (
    AnyEvent,
    Commit,
    CommittedOffset,
    Configure,
    Heartbeat,
    Route,
    RoutedQueue,
    Subscription,
    Tick,
)
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision
from wakeroll_model.shard import Shard
from wakeroll_model.signing import Keys, OnRecord

ORDERS = [Queue("orders", "", number) for number in range(2)]
SECOND = 1_000


def heartbeat(client_id: str = "a", epoch: int = 1, owned: list[Queue] = ORDERS, topic: str = "orders") -> Heartbeat:
    return Heartbeat(
        group_id="billing",
        client_id=client_id,
        instance_id=f"{client_id}-1",
        epoch=epoch,
        owned=owned,
        subscriptions=[Subscription(topic=topic)],
    )


class Billing:
    """A group of one or two clients in a shard that is saved and loaded after every record."""

    def __init__(self) -> None:
        self.log = ControlLog(partitions=1)
        self.body = Shard(TOPIC, 0, 1).body()
        self.at_ms = 0
        self.said: list[AnyDecision] = []
        queues = [RoutedQueue(topic="orders", broker="", queue_id=queue.queue_id) for queue in ORDERS]
        self.tell(Route(topic="orders", queues=queues, version="1"))
        self.beat("a", epoch=-1, owned=[])
        self.beat("a")
        assert self.beat("a") == []

    def tell(self, event: AnyEvent) -> list[AnyDecision]:
        [record] = self.log.append(event, self.at_ms)
        return self.apply(record)

    def apply(self, record: Record) -> list[AnyDecision]:
        shard = Shard(TOPIC, 0, 1, self.body)
        said = shard.apply(record)
        self.body = shard.body()
        return said

    def beat(
        self, client_id: str, epoch: int = 1, owned: list[Queue] = ORDERS, topic: str = "orders"
    ) -> list[AnyDecision]:
        return self.tell(heartbeat(client_id, epoch, owned, topic))

    def pass_seconds(self, count: int) -> list[AnyDecision]:
        said: list[AnyDecision] = []
        for _ in range(count):
            self.at_ms += SECOND
            said += self.tell(Tick())
        return said


@pytest.fixture
def billing() -> Billing:
    return Billing()


@pytest.fixture
def steps(monkeypatch) -> list[AnyEvent]:
    """The events for which the machine runs."""
    seen: list[AnyEvent] = []
    real_step = group_machine.step

    def step(group, event, *around):
        seen.append(event)
        return real_step(group, event, *around)

    monkeypatch.setattr(group_machine, "step", step)
    return seen


def test_the_machine_is_skipped(billing, steps):
    for _ in range(3):
        assert billing.beat("a") == []

    assert steps == []


def test_they_keep_a_member_alive_and_silence_ends_its_session(billing):
    """Its session begins at the last of them, though no machine has run."""
    for _ in range(12):
        assert billing.pass_seconds(15) == []
        assert billing.beat("a") == []

    assert billing.pass_seconds(45) == []
    [expired, *_] = billing.pass_seconds(1)
    assert isinstance(expired, Membership)
    assert (expired.change, expired.detail) == ("expired", "no heartbeat for 46000 ms")


@pytest.mark.parametrize(
    "change",
    [
        lambda billing: billing.beat("b", epoch=-1, owned=[]),
        lambda billing: billing.tell(Configure(group_id="billing", session_timeout_ms=60_000)),
        lambda billing: billing.tell(Route(topic="orders", queues=[], version="2")),
        lambda billing: billing.tell(Tick(limits=Limits(max_groups=77))),
        lambda billing: billing.beat("a", topic="payments"),
    ],
    ids=["join", "configure", "route", "limits", "resubscribe"],
)
def test_a_change_ends_them(billing, steps, change):
    """The same bytes mean something else in another group: here, that an assignment was not received."""
    change(billing)
    steps.clear()

    billing.beat("a")

    assert len(steps) == 1


def test_an_assignment_that_a_routine_heartbeat_does_not_show_is_sent_again(billing):
    billing.pass_seconds(5)
    asked = [one for one in billing.beat("b", epoch=-1, owned=[]) if isinstance(one, Assignment)]
    assert "a" in [one.client_id for one in asked]

    repeated = [one for one in billing.beat("a") if isinstance(one, Assignment)]

    assert [(one.client_id, one.epoch, one.revoke) for one in repeated] == [("a", 2, [ORDERS[1]])]


def test_commits_leave_them_routine(billing, steps):
    """A group commits more often than it sends heartbeats."""
    offsets = [CommittedOffset(queue=ORDERS[0], offset=7)]
    committed = billing.tell(Commit(group_id="billing", client_id="a", instance_id="a-1", epoch=1, offsets=offsets))
    steps.clear()

    assert (len(committed), billing.beat("a"), steps) == (1, [], [])


def test_a_copy_under_another_key_is_rejected(billing):
    """The digest is of the value; the key says whose it is."""
    [record] = billing.log.append(heartbeat(), billing.at_ms)
    assert billing.apply(record) == []

    [rejected] = billing.apply(billing.log.write(record.value, billing.at_ms, 0, b"audit"))

    assert isinstance(rejected, Rejected)
    assert rejected.rule == "key"


def test_a_key_that_was_added_ends_them():
    """From its start on, a coordinator with a key for the group rejects what is not signed, also what is routine."""
    log = ControlLog(partitions=1)
    records = [log.append(heartbeat(epoch=epoch, owned=[]), 0)[0] for epoch in (-1, 1, 1)]
    shard = Shard(TOPIC, 0, 1, signatures=Keys.of([]))
    for record in records:
        shard.apply(record)
    keys = Keys.of([], [ClientKey("tenant", "bill", b"secret")])
    [unsigned] = log.append(heartbeat(owned=[]), 0)

    assert Shard(TOPIC, 0, 1, shard.body(), signatures=Keys.of([])).apply(unsigned) == []
    [rejected] = Shard(TOPIC, 0, 1, shard.body(), signatures=keys).apply(unsigned)
    assert isinstance(rejected, Rejected)
    assert rejected.rule == "signature"
    replayed = Shard(TOPIC, 0, 1, shard.body(), signatures=OnRecord({unsigned.offset: rejected.detail}))
    assert [encode_decision(one) for one in replayed.apply(unsigned)] == [encode_decision(rejected)]


def test_a_machine_that_fails_leaves_the_times(billing, monkeypatch):
    """The group is restored to what it was before the event: with the heartbeats since its last one."""
    billing.pass_seconds(40)
    shard = Shard(TOPIC, 0, 1, billing.body)
    real_step = group_machine.step

    def step(group, event, *around):
        if isinstance(event, Configure):
            group.members.clear()
            raise ZeroDivisionError("a bug")
        return real_step(group, event, *around)

    monkeypatch.setattr(group_machine, "step", step)
    [routine] = billing.log.append(heartbeat(), billing.at_ms)
    [failing] = billing.log.append(Configure(group_id="billing", settle_ms=5), billing.at_ms)
    assert shard.apply(routine) == []
    said = shard.apply(failing)
    billing.body = shard.body()

    assert [one.rule for one in said] == ["internal"]
    assert billing.pass_seconds(45) == []
    assert billing.pass_seconds(1) != []


# --- nothing is different ---


def decided(records: list[Record], where: tuple[str, int, int], cuts: frozenset[int], *, skips: bool) -> list[bytes]:
    """Return the decisions, with the state saved and loaded at some places."""
    shard = Shard(*where, skips_routine=skips)
    said = []
    for number, record in enumerate(records):
        if number in cuts:
            shard = Shard(*where, shard.body(), skips_routine=skips)
        said += map(encode_decision, shard.apply(record))
    return said


@given(plan=plans, cuts=st.frozensets(st.integers(0, 200)))
def test_histories_are_decided_alike(plan, cuts):
    records = History(plan).records
    where = (TOPIC, PARTITION, 4)

    assert decided(records, where, cuts, skips=True) == decided(records, where, frozenset(), skips=False)


@pytest.mark.parametrize("seed", sample(range(12), quick=3))
def test_worlds_are_decided_alike(seed):
    """With crashes, losses, resets, strangers and clocks that jump."""
    world = GROUPS.world(GROUPS.draw(seed)).run()
    for partition, records in enumerate(world.broker.log):
        where = (world.broker.topic, partition, len(world.broker.log))
        cuts = frozenset(range(0, len(records), 17))

        assert decided(records, where, cuts, skips=True) == decided(records, where, frozenset(), skips=False)
