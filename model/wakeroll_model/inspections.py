"""Inspections: an operator requests a report from a member, and its process records the answer, with its stacks.

For RocketMQ's `consumerRunningInfo` with `jstack`, the broker calls the client. Here, request and answer are records of
the log. So the answer can be read later too, by everybody who may read the decisions.
"""

from wakeroll_model import assignment_limits, config, kicks
from wakeroll_model.events import Inspect, Report
from wakeroll_model.records import refuse
from wakeroll_model.strategies import pinned
from wakeroll_model.target import strategy_of
from wakeroll_model.turn import Turn

RULE = "inspect"
"""Rule of the rejection of an `inspect`, and of a `report` without a request."""


def ask(turn: Turn, event: Inspect) -> None:
    """Request a report from a member; a repeated request has no effect."""
    if not turn.accepts(event.request_id, RULE, _wrong(turn, event)):
        return
    member = turn.group.members[event.client_id]
    member.is_inspected = True
    detail = f"{event.by} asks what it does{event.reason and ': '}{event.reason}"
    turn.note(event.client_id, member, "inspected", assignment_limits.shortened(detail))


def record(turn: Turn, event: Report) -> None:
    """Record the report of a member, once for each request, so that a client cannot fill the log."""
    member = turn.group.members.get(event.client_id)
    if member is None or member.instance_id != event.instance_id or not member.is_inspected:
        detail = f"nobody has asked {event.client_id!r}, instance {event.instance_id!r}, what it does"
        turn.emit(refuse(RULE, detail, event))
        return
    member.is_inspected = False
    turn.note(event.client_id, member, "reported", event.text, most=config.MAX_REPORT)


def _wrong(turn: Turn, event: Inspect) -> str:
    """Return why a request cannot be carried out; empty if it can."""
    group = turn.group
    if event.client_id not in group.members:
        return kicks.no_member(group, event.client_id)
    if strategy_of(group)[0] == pinned.NAME:
        return (
            f"the members of group {group.group_id!r} are those of a group of Kafka that is watched; they cannot answer"
        )
    return ""
