"""The pull machine: it holds pulls of a queue, and wakes each of them once.

It works as RocketMQ's PullRequestHoldService, without three of its weaknesses: a message that arrives between the read
that found nothing and the pull is not missed (its #7358), a deadline is kept to the tick, and every pull has exactly
one answer.

A queue is known from its first pull until `REMEMBER_MS` after the last answer; arrivals of other queues are ignored.
The first pull is answered at once, because the end of an unknown queue is not known. A client that reads again after
that answer misses no message.
"""

from hashlib import sha256
from itertools import islice, takewhile
from typing import assert_never

from wakeroll_model import config
from wakeroll_model.config import DEFAULT_LIMITS, NEVER_MS, Limits
from wakeroll_model.decisions import AnyDecision, Rejected, Wake, WakeReason
from wakeroll_model.events import Arrival, Cancel, Pull, QueueEvent, Tick
from wakeroll_model.filters import FilterError, parse
from wakeroll_model.held_queue import Answered, HeldQueue
from wakeroll_model.shard_clock import Moment
from wakeroll_model.shard_load import Load
from wakeroll_model.waiting_pulls import Hold, PullFilter


def step(
    queue: HeldQueue,
    event: QueueEvent,
    moment: Moment,
    load: Load,
    limits: Limits = DEFAULT_LIMITS,
) -> list[AnyDecision]:
    """Apply one event to a queue, in place.

    Args:
        queue: the state before; changed into the state after.
        event: the event; a `Tick` if only time has passed.
        moment: the time of the event; `now_ms` is never earlier than in the last call.
        load: the load of the whole shard, with this queue.
        limits: the limits of the deployment.

    Returns:
        The decisions, in order and without their header.
    """
    now_ms, lives = moment.now_ms, len(queue.answered)
    decisions: list[AnyDecision]
    match event:
        case Pull():
            decisions = _pull(queue, event, now_ms, _room(queue, load, limits))
        case Cancel():
            decisions = _cancel(queue, event, now_ms)
        case Arrival():
            decisions = _arrive(queue, event, now_ms)
        case Tick():
            decisions = _pass_time(queue, now_ms)
        case _:
            assert_never(event)
    if len(queue.answered) > lives:
        _forget_lives(queue, min(limits.max_lives_per_queue, limits.max_lives_per_shard - load.lives + lives))
    queue.due_ms = min(queue.waiting.next_due_ms(), queue.forget_ms)
    return decisions


def _pull(queue: HeldQueue, pull: Pull, now_ms: int, bounds: Load) -> list[AnyDecision]:
    """Answer a pull at once if there may be messages to read, else hold it; the client's earlier pull ends.

    A pull whose number is not above the last one of its instance is a repetition, or was overtaken: it gets no answer.
    """
    instance_id, _, number = pull.request_id.rpartition(":")
    if instance_id != pull.instance_id:
        detail = f"request_id is {pull.request_id!r}; it must begin with the instance_id {pull.instance_id!r}"
        return [_refusal(pull, detail)]
    life = _life(pull)
    held = queue.waiting.of_client(pull.group_id, pull.client_id)
    if int(number) <= _newest(queue, life, held):
        return []
    try:
        wanted = parse(pull.expression, pull.expression_type)
    except FilterError as error:
        return [_refusal(pull, str(error))]
    hold = _hold_of(pull, life, now_ms)
    if queue.is_blank:
        if bounds.entities < 1 or bounds.lives < 1:
            return [_answer(queue, hold, "overflow", now_ms)]  # and store nothing
        return [_wake(queue, hold, "unknown", now_ms)]
    decisions: list[AnyDecision] = []
    if held is not None:
        decisions.append(_wake(queue, queue.waiting.remove(held), "superseded", now_ms))
    pull_filter = PullFilter(pull.expression, pull.expression_type)
    if queue.end.reported_or_hinted(now_ms) > pull.from_offset:
        decisions.append(_wake(queue, hold, "arrival", now_ms))
    elif not _has_room(queue, pull_filter, bounds):
        decisions.append(_wake(queue, hold, "overflow", now_ms))
    else:
        queue.answered.pop(life, None)
        queue.waiting.add(queue.pulls, hold, pull_filter, wanted)
        queue.pulls += 1
    return decisions


def _cancel(queue: HeldQueue, cancel: Cancel, now_ms: int) -> list[AnyDecision]:
    """End a pull that its client cancels; ignore one that is answered already or unknown."""
    number = queue.waiting.of_client(cancel.group_id, cancel.client_id)
    if number is None or queue.holds[number].request_id != cancel.request_id:
        return []
    return [_wake(queue, queue.waiting.remove(number), "cancelled", now_ms)]


