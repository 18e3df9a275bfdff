"""Does a queue go only where it may, and stay only where it should?"""

from collections.abc import Iterator

from tests.support.simulation.frame.broken import Broken
from tests.support.simulation.groups.checks.evidence import Evidence, Page
from tests.support.simulation.groups.checks.roll import Gathering, Roll
from tests.support.simulation.groups.known_strategies import UNKNOWN
from wakeroll_model.decisions import WITHOUT_TARGET, Handover, Rebalance
from wakeroll_model.events import Heartbeat, Route
from wakeroll_model.queue import Queue

RULE = "wrong owner"


def check(evidence: Evidence) -> Iterator[Broken]:
    """6b. A queue goes to members who subscribe its topic; what is gone is asked back, and nothing without a plan."""
    for book in evidence.books:
        roll, routed = Roll(book), {one.topic: {queue.queue for queue in one.queues} for one in book.known(Route)}
        for page in book.pages:
            if isinstance(page.event, Route):
                routed[page.event.topic] = {one.queue for one in page.event.queues}
            asked = _asked_back(roll)
            roll.take(page)
            for decision in page.decisions:
                match decision:
                    case Handover(group_id=group_id, queue=queue, to=str(client_id)):
                        claims = page.event.owned if isinstance(page.event, Heartbeat) and book.era.number > 1 else []
                        wrong = _wrong_owner(roll.group(group_id), client_id, queue, queue in claims)
                    case Rebalance(group_id=group_id, strategy=strategy) if decision.trigger not in WITHOUT_TARGET:
                        wrong = _wrong_keeping(roll.group(group_id), strategy, routed, asked.get(group_id, set()))
                    case _:
                        continue
                yield from _broken(page, group_id, wrong)


def _broken(page: Page, group_id: str, wrong: Iterator[tuple[Queue, str]]) -> Iterator[Broken]:
    return (Broken(RULE, page.at_ms, says, queue, group_id) for queue, says in wrong)


def _asked_back(roll: Roll) -> dict[str, set[Queue]]:
    """Return what the members of each group have been told to give up."""
    return {
        group_id: {queue for member in group.members.values() if member.told for queue in member.told.revoke}
        for group_id, group in roll.groups.items()
    }


def _wrong_owner(group: Gathering, client_id: str, queue: Queue, is_claimed: bool) -> Iterator[tuple[Queue, str]]:
    member = group.members.get(client_id)
    if member is None:
        yield queue, f"{queue} goes to {client_id}, who is not in the group"
    elif queue.topic not in member.topics and not is_claimed:  # after a loss of state it may drain what it claims
        yield queue, f"{queue} goes to {client_id}, who does not subscribe {queue.topic}"


def _wrong_keeping(
    group: Gathering, strategy: str, routed: dict[str, set[Queue]], asked: set[Queue]
) -> Iterator[tuple[Queue, str]]:
    """Who has a queue that is gone must give it up; where a strategy fails, nobody must give up anything else."""
    for queue, client_id in group.owners.items():
        member = group.members[client_id]
        is_there = queue.whole in routed.get(queue.topic, {queue.whole})
        must_give_up = member.told is not None and queue in member.told.revoke
        if not is_there and not must_give_up:
            yield queue, f"{queue} is gone, and {client_id} keeps it"
        is_new = must_give_up and queue not in asked
        is_new = is_new and client_id not in group.leaving
        is_new = is_new and queue.slices == group.slices.get(queue.topic, 1)
        if strategy == UNKNOWN and is_new and is_there and queue.topic in member.topics:
            yield queue, f"{client_id} must give up {queue}, though {strategy} fails"
