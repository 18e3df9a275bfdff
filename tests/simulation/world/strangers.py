"""Clients made by hand: records of a group that no process of the world stands behind."""

from typing import TYPE_CHECKING

from model.events import Commit, CommittedOffset, Heartbeat, Lock, Subscription, Unlock, Unregister
from model.queue import Queue
from world.plan import TOPICS
from world.process import Process

if TYPE_CHECKING:
    from world.world import World

STRANGER = "stranger"


def lock(world: "World", process: Process, length_ms: int, unlocks: bool) -> None:
    """Lock what a process reads, and a queue that it does not; give it back in the end, or not.

    Meanwhile another member asks for the same locks, and would take them back.
    """
    queues = [*sorted(process.readers), Queue(TOPICS[0], "", 88)]

    def say(kind: type[Lock] | type[Unlock], who: Process) -> None:
        life = who.client.instance_id or "none"
        world.arrive(kind(group_id=who.group_id, client_id=who.client_id, instance_id=life, queues=queues))

    say(Lock, process)
    for other in _others(world, process)[:1]:
        world.after(length_ms // 3, say, Lock, other)
        world.after(length_ms // 2, say, Unlock, other)
    if unlocks:
        world.after(length_ms, say, Unlock, process)


def forge(world: "World", process: Process, how: int) -> None:
    """Commit all of a queue that a process reads, though it has not handled it all, and who commits does not own it.

    Args:
        world: where.
        process: the owner.
        how: 0, another member does; 1, a former life of the owner; 2, the owner as of an epoch in which the queue was
            not given to it yet; 3, somebody who is not in the group.
    """
    if not process.readers:
        return
    queue, reader = min(process.readers.items())
    client_id, life, epoch = process.client_id, process.client.instance_id, process.client.epoch
    match how:
        case 0:
            others = [one for one in _others(world, process) if queue not in one.readers and one.client.instance_id]
            if not others or world.plan.broadcasts(process.group_id):
                return
            client_id, life, epoch = others[0].client_id, others[0].client.instance_id, others[0].client.epoch
        case 1:
            life = f"{life}-before"
        case 2:
            epoch = reader.give.given - 1
        case 3:
            client_id, life = STRANGER, ""
    everything = CommittedOffset(queue=queue, offset=world.ends.get(queue, 0) + 1)
    world.arrive(
        Commit(group_id=process.group_id, client_id=client_id, instance_id=life, epoch=epoch, offsets=[everything])
    )


def want_other_mode(world: "World", group_id: str) -> None:
    """Want to join a group in the mode that it does not have; go again soon, in case it was empty and let one in."""
    life = f"{STRANGER}.{world.now_ms}"
    world.seen.strangers.add(life)
    beat = Heartbeat(
        group_id=group_id,
        client_id=STRANGER,
        instance_id=life,
        mode="clustering" if world.plan.broadcasts(group_id) else "broadcasting",
        subscriptions=[Subscription(topic=TOPICS[0])],
    )
    world.arrive(beat)
    world.after(3_000, world.arrive, Unregister(group_id=group_id, client_id=STRANGER, instance_id=life))


def _others(world: "World", process: Process) -> list[Process]:
    return [one for one in world.living() if one.group_id == process.group_id and one.client_id != process.client_id]
