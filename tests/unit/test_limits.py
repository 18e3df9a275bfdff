"""What a shard may hold, as the ticks of a deployment tell it, and what happens beyond that."""

import msgspec
import pytest

from tests.support.control_log import TOPIC, ControlLog
from wakeroll_model.config import DEFAULT_LIMITS, Limits
from wakeroll_model.decisions import AnyDecision
from wakeroll_model.events import Commit, CommittedOffset, Configure, Event, Heartbeat, Subscription, Tick, Unregister
from wakeroll_model.queue import Queue
from wakeroll_model.shard import Shard
from wakeroll_model.shard_load import NOTHING
from wakeroll_model.shard_state import ShardState

decode_state = msgspec.msgpack.Decoder(ShardState).decode


ORDERS = Queue("orders", "", 0)


class Running:
    """A shard of groups that is alone in its topic, and its log."""

    def __init__(self, **limits: int) -> None:
        """Begin with a tick that tells these limits."""
        self.log, self.now_ms = ControlLog(1), 0
        self.shard = Shard(TOPIC, 0, 1, raises=True)
        self.tick(Limits(**limits))

    def append(self, event: Event) -> list[AnyDecision]:
        """Append an event, and return what is decided."""
        [record] = self.log.append(event, self.now_ms)
        return self.shard.apply(record)

    def tick(self, limits: Limits | None = None) -> None:
        self.append(Tick(observer="o", uptime_ms=self.now_ms, limits=limits))

    def pass_time(self, duration_ms: int) -> None:
        """Tick every 3 s."""
        for _ in range(duration_ms // 3_000):
            self.now_ms += 3_000
            self.tick()

    def beat(self, group_id: str, client_id: str = "a", *topics: str, life: int = 1, **says: object) -> list[str]:
        """Let an instance say that it lives; return the rules by which that is refused, and why it is fenced."""
        event = Heartbeat(
            group_id=group_id,
            client_id=client_id,
            instance_id=f"{client_id}{life}",
            subscriptions=[Subscription(topic=topic) for topic in topics],
            **says,
        )
        return refusals(self.append(event))

    @property
    def bytes(self) -> int:
        """Kept of heartbeats and settings, as the shard counts it."""
        return decode_state(self.shard.body()).load.bytes


def refusals(decisions: list[AnyDecision]) -> list[str]:
    told = [getattr(one, "rule", None) or getattr(one, "reason", None) for one in decisions]
    return [one for one in told if one is not None]


def params(size: int) -> dict[str, object]:
    """Return parameters of a strategy that have at least so many bytes."""
    return {f"p{number}": "x" * 1_000 for number in range(size // 1_000 + 1)}


# --- groups ---


def test_a_shard_has_no_more_groups_than_its_deployment_says():
    """Whoever makes groups in a loop does not fill the state; those that are there go on."""
    running = Running(max_groups=2)
    assert [running.beat("first"), running.beat("second")] == [[], []]

    assert running.beat("third") == ["limit", "refused"]
    assert running.beat("first", "b") == []
    assert running.shard.names() == ["first", "second"]


@pytest.mark.parametrize(
    "event",
    [
        Configure(group_id="third", settle_ms=5),
        Unregister(group_id="third", client_id="a", instance_id="a1"),
        Commit(
            group_id="third",
            client_id="a",
            instance_id="a1",
            offsets=[CommittedOffset(queue=Queue("t", "", 0), offset=1)],
        ),
    ],
    ids=lambda event: type(event).__name__,
)
def test_nothing_else_makes_one_more_group_either(event):
    """Each of these would leave something in the state: settings, or an instance that ended."""
    running = Running(max_groups=2)
    running.beat("first")
    running.beat("second")

    [refused] = running.append(event)

    assert (refused.rule, refused.detail) == ("limit", "the shard has 2 groups; max_groups is 2")
    assert running.shard.names() == ["first", "second"]


def test_a_group_that_is_forgotten_makes_room_for_another():
    """An ended instance is remembered for half an hour, and its group with it."""
    running = Running(max_groups=1)
    running.append(Unregister(group_id="first", client_id="a", instance_id="a1"))
    assert running.beat("second") == ["limit", "refused"]

    running.pass_time(31 * 60_000)

    assert running.beat("second") == []


# --- bytes ---


def test_a_group_keeps_no_more_of_heartbeats_than_its_deployment_says():
    """A thousand clients with a quarter of a mebibyte each would be a state that no store takes."""
    running = Running(max_group_bytes=300_000)
    assert running.beat("billing", "a", strategy_params=params(200_000)) == []

    assert running.beat("billing", "b", strategy_params=params(200_000)) == ["limit", "refused"]
    assert running.beat("billing", "c", strategy_params=params(50_000)) == []
    assert 250_000 < running.bytes < 300_000


def test_the_groups_of_a_shard_together_have_a_limit_too():
    running = Running(max_shard_bytes=300_000)
    assert running.beat("one", strategy_params=params(200_000)) == []

    assert running.beat("two", strategy_params=params(200_000)) == ["limit", "refused"]
    assert running.beat("two", "b", strategy_params=params(50_000)) == []


def test_a_member_that_wants_more_than_there_is_room_for_keeps_what_it_wanted_before():
    """It lives, and it consumes: only its new preferences are rejected, and it is on record why."""
    running = Running(max_group_bytes=300_000)
    running.beat("billing", "a", "orders", strategy_params=params(10_000))
    running.beat("billing", "b", "orders", strategy_params=params(200_000))
    before = running.bytes

    refused = running.beat("billing", "a", "orders", "payments", strategy_params=params(100_000))

    assert (refused, running.bytes) == (["limit"], before)
    assert [*running.shard.group("billing").members["a"].subscriptions] == ["orders"]
    assert running.beat("billing", "a", "orders", "payments", strategy_params=params(20_000)) == []
    assert [*running.shard.group("billing").members["a"].subscriptions] == ["orders", "payments"]


def test_settings_count_and_a_smaller_configure_makes_room():
    running = Running(max_group_bytes=262_144)
    assert refusals(running.append(Configure(group_id="billing", strategy_params=params(60_000)))) == []

    assert running.beat("billing", strategy_params=params(220_000)) == ["limit", "refused"]
    running.append(Configure(group_id="billing", strategy_params={}))
    assert running.beat("billing", strategy_params=params(220_000)) == []
    [refused] = running.append(Configure(group_id="billing", strategy_params=params(60_000)))
    assert (refused.rule, "max_group_bytes is 262144" in refused.detail) == ("limit", True)


def test_who_waits_for_a_client_id_counts_too():
    """Its heartbeat is kept: it joins by that when the live instance is gone."""
    running = Running(max_group_bytes=300_000)
    running.beat("billing", "a", strategy_params=params(200_000))

    assert running.beat("billing", "a", life=2, strategy_params=params(200_000)) == ["limit"]
    assert running.beat("billing", "a", life=3, strategy_params=params(50_000)) == ["in-use"]


def test_what_is_counted_goes_back_to_nothing():
    """However members, those who waited for their client_ids and settings went."""
    running = Running()
    for number in range(5):
        running.beat("billing", f"c{number}", "orders", strategy_params=params(1_000 * number))
        running.beat("billing", f"c{number}", "orders", life=2, strategy_params=params(3_000))
    assert running.bytes > 20_000
    running.append(Unregister(group_id="billing", client_id="c0", instance_id="c01"))
    running.append(Configure(group_id="billing", strategy_params=params(2_000)))
    running.append(Configure(group_id="billing", strategy_params={}))

    running.pass_time(8 * 24 * 3_600_000)

    assert running.shard.names() == []
    assert decode_state(running.shard.body()).load == NOTHING


def test_limits_that_are_lowered_take_nothing_away():
    """Those who are in stay in, and say what they have said before; nobody else comes in."""
    running = Running()
    for client_id in "ab":
        running.beat("billing", client_id, "orders", strategy_params=params(180_000))
    running.beat("audit", "a", "orders")

    running.tick(Limits(max_groups=1, max_group_bytes=262_144, max_shard_bytes=262_144))

    assert running.beat("billing", "a", "orders", strategy_params=params(180_000)) == []
    assert running.beat("billing", "a", "orders", strategy_params=params(170_000)) == []
    assert running.beat("billing", "c", "orders") == ["limit", "refused"]
    assert running.beat("third") == ["limit", "refused"]


# --- who tells them, and for how long they count ---


def test_limits_count_until_others_are_told():
    """A tick without any, as of another observer, changes nothing; one that names none makes all the default."""
    running = Running(max_groups=1)
    running.tick()
    running.shard = Shard(TOPIC, 0, 1, running.shard.body(), raises=True)
    running.beat("first")
    assert running.beat("second") == ["limit", "refused"]

    running.tick(DEFAULT_LIMITS)

    assert running.beat("second") == []


def test_after_a_loss_of_state_who_was_in_is_let_in_though_a_limit_was_lowered():
    """The limits are kept, twice as high while members come back; whoever shows no epoch was none, and waits."""
    running = Running(max_groups=2)
    for name in ("first", "second"):
        running.beat(name)
    running.tick(Limits(max_groups=1))
    running.shard = Shard(TOPIC, 0, 1, running.shard.body(), era=2, raises=True)

    assert running.beat("first", "newcomer") == []
    assert running.shard.group("first").members == {}
    assert [running.beat("first", epoch=1), running.beat("second", epoch=1)] == [[], []]
    assert running.beat("third", epoch=1) == ["limit", "refused"]
    assert running.shard.names() == ["first", "second"]


def test_after_a_loss_of_state_a_shard_counts_what_it_kept():
    """Groups with settings stay, and with them the bytes of these; what members sent is gone."""
    running = Running()
    for name in ("first", "second", "third"):
        running.append(Configure(group_id=name, strategy_params=params(5_000)))
        running.beat(name, "a", "orders", strategy_params=params(9_000))
    running.shard = Shard(TOPIC, 0, 1, running.shard.body(), era=2, raises=True)
    running.tick()

    state = decode_state(running.shard.body())
    assert state.load == sum((running.shard.group(name).load for name in running.shard.names()), NOTHING)
    assert (state.load.entities, 15_000 < state.load.bytes < 20_000) == (3, True)


def test_a_subscription_that_is_kept_counts_though_a_heartbeat_shows_a_smaller_one():
    """A subscription of a lower version is not taken, and the one that is kept is large."""
    running = Running()
    large = [Subscription(topic="orders", expression="x" * 4_000, version=5)]
    names = {"group_id": "billing", "client_id": "a", "instance_id": "a1"}
    running.append(Heartbeat(**names, subscriptions=large))
    before = running.bytes

    running.append(Heartbeat(**names, subscriptions=[Subscription(topic="orders")], weight=2.0))

    assert running.bytes == before > 4_000
