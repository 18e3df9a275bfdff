"""Who is in a group, and who is out: does anybody leave who lives, or stay who is dead?"""

from collections.abc import Iterator

from checks.evidence import Broken, Evidence, Page
from checks.roll import Gathering, Present, Roll
from model.config import GRACE_MS, LONGEST_STEP_MS
from model.decisions import Fenced, Membership
from model.events import Configure, Heartbeat, Unregister

TOLERANCE_MS = 100
"""How far two ticks, or a record and its append, may be from where they should be."""


def check(evidence: Evidence) -> Iterator[Broken]:
    """4. Nobody expires who was heard in time, everybody who was not; who is out is not heard again."""
    yield from _evicted(evidence)
    yield from _replaced_by_the_dead(evidence)
    for book in evidence.pages:
        yield from _follow(evidence, book)


def _evicted(evidence: Evidence) -> Iterator[Broken]:
    """4a. Nobody expires whose heartbeats reached the log in time; a dark log is no silence, grace follows."""
    for book in evidence.pages:
        session_ms: dict[str, int] = {}
        for page in book:
            if isinstance(page.event, Configure) and isinstance(page.event.session_timeout_ms, int):
                session_ms[page.event.group_id] = page.event.session_timeout_ms
            for decision in page.decisions:
                if isinstance(decision, Membership) and decision.change == "expired":
                    for says in _too_early(evidence, page, decision, session_ms[decision.group_id]):
                        yield Broken("evicted", page.at_ms, says, None, decision.group_id)


def _too_early(evidence: Evidence, page: Page, expired: Membership, session_ms: int) -> Iterator[str]:
    beats = evidence.beats[expired.group_id, expired.instance_id]
    beat_ms = max(beat.at_ms for beat in beats if beat.offset < page.offset)
    dark_ms = evidence.dark_ms(beat_ms, page.at_ms)
    # A clock that is set forth counts five seconds, though one has passed (see docs/decisions/0002).
    forth_ms = evidence.steps_forth(beat_ms - 1_000) * LONGEST_STEP_MS
    silent_ms = page.at_ms - beat_ms - dark_ms + forth_ms
    who = f"{expired.instance_id} of {expired.group_id}"
    if silent_ms < session_ms - TOLERANCE_MS:
        yield f"{who} expires after {silent_ms} ms of silence; the session is {session_ms}"
    # Not every darkness shows in the log: what is shorter than five ticks counts as time.
    gaps = [
        to
        for from_, to in evidence.seen.darkness
        if to - from_ > 7_000 and to <= page.at_ms < to + GRACE_MS - 2_000 and not _clock_wrong(evidence, from_, to)
    ]
    if gaps:
        yield f"{who} expires {page.at_ms - gaps[-1]} ms after the log was dark"


def _clock_wrong(evidence: Evidence, from_ms: int, to_ms: int) -> bool:
    """Whether the log's clock was touched meanwhile: set back, it hides that the log was dark."""
    for begins, ends in sorted(evidence.seen.darkness, reverse=True):
        if begins < from_ms <= ends + 1_000:  # one darkness goes on into the next
            from_ms = begins
    steps = [fault.at_ms for fault in evidence.plan.faults if fault.kind == "step"]
    return any(from_ms - 15_000 <= at_ms <= to_ms + 1_000 for at_ms in steps)


def _replaced_by_the_dead(evidence: Evidence) -> Iterator[Broken]:
    """4b. The dead replace nobody.

    Open: a life that dies before its first heartbeat is in the log looks like a newer one when that arrives.
    """
    for at_ms, life, by in evidence.seen.killed_by_dead:
        beats = [
            (page.offset, name)
            for (_, name), pages in evidence.beats.items()
            if name in (life, by)
            for page in pages[:1]
        ]
        if beats and min(beats)[1] == by:
            yield Broken("evicted", at_ms, f"{life} is replaced by {by}, which was dead before it began")


def _follow(evidence: Evidence, book: list[Page]) -> Iterator[Broken]:
    """4c. What the machine says of its members, page by page."""
    roll = Roll()
    for page in book:
        for decision in page.decisions:
            if isinstance(decision, Membership):
                for says in _wrong_change(roll.group(decision.group_id), decision, page):
                    yield Broken("membership", page.at_ms, says, None, decision.group_id)
            elif isinstance(decision, Fenced) and decision.reason == "refused":
                for says in _wrong_refusal(roll.group(decision.group_id), page):
                    yield Broken("membership", page.at_ms, says, None, decision.group_id)
        roll.take(page)
        if page.is_tick and page.may_expire:
            for group_id, group in roll.groups.items():
                for member in group.members.values():
                    if page.clock_ms > member.seen_ms + _trusted_ms(evidence, group, member):
                        says = f"{member.life} is silent for {page.clock_ms - member.seen_ms} ms, and does not expire"
                        yield Broken("not expired", page.at_ms, says, None, group_id)


def _trusted_ms(evidence: Evidence, group: Gathering, member: Present) -> int:
    """Return the session that a member may still trust: the group's, once it has shown that it knows that."""
    now_ms = group.number("session_timeout_ms")
    return now_ms if group.knows_settings(member) else max(now_ms, evidence.plan.longest_session_ms)


def _wrong_change(group: Gathering, change: Membership, page: Page) -> Iterator[str]:
    life, event = change.instance_id, page.event
    match change.change:
        case "joined" | "replaced":
            if group.is_past(change.client_id, life):
                yield f"{life} is heard again, though it was replaced or has left"
            if not isinstance(event, Heartbeat) or event.instance_id != life:
                yield f"{life} {change.change} without a heartbeat of its own"
            elif any(event.mode != one.said.mode for name, one in group.members.items() if name != change.client_id):
                yield f"{life} is in by {event.mode}; the others are not"
            if change.change == "joined" and len(group.members) >= group.number("max_members"):
                yield f"{life} is member {len(group.members) + 1} of at most {group.settings['max_members']}"
        case "left":
            if not isinstance(event, Unregister) or event.instance_id != life:
                yield f"{life} is taken for gone by the unregister of another"
        case _:
            pass


def _wrong_refusal(group: Gathering, page: Page) -> Iterator[str]:
    """Say what is wrong with a refusal: there is room, and it consumes as the others do."""
    beat = page.event
    if not isinstance(beat, Heartbeat):
        yield "somebody is refused who has not asked"
    elif group.oldest is not None and beat.mode != group.oldest.said.mode:
        return
    elif len(group.members) < group.number("max_members"):
        yield f"{beat.instance_id} is refused, {len(group.members)} of {group.settings['max_members']} are in"
