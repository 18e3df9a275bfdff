"""Effects of the faults of a world of groups."""

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from tests.support.simulation.frame.fault import Fault
from tests.support.simulation.frame.fault_effects import COMMON_EFFECTS
from tests.support.simulation.frame.world import Effect
from tests.support.simulation.groups import strangers
from tests.support.simulation.groups.group_faults import KINDS
from tests.support.simulation.groups.group_observer import NOWHERE, ROOMS
from tests.support.simulation.groups.group_plan import GROUPS, TOPICS
from wakeroll_model.events import Commit, Heartbeat

if TYPE_CHECKING:
    from tests.support.simulation.groups.client_process import Process
    from tests.support.simulation.groups.group_world import World


def _restart(_world: "World", fault: Fault, process: "Process") -> None:
    process.beat_late(fault.amount)
    process.die()


def _farewell(world: "World", fault: Fault, process: "Process") -> None:
    if process.client.instance_id and not process.producer.is_cut:
        world.after(fault.amount, world.append, process.last_word())
    process.die()


def _abort(_world: "World", _fault: Fault, process: "Process") -> None:
    def abort() -> None:
        process.beat_late(200)
        process.abort()

    process.when_awake(abort)


def _stand_still(world: "World", fault: Fault, process: "Process") -> None:
    process.still_until_ms = max(process.still_until_ms, world.now_ms + fault.length_ms)


def _suspend(world: "World", fault: Fault, process: "Process") -> None:
    _stand_still(world, fault, process)
    world.after(min(fault.amount, fault.length_ms), world.start_another, fault.who)


def _die_twice(world: "World", fault: Fault, process: "Process") -> None:
    """Let a process die, and what is started in its place, again and again; it comes back in the end."""
    process.beat_late(fault.amount)
    process.die()

    def begin(deaths: int) -> None:
        world.start(fault.who)
        if deaths:
            world.after(world.rng.choice((5, 400, 3_000)), end, deaths)

    def end(deaths: int) -> None:
        for one in world.living(fault.who):
            one.beat_late(fault.amount)
            one.die()
        world.after(fault.length_ms, begin, deaths - 1)

    world.after(fault.length_ms, begin, 2)


def _die_with_a_will(world: "World", fault: Fault, process: "Process") -> None:
    """Let a process die with a heartbeat under way, and send its last will, once or twice."""
    will = process.client.last_will()
    if world.rng.random() < 0.5:
        process.beat_late(fault.amount + world.rng.choice((-fault.amount, 5, 1_000)))
    process.die()
    if will is not None:
        for later_ms in (fault.amount, fault.amount + 50)[: world.rng.choice((1, 1, 2))]:
            for event in will.events({}, world.rng.choice(("SIGKILL", "exit code 3", ""))):
                world.after(later_ms, world.append, event)


def _unhear(world: "World", fault: Fault, process: "Process") -> None:
    process.unheard_until_ms = max(process.unheard_until_ms, world.now_ms + fault.length_ms)


def _lose_decisions(world: "World", fault: Fault, process: "Process") -> None:
    kinds = (("assignment",), ("fenced",), ("rejected",), ("assignment", "fenced", "rejected"))[fault.amount]
    world.lose_decisions(process.client_id, kinds, fault.length_ms)


def _straggle(_world: "World", fault: Fault, process: "Process") -> None:
    process.producer.straggle(Commit if fault.amount else Heartbeat, fault.length_ms)


def _cut(world: "World", fault: Fault, process: "Process") -> None:
    process.cut_until_ms = max(process.cut_until_ms, world.now_ms + fault.length_ms)


def _deafen(world: "World", fault: Fault, process: "Process") -> None:
    process.deaf_until_ms = max(process.deaf_until_ms, world.now_ms + fault.length_ms)


def _move(world: "World", fault: Fault, process: "Process") -> None:
    """Stop it; what it sent last is in the log, acknowledged while it stands, and it is cut off when it goes on."""
    process.wish()
    _stand_still(world, fault, process)
    until_ms = min(world.now_ms + fault.length_ms + fault.amount, world.plan.chaos_ms)

    def cut() -> None:
        process.cut_until_ms = max(process.cut_until_ms, until_ms)

    world.after(min(fault.length_ms, 1_000), cut)


def _skip(world: "World", fault: Fault, process: "Process") -> None:
    process.skips_until_ms = world.now_ms + fault.length_ms


def _slow_down(_world: "World", fault: Fault, process: "Process") -> None:
    process.slow_ms = fault.length_ms


