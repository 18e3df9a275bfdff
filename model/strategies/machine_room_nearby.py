"""MACHINE_ROOM_NEARBY-...: queues to clients of the same room, by another strategy.

RocketMQ's `AllocateMachineRoomNearby`.  A room may as well be a rack, as Kafka has them.

>>> queues = [Queue("orders", broker, number) for broker in ("b-1", "b-2") for number in range(2)]
>>> brokers, clients = {"b-1": "r1", "b-2": "r2"}, {"a": "r1", "b": "r2", "c": "r2"}
>>> shares = assign(queues, list(clients), {"inner": "AVG", "broker_rooms": brokers, "consumer_rooms": clients})
>>> {client: [str(queue) for queue in share] for client, share in shares.items()}
{'a': ['orders@b-1-0', 'orders@b-1-1'], 'b': ['orders@b-2-0'], 'c': ['orders@b-2-1']}
"""

from collections.abc import Mapping, Sequence
from typing import Any

from model.queue import Queue
from model.strategies.java import check, java_order, text_of
from model.strategies.params import mapping, text_in
from model.strategies.registry import find_inner
from model.strategies.strategy_error import StrategyError

NAME = "MACHINE_ROOM_NEARBY"
AROUND_ANOTHER = True
NEEDS = ("consumer_rooms", "queue_rooms")


def assign(queues: Sequence[Queue], clients: Sequence[str], params: Mapping[str, Any], /) -> dict[str, list[Queue]]:
    """Share each room's queues among its clients; those of a room without clients among all, room by room in order.

    A room with clients gets no help from others, and each room without starts anew with the first client, so that the
    first clients collect what does not divide (RocketMQ's #2443).

    Args:
        queues: in order.
        clients: in order.
        params: `inner`, the strategy that shares a room; `consumer_rooms`, client -> room; `broker_rooms`, broker ->
            room, or for what that does not name `queue_rooms`, queue -> room; and what the inner strategy takes.

    Raises:
        StrategyError: no inner strategy, no rooms, or a queue or client whose room is not known.
    """
    if params.get("inner") is None:
        raise StrategyError(f"allocateMessageQueueStrategy is null: say which shares a room, like {NAME}-AVG")
    inner = find_inner(params["inner"])
    of_client = mapping(params, "consumer_rooms")
    of_broker, of_queue = mapping(params, "broker_rooms"), mapping(params, "queue_rooms")
    if of_client is None and of_broker is None and of_queue is None:
        raise StrategyError("machineRoomResolver is null: give consumer_rooms and broker_rooms")
    check(queues, clients)
    rooms: dict[str, list[Queue]] = {}
    for queue in queues:
        room = text_in(of_broker, "broker_rooms", queue.broker) or text_in(of_queue, "queue_rooms", queue)
        if not room:
            raise StrategyError(f"Machine room is null for mq {text_of(queue)}: no broker_rooms or queue_rooms")
        rooms.setdefault(room, []).append(queue)
    neighbours: dict[str, list[str]] = {}
    for client in clients:
        room = text_in(of_client, "consumer_rooms", client)
        if not room:
            raise StrategyError(f"Machine room is null for consumer id {client}: no consumer_rooms")
        neighbours.setdefault(room, []).append(client)

    shares: dict[str, list[Queue]] = {client: [] for client in clients}
    # A client's own room first, for it comes first in RocketMQ's answer too.
    for room in sorted(rooms, key=lambda room: (room not in neighbours, java_order(room))):
        for client, share in inner(rooms[room], neighbours.get(room, clients), params).items():
            shares.setdefault(client, []).extend(share)
    return shares
