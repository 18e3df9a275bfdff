"""Broadcasting groups: everybody has every queue, and offsets of its own; what happens when topics or limits change."""

from tests.support.histories.one_group import World, commit, work
from wakeroll_model.config import FORGET_MS
from wakeroll_model.decisions import Assignment, Offset, Rejected
from wakeroll_model.events import Level, Reset, ResetOffset, Route, RoutedQueue, Tick, Unregister
from wakeroll_model.feature_levels import NEWEST
from wakeroll_model.queue import Queue


def route(world: World, topic: str, count: int, topic_id: str = "", end: int = 100) -> None:
    """Tell of a topic with so many queues."""
    queues = [RoutedQueue(topic=topic, broker="", queue_id=number, max_offset=end) for number in range(count)]
    world.append(Route(topic=topic, queues=queues, version=f"{count} {topic_id}", topic_id=topic_id))


def starts(world: World, instance: str) -> dict[str, int | str | None]:
    """Return where each queue of an instance begins, as it was told last."""
    told = world.told[instance].queues
    return {str(one.queue): one.start.policy if one.start.offset is None else one.start.offset for one in told}


def test_a_member_that_lacks_queues_is_looked_at_until_it_has_them():
    """Another member leaves after the first look; nobody else would notice the room."""
    world = World()
    world.append(Tick(observer="o", uptime_ms=0, limits={"max_broadcast": 5}))
    work(world, "a1", "b1", seconds=3, mode="broadcasting")
    route(world, "orders", 3)
    for _ in range(6):
        world.pass_time(10_000)
        work(world, "a1", "b1", seconds=1, mode="broadcasting")
    assert sorted(len(one.owned) for one in world.shard.group("billing").members.values()) == [2, 3]

    world.append(Unregister(group_id="billing", client_id="a", instance_id="a1"))
    for _ in range(6):
        world.pass_time(10_000)
        work(world, "b1", seconds=1, mode="broadcasting")

    assert [len(one.owned) for one in world.shard.group("billing").members.values()] == [3]


def test_a_topic_made_again_with_fewer_queues_starts_at_its_first_message_when_it_grows():
    world = World()
    route(world, "orders", 2, "one")
    work(world, "a1", seconds=3, mode="broadcasting")
    for number in range(2):
        commit(world, "a1", Queue("orders", "", number), 70)
    for _ in range(2):
        route(world, "orders", 1, "two", end=5)
    work(world, "a1", seconds=3, mode="broadcasting")

    route(world, "orders", 2, "two", end=5)
    work(world, "a1", seconds=3, mode="broadcasting")

    assert starts(world, "a1") == {"orders-0": 0, "orders-1": 0}


def test_a_queue_added_while_a_client_was_away_starts_at_its_first_message_after_a_loss_too():
    """The log does not have its first heartbeat any more; what it committed tells that it consumes the topic."""
    world = World()
    route(world, "orders", 1)
    work(world, "a1", seconds=3, mode="broadcasting")
    first = world.shard.offset + 1
    route(world, "orders", 1)
    work(world, "a1", seconds=2, mode="broadcasting")
    commit(world, "a1", Queue("orders", "", 0), 7)
    world.append(Unregister(group_id="billing", client_id="a", instance_id="a1"))
    world.lose_state(first=first)

    route(world, "orders", 2)
    for _ in range(60):
        work(world, "a2", seconds=1, mode="broadcasting")

    assert starts(world, "a2") == {"orders-0": 7, "orders-1": "first"}


def test_what_a_client_drains_can_be_committed():
    """It has stopped to want the topic; its last messages are handled."""
    world, queue = World(), Queue("orders", "", 0)
    work(world, "a1", seconds=3, mode="broadcasting")
    owned = [Queue("orders", "", number) for number in range(2)]
    decisions = world.beat("a1", "payments", mode="broadcasting", owned=owned)
    [told] = [one for one in decisions if isinstance(one, Assignment)]
    assert set(owned) <= set(told.revoke)

    [taken] = commit(world, "a1", queue, 60)
    [refused] = commit(world, "a1", Queue("orders", "", 9), 60)

    assert isinstance(taken, Offset)
    assert taken.offset == 60
    assert isinstance(refused, Rejected)


ORDERS = Queue("orders", "", 0)


def at_the_newest_level() -> World:
    """Return a world whose coordinator decides as in a new deployment."""
    world = World()
    world.append(Level(level=NEWEST))
    return world


