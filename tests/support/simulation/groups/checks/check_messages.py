"""Is every message handled, from where it should be, and once?  Judged by what applications handled and committed."""

from collections import Counter
from collections.abc import Iterator
from itertools import takewhile

from tests.support.simulation.frame.broken import Broken
from tests.support.simulation.groups.checks.evidence import ERA, Evidence
from tests.support.simulation.groups.group_plan import TOPICS
from tests.support.simulation.groups.seen import Giving, Handling
from wakeroll_model.events import Commit, Route
from wakeroll_model.queue import Queue

UNCLEAN = ("timeout", "expired", "eager", "unregistered", "reset", ERA)
"""How a queue may come free of an owner that has not said that it is done; a reset wants messages again."""


AT_ONCE_MS = 100
"""Who begins a queue, is done with its first message and must give it up, all in this time, commits once."""


def check(evidence: Evidence) -> Iterator[Broken]:
    """5. What is committed was handled; each giving begins where the record ends; nothing is left out or done twice."""
    yield from _starts(evidence)
    yield from _unrecorded_starts(evidence)
    yield from _committed_unhandled(evidence)
    yield from _lost(evidence)
    yield from _repeated(evidence)


def _starts(evidence: Evidence) -> Iterator[Broken]:
    """5a. A giving begins at the committed offset of the moment when it was given: a commit's, or a reset's.

    Nobody else can commit before it is told.  Without a committed offset it begins by policy, and at first if the
    queue was added to a topic that was consumed already; not after its offset was deleted.
    """
    added = _added(evidence)
    for one in evidence.seen.givings:
        if evidence.plan.broadcasts(one.scope.partition("/")[0]):
            yield from _own_start(evidence, one)
            continue
        if evidence.has_eras(one.scope) or evidence.is_twisted(one.scope, one.queue):
            yield from _loose_start(evidence, one)
            continue
        given = evidence.chains[one.scope, one.queue].given(one.life, one.given)
        if given is None:
            yield _wrong_start(one, f"epoch {one.given}, in which it was never given the queue")
            continue
        committed = None
        for offset in evidence.offsets.get((one.scope, one.queue), ()):
            if offset.seq <= given.seq:
                committed = None if offset.deleted else offset.offset
        if one.start.offset != committed and not (committed is None and _goes_on(evidence, one)):
            yield _wrong_start(one, f"{one.start.offset or one.start.policy}, {committed} is committed")
    for one in evidence.seen.givings:
        is_known = not evidence.has_eras(one.scope) and not evidence.is_twisted(one.scope, one.queue)
        was_deleted = any(offset.deleted for offset in evidence.offsets.get((one.scope, one.queue), ()))
        if one.start.policy == "last" and (one.scope, one.queue) in added and is_known and not was_deleted:
            yield _wrong_start(one, "last; it was added to a topic that is consumed")


def _loose_start(evidence: Evidence, one: Giving) -> Iterator[Broken]:
    """After a loss of state, or of messages: what is committed may be forgotten, but it is not made up."""
    said = evidence.said_offsets[one.scope, one.queue]
    if evidence.is_twisted(one.scope, one.queue):  # it may have been set to the first message, or the last, unseen
        return
    if one.start.offset is not None and one.start.offset not in said and not _goes_on(evidence, one):
        yield _wrong_start(one, f"{one.start.offset}, which was never committed")


