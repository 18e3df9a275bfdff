"""Assignment of exact numbers of queues to clients, with the fewest moves.

This is a transportation problem, solved by the primal-dual method (Ahuja, Magnanti and Orlin, Network Flows, chapter
9).  The flow begins with the previous owners, which costs no move.  Then each surplus is carried to a deficit, always
along a path with the fewest further moves.  The queues of a topic are interchangeable, so nodes are clients and topics.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from wakeroll_model.balance.bits import each, first


class Offer(Struct):
    """The queues of a topic that are to be assigned."""

    supply: int
    """Number of queues; all of them must be assigned."""
    most: int
    """Maximum number of queues per client."""
    takers: int
    """Clients that can take queues, as bits."""
    stays: dict[int, int]
    """Client -> number of queues that it had, at most `most`; to assign them again is no move."""


class Transport:
    """A flow from offers to clients.

    Nodes are the clients by their numbers, followed by the offers.  A path (`way`) begins at a surplus: an offer with
    queues left, or a client with more than it needs.  It alternates between steps from an offer to a client, which
    takes a queue, and steps from a client to an offer, which gets a queue back.  It ends at a deficit: a client with
    less than it needs, or an offer that has assigned more than its supply.  A step costs one move if a client returns a
    queue that it had before, costs -1 if a client takes such a queue again, and costs 0 otherwise.
    """

    def __init__(self, offers: Sequence[Offer], needs: Mapping[int, int], clients: int) -> None:
        """Begin with the previous owners.

        Args:
            offers: the topics.
            needs: client -> exact number of queues that it must get; the sum is the supply of all offers.
            clients: upper bound (exclusive) of the clients' numbers.
        """
        self.given = [dict(offer.stays) for offer in offers]
        """Client -> number of queues, for each offer."""
        self._offers = offers
        self._clients = clients
        # For each node, the nodes one step away, as bits: at a cost of 1, 0 or -1 moves.
        self._dear = [0] * clients + [0] * len(offers)
        self._free = [0] * clients + [offer.takers for offer in offers]
        self._back = [0] * clients + [0] * len(offers)
        # Deficit of each node; a negative value is a surplus.
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
        # Nodes by their cost from the nearest start, as bits; and the nodes that the current round has not tried.
        self._at: list[int] = []
        self._untried = 0

    def solve(self) -> int:
        """Complete the flow with the fewest moves.

        Returns:
            0 if the flow is complete; otherwise the clients, as bits, that must take more than they need: all clients
            that the surplus can reach, none of which has a deficit.
        """
        self._deal()
        while self._starts:
            if stuck := self._measure():
                return stuck
            while self._carry():
                pass
        return 0

    def _deal(self) -> None:
        """Assign queues without owner in turn to clients with a deficit: these are paths of one step at no cost."""
        turn = 0
        for node in range(self._clients, len(self._lacks)):
            while self._lacks[node] < 0 and (takers := self._free[node] & self._ends):
                client = first(takers >> turn << turn or takers)
                self._push([node, client], 1)
                turn = client + 1

    def _measure(self) -> int:
        """Compute the cost of each node from the nearest start, up to the cost of the cheapest path.

        Returns:
            0 if there is a path; otherwise all reachable clients, as bits.
        """
        # within[cost]: nodes with at most this cost; todo[cost]: nodes whose steps have not been tried.
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
        """Push along cheapest paths, each dead end tried once; return whether there was a path."""
        self._untried = sum(self._at)
        pushed = False
        for start in each(self._starts):
            while self._lacks[start] < 0 and (way := self._way(start)):
                self._push(way, self._bears(way))
                pushed = True
        return pushed

    def _way(self, start: int) -> list[int]:
        """Return a cheapest path from a start to an end through untried nodes; empty if there is none."""
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
                # Nodes of the path may be tried again; only dead ends stay excluded.
                for node in way:
                    self._untried |= 1 << node
                return way
            self._untried ^= bit
        return []

    def _push(self, way: Sequence[int], queues: int) -> None:
        """Move a number of queues from the start of a path to its end."""
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
        """Return the number of queues that a path can carry before the cost of one of its steps changes."""
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
        """Assign more (or, if negative, fewer) queues of an offer to a client, and update the steps between the two."""
        offer = self._offers[node - self._clients]
        given = self.given[node - self._clients]
        has, had = given.get(client, 0) + queues, offer.stays.get(client, 0)
        given[client] = has
        _put(self._back, node, client, has < had)
        _put(self._free, node, client, had <= has < offer.most)
        _put(self._dear, client, node, 0 < has <= had)
        _put(self._free, client, node, has > had)


def _reach(within: list[int], todo: list[int], cost: int, nodes: int) -> None:
    """Record nodes that can be reached at a cost, unless their known cost is not higher."""
    nodes &= ~within[cost]
    if nodes:
        todo[cost] |= nodes
        for i in range(cost, len(within)):
            within[i] |= nodes


def _put(steps: list[int], node: int, other: int, is_there: bool) -> None:
    """Add or remove the step from `node` to `other`."""
    if is_there:
        steps[node] |= 1 << other
    else:
        steps[node] &= ~(1 << other)
