"""The target: the intended owner of each queue, by a group's strategy, whose answer is checked."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from wakeroll_model import assignment_limits, config, slicing
from wakeroll_model.decisions import Unassigned
from wakeroll_model.group import Group
from wakeroll_model.known_routes import Routes
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import is_retry_topic
from wakeroll_model.strategies import StrategyError, allocate, is_whole, needs_of
from wakeroll_model.strategy_inputs import facts


class Target(Struct):
    """The ownership that a group should reach."""

    strategy: str
    owners: dict[Queue, str]
    """Queue -> client, sorted by queue."""
    unassigned: list[Unassigned]
    notes: list[str]
    spread: int = 0
    """Largest minus smallest number of queues of a member."""
    queues: int = 0
    """Number of queues of the members' topics."""
    looks_again: bool = False
    """Whether the timer must compare the target again, because it may change with the lag of the queues alone."""


_NAMED = 5
"""Maximum number of topics that a note names."""


class _Shared(Struct):
    """Topics that one call of a strategy assigns."""

    queues: Sequence[Queue]
    subscribers: dict[str, list[str]]
    """Topic -> the clients that subscribe it, sorted."""

    @property
    def clients(self) -> list[str]:
        """The clients that subscribe any of the topics, sorted."""
        if len(self.subscribers) == 1:
            return next(iter(self.subscribers.values()))
        return sorted({client_id for clients in self.subscribers.values() for client_id in clients})

    @property
    def subscriptions(self) -> dict[str, list[str]] | None:
        """Client -> those of the topics that it subscribes to; None if all clients subscribe to all of them."""
        if len(self.subscribers) == 1:
            return None
        subscriptions: dict[str, list[str]] = {client_id: [] for client_id in self.clients}
        for topic, clients in self.subscribers.items():
            for client_id in clients:
                subscriptions[client_id].append(topic)
        return subscriptions

    @property
    def names(self) -> str:
        """The topics as part of a sentence."""
        topics = sorted(self.subscribers)
        more = f" and {len(topics) - _NAMED} more" if len(topics) > _NAMED else ""
        return ", ".join(topics[:_NAMED]) + more


def compute(group: Group, routes: Routes) -> Target:
    """Compute the owner of every queue of every subscribed topic by the group's strategy.

    A topic is shared among its subscribers only. A strategy that fails on a topic fails for that topic alone; one that
    assigns all topics at once fails for all. Then the last target is kept, as far as its members still subscribe the
    topic, and a note reports the failure.
    """
    strategy, params = strategy_of(group)
    target = Target(strategy, {}, [], [])
    topics: list[_Shared] = []
    unrouted = []
    cut = group.settings.slices
    knowing = slicing.knowing(group) if cut else frozenset()
    if cut:
        target.notes += slicing.notes_of(group)
    for topic, subscribers in _subscribers(group).items():
        queues = slicing.expanded(group, routes, topic)
        if queues is None:
            unrouted.append(topic)
            if not is_retry_topic(topic, group.group_id):  # it may be created only when a message is retried
                target.notes.append(f"{topic}: no route received yet")
        elif not queues:
            target.notes.append(f"{topic}: the topic has no queues")
        elif topic in cut and not knowing.intersection(subscribers):
            _leave_sliced(target, topic, queues)
        elif topic in cut:
            if (number := queues[0].slices) < cut[topic]:
                target.notes.append(f"{topic}: cut into {number} slices; {cut[topic]} would be too many queues")
            topics.append(_Shared(queues, {topic: [name for name in subscribers if name in knowing]}))
        else:
            topics.append(_Shared(queues, {topic: subscribers}))
    _keep(target, group, unrouted)
    is_for_all, needs = _nature(strategy)
    if is_for_all and topics:
        together = [queue for shared in topics for queue in shared.queues]
        topics = [_Shared(together, {topic: names for shared in topics for topic, names in shared.subscribers.items()})]
    wrong, answers, previous = _too_many_values(params, len(topics)), 0, slicing.next_owners(group)
    for shared in topics:
        known = facts(needs, group, routes, shared.queues, shared.clients)
        answers += _share(target, group, shared, known | params, previous, wrong)
        if answers > config.MAX_ANSWERS and not wrong:
            wrong = f"{strategy} returned {answers} queues, copies included; expected at most {config.MAX_ANSWERS}"
    _bound(target)
    target.queues = len(target.owners) + len(target.unassigned)
    target.spread = spread(group.staying, target.owners)
    target.looks_again = "lags" in needs
    return target


def _leave_sliced(target: Target, topic: str, queues: Sequence[Queue]) -> None:
    """Leave the slices of a topic unassigned, because none of its members supports slices."""
    reason = "no member knows slices"
    target.notes.append(f"{topic}: {reason}; update the clients, or set its slices to 1")
    target.unassigned += [Unassigned(queue, reason) for queue in queues]


def _subscribers(group: Group) -> dict[str, list[str]]:
    """Return topic -> the clients that subscribe it, both sorted."""
    subscribers: dict[str, list[str]] = {}
    for client_id in sorted(group.staying):
        for topic in group.members[client_id].subscriptions:
            subscribers.setdefault(topic, []).append(client_id)
    return dict(sorted(subscribers.items()))


def _too_many_values(params: Mapping[str, Any], topics: int) -> str:
    """Return why parameters are too large for a strategy that reads them this often; empty if they are not.

    A strategy reads them once per topic: a client could send a long list and subscribe to many topics.
    """
    values = _values(params)
    if values * topics <= config.MAX_PARAM_VALUES:
        return ""
    return (
        f"strategy_params has {values} values; expected at most {config.MAX_PARAM_VALUES // topics} for {topics} topics"
    )


