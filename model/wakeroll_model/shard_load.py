"""The load of a shard: how much of each bounded resource it uses; see `config.Limits`."""

from msgspec import Struct


class Load(Struct, array_like=True, frozen=True):
    """Bounded resources that one group or queue, or a whole shard, uses."""

    entities: int = 0
    """Number of groups or queues with a stored state."""
    bytes: int = 0
    """Size of the stored heartbeats and settings of groups, in bytes."""
    pulls: int = 0
    """Number of held pulls."""
    lives: int = 0
    """Number of instances whose newest pull is answered and remembered."""
    filters: int = 0
    """Cost of the different expressions of held pulls, summed over queues; see `PullFilter.cost`."""

    def __add__(self, other: "Load") -> "Load":
        return Load(
            self.entities + other.entities,
            self.bytes + other.bytes,
            self.pulls + other.pulls,
            self.lives + other.lives,
            self.filters + other.filters,
        )

    def __sub__(self, other: "Load") -> "Load":
        return Load(
            self.entities - other.entities,
            self.bytes - other.bytes,
            self.pulls - other.pulls,
            self.lives - other.lives,
            self.filters - other.filters,
        )


NOTHING = Load()
