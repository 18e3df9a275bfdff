"""Is it said when members are at odds, or two processes use one name?"""

from collections.abc import Iterator

from tests.support.simulation.frame.broken import Broken
from tests.support.simulation.groups.checks.evidence import Book, Evidence
from tests.support.simulation.groups.checks.roll import Gathering, Roll
from wakeroll_model.config import DUPLICATE_EVERY_MS
from wakeroll_model.decisions import Fenced, Membership

RULE = "not reported"


def check(evidence: Evidence) -> Iterator[Broken]:
    """8. Two processes that live under one name, and other wishes than the oldest's."""
    for book in evidence.books:
        yield from _duplicates(book)
    for book in evidence.last_books:
        yield from _differences(book)


def _duplicates(book: Book) -> Iterator[Broken]:
    """8a. Who is out as a duplicate is reported, as long as the other one lives once in five minutes."""
    reported: dict[tuple[str, str, str], int] = {}
    out_before = book.ended | book.heard
    for page in book.pages:
        said = [one for one in page.decisions if isinstance(one, Membership) and "duplicate id" in one.detail]
        for out in page.decisions:
            if not isinstance(out, Fenced) or out.reason != "duplicate":
                continue
            key = out.group_id, out.client_id, out.by
            is_known = page.clock_ms - reported.get(key, -DUPLICATE_EVERY_MS) < DUPLICATE_EVERY_MS
            is_new = (out.client_id, out.instance_id) not in out_before
            out_before.add((out.client_id, out.instance_id))
            if is_new and not said and not is_known:
                yield Broken(RULE, page.at_ms, f"{out.instance_id} is a duplicate of {out.by}", None, out.group_id)
            if said and is_known:
                yield Broken(RULE, page.at_ms, f"{out.by} has a duplicate, said too often", None, out.group_id)
            if said:
                reported[key] = page.clock_ms


def _differences(book: Book) -> Iterator[Broken]:
    """8b. In the end it is on record who wants other topics, or another strategy, than the oldest member."""
    roll, noted = Roll(book), dict[tuple[str, str], str]()
    for page in book.pages:
        roll.take(page)
        for decision in page.decisions:
            if isinstance(decision, Membership) and "duplicate id" not in decision.detail:
                if decision.change in ("conflict", "agreed"):
                    noted[decision.group_id, decision.client_id] = decision.detail
                elif decision.change in ("left", "died", "expired", "kicked"):
                    noted.pop((decision.group_id, decision.client_id), None)
    for group_id, group in roll.groups.items():
        for client_id in group.members:
            detail = noted.get((group_id, client_id), "")
            for word, differs in _odds(group, client_id):
                if differs != (word in detail):
                    says = f"{client_id} has {'another' if differs else 'the same'} {word}; on record is {detail!r}"
                    yield Broken(RULE, book.pages[-1].at_ms, says, None, group_id)


def _odds(group: Gathering, client_id: str) -> Iterator[tuple[str, bool]]:
    assert group.oldest is not None
    mine, oldest = group.members[client_id], group.oldest
    yield "strategy", group.settings["strategy"] is None and mine.said.strategy != oldest.said.strategy
    yield "topics", mine.topics != oldest.topics
