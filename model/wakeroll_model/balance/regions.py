"""Regions: independent parts of a group; no client of one region subscribes to a topic of another."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec import Struct

from wakeroll_model.queue import Queue

NOBODY = -1
"""Owner of a queue that has no previous owner, or none that may keep it."""


class Region(Struct):
    """Topics and clients that are connected by subscriptions, and independent of all others."""

    clients: list[str]
    """Client_ids, in order; all other fields refer to a client by its index in this list."""
    queues: list[Sequence[Queue]]
    """Queues of each topic, in order; every topic has at least one."""
    audiences: list[int]
    """Subscribers of each topic: bit i is client i."""
    owners: list[list[int]]
    """Previous owner of each queue of each topic, if it may keep the queue; otherwise `NOBODY`."""

    @property
    def is_uniform(self) -> bool:
        """Whether all clients subscribe to all topics."""
        everybody = (1 << len(self.clients)) - 1
        return all(audience == everybody for audience in self.audiences)

    @property
    def is_new(self) -> bool:
        """Whether no queue has a previous owner that may keep it."""
        return all(owners.count(NOBODY) == len(owners) for owners in self.owners)

    def dealt(self) -> dict[str, list[Queue]]:
        """Return client -> its queues if all queues are assigned in turn, one topic after the other.

        If all clients subscribe to all topics and no queue has an owner, no assignment is more even, over all topics or
        within one.
        """
        cards = list(chain.from_iterable(self.queues))
        return {client: cards[i :: len(self.clients)] for i, client in enumerate(self.clients)}

    def shares(self, owners: Iterable[int]) -> dict[str, list[Queue]]:
        """Return client -> its queues, from the owners of all queues, topic by topic in order."""
        lists: list[list[Queue]] = [[] for _ in self.clients]
        for queue, owner in zip(chain.from_iterable(self.queues), owners, strict=True):
            lists[owner].append(queue)
        return dict(zip(self.clients, lists, strict=True))


def regions(
    topics: Mapping[str, Sequence[Queue]],
    subscribers: Mapping[str, Sequence[str]],
    clients: Sequence[str],
    previous: Mapping[Queue, str],
) -> Iterator[Region]:
    """Divide a group into its regions.

    Args:
        topics: topic -> its queues, in order.
        subscribers: topic -> clients that subscribe to it; a topic without subscribers is in no region.
        clients: all clients, each once, in the order of precedence.
        previous: queue -> previous owner; an owner that has left or no longer subscribes is ignored.

    Yields:
        Regions with at least one queue and one client each; a client that can get no queue is in no region.
    """
    audiences = {topic: tuple(subscribers.get(topic, ())) for topic in sorted(topics) if topics[topic]}
    for members, its_topics in _connected(audiences):
        numbers = {client: i for i, client in enumerate(client for client in clients if client in members)}
        region = Region(list(numbers), [], [], [])
        # Most topics share their audience with another topic.
        known: dict[tuple[str, ...], tuple[int, dict[str, int]]] = {}
        for topic in its_topics:
            audience = audiences[topic]
            if audience not in known:
                may_keep = {client: numbers[client] for client in audience}
                known[audience] = sum(1 << i for i in may_keep.values()), may_keep
            bits, may_keep = known[audience]
            region.queues.append(topics[topic])
            region.audiences.append(bits)
            region.owners.append(_owners(topics[topic], may_keep, previous))
        yield region


def _connected(audiences: Mapping[str, tuple[str, ...]]) -> list[tuple[set[str], list[str]]]:
    """Return the clients and the sorted topics of each connected part, without topics that have no subscribers."""
    wanted: dict[tuple[str, ...], list[str]] = {}
    for topic, audience in audiences.items():
        if audience:
            wanted.setdefault(audience, []).append(topic)
    parts: list[tuple[set[str], list[str]]] = []
    for audience, topics in wanted.items():
        joined = [part for part in parts if not part[0].isdisjoint(audience)]
        apart = [part for part in parts if part[0].isdisjoint(audience)]
        members = set(audience).union(*(part[0] for part in joined))
        its_topics = sorted([*topics, *chain.from_iterable(part[1] for part in joined)])
        parts = [*apart, (members, its_topics)]
    return parts


def _owners(queues: Sequence[Queue], may_keep: Mapping[str, int], previous: Mapping[Queue, str]) -> list[int]:
    if not previous:
        return [NOBODY] * len(queues)
    return [may_keep.get(previous.get(queue, ""), NOBODY) for queue in queues]
