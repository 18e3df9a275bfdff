"""Effects of the faults of a world of long polling."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tests.support.control_log import encode_event
from tests.support.simulation.frame.fault import Fault
from tests.support.simulation.frame.fault_effects import COMMON_EFFECTS
from tests.support.simulation.frame.world import Effect
from tests.support.simulation.polling.polling_plan import TIMEOUTS_MS
from wakeroll_model.events import Arrival, Pull
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue

if TYPE_CHECKING:
    from tests.support.simulation.polling.poller import Poller
    from tests.support.simulation.polling.polling_world import World


def _report_roughly(world: "World", fault: Fault) -> None:
    until_ms = world.now_ms + fault.length_ms
    world.rough_until_ms[fault.who] = max(world.rough_until_ms[fault.who], until_ms)


def _recreate(world: "World", fault: Fault) -> None:
    for queue in world.plan.queues:
        if queue.topic == fault.who:
            _truncate(world, queue, len(world.messages[queue].log))


def _add_observer(world: "World", fault: Fault) -> None:
    world.second_until_ms = max(world.second_until_ms, world.now_ms + fault.length_ms)


# --- a queue ---


def _pull_beyond(world: "World", fault: Fault, queue: Queue) -> None:
    world.send(_pull_of(world, "beyond", queue, world.end(queue) + fault.amount))


def _lie(world: "World", fault: Fault, queue: Queue) -> None:
    world.append(Arrival(queue=queue, next_offset=world.end(queue) + fault.amount))


def _report_falsely(world: "World", fault: Fault, queue: Queue) -> None:
    end = world.end(queue)
    wrong = end + fault.amount if fault.amount > 3 else end // 2
    world.append(Arrival(queue=queue, next_offset=wrong, observer="stale"))


def _repeat_arrival(world: "World", fault: Fault, queue: Queue) -> None:
    told = [one for one in world.told if one.queue == queue]
    if told:
        world.append(told[len(told) * fault.amount // 100])


# --- a client ---


def _crash(world: "World", fault: Fault, poller: "Poller") -> None:
    if again := poller.last_pull:
        world.after(fault.amount, world.append, again)
    poller.die(fault.length_ms)


def _cancel(world: "World", fault: Fault, poller: "Poller") -> None:
    poller.rest()
    world.after(fault.length_ms, poller.start)


def _deafen(world: "World", fault: Fault, poller: "Poller") -> None:
    poller.deaf_until_ms = max(poller.deaf_until_ms, world.now_ms + fault.length_ms)


def _echo(world: "World", fault: Fault, poller: "Poller") -> None:
    poller.echo_until_ms = max(poller.echo_until_ms, world.now_ms + fault.length_ms)


def _send_roughly(world: "World", fault: Fault, poller: "Poller") -> None:
    poller.rough_until_ms = max(poller.rough_until_ms, world.now_ms + fault.length_ms)


def _misread(world: "World", _fault: Fault, poller: "Poller") -> None:
    unreadable = poller.next_pull(next(iter(poller.readings)), 0, ("amount >", "SQL92"))
    world.append(unreadable, is_refused=True)


# --- strangers, truncations and junk ---


def _crowd(world: "World", queue: Queue, amount: int) -> None:
    for number in range(amount):
        world.send(_pull_of(world, f"crowd-{number}", queue, world.end(queue)))


def _flood(world: "World", queue: Queue, amount: int) -> None:
    """Pull a queue, and one that there is not; in twos, so that some are held of queues that are known by then."""
    for number in range(amount):
        for where in (queue, Queue("stray", "", number // 2)):
            end = world.end(queue)
            world.send(_pull_of(world, f"flood-{number}", where, end, expression=f"tag-{number}"))


def _pull_of(world: "World", client_id: str, queue: Queue, from_offset: int, **wants: str) -> Pull:
    """Return the only pull of a life."""
    instance_id = f"{client_id}.{world.now_ms}"
    return Pull(
        request_id=f"{instance_id}:1",
        group_id="strangers",
        client_id=client_id,
        instance_id=instance_id,
        queue=queue,
        from_offset=from_offset,
        timeout_ms=world.rng.choice(TIMEOUTS_MS),
        **wants,
    )


def _truncate(world: "World", queue: Queue, amount: int) -> None:
    log = world.messages[queue].log
    del log[max(0, len(log) - amount) :]
    for poller in world.pollers.values():
        reading = poller.readings.get(queue)
        if reading is not None and reading.position > len(log):
            reading.blind.append((len(log), reading.position))


def _write_junk(world: "World", kind: int) -> None:
    """Write what is no event, or a client's last pull under another key or another instance."""
    pulls = [poller.last_pull for poller in world.pollers.values() if poller.last_pull]
    if world.now_ms < world.broker.dark_until_ms or not pulls:
        world.after(1_000, _write_junk, world, kind)
        return
    pull = world.rng.choice(pulls)
    if kind == 3:
        pull = msgspec.structs.replace(pull, instance_id="another")
    key = b"elsewhere@0" if kind == 2 else pull.queue.key.encode()
    value = {0: b"{", 1: b'{"type": "pull"}'}.get(kind, encode_event(pull))
    partition = partition_of(pull.queue.key.encode(), world.partitions)
    world.note_appended(world.broker.write(partition, key, value, None, world.now_ms), None)


_TO_A_QUEUE: Mapping[str, Callable[["World", Fault, Queue], None]] = {
    "crowd": lambda world, fault, queue: _crowd(world, queue, fault.amount),
    "flood": lambda world, fault, queue: _flood(world, queue, fault.amount),
    "beyond": _pull_beyond,
    "truncate": lambda world, fault, queue: _truncate(world, queue, fault.amount),
    "lie": _lie,
    "false report": _report_falsely,
    "late arrival": _repeat_arrival,
}
_TO_A_CLIENT: Mapping[str, Callable[["World", Fault, "Poller"], None]] = {
    "crash": _crash,
    "cancel": _cancel,
    "deaf": _deafen,
    "echo": _echo,
    "rough pulls": _send_roughly,
    "wish": lambda _world, fault, poller: poller.wish(fault.amount),
    "misread": _misread,
}
_TO_THE_WORLD: Mapping[str, Effect] = {
    "rough arrivals": _report_roughly,
    "recreate": _recreate,
    "second observer": _add_observer,
    "new observer": lambda world, _fault: world.observe_anew(),
    "junk": lambda world, fault: _write_junk(world, fault.amount),
}


def _at_its_queue(effect: Callable[["World", Fault, Queue], None], world: "World", fault: Fault) -> None:
    effect(world, fault, Queue.of_key(fault.who))


def _at_its_client(effect: Callable[["World", Fault, "Poller"], None], world: "World", fault: Fault) -> None:
    effect(world, fault, world.pollers[fault.who])


EFFECTS: Mapping[str, Effect] = {
    **COMMON_EFFECTS,
    **{kind: partial(_at_its_queue, effect) for kind, effect in _TO_A_QUEUE.items()},
    **{kind: partial(_at_its_client, effect) for kind, effect in _TO_A_CLIENT.items()},
    **_TO_THE_WORLD,
}
"""Kind of fault -> its effect."""
