"""Assignment of queues with different loads to clients with different weights, with few moves at a time.

The load of a client is the sum of the loads of its queues; its pressure is that sum divided by its weight.  All loads,
weights and limits are integers, so that every deciding comparison is exact.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heappush
from math import inf

from msgspec import Struct

from wakeroll_model.balance.bits import each
from wakeroll_model.balance.regions import NOBODY
from wakeroll_model.balance.takers import FirstTakers, Pressed, Takers

MILLION = 1_000_000
"""The share 1.0 in millionths, the unit of shares."""
MAX_LOOKS = 1_000_000
"""Maximum number of clients that one call of `ease` examines: about half a second.  A move among members with the same
topics examines a few clients; with a thousand topics of different members, all moves would examine 10⁹."""

SMALL = 8
"""An audience is small if all takers outnumber it by more than this factor; a listing of its takers counts as this many
examinations."""


class Weighed(Struct, frozen=True):
    """A queue with its load and its possible owners."""

    load: int
    """Load of the queue; at least 1."""
    audience: int
    """Clients that may own the queue, as bits."""


class Loads:
    """The current owners of all queues, the load of each client, and the clients that can take more."""

    def __init__(
        self, queues: Sequence[Weighed], owners: Sequence[int], weights: Sequence[int], limits: Sequence[int]
    ) -> None:
        """Begin with the previous owners.

        Args:
            queues: the queues; other methods refer to a queue by its index.
            owners: previous owner of each queue; `NOBODY` if none.
            weights: weight of each client, at least 1; twice the weight may have twice the load.
            limits: number of queues that each client should have at most.
        """
        self.owners = list(owners)
        self._queues = queues
        self._before = owners
        self._weights = weights
        self._limits = limits
        self._carries = [0] * len(weights)
        self._count = [0] * len(weights)
        # For each client: audience -> its queues with that audience, as (load, number), the lightest first.
        self._held: list[dict[int, list[tuple[int, int]]]] = [{} for _ in weights]
        for number, (queue, owner) in enumerate(zip(queues, owners, strict=True)):
            if owner != NOBODY:
                self._carries[owner] += queue.load
                self._count[owner] += 1
                self._held[owner].setdefault(queue.audience, []).append((queue.load, number))
        for held in self._held:
            for same_audience in held.values():
                same_audience.sort()
        self._burden = sum(queue.load for queue in queues)
        self._strength = sum(weights)
        self._strongest = max(weights)
        self._takers: Takers | FirstTakers = Takers([])
        """Clients below their limit."""
        self._looks = 0

    def place(self) -> None:
        """Assign every queue without owner, the heaviest first, to the client that has the lowest pressure with it.

        If all possible owners are at their limit, the queue goes to the one that exceeds its limit least.
        """
        self._takers = FirstTakers(self._with_room(), self._classes())
        free = [number for number, owner in enumerate(self.owners) if owner == NOBODY]
        for number in sorted(free, key=lambda number: (-self._queues[number].load, number)):
            queue = self._queues[number]
            client = self._taker(queue.audience, queue.load)
            if client == NOBODY:
                client = min(each(queue.audience), key=lambda one: (self._count[one] / self._limits[one], one))
            self._give(number, client)

    def ease(self, dead_band: int, moves: int) -> int:
        """Move queues from clients with the highest pressure to those with the lowest, as long as it is worthwhile.

        No move brings a client above its limit.  Each move brings a client that is above its limit nearer to it, or
        makes the descending list of pressures lexicographically smaller.  So no state occurs twice.  If the method ends
        with moves left, another call would do nothing.  After `MAX_LOOKS` examinations it ends as if all moves were
        made.

        Args:
            dead_band: relative difference that is ignored, in millionths.
            moves: maximum number of queues that leave their previous owner; other queues may move freely.

        Returns:
            Number of moves left; 0 if more might be worthwhile.
        """
        self._takers = Takers(self._with_room())
        eased, self._looks = True, 0
        while eased and moves:
            eased = False
            waiting = [self._urgency(client) for client in range(len(self._weights))]
            heapify(waiting)
            while waiting and moves:
                urgency = heappop(waiting)
                giver = urgency[-1]
                if urgency != self._urgency(giver) or not (step := self._step_from(giver, dead_band)):
                    continue
                number, taker = step
                moves -= giver == self._before[number]
                self._take(number)
                self._give(number, taker)
                heappush(waiting, self._urgency(giver))
                heappush(waiting, self._urgency(taker))
                eased = True
                if self._looks > MAX_LOOKS:
                    return 0
        return moves

    def _step_from(self, giver: int, dead_band: int) -> tuple[int, int] | None:
        """Return the queue that a client should pass on, and its new owner; None if no move is worthwhile."""
        beyond = self._count[giver] > self._limits[giver]
        takers = self._takers.in_order
        if not takers or (not beyond and self._pressure(giver) <= takers[0][0]):
            return None
        steps = []
        for audience, held in self._held[giver].items():
            taker = self._taker(audience, 0, giver)
            if taker == NOBODY:
                continue
            for load, number in held[:1] if beyond else self._nearest(held, giver, taker):
                if beyond or self._is_worth_while(load, giver, taker, dead_band):
                    steps.append((self._pressed(load, giver, taker), load, number, taker))
        return min(steps)[2:] if steps else None

    def _nearest(self, held: Sequence[tuple[int, int]], giver: int, taker: int) -> Sequence[tuple[int, int]]:
        """Return the queues just below and just above the load whose move would make two pressures equal."""
        strong, other = self._weights[giver], self._weights[taker]
        ideal = (self._carries[giver] * other - self._carries[taker] * strong) // (strong + other)
        at = bisect_right(held, (ideal, len(self._queues)))
        return held[max(0, at - 1) : at + 1]

    def _is_worth_while(self, load: int, giver: int, taker: int, dead_band: int) -> bool:
        """Return whether a move is worthwhile.

        One of the two clients must be off its fair share by more than the dead band.  The taker's pressure with the
        load must be lower than the giver's by more than the dead band too, so that the queue does not return after a
        small change of loads.
        """
        gives, takes = self._carries[giver], self._carries[taker]
        strong, other = self._weights[giver], self._weights[taker]
        above, below = MILLION + dead_band, MILLION - dead_band
        is_pressed = gives * self._strength * MILLION > self._burden * strong * above
        is_spared = takes * self._strength * MILLION < self._burden * other * below
        return (is_pressed or is_spared) and (takes + load) * strong * above < gives * other * MILLION

    def _pressed(self, load: int, giver: int, taker: int) -> float:
        """Return the higher pressure of two clients after a load has moved from one to the other."""
        return max(
            (self._carries[giver] - load) / self._weights[giver], (self._carries[taker] + load) / self._weights[taker]
        )

    def _taker(self, audience: int, load: int, giver: int = NOBODY) -> int:
        """Return the client of an audience, except the giver, that a load presses least; `NOBODY` if none has room."""
        best, least = NOBODY, inf
        for pressure, client in self._candidates(audience):
            self._looks += 1
            # No later client has a lower pressure.  The factor allows for rounding errors of floats.
            if pressure + load / self._strongest >= least * (1 - 1e-12):
                break
            if audience >> client & 1 and client != giver:
                pressed = (self._carries[client] + load) / self._weights[client]
                if pressed < least:
                    best, least = client, pressed
        return best

    def _candidates(self, audience: int) -> Sequence[tuple[float, int]]:
        """Return all takers, or only those of a small audience, in the same order."""
        self._looks += SMALL
        takers = self._takers.in_order
        if audience.bit_count() * SMALL > len(takers):
            return takers
        return sorted((self._pressure(client), client) for client in each(audience) if self._has_room(client))

    def _with_room(self) -> list[Pressed]:
        return [(self._pressure(client), client) for client in range(len(self._weights)) if self._has_room(client)]

    def _classes(self) -> list[Hashable]:
        """Return the class of each client: its weight, and the audiences that it belongs to."""
        audiences: list[list[int]] = [[] for _ in self._weights]
        for number, audience in enumerate(dict.fromkeys(queue.audience for queue in self._queues)):
            for client in each(audience):
                audiences[client].append(number)
        return [(weight, tuple(its)) for weight, its in zip(self._weights, audiences, strict=True)]

    def _pressure(self, client: int) -> float:
        return self._carries[client] / self._weights[client]

    def _urgency(self, client: int) -> tuple[bool, float, int]:
        """Return a sort key: clients above their limits first, then those with the highest pressure."""
        return self._count[client] <= self._limits[client], -self._pressure(client), client

    def _has_room(self, client: int) -> bool:
        return self._count[client] < self._limits[client]

    def _give(self, number: int, client: int) -> None:
        """Assign a queue without owner to a client."""
        queue = self._queues[number]
        self._update(client, queue.load, 1)
        self.owners[number] = client
        insort(self._held[client].setdefault(queue.audience, []), (queue.load, number))

    def _take(self, number: int) -> None:
        """Take a queue from its owner."""
        queue, client = self._queues[number], self.owners[number]
        self._update(client, -queue.load, -1)
        self.owners[number] = NOBODY
        held = self._held[client][queue.audience]
        held.pop(bisect_left(held, (queue.load, number)))

    def _update(self, client: int, load: int, count: int) -> None:
        """Change the load and the number of queues of a client, and its position among the takers."""
        if self._has_room(client):
            self._takers.remove(self._pressure(client), client)
        self._carries[client] += load
        self._count[client] += count
        if self._has_room(client):
            self._takers.add(self._pressure(client), client)
