"""MACHINE_ROOM: an even assignment of the queues of some rooms only.  RocketMQ's `AllocateMessageQueueByMachineRoom`.

Brokers are named ``room@name``.  `consumeridcs` lists the rooms whose queues are assigned; the clients' rooms do not
matter.

>>> queues = [Queue("orders", broker, number) for broker in ("hz@a", "sh@a") for number in range(3)]
>>> shares = assign(queues, ["a", "b"], {"consumeridcs": ["hz"]})
>>> {client: [str(queue) for queue in share] for client, share in shares.items()}
{'a': ['orders@hz@a-0', 'orders@hz@a-2'], 'b': ['orders@hz@a-1']}
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from wakeroll_model.queue import Queue
from wakeroll_model.strategies.java import check
from wakeroll_model.strategies.params import StrategyError, texts

NAME = "MACHINE_ROOM"


def assign(queues: Sequence[Queue], clients: Sequence[str], params: Mapping[str, Any], /) -> dict[str, list[Queue]]:
    """Assign n // m consecutive queues to each client, and one each of the n % m last queues to the first clients.

    So the blocks differ from those of AVG.  Queues of other rooms stay unassigned.

    Raises:
        StrategyError: `consumeridcs` is absent and a broker has a room, where RocketMQ throws; or `check` rejects the
            queues or clients.
    """
    rooms = texts(params, "consumeridcs")
    check(queues, clients)
    room_of = {broker: _room(broker) for broker in {queue.broker for queue in queues}}
    if rooms is None:
        if any(room is not None for room in room_of.values()):
            raise StrategyError(
                "MACHINE_ROOM requires consumeridcs, the rooms whose queues are assigned; RocketMQ's error: "
                'Cannot invoke "java.util.Set.contains(Object)" because "this.consumeridcs" is null'
            )
        rooms = frozenset()
    kept = [queue for queue in queues if room_of[queue.broker] in rooms]
    size = len(kept) // len(clients)
    rest = kept[size * len(clients) :]
    shares: dict[str, list[Queue]] = {}
    for i, client in enumerate(islice(clients, len(kept))):  # the others get none
        shares.setdefault(client, kept[i * size : (i + 1) * size] + rest[i : i + 1])
    return shares


def _room(broker: str) -> str | None:
    """Return the first of exactly two parts around "@", else None; empty parts at the end are ignored, as in Java."""
    parts = broker.rstrip("@").split("@")
    return parts[0] if len(parts) == 2 else None