_TO_A_PROCESS: Mapping[str, Callable[["World", Fault, "Process"], None]] = {
    "crash": lambda _world, _fault, process: process.die(),
    "restart": _restart,
    "farewell": _farewell,
    "last will": _die_with_a_will,
    "leave": lambda _world, _fault, process: process.when_awake(process.finish),
    "abort": _abort,
    "zombie": _stand_still,
    "twice": _die_twice,
    "suspended": _suspend,
    "unheard": _unhear,
    "lost": _lose_decisions,
    "late answer": lambda world, fault, process: world.delay_decision(process.client_id, fault.length_ms),
    "straggler": _straggle,
    "liar": lambda world, fault, process: strangers.lie(world, process, fault.amount),
    "far commit": lambda world, fault, process: strangers.commit_far(world, process, fault.amount),
    "pause": _stand_still,
    "cut": _cut,
    "deaf": _deafen,
    "moved": _move,
    "skip": _skip,
    "slow": _slow_down,
    "lock": lambda world, fault, process: strangers.lock(world, process, fault.length_ms, bool(fault.amount)),
    "forged": lambda world, fault, process: strangers.forge(world, process, fault.amount),
}


def _darken(world: "World", fault: Fault) -> None:
    COMMON_EFFECTS["dark"](world, fault)
    world.seen.darkness.append((world.now_ms, world.now_ms + fault.length_ms))


def _lose(world: "World", fault: Fault) -> None:
    for replica in world.replicas:
        world.coordinators[replica.partition].follow(replica)
    world.replicas.clear()
    for coordinator in world.coordinators:
        if coordinator.partition == 0 or fault.amount != 0:
            coordinator.lose(fault.amount, fault.length_ms)


def _change_observers(world: "World", fault: Fault) -> None:
    world.seen.darkness.append((world.now_ms, world.now_ms))
    if fault.amount < 3:
        world.observer.start_ticker()
    else:
        world.observer.end_ticker(fault.amount)


def _make_ticks_late(world: "World", fault: Fault) -> None:
    world.observer.late_until_ms, world.observer.late_ms = world.now_ms + fault.length_ms, fault.amount


def _run_fast(world: "World", fault: Fault) -> None:
    """Let the log's clock gain so many percent."""
    until_ms = world.now_ms + fault.length_ms

    def gain() -> None:
        world.broker.skew_ms += fault.amount
        if world.now_ms < until_ms:
            world.after(100, gain)

    gain()


def _make_again(world: "World", fault: Fault) -> None:
    world.observer.delete(fault.who, tells=fault.length_ms > 0)
    world.after(fault.length_ms, world.observer.make, fault.who)


def _delay_route(world: "World", fault: Fault) -> None:
    world.after(fault.length_ms, world.append, world.observer.route(fault.who))


def _end_ticks(world: "World", fault: Fault) -> None:
    if fault.amount:
        for number in range(len(world.observer.tickers)):
            world.observer.end_ticker(number)
    COMMON_EFFECTS["no ticks"](world, fault)
    world.seen.darkness.append((world.now_ms, world.now_ms + fault.length_ms))


def _route(world: "World", fault: Fault) -> None:
    world.observer.set_queues(fault.who, max(1, world.plan.queues[TOPICS.index(fault.who)] + fault.amount))


def _remove_topic(world: "World", fault: Fault) -> None:
    world.observer.set_queues(fault.who, 0)
    world.after(fault.length_ms, world.observer.come_back, fault.who)


def _move_room(world: "World", fault: Fault) -> None:
    queues = world.observer.queues(fault.who)
    if queues:
        world.observer.move(world.rng.choice(queues), world.rng.choice((*ROOMS, NOWHERE)))


def _storm(world: "World", fault: Fault) -> None:
    """Change a topic a few times, soon one after the other; in the end it is there."""
    at_ms = 0
    while at_ms < fault.length_ms:
        happening = world.rng.choice((_move_room, _route, _remove_topic, _route))
        change = Fault(0, "storm", fault.who, world.rng.choice((20, 300)), world.rng.choice((-1, 1, 2, 3)))
        world.after(at_ms, happening, world, change)
        at_ms += world.rng.choice((0, 1, 50, 200, 300))


def _junk(world: "World", fault: Fault) -> None:
    if world.now_ms < world.broker.dark_until_ms:
        world.after(1_000, _junk, world, fault)
        return
    texts = (b"", b"{", b'{"type":"nonsense"}', b'{"type":"heartbeat","group_id":"billing","client_id":"c1"}')
    for partition in range(world.partitions):
        world.broker.write(partition, fault.who.encode(), world.rng.choice(texts), None, world.now_ms)


def _fight(world: "World", fault: Fault) -> None:
    until_ms = world.now_ms + fault.length_ms
    for process in world.living(fault.who):
        process.fights_until_ms = until_ms
    world.after(fault.amount, world.start_another, fault.who, until_ms)


