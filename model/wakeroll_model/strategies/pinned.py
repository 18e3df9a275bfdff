"""PINNED: each queue goes to the member that states that it has the queue.

The strategy decides nothing.  It is for groups whose queues another coordinator assigns, such as a consumer group of
Kafka that is watched from outside: each member's own `strategy_params` name the queues that it has there.

>>> topics = {"orders": [Queue("orders", "", number) for number in range(4)]}
>>> pins = {"a": {"orders": [0, 1]}, "b": {"orders": [1, 3]}}
>>> shares = assign_all(topics, {"orders": ["a", "b"]}, {"pins": pins}, {Queue("orders", "", 1): "b"})
>>> {client: [queue.queue_id for queue in share] for client, share in shares.items()}
{'a': [0], 'b': [1, 3]}
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wakeroll_model.queue import Queue
from wakeroll_model.strategies.params import StrategyError, mapping, shown

NAME = "PINNED"
NEEDS = ("pins",)
UNLISTED = True


def assign_all(
    topics: Mapping[str, Sequence[Queue]],
    subscribers: Mapping[str, Sequence[str]],
    params: Mapping[str, Any],
    previous: Mapping[Queue, str],
    /,
) -> dict[str, list[Queue]]:
    """Assign each queue to the member that states it; queues that no member states stay unassigned.

    If several members state a queue, it stays with its previous owner if that is one of them; else it goes to the first
    of them in order.  Queues that do not exist, and topics that the member does not subscribe to, are ignored.

    Args:
        topics: topic -> its queues, in order.
        subscribers: topic -> clients that subscribe to it, in order.
        params: `pins`, client -> topic, or ``topic@broker`` -> numbers of its queues; absent for a client without any.
        previous: queue -> previous owner.

    Raises:
        StrategyError: the statement of a client is invalid.
    """
    pins = mapping(params, "pins") or {}
    existing = frozenset(queue for queues in topics.values() for queue in queues)
    may = {topic: frozenset(clients) for topic, clients in subscribers.items()}
    owners: dict[Queue, str] = {}
    for client_id in dict.fromkeys(client_id for clients in subscribers.values() for client_id in clients):
        for queue in _stated(client_id, pins):
            if queue not in existing or client_id not in may[queue.topic]:
                continue
            if queue not in owners or previous.get(queue) == client_id:
                owners[queue] = client_id
    shares: dict[str, list[Queue]] = {}
    for queue in sorted(owners):
        shares.setdefault(owners[queue], []).append(queue)
    return shares


def _stated(client_id: str, pins: Mapping[Any, Any]) -> Iterator[Queue]:
    """Yield the queues that a client states."""
    for name, numbers in (mapping(pins, client_id) or {}).items():
        topic, _, broker = str(name).partition("@")
        if not isinstance(numbers, list | tuple):
            raise StrategyError(f"queues of {client_id} has {shown(numbers)} for {name}; it must be a list of numbers")
        for number in numbers:
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise StrategyError(
                    f"queues of {client_id} has {shown(number)} for {name}; it must be the number of a queue"
                )
            yield Queue(topic, broker, number)
