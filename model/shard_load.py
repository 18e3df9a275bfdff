"""What a shard has of that which the limits of a deployment bound; see `config.Limits`."""

from msgspec import Struct


class Load(Struct, array_like=True, frozen=True):
    """What one group or queue, or all of a shard together, have of that which is bounded."""

    entities: int = 0
    """Groups or queues of which something is kept."""
    bytes: int = 0
    """Kept of the heartbeats and settings of groups."""
    pulls: int = 0
    """That are held."""
    lives: int = 0
    """Whose newest pull is answered and remembered."""
    filters: int = 0
    """Cost of the different expressions of the pulls that are held, summed over queues; see `Wish.cost`."""

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
