"""The clients that can take more queues, the one with the lowest pressure first."""

from bisect import bisect_left, insort
from collections.abc import Hashable, Sequence

Pressed = tuple[float, int]
"""(Pressure, client)."""


class Takers:
    """All clients that can take more."""

    def __init__(self, clients: Sequence[Pressed]) -> None:
        self._all = sorted(clients)

    @property
    def in_order(self) -> Sequence[Pressed]:
        """The clients, the one with the lowest pressure first."""
        return self._all

    def add(self, pressure: float, client: int) -> None:
        """Add a client."""
        insort(self._all, (pressure, client))

    def remove(self, pressure: float, client: int) -> None:
        """Remove a client that was added with this pressure."""
        del self._all[bisect_left(self._all, (pressure, client))]


class FirstTakers:
    """Only the first client of each class; the clients of a class have the same weight and the same topics.

    Of a class, the first client is the best owner of any load. Few weights and subscriptions differ in most groups, so
    there are few first clients.
    """

    def __init__(self, clients: Sequence[Pressed], classes: Sequence[Hashable]) -> None:
        """Begin with these clients; `classes` has the class of each client."""
        groups: dict[Hashable, list[Pressed]] = {}
        for one in sorted(clients):
            groups.setdefault(classes[one[1]], []).append(one)
        self._class_of = [groups.setdefault(its_class, []) for its_class in classes]
        self._first = sorted(group[0] for group in groups.values() if group)

    @property
    def in_order(self) -> Sequence[Pressed]:
        """The first clients, the one with the lowest pressure first."""
        return self._first

    def add(self, pressure: float, client: int) -> None:
        """Add a client."""
        its_class, one = self._class_of[client], (pressure, client)
        if not its_class or one < its_class[0]:
            if its_class:
                del self._first[bisect_left(self._first, its_class[0])]
            insort(self._first, one)
        insort(its_class, one)

    def remove(self, pressure: float, client: int) -> None:
        """Remove a client that was added with this pressure."""
        its_class, one = self._class_of[client], (pressure, client)
        place = bisect_left(its_class, one)
        del its_class[place]
        if place == 0:
            del self._first[bisect_left(self._first, one)]
            if its_class:
                insort(self._first, its_class[0])