def _arrive(queue: HeldQueue, arrival: Arrival, now_ms: int) -> list[AnyDecision]:
    """Wake the holds that match an arrival, and those beyond the end that a closed window of reports confirms.

    An arrival that names an observer is its report; any other one is a hint.
    """
    if queue.is_blank:
        return []
    closed = None
    if arrival.observer:
        closed = queue.end.report(arrival.next_offset, now_ms)
    else:
        queue.end.hint(arrival.next_offset, now_ms)
    waiting = queue.waiting
    woken: dict[int, tuple[Hold, WakeReason, int | None]] = {}
    for same_filter in waiting.by_filter:
        if closed is not None:
            for number in same_filter.above(closed.largest):
                hold = queue.holds[number]
                if closed.contradicts(hold.from_offset, hold.since_ms):
                    woken[number] = waiting.remove(number), "truncated", closed.smallest
        if same_filter.has_below(arrival.next_offset):
            if same_filter.wants(arrival):
                for number in same_filter.take_below(arrival.next_offset):
                    woken[number] = waiting.drop(number), "arrival", None
            else:
                waiting.skip(same_filter, arrival.next_offset, now_ms)
    return [_wake(queue, hold, reason, now_ms, to) for _, (hold, reason, to) in sorted(woken.items())]


def _pass_time(queue: HeldQueue, now_ms: int) -> list[AnyDecision]:
    """Answer the pulls whose timeout has passed, and those that skipped messages and should advance their offset."""
    decisions: list[AnyDecision] = []
    for number in queue.waiting.due(now_ms):
        hold = queue.waiting.remove(number)
        decisions.append(_wake(queue, hold, "timeout" if hold.until_ms <= now_ms else "skipped", now_ms))
    if queue.forget_ms <= now_ms:
        old = takewhile(lambda life: queue.answered[life].at_ms + config.REMEMBER_MS <= now_ms, queue.answered)
        for life in list(old):
            del queue.answered[life]
        oldest = next(iter(queue.answered.values()), None)
        queue.forget_ms = NEVER_MS if oldest is None else oldest.at_ms + config.REMEMBER_MS
    return decisions


def _room(queue: HeldQueue, load: Load, limits: Limits) -> Load:
    """Return the maximum load of a queue, by its own limits and those of the shard."""
    elsewhere = load - queue.load
    return Load(
        entities=limits.max_pulled_queues - elsewhere.entities,
        pulls=min(limits.max_holds_per_queue, limits.max_holds_per_shard - elsewhere.pulls),
        lives=limits.max_lives_per_shard - elsewhere.lives,
        filters=min(limits.max_filters_per_queue, limits.max_filters_per_shard - elsewhere.filters),
    )


def _has_room(queue: HeldQueue, pull_filter: PullFilter, bounds: Load) -> bool:
    """Return whether one more pull may be held."""
    filters = queue.waiting.filters + queue.waiting.costs(pull_filter)
    return len(queue.holds) < bounds.pulls and filters <= bounds.filters


def _hold_of(pull: Pull, life: bytes, now_ms: int) -> Hold:
    return Hold(
        request_id=pull.request_id,
        group_id=pull.group_id,
        client_id=pull.client_id,
        from_offset=pull.from_offset,
        since_ms=now_ms,
        until_ms=now_ms + pull.timeout_ms,
        life=life,
    )


def _wake(queue: HeldQueue, hold: Hold, reason: WakeReason, now_ms: int, back_to: int | None = None) -> Wake:
    """Return the answer to a pull that is not held any more, and remember the answer."""
    if not queue.answered:
        queue.forget_ms = now_ms + config.REMEMBER_MS
    queue.answered.pop(hold.life, None)
    queue.answered[hold.life] = Answered(hold.number, now_ms)
    return _answer(queue, hold, reason, now_ms, back_to)


def _answer(queue: HeldQueue, hold: Hold, reason: WakeReason, now_ms: int, back_to: int | None = None) -> Wake:
    """Return the answer to a pull; `back_to`: lowest offset of a message that its client may not have received."""
    next_offset = queue.end.end_for(hold.from_offset, now_ms) if back_to is None else back_to
    return Wake(
        request_id=hold.request_id,
        group_id=hold.group_id,
        client_id=hold.client_id,
        queue=queue.queue,
        reason=reason,
        next_offset=next_offset,
        held_ms=now_ms - hold.since_ms,
    )


def _newest(queue: HeldQueue, life: bytes, held: int | None) -> int:
    """Return the number of an instance's newest pull, as far as it is remembered; `held`: the client's held pull."""
    if held is not None and queue.holds[held].life == life:
        return queue.holds[held].number
    answered = queue.answered.get(life)
    return -1 if answered is None else answered.number


def _life(pull: Pull) -> bytes:
    """Return the key of an instance in the state; its size does not depend on the length of names."""
    return sha256(f"{pull.group_id} {pull.client_id} {pull.instance_id}".encode()).digest()[:16]  # names have no blanks


def _forget_lives(queue: HeldQueue, most: int) -> None:
    """Forget the oldest answers, so that at most `most` instances are remembered."""
    for life in list(islice(queue.answered, max(len(queue.answered) - most, 0))):
        del queue.answered[life]


def _refusal(pull: Pull, detail: str) -> Rejected:
    return Rejected(rule="pull", detail=detail[: config.MAX_DETAIL], group_id=pull.group_id, client_id=pull.client_id)