def _unrecorded_starts(evidence: Evidence) -> Iterator[Broken]:
    """A giving that begins by a policy puts that on record first: asked again later, it would have another answer."""
    commits: dict[tuple[str, Queue], list[tuple[int, Commit, int, Queue]]] = {}
    for page in evidence.pages:
        if isinstance(page.event, Commit):
            for entry in page.event.offsets:
                for cell in evidence.plan.cells(entry.queue):
                    key = page.event.instance_id, cell
                    commits.setdefault(key, []).append((page.at_ms, page.event, entry.offset, entry.queue))
    next_ms: dict[tuple[str, Queue], int] = {}  # when a life was given the queue again: then its new start counts
    times = Counter((one.life, one.queue, one.given) for one in evidence.seen.givings)
    for one in reversed(evidence.seen.givings):
        key = one.life, one.queue
        if times[*key, one.given] > 1:  # in broadcasting a topic may go and come back in one epoch
            continue
        until_ms = next_ms.get(key, evidence.world.now_ms)
        next_ms[key] = one.at_ms
        mine = [
            (at_ms, offset)
            for at_ms, event, offset, of in commits.get(key, ())
            if event.epoch >= one.given and of == one.read and all(event is not sent for sent in one.under_way)
        ]
        offsets = [(offset, at_ms) for at_ms, offset in mine if one.at_ms <= at_ms < until_ms]
        if one.start.offset is not None or not offsets or one.life in evidence.seen.straggled:
            continue
        if evidence.is_far(one.scope, one.queue):
            continue
        first, at_ms = offsets[0]
        if any(offset >= one.offset for at_ms, offset in mine if at_ms < one.at_ms):
            continue  # its former giving went further, and was put on record after this one was decided
        if any(begins <= at_ms and ends >= one.at_ms for begins, ends in evidence.seen.darkness):
            continue  # its first commit may be lost
        if first > one.offset and at_ms - one.at_ms > AT_ONCE_MS:
            yield _wrong_start(one, f"{one.offset}, and first puts {first} on record")


def _own_start(evidence: Evidence, one: Giving) -> Iterator[Broken]:
    """In broadcasting a giving begins where this client itself has been, or was reset to, since the last reset."""
    own: list[int] = []
    for offset in evidence.offsets.get((one.scope, one.queue), ()):
        if offset.reset_by is not None and offset.epoch <= one.given:
            own = []
        if not offset.deleted:
            own.append(offset.offset)
    if evidence.has_eras(one.scope):
        yield from _loose_start(evidence, one)
    elif one.start.offset is not None and one.start.offset not in own and not _goes_on(evidence, one):
        yield _wrong_start(one, f"{one.start.offset}, its own offsets were {own}")


def _goes_on(evidence: Evidence, one: Giving) -> bool:
    """Whether a process begins where it was itself: it had the queue before, and no commit of that was known yet."""
    process = one.life.rpartition(".")[0]
    before = [
        other.offset
        for other in takewhile(lambda other: other is not one, evidence.seen.givings)
        if (other.scope, other.queue) == (one.scope, one.queue) and other.life.rpartition(".")[0] == process
    ]
    done = {each.offset for each in evidence.handlings.get((one.scope, one.queue), ()) if 0 <= each.to_ms <= one.at_ms}
    return any(
        offset <= one.offset and done.issuperset(evidence.of_cell(one.queue, offset, one.offset)) for offset in before
    )


def _wrong_start(one: Giving, where: str) -> Broken:
    says = f"{one.life} (given in {one.given}) begins {one.queue} at {where}"
    return Broken("wrong start", one.at_ms, says, one.queue, one.scope)


def _added(evidence: Evidence) -> set[tuple[str, Queue]]:
    """Return (scope, queue) of what was first routed when the scope had read its topic already."""
    reads: dict[str, set[str]] = {}
    added: set[tuple[str, Queue]] = set()
    routed: set[Queue] = set()
    begun = sorted(evidence.seen.givings, key=lambda one: one.at_ms)
    number = 0
    for page in evidence.pages:
        if page.partition:
            continue
        while number < len(begun) and begun[number].at_ms < page.at_ms:
            reads.setdefault(begun[number].queue.topic, set()).add(begun[number].scope)
            number += 1
        if isinstance(page.event, Route):
            new = {cell for one in page.event.queues for cell in evidence.plan.cells(one.queue)} - routed
            added |= {(scope, queue) for queue in new for scope in reads.get(queue.topic, ())}
            routed |= new
    return added


