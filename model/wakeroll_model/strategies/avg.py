"""AVG: contiguous blocks of queues; the first clients get one more.  RocketMQ's `AllocateMessageQueueAveragely`.

>>> assign(range(10), ["a", "b", "c", "d"], {})
{'a': [0, 1, 2], 'b': [3, 4, 5], 'c': [6, 7], 'd': [8, 9]}
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from wakeroll_model.strategies.java import check

NAME = "AVG"

Q = TypeVar("Q")


def assign(queues: Sequence[Q], clients: Sequence[str], _params: Mapping[str, Any], /) -> dict[str, list[Q]]:
    """Assign n // m consecutive queues to each client, and one more to the first n % m clients."""
    check(queues, clients)
    size, more = divmod(len(queues), len(clients))
    shares: dict[str, list[Q]] = {}
    for i, client in enumerate(islice(clients, len(queues))):  # the others get none
        start = i * size + min(i, more)
        # A duplicate client_id keeps its first share, and no client gets the second one (RocketMQ's #1547).
        shares.setdefault(client, list(queues[start : start + size + (i < more)]))
    return shares
