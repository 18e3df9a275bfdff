"""Queues carried from topics to clients: everybody gets exactly what it needs, and as few as possible are moved.

A transportation problem, solved by the primal-dual method (Ahuja, Magnanti and Orlin, Network Flows, chapter 9): all is
left where it was, which moves nothing, and then what is too much somewhere is carried to where it lacks, always by a
way that costs the fewest further moves.  Queues of a topic are alike, so nodes are clients and topics, never queues.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from model.balance.bits import each, first


class Offer(Struct):
    """What a topic has to give, and to whom."""

    supply: int
    """Queues; all of them must be given."""
    most: int
    """Queues that one client can take."""
    takers: int
    """Clients that can take some, as bits."""
    stays: dict[int, int]
    """Client -> queues that it had, at most `most`; to give it these again is no move."""


class Transport:
    """A flow from offers to clients, on its way to being complete.

    Nodes are the clients by their numbers, and behind them the offers.  A way begins where there is too much: at an
    offer with queues left, or at a client with more than it needs.  It goes by turns from an offer to a client that
    takes one, and from a client to an offer that gets one back.  It ends where there is too little: at a client that
    lacks one, or at an offer that has given more than it has.  A step costs a move if a client gives back what it had
    before, pays one back if a client takes again what it had, and is free otherwise.
    """

    def __init__(self, offers: Sequence[Offer], needs: Mapping[int, int], clients: int) -> None:
        """Leave everything where it was.

        Args:
            offers: the topics.
            needs: client -> queues that it must get, exactly; in all, as many as the offers have.
            clients: the clients' numbers are below this.
        """
        self.given = [dict(offer.stays) for offer in offers]
        """Of each offer: client -> queues."""
        self._offers = offers
        self._clients = clients
        # Of each node, the nodes one step away, as bits: for a move, for nothing, or with a move paid back.
        self._dear = [0] * clients + [0] * len(offers)
        self._free = [0] * clients + [offer.takers for offer in offers]
        self._back = [0] * clients + [0] * len(offers)
        # What each node lacks; below 0, what it has too much.
        self._lacks = [needs.get(client, 0) for client in range(clients)]
        for node, offer in enumerate(offers, start=clients):
            for client, queues in offer.stays.items():
                self._dear[client] |= 1 << node
                self._lacks[client] -= queues
                if queues == offer.most:
                    self._free[node] ^= 1 << client
            self._lacks.append(sum(offer.stays.values()) - offer.supply)
        self._ends = sum(1 << node for node, lacks in enumerate(self._lacks) if lacks > 0)
        self._starts = sum(1 << node for node, lacks in enumerate(self._lacks) if lacks < 0)
        # Nodes by their cost from the nearest start, as bits; and those that the present round has not tried.
        self._at: list[int] = []
        self._untried = 0

    def solve(self) -> int:
        """Complete the flow, with the fewest moves.

        Returns:
            0; or, if it cannot be completed, the clients, as bits, that must take more than they need: all those to
            whom what is too much can be passed on, none of whom has room for it.
        """
        self._deal()
        while self._starts:
            if stuck := self._measure():
                return stuck
            while self._carry():
                pass
        return 0

    def _deal(self) -> None:
        """Give what is left to clients that lack some, one at a time, like cards: ways of a single free step."""
        turn = 0
        for node in range(self._clients, len(self._lacks)):
            while self._lacks[node] < 0 and (takers := self._free[node] & self._ends):
                client = first(takers >> turn << turn or takers)
                self._push([node, client], 1)
                turn = client + 1

    def _measure(self) -> int:
        """Find each node's cost from the nearest start, as far as the cheapest way is long.

        Returns:
            0; or, if there is no way, all clients that are reached, as bits.
        """
        # within[cost]: nodes that cost at most so much; todo[cost]: those from which no step has been tried.
        within, todo = [self._starts], [self._starts]
        cost = 0
        while todo[cost] or not within[cost] & self._ends:
            if todo[cost]:
                node = first(todo[cost])
                todo[cost] ^= 1 << node
                if len(todo) == cost + 1:
                    within.append(within[cost])
                    todo.append(0)
                _reach(within, todo, cost, self._free[node])
                _reach(within, todo, cost + 1, self._dear[node])
                if cost and self._back[node]:
                    _reach(within, todo, cost - 1, self._back[node])
                    cost -= bool(todo[cost - 1])
            elif cost + 1 < len(todo):
                cost += 1
            else:
                return within[cost] & ((1 << self._clients) - 1)
        self._at = [within[0], *(within[c] & ~within[c - 1] for c in range(1, cost + 1)), 0]
        return 0

    def _carry(self) -> bool:
        """Push along cheapest ways, past what was a dead end before; return whether there was a way."""
        self._untried = sum(self._at)
        pushed = False
        for start in each(self._starts):
            while self._lacks[start] < 0 and (way := self._way(start)):
                self._push(way, self._bears(way))
                pushed = True
        return pushed

    def _way(self, start: int) -> list[int]:
        """Return a cheapest way from a start to an end, by untried nodes; empty if there is none."""
        way, costs = [start], [0]
        self._untried &= ~(1 << start)
        while way:
            node, cost = way[-1], costs[-1]
            free = self._free[node] & self._at[cost] & self._untried
            dear = self._dear[node] & self._at[cost + 1] & self._untried
            back = self._back[node] & self._at[cost - 1] & self._untried if cost else 0
            steps = free | dear | back
            if not steps:
                way.pop()
                costs.pop()
                continue
            step = first(steps & self._ends or steps)
            bit = 1 << step
            way.append(step)
            costs.append(cost + bool(dear & bit) - bool(back & bit))
            if self._ends & bit:
                # Only dead ends stay tried.
                for node in way:
                    self._untried |= 1 << node
                return way
            self._untried ^= bit
        return []

    def _push(self, way: Sequence[int], queues: int) -> None:
        """Carry so many queues from the start of a way to its end."""
        for node, after in pairwise(way):
            if node >= self._clients:
                self._give(node, after, queues)
            else:
                self._give(after, node, -queues)
        self._lacks[way[0]] += queues
        self._lacks[way[-1]] -= queues
        if not self._lacks[way[0]]:
            self._starts ^= 1 << way[0]
        if not self._lacks[way[-1]]:
            self._ends ^= 1 << way[-1]

    def _bears(self, way: Sequence[int]) -> int:
        """Return how many queues a way can carry before the price of one of its steps changes."""
        bears = min(-self._lacks[way[0]], self._lacks[way[-1]])
        for node, after in pairwise(way):
            offer, client = max(node, after) - self._clients, min(node, after)
            has, had = self.given[offer].get(client, 0), self._offers[offer].stays.get(client, 0)
            if node > after:
                bears = min(bears, had - has if has < had else self._offers[offer].most - has)
            else:
                bears = min(bears, has - had if has > had else has)
        return bears

    def _give(self, node: int, client: int, queues: int) -> None:
        """Give a client so many more queues of an offer, and see which steps there are now between the two."""
        offer = self._offers[node - self._clients]
        given = self.given[node - self._clients]
        has, had = given.get(client, 0) + queues, offer.stays.get(client, 0)
        given[client] = has
        _put(self._back, node, client, has < had)
        _put(self._free, node, client, had <= has < offer.most)
        _put(self._dear, client, node, 0 < has <= had)
        _put(self._free, client, node, has > had)


def _reach(within: list[int], todo: list[int], cost: int, nodes: int) -> None:
    """Enter nodes that can be reached at a cost, unless they cost no more already."""
    nodes &= ~within[cost]
    if nodes:
        todo[cost] |= nodes
        for i in range(cost, len(within)):
            within[i] |= nodes


def _put(steps: list[int], node: int, other: int, is_there: bool) -> None:
    """Enter or remove a step from `node` to the other."""
    if is_there:
        steps[node] |= 1 << other
    else:
        steps[node] &= ~(1 << other)
