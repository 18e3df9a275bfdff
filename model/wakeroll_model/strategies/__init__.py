"""The assignment strategies, by name.  Each is one module of this package; a new module needs no other change.

A strategy module has `NAME`, and one of these functions, whose signatures are in `wakeroll_model.strategies.registry`:

- `assign` assigns the queues of one topic at a time, as all of RocketMQ's strategies do;
- `assign_all` assigns the queues of all topics of a group at once, and receives their previous owners.

It may also have `NEEDS`, the names of the facts that it requires as parameters (`consumer_rooms`, `queue_rooms`,
`weights`, `lags`, `pins`), `AROUND_ANOTHER = True` if it uses an inner strategy, which is named after a dash or as
`inner`, and `UNLISTED = True` if errors should not propose it.
"""

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any

from wakeroll_model.queue import Queue
from wakeroll_model.strategies.java import java_order, sort_clients, sort_queues
from wakeroll_model.strategies.params import StrategyError, shown
from wakeroll_model.strategies.registry import STRATEGIES, Whole, find, is_whole, listed, needs_of, register

__all__ = ["STRATEGIES", "StrategyError", "Whole", "allocate", "find", "is_whole", "java_order", "listed", "needs_of"]

for _found in pkgutil.iter_modules(__path__):
    register(importlib.import_module(f"{__name__}.{_found.name}"))


def allocate(
    strategy: str,
    queues: Iterable[Queue] | None,
    clients: Iterable[str] | None,
    params: Mapping[str, Any] | None = None,
    *,
    subscriptions: Mapping[str, Iterable[str]] | None = None,
    previous: Mapping[Queue, str] | None = None,
    presorted: bool = False,
) -> dict[str, list[Queue]]:
    """Assign queues to clients by a strategy; the answer of the strategy is not validated.

    Args:
        strategy: name of the strategy, such as ``AVG`` or ``MACHINE_ROOM_NEARBY-AVG``.
        queues: queues of one or more topics, in any order.
        clients: client_ids, in any order; each copy of a duplicate id counts, as in RocketMQ.
        params: parameters of the strategy, as in a client's JSON, and the facts that it needs.
        subscriptions: client -> topics that it subscribes to; None if all clients subscribe to all topics.
        previous: queue -> previous owner; None if no queue had one.
        presorted: whether to keep the order of queues and clients; otherwise they are sorted in Java's order.

    Returns:
        Client -> its queues, topic by topic, for every client; a duplicate id occurs once.

    Raises:
        StrategyError: the strategy does not exist, its parameters are invalid, or it cannot assign these queues.
            RocketMQ's strategies except CONFIG reject an empty list of queues or clients, and an empty client_id.
    """
    found = find(strategy)
    if params is not None and not isinstance(params, Mapping):
        wrong = f"the parameters of {strategy} are {shown(params)}"
        raise StrategyError(f"{wrong}; they must be an object of names and values")
    given = params or {}
    members = list(clients or ()) if presorted else sort_clients(clients or ())
    topics = _by_topic((queues or ()) if presorted else sort_queues(queues or ()))
    wanted = _subscribers(topics, members, subscriptions)
    shares: dict[str, list[Queue]] = {client: [] for client in members}
    answers = []
    if isinstance(found, Whole):
        once = {topic: list(dict.fromkeys(subscribers)) for topic, subscribers in wanted.items()}
        if once:
            answers = [found.assign_all({topic: topics[topic] for topic in once}, once, given, previous or {})]
    elif topics and members:
        answers = [found(topics[topic], subscribers, given) for topic, subscribers in wanted.items()]
    else:
        # Java's strategies receive empty lists too, and reject them with their own errors.
        answers = [found([queue for one in topics.values() for queue in one], members, given)]
    for answer in answers:
        for client, share in answer.items():
            if (before := shares.get(client)) is None:
                shares[client] = list(share)
            else:
                before += share
    return shares


def _by_topic(queues: Iterable[Queue]) -> dict[str, list[Queue]]:
    """Return topic -> its queues; both keep their order."""
    topics: dict[str, list[Queue]] = {}
    for topic, run in groupby(queues, key=attrgetter("topic")):
        topics.setdefault(topic, []).extend(run)
    return topics


def _subscribers(
    topics: Iterable[str], members: list[str], subscriptions: Mapping[str, Iterable[str]] | None
) -> dict[str, list[str]]:
    """Return topic -> its subscribers, in order; topics without subscribers are left out."""
    if subscriptions is None:
        return {topic: members for topic in topics if members}
    wanted: dict[str, list[str]] = {topic: [] for topic in topics}
    for client in members:
        for topic in frozenset(subscriptions.get(client, ())) & wanted.keys():
            wanted[topic].append(client)
    return {topic: clients for topic, clients in wanted.items() if clients}
