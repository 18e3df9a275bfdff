"""Who should own what: a group's strategy asked topic by topic, and its answer checked."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from model.decisions import Unassigned
from model.group import Group
from model.queue import Queue
from model.routes import Routes
from model.strategies import StrategyError, allocate

RETRY_PREFIX = "%RETRY%"
"""RocketMQ's retry topics exist once something was retried; their absence is no news."""


class Target(Struct):
    """What a group's ownership should become."""

    strategy: str
    owners: dict[Queue, str]
    """queue -> client, sorted by queue."""
    unassigned: list[Unassigned]
    notes: list[str]
    spread: int
    """Largest minus smallest number of queues of a member."""


def compute(group: Group, routes: Routes) -> Target:
    """Ask the group's strategy who should own which queue of every subscribed topic.

    A topic is shared among its subscribers only.  A strategy that fails on a topic fails it alone: its last target
    stays, as far as those members still subscribe it, with a note.
    """
    strategy, params = strategy_of(group)
    target = Target(strategy, {}, [], [], 0)
    for topic in group.topics:
        subscribers = sorted(name for name, member in group.members.items() if topic in member.subscriptions)
        queues = routes.queues(topic)
        if queues is None:
            if not topic.startswith(RETRY_PREFIX):
                target.notes.append(f"{topic}: not routed yet")
            _keep(target, group, topic)
            continue
        if not queues:
            target.notes.append(f"{topic}: has no queues")
            continue
        try:
            shares = allocate(strategy, queues, subscribers, params, presorted=True)
            left_out = f"{strategy} leaves it out"
        except Exception as error:  # a strategy may be anybody's code, and its parameters are a client's
            said = str(error) if isinstance(error, StrategyError) else f"{strategy} failed with {error!r}"
            target.notes.append(f"{topic}: {said}; its last target stays")
            shares = _last_shares(group, queues, subscribers)
            left_out = said
        _take(target, group, topic, queues, subscribers, shares, left_out)
    sizes = dict.fromkeys(group.members, 0)
    for client_id in target.owners.values():
        sizes[client_id] += 1
    target.spread = max(sizes.values()) - min(sizes.values()) if sizes else 0
    return target


def strategy_of(group: Group) -> tuple[str, dict[str, object]]:
    """Return the strategy's name and parameters: as configured, else the oldest member's."""
    if group.settings.strategy is not None:
        return group.settings.strategy, group.settings.strategy_params or {}
    for oldest in group.members.values():
        return oldest.strategy, group.settings.strategy_params or oldest.strategy_params
    return "", {}


def _last_shares(group: Group, queues: Sequence[Queue], subscribers: Sequence[str]) -> dict[str, list[Queue]]:
    shares: dict[str, list[Queue]] = {client_id: [] for client_id in subscribers}
    for queue in queues:
        if (client_id := group.target.get(queue)) in shares:
            shares[client_id].append(queue)
    return shares


def _take(
    target: Target,
    group: Group,
    topic: str,
    queues: Sequence[Queue],
    subscribers: Sequence[str],
    shares: Mapping[str, Sequence[Queue]],
    left_out: str,
) -> None:
    """Take a strategy's answer as far as it is valid: known queues, subscribers only, one owner a queue.

    A queue claimed by several stays with its owner if that is one of them, else goes to the first in order; one that
    nobody gets is unassigned, for the reason `left_out`.
    """
    given: dict[Queue, str] = {}
    wanted = frozenset(queues)
    odd = 0
    for client_id in subscribers:
        for queue in shares.get(client_id, ()):
            if queue not in wanted:
                odd += 1
            elif queue not in given or group.owners.get(queue) == client_id:
                given[queue] = client_id
    odd += len(shares.keys() - set(subscribers))
    if odd:
        target.notes.append(f"{topic}: {odd} answers of {target.strategy} name unknown queues or clients; ignored")
    for queue in queues:
        if queue in given:
            target.owners[queue] = given[queue]
        else:
            target.unassigned.append(Unassigned(queue, left_out))


def _keep(target: Target, group: Group, topic: str) -> None:
    """Leave the queues of a topic whose route is not known with those who hold them."""
    for queue, client_id in sorted(group.owners.items()):
        if queue.topic == topic and topic in group.members[client_id].subscriptions:
            target.owners[queue] = client_id
