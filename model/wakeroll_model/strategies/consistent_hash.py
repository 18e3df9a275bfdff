"""CONSISTENT_HASH: a queue goes to the next client on a ring.  RocketMQ's `AllocateMessageQueueConsistentHash`.

A client that joins or leaves moves only its own queues; in return, the shares are uneven.

>>> shares = assign([Queue("orders", "b-1", number) for number in range(6)], ["a", "b"], {})
>>> {client: [queue.queue_id for queue in shares[client]] for client in sorted(shares)}
{'a': [5], 'b': [0, 1, 2, 3, 4]}
"""

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import md5
from typing import Any

from wakeroll_model.queue import Queue
from wakeroll_model.strategies.java import check, text_of
from wakeroll_model.strategies.params import StrategyError, whole_number

NAME = "CONSISTENT_HASH"

VIRTUAL_NODES = 10
"""Default of `virtual_node_cnt`, the number of points of each client on the ring, as in RocketMQ."""
MAX_VIRTUAL_NODES = 1_000
RING = 2**32
"""Number of positions on the ring: the number of values of a hash of four bytes."""
MAX_POINTS = 100_000
"""Maximum number of points of all clients: such a ring takes 0.3 s, and the shard's other groups wait for it."""
KEPT_CLIENTS = 4_096
"""Number of clients whose points are cached."""


def assign(queues: Sequence[Queue], clients: Sequence[str], params: Mapping[str, Any], /) -> dict[str, list[Queue]]:
    """Assign each queue to the client with the next point on the ring; each client has `virtual_node_cnt` points.

    With 0 points no queue is assigned.

    Raises:
        StrategyError: the number of points is below 0 or above its bounds, or `check` rejects the queues or clients.
    """
    count = whole_number(params, "virtual_node_cnt", VIRTUAL_NODES)
    if count < 0:
        raise StrategyError(f"illegal virtualNodeCnt :{count}; it must be 0 or more")
    if count > MAX_VIRTUAL_NODES or count * len(clients) > MAX_POINTS:
        bounds = f"at most {MAX_VIRTUAL_NODES} per client and {MAX_POINTS} in total"
        raise StrategyError(f"virtual_node_cnt is {count} for {len(clients)} clients; expected {bounds}")
    check(queues, clients)
    if not count:
        return {}
    shares: defaultdict[str, list[Queue]] = defaultdict(list)
    if len(queues) * 4 < count and len(set(clients)) == len(clients):
        # A group may have many small topics with different clients; a ring for each would cost more than it saves.
        for queue in queues:
            shares[_nearest(clients, count, _hash(text_of(queue)))].append(queue)
        return shares
    points, owners = _ring(tuple(clients), count)
    for queue in queues:
        # After the last point follows the first one.
        shares[owners[bisect_left(points, _hash(text_of(queue))) % len(points)]].append(queue)
    return shares


def _nearest(clients: Sequence[str], count: int, at: int) -> str:
    """Return the client with the next point on the ring; of two equal points, that of the later client counts."""
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
    """Return the sorted points of a client, independently of other clients."""
    return array("I", sorted({_hash(f"{client}-{k}") for k in range(count)}))


@lru_cache(maxsize=4)  # the topics of a group mostly have the same clients
def _ring(clients: tuple[str, ...], count: int) -> tuple[list[int], list[str]]:
    """Return the sorted points, and the client of each; of two equal points, that of the later client counts."""
    ring: dict[int, str] = {}
    sizes = dict.fromkeys(clients, 0)
    for client in clients:
        # The second copy of a duplicate client_id continues its numbering at the number of points that it has.
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
    """Return the first four bytes of the MD5 as an unsigned number, as `ConsistentHashRouter` does."""
    # Java's UTF-8 encodes half a surrogate pair as "?", as "replace" does.
    digest = md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")
