"""BALANCED: over all topics as even as can be, and then with as few moves as can be.

Even means the smallest sum of squares of the clients' numbers of queues: in a group whose members all subscribe to the
same topics, these differ by 1 at most.  A move is a queue whose owner could have kept it and does not.  Topics are not
looked at: one client may own most of one; SPREAD avoids that.

>>> assign_all({"t": [Queue("t", "", i) for i in range(3)]}, {"t": ["a", "b"]}, {}, {Queue("t", "", 0): "b"})["b"]
[Queue(topic='t', broker='', queue_id=0)]
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from model.balance import levels, quotas
from model.balance.hand_out import hand_out
from model.balance.regions import NOBODY, Region
from model.balance.transport import Offer
from model.queue import Queue
from model.strategies.by_region import share_regions

NAME = "BALANCED"


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
