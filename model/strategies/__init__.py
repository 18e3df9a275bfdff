"""The allocation strategies, by name: one file each, and nothing else changes when one is added.

A strategy module has `NAME`, and `assign(queues, clients, params)`, which gets the queues of one topic and the clients
that want it, both in order, and returns client -> its queues.
"""

import importlib
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from model.queue import Queue
from model.strategies.errors import StrategyError

__all__ = ["STRATEGIES", "Strategy", "StrategyError", "allocate"]


class Strategy(Protocol):
    """How the queues of one topic are shared among its subscribers."""

    def __call__(
        self, queues: Sequence[Queue], clients: Sequence[str], params: Mapping[str, Any], /
    ) -> dict[str, list[Queue]]:
        """Return client -> its queues, in order; raises `StrategyError`."""
        ...


def _find_all() -> dict[str, Strategy]:
    modules = (importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
    return {module.NAME: module.assign for module in modules if hasattr(module, "NAME")}


STRATEGIES: Mapping[str, Strategy] = _find_all()
"""Every strategy by its name, as heartbeats and `configure` say it."""


def allocate(
    strategy: str,
    queues: Iterable[Queue],
    clients: Iterable[str],
    params: Mapping[str, Any] | None = None,
    *,
    subscriptions: Mapping[str, Iterable[str]] | None = None,
    presorted: bool = False,
) -> dict[str, list[Queue]]:
    """Share queues among clients as a strategy does it; its answer is not checked.

    Args:
        strategy: its name, like ``AVG``.
        queues: of one or more topics, in any order.
        clients: who may get them, in any order.
        params: the strategy's own parameters.
        subscriptions: client -> the topics it wants; None when all want all.
        presorted: True when queues and clients are in Java's order already, or must stay in the order given.

    Returns:
        client -> its queues, topic by topic; every client is in it.

    Raises:
        StrategyError: no such strategy, or it cannot share these queues.
    """
    if strategy not in STRATEGIES:
        raise StrategyError(f"no strategy {strategy!r}; there are: {', '.join(sorted(STRATEGIES))}")
    assign = STRATEGIES[strategy]
    members = list(clients) if presorted else sorted(clients, key=java_order)
    topics: dict[str, list[Queue]] = {}
    for queue in queues if presorted else sorted(queues, key=_java_order_of_queue):
        topics.setdefault(queue.topic, []).append(queue)
    shares: dict[str, list[Queue]] = {client: [] for client in members}
    wanted = None if subscriptions is None else {client: frozenset(topics) for client, topics in subscriptions.items()}
    for topic, its_queues in topics.items():
        subscribers = members if wanted is None else [client for client in members if topic in wanted.get(client, ())]
        if subscribers:
            for client, share in assign(its_queues, subscribers, params or {}).items():
                shares.setdefault(client, []).extend(share)
    return shares


def java_order(text: str) -> bytes:
    """Sort strings as Java does: by UTF-16 code units, so that an emoji comes before U+E000."""
    return text.encode("utf-16-be", "surrogatepass")


def _java_order_of_queue(queue: Queue) -> tuple[bytes, bytes, int]:
    """Sort queues as `MessageQueue.compareTo` does: topic, broker, then the number as a number."""
    return java_order(queue.topic), java_order(queue.broker), queue.queue_id