def _committed_unhandled(evidence: Evidence) -> Iterator[Broken]:
    """5b. Who commits has handled all messages since the last committed offset, in the giving that it has now."""
    givings: dict[tuple[str, Queue, str], list[Giving]] = {}
    for one in evidence.seen.givings:
        givings.setdefault((one.scope, one.queue, one.life), []).append(one)
    for (scope, queue), offsets in evidence.offsets.items():
        handlings = evidence.handlings.get((scope, queue), [])
        if evidence.is_twisted(scope, queue):
            continue
        before, reset_epoch, shard = -1, 0, ""
        for offset in offsets:
            if offset.shard != shard:
                before, reset_epoch, shard = -1 if reset_epoch else before, 0, offset.shard  # a reset may be lost
            if offset.reset_by is not None:
                before, reset_epoch = -1 if offset.deleted else offset.offset, offset.epoch
                continue
            at_ms, event = evidence.world.broker.appended[offset.cause.partition][offset.cause.offset]
            life = event.instance_id if isinstance(event, Commit) else ""
            its = givings.get((scope, queue, life), ())
            begun = [one.offset for one in its if one.at_ms <= at_ms and one.given >= reset_epoch]
            if before < 0 and reset_epoch and not begun:
                continue  # in a giving from before the deletion; where the next one begins does not depend on it
            since = before if before >= 0 else begun[0] if begun else offset.offset
            if evidence.has_eras(scope) and begun:  # what was committed may be lost, and where to begin is a policy
                since = max(since, *begun)
            done = {
                one.offset
                for one in handlings
                if one.life == life and one.given >= reset_epoch and 0 <= one.to_ms <= at_ms
            }
            if missing := evidence.of_cell(queue, since, offset.offset) - done:
                says = f"{life} commits {queue} up to {offset.offset} and has not handled {min(missing)}"
                yield Broken("committed unhandled", at_ms, says, queue, offset.group_id)
            before = offset.offset


def _lost(evidence: Evidence) -> Iterator[Broken]:
    """5c. Every message after the committed offset is handled in the end by each scope that subscribes its topic.

    What comes before it was handled, or left out by a reset: that is 5b.  What was handled before the last reset does
    not count.
    """
    for topic in TOPICS:
        scopes = sorted({process.scope for process in evidence.world.living() if topic in process.topics})
        for queue in [cell for one in evidence.world.observer.queues(topic) for cell in evidence.plan.cells(one)]:
            for scope in scopes:
                is_told = (scope, queue) not in evidence.left_out and not evidence.is_twisted(scope, queue)
                if is_told and not (evidence.has_eras(scope)) and (says := _missing(evidence, scope, queue)):
                    yield Broken("lost", evidence.plan.probe_ms, says, queue, scope)


def _missing(evidence: Evidence, scope: str, queue: Queue) -> str:
    offsets = evidence.offsets.get((scope, queue), [])
    reset_epoch = max((one.epoch for one in offsets if one.reset_by is not None), default=0)
    if offsets and offsets[-1].deleted:
        return ""  # nobody has committed since: where to begin is a policy
    committed = offsets[-1].offset if offsets else 0
    handlings = [one for one in evidence.handlings.get((scope, queue), ()) if one.to_ms >= 0]
    done = {one.offset for one in handlings if one.given >= reset_epoch}
    missing = sorted(evidence.of_cell(queue, committed, max((one.offset for one in handlings), default=0)) - done)
    if not missing:
        return ""
    return f"{len(missing)} messages of {queue} were never handled by {scope}, first {missing[0]}"


