"""The allocation strategies, by name: one file each, and nothing else changes when one is added.

A strategy module has `NAME`, and one of these functions; `model.strategies.registry` has their signatures:

- `assign` shares one topic at a time, as all of RocketMQ's strategies do;
- `assign_all` shares all topics of a group at once, knowing who had what.

It may also have `NEEDS`, the facts that it wants among its parameters (`consumer_rooms`, `queue_rooms`, `weights`,
`lags`), and `AROUND_ANOTHER = True`, if it shares by another one, whose name comes after a dash or as `inner`.
"""

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any

from model.queue import Queue
from model.strategies.java import java_order, sort_clients, sort_queues
from model.strategies.params import shown
from model.strategies.registry import STRATEGIES, Whole, find, is_whole, needs_of, register
from model.strategies.strategy_error import StrategyError

__all__ = ["STRATEGIES", "StrategyError", "Whole", "allocate", "find", "is_whole", "java_order", "needs_of"]

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
    """Share queues among clients as a strategy does it; its answer is not checked.

    Args:
        strategy: its name, like ``AVG`` or ``MACHINE_ROOM_NEARBY-AVG``.
        queues: of one or more topics, in any order.
        clients: who may get them, in any order; of a duplicate id each copy counts, as in RocketMQ.
        params: the strategy's own parameters, as a client's JSON has them, and the facts that it needs.
        subscriptions: client -> the topics it wants; None when all want all.
        previous: queue -> its owner until now; None when there was none.
        presorted: True when queues and clients are in Java's order already, or must stay in the order given.

    Returns:
        client -> its queues, topic by topic; every client is in it, each id once.

    Raises:
        StrategyError: no such strategy, its parameters are wrong, or it cannot share these queues.  RocketMQ's refuse
            an empty list of queues or of clients and an empty client id, all but CONFIG.
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
        # Java's strategies are asked about empty lists too, and say what is wrong with them.
        answers = [found([queue for one in topics.values() for queue in one], members, given)]
    for answer in answers:
        for client, share in answer.items():
            shares.setdefault(client, []).extend(share)
    return shares


def _by_topic(queues: Iterable[Queue]) -> dict[str, list[Queue]]:
    """Return topic -> its queues, in the order in which both come."""
    topics: dict[str, list[Queue]] = {}
    for topic, run in groupby(queues, key=attrgetter("topic")):
        topics.setdefault(topic, []).extend(run)
    return topics


def _subscribers(
    topics: Iterable[str], members: list[str], subscriptions: Mapping[str, Iterable[str]] | None
) -> dict[str, list[str]]:
    """Return topic -> the members that want it, in order; without the topics that nobody wants."""
    if subscriptions is None:
        return {topic: members for topic in topics if members}
    wanted: dict[str, list[str]] = {topic: [] for topic in topics}
    for client in members:
        for topic in frozenset(subscriptions.get(client, ())) & wanted.keys():
            wanted[topic].append(client)
    return {topic: clients for topic, clients in wanted.items() if clients}
