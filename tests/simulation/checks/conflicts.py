"""Is it said when members are at odds, or two processes use one name?"""

from collections import defaultdict
from collections.abc import Iterator

from checks.evidence import Broken, Evidence, Page
from checks.roll import Gathering, Roll
from model.config import REPLACEMENTS, REPLACEMENTS_MS
from model.decisions import Membership
from model.events import Heartbeat

RULE = "not reported"


def check(evidence: Evidence) -> Iterator[Broken]:
    """8. Two processes that fight for a name, a replaced one that goes on, and other wishes than the oldest's."""
    for book in evidence.pages:
        yield from _duplicates(book)
        yield from _differences(book)


def _duplicates(book: list[Page]) -> Iterator[Broken]:
    """8a. A client that is replaced three times in five minutes is reported; so is a life that goes on all the same."""
    roll, replaced, intruded = Roll(), defaultdict[tuple[str, str], list[int]](list), set[str]()
    for page in book:
        event = page.event
        said = " ".join(
            one.detail
            for one in page.decisions
            if isinstance(one, Membership) and one.change == "conflict" and "duplicate id" in one.detail
        )
        for decision in page.decisions:
            if not isinstance(decision, Membership):
                continue
            times = replaced[decision.group_id, decision.client_id]
            if decision.change in ("joined", "left", "expired"):
                times.clear()
            elif decision.change == "replaced":
                times.append(page.clock_ms)
                times[:] = [at_ms for at_ms in times if at_ms > page.clock_ms - REPLACEMENTS_MS]
                if (len(times) == REPLACEMENTS) != ("replaced" in said):
                    says = f"{decision.client_id} is replaced {len(times)} times, and it is said: {said or 'nothing'}"
                    yield Broken(RULE, page.at_ms, says, None, decision.group_id)
                if len(times) == REPLACEMENTS:
                    times.clear()
        if isinstance(event, Heartbeat):
            group = roll.group(event.group_id)
            member = group.members.get(event.client_id)
            if member is not None and group.is_past(event.client_id, event.instance_id):
                late = page.clock_ms - member.since_ms > group.number("heartbeat_ms")
                if (late and member.life not in intruded) != ("goes on" in said):
                    says = f"{event.instance_id} goes on beside {member.life}, and it is said: {said or 'nothing'}"
                    yield Broken(RULE, page.at_ms, says, None, event.group_id)
                if late:
                    intruded.add(member.life)
        roll.take(page)


def _differences(book: list[Page]) -> Iterator[Broken]:
    """8b. In the end it is on record who wants other topics, or another strategy, than the oldest member."""
    roll, noted = Roll(), dict[tuple[str, str], str]()
    for page in book:
        roll.take(page)
        for decision in page.decisions:
            if isinstance(decision, Membership) and "duplicate id" not in decision.detail:
                if decision.change in ("conflict", "agreed"):
                    noted[decision.group_id, decision.client_id] = decision.detail
                elif decision.change in ("left", "expired"):
                    noted.pop((decision.group_id, decision.client_id), None)
    for group_id, group in roll.groups.items():
        for client_id in group.members:
            detail = noted.get((group_id, client_id), "")
            for word, differs in _odds(group, client_id):
                if differs != (word in detail):
                    says = f"{client_id} has {'another' if differs else 'the same'} {word}; on record is {detail!r}"
                    yield Broken(RULE, book[-1].at_ms, says, None, group_id)


def _odds(group: Gathering, client_id: str) -> Iterator[tuple[str, bool]]:
    assert group.oldest is not None
    mine, oldest = group.members[client_id], group.oldest
    yield "strategy", group.settings["strategy"] is None and mine.said.strategy != oldest.said.strategy
    yield "topics", mine.topics != oldest.topics
