"""The load of a shard: how much of each bounded resource it uses; see `config.Limits`."""

from msgspec import Struct

from wakeroll_model.config import Limits


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

    def used(self, limits: Limits, most_entities: int) -> float:
        """Return the largest share of a limit that a shard with this load uses; above a limit, events are rejected.

        >>> Load(entities=5, pulls=50_000).used(Limits(), 50)
        0.5
        >>> Load(entities=40, pulls=50_000).used(Limits(max_filters_per_shard=0), 50)
        0.8

        Args:
            limits: the limits of the deployment.
            most_entities: the limit on the number of groups or queues of the shard.

        Returns:
            0 to 1, or more if a limit was lowered. Answered pulls do not count: the oldest ones are forgotten.
        """
        pairs = [
            (self.entities, most_entities),
            (self.bytes, limits.max_shard_bytes),
            (self.pulls, limits.max_holds_per_shard),
            (self.filters, limits.max_filters_per_shard),
        ]
        return max(figure / limit for figure, limit in pairs if limit)


NOTHING = Load()
