"""Is the record whole: every event answered, and the same decisions whoever asks again?"""

from collections.abc import Iterator

from tests.support.control_log import TOPIC
from tests.support.simulation.frame.broken import Broken
from tests.support.simulation.groups.checks.evidence import Book, Evidence, Page
from tests.support.simulation.groups.known_strategies import careless
from wakeroll_model import slices
from wakeroll_model.config import MAX_DETAIL
from wakeroll_model.decisions import Offset, Rejected
from wakeroll_model.events import (
    Commit,
    Configure,
    Delete,
    Heartbeat,
    Inspect,
    Kick,
    Pause,
    Report,
    Reset,
    Tick,
    Unregister,
)
from wakeroll_model.queue import Queue
from wakeroll_model.replay import encode_decision
from wakeroll_model.shard import Shard

RULES = {
    Reset: ("reset",),
    Delete: ("delete",),
    Kick: ("kick", "kicked", "mode", "limit"),
    Pause: ("pause",),
    Inspect: ("inspect",),
    Report: ("inspect",),
    Heartbeat: ("mode", "in-use", "epoch", "limit", "kicked"),
    Unregister: ("mode", "limit", "kicked"),
    Configure: ("mode", "limit", "kicked"),
    Tick: ("mode", "limit", "kicked"),
}
"""Event -> the rules by which it may be rejected. A tick, an unregister, a kick and an eager hand-over make a client_id
free, and then the instance that waits for it may be rejected."""


def check(evidence: Evidence) -> Iterator[Broken]:
    """7. The same records give the same decisions, and none is without an answer."""
    yield from _not_replayable(evidence)
    newest: dict[tuple[str, Queue], int] = {}
    for book in evidence.books:
        for commit in book.known(Commit):  # it may have been learnt, though nothing was decided about it
            for entry in commit.offsets:
                key = evidence.plan.scope(commit.group_id, commit.client_id), entry.queue
                newest[key] = max(newest.get(key, -1), entry.offset)
        yield from _unaccounted(evidence, book, newest)


def _not_replayable(evidence: Evidence) -> Iterator[Broken]:
    """7a. Repeated, cut into other batches, or all at once."""
    for coordinator in evidence.world.coordinators:
        partition, partitions = coordinator.partition, len(evidence.world.coordinators)
        for era in coordinator.eras:
            records = coordinator.log[era.position : min(era.ended_at, len(coordinator.log))]
            era_of = {"era": era.number, "quiet_until": era.quiet_until, "level": coordinator.level}
            shard = Shard(TOPIC, partition, partitions, era.body, **era_of)
            with careless():
                again = [encode_decision(one) for record in records for one in shard.apply(record)]
            encoded = [encode_decision(one) for one in coordinator.decided(era)]
            if again != encoded:
                pairs = enumerate(zip(again, encoded, strict=False))
                number = next((n for n, pair in pairs if pair[0] != pair[1]), -1)
                yield Broken("not replayable", 0, f"decision {number + 1} of era {era.number} of {partition} differs")
        for says in coordinator.differing:
            yield Broken("not replayable", 0, f"a repeated batch decides otherwise: {says}")
    for replica in evidence.world.replicas:
        if replica.differing or replica.encoded != evidence.world.coordinators[replica.partition].encoded:
            yield Broken("not replayable", 0, f"the replica of partition {replica.partition} decides otherwise")


def _rules(evidence: Evidence, book: Book, page: Page) -> tuple[str, ...]:
    """Return the rules by which an event may be rejected."""
    is_newer = isinstance(page.event, Delete | Kick | Pause | Inspect | Report)
    if is_newer and (evidence.plan.level_ms != 0 or book.era.number > 1):
        return (*RULES[type(page.event)], "type")  # below the level that has them; a loss of state loses the level too
    return RULES.get(type(page.event), ())


def _unaccounted(evidence: Evidence, book: Book, newest: dict[tuple[str, Queue], int]) -> Iterator[Broken]:
    """7b. What is no event is rejected, once; every queue of a commit advances, or it is said why not.

    Of events, only a commit, a heartbeat and an operator's may be rejected: one in another mode, of a client_id that is
    in use or kept out, with an epoch that was never given, or of one client too many.
    """
    learnt = dict[tuple[str, Queue], int]()  # from its log, in silence
    for said in (*book.known(Commit), *book.known(Reset)):
        for entry in said.offsets:
            learnt[said.group_id, entry.queue] = max(learnt.get((said.group_id, entry.queue), -1), entry.offset)
    for page in book.pages:
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
                    others = slices.overlapping(entry.queue, (1, 2, 4)) if book.era.number > 1 else ()
                    known = [newest.get((scope, one), -1) for one in (entry.queue, *others)]
                    known += [learnt.get((commit.group_id, one), -1) for one in (entry.queue, *others)]
                    refused = f"{entry.queue}: " in details or len(details) >= MAX_DETAIL
                    is_news = entry.offset > max(known)
                    if is_news and entry.queue not in answered and not refused:
                        says = f"the commit of {entry.queue} by {commit.instance_id} has no answer"
                        yield Broken("unaccounted", page.at_ms, says, entry.queue, commit.group_id)
            case _:
                rules = _rules(evidence, book, page)
                for one in rejected:
                    if one.rule not in rules:
                        yield Broken("unaccounted", page.at_ms, f"{page.event} is rejected: {one.detail}")
        for offset in advanced:
            key = evidence.plan.scope(offset.group_id, offset.client_id), offset.queue
            newest[key] = -1 if offset.deleted else offset.offset
