"""One event that the machine itself fails at must not stop every group of a shard for ever."""

import json

import pytest

from model import group_machine
from model.decisions import Rejected
from model.events import Unregister
from model.group_machine import step as real_step
from model.records import Record
from model.shard import Shard

pytestmark = pytest.mark.usefixtures("planted_bug")

TOPIC = "wakeroll.groups"


def record(offset: int, group_id: str | None, **event: object) -> Record:
    value = {"group_id": group_id, **event} if group_id else event
    key = group_id.encode() if group_id else None
    return Record(TOPIC, 0, offset, 1_000 + offset * 10, key, json.dumps(value).encode())


def beat(offset: int, group_id: str, client_id: str, **more: object) -> Record:
    wants = {"client_id": client_id, "instance_id": f"{client_id}-1", "subscriptions": [{"topic": "orders"}]}
    return record(offset, group_id, type="heartbeat", **wants, **more)


LOG = [
    record(0, None, type="tick"),
    record(
        1, None, type="route", topic="orders", version="1", queues=[{"topic": "orders", "broker": "", "queue_id": 0}]
    ),
    beat(2, "billing", "a"),
    beat(3, "audit", "a"),
    record(4, "billing", type="unregister", client_id="poison", instance_id="p-1"),
    beat(5, "billing", "b"),
    beat(6, "audit", "b"),
]


@pytest.fixture
def planted_bug(monkeypatch):
    """A machine that breaks half way through one event, having changed the group already."""

    def step(group, event, moment, cause, routes):
        if isinstance(event, Unregister) and event.client_id == "poison":
            group.members.clear()
            group.epoch = 99
            raise ZeroDivisionError("a bug")
        return real_step(group, event, moment, cause, routes)

    monkeypatch.setattr(group_machine, "step", step)


def decided(records: list[Record], cuts: tuple[int, ...] = ()) -> tuple[list, Shard]:
    shard, decisions = Shard(TOPIC, 0, 1), []
    for at, one in enumerate(records):
        if at in cuts:
            shard = Shard(TOPIC, 0, 1, shard.body())
        decisions += shard.apply(one)
    return decisions, shard


def test_a_poison_event_is_rejected_and_its_group_stays_as_it_was():
    """Half a step is no step: what the bug changed before it broke is not kept."""
    decisions, shard = decided(LOG)
    rejected = [one for one in decisions if isinstance(one, Rejected)]

    assert [(one.rule, one.group_id, one.cause.offset) for one in rejected] == [("internal", "billing", 4)]
    assert "ZeroDivisionError in" in rejected[0].detail
    assert list(shard.group("billing").members) == ["a", "b"]
    assert list(shard.group("audit").members) == ["a", "b"]
    assert shard.group("billing").epoch < 99


def test_the_other_events_decide_as_if_the_poison_had_not_been():
    """Nothing is lost: every valid event is processed."""
    with_poison, _ = decided(LOG)
    without, _ = decided([one for one in LOG if one.offset != 4])

    def told(decisions: list) -> list:
        return [(type(one).__name__, one.at_ms) for one in decisions if not isinstance(one, Rejected)]

    assert told(with_poison) == told(without)


@pytest.mark.parametrize("cut", range(1, len(LOG)))
def test_where_a_batch_was_cut_does_not_matter(cut):
    """The group is made again from its bytes and the events since; both come to the same."""
    whole, _ = decided(LOG)
    pieces, _ = decided(LOG, (cut,))

    assert pieces == whole


def test_a_test_may_have_the_exception_itself():
    """A bug must not hide behind a rejection while we develop."""
    shard = Shard(TOPIC, 0, 1, raises=True)
    for one in LOG[:4]:
        shard.apply(one)

    with pytest.raises(ZeroDivisionError):
        shard.apply(LOG[4])
