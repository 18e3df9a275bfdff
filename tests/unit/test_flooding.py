"""A producer that floods the control topics: each limit holds, others go on, and the state shrinks again afterwards.

The flood may use everything that a client may append. What is over a limit is on record, and counted by its rule.
"""

from collections import Counter

import msgspec
import pytest

from wakeroll_model import config
from wakeroll_model.config import Limits
from wakeroll_model.decisions import AnyDecision, Rejected, Wake
from wakeroll_model.events import Commit, CommittedOffset, Event, Heartbeat, Pull, Subscription, Tick, Unregister
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record, entity_of
from wakeroll_model.shard import Shard
from wakeroll_model.shard_load import NOTHING, Load
from wakeroll_model.shard_state import ShardState

START_MS = 1_700_000_000_000
FLOOD = 3_000
"""Records of one flood."""
HOUR_MS = 3_600_000

decode_state = msgspec.msgpack.Decoder(ShardState).decode


class Flooded:
    """A shard that is alone in its topic, what it has rejected, and its size."""

    def __init__(self, kind: str, **limits: int) -> None:
        """Begin with a tick that tells these limits."""
        self._topic = f"wakeroll.{kind}"
        self._shard = Shard(self._topic, 0, 1, raises=True)
        self._offset, self._now_ms = 0, 0
        self.answers: Counter[str] = Counter()
        """Rule of a rejection, or reason of a wake -> its number."""
        self.append(Tick(observer="o", uptime_ms=0, limits=Limits(**limits)))

    def append(self, event: Event) -> list[AnyDecision]:
        """Append an event; return and count the decisions."""
        key = entity_of(event).encode() or None
        assert partition_of(key or b"", 1) == 0
        value = msgspec.json.encode(event)
        decisions = self._shard.apply(Record(self._topic, 0, self._offset, START_MS + self._now_ms, key, value))
        self._offset += 1
        self.answers.update(one.rule for one in decisions if isinstance(one, Rejected))
        self.answers.update(one.reason for one in decisions if isinstance(one, Wake))
        return decisions

    def pass_time(self, duration_ms: int) -> None:
        """Tick every 3 s."""
        for _ in range(duration_ms // 3_000):
            self._now_ms += 3_000
            self.append(Tick(observer="o", uptime_ms=self._now_ms))

    @property
    def size(self) -> int:
        """Size of the state, bytes."""
        return len(self._shard.body())

    @property
    def load(self) -> Load:
        return decode_state(self._shard.body()).load

    @property
    def names(self) -> list[str]:
        return self._shard.names()


def beat(group_id: str, client_id: str, *topics: str, life: int = 1, **more: object) -> Heartbeat:
    subscriptions = [Subscription(topic=topic) for topic in topics]
    names = {"group_id": group_id, "client_id": client_id, "instance_id": f"{client_id}-{life}"}
    return Heartbeat(**names, subscriptions=subscriptions, **more)


def pull(queue_id: int, number: int, client_id: str = "c", expression: str = "*") -> Pull:
    names = {"group_id": "g", "client_id": client_id, "instance_id": f"i{client_id}"}
    queue = Queue("orders", "", queue_id)
    return Pull(
        **names,
        request_id=f"i{client_id}:{number}",
        queue=queue,
        from_offset=0,
        timeout_ms=60_000,
        expression=expression,
    )


# --- groups and their clients ---


def test_a_flood_of_groups_ends_at_the_limit_and_leaves_the_others_alone():
    flooded = Flooded("groups", max_groups=50)
    flooded.append(beat("billing", "a", "orders"))

    for number in range(FLOOD):
        flooded.append(beat(f"flood-{number}", "x", "orders"))

    assert flooded.answers["limit"] == FLOOD - 49
    assert (flooded.load.entities, len(flooded.names)) == (50, 50)
    assert flooded.append(beat("billing", "b", "orders"))[0].__struct_config__.tag == "membership"


def test_a_flood_of_clients_ends_at_the_limit_though_each_says_almost_nothing():
    """A client that subscribes nothing takes room too: names, epochs and times."""
    flooded = Flooded("groups", max_group_bytes=262_144)
    flooded.append(beat("billing", "a", "orders"))

    for number in range(FLOOD):
        flooded.append(beat("billing", f"x{number}"))

    members = 1 + FLOOD - flooded.answers["limit"]
    assert 900 < members < 262_144 // config.MEMBER_BYTES
    assert flooded.load.bytes <= 262_144
    assert flooded.size < 3 * 262_144


def test_a_flood_of_clients_in_many_groups_ends_at_the_limit_of_the_shard():
    flooded = Flooded("groups", max_group_bytes=262_144, max_shard_bytes=262_144)

    for number in range(FLOOD):
        flooded.append(beat(f"flood-{number % 40}", f"x{number}"))

    assert flooded.answers["limit"] > FLOOD - 262_144 // config.MEMBER_BYTES
    assert flooded.load.bytes <= 262_144


def test_a_flood_of_bytes_ends_at_the_limit():
    flooded = Flooded("groups", max_group_bytes=300_000, max_shard_bytes=600_000)
    large = {f"p{number}": "x" * 1_000 for number in range(100)}

    for number in range(200):
        flooded.append(beat(f"flood-{number % 4}", f"x{number}", strategy_params=large))

    assert flooded.answers["limit"] == 200 - 5
    assert flooded.load.bytes <= 600_000


def test_a_flood_of_instances_of_one_client_keeps_few_of_them():
    """Each claims the client_id of a live member: only some wait for it."""
    flooded = Flooded("groups")
    flooded.append(beat("billing", "a", "orders"))
    before = flooded.size

    for number in range(FLOOD):
        flooded.append(beat("billing", "a", "orders", life=2 + number))

    assert flooded.answers["in-use"] == FLOOD
    assert flooded.size < before + 10_000


def test_a_flood_of_ended_instances_keeps_the_newest():
    flooded = Flooded("groups", max_ended=100)

    for number in range(FLOOD):
        flooded.append(Unregister(group_id="billing", client_id=f"x{number}", instance_id="i"))

    assert flooded.size < 100 * 300


def test_a_flood_of_commits_of_strangers_stores_nothing():
    flooded = Flooded("groups")
    flooded.append(beat("billing", "a", "orders"))
    before = flooded.size
    offsets = [
        CommittedOffset(queue=Queue("orders", "", number), offset=5, metadata="m" * 1_000) for number in range(20)
    ]

    for number in range(FLOOD):
        flooded.append(Commit(group_id="billing", client_id=f"x{number}", instance_id="i", epoch=1, offsets=offsets))

    assert flooded.answers["commit"] >= FLOOD
    assert flooded.size < before + 1_000


@pytest.mark.operate
def test_what_a_flood_of_groups_left_is_forgotten():
    """Members expire after a session; a group without offsets and settings is forgotten after a week."""
    flooded = Flooded("groups", max_groups=200)
    for number in range(FLOOD):
        flooded.append(beat(f"flood-{number}", "x", "orders"))
    full = flooded.size

    flooded.pass_time(HOUR_MS)

    assert flooded.size < full
    flooded.pass_time(7 * 24 * HOUR_MS)
    assert (flooded.names, flooded.load) == ([], NOTHING)
    assert flooded.size < 2_000


# --- pulls ---


@pytest.mark.parametrize(
    ("limits", "most"),
    [({"max_holds_per_queue": 50}, 50), ({"max_holds_per_shard": 80, "max_holds_per_queue": 80}, 80)],
    ids=["of a queue", "of a shard"],
)
def test_a_flood_of_pulls_is_answered_at_once_beyond_the_limit(limits: dict[str, int], most: int):
    """Otherwise each would be held for a minute."""
    flooded = Flooded("queues", max_lives_per_queue=100, **limits)
    flooded.append(pull(0, 0, "first"))

    for number in range(FLOOD):
        flooded.append(pull(0, 1, f"x{number}"))

    assert flooded.load.pulls <= most
    assert flooded.answers["overflow"] >= FLOOD - most - 1


def test_a_flood_of_queues_ends_at_the_limit():
    """A client may name queues that do not exist."""
    flooded = Flooded("queues", max_pulled_queues=50)

    for number in range(FLOOD):
        flooded.append(pull(number, 1))

    assert flooded.load.entities <= 50
    assert flooded.answers["overflow"] >= FLOOD - 50


def test_a_flood_of_filters_ends_at_the_limit():
    """Each different expression costs time at every arrival."""
    flooded = Flooded("queues", max_filters_per_queue=2_000, max_filters_per_shard=2_000)
    flooded.append(pull(0, 0, "first"))

    for number in range(FLOOD):
        flooded.append(pull(0, 1, f"x{number}", expression=f"tag-{number}"))

    assert flooded.load.filters <= 2_000
    assert flooded.answers["overflow"] > FLOOD - 100


def test_what_a_flood_of_pulls_left_is_forgotten():
    flooded = Flooded("queues", max_pulled_queues=200, max_holds_per_shard=1_000, max_holds_per_queue=1_000)
    for number in range(FLOOD):
        flooded.append(pull(number % 300, 1 + number // 300, f"x{number % 7}"))

    flooded.pass_time(2 * HOUR_MS)

    assert (flooded.names, flooded.load) == ([], NOTHING)
    assert flooded.size < 2_000
