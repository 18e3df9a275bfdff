"""Who is in a group, and who is out: does anybody leave who lives, or stay who is dead?"""

from collections.abc import Iterator

from tests.support.simulation.frame.broken import Broken
from tests.support.simulation.groups.checks.evidence import Book, Evidence, Page
from tests.support.simulation.groups.checks.roll import Gathering, Present, Roll
from wakeroll_model.config import (
    CLIENT_MARGIN_MS,
    DARK_MS,
    GRACE_EVERY_MS,
    GRACE_MS,
    LAGGING_SESSIONS,
    MAX_RIVALS,
    MIN_SESSION_MS,
    SESSION_TIMEOUT_MS,
    SLACK_MS,
)
from wakeroll_model.decisions import AnyDecision, Fenced, Handover, Membership, Rejected
from wakeroll_model.events import Configure, Heartbeat, Kick, Unregister

TOLERANCE_MS = 100
"""How far two ticks, or a record and its append, may be from where they should be."""


def check(evidence: Evidence) -> Iterator[Broken]:
    """4. Nobody expires who was heard in time, everybody who was not; who is out is not heard again."""
    yield from _evicted(evidence)
    for book in evidence.books:
        yield from _follow(evidence, book)
        yield from _answers(evidence, book)


def _evicted(evidence: Evidence) -> Iterator[Broken]:
    """4a. Nobody expires whose heartbeats reached the log in time; a dark log is no silence, grace follows."""
    for book in evidence.books:
        session_ms: dict[str, int] = {}
        for event in book.known(Configure):
            _set_session(session_ms, event)
        for page in book.pages:
            if isinstance(page.event, Configure):
                _set_session(session_ms, page.event)
            for decision in page.decisions:
                silent_reasons = ("expired", "kicked") if _expires(page, decision) else ("expired",)
                is_silent = isinstance(decision, Fenced) and decision.reason in silent_reasons and page.is_tick
                if isinstance(decision, Fenced) and is_silent:
                    for says in _too_early(evidence, page, decision, session_ms.get(decision.group_id)):
                        yield Broken("evicted", page.at_ms, says, None, decision.group_id)


def _set_session(session_ms: dict[str, int], event: Configure) -> None:
    if isinstance(event.session_timeout_ms, int):
        session_ms[event.group_id] = event.session_timeout_ms


def _expires(page: Page, decision: AnyDecision) -> bool:
    """Whether the session of the member is over that a decision is about."""
    return isinstance(decision, Fenced) and any(
        isinstance(one, Membership) and one.change == "expired" and one.instance_id == decision.instance_id
        for one in page.decisions
    )


def _too_early(evidence: Evidence, page: Page, expired: Fenced, session_ms: int | None) -> Iterator[str]:
    """A session is over by the clocks of the observers, not by the log's: earlier by what counts between two ticks."""
    session_ms = session_ms or SESSION_TIMEOUT_MS
    beats = evidence.beats[expired.group_id, expired.instance_id]
    beat_ms = max(beat.at_ms for beat in beats if beat.offset < page.offset and not _is_lie(beat))
    silent_ms = page.at_ms - beat_ms - evidence.dark_ms(beat_ms, page.at_ms)
    who = f"{expired.instance_id} of {expired.group_id}"
    if silent_ms < session_ms - SLACK_MS - TOLERANCE_MS:
        yield f"{who} expires after {silent_ms} ms of silence; the session is {session_ms}"
    # Not every darkness shows in the log: what is shorter than five ticks counts as time.
    gaps = [
        to
        for from_, to in evidence.seen.darkness
        if to - from_ > DARK_MS + 2_000 + 2 * evidence.plan.tick_ms
        and to <= page.at_ms < to + GRACE_MS - CLIENT_MARGIN_MS  # the shard's clock may catch up by so much in it
        and not _is_hidden(evidence, from_, to)
    ]
    if gaps:
        yield f"{who} expires {page.at_ms - gaps[-1]} ms after the log was dark"


def _is_lie(page: Page) -> bool:
    """Whether a heartbeat shows an epoch that was never given: it is no keep-alive."""
    return any(isinstance(one, Rejected) and one.rule == "epoch" for one in page.decisions)


