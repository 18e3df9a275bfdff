"""The queue machine: who waits for messages of a queue, and when each is woken.

As RocketMQ's PullRequestHoldService, without its known weaknesses: a message that came between the read that found
nothing and the pull is not missed (its #7358), a deadline is kept to the tick, and every pull has exactly one answer.
"""

from typing import assert_never

from model import config
from model.clock import Moment
from model.config import NEVER_MS
from model.decisions import AnyDecision, Rejected, Wake, WakeReason
from model.events import Arrival, Cancel, Pull, QueueEvent, Tick
from model.filters import FilterError, ParsedSubscription, matches, parse
from model.held_queue import HeldQueue, Hold
from model.queue import Queue


def step(queue: HeldQueue, event: QueueEvent, moment: Moment, places: int) -> list[AnyDecision]:
    """Apply one event to a queue, in place.

    Args:
        queue: the state before, changed into the state after.
        event: what happened; a `Tick` when only time passed.
        moment: when; `now_ms` is never earlier than in the last call.
        places: how many more pulls the shard as a whole may hold.

    Returns:
        The decisions, in order and without their header.
    """
    now_ms = moment.now_ms
    match event:
        case Pull():
            return _pull(queue, event, now_ms, places)
        case Cancel():
            return _cancel(queue, event, now_ms)
        case Arrival():
            return _arrive(queue, event, now_ms)
        case Tick():
            return _pass_time(queue, now_ms)
        case _:
            assert_never(event)


def _pull(queue: HeldQueue, pull: Pull, now_ms: int, places: int) -> list[AnyDecision]:
    """Answer at once if there is something to read already, else hold; what came before from this client ends.

    A pull whose number is not above the last one of its instance is a repetition, or was overtaken: it is silent.
    """
    instance_id, _, text = pull.request_id.rpartition(":")
    if instance_id != pull.instance_id:
        detail = f"request_id is {pull.request_id!r}; it must begin with the instance, {pull.instance_id!r}"
        return [_refusal(pull, detail)]
    try:
        parse(pull.expression, pull.expression_type)
    except FilterError as error:
        return [_refusal(pull, str(error))]
    who, number = f"{pull.group_id}@{pull.client_id}", int(text)
    life = f"{who} {instance_id}"  # no name has a blank in it
    last = queue.last.pop(life, -1)
    queue.last[life] = max(last, number)
    if number <= last:
        return []
    if len(queue.last) > config.MAX_LAST_PULLS:
        _forget_oldest(queue)
    decisions: list[AnyDecision] = []
    before = queue.holds.pop(who, None)
    if before is not None:
        decisions.append(_wake(queue, before, "superseded", now_ms))
        places += 1
    hold = Hold(
        request_id=pull.request_id,
        group_id=pull.group_id,
        client_id=pull.client_id,
        from_offset=pull.from_offset,
        since_ms=now_ms,
        until_ms=now_ms + pull.timeout_ms,
        expression=pull.expression,
        expression_type=pull.expression_type,
    )
    if queue.next_offset > pull.from_offset:
        decisions.append(_wake(queue, hold, "arrival", now_ms))
    elif places < 1 or len(queue.holds) >= config.MAX_HOLDS_PER_QUEUE:
        decisions.append(_wake(queue, hold, "overflow", now_ms))
    else:
        queue.holds[who] = hold
        queue.due_ms = min(queue.due_ms, hold.until_ms)
    return decisions


def _cancel(queue: HeldQueue, cancel: Cancel, now_ms: int) -> list[AnyDecision]:
    """End a pull whose client does not wait any more; one that is answered already, or unknown, is silent."""
    for who, hold in queue.holds.items():
        if hold.request_id == cancel.request_id:
            del queue.holds[who]
            return [_wake(queue, hold, "cancelled", now_ms)]
    return []


def _arrive(queue: HeldQueue, arrival: Arrival, now_ms: int) -> list[AnyDecision]:
    """Wake whom this arrival concerns: all are taken out, and those whom it does not concern go back in their order.

    It may come twice or late: what it says of the queue's end only counts upwards, unless the queue was truncated.
    """
    if arrival.truncated:
        queue.next_offset = arrival.next_offset
    else:
        queue.next_offset = max(queue.next_offset, arrival.next_offset)
    taken, queue.holds = queue.holds, {}
    decisions: list[AnyDecision] = []
    wants: dict[tuple[str, str], bool] = {}
    for who, hold in taken.items():
        if arrival.truncated:
            decisions.append(_wake(queue, hold, "truncated", now_ms))
            continue
        if arrival.next_offset > hold.from_offset:
            wish = hold.expression, hold.expression_type
            if wish not in wants:  # a thousand clients of a group want the same
                wants[wish] = _wants(_parsed(hold), arrival)
            if wants[wish]:
                decisions.append(_wake(queue, hold, "arrival", now_ms))
                continue
            if hold.skipped_ms < 0:
                hold.skipped_ms = now_ms
                queue.due_ms = min(queue.due_ms, now_ms + config.SKIP_MS)
        queue.holds[who] = hold
    return decisions


def _pass_time(queue: HeldQueue, now_ms: int) -> list[AnyDecision]:
    """Answer whose time is over, and whose offset may move on beyond messages that it did not want."""
    decisions: list[AnyDecision] = []
    for who, hold in list(queue.holds.items()):
        reason: WakeReason | None = None
        if hold.until_ms <= now_ms:
            reason = "timeout"
        elif 0 <= hold.skipped_ms <= now_ms - config.SKIP_MS:
            reason = "skipped"
        if reason is not None:
            del queue.holds[who]
            decisions.append(_wake(queue, hold, reason, now_ms))
    queue.due_ms = min((_due_ms(hold) for hold in queue.holds.values()), default=NEVER_MS)
    return decisions


def _due_ms(hold: Hold) -> int:
    return hold.until_ms if hold.skipped_ms < 0 else min(hold.until_ms, hold.skipped_ms + config.SKIP_MS)


def _parsed(hold: Hold) -> ParsedSubscription:
    return parse(hold.expression, hold.expression_type)


def _wants(subscription: ParsedSubscription, arrival: Arrival) -> bool:
    """Whether a subscription wants the message that arrived; one that says nothing of itself is for everybody."""
    return matches(subscription, arrival.tags_code, arrival.tags, arrival.properties)


def _wake(queue: HeldQueue, hold: Hold, reason: WakeReason, now_ms: int) -> Wake:
    """Answer a pull.  After a truncation it goes back to the queue's new end; else it never goes back."""
    next_offset = queue.next_offset if reason == "truncated" else max(queue.next_offset, hold.from_offset)
    return Wake(
        request_id=hold.request_id,
        group_id=hold.group_id,
        client_id=hold.client_id,
        queue=Queue.of_key(queue.key),
        reason=reason,
        next_offset=next_offset,
        held_ms=now_ms - hold.since_ms,
    )


def _refusal(pull: Pull, detail: str) -> Rejected:
    return Rejected(rule="pull", detail=detail[: config.MAX_DETAIL], group_id=pull.group_id, client_id=pull.client_id)


def _forget_oldest(queue: HeldQueue) -> None:
    """Forget the newest pull of the life that has been silent longest and is not held."""
    for life in queue.last:
        who, _, instance_id = life.partition(" ")
        hold = queue.holds.get(who)
        if hold is None or hold.request_id.rpartition(":")[0] != instance_id:
            del queue.last[life]
            return
