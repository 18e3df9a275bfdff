"""Locks on queues, for clients that use RocketMQ's protocol for ordered groups (its `RebalanceLockManager`).

In wakeroll the assignment already is exclusive, so a lock is granted to the queue's owner only. It ends after a minute
unless it is renewed, when its owner returns it, and in any case when the queue is freed.
"""

from wakeroll_model import config, events
from wakeroll_model.decisions import LockAnswer, LockOutcome
from wakeroll_model.group import QueueLock
from wakeroll_model.queue import Queue
from wakeroll_model.turn import Turn


def lock(turn: Turn, event: events.Lock) -> None:
    """Grant or renew locks on queues that the client owns; refuse the others, with one answer per queue."""
    group = turn.group
    until_ms = turn.moment.now_ms + config.LOCK_MS
    for queue in sorted(set(event.queues)):
        if _owns(turn, event, queue):
            group.locks[queue] = QueueLock(event.client_id, until_ms)
            group.remind(until_ms)
            _emit(turn, event.client_id, queue, "granted", until_ms)
        else:
            _emit(turn, event.client_id, queue, "refused")


def unlock(turn: Turn, event: events.Unlock) -> None:
    """End locks on behalf of their owner; refuse the requests of other clients."""
    locks = turn.group.locks
    for queue in sorted(set(event.queues)):
        if queue in locks and locks[queue].client_id == event.client_id and _owns(turn, event, queue):
            del locks[queue]
            _emit(turn, event.client_id, queue, "unlocked")
        else:
            _emit(turn, event.client_id, queue, "refused")


def end(turn: Turn, queue: Queue) -> None:
    """End the lock on a freed queue, if there is one: the next owner need not wait for it."""
    held = turn.group.locks.pop(queue, None)
    if held is not None:
        _emit(turn, held.client_id, queue, "unlocked")


def expire(turn: Turn) -> None:
    """End the locks that were not renewed in time."""
    locks = turn.group.locks
    for queue in sorted(queue for queue, held in locks.items() if held.until_ms <= turn.moment.now_ms):
        _emit(turn, locks.pop(queue).client_id, queue, "expired")


def _owns(turn: Turn, event: events.Lock | events.Unlock, queue: Queue) -> bool:
    """Return whether the event comes from the queue's owner and its live instance; a revoked queue gets no lock."""
    group = turn.group
    member = group.members.get(event.client_id)
    if member is None or member.instance_id != event.instance_id or group.owners.get(queue) != event.client_id:
        return False
    return queue not in member.revoking or isinstance(event, events.Unlock)


def _emit(turn: Turn, client_id: str, queue: Queue, outcome: LockOutcome, until_ms: int | None = None) -> None:
    turn.emit(
        LockAnswer(group_id=turn.group.group_id, client_id=client_id, queue=queue, outcome=outcome, until_ms=until_ms)
    )
