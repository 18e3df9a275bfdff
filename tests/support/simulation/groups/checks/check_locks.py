"""Are locks with the owners of their queues, and with nobody else?"""

from collections.abc import Iterator

from tests.support.simulation.frame.broken import Broken
from tests.support.simulation.groups.checks.evidence import Evidence, Page
from tests.support.simulation.groups.checks.roll import Roll
from wakeroll_model.config import LOCK_MS, SLACK_MS
from wakeroll_model.decisions import Handover, LockAnswer
from wakeroll_model.events import Lock, Unlock
from wakeroll_model.queue import Queue

RULE = "locks"

Held = dict[tuple[str, Queue], tuple[str, Page]]
"""(group, queue) -> who has the lock, and the page that granted it last."""


def check(evidence: Evidence) -> Iterator[Broken]:
    """9. A lock is its owner's, ends a minute after it was granted last, and in any case with the ownership."""
    for book in evidence.books:
        roll, held = Roll(book), Held()
        for page in book.pages:
            if isinstance(page.event, Lock | Unlock):
                for queue, says in _wrong_answers(roll, page, page.event, held):
                    yield Broken(RULE, page.at_ms, says, queue, page.event.group_id)
            for group_id, queue, says in _wrong_ends(evidence, page, held):
                yield Broken(RULE, page.at_ms, says, queue, group_id)
            roll.take(page)


def _wrong_answers(roll: Roll, page: Page, event: Lock | Unlock, held: Held) -> Iterator[tuple[Queue, str]]:
    """A lock goes to the owner that keeps its queue, in its present life; an unlock is its holder's."""
    answers = {one.queue: one for one in page.decisions if isinstance(one, LockAnswer)}
    group = roll.group(event.group_id)
    member = group.members.get(event.client_id)
    for queue in sorted(set(event.queues)):
        key = (event.group_id, queue)
        owns = group.owners.get(queue) == event.client_id and member is not None and member.life == event.instance_id
        if isinstance(event, Unlock):
            right = "unlocked" if owns and held.get(key, ("",))[0] == event.client_id else "refused"
        else:
            told = member.told if member is not None else None  # who claims a queue after a loss was told nothing yet
            keeps = owns and (told is None or queue not in told.revoke)
            right = "granted" if keeps else "refused"
        outcome = answers[queue].outcome if queue in answers else "no answer"
        if outcome != right:
            yield queue, f"{event.client_id} asks to {type(event).__name__.lower()} {queue}: {outcome}, not {right}"
        if outcome == "granted":
            held[key] = event.client_id, page
    if len(answers) != len(set(event.queues)):
        yield event.queues[0], f"{len(set(event.queues))} queues, {len(answers)} answers"


def _wrong_ends(evidence: Evidence, page: Page, held: Held) -> Iterator[tuple[str, Queue, str]]:
    for decision in page.decisions:
        if isinstance(decision, LockAnswer) and decision.outcome in ("expired", "unlocked"):
            client_id, granted = held.pop((decision.group_id, decision.queue), ("", page))
            if client_id != decision.client_id:
                yield decision.group_id, decision.queue, f"the lock of {decision.client_id} ends; it is {client_id}'s"
            elif decision.outcome == "expired" and (counted := _counted_ms(evidence, granted, page)) < LOCK_MS:
                yield decision.group_id, decision.queue, f"the lock of {client_id} expires after {counted} ms"
        elif isinstance(decision, Handover) and (decision.group_id, decision.queue) in held:
            client_id, _ = held.pop((decision.group_id, decision.queue))
            yield decision.group_id, decision.queue, f"it goes to {decision.to}, and {client_id} has its lock"
    if page.is_tick:
        for (group_id, queue), (client_id, granted) in list(held.items()):
            if page.clock_ms >= granted.clock_ms + LOCK_MS:
                del held[group_id, queue]
                yield group_id, queue, f"the lock of {client_id} does not expire"


def _counted_ms(evidence: Evidence, granted: Page, page: Page) -> int:
    """Return how long a lock was held, as far as the time counts; two ticks may be a little too near."""
    return page.at_ms - granted.at_ms - evidence.dark_ms(granted.at_ms, page.at_ms) + SLACK_MS + 100