def _repeated(evidence: Evidence) -> Iterator[Broken]:
    """5d. A message is handled twice only if its queue came free of somebody who had not said that it was done."""
    for (scope, queue), handlings in evidence.handlings.items():
        if evidence.is_twisted(scope, queue) or evidence.was_eager(scope):
            continue
        excuse = _own_excuse if evidence.plan.broadcasts(scope.partition("/")[0]) else _excuse
        first: dict[int, Handling] = {}
        for handling in handlings:
            before = first.setdefault(handling.offset, handling)
            if before is handling:
                continue
            is_late = before.life in evidence.seen.straggled  # its commit may have come after it gave the queue up
            if not is_late and not excuse(evidence, scope, before, handling):
                says = f"{queue} #{handling.offset} is handled by {before.life} and {handling.life}"
                yield Broken("repeated", handling.from_ms, says, queue, scope)
            first[handling.offset] = handling


def _excuse(evidence: Evidence, scope: str, before: Handling, handling: Handling) -> bool:
    """Whether a queue was lost, or reset; not if a client that had ended its work unregistered.

    A client that died with a will repeats only the message that was in its hands.
    """
    hows = evidence.chains[scope, before.queue].hows(before, handling)
    left_well = hows == ["unregistered"] and before.to_ms >= 0 and before.life in evidence.left_well
    in_hands = "died" in hows and before.to_ms < 0
    return (
        in_hands or (any(how in UNCLEAN for how in hows) and not left_well) or _reset_unheard(evidence, scope, before)
    )


def _reset_unheard(evidence: Evidence, scope: str, before: Handling) -> bool:
    """Whether a giving began by a reset, and was asked back before its owner had shown that it knew.

    It may never have begun again, for all the coordinator knows: what it commits is refused, and handled again. The
    same happens after a loss of state: the coordinator assigns a queue again to a member that claims it, and the member
    may not have received the reset.
    """
    given = evidence.chains[scope, before.queue].given(before.life, before.given)
    is_by_reset = given is not None and (given.how == "reset" or (given.how == "first" and evidence.has_eras(scope)))
    if given is None or not is_by_reset:
        return False
    shown = [page.offset for page in evidence.beats[scope, before.life] if page.event.epoch >= before.given]
    asked = [one.cause.offset for one in evidence.told[before.life] if evidence.has_cell(one.revoke, before.queue)]
    return any(at > given.offset and not any(given.offset < beat < at for beat in shown) for at in asked)


def _own_excuse(evidence: Evidence, scope: str, before: Handling, handling: Handling) -> bool:
    """The same in broadcasting, where nobody says how: another life, or another giving of the same one.

    After a client that has ended its work well there is no excuse - but for a reset, or for a queue that it did not
    keep to its end.
    """
    if before.life == handling.life:
        return before.given != handling.given or _was_given_up(evidence, scope, before, handling)
    if not (before.life in evidence.left_well and before.to_ms >= 0 and _was_kept(evidence, before)):
        return True
    if evidence.has_eras(scope):  # what it committed may have been lost with a part of the log
        return True
    offsets = evidence.offsets.get((scope, before.queue), ())
    if any(one.reset_by is not None and before.given < one.epoch <= handling.given for one in offsets):
        return True
    begun_ms = {one.life: one.at_ms for one in evidence.seen.givings if (one.scope, one.queue) == (scope, before.queue)}
    return begun_ms[handling.life] < begun_ms[before.life]


def _was_kept(evidence: Evidence, before: Handling) -> bool:
    """Whether a life had a giving of a queue to its end; else its final commit came too late, the topic being gone."""
    giving = before.queue, before.given
    had = [giving in [(one.queue, one.assigned_epoch) for one in told.queues] for told in evidence.told[before.life]]
    return True in had and all(had[had.index(True) :])


def _was_given_up(evidence: Evidence, scope: str, before: Handling, handling: Handling) -> bool:
    """Whether a life began a queue again in the same epoch."""
    return any(
        (one.scope, one.queue, one.life) == (scope, before.queue, before.life)
        and before.from_ms < one.at_ms <= handling.from_ms
        for one in evidence.seen.givings
    )
