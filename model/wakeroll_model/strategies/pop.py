"""POP: several clients read one queue, message by message.  RocketMQ's `QueryAssignmentProcessor.allocate4Pop`.

With POP the broker distributes single messages, so a queue can have many readers.  Queue -1 stands for any queue of its
broker.

>>> queues = [Queue("orders", "b-1", number) for number in range(4)]
>>> shares = assign(queues, ["a", "b", "c", "d"], {"pop_share_queue_num": 1})
>>> {client: [queue.queue_id for queue in share] for client, share in shares.items()}
{'a': [0, 1], 'b': [1, 2], 'c': [2, 3], 'd': [0, 3]}
"""

from collections.abc import Mapping, Sequence
from typing import Any

from wakeroll_model.config import MAX_ANSWERS
from wakeroll_model.queue import Queue
from wakeroll_model.strategies.java import check
from wakeroll_model.strategies.params import StrategyError, whole_number
from wakeroll_model.strategies.registry import find_inner

NAME = "POP"
AROUND_ANOTHER = True

ANY_QUEUE = -1


def assign(queues: Sequence[Queue], clients: Sequence[str], params: Mapping[str, Any], /) -> dict[str, list[Queue]]:
    """Assign to each client its own share and the shares of the `pop_share_queue_num` clients after it, in queue order.

    Args:
        queues: queues of one topic, in order.
        clients: client_ids, in order.
        params: `pop_share_queue_num`, by default -1; if it is 0 or less, or includes all other clients, every client
            gets queue -1 of every broker.  `inner` (or `strategy`, its name in a client's request to the broker) is the
            strategy that computes the shares, by default AVG.  With more clients than queues each client gets one
            queue, and the inner strategy is not used.

    Raises:
        StrategyError: the inner strategy does not exist or fails, or the answer is larger than `MAX_ANSWERS`.
    """
    inner = find_inner(params.get("inner") or params.get("strategy") or "AVG")
    others = whole_number(params, "pop_share_queue_num", -1)
    if others <= 0 or others >= len(clients) - 1:
        brokers = dict.fromkeys(Queue(queue.topic, queue.broker, ANY_QUEUE) for queue in queues)
        if len(brokers) * len(clients) > MAX_ANSWERS:
            found = f"{len(brokers)} brokers and {len(clients)} clients"
            raise StrategyError(
                f"each client gets a queue of each broker: {found}; expected at most {MAX_ANSWERS} queues"
            )
        return {client: list(brokers) for client in clients}
    if len(clients) > len(queues):
        check(queues, list(map(str.strip, clients)))
        turns = dict(zip(reversed(clients), reversed(range(len(clients))), strict=True))  # of copies, the first counts
        return {client: [queues[turn % len(queues)]] for client, turn in turns.items()}
    if len(queues) * (others + 1) > MAX_ANSWERS:
        most = f"expected at most {MAX_ANSWERS} queues, copies included"
        raise StrategyError(f"pop_share_queue_num is {others} for {len(queues)} queues; {most}")
    return _joined(queues, clients, inner(queues, clients, params), others)


def _joined(
    queues: Sequence[Queue], clients: Sequence[str], own: Mapping[str, Sequence[Queue]], others: int
) -> dict[str, list[Queue]]:
    """Return client -> its own share and those of the next `others` clients, cyclically."""
    rank = {queue: i for i, queue in enumerate(queues)}
    ranks = {client: [rank[queue] for queue in share if queue in rank] for client, share in own.items()}
    shares: dict[str, list[Queue]] = {}
    for i, client in enumerate(clients):
        if client not in shares:
            sharers = (clients[k % len(clients)] for k in range(i, i + others + 1))
            together = {one for sharer in sharers for one in ranks.get(sharer, ())}
            shares[client] = [queues[one] for one in sorted(together)]
    return shares
