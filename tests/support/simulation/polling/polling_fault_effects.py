"""What a fault does to a world of long polling."""

from typing import TYPE_CHECKING

import msgspec

from model.events import Arrival, Pull
from model.queue import Queue
from tests.support.control_log import QUEUES
from tests.support.simulation.frame.fault import Fault
from tests.support.simulation.frame.simulated_coordinator import Coordinator
from tests.support.simulation.polling.polling_faults import KINDS
from tests.support.simulation.polling.polling_plan import TIMEOUTS_MS

if TYPE_CHECKING:
    from tests.support.simulation.polling.polling_world import World


def go_wrong(world: "World", fault: Fault) -> None:
    """Let something go wrong."""
    world.happened[fault.kind] += 1
    until_ms = world.now_ms + fault.length_ms
    match KINDS[fault.kind].who:
        case "client":
            _harm(world, fault, until_ms)
        case "queue":
            _disturb(world, fault, Queue.of_key(fault.who))
        case "topic" if fault.kind == "rough arrivals":
            world.rough_until_ms[fault.who] = max(world.rough_until_ms[fault.who], until_ms)
        case "topic":
            for queue in world.plan.queues:
                if queue.topic == fault.who:
                    _truncate(world, queue, len(world.messages[queue].log))
        case _:
            _shake(world, fault, until_ms)


def _shake(world: "World", fault: Fault, until_ms: int) -> None:
    """Let something go wrong with the observers, the coordinator or the log."""
    match fault.kind:
        case "dark":
            world.dark_until_ms = max(world.dark_until_ms, until_ms)
        case "no ticks":
            world.no_observer_until_ms = max(world.no_observer_until_ms, until_ms)
        case "behind":
            world.behind_until_ms, world.catches_up = max(world.behind_until_ms, until_ms), True
        case "kill" | "restore":
            lose = Coordinator.kill_in_next_batch if fault.kind == "kill" else Coordinator.restore
            for coordinator in world.coordinators:
                lose(coordinator, fault.amount)
        case "step":
            world.skew_ms += fault.amount
        case "second observer":
            world.second_until_ms = max(world.second_until_ms, until_ms)
        case "new observer":
            world.observe_anew()
        case "junk":
            _write_junk(world, fault.amount)
        case _:
            raise ValueError(f"nobody knows what {fault.kind!r} does")


def _disturb(world: "World", fault: Fault, queue: Queue) -> None:
    """Let something go wrong at a queue."""
    end = len(world.messages[queue].log)
    match fault.kind:
        case "crowd":
            _crowd(world, queue, fault.amount)
        case "flood":
            _flood(world, queue, fault.amount)
        case "beyond":
            world.send(_pull_of(world, "beyond", queue, end + fault.amount))
        case "truncate":
            _truncate(world, queue, fault.amount)
        case "lie":
            world.append(Arrival(queue=queue, next_offset=end + fault.amount))
        case "false report":
            wrong = end + fault.amount if fault.amount > 3 else end // 2
            world.append(Arrival(queue=queue, next_offset=wrong, observer="stale"))
        case "late arrival":
            told = [one for one in world.told if one.queue == queue]
            if told:
                world.append(told[len(told) * fault.amount // 100])
        case _:
            raise ValueError(f"nobody knows what {fault.kind!r} does")


def _harm(world: "World", fault: Fault, until_ms: int) -> None:
    """Let something go wrong with a client."""
    poller = world.pollers[fault.who]
    match fault.kind:
        case "crash":
            if again := poller.last_pull:
                world.after(fault.amount, lambda: world.append(again))
            poller.die(fault.length_ms)
        case "cancel":
            poller.rest()
            world.after(fault.length_ms, poller.start)
        case "deaf":
            poller.deaf_until_ms = max(poller.deaf_until_ms, until_ms)
        case "echo":
            poller.echo_until_ms = max(poller.echo_until_ms, until_ms)
        case "rough pulls":
            poller.rough_until_ms = max(poller.rough_until_ms, until_ms)
        case "wish":
            poller.wish(fault.amount)
        case "misread":
            unreadable = poller.next_pull(next(iter(poller.readings)), 0, ("amount >", "SQL92"))
            world.append(unreadable, is_refused=True)
        case _:
            raise ValueError(f"nobody knows what {fault.kind!r} does")


def _crowd(world: "World", queue: Queue, amount: int) -> None:
    for number in range(amount):
        world.send(_pull_of(world, f"crowd-{number}", queue, len(world.messages[queue].log)))


def _flood(world: "World", queue: Queue, amount: int) -> None:
    """Pull a queue, and one that there is not; in twos, so that some are held of queues that are known by then."""
    for number in range(amount):
        for where in (queue, Queue("stray", "", number // 2)):
            end = len(world.messages[queue].log)
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
    if world.now_ms < world.dark_until_ms or not pulls:
        world.after(1_000, lambda: _write_junk(world, kind))
        return
    pull = world.rng.choice(pulls)
    if kind == 3:
        pull = msgspec.structs.replace(pull, instance_id="another")
    [record] = world.log.append(pull, world.now_ms + world.skew_ms)
    assert record.topic == QUEUES
    changes = [{"value": b"{"}, {"value": b'{"type": "pull"}'}, {"key": b"elsewhere@0"}, {}][kind]
    world.write(msgspec.structs.replace(record, **changes), None)
