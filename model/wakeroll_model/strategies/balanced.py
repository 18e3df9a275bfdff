"""BALANCED: the most even assignment over all topics, and among these one with the fewest moves.

The most even assignment has the smallest sum of squares of the clients' numbers of queues.  If all members subscribe to
the same topics, these numbers differ by at most 1.  A move is a queue whose owner could have kept it and loses it.  The
strategy ignores which topic a queue belongs to, so one client may own most queues of a topic; SPREAD avoids that.

>>> assign_all({"t": [Queue("t", "", i) for i in range(3)]}, {"t": ["a", "b"]}, {}, {Queue("t", "", 0): "b"})["b"]
[Queue(t-0)]
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from wakeroll_model.balance import levels, quotas
from wakeroll_model.balance.gather import gathered
from wakeroll_model.balance.hand_out import hand_out
from wakeroll_model.balance.regions import NOBODY, Region
from wakeroll_model.balance.transport import Offer
from wakeroll_model.queue import Queue
from wakeroll_model.strategies.by_region import share_regions

NAME = "BALANCED"


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
    if not region.is_uniform:
        return region.shares(_by_level(region))
    return region.dealt() if region.is_new else region.shares(_by_quota(region))


def _by_quota(region: Region) -> Iterable[int]:
    return quotas.share(list(chain.from_iterable(region.owners)), len(region.clients))


def _by_level(region: Region) -> Iterable[int]:
    offers = []
    for audience, owners in zip(region.audiences, region.owners, strict=True):
        stays = Counter(owners)
        del stays[NOBODY]
        offers.append(Offer(len(owners), len(owners), audience, stays))
    given = levels.share(offers, [0] * len(region.clients))
    return chain.from_iterable(map(hand_out, region.owners, given))