def _delete_offsets(world: "World", fault: Fault) -> None:
    """Let the clients of a group subscribe the other topic only, delete offsets of this one, and let them come back."""
    group_id, other = world.rng.choice(GROUPS), 3 - TOPICS.index(fault.who)
    for name in world.plan.targets["client"]:
        if name.partition("/")[0] == group_id:
            world.change_wish(name, other)
            world.after(fault.length_ms, world.change_wish, name, 1)
    world.after(fault.length_ms * world.rng.randint(0, 110) // 100, world.operator.delete_offsets, group_id, fault.who)


_HANDED_OVER_BY = (
    *(
        "crash",
        "restart",
        "last will",
        "kick",
        "leave",
        "abort",
        "twin",
        "suspended",
        "pause",
        "slow",
        "wish",
        "wish",
        "prefer",
    ),
    *("route", "route", "gone", "storm", "reset", "other mode"),
)
"""Kinds of faults that lead to hand-overs, or keep one waiting."""
_SWITCHED = 0.4
"""Part of the outages in which an operator switches a group between eager and cooperative hand-overs."""


def _outage(world: "World", fault: Fault) -> None:
    """Begin hand-overs, and stop the coordinators in the middle of them; the amount is the seed of what happens."""
    rng = Random(fault.amount)
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(_HANDED_OVER_BY)
        kind = KINDS[name]
        who = fault.who if kind.who == "client" and rng.random() < 0.5 else rng.choice(world.plan.targets[kind.who])
        begun = Fault(0, name, who, kind.length_ms(rng, world.plan), kind.amount(rng, world.plan))
        world.after(rng.choice((0, 200, 2_000)), EFFECTS[name], world, begun)
    world.after(rng.choice((0, 50, 300, 600, 1_000, 2_000, 5_000)), _stop_coordinators, world, fault, rng)
    switches = Random(f"hand-over {fault.amount}")  # of its own, so that older seeds stay the same
    if switches.random() < _SWITCHED:
        group_id = switches.choice(GROUPS)
        for _ in range(2):  # and back, meanwhile or soon after
            at_ms = int(fault.length_ms * switches.uniform(0, 1.2))
            world.after(at_ms, world.operator.switch_handover, group_id)


def _stop_coordinators(world: "World", fault: Fault, rng: Random) -> None:
    """Stop all coordinators, or one of two, after a part of a batch; let some clients read slowly."""
    end_ms = world.now_ms + fault.length_ms
    stopped = rng.choice([[*world.coordinators, *world.replicas]] * 3 + [world.coordinators, world.replicas])
    for coordinator in stopped:
        if rng.random() < 0.5:
            coordinator.kill_in_next_batch(rng.randint(0, 100), any_part=True)
            world.run_batch(coordinator)
        coordinator.away_until_ms = end_ms + rng.choice((0, 0, 1_000, 10_000))
        coordinator.longest_batch = rng.choice((0, 10, 60, 300))
        if rng.random() < 0.5:
            world.after(fault.length_ms, coordinator.kill_in_next_batch, rng.randint(0, 100))
    for process in world.living():
        if rng.random() < 0.3:
            process.lags_until_ms = end_ms + 2 * world.plan.session_ms
            process.lag_percent = rng.randint(5, 60)


_TO_THE_WORLD: Mapping[str, Effect] = {
    "twin": lambda world, fault: world.start_another(fault.who),
    "fight": _fight,
    "loss": _lose,
    "outage": _outage,
    "observer": _change_observers,
    "late ticks": _make_ticks_late,
    "fast": _run_fast,
    "made again": _make_again,
    "truncated": lambda world, fault: world.truncate(fault.who, fault.amount),
    "old route": _delay_route,
    "late": lambda world, fault: world.delay_inbox(fault.length_ms, fault.amount),
    "new inbox": lambda world, _fault: world.recreate_inbox(),
    "echo": lambda world, fault: world.echo_inbox(fault.length_ms, fault.amount),
    "dark": _darken,
    "no ticks": _end_ticks,
    "junk": _junk,
    "route": _route,
    "gone": _remove_topic,
    "room": _move_room,
    "storm": _storm,
    "configure": lambda world, fault: world.operator.configure(fault.who, fault.length_ms, fault.amount),
    "strategy": lambda world, fault: world.operator.set_strategy(fault.who, fault.amount),
    "slices": lambda world, fault: world.operator.cut(fault.who, fault.amount),
    "reset": lambda world, fault: world.operator.reset(fault.who, fault.amount),
    "delete": _delete_offsets,
    "kick": lambda world, fault: world.operator.kick(fault.who, fault.length_ms),
    "inspect": lambda world, fault: world.operator.inspect(fault.who),
    "rest": lambda world, fault: world.operator.pause(fault.who, fault.length_ms),
    "full": lambda world, fault: world.operator.limit(fault.who, fault.amount, fault.length_ms),
    "wish": lambda world, fault: world.change_wish(fault.who, fault.amount),
    "prefer": lambda world, fault: world.change_preference(fault.who, fault.amount),
    "other mode": lambda world, fault: strangers.want_other_mode(world, fault.who),
}


def _hit(effect: Callable[["World", Fault, "Process"], None], world: "World", fault: Fault) -> None:
    """Carry out a fault of a client at each of its living processes; start the client again if the fault ends it."""
    for process in world.living(fault.who):
        effect(world, fault, process)
    if fault.kind in ("crash", "restart", "farewell", "last will", "leave", "abort"):
        world.after(fault.length_ms, world.start, fault.who)


EFFECTS: Mapping[str, Effect] = {
    **COMMON_EFFECTS,
    **{kind: partial(_hit, effect) for kind, effect in _TO_A_PROCESS.items()},
    **_TO_THE_WORLD,
}
"""Kind of fault -> its effect."""
