"""Locks on queues, for clients that speak RocketMQ's protocol of ordered groups (its `RebalanceLockManager`).

Here the assignment is the lock already, so one is granted to the queue's owner only; it ends after a minute unless it
is renewed, when its holder gives it back, and in any case when the queue comes free.
"""

from model import config, events
from model.decisions import Lock, LockOutcome
from model.group import Held, Turn
from model.queue import Queue


def lock(turn: Turn, event: events.Lock) -> None:
    """Grant or renew the locks that an owner asks for; refuse the others, a queue each."""
    group = turn.group
    until_ms = turn.moment.now_ms + config.LOCK_MS
    for queue in sorted(set(event.queues)):
        if _owns(turn, event, queue):
            group.locks[queue] = Held(event.client_id, until_ms)
            group.remind(until_ms)
            _say(turn, event.client_id, queue, "granted", until_ms)
        else:
            _say(turn, event.client_id, queue, "refused")


def unlock(turn: Turn, event: events.Unlock) -> None:
    """Take locks back from their holder; anybody else's wish is refused."""
    locks = turn.group.locks
    for queue in sorted(set(event.queues)):
        if queue in locks and locks[queue].client_id == event.client_id and _owns(turn, event, queue):
            del locks[queue]
            _say(turn, event.client_id, queue, "unlocked")
        else:
            _say(turn, event.client_id, queue, "refused")


def end(turn: Turn, queue: Queue) -> None:
    """End the lock on a queue that came free, if there is one: the next owner need not wait for it."""
    held = turn.group.locks.pop(queue, None)
    if held is not None:
        _say(turn, held.client_id, queue, "unlocked")


def expire(turn: Turn) -> None:
    """End the locks that were not renewed in time."""
    locks = turn.group.locks
    for queue in sorted(queue for queue, held in locks.items() if held.until_ms <= turn.moment.now_ms):
        _say(turn, locks.pop(queue).client_id, queue, "expired")


def _owns(turn: Turn, event: events.Lock | events.Unlock, queue: Queue) -> bool:
    """Whether the event is of the queue's owner, and of its present life; one that must give it up gets no lock."""
    group = turn.group
    member = group.members.get(event.client_id)
    if member is None or member.instance_id != event.instance_id or group.owners.get(queue) != event.client_id:
        return False
    return queue not in member.revoking or isinstance(event, events.Unlock)


def _say(turn: Turn, client_id: str, queue: Queue, outcome: LockOutcome, until_ms: int | None = None) -> None:
    turn.say(Lock(group_id=turn.group.group_id, client_id=client_id, queue=queue, outcome=outcome, until_ms=until_ms))
