"""MACHINE_ROOM_NEARBY-...: queues are assigned to clients of the same room, by an inner strategy.

RocketMQ's `AllocateMachineRoomNearby`.  A room can also be one of Kafka's racks.

>>> queues = [Queue("orders", broker, number) for broker in ("b-1", "b-2") for number in range(2)]
>>> brokers, clients = {"b-1": "r1", "b-2": "r2"}, {"a": "r1", "b": "r2", "c": "r2"}
>>> shares = assign(queues, list(clients), {"inner": "AVG", "broker_rooms": brokers, "consumer_rooms": clients})
>>> {client: [str(queue) for queue in share] for client, share in shares.items()}
{'a': ['orders@b-1-0', 'orders@b-1-1'], 'b': ['orders@b-2-0'], 'c': ['orders@b-2-1']}
"""

from collections.abc import Mapping, Sequence
from typing import Any

from wakeroll_model.queue import Queue
from wakeroll_model.strategies.java import check, java_order, text_of
from wakeroll_model.strategies.params import StrategyError, mapping, text_in, texts_in
from wakeroll_model.strategies.registry import find_inner

NAME = "MACHINE_ROOM_NEARBY"
AROUND_ANOTHER = True
NEEDS = ("consumer_rooms", "queue_rooms")


def assign(queues: Sequence[Queue], clients: Sequence[str], params: Mapping[str, Any], /) -> dict[str, list[Queue]]:
    """Assign the queues of each room to its clients, and those of a room without clients to all clients.

    Clients of other rooms never take queues of a room that has clients.  Each room without clients starts again with
    the first client, so that the first clients collect the remainders (RocketMQ's #2443).

    Args:
        queues: queues of one topic, in order.
        clients: client_ids, in order.
        params: `inner`, the strategy within a room; `consumer_rooms`, client -> room; `broker_rooms`, broker -> room;
            `queue_rooms`, queue -> room, for queues whose broker is not in `broker_rooms`; and the parameters of the
            inner strategy.

    Raises:
        StrategyError: there is no inner strategy, there are no rooms, or the room of a queue or client is not known.
    """
    if params.get("inner") is None:
        raise StrategyError(f"allocateMessageQueueStrategy is null: name the strategy inside a room, as in {NAME}-AVG")
    inner = find_inner(params["inner"])
    of_client = mapping(params, "consumer_rooms")
    of_broker, of_queue = mapping(params, "broker_rooms"), mapping(params, "queue_rooms")
    if of_client is None and of_broker is None and of_queue is None:
        raise StrategyError("machineRoomResolver is null: set consumer_rooms and broker_rooms")
    check(queues, clients)
    rooms: dict[str, list[Queue]] = {}
    for queue in queues:
        room = text_in(of_broker, "broker_rooms", queue.broker) or text_in(of_queue, "queue_rooms", queue)
        if not room:
            raise StrategyError(f"Machine room is null for mq {text_of(queue)}: no broker_rooms or queue_rooms")
        rooms.setdefault(room, []).append(queue)
    neighbours: dict[str, list[str]] = {}
    for client, room in zip(clients, texts_in(of_client, "consumer_rooms", clients), strict=True):
        if not room:
            raise StrategyError(f"Machine room is null for consumer id {client}: no consumer_rooms")
        neighbours.setdefault(room, []).append(client)

    shares: dict[str, list[Queue]] = {}
    # Rooms with clients come first, because RocketMQ's answer also begins with a client's own room.
    for room in sorted(rooms, key=lambda room: (room not in neighbours, java_order(room))):
        for client, share in inner(rooms[room], neighbours.get(room, clients), params).items():
            shares.setdefault(client, []).extend(share)
    return shares
