"""CONSISTENT_HASH: a queue goes to the next client on a ring.  RocketMQ's `AllocateMessageQueueConsistentHash`.

Who joins or leaves moves only its own queues; the price is that shares are uneven.

>>> shares = assign([Queue("orders", "b-1", number) for number in range(6)], ["a", "b"], {})
>>> {client: [queue.queue_id for queue in share] for client, share in shares.items()}
{'a': [5], 'b': [0, 1, 2, 3, 4]}
"""

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import md5
from typing import Any

from model.queue import Queue
from model.strategies.java import check, text_of
from model.strategies.params import whole_number
from model.strategies.strategy_error import StrategyError

NAME = "CONSISTENT_HASH"

VIRTUAL_NODES = 10
"""Points of a client on the ring, where `virtual_node_cnt` does not say otherwise; RocketMQ's default."""
MAX_VIRTUAL_NODES = 1_000
RING = 2**32
"""Points that there may be: as many as a hash of four bytes has values."""
MAX_POINTS = 100_000
"""Points of all clients: a ring this large takes 0.3 s, and a shard's other groups wait."""
KEPT_CLIENTS = 4_096
"""Clients whose points are kept from one topic to the next."""


def assign(queues: Sequence[Queue], clients: Sequence[str], params: Mapping[str, Any], /) -> dict[str, list[Queue]]:
    """Give each queue to the client whose point on the ring is the next one, `virtual_node_cnt` points a client.

    With 0 points nobody gets anything.  Raises `StrategyError` for a number of points below 0 or beyond the bounds.
    """
    count = whole_number(params, "virtual_node_cnt", VIRTUAL_NODES)
    if count < 0:
        raise StrategyError(f"illegal virtualNodeCnt :{count}; it must be 0 or more")
    if count > MAX_VIRTUAL_NODES or count * len(clients) > MAX_POINTS:
        bounds = f"at most {MAX_VIRTUAL_NODES} a client and {MAX_POINTS} in all"
        raise StrategyError(f"virtual_node_cnt is {count} for {len(clients)} clients; there may be {bounds}")
    check(queues, clients)
    shares: dict[str, list[Queue]] = {client: [] for client in clients}
    if not count:
        return shares
    if len(set(clients)) == len(clients) and len(queues) * 4 < count:
        # A group may have many small topics, each with clients of its own: no ring is worth its price there.
        for queue in queues:
            shares[_nearest(clients, count, _hash(text_of(queue)))].append(queue)
        return shares
    points, owners = _ring(tuple(clients), count)
    for queue in queues:
        # Beyond the last point the ring starts again.
        shares[owners[bisect_left(points, _hash(text_of(queue))) % len(points)]].append(queue)
    return shares


def _nearest(clients: Sequence[str], count: int, at: int) -> str:
    """Return whose point is the next one on the ring; where two fall together, the later client's counts."""
    nearest, owner = 0, ""
    for client in clients:
        points = _points(client, count)
        place = bisect_left(points, at)
        point = points[place] if place < len(points) else points[0] + RING
        if not owner or point <= nearest:
            nearest, owner = point, client
    return owner


@lru_cache(maxsize=KEPT_CLIENTS)
def _points(client: str, count: int) -> Sequence[int]:
    """Return the points of a client that is alone on its ring, in order."""
    return array("I", sorted({_hash(f"{client}-{k}") for k in range(count)}))


@lru_cache(maxsize=4)  # a group's topics are shared one after the other, mostly among the same clients
def _ring(clients: tuple[str, ...], count: int) -> tuple[list[int], list[str]]:
    """Return the points in order, and whose each is; where two fall together, the later client's counts."""
    ring: dict[int, str] = {}
    sizes = dict.fromkeys(clients, 0)
    for client in clients:
        # A client that is named twice goes on counting at the number of points that it has.
        first = sizes[client]
        for k in range(first, first + count):
            point = _hash(f"{client}-{k}")
            if point in ring:
                sizes[ring[point]] -= 1
            ring[point] = client
            sizes[client] += 1
    points = sorted(ring)
    return points, [ring[point] for point in points]


def _hash(text: str) -> int:
    """Return the first four bytes of the MD5, unsigned: `ConsistentHashRouter`'s own hash."""
    # Half a surrogate pair is "?" in Java's UTF-8, as it is with "replace".
    digest = md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")
