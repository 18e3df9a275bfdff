"""Is everybody told what it must know, and does everybody answer?"""

from collections.abc import Iterator, Sequence

from tests.support.simulation.frame.broken import Broken
from tests.support.simulation.groups.checks.evidence import Evidence, Page
from tests.support.simulation.groups.checks.roll import Roll
from wakeroll_model.config import ERA_EPOCHS
from wakeroll_model.decisions import (
    BY_THE_LOG,
    WITHOUT_TARGET,
    AnyDecision,
    Assignment,
    Handover,
    Membership,
    Offset,
    Rebalance,
)
from wakeroll_model.events import Heartbeat, Matches

RULE = "not told"


def check(evidence: Evidence) -> Iterator[Broken]:
    """4e. Who gets a queue, or has it reset, is told at once; who is behind, again; and who has drained says so."""
    for book in evidence.books:
        roll = Roll(book)
        for page in book.pages:
            behind, matched = _who_is_behind(roll, page), _matched(roll, page)
            roll.take(page)
            told: dict[tuple[str, str], list[Assignment]] = {}
            for one in page.decisions:
                if isinstance(one, Assignment):
                    told.setdefault((one.group_id, one.client_id), []).append(one)
            wrong = [*_wrong_telling(roll, page, told), *(_wrong_pauses(roll, page) if book.era.number == 1 else ())]
            wrong += _wrong_matches(roll, page, matched)
            for group_id, says in wrong:
                yield Broken(RULE, page.at_ms, says, None, group_id)
            if behind is not None and behind not in told and behind[1] in roll.group(behind[0]).members:
                yield Broken(RULE, page.at_ms, f"{behind[1]} shows an old epoch and is not told again", None, behind[0])
    for at_ms, group_id, queue, life in evidence.seen.not_reported:
        yield Broken(RULE, at_ms, f"{life} has drained {queue} and does not say so", queue, group_id)


def _who_is_behind(roll: Roll, page: Page) -> tuple[str, str] | None:
    """Return whose heartbeat shows an older assignment than the last one that it was sent with the settings of now."""
    beat = page.event
    if not isinstance(beat, Heartbeat):
        return None
    group = roll.group(beat.group_id)
    member = group.members.get(beat.client_id)
    if member is None or member.told is None or member.life != beat.instance_id:
        return None
    is_behind = member.said.epoch <= beat.epoch < member.told.epoch and member.told_at > group.configured_at
    return (beat.group_id, beat.client_id) if is_behind else None


def _matched(roll: Roll, page: Page) -> set[str] | None:
    """Return the topics of the pattern that a page is about; None if it has none yet."""
    return roll.group(page.event.group_id).matches.get(page.event.pattern) if isinstance(page.event, Matches) else None


def _wrong_matches(roll: Roll, page: Page, before: set[str] | None) -> Iterator[tuple[str, str]]:
    """It is on record which topics a pattern matches now, once, and only if that has changed."""
    if not isinstance(page.event, Matches):
        return
    group_id, pattern = page.event.group_id, page.event.pattern
    group, said = roll.group(group_id), [one for one in page.decisions if isinstance(one, Membership)]
    is_used = any(member.said.pattern == pattern for member in group.members.values())
    is_due = is_used and group.matches[pattern] != before
    if sum(one.change == "matched" for one in said) != is_due:
        yield group_id, f"{pattern} matched {before}, and now {group.matches.get(pattern)}; on record: {said}"


def _wrong_pauses(roll: Roll, page: Page) -> Iterator[tuple[str, str]]:
    """Each assignment says whether the group is paused; with the state, a pause may be lost."""
    for decision in page.decisions:
        if isinstance(decision, Assignment):
            is_paused = roll.group(decision.group_id).is_paused
            if (decision.paused is True) != is_paused:
                yield decision.group_id, f"{decision.client_id} is told paused: {decision.paused}; it is {is_paused}"


def _wrong_telling(roll: Roll, page: Page, told: dict[tuple[str, str], list[Assignment]]) -> Iterator[tuple[str, str]]:
    for number, decision in enumerate(page.decisions):
        match decision:
            case Assignment(group_id=group_id, client_id=client_id):
                both = {one.queue for one in decision.queues} & set(decision.revoke)
                if both:
                    yield group_id, f"{client_id} is given and must give up {min(both)}"
            case Handover(group_id=group_id, to=str(to)) if _misses_its_queue(
                decision, told.get((group_id, to), []), page.decisions[number + 1 :]
            ):
                yield group_id, f"{to} gets {decision.queue} in epoch {decision.epoch} and is not told"
            case Offset(group_id=group_id) if _misses_its_reset(roll, decision, told, page):
                yield group_id, f"{decision.client_id} is not told that {decision.queue} is reset"
            case Rebalance(group_id=group_id, trigger=trigger) if trigger not in WITHOUT_TARGET:
                joins = [one for one in page.decisions[number:] if isinstance(one, Membership)]
                later = {one.instance_id for one in joins if one.change == "joined"}  # its client was kicked before
                for client_id, member in roll.group(group_id).members.items():
                    if member.told is None and member.life not in later:
                        yield group_id, f"{client_id} joined before epoch {decision.epoch} and is told nothing"
            case Membership(group_id=group_id, client_id=client_id, change="joined"):
                if roll.group(group_id).is_broadcasting and (group_id, client_id) not in told:
                    yield group_id, f"{client_id} comes to a broadcasting group and is told nothing"
            case _:
                pass


def _misses_its_queue(handover: Handover, told: list[Assignment], later: Sequence[AnyDecision]) -> bool:
    """Whether who gets a queue is not told so at once - nor that a newer target takes it back.

    A slice that waited for a member that expires is assigned by the old target, and the new one in the same moment may
    give it to somebody else, who alone is told.

    What is claimed after a loss of state counts as given in 0.  Who claims what it already has is told nothing new.
    """
    if handover.how == "first" and handover.epoch >= ERA_EPOCHS:
        return False
    is_given = any(
        (one.queue, one.assigned_epoch) == (handover.queue, handover.epoch) for each in told for one in each.queues
    )
    if any(isinstance(one, Handover) and (one.queue, one.from_) == (handover.queue, handover.to) for one in later):
        return False
    return not is_given and not any(handover.queue in each.revoke for each in told)


def _misses_its_reset(roll: Roll, offset: Offset, told: dict[tuple[str, str], list[Assignment]], page: Page) -> bool:
    """Whether the owner of a queue that was reset is not given it again; one that must give it up need not be."""
    if offset.reset_by in (None, BY_THE_LOG) or not offset.client_id or offset.mode == "broadcasting":
        return False
    if any(isinstance(one, Handover) and one.queue == offset.queue for one in page.decisions):
        return False  # it goes to somebody else in the same moment
    newest = roll.group(offset.group_id).members[offset.client_id].told
    if newest is not None and offset.queue in newest.revoke:
        return False
    given = [
        (one.queue, one.assigned_epoch)
        for each in told.get((offset.group_id, offset.client_id), [])
        for one in each.queues
    ]
    return (offset.queue, offset.epoch) not in given
