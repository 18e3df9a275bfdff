"""Rounds: how a coordinator finds out that an assignment was published, although it reads only the control topics.

The time of a decision in the log does not show when it is published: a coordinator that was down decides about minutes
of the log in one moment. Only heartbeats show what was published. Each assignment carries the group's round, and each
heartbeat shows the round of the newest assignment that its client received. When a heartbeat shows the present round,
the next round begins: everything sent in it was decided at a later record.

A coordinator plans a batch of records before it publishes a decision about them, and publishes all of them before it
begins the next batch. So an assignment of round r + 1 is of a batch that was planned before any heartbeat shows that
round, and an assignment of round r + 2, by the same coordinator, is of a later batch: everything decided in round r is
published by then. docs/decisions/0023 has the proof, also for several coordinators.
"""

from msgspec import UNSET, UnsetType

from wakeroll_model.config import EVIDENCE_ROUNDS, LAGGING_SESSIONS
from wakeroll_model.events import Heartbeat
from wakeroll_model.group import Member
from wakeroll_model.turn import NOTHING, Outcome, Turn, sending


def sent_in(turn: Turn) -> int | UnsetType:
    """Return the round of an assignment that is sent now; unset below the level that has rounds."""
    return turn.group.round if turn.level >= 3 else UNSET


def note(turn: Turn, beat: Heartbeat, member: Member) -> None:
    """Note the round that a member shows; if it is the present one, the next one begins.

    A round above the present one was never sent, and is ignored.
    """
    group = turn.group
    if turn.level < 3 or not member.shown_round < beat.round <= group.round:
        return
    member.shown_round = beat.round
    if beat.round == group.round:
        group.round += 1


def is_lagging(turn: Turn, member: Member) -> bool:
    """Return whether a member that shows an older epoch could have received the newer one for two sessions.

    Its newest assignment was sent in the present round or before. The two sessions begin at its first heartbeat after
    others have shown so many later rounds that the assignment must be published. Whenever it shows an assignment that
    it had missed, new evidence is needed.
    """
    group, now_ms = turn.group, turn.moment.now_ms
    if member.lagging_round < 0 or member.shown_epoch >= member.lagging_epoch:
        member.lagging_round, member.lagging_epoch, member.lagging_since_ms = group.round, member.sent_epoch, -1
        group.probed_ms = now_ms  # mostly its receipt is under way: no probe within a heartbeat interval
    if member.lagging_since_ms < 0 and _is_published(turn, member):
        member.lagging_since_ms = now_ms
    return 0 <= member.lagging_since_ms < now_ms - LAGGING_SESSIONS * group.session_of(member)


def probe(turn: Turn, client_id: str, member: Member) -> Outcome:
    """Send a member its assignment again, if no other traffic shows which rounds are published.

    If nothing changes in a group, no assignments are sent to members that do not lag, and rounds would not grow. One
    member is probed per heartbeat interval, each time another one, because the probed member may lag too.
    """
    group, now_ms = turn.group, turn.moment.now_ms
    if turn.level < 3 or member.lagging_round < 0 or _is_published(turn, member):
        return NOTHING
    interval_ms = group.settings.heartbeat_ms
    if now_ms - group.probed_ms < interval_ms:
        return NOTHING
    others = [name for name, other in group.members.items() if name != client_id and _receives(other)]
    if not others:
        return NOTHING
    group.probed_ms = now_ms
    return sending((others[now_ms // interval_ms % len(others)],))


def _is_published(turn: Turn, member: Member) -> bool:
    """Return whether a round that a member has shown proves that the missed assignment was published."""
    shown_round = turn.group.round - 1
    return shown_round >= member.lagging_round + EVIDENCE_ROUNDS


def _receives(member: Member) -> bool:
    """Return whether a member has shown its newest assignment, and shows rounds."""
    return member.shown_round >= 0 and member.shown_epoch >= member.sent_epoch >= 0
