"""Who should own what: a group's strategy asked topic by topic, and its answer checked."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from model.decisions import Unassigned
from model.facts import facts
from model.group import Group
from model.queue import Queue
from model.routes import Routes
from model.strategies import StrategyError, allocate, is_whole, needs_of

RETRY_PREFIX = "%RETRY%"
"""RocketMQ's retry topics exist once something was retried; their absence is no news."""


class Target(Struct):
    """What a group's ownership should become."""

    strategy: str
    owners: dict[Queue, str]
    """queue -> client, sorted by queue."""
    unassigned: list[Unassigned]
    notes: list[str]
    spread: int = 0
    """Largest minus smallest number of queues of a member."""
    queues: int = 0
    """Queues of the members' topics."""
    looks_at_lag: bool = False
    """Whether the strategy may answer otherwise when nothing but the queues' lag has changed."""


class _Shared(Struct):
    """Topics that a strategy is asked about in one call."""

    queues: list[Queue]
    subscribers: dict[str, list[str]]
    """Topic -> the clients that want it, sorted."""

    @property
    def clients(self) -> list[str]:
        """Who wants any of them, sorted."""
        return sorted({client_id for clients in self.subscribers.values() for client_id in clients})

    @property
    def names(self) -> str:
        """The topics, for a sentence."""
        return ", ".join(sorted(self.subscribers))


def compute(group: Group, routes: Routes) -> Target:
    """Ask the group's strategy who should own which queue of every subscribed topic.

    A topic is shared among its subscribers only.  A strategy that fails on a topic fails it alone, one that looks at
    all topics at once fails all: the last target stays, as far as those members still subscribe it, with a note.
    """
    strategy, params = strategy_of(group)
    target = Target(strategy, {}, [], [])
    topics: list[_Shared] = []
    for topic in group.topics:
        queues = routes.queues(topic)
        if queues is None:
            if not topic.startswith(RETRY_PREFIX):
                target.notes.append(f"{topic}: not routed yet")
            _keep(target, group, topic)
        elif not queues:
            target.notes.append(f"{topic}: has no queues")
        else:
            subscribers = sorted(name for name, member in group.members.items() if topic in member.subscriptions)
            topics.append(_Shared(queues, {topic: subscribers}))
    is_for_all, needs = _nature(strategy)
    if is_for_all and topics:
        together = [queue for shared in topics for queue in shared.queues]
        topics = [_Shared(together, {topic: names for shared in topics for topic, names in shared.subscribers.items()})]
    for shared in topics:
        _share(target, group, shared, facts(needs, group, routes, shared.queues) | params)
    target.queues = len(target.owners) + len(target.unassigned)
    target.spread = spread(group.members, target.owners)
    target.looks_at_lag = "lags" in needs
    return target


def _nature(strategy: str) -> tuple[bool, Sequence[str]]:
    """Return whether a strategy is asked once for all topics, and what it needs to know; an unknown one: nothing."""
    try:
        return is_whole(strategy), needs_of(strategy)
    except StrategyError:
        return False, ()


def _share(target: Target, group: Group, shared: _Shared, params: Mapping[str, Any]) -> None:
    """Let the strategy share these topics, and take what is valid of its answer."""
    subscriptions: dict[str, list[str]] = {client_id: [] for client_id in shared.clients}
    for topic, clients in shared.subscribers.items():
        for client_id in clients:
            subscriptions[client_id].append(topic)
    strategy = target.strategy
    try:
        shares = allocate(
            strategy,
            shared.queues,
            subscriptions,
            params,
            subscriptions=subscriptions,
            previous=group.target,
            presorted=True,
        )
        left_out = f"{strategy} leaves it out"
    except Exception as error:  # a strategy may be anybody's code, and its parameters are a client's
        said = str(error) if isinstance(error, StrategyError) else f"{strategy} failed with {error!r}"
        target.notes.append(f"{shared.names}: {said}; its last target stays")
        shares = _last_shares(group, shared)
        left_out = said
    _take(target, group, shared, shares, left_out)


def spread(clients: Iterable[str], owners: Mapping[Queue, str]) -> int:
    """Return the largest minus the smallest number of queues of these clients."""
    sizes = dict.fromkeys(clients, 0)
    for client_id in owners.values():
        if client_id in sizes:  # a target names clients that went since
            sizes[client_id] += 1
    return max(sizes.values()) - min(sizes.values()) if sizes else 0


def strategy_of(group: Group) -> tuple[str, dict[str, object]]:
    """Return the strategy's name and parameters: as configured, else the oldest member's."""
    if group.settings.strategy is not None:
        return group.settings.strategy, group.settings.strategy_params or {}
    for oldest in group.members.values():
        return oldest.strategy, group.settings.strategy_params or oldest.strategy_params
    return "", {}


def _last_shares(group: Group, shared: _Shared) -> dict[str, list[Queue]]:
    shares: dict[str, list[Queue]] = {client_id: [] for client_id in shared.clients}
    for queue in shared.queues:
        if (client_id := group.target.get(queue)) in shared.subscribers[queue.topic]:
            shares[client_id].append(queue)
    return shares


def _take(target: Target, group: Group, shared: _Shared, shares: Mapping[str, Sequence[Queue]], left_out: str) -> None:
    """Take a strategy's answer as far as it is valid: known queues, subscribers only, one owner a queue.

    A queue claimed by several stays with its owner if that is one of them, else goes to the first in order; one that
    nobody gets is unassigned, for the reason `left_out`.
    """
    given: dict[Queue, str] = {}
    wanted = frozenset(shared.queues)
    may = {topic: frozenset(clients) for topic, clients in shared.subscribers.items()}
    odd = 0
    for client_id in sorted(shares):
        for queue in shares[client_id]:
            if queue not in wanted or client_id not in may[queue.topic]:
                odd += 1
            elif queue not in given or group.owners.get(queue) == client_id:
                given[queue] = client_id
    if odd:
        answers = f"{odd} answers of {target.strategy}"
        target.notes.append(f"{shared.names}: {answers} name unknown queues or clients; ignored")
    for queue in shared.queues:
        if queue in given:
            target.owners[queue] = given[queue]
        else:
            target.unassigned.append(Unassigned(queue, left_out))


def _keep(target: Target, group: Group, topic: str) -> None:
    """Leave the queues of a topic whose route is not known with those who hold them."""
    for queue, client_id in sorted(group.owners.items()):
        if queue.topic == topic and topic in group.members[client_id].subscriptions:
            target.owners[queue] = client_id