def _values(given: object) -> int:
    """Count the values in parameters; their declaration bounds the depth."""
    if isinstance(given, dict):
        return 1 + sum(map(_values, given.values()))
    return 1 + sum(map(_values, given)) if isinstance(given, list) else 1


def _nature(strategy: str) -> tuple[bool, Sequence[str]]:
    """Return whether a strategy is called once for all topics, and the facts that it needs, if it exists."""
    try:
        return is_whole(strategy), needs_of(strategy)
    except StrategyError:
        return False, ()


def _share(
    target: Target,
    group: Group,
    shared: _Shared,
    params: Mapping[str, Any],
    previous: Mapping[Queue, str],
    wrong: str,
) -> int:
    """Let the strategy assign these topics, and use the valid part of its answer; if `wrong` is not empty, it fails.

    `previous`: queue -> its owner by the last target.

    Returns:
        The number of queues in its answer; a queue that it assigns to several clients counts several times.
    """
    strategy = target.strategy
    try:
        if wrong:
            raise StrategyError(wrong)
        shares = allocate(
            strategy,
            shared.queues,
            shared.clients,
            params,
            subscriptions=shared.subscriptions,
            previous=previous,
            presorted=True,
        )
        left_out = f"{strategy} assigns it to no member"
    except Exception as error:  # a strategy may be third-party code, and its parameters come from a client
        reason = assignment_limits.shortened(
            str(error) if isinstance(error, StrategyError) else f"{strategy} failed with {error!r}"
        )
        target.notes.append(f"{shared.names}: {reason}; the previous target stays")
        shares = _last_shares(group, shared, previous)
        left_out = reason
    _take(target, group, shared, shares, left_out)
    return sum(map(len, shares.values()))


def spread(clients: Iterable[str], owners: Mapping[Queue, str]) -> int:
    """Return the largest minus the smallest number of queues of these clients."""
    sizes = dict.fromkeys(clients, 0)
    for client_id in owners.values():
        if client_id in sizes:  # a target names clients that left since
            sizes[client_id] += 1
    return max(sizes.values()) - min(sizes.values()) if sizes else 0


def strategy_of(group: Group) -> tuple[str, dict[str, object]]:
    """Return the strategy's name and parameters: as configured, else those of the oldest member."""
    if group.settings.strategy is not None:
        return group.settings.strategy, group.settings.strategy_params or {}
    for oldest in group.members.values():
        return oldest.strategy, group.settings.strategy_params or oldest.strategy_params
    return "", {}


def _last_shares(group: Group, shared: _Shared, target: Mapping[Queue, str]) -> dict[str, list[Queue]]:
    shares: dict[str, list[Queue]] = {client_id: [] for client_id in shared.clients}
    # After a loss of state, claimed queues have owners by no target, or by one made before the claim.
    first, second = (group.owners, target) if group.loss is not None else (target, group.owners)
    for queue in shared.queues:
        if (client_id := first.get(queue, second.get(queue))) in shared.subscribers[queue.topic]:
            shares[client_id].append(queue)
    return shares


def _take(target: Target, group: Group, shared: _Shared, shares: Mapping[str, Sequence[Queue]], left_out: str) -> None:
    """Use the valid part of a strategy's answer: known queues, subscribers only, one owner per queue.

    A queue assigned to several clients stays with its owner if that is one of them, else it goes to the first in order.
    A queue that no client gets is unassigned, with the reason `left_out`.
    """
    given: dict[Queue, str] = {}
    wanted = frozenset(shared.queues)
    may = {topic: frozenset(clients) for topic, clients in shared.subscribers.items()}
    odd = 0
    for client_id in sorted(shares):
        for queue in _in_slices(group, shares[client_id], wanted):
            if queue not in wanted or client_id not in may[queue.topic]:
                odd += 1
            elif queue not in given or group.owners.get(queue) == client_id:
                given[queue] = client_id
    if odd:
        answers = f"{odd} unknown queues or clients in the answer of {target.strategy}"
        target.notes.append(f"{shared.names}: {answers} are ignored")
    for queue in shared.queues:
        if queue in given:
            target.owners[queue] = given[queue]
        else:
            target.unassigned.append(Unassigned(queue, left_out))


def _in_slices(group: Group, queues: Sequence[Queue], wanted: Collection[Queue]) -> Iterable[Queue]:
    """Replace cut queues by their slices, because a parameter of a strategy may name a whole queue."""
    if not group.settings.slices:
        return queues
    return [
        one
        for queue in queues
        for one in ([queue] if queue in wanted else filter(wanted.__contains__, slicing.overlapping(group, queue)))
    ]


def _keep(target: Target, group: Group, topics: Collection[str]) -> None:
    """Keep the queues of topics without a known route with their owners."""
    if not topics:
        return
    unrouted = frozenset(topics)
    for queue, client_id in sorted(group.owners.items()):
        if group.kicks and group.is_leaving(client_id):
            continue
        if queue.topic in unrouted and queue.topic in group.members[client_id].subscriptions:
            target.owners[queue] = client_id


def _bound(target: Target) -> None:
    """Remove queues that do not fit into a client's assignment: no client gets more than it can acknowledge."""
    large = {
        client_id
        for client_id, count in Counter(target.owners.values()).items()
        if count > assignment_limits.ALWAYS_FIT
    }
    if not large:
        return
    shares = {client_id: assignment_limits.Share() for client_id in large}
    for queue, client_id in list(target.owners.items()):
        if client_id in large and not shares[client_id].take(queue):
            del target.owners[queue]
            target.unassigned.append(Unassigned(queue, f"the assignment of {client_id} is full"))
    target.notes.append(
        f"an assignment has at most {config.MAX_SHARE_BYTES} bytes of queues; add members, or topics to fewer members"
    )
