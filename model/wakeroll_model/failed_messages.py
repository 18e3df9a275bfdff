"""Failed messages: clients' reports about messages that their handlers failed to process, for the record."""

from wakeroll_model.decisions import FailedMessages
from wakeroll_model.events import Failures
from wakeroll_model.records import refuse
from wakeroll_model.turn import Turn


def record(turn: Turn, event: Failures) -> None:
    """Record a client's failures if it is a member; after a loss of state, every client may be a member."""
    group = turn.group
    member = group.members.get(event.client_id)
    if not group.is_learning and (member is None or member.instance_id != event.instance_id):
        found = "no member" if member is None else f"instance {member.instance_id!r} now"
        detail = f"failures of {event.client_id!r}, instance {event.instance_id!r}: the client is {found}"
        turn.emit(refuse("failures", detail, event))
        return
    for failure in event.failures:
        turn.emit(
            FailedMessages(
                group_id=group.group_id,
                client_id=event.client_id,
                queue=failure.queue,
                first_offset=failure.first_offset,
                last_offset=failure.last_offset,
                messages=failure.messages,
                attempt=failure.attempt,
                outcome="retry" if failure.level else "dead",
                level=failure.level,
                error=failure.error,
            )
        )
