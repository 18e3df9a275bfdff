"""SPREAD: every topic as even as can be, with that all topics together, and then with as few moves as can be.

Of a topic with n queues and m subscribers, each gets n // m or one more.  Who gets the one more is chosen so that the
clients' numbers of queues over all topics are as even as can be under that rule (the smallest sum of squares), and of
these choices one that moves the fewest queues.  If all members subscribe to the same topics, their numbers differ by 1
at most, just as with BALANCED.

>>> topics = {name: [Queue(name, "", i) for i in range(5)] for name in ("t", "u")}
>>> {client: len(queues) for client, queues in assign_all(topics, dict.fromkeys(topics, ["a", "b"]), {}, {}).items()}
{'a': 5, 'b': 5}
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from model.balance import levels
from model.balance.bits import each
from model.balance.hand_out import hand_out
from model.balance.regions import NOBODY, Region
from model.balance.transport import Offer
from model.queue import Queue
from model.strategies.by_region import share_regions

NAME = "SPREAD"


def assign_all(
    topics: Mapping[str, Sequence[Queue]],
    subscribers: Mapping[str, Sequence[str]],
    _params: Mapping[str, Any],
    previous: Mapping[Queue, str],
    /,
) -> dict[str, list[Queue]]:
    """Share all topics at once; of several sharings that are equally good, the answer is always the same one."""
    return share_regions(topics, subscribers, previous, _share)


def _share(region: Region) -> dict[str, list[Queue]]:
    return region.dealt() if region.is_uniform and region.is_new else region.shares(_by_topic(region))


def _by_topic(region: Region) -> Iterable[int]:
    """Give each subscriber of a topic its n // m queues; left to decide are the extras, at most one a client."""
    held = [0] * len(region.clients)
    sizes, extras = [], []
    for audience, owners in zip(region.audiences, region.owners, strict=True):
        size, more = divmod(len(owners), audience.bit_count())
        if size:
            for client in each(audience):
                held[client] += size
        # Who had more than that much keeps one more if it gets an extra.
        stays = {client: 1 for client, had in Counter(owners).items() if had > size and client != NOBODY}
        sizes.append(size)
        extras.append(Offer(more, 1, audience, stays))
    given = levels.share(extras, held)
    shared = []
    for audience, owners, size, extra in zip(region.audiences, region.owners, sizes, given, strict=True):
        numbers = {client: size + extra.get(client, 0) for client in each(audience)} if size else extra
        shared.append(hand_out(owners, numbers))
    return chain.from_iterable(shared)
