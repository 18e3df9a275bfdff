"""Clients made by hand: records of a group that no process of the world stands behind."""

from typing import TYPE_CHECKING, Any

from msgspec import structs

from tests.support.simulation.groups.client_process import Process
from tests.support.simulation.groups.group_plan import TOPICS
from wakeroll_model.events import Commit, CommittedOffset, Heartbeat, Lock, Subscription, Unlock, Unregister
from wakeroll_model.queue import Queue

if TYPE_CHECKING:
    from tests.support.simulation.groups.group_world import World

STRANGER = "stranger"


def lock(world: "World", process: Process, length_ms: int, unlocks: bool) -> None:
    """Lock what a process reads, and a queue that it does not; give it back in the end, or not.

    Meanwhile another member asks for the same locks, and would take them back.
    """
    queues = [*sorted(process.readers), Queue(TOPICS[0], "", 88)]

    def say(kind: type[Lock] | type[Unlock], who: Process) -> None:
        life = who.client.instance_id or "none"
        world.append(kind(group_id=who.group_id, client_id=who.client_id, instance_id=life, queues=queues))

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
            # What is claimed from a coordinator that had lost its state counts as given in 0.
            epoch = -1 if any(len(one.eras) > 1 for one in world.coordinators) else reader.give.assigned_epoch - 1
        case 3:
            client_id, life = STRANGER, f"{STRANGER}.0"
    everything = CommittedOffset(queue=queue, offset=world.ends.get(queue, 0) + 1)
    world.append(
        Commit(group_id=process.group_id, client_id=client_id, instance_id=life, epoch=epoch, offsets=[everything])
    )


def lie(world: "World", process: Process, how: int) -> None:
    """Say what is not so, within the bounds of an event.

    Args:
        world: where.
        process: whose group it is.
        how: 0 and 1, a member claims queues of others, and such as are not there; 2, it shows an epoch that was never
            given; 3, a stranger claims all, trusts a long session, and is silent from then on; 4, a stranger shows an
            epoch of its own; 5, a stranger wants the client_id of a member; 6, a former life of a member shows up, and
            again, and again.
    """
    name = {"group_id": process.group_id, "client_id": process.client_id, "instance_id": process.client.instance_id}
    group = [one for one in world.processes if one.group_id == process.group_id]
    everything = [queue for topic in TOPICS for queue in world.observer.queues(topic)]
    if any(len(one.eras) > 1 for one in world.coordinators):
        everything = []  # after a loss of state a claim is all that tells whose a queue is
    nowhere = [Queue(TOPICS[0], "elsewhere", number) for number in range(200)]
    mode = "broadcasting" if world.plan.broadcasts(process.group_id) else "clustering"
    wanted: dict[str, Any] = {"subscriptions": [Subscription(topic=topic) for topic in TOPICS], "mode": mode}
    stranger = f"{STRANGER}.{world.now_ms}"
    match how:
        case 0 | 1 | 2:
            beat = process.true_beat()
            if beat is None:
                return
            owned = sorted({*beat.owned, *everything, *(nowhere if how == 1 else [])})
            world.append(
                structs.replace(beat, epoch=beat.epoch + 1_000) if how == 2 else structs.replace(beat, owned=owned)
            )
            return
        case 3:
            name |= {"client_id": STRANGER, "instance_id": stranger}
            wanted |= {"owned": everything + nowhere, "session_timeout_ms": world.plan.longest_session_ms}
            world.after(60_000, world.append, Unregister(**name))
        case 4:
            name |= {"client_id": STRANGER, "instance_id": stranger}
            wanted["epoch"] = 2**40
        case 5:
            name["instance_id"] = stranger
            wanted["owned"] = everything
        case _:
            lives = [life for one in group for life in one.former_lives if one.client_id == process.client_id]
            if not lives:
                return
            name["instance_id"] = lives[-1]
            wanted["owned"] = everything
            for later_ms in (200, 400, 600, 5_000, 9_000):
                world.after(later_ms, world.append, Heartbeat(**name, **wanted))
    world.seen.strangers.add(name["instance_id"])
    world.append(Heartbeat(**name, **wanted))
    if how == 5:
        world.after(9_000, world.append, Unregister(**name))


def commit_far(world: "World", process: Process, messages: int) -> None:
    """Commit more of a queue than there is, as its owner."""
    if not process.readers or not process.client.instance_id:
        return
    queue = min(process.readers)
    far = CommittedOffset(queue=queue, offset=world.ends.get(queue, 0) + messages)
    world.seen.far_commits.add((process.scope, queue))
    world.append(
        Commit(
            group_id=process.group_id,
            client_id=process.client_id,
            instance_id=process.client.instance_id,
            epoch=process.client.epoch,
            offsets=[far],
        )
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
    world.append(beat)
    world.after(3_000, world.append, Unregister(group_id=group_id, client_id=STRANGER, instance_id=life))


def _others(world: "World", process: Process) -> list[Process]:
    return [one for one in world.living() if one.group_id == process.group_id and one.client_id != process.client_id]
