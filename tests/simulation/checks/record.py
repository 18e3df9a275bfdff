"""Is the record whole: every event answered, and the same decisions whoever asks again?"""

from collections.abc import Iterator

from checks.evidence import Broken, Evidence, Page
from model.config import MAX_DETAIL
from model.decisions import Offset, Rejected
from model.events import Commit, Heartbeat, Reset
from model.queue import Queue
from model.replay import encode_decision, replay
from world.strategies import careless


def check(evidence: Evidence) -> Iterator[Broken]:
    """7. The same records give the same decisions, and none is without an answer."""
    yield from _not_replayable(evidence)
    for book in evidence.pages:
        yield from _unaccounted(evidence, book)


def _not_replayable(evidence: Evidence) -> Iterator[Broken]:
    """7a. Repeated, cut into other batches, or all at once."""
    for coordinator in evidence.world.coordinators:
        records = evidence.world.broker.log[coordinator.partition]
        with careless():
            again = [encode_decision(decision) for decision in replay(records, len(evidence.world.coordinators))]
        if again != coordinator.encoded:
            pairs = enumerate(zip(again, coordinator.encoded, strict=False))
            number = next((n for n, pair in pairs if pair[0] != pair[1]), -1)
            yield Broken("not replayable", 0, f"decision {number + 1} of partition {coordinator.partition} differs")
        for says in coordinator.differing:
            yield Broken("not replayable", 0, f"a repeated batch decides otherwise: {says}")


def _unaccounted(evidence: Evidence, book: list[Page]) -> Iterator[Broken]:
    """7b. What is no event is rejected, once; every queue of a commit advances, or it is said why not.

    Of events, only a commit, a reset and a heartbeat in another mode may be rejected.
    """
    newest: dict[tuple[str, Queue], int] = {}
    for page in book:
        rejected = [one for one in page.decisions if isinstance(one, Rejected)]
        advanced = [one for one in page.decisions if isinstance(one, Offset)]
        match page.event:
            case None:
                if len(rejected) != 1:
                    yield Broken("unaccounted", page.at_ms, f"what is no event at {page.offset} is not rejected")
            case Commit() as commit:
                details = " ".join(one.detail for one in rejected)
                answered = {one.queue for one in advanced}
                for entry in commit.offsets:
                    scope = evidence.plan.scope(commit.group_id, commit.client_id)
                    refused = f"{entry.queue} " in details or len(details) >= MAX_DETAIL
                    is_news = entry.offset > newest.get((scope, entry.queue), -1)
                    if is_news and entry.queue not in answered and not refused:
                        says = f"the commit of {entry.queue} by {commit.instance_id} has no answer"
                        yield Broken("unaccounted", page.at_ms, says, entry.queue, commit.group_id)
            case _:
                rules = {Reset: ["reset"], Heartbeat: ["mode"]}.get(type(page.event), [])
                for one in rejected:
                    if one.rule not in rules:
                        yield Broken("unaccounted", page.at_ms, f"{page.event} is rejected: {one.detail}")
        for offset in advanced:
            newest[evidence.plan.scope(offset.group_id, offset.client_id), offset.queue] = offset.offset
