"""Queues that weigh differently, shared among clients of different strength, and eased by a few moves at a time.

What a client carries is the sum of its queues' loads; how hard it is pressed is that sum by its weight.  All loads,
weights and limits are whole numbers, so that every comparison that decides is exact.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import inf

from msgspec import Struct

from model.balance.bits import each
from model.balance.regions import NOBODY

MILLION = 1_000_000
"""Shares are counted in millionths."""
MAX_LOOKS = 1_000_000
"""Clients that one call of `ease` may look at: about half a second.  A move among members that want the same topics
takes a few looks; with a thousand topics, each of other members, all moves together would take a thousand million."""

SMALL = 8
"""An audience is small if there are so many times as many takers; to list its takers costs so many looks."""


class Weighed(Struct, frozen=True):
    """A queue, what it weighs, and for whom it is."""

    load: int
    """What it weighs, from 1."""
    audience: int
    """Clients that may have it, as bits."""


class Loads:
    """Who has which queue, what everybody carries, and who can take more."""

    def __init__(
        self, queues: Sequence[Weighed], owners: Sequence[int], weights: Sequence[int], limits: Sequence[int]
    ) -> None:
        """Leave everything where it was.

        Args:
            queues: what is shared; a queue is named by its index here.
            owners: who had each; `NOBODY` if there is none.
            weights: of each client, from 1; who has twice the weight may carry twice as much.
            limits: how many queues each client should have at most.
        """
        self.owners = list(owners)
        self._queues = queues
        self._before = owners
        self._weights = weights
        self._limits = limits
        self._carries = [0] * len(weights)
        self._count = [0] * len(weights)
        # Of each client: audience -> its queues with that audience, as (load, number), the lightest first.
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
        # Those below their limit as (pressure, client), the least pressed first.
        self._takers = sorted(
            (self._pressure(client), client) for client in range(len(weights)) if self._has_room(client)
        )
        self._looks = 0

    def place(self) -> None:
        """Give every queue without owner to somebody, the heaviest first, each to whom it presses least.

        Where all who may have it are at their limit, it goes to the one that is least beyond it.
        """
        free = [number for number, owner in enumerate(self.owners) if owner == NOBODY]
        for number in sorted(free, key=lambda number: (-self._queues[number].load, number)):
            queue = self._queues[number]
            client = self._taker(queue.audience, queue.load)
            if client == NOBODY:
                client = min(each(queue.audience), key=lambda one: (self._count[one] / self._limits[one], one))
            self._give(number, client)

    def ease(self, dead_band: int, moves: int) -> int:
        """Move queues from the hardest pressed to the least pressed, as long as it is worth while.

        No move brings a client beyond its limit.  Each brings one that is beyond nearer to it, or else makes the list
        of pressures, the hardest first, smaller at the first place where it changes.  So no state comes twice; and
        where this ends with moves left, it would do nothing if it were asked again.  After `MAX_LOOKS` it ends as if
        all moves were made.

        Args:
            dead_band: in millionths; differences up to this share are left alone.
            moves: queues that may be taken from those who had them before all this, at most; others move for nothing.

        Returns:
            The moves that are left; 0 if there might be more to do.
        """
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
        """Return the queue that a client should give, and to whom; None to leave all where it is."""
        beyond = self._count[giver] > self._limits[giver]
        if not self._takers or (not beyond and self._pressure(giver) <= self._takers[0][0]):
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
        """Return the queues just below and just above the load that would press two clients equally."""
        strong, other = self._weights[giver], self._weights[taker]
        ideal = (self._carries[giver] * other - self._carries[taker] * strong) // (strong + other)
        at = bisect_right(held, (ideal, len(self._queues)))
        return held[max(0, at - 1) : at + 1]

    def _is_worth_while(self, load: int, giver: int, taker: int, dead_band: int) -> bool:
        """Whether one of two clients is off its fair share, and the taker with the load is clearly pressed less.

        The second asks more than an improvement: the loads must change by the dead band before the queue comes back.
        """
        gives, takes = self._carries[giver], self._carries[taker]
        strong, other = self._weights[giver], self._weights[taker]
        above, below = MILLION + dead_band, MILLION - dead_band
        is_pressed = gives * self._strength * MILLION > self._burden * strong * above
        is_spared = takes * self._strength * MILLION < self._burden * other * below
        return (is_pressed or is_spared) and (takes + load) * strong * above < gives * other * MILLION

    def _pressed(self, load: int, giver: int, taker: int) -> float:
        """Return how hard the harder pressed of two clients is, once the load has gone from one to the other."""
        return max(
            (self._carries[giver] - load) / self._weights[giver], (self._carries[taker] + load) / self._weights[taker]
        )

    def _taker(self, audience: int, load: int, giver: int = NOBODY) -> int:
        """Return whom of an audience, but for the giver, a load presses least; `NOBODY` if none has room."""
        best, least = NOBODY, inf
        for pressure, client in self._candidates(audience):
            self._looks += 1
            # From here on nobody is pressed less, but for rounding, which must not make equals look better.
            if pressure + load / self._strongest >= least * (1 - 1e-12):
                break
            if audience >> client & 1 and client != giver:
                pressed = (self._carries[client] + load) / self._weights[client]
                if pressed < least:
                    best, least = client, pressed
        return best

    def _candidates(self, audience: int) -> Sequence[tuple[float, int]]:
        """Return the takers, or of a small audience only those, in the same order."""
        self._looks += SMALL
        if audience.bit_count() * SMALL > len(self._takers):
            return self._takers
        return sorted((self._pressure(client), client) for client in each(audience) if self._has_room(client))

    def _pressure(self, client: int) -> float:
        return self._carries[client] / self._weights[client]

    def _urgency(self, client: int) -> tuple[bool, float, int]:
        """Sort clients: first those beyond their limits, then the hardest pressed."""
        return self._count[client] <= self._limits[client], -self._pressure(client), client

    def _has_room(self, client: int) -> bool:
        return self._count[client] < self._limits[client]

    def _give(self, number: int, client: int) -> None:
        """Let a client have an queue that nobody has."""
        queue = self._queues[number]
        self._update(client, queue.load, 1)
        self.owners[number] = client
        insort(self._held[client].setdefault(queue.audience, []), (queue.load, number))

    def _take(self, number: int) -> None:
        """Take an queue from whoever has it."""
        queue, client = self._queues[number], self.owners[number]
        self._update(client, -queue.load, -1)
        self.owners[number] = NOBODY
        held = self._held[client][queue.audience]
        held.pop(bisect_left(held, (queue.load, number)))

    def _update(self, client: int, load: int, count: int) -> None:
        """Change what a client carries, and where it stands among the takers."""
        if self._has_room(client):
            self._takers.pop(bisect_left(self._takers, (self._pressure(client), client)))
        self._carries[client] += load
        self._count[client] += count
        if self._has_room(client):
            insort(self._takers, (self._pressure(client), client))
