"""How large a soak is."""

from typing import NamedTuple

QUEUES = 32
"""Of each topic at the start."""
_GROUP_CLIENTS = 25
"""Most clients of a group at the start."""


class Shape(NamedTuple):
    """How large a soak is."""

    clients: int
    """At the start."""
    per_process: int
    """Clients of a consumer process."""
    per_second: int
    """Messages of all topics together."""

    @property
    def groups(self) -> list[str]:
        """Names of the groups, each of which reads the topic of the same name."""
        return [f"soak-{number}" for number in range(-(-self.clients // _GROUP_CLIENTS))]
