"""The facts that a strategy may need beyond queues and clients: rooms, weights, pins, and the lag of each queue."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from wakeroll_model.group import Group
from wakeroll_model.known_routes import Routes
from wakeroll_model.queue import Queue


def facts(
    needs: Iterable[str], group: Group, routes: Routes, queues: Sequence[Queue], clients: Sequence[str]
) -> dict[str, Any]:
    """Return the facts that a strategy needs to assign these queues to these clients, by the names in `FACTS`."""
    return {name: FACTS[name](group, routes, queues, clients) for name in needs}


def consumer_rooms(group: Group, _routes: Routes, _queues: Sequence[Queue], clients: Sequence[str]) -> dict[str, str]:
    """Return client -> its room, from its heartbeats."""
    return {client_id: group.members[client_id].room for client_id in clients}


def queue_rooms(
    _group: Group, routes: Routes, queues: Sequence[Queue], _clients: Sequence[str] = ()
) -> dict[Queue, str]:
    """Return queue -> the room of its leader, from the route."""
    return {queue: routed.room for queue, routed in routes.details(queues).items()}


def weights(group: Group, _routes: Routes, _queues: Sequence[Queue], clients: Sequence[str]) -> dict[str, float]:
    """Return client -> its weight: the share of the work that it requests, relative to the others."""
    return {client_id: group.members[client_id].weight for client_id in clients}


def lags(group: Group, routes: Routes, queues: Sequence[Queue], _clients: Sequence[str] = ()) -> dict[Queue, int]:
    """Return queue -> its lag in messages, by the newest route; without queues that have no committed offset.

    The start of a group without a committed offset is a policy that only a client resolves. The lag of a slice is its
    share of the messages in the partition beyond its offset, because its exact number is not known.
    """
    return {
        queue: -(-max(0, (routed.max_offset or 0) - max(group.offsets[queue], routed.min_offset)) // queue.slices)
        for queue, routed in routes.details(queues).items()
        if queue in group.offsets
    }


def pins(group: Group, _routes: Routes, _queues: Sequence[Queue], clients: Sequence[str]) -> dict[str, Any]:
    """Return client -> the parameter `queues` of its own heartbeats; without clients that have none."""
    stated = {client_id: group.members[client_id].strategy_params.get("queues") for client_id in clients}
    return {client_id: queues for client_id, queues in stated.items() if queues is not None}


FACTS: Mapping[str, Callable[[Group, Routes, Sequence[Queue], Sequence[str]], Any]] = {
    "consumer_rooms": consumer_rooms,
    "queue_rooms": queue_rooms,
    "weights": weights,
    "lags": lags,
    "pins": pins,
}
"""Name of a parameter -> the function that computes it."""
