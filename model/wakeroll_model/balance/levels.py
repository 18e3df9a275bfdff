"""The most even assignment with the fewest moves, for any subscriptions.

The most even assignment has the smallest sum of squares of the clients' numbers of queues.  It also has the smallest
largest number, then the smallest second largest number, and so on (Frank and Murota, Decreasing Minimization on
M-convex Sets, 2018).
"""

from collections.abc import Mapping, Sequence

from wakeroll_model.balance.bits import each
from wakeroll_model.balance.transport import Offer, Transport


def share(offers: Sequence[Offer], held: Sequence[int]) -> list[dict[int, int]]:
    """Assign the offers so that the clients' numbers of queues are the most even ones, with the fewest moves.

    If possible, every client gets `level` or `level + 1` queues.  If not, subscriptions force some clients above that.
    The clients whose surplus no other client can take have their minimum in every most even assignment (proof in
    docs/strategies.md).  So they and the other clients are solved separately, each part with its own level.

    Args:
        offers: the topics.
        held: number of further queues of each client, which count and stay.

    Returns:
        Client -> number of queues, for each offer.
    """
    given: list[dict[int, int]] = [{} for _ in offers]
    todo = [({i: offer for i, offer in enumerate(offers) if offer.supply}, (1 << len(held)) - 1)]
    while todo:
        numbered, clients = todo.pop()
        if not numbered:
            continue
        members = list(each(clients))
        level, at_level = _level(sum(offer.supply for offer in numbered.values()), [held[client] for client in members])
        # Every client needs level + 1; blanks, at most one per client, fill the place of a missing queue.
        below = [client for client in members if held[client] <= level]
        blanks = Offer(at_level, 1, sum(1 << client for client in below), {})
        needs = {client: level + 1 - held[client] for client in below}
        transport = Transport([*numbered.values(), blanks], needs, len(held))
        if forced := transport.solve():
            assert forced != clients, "all of them cannot have more than there is"
            theirs, others = _split(numbered, forced)
            todo += [(theirs, forced), (others, clients & ~forced)]
        else:
            for i, its_given in zip(numbered, transport.given, strict=False):
                given[i] |= its_given
    return given


def _level(supply: int, held: Sequence[int]) -> tuple[int, int]:
    """Return the level that the lowest clients reach with a supply, and how many of them stay at it (not one above).

    >>> _level(5, [0, 1, 9])  # 3 and 3: the first two rise to the level
    (3, 2)
    """
    total = supply
    ordered = sorted(held)
    for count, lowest in enumerate(ordered, start=1):
        total += lowest
        level, above = divmod(total, count)
        if count == len(ordered) or level < ordered[count]:
            break
    return level, count - above


def _split(offers: Mapping[int, Offer], forced: int) -> tuple[dict[int, Offer], dict[int, Offer]]:
    """Return the part of each offer that the forced clients must take, and the part for the others."""
    theirs: dict[int, Offer] = {}
    others: dict[int, Offer] = {}
    for i, offer in offers.items():
        outside = offer.takers & ~forced
        must = max(0, offer.supply - offer.most * outside.bit_count())
        for part, supply, takers in (theirs, must, offer.takers & forced), (others, offer.supply - must, outside):
            if supply:
                stays = {client: queues for client, queues in offer.stays.items() if takers >> client & 1}
                part[i] = Offer(supply, offer.most, takers, stays)
    return theirs, others
