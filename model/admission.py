"""Whether a group has room for one more client."""

from model import broadcast
from model.events import Heartbeat
from model.group import Turn


def refusal(turn: Turn, beat: Heartbeat) -> str:
    """Return why a client cannot join, as its first heartbeat asks for it; empty if it can."""
    group, most = turn.group, turn.group.settings.max_members
    if len(group.members) >= most:
        return f"the group has {len(group.members)} members; max_members is {most}"
    if beat.mode == "broadcasting":
        return broadcast.refusal(turn, [wanted.topic for wanted in beat.subscriptions])
    return ""
