"""The most even sharing there is, and with it the fewest moves, whoever subscribes to what.

Most even means the smallest sum of squares of the clients' numbers of queues.  That is also the sharing whose largest
number is smallest, then whose second largest is, and so on (Frank and Murota, Decreasing Minimization on M-convex Sets,
2018).
"""

from collections.abc import Mapping, Sequence

from model.balance.bits import each
from model.balance.transport import Offer, Transport


def share(offers: Sequence[Offer], held: Sequence[int]) -> list[dict[int, int]]:
    """Share what is offered so that the clients' numbers of queues are as even as can be, with the fewest moves.

    Everybody is brought to one level or to one above it, if that can be done.  If not, some clients are forced beyond.
    Those whose overload cannot be passed on have as little as they can in every most even sharing (docs/strategies.md
    has the proof), so they and the others are two groups that share nothing more, each with a level of its own.

    Args:
        offers: the topics.
        held: queues that each client has besides; they count, and stay.

    Returns:
        For each offer: client -> queues.
    """
    given: list[dict[int, int]] = [{} for _ in offers]
    todo = [({i: offer for i, offer in enumerate(offers) if offer.supply}, (1 << len(held)) - 1)]
    while todo:
        numbered, clients = todo.pop()
        if not numbered:
            continue
        members = list(each(clients))
        level, at_level = _level(sum(offer.supply for offer in numbered.values()), [held[client] for client in members])
        # All get one above the level, but blanks, one each at most, take the place of queues for those who do not.
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
    """Pour a supply onto the lowest: return the level, and how many that could rise above it stay at it.

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
    """Return what the forced clients must take of each offer, and what is left to the others."""
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
