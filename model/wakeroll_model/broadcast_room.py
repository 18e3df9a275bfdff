"""Room in a broadcasting group: its members may have a limited number of queues together."""

from wakeroll_model.config import Limits
from wakeroll_model.group import Group


class BroadcastRoom:
    """How many more queues the members of a broadcasting group may have together, while queues come and go."""

    def __init__(self, group: Group, limits: Limits) -> None:
        """Count the queues that the members have now."""
        self.left = limits.max_broadcast * group.limit_times - held(group)
        """Number of queues; below 0 if the limit was lowered."""

    def take(self, queues: int) -> None:
        """Note that the members have so many queues more; fewer if it is below 0."""
        self.left -= queues


def held(group: Group) -> int:
    """Return how many queues the members of a broadcasting group have together."""
    return sum(len(member.owned) for member in group.members.values())
