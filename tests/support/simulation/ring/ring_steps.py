"""What may happen in a world. Each step returns in words what it did, or nothing if it did not apply."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from tests.support.simulation.ring.ring_plan import drawn_topics
from tests.support.simulation.ring.ring_processes import AsyncProcess, ConsumerProcess, PollProcess, RunProcess
from tests.support.simulation.ring.ring_subscriptions import APPEARING, Wanted
from tests.support.simulation.ring.virtual_threads import VirtualThread
from wakeroll import Admin, DeadLetters, WakerollError
from wakeroll.errors import RequestUnanswered
from wakeroll_model.events import Mode

if TYPE_CHECKING:
    from tests.support.simulation.ring.ring_plan import GroupPlan
    from tests.support.simulation.ring.ring_world import RingWorld

Do = Callable[["RingWorld", Random], str]

OUTAGES_S = (2.0, 20.0, 90.0, 300.0)
"""How long parts of the control plane or the brokers may be away (s)."""


def _member(world: "RingWorld", rng: Random) -> ConsumerProcess | None:
    members = world.members()
    return rng.choice(members) if members else None


def _group(world: "RingWorld", rng: Random) -> "GroupPlan":
    return rng.choice(world.plan.groups)


def _join(world: "RingWorld", rng: Random) -> str:
    process = world.join(_group(world, rng), rng)
    return "" if process is None else process.name


def _leave(world: "RingWorld", rng: Random) -> str:
    member = _member(world, rng)
    if member is None or len(world.members(member.group)) < 2:
        return ""
    member.leave()
    return member.name


def _subscribe(world: "RingWorld", rng: Random) -> str:
    """Let a member of the former deployment subscribe with the filter of the later one, while it works."""
    members = [one for one in world.members() if one.wanted.tags != one.group.last.tags and one.may_subscribe]
    if not members:
        return ""
    member = rng.choice(members)
    return subscribe(world, member, replace(member.wanted, tags=member.group.last.tags))


def _resubscribe(world: "RingWorld", rng: Random) -> str:
    """Let a member change its topics, its pattern and its filter, while it works."""
    members = [one for one in world.members() if one.group.later is not None and one.may_subscribe]
    if not members:
        return ""
    member = rng.choice(members)
    (topics, pattern), group = drawn_topics(rng), member.group
    tags = rng.choice([member.wanted.tags, group.first.tags, group.last.tags])
    wanted = rng.choice([Wanted(topics, tags, pattern), Wanted(topics, tags, pattern), group.last])
    return "" if wanted == member.wanted else subscribe(world, member, wanted)


def subscribe(world: "RingWorld", member: ConsumerProcess, wanted: Wanted) -> str:
    """Let a member subscribe something else, in a thread of its own."""
    consumer, before = member.consumer, member.wanted
    assert consumer is not None, "`may_subscribe` is asked before"
    member.wanted = wanted
    settle = world.truth.choices[member.name].choose(wanted)

    def work() -> None:
        is_done = False
        try:
            consumer.subscribe(wanted.choice())
            is_done = True
        except WakerollError as problem:
            world.say(f"   {member.name} does not subscribe: {problem}")
            if member.wanted is wanted:
                member.wanted = before
        finally:
            settle(world.truth.moment() if is_done else None)

    VirtualThread(world.scheduler, work, f"{member.name} subscribes", process=member.name).start()
    return f"{member.name} {wanted}"


def _create_a_topic(world: "RingWorld", rng: Random) -> str:
    names = [name for name in APPEARING if name not in world.log.topics]
    if not names:
        return ""
    topic, queues = rng.choice(names), rng.choice([1, 2])
    world.log.create(topic, queues)
    world.producing.append(topic)
    return f"{topic} with {queues} queues"


def _delete_a_topic(world: "RingWorld", rng: Random) -> str:
    names = [name for name in world.producing if name in APPEARING]
    if not names:
        return ""
    topic = rng.choice(names)
    world.producing.remove(topic)
    world.log.deleted.add(topic)
    return topic


def _stop(world: "RingWorld", rng: Random) -> str:
    member = _member(world, rng)
    if not isinstance(member, RunProcess):
        return ""
    member.stop()
    return member.name


def _pause(world: "RingWorld", rng: Random) -> str:
    member = _member(world, rng)
    if member is None or member.consumer is None or not (queues := member.consumer.assignment(with_retries=True)):
        return ""
    queue = rng.choice(queues)
    member.consumer.pause([queue])
    return f"{member.name} {queue}"


def _resume(world: "RingWorld", rng: Random) -> str:
    member = _member(world, rng)
    if member is None or member.consumer is None or not (queues := member.consumer.assignment(with_retries=True)):
        return ""
    member.consumer.resume(queues)
    return member.name


def _produce(world: "RingWorld", rng: Random) -> str:
    messages = rng.choice([3, 10])
    world.produce(messages)
    return f"{messages} more messages"


def _hang_briefly(world: "RingWorld", rng: Random) -> str:
    return _hang(world, rng, 2.0)


def _hang(world: "RingWorld", rng: Random, seconds: float = 0.0) -> str:
    member = _member(world, rng)
    if member is None:
        return ""
    member.hangs_s = seconds or rng.choice([6.0, 15.0, 60.0])
    return f"the next call of {member.name} takes {member.hangs_s:g} s"


def _kill(world: "RingWorld", rng: Random) -> str:
    member = _member(world, rng)
    if member is None:
        return ""
    member.kill()
    return member.name


def _freeze(world: "RingWorld", rng: Random) -> str:
    member = _member(world, rng)
    if member is None:
        return ""
    now_s, seconds = world.scheduler.now_s, rng.choice([1.0, 8.0, 30.0, 120.0])
    world.truth.frozen[member.name].append((now_s, now_s + seconds))
    world.scheduler.freeze(member.name, now_s + seconds)
    return f"{member.name} for {seconds:g} s"


def _cut(world: "RingWorld", rng: Random) -> str:
    member = _member(world, rng)
    if member is None:
        return ""
    now_s, seconds = world.scheduler.now_s, rng.choice([1.0, 10.0, 30.0, 120.0])
    world.truth.cut[member.name].append((now_s, now_s + seconds))
    member.network.cut_until_s = max(member.network.cut_until_s, now_s + seconds)
    return f"{member.name} for {seconds:g} s"


def _brokers_away(world: "RingWorld", rng: Random) -> str:
    now_s, seconds = world.scheduler.now_s, rng.choice(OUTAGES_S)
    world.truth.cut[""].append((now_s, now_s + seconds))
    world.log.down_until_s = max(world.log.down_until_s, now_s + seconds)
    return f"for {seconds:g} s"


def _coordinator_away(world: "RingWorld", rng: Random) -> str:
    seconds = rng.choice(OUTAGES_S)
    world.coordinator.away_until_s = max(world.coordinator.away_until_s, world.scheduler.now_s + seconds)
    world.coordinator.most = rng.choice([3, 20, 1_000])
    return f"for {seconds:g} s, then {world.coordinator.most} records a batch"


def _observer_away(world: "RingWorld", rng: Random) -> str:
    seconds = rng.choice(OUTAGES_S)
    world.observer.away_until_s = max(world.observer.away_until_s, world.scheduler.now_s + seconds)
    return f"for {seconds:g} s"


def _repeat_a_batch(world: "RingWorld", _rng: Random) -> str:
    world.coordinator.repeat_the_last_batch()
    return "the coordinator continues from its checkpoint"


def _slow_network(world: "RingWorld", rng: Random) -> str:
    process = rng.choice(world.processes)
    process.network.longest_s = rng.choice([0.5, 3.0])
    return f"of {process.name}: {process.network.longest_s:g} s"


def _failed_sends(world: "RingWorld", rng: Random) -> str:
    process = rng.choice(world.processes)
    network = process.network
    network.full, network.fatal = rng.choice([0.0, 0.2]), rng.choice([0.0, 0.1])
    network.loses_acknowledgements = rng.choice([0.0, 0.2])
    return f"of {process.name}"


def _crash(world: "RingWorld", rng: Random) -> str:
    member = _member(world, rng)
    if not isinstance(member, RunProcess):
        return ""
    member.crashes = True
    return member.name


def _interrupt(world: "RingWorld", rng: Random) -> str:
    member = _member(world, rng)
    if not isinstance(member, RunProcess | PollProcess):
        return ""
    if rng.random() < 0.3 and member.group.kinds:
        member.style = rng.choice(["close", "go on"])
    member.lines = rng.choice([rng.randrange(1, 40), rng.randrange(1, 400), rng.randrange(1, 4_000)])
    if isinstance(member, RunProcess):
        member.stop()  # `run` is called again, and then interrupted
    return f"{member.name} after {member.lines} lines, then it will {member.style}"


def _cancel(world: "RingWorld", rng: Random) -> str:
    tasks = [member for member in world.members() if isinstance(member, AsyncProcess)]
    if not tasks:
        return ""
    member = rng.choice(tasks)
    member.cancel()
    return f"the task of {member.name}"


def _reset(world: "RingWorld", rng: Random) -> str:
    group = _group(world, rng)
    where = rng.choice(["first", "first", "last"])

    def work(address: str) -> None:
        try:
            with Admin(address) as admin:
                plan = admin.plan_reset(group.group_id, where, topic="orders")
                outcome = admin.reset(plan, by="ring", timeout=rng.choice([5.0, 30.0]))
        except RequestUnanswered:
            world.say("   the reset is recorded, and not answered")
        except WakerollError as problem:
            world.say(f"   no reset: {problem}")
        else:
            wanted = {(one.queue, one.offset) for one in plan.offsets}
            found = {(offset.queue.whole, offset.offset) for offset in outcome.offsets.values()}
            if wanted != found:
                world.truth.find("reset", f"wanted {wanted}, and the answer has {found}")
            world.say(f"   the offsets are reset in epoch {outcome.rebalance.epoch}")

    world.do("reset", work)
    return f"{group.group_id} to the {where}"


def _configure(world: "RingWorld", rng: Random) -> str:
    group = _group(world, rng)
    strategy = rng.choice(["AVG", "SPREAD", "AVG_BY_CIRCLE"])

    def work(address: str) -> None:
        try:
            with Admin(address) as admin:
                rebalance = admin.configure(group.group_id, by="ring", strategy=strategy)
        except RequestUnanswered:
            world.say("   the settings are recorded, and not answered")
        except WakerollError as problem:
            world.say(f"   no settings: {problem}")
        else:
            if rebalance.clients and rebalance.strategy != strategy and group.mode == "clustering":
                world.truth.find("configure", f"asked for {strategy}, and the answer has {rebalance.strategy}")

    world.do("configure", work)
    return f"{group.group_id} by {strategy}"


def _cut_into_slices(world: "RingWorld", rng: Random) -> str:
    group = _group(world, rng)
    topic, number = rng.choice(group.topics or ("orders",)), rng.choice([1, 2, 4, 8])

    def work(address: str) -> None:
        try:
            with Admin(address) as admin:
                admin.configure(group.group_id, by="ring", slices={topic: number}, timeout=rng.choice([5.0, 30.0]))
        except RequestUnanswered:
            world.say("   the slices are recorded, and not answered")
        except WakerollError as problem:
            world.say(f"   no slices: {problem}")
        else:
            world.say(f"   {topic} is cut into {number}")
            world.happened["topics cut"] += 1

    world.do("slices", work)
    return f"{topic} of {group.group_id} into {number}"


def _seek(world: "RingWorld", rng: Random) -> str:
    members = [member for member in world.members() if isinstance(member, PollProcess)]
    if not members:
        return ""
    member = rng.choice(members)
    member.seeks = True
    return f"{member.name} goes back"


def _letters(world: "RingWorld", rng: Random, how: str) -> str:
    group = world.plan.groups[0]

    def work(address: str) -> None:
        of_group = world.truth.groups[group.group_id]
        try:
            with DeadLetters(group.group_id, address) as letters:
                numbers = [letter.number for letter in letters.open()]
                chosen = [number for number in numbers if rng.random() < 0.5]
                if not chosen:
                    return
                if how == "resend":
                    of_group.resent.update(chosen)
                    letters.resend(chosen, to_origin=group.orderly)
                else:
                    of_group.dropped.update(chosen)
                    letters.drop(chosen)
        except WakerollError as problem:
            world.say(f"   letters: {problem}")

    world.do(how, work)
    return group.group_id


def _resend(world: "RingWorld", rng: Random) -> str:
    return _letters(world, rng, "resend")


def _drop(world: "RingWorld", rng: Random) -> str:
    return _letters(world, rng, "drop")


def _reshard(world: "RingWorld", rng: Random) -> str:
    if world.coordinator.partitions > 2:
        return ""
    partitions = world.coordinator.partitions * rng.choice([2, 3])
    world.coordinator.reshard(partitions)
    return f"to {partitions} partitions"


def _expire(world: "RingWorld", rng: Random) -> str:
    topic = rng.choice(sorted(world.plan.topics))
    number = rng.randrange(world.plan.topics[topic])
    partition = world.log.topics[topic][number]
    partition.first = rng.randint(partition.first, partition.end)
    return f"{topic}-{number} begins at {partition.first}, and ends at {partition.end}"


def _truncate(world: "RingWorld", rng: Random) -> str:
    topic = rng.choice(sorted(world.plan.topics))
    number = rng.randrange(world.plan.topics[topic])
    partition = world.log.topics[topic][number]
    before = partition.end
    end = rng.randint(max(partition.first, before - 6), before)
    world.truth.lose(topic, number, partition.records[end:])
    partition.begin_epoch(end)
    return f"{topic}-{number} ends at {end} instead of {before}"


def _change_the_mode(world: "RingWorld", rng: Random) -> str:
    groups = [group for group in world.plan.groups if group.mode == "broadcasting"]
    if not groups:
        return ""
    group = rng.choice(groups)
    mode: Mode = "clustering" if world.modes[group.group_id] == "broadcasting" else "broadcasting"
    world.modes[group.group_id] = mode
    for member in world.members(group):
        member.leave()
    process = world.join(group, rng)
    assert process is not None, "all others leave"
    return f"of {group.group_id} to {mode}; {process.name} joins"


def _set_the_wall_clock(world: "RingWorld", rng: Random) -> str:
    world.clock.wall_shift_s += rng.choice([-7_200, -5, 5, 7_200])
    return f"by {world.clock.wall_shift_s:g} s in all"


STEPS: dict[str, Do] = {
    "join": _join,
    "leave": _leave,
    "subscribe": _subscribe,
    "resubscribe": _resubscribe,
    "create a topic": _create_a_topic,
    "delete a topic": _delete_a_topic,
    "stop": _stop,
    "pause": _pause,
    "resume": _resume,
    "produce": _produce,
    "hang briefly": _hang_briefly,
    "kill": _kill,
    "freeze": _freeze,
    "cut off": _cut,
    "brokers away": _brokers_away,
    "coordinator away": _coordinator_away,
    "observer away": _observer_away,
    "repeat a batch": _repeat_a_batch,
    "slow network": _slow_network,
    "failed sends": _failed_sends,
    "crash of a handler": _crash,
    "hang": _hang,
    "interrupt": _interrupt,
    "cancel": _cancel,
    "reset offsets": _reset,
    "configure": _configure,
    "resend letters": _resend,
    "drop letters": _drop,
    "reshard": _reshard,
    "expire": _expire,
    "truncate": _truncate,
    "change the mode": _change_the_mode,
    "set the wall clock": _set_the_wall_clock,
    "cut into slices": _cut_into_slices,
    "seek": _seek,
}
