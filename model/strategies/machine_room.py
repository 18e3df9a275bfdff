"""MACHINE_ROOM: only queues of some rooms, evenly.  RocketMQ's `AllocateMessageQueueByMachineRoom`.

A broker is named ``room@name``; `consumeridcs` are the rooms whose queues are shared, wherever the clients are.

>>> queues = [Queue("orders", broker, number) for broker in ("hz@a", "sh@a") for number in range(3)]
>>> shares = assign(queues, ["a", "b"], {"consumeridcs": ["hz"]})
>>> {client: [str(queue) for queue in share] for client, share in shares.items()}
{'a': ['orders@hz@a-0', 'orders@hz@a-2'], 'b': ['orders@hz@a-1']}
"""

from collections.abc import Mapping, Sequence
from typing import Any

from model.queue import Queue
from model.strategies.java import check
from model.strategies.params import texts
from model.strategies.strategy_error import StrategyError

NAME = "MACHINE_ROOM"


def assign(queues: Sequence[Queue], clients: Sequence[str], params: Mapping[str, Any], /) -> dict[str, list[Queue]]:
    """Give each client a block of n // m queues, and to the first clients one each of those left at the end.

    So the blocks are not AVG's.  Queues of other rooms are nobody's.  Raises `StrategyError` where RocketMQ breaks:
    without `consumeridcs`, if any broker has a room.
    """
    rooms = texts(params, "consumeridcs")
    check(queues, clients)
    room_of = {broker: _room(broker) for broker in {queue.broker for queue in queues}}
    if rooms is None:
        if any(room is not None for room in room_of.values()):
            raise StrategyError(
                "MACHINE_ROOM needs consumeridcs, the rooms whose queues are shared; RocketMQ says: Cannot invoke "
                '"java.util.Set.contains(Object)" because "this.consumeridcs" is null'
            )
        rooms = frozenset()
    kept = [queue for queue in queues if room_of[queue.broker] in rooms]
    size = len(kept) // len(clients)
    rest = kept[size * len(clients) :]
    shares: dict[str, list[Queue]] = {}
    for i, client in enumerate(clients):
        shares.setdefault(client, kept[i * size : (i + 1) * size] + rest[i : i + 1])
    return shares


def _room(broker: str) -> str | None:
    """Return the first of exactly two parts around "@", else None; empty parts at the end do not count, as in Java."""
    parts = broker.rstrip("@").split("@")
    return parts[0] if len(parts) == 2 else None