def _is_hidden(evidence: Evidence, from_ms: int, to_ms: int) -> bool:
    """Whether no grace follows a darkness: there was one not long ago.

    A new observer knows of the darkness by the log's clock alone, and a clock that is set back hides it.
    """
    graces_ms = GRACE_MS + GRACE_EVERY_MS + DARK_MS
    if evidence.plan.tick_ms >= DARK_MS - 1_000:
        return True
    if any(
        from_ms - graces_ms - dark_to + dark_from <= dark_to <= to_ms for dark_from, dark_to in _others(evidence, to_ms)
    ):
        return True
    steps = [fault.at_ms for fault in evidence.plan.faults if fault.kind in ("step", "loss", "fast")]
    return any(from_ms - graces_ms <= at_ms <= to_ms + 1_000 for at_ms in steps)  # a clock ahead has a grace itself


def _others(evidence: Evidence, to_ms: int) -> list[tuple[int, int]]:
    return [(begins, ends) for begins, ends in evidence.seen.darkness if ends != to_ms]


def _follow(evidence: Evidence, book: Book) -> Iterator[Broken]:
    """4b. What the machine says of its members, page by page."""
    roll = Roll(book)
    for page in book.pages:
        for decision in page.decisions:
            yield from _wrong_decision(evidence, book, roll, page, decision)
        roll.take(page)
        if page.is_tick and page.may_expire:
            for group_id, group in roll.groups.items():
                for member in group.members.values():
                    # Sessions end by the ticks; records between them may have put the clock ahead.
                    if _is_unwatched(evidence, member):
                        continue
                    if page.clock_ms > member.seen_ms + _trusted_ms(evidence, group, member) + SLACK_MS:
                        says = f"{member.life} is silent for {page.clock_ms - member.seen_ms} ms, and does not expire"
                        yield Broken("not expired", page.at_ms, says, None, group_id)


def _wrong_decision(evidence: Evidence, book: Book, roll: Roll, page: Page, decision: AnyDecision) -> Iterator[Broken]:
    """Compare a decision about a member with the group before its page."""
    group = roll.group(getattr(decision, "group_id", None) or "")
    match decision:
        case Membership(change="kicked") if book.era.number == 1:  # else its kick may be of a former era
            rule, said = "membership", _wrong_kick(group, decision, page)
        case Membership():
            times = 2 if _may_be_lost(evidence, book, page) else 1
            rule, said = "membership", _wrong_change(group, decision, page, times)
        case Fenced(reason="refused"):
            rule, said = "membership", _wrong_refusal(group, page)
        case Fenced(reason="expired" | "deaf") if _is_leaving(group, decision):
            rule, said = (
                "kicked",
                iter([f"{decision.instance_id} was kicked, and is told that it is {decision.reason}"]),
            )
        case Fenced(reason="deaf"):
            rule, said = "evicted as deaf", _unproved(evidence, group, decision, page)
        case Handover(to=str()):
            rule, said = "kicked", _wrong_gift(group, decision, page)
        case _:
            return
    for says in said:
        yield Broken(rule, page.at_ms, says, None, decision.group_id)


def _is_leaving(group: Gathering, fenced: Fenced) -> bool:
    """Whether a life was kicked: it must be told so, however it ended, for it must not come back by itself."""
    return group.leaving.get(fenced.client_id, ("", 0))[0] == fenced.instance_id


def _wrong_gift(group: Gathering, handover: Handover, page: Page) -> Iterator[str]:
    """A kicked member gets no queue; another life of the client may join when it is gone, and get some."""
    changes = {one.client_id for one in page.decisions if isinstance(one, Membership)}
    if handover.to in group.leaving and handover.to not in changes:
        yield f"{handover.to} was kicked, and is given {handover.queue}"


def _is_unwatched(evidence: Evidence, member: Present) -> bool:
    """Whether a member had waited for its client_id, and was not heard since: below level 3 it expires late."""
    level_ms = evidence.plan.level_ms
    return member.since_ms > member.seen_ms and (level_ms is None or level_ms > 0)


def _trusted_ms(evidence: Evidence, group: Gathering, member: Present) -> int:
    """Return the session that a member may still trust: the group's, once it has shown that it knows that."""
    now_ms = group.number("session_timeout_ms")
    return now_ms if group.knows_settings(member) else max(now_ms, evidence.plan.longest_session_ms)


def _wrong_change(group: Gathering, change: Membership, page: Page, times: int) -> Iterator[str]:
    """`times`: how often `max_members` may be reached."""
    life, event = change.instance_id, page.event
    match change.change:
        case "joined":
            yield from _wrong_join(group, change, page, times)
        case "left" | "died":
            if not isinstance(event, Unregister) or event.instance_id != life:
                yield f"{life} is taken for gone by the unregister of another"
            elif change.change == "died" and event.died is None:
                yield f"{life} is taken for dead, and has left in good order"
        case "leaving":
            if not isinstance(event, Kick) or event.readmit or event.client_id != change.client_id:
                yield f"{life} must leave, and no operator has kicked it"
            elif event.request_id in group.kicks:
                yield f"{life} must leave by a request that was carried out before"
        case _:
            pass


