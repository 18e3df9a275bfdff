"""Members that are at odds: with the oldest member, or with another process of the same name.

None of it splits the group - subscriptions count for each member, and the oldest one's strategy for all - but in
RocketMQ each of them loses messages, and is the hardest thing to find (its #351, #7717, #667).
"""

from model import config
from model.decisions import Membership
from model.events import Heartbeat
from model.group import Group, Member, Turn

SHOWN = 5
"""Topics that a sentence names; of a thousand, the first ones will do."""


def review(turn: Turn, client_id: str) -> None:
    """Say how a member that came or changed differs from the oldest one, if it does and that is news."""
    group = turn.group
    oldest = next(iter(group.members))
    if oldest != group.oldest or client_id == oldest:
        review_all(turn)
    elif client_id in group.members:
        _compare(turn, client_id, group.members[oldest])


def review_all(turn: Turn) -> None:
    """Compare everybody, when the oldest member went or wants something else, or the settings changed."""
    group = turn.group
    group.oldest = next(iter(group.members), "")
    for client_id in sorted(group.conflicts.keys() - group.members.keys()):
        del group.conflicts[client_id]
    for client_id in group.members:
        _compare(turn, client_id, group.members[group.oldest])


def note_replacement(turn: Turn, client_id: str, member: Member) -> None:
    """A client was replaced: say so if that happens again and again."""
    now_ms = turn.moment.now_ms
    recent = [at_ms for at_ms in member.replaced_ms if at_ms > now_ms - config.REPLACEMENTS_MS]
    member.replaced_ms = [*recent, now_ms][-config.REPLACEMENTS :]
    if len(member.replaced_ms) == config.REPLACEMENTS:
        seconds = (now_ms - member.replaced_ms[0]) // 1000
        times = f"replaced {config.REPLACEMENTS} times in {seconds} s"
        _say(turn, client_id, member, f"duplicate id: {times}; two processes use it, or one is restarted in a loop")
        member.replaced_ms = []


def note_intruder(turn: Turn, beat: Heartbeat, member: Member) -> None:
    """An instance that was superseded still sends heartbeats, longer than one could have been on its way: say so once.

    Its sender does not obey `fenced`, so two processes use one name at the same time.
    """
    if not member.intrudes and turn.moment.now_ms - member.since_ms > turn.group.settings.heartbeat_ms:
        member.intrudes = True
        detail = f"duplicate id: instance {beat.instance_id} goes on, though {member.instance_id} replaced it"
        _say(turn, beat.client_id, member, detail)


def _compare(turn: Turn, client_id: str, oldest: Member) -> None:
    group = turn.group
    member = group.members[client_id]
    detail = "" if member is oldest else "; ".join(_differences(group, member, oldest))[: config.MAX_DETAIL]
    if detail == group.conflicts.get(client_id, ""):
        return
    if detail:
        group.conflicts[client_id] = detail
        _say(turn, client_id, member, detail)
    else:
        del group.conflicts[client_id]
        turn.say(
            Membership(
                group_id=group.group_id,
                client_id=client_id,
                instance_id=member.instance_id,
                change="agreed",
                epoch=group.epoch,
            )
        )


def _differences(group: Group, member: Member, oldest: Member) -> list[str]:
    """Say what a member wants otherwise than the oldest one, by which the group goes."""
    found = []
    mine, others = member.subscriptions, oldest.subscriptions
    for sign, topics in (("+", mine.keys() - others.keys()), ("-", others.keys() - mine.keys())):
        if topics:
            found.append(f"topics {_named(sign, sorted(topics))} than {group.oldest}")
    for topic in sorted(mine.keys() & others.keys()):
        one, other = mine[topic], others[topic]
        if (one.expression, one.expression_type) != (other.expression, other.expression_type):
            found.append(
                f"{topic} by {one.expression_type} {one.expression!r}, "
                f"{group.oldest} by {other.expression_type} {other.expression!r}"
            )
    if group.settings.strategy is None and member.strategy != oldest.strategy:
        found.append(f"strategy {member.strategy}, the group has {group.oldest}'s {oldest.strategy}")
    if member.orderly != oldest.orderly:
        words = {True: "in order", False: "in any order"}
        found.append(f"consumes {words[member.orderly]}, the group {words[oldest.orderly]} as {group.oldest}")
    return found


def _named(sign: str, topics: list[str]) -> str:
    more = f" and {len(topics) - SHOWN} more" if len(topics) > SHOWN else ""
    return " ".join(f"{sign}{topic}" for topic in topics[:SHOWN]) + more


def _say(turn: Turn, client_id: str, member: Member, detail: str) -> None:
    group = turn.group
    turn.say(
        Membership(
            group_id=group.group_id,
            client_id=client_id,
            instance_id=member.instance_id,
            change="conflict",
            epoch=group.epoch,
            detail=detail[: config.MAX_DETAIL],
        )
    )