def reset(world: World, offset: int) -> None:
    """Reset the offset of the first queue of the topic."""
    name = f"r{len(world.records)}"
    world.append(Reset(group_id="billing", request_id=name, offsets=[ResetOffset(queue=ORDERS, offset=offset)], by="m"))


def reads_orders() -> World:
    """Return a world with a member that has committed 50 of the queue."""
    world = at_the_newest_level()
    work(world, "a1", seconds=3, mode="broadcasting")
    commit(world, "a1", ORDERS, 50)
    return world


def stays_reset(world: World) -> None:
    """Refuse what the member commits while it drains the queue; accept it from the next assignment on."""
    [refused] = commit(world, "a1", ORDERS, 60)
    assert isinstance(refused, Rejected)
    assert "reset since it was assigned" in refused.detail

    world.beat("a1", mode="broadcasting")
    assert starts(world, "a1")["orders-0"] == 20
    [taken] = commit(world, "a1", ORDERS, 21)
    assert isinstance(taken, Offset)


def test_a_client_that_has_left_a_queue_does_not_undo_its_reset():
    """It shows the epoch of the reset, but what it commits was done before: only an assignment tells the reset."""
    world = reads_orders()
    world.beat("a1", "payments", mode="broadcasting")

    reset(world, 20)
    world.beat("a1", "payments", mode="broadcasting")

    stays_reset(world)


def test_a_client_that_leaves_a_queue_before_it_knows_of_a_reset_does_not_undo_it():
    world = reads_orders()
    before = world.told["a1"].epoch
    reset(world, 20)

    world.beat("a1", "payments", mode="broadcasting", epoch=before)

    stays_reset(world)


def test_a_client_that_knows_of_a_reset_commits_what_it_has_read_since():
    world = reads_orders()
    reset(world, 20)
    world.beat("a1", mode="broadcasting")

    world.beat("a1", "payments", mode="broadcasting")

    [taken] = commit(world, "a1", ORDERS, 25)
    assert isinstance(taken, Offset)


def test_a_queue_that_was_added_starts_at_its_first_message_although_its_client_left_without_a_commit():
    """Its commits may be on their way, or refused by a coordinator that was down; `last` would skip messages."""
    world = at_the_newest_level()
    route(world, "orders", 1)
    work(world, "a1", seconds=3, mode="broadcasting")
    route(world, "orders", 2)
    work(world, "a1", seconds=3, mode="broadcasting")
    assert starts(world, "a1")["orders-1"] == "first"

    world.append(Unregister(group_id="billing", client_id="a", instance_id="a1"))
    work(world, "a2", seconds=3, mode="broadcasting")

    assert starts(world, "a2") == {"orders-0": "last", "orders-1": "first"}


def test_topics_that_a_client_has_left_cost_little_and_are_forgotten():
    """One client can want many topics, one after the other."""
    world, queues = World(), 1_000
    work(world, "a1", seconds=3, mode="broadcasting")
    for number in range(5):
        topic = f"daily-{number}"
        route(world, topic, queues)
        for wanted in (("orders", topic), ("orders",)):
            world.beat("a1", *wanted, mode="broadcasting")
            world.pass_time(2_000)
            world.beat("a1", *wanted, mode="broadcasting")
    group = world.shard.group("billing")
    assert sum(map(len, (group.broadcast_offsets["a"].assigned_below, group.broadcast_offsets["a"].added))) <= 6

    due = min(group.idle_topics.values()) + FORGET_MS
    assert group.due_ms <= due
    for name in group.idle_topics:
        group.idle_topics[name] -= FORGET_MS
    work(world, "a1", seconds=60, mode="broadcasting")

    assert list(world.shard.group("billing").broadcast_offsets["a"].assigned_below) == ["orders@"]


def test_a_late_commit_from_before_a_reset_is_refused_after_the_client_left_the_topic():
    """Commits since the reset do not make it good: its offset may be one of a topic that was deleted."""
    world, queue = World(), Queue("orders", "", 0)
    work(world, "a1", seconds=3, mode="broadcasting")
    before = world.told["a1"].epoch
    world.append(Reset(group_id="billing", request_id="r1", offsets=[ResetOffset(queue=queue, offset=0)], by="mia"))
    world.beat("a1", mode="broadcasting")
    commit(world, "a1", queue, 2)
    world.beat("a1", "payments", mode="broadcasting")

    [late] = commit(world, "a1", queue, 22, epoch=before)

    assert isinstance(late, Rejected)
    assert "reset in epoch" in late.detail
