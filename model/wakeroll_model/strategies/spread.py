"""SPREAD: every topic evenly; under that rule, all topics together as evenly as possible; then the fewest moves.

Of a topic with n queues and m subscribers, each subscriber gets n // m queues or one more.  The clients that get one
more are chosen so that the numbers of queues over all topics are the most even ones under that rule (the smallest sum
of squares), and of these choices one that moves the fewest queues.  If all members subscribe to the same topics, their
numbers differ by at most 1, as with BALANCED.

>>> topics = {name: [Queue(name, "", i) for i in range(5)] for name in ("t", "u")}
>>> {client: len(queues) for client, queues in assign_all(topics, dict.fromkeys(topics, ["a", "b"]), {}, {}).items()}
{'a': 5, 'b': 5}
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from wakeroll_model.balance import levels
from wakeroll_model.balance.bits import each
from wakeroll_model.balance.gather import gathered
from wakeroll_model.balance.hand_out import hand_out
from wakeroll_model.balance.regions import NOBODY, Region
from wakeroll_model.balance.transport import Offer
from wakeroll_model.queue import Queue
from wakeroll_model.strategies.by_region import share_regions

NAME = "SPREAD"


def assign_all(
    topics: Mapping[str, Sequence[Queue]],
    subscribers: Mapping[str, Sequence[str]],
    _params: Mapping[str, Any],
    previous: Mapping[Queue, str],
    /,
) -> dict[str, list[Queue]]:
    """Assign the queues of all topics at once; among equally good answers the choice is deterministic."""
    return gathered(share_regions(topics, subscribers, previous, _share), topics, previous)


def _share(region: Region) -> dict[str, list[Queue]]:
    return region.dealt() if region.is_uniform and region.is_new else region.shares(_by_topic(region))


def _by_topic(region: Region) -> Iterable[int]:
    """Return the owners of all queues: n // m queues per subscriber of a topic, and at most one extra queue."""
    held = [0] * len(region.clients)
    sizes, extras = [], []
    for audience, owners in zip(region.audiences, region.owners, strict=True):
        size, more = divmod(len(owners), audience.bit_count())
        if size:
            for client in each(audience):
                held[client] += size
        # A client that had more than `size` queues keeps one more if it gets an extra.
        stays = {client: 1 for client, had in Counter(owners).items() if had > size and client != NOBODY}
        sizes.append(size)
        extras.append(Offer(more, 1, audience, stays))
    given = levels.share(extras, held)
    shared = []
    for audience, owners, size, extra in zip(region.audiences, region.owners, sizes, given, strict=True):
        numbers = {client: size + extra.get(client, 0) for client in each(audience)} if size else extra
        shared.append(hand_out(owners, numbers))
    return chain.from_iterable(shared)
