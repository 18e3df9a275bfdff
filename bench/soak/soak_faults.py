"""The faults of a soak, and the order in which they occur."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from bench.decision_reader import PARTS
from bench.soak.watched_groups import GROUPS
from bench.soak.soak_system import OBSERVERS, REPLICAS, WATCH, SoakSystem, coordinator
from wakeroll.admin import Admin
from wakeroll.epoch_ms import EpochMs, now_ms

MORE_QUEUES = 4
SUSPENDED_S = 25.0
"""Longer than a lease of the recorder and than a session of a client (s)."""
BACK_MS = 20_000
"""How far a reset goes back (ms)."""
_ANSWER_S = 90.0


class Done(NamedTuple):
    """A fault that has begun."""

    detail: str
    """What was done, and to whom."""
    end: Callable[[], None] | None = None
    """Ends the fault, `SUSPENDED_S` later; None if nothing is left to do."""


def kill_writer(system: SoakSystem, _chance: random.Random) -> Done:
    """Kill the coordinator that writes the tables."""
    return _kill(system, system.writer)


def kill_other(system: SoakSystem, _chance: random.Random) -> Done:
    """Kill the coordinator that does not write the tables."""
    return _kill(system, _other(system))


def suspend_writer(system: SoakSystem, _chance: random.Random) -> Done:
    """Suspend the coordinator that writes the tables; when it wakes up, it has lost its lease, and ends."""
    return _suspend(system, system.writer, may_end=True)


def suspend_other(system: SoakSystem, _chance: random.Random) -> Done:
    """Suspend the coordinator that does not write the tables."""
    return _suspend(system, _other(system))


def kill_observer(system: SoakSystem, chance: random.Random) -> Done:
    """Kill one of the two observers."""
    return _kill(system, chance.choice(OBSERVERS))


def suspend_observer(system: SoakSystem, chance: random.Random) -> Done:
    """Suspend one of the two observers."""
    return _suspend(system, chance.choice(OBSERVERS))


def kill_consumers(system: SoakSystem, chance: random.Random) -> Done:
    """Kill a process with consumers; it is started again with the same client ids."""
    return _kill(system, chance.choice(system.consumer_processes))


def suspend_consumers(system: SoakSystem, chance: random.Random) -> Done:
    """Suspend a process with consumers for longer than their sessions."""
    return _suspend(system, chance.choice(system.consumer_processes))


def kill_watch(system: SoakSystem, _chance: random.Random) -> Done:
    """Kill `watch-kafka`."""
    return _kill(system, WATCH)


def suspend_watch(system: SoakSystem, _chance: random.Random) -> Done:
    """Suspend `watch-kafka`."""
    return _suspend(system, WATCH)


def kill_kafkas_members(system: SoakSystem, chance: random.Random) -> Done:
    """Kill the members of a group of Kafka's own."""
    return _kill(system, chance.choice([*GROUPS]))


def suspend_kafkas_members(system: SoakSystem, chance: random.Random) -> Done:
    """Suspend the members of a group of Kafka's own."""
    return _suspend(system, chance.choice([*GROUPS]))


def kill_broker(system: SoakSystem, _chance: random.Random) -> Done:
    """Kill the broker, and start it again."""
    with system.processes.outage():
        system.broker.kill()
        system.broker.start()
    return Done("broker")


def restart_broker(system: SoakSystem, _chance: random.Random) -> Done:
    """Stop the broker in good order, and start it again."""
    with system.processes.outage():
        system.broker.stop()
        system.broker.start()
    return Done("broker")


def join(system: SoakSystem, _chance: random.Random) -> Done:
    """Let more clients join."""
    return Done(system.add_clients())


def leave(system: SoakSystem, chance: random.Random) -> Done:
    """Stop a process with consumers in good order."""
    name = chance.choice(system.consumer_processes)
    system.processes.stop(name)
    return Done(name)


def reset(system: SoakSystem, chance: random.Random) -> Done:
    """Let an operator move a group back; no committed offset moves forward, because that would skip messages."""
    group_id = chance.choice(system.shape.groups)
    with Admin(system.settings.bootstrap, prefix=system.settings.prefix, connect_timeout=_ANSWER_S) as admin:
        plan = admin.plan_reset(group_id, EpochMs(now_ms() - BACK_MS))
        rows = tuple(
            replace(row, offset=min(row.offset, row.committed)) for row in plan.rows if row.committed is not None
        )
        if not rows:
            return Done(f"{group_id}: nothing is committed yet")
        admin.reset(replace(plan, rows=rows), by="soak", timeout=_ANSWER_S)
    back = sum(row.committed - row.offset for row in rows if row.committed is not None)
    return Done(f"{group_id}, {back} messages back")


def add_queues(system: SoakSystem, chance: random.Random) -> Done:
    """Give a topic more partitions."""
    topic = chance.choice(system.shape.groups)
    return Done(f"{topic} has {system.add_queues(topic, MORE_QUEUES)} queues")


def cut(system: SoakSystem, chance: random.Random) -> Done:
    """Cut the queues of a group into another number of slices while its members work; one is whole queues."""
    group_id, number = chance.choice(system.shape.cut), 2 ** chance.randrange(PARTS.bit_length())
    with Admin(system.settings.bootstrap, prefix=system.settings.prefix, connect_timeout=_ANSWER_S) as admin:
        admin.configure(group_id, slices={group_id: number}, by="soak", timeout=_ANSWER_S)
    return Done(f"{group_id} has {number} slices of each queue")


Fault = Callable[[SoakSystem, random.Random], Done]

FAULTS: tuple[Fault, ...] = (
    kill_writer,
    kill_other,
    suspend_writer,
    suspend_other,
    kill_observer,
    suspend_observer,
    kill_consumers,
    suspend_consumers,
    kill_watch,
    suspend_watch,
    kill_kafkas_members,
    suspend_kafkas_members,
    kill_broker,
    restart_broker,
    join,
    leave,
    reset,
    add_queues,
    cut,
)


def in_turn(chance: random.Random) -> Iterator[Fault]:
    """Yield faults without end: each one once, in an order by chance, then each one again in another order."""
    while True:
        yield from chance.sample(FAULTS, len(FAULTS))


def _kill(system: SoakSystem, name: str) -> Done:
    system.processes.kill(name)
    return Done(name)


def _suspend(system: SoakSystem, name: str, *, may_end: bool = False) -> Done:
    system.processes.suspend(name, may_end=may_end)
    return Done(name, lambda: system.processes.wake(name))


def _other(system: SoakSystem) -> str:
    return next(name for name in map(coordinator, REPLICAS) if name != system.writer)