def _wrong_join(group: Gathering, change: Membership, page: Page, times: int) -> Iterator[str]:
    """Say what is wrong with a life that joins."""
    life, event = change.instance_id, page.event
    ends = ("left", "died", "expired", "kicked")
    gone = {one.client_id for one in page.decisions if isinstance(one, Membership) and one.change in ends}
    if (change.client_id, life) in group.past:
        yield f"{life} is heard again, though it has ended"
    if change.client_id in group.members and change.client_id not in gone:
        yield f"{life} joins, and {group.members[change.client_id].life} lives"
    is_its_own = isinstance(event, Heartbeat) and event.instance_id == life
    beat = event if is_its_own else group.heard.get((change.client_id, life), (None,))[0]
    if not isinstance(beat, Heartbeat):
        yield f"{life} joins without a heartbeat of its own"
    elif any(beat.mode != one.said.mode for name, one in group.members.items() if name != change.client_id):
        yield f"{life} is in by {beat.mode}; the others are not"
    if group.keeps_out(change.client_id, life, page.clock_ms):
        yield f"{life} joins, and an operator keeps it out"
    if len(group.members) - len(gone) >= group.number("max_members") * times:
        yield f"{life} is member {len(group.members) + 1} of at most {group.settings['max_members']}"


def _wrong_kick(group: Gathering, change: Membership, page: Page) -> Iterator[str]:
    """A kicked member is out when it owns nothing any more, and not before."""
    client_id, life = change.client_id, change.instance_id
    asked = {one.instance_id for one in page.decisions if isinstance(one, Membership) and one.change == "leaving"}
    if life not in asked and group.leaving.get(client_id, ("", 0))[0] != life:
        yield f"{life} is out as kicked, and nobody kicked it"
    freed = {one.queue for one in page.decisions if isinstance(one, Handover) and one.from_ == client_id}
    if held := sorted(queue for queue, owner in group.owners.items() if owner == client_id and queue not in freed):
        yield f"{life} is out as kicked, and owns {held[0]}"


def _unproved(evidence: Evidence, group: Gathering, fenced: Fenced, page: Page) -> Iterator[str]:
    """Say that a member was evicted as deaf whose assignment had not been in its inbox for two sessions.

    From level 3 on: its assignments have rounds.
    """
    member = group.members.get(fenced.client_id)
    if member is None or member.life != fenced.instance_id:
        return
    missed = [
        evidence.seen.published_ms.get((one.shard, one.seq), page.at_ms)
        for one in evidence.told[member.life]
        if one.epoch > member.said.epoch and isinstance(one.round, int) and one.cause.offset < page.offset
    ]
    least_ms = LAGGING_SESSIONS * group.number("session_timeout_ms") - CLIENT_MARGIN_MS - TOLERANCE_MS
    if missed and page.at_ms - min(missed) < least_ms:
        yield (
            f"{member.life} shows epoch {member.said.epoch} and is evicted {page.at_ms - min(missed)} ms after the "
            f"next one was published; expected at least {least_ms}"
        )


def _wrong_refusal(group: Gathering, page: Page) -> Iterator[str]:
    """Say what is wrong with a refusal: there is room, and it consumes as the others do."""
    beat = page.event
    if not isinstance(beat, Heartbeat):  # it waited for a client_id that came free
        return
    if group.oldest is not None and beat.mode != group.oldest.said.mode:
        return
    elif len(group.members) < group.number("max_members"):
        yield f"{beat.instance_id} is refused, {len(group.members)} of {group.settings['max_members']} are in"


Waiting = dict[tuple[str, str, str], tuple[str, int, int, int]]
"""Group, client and life -> for which life it waits; by the shard's clock: when it came, since when it surely waits,
and when it was heard last."""


def _answers(evidence: Evidence, book: Book) -> Iterator[Broken]:
    """4c. Who is not in hears why, again and again: it has ended, or its client_id is in use; nobody else does."""
    roll, waiting = Roll(book), Waiting()
    for page in book.pages:
        beat = page.event
        if isinstance(beat, Heartbeat):
            group = roll.group(beat.group_id)
            is_over = (beat.client_id, beat.instance_id) in (book.ended | book.heard) and book.era.number > 1
            if book.era.number > 1 and any(
                isinstance(one, Fenced) and one.reason == "kicked" for one in page.decisions
            ):
                is_over = True  # its kick may be of a former era
            is_known = (beat.group_id, beat.client_id, beat.instance_id) in waiting
            is_silent = beat.epoch < 0 and not beat.owned and not page.decisions
            if is_silent and not is_known and _may_be_lost(evidence, book, page):
                roll.take(page)
                continue  # a newcomer: who was in before comes first
            for says in () if is_over else _wrong_answer(evidence, group, beat, page, waiting):
                yield Broken("not answered", page.at_ms, says, None, beat.group_id)
        roll.take(page)


