"""Is a queue ever read by two?  Judged by what applications had in their hands."""

from collections.abc import Iterator

from tests.support.simulation.frame.broken import Broken
from tests.support.simulation.groups.checks.evidence import Chain, Evidence
from tests.support.simulation.groups.seen import Handling
from wakeroll_model.decisions import Handover

RULE = "two owners"


def check(evidence: Evidence) -> Iterator[Broken]:
    """1. A queue is never handed out by two lives at once, but after a timeout, in an eager group, or by a deaf one.

    In broadcasting every client has queues of its own, and the same holds of them.
    """
    for at_ms, group_id, queue, life in evidence.seen.handed_after_take:
        yield Broken(RULE, at_ms, f"{life} hands out {queue} after it was taken", queue, group_id)
    for (scope, queue), handlings in evidence.handlings.items():
        if not evidence.plan.broadcasts(scope.partition("/")[0]):
            for at_ms, says in _overlaps(evidence, handlings, evidence.chains[scope, queue]):
                yield Broken(RULE, at_ms, says, queue, scope)
    yield from _timeouts_in_order(evidence)
    yield from _given_twice(evidence)


def _overlaps(evidence: Evidence, handlings: list[Handling], chain: Chain) -> Iterator[tuple[int, str]]:
    """Whoever handed out last has it.

    A giving that somebody else has taken over must hand out nothing more; and unless the old life was out (expired), it
    must have nothing of the queue in its hands, but what it had when it gave up.
    """
    eager = ("eager", "removed") if evidence.was_eager(handlings[0].scope) else ()
    past: set[tuple[str, int]] = set()
    holder = handlings[0]
    for now in handlings:
        if (now.life, now.given) in past or chain.is_before(now, holder):
            how = chain.end(now)
            is_late = how in ("timeout", *eager) or evidence.is_deaf(now.scope, now.life, now.from_ms)
            if now.life == holder.life or not is_late:
                yield now.from_ms, f"{now.life} hands out after {holder.life} began ({how or 'never freed'})"
                past.discard((now.life, now.given))
            continue
        if (now.life, now.given) != (holder.life, holder.given):
            past.add((holder.life, holder.given))
            how = chain.end(holder) or chain.end(now)
            in_hands = holder.to_ms < 0 and holder.lost_ms < 0
            done_ms = evidence.world.now_ms + 1 if in_hands else max(holder.to_ms, holder.lost_ms)
            # Who gives up comes back at once, and unregisters its former life; what was handed out is not taken back.
            gave_up = evidence.gave_up_ms.get(holder.life, now.from_ms + 1) <= now.from_ms
            is_over = gave_up or _is_silent(evidence, holder, now.from_ms) or how in ("timeout", "expired", *eager)
            excused = now.life != holder.life and is_over
            if done_ms > now.from_ms and not excused:
                yield now.from_ms, f"{now.life} gets a message while {holder.life} has one ({how})"
        holder = now


def _is_silent(evidence: Evidence, holder: Handling, at_ms: int) -> bool:
    """Whether a life that a loss of state made unknown was silent for longer than any session."""
    group_id = holder.scope.partition("/")[0]
    beats = [page.at_ms for page in evidence.beats[group_id, holder.life] if page.at_ms <= at_ms]
    return evidence.has_eras(group_id) and at_ms - max(beats, default=0) > evidence.plan.longest_session_ms


def _timeouts_in_order(evidence: Evidence) -> Iterator[Broken]:
    """An ordered group waits for an owner that lives, however slow it is."""
    for decision in evidence.decisions:
        if evidence.plan.orderly and isinstance(decision, Handover) and decision.how == "timeout":
            says = f"{decision.queue} of an ordered group is taken from {decision.from_} by a timeout"
            yield Broken(RULE, evidence.at_ms(decision), says, decision.queue, decision.group_id)


def _given_twice(evidence: Evidence) -> Iterator[Broken]:
    """A life is given a queue once an epoch: what was given up comes back in a new one.

    Not so in broadcasting, where who subscribes a topic again has its queues in the same epoch.
    """
    given = set()
    for one in evidence.seen.givings:
        key = (one.life, one.queue, one.given)
        if key in given and not evidence.plan.broadcasts(one.scope.partition("/")[0]):
            yield Broken(RULE, one.at_ms, f"{one.life} is given {one.queue} twice", one.queue, one.scope)
        given.add(key)
