"""AVG_BY_CIRCLE: queues assigned to the clients in turn.  RocketMQ's `AllocateMessageQueueAveragelyByCircle`.

>>> assign(range(10), ["a", "b", "c", "d"], {})
{'a': [0, 4, 8], 'b': [1, 5, 9], 'c': [2, 6], 'd': [3, 7]}
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from wakeroll_model.strategies.java import check

NAME = "AVG_BY_CIRCLE"

Q = TypeVar("Q")


def assign(queues: Sequence[Q], clients: Sequence[str], _params: Mapping[str, Any], /) -> dict[str, list[Q]]:
    """Assign the queues i, i + m, i + 2m, and so on, to client i of m."""
    check(queues, clients)
    shares: dict[str, list[Q]] = {}
    for i, client in enumerate(islice(clients, len(queues))):  # the others get none
        shares.setdefault(client, list(queues[i :: len(clients)]))
    return shares