def _may_be_lost(evidence: Evidence, book: Book, page: Page) -> bool:
    """Whether members may live that were not heard since a loss of state: for two sessions at most."""
    return book.era.number > 1 and page.clock_ms - book.pages[0].clock_ms <= 2 * evidence.plan.longest_session_ms + 1


def _wrong_answer(evidence: Evidence, group: Gathering, beat: Heartbeat, page: Page, waiting: Waiting) -> Iterator[str]:
    """Compare how a heartbeat is answered with what is known of its life."""
    life = beat.client_id, beat.instance_id
    fenced = [one.reason for one in page.decisions if isinstance(one, Fenced) and one.instance_id == beat.instance_id]
    rules = [one.rule for one in page.decisions if isinstance(one, Rejected)]
    member = group.members.get(beat.client_id)
    if member is not None and member.life == beat.instance_id:
        if (beat.epoch > group.epoch) != ("epoch" in rules):
            yield f"{beat.instance_id} shows epoch {beat.epoch} of {group.epoch}, and is answered {rules or 'nothing'}"
    elif life in group.past:
        told_ms = page.clock_ms - group.told_past.get(life, -(10**9))
        is_due = told_ms >= group.number("heartbeat_ms") // 2
        if is_due and fenced != [group.past[life]]:
            yield f"{beat.instance_id} has ended ({group.past[life]}), shows up, and is answered {fenced or 'nothing'}"
        elif not is_due and fenced:
            yield f"{beat.instance_id} is told {told_ms} ms after the last time that it has ended"
    elif group.keeps_out(beat.client_id, beat.instance_id, page.clock_ms):
        if fenced != ["kicked"]:
            yield f"{beat.instance_id} is kept out, and is answered {fenced or rules or 'nothing'}"
    elif beat.epoch > group.epoch:
        if fenced != ["epoch"]:
            yield f"{beat.instance_id} comes with epoch {beat.epoch} of {group.epoch}, and is answered {fenced}"
    elif member is not None and "mode" not in rules:
        yield from _wrong_waiting(evidence, member, beat, page, waiting)


def _wrong_waiting(evidence: Evidence, member: Present, beat: Heartbeat, page: Page, waiting: Waiting) -> Iterator[str]:
    """A client_id is in use: a newcomer is told so, and is out when the present life proves to live on.

    That is when it was heard more than a session after the newcomer came.  Which session it has, the record does not
    say exactly; it is never below the shortest one.
    """
    name = beat.group_id, beat.client_id, beat.instance_id
    fenced = [one.reason for one in page.decisions if isinstance(one, Fenced)]
    is_told = any(isinstance(one, Rejected) and one.rule == "in-use" for one in page.decisions)
    is_new = name not in waiting or waiting[name][0] != member.life
    now_ms = page.clock_ms
    _, came_ms, since_ms, heard_ms = (member.life, now_ms, now_ms, now_ms) if is_new else waiting[name]
    if now_ms - heard_ms > evidence.plan.longest_session_ms:  # what it was may be forgotten
        since_ms = now_ms
    if is_told:  # so it was not remembered until now
        since_ms = now_ms
    waiting[name] = member.life, came_ms, since_ms, now_ms
    waited = f"{beat.instance_id} waits for {member.life} since {page.clock_ms - since_ms} ms, and is told"
    lived_on_ms = member.seen_ms - since_ms
    others = sum(1 for known, (life, *_) in waiting.items() if known[:2] == name[:2] and life == member.life)
    if others > MAX_RIVALS:
        return
    if beat.epoch >= 0 or beat.owned:  # it was a member before the state was lost
        if fenced != ["expired"]:
            yield f"{waited} {fenced}, though it reads"
        return
    if fenced not in ([], ["duplicate"]) or (fenced and member.seen_ms - came_ms <= MIN_SESSION_MS):
        yield f"{waited} {fenced}"
    # Whoever is not remembered, because others wait too, is told again and again that the client_id is in use.
    is_due = is_new or lived_on_ms > evidence.plan.longest_session_ms + 1
    if is_due and not is_told and not fenced:
        yield f"{waited} nothing"
