"""The parts of a group that do not touch: no client of one subscribes to a topic of another."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec import Struct

from model.queue import Queue

NOBODY = -1
"""The owner of a queue that nobody had, or nobody that may keep it."""


class Region(Struct):
    """Topics and clients that hang together by subscriptions; what happens elsewhere does not matter to them."""

    clients: list[str]
    """In order; everything else names a client by its index here."""
    queues: list[Sequence[Queue]]
    """Those of each topic, in order; every topic has some."""
    audiences: list[int]
    """Who subscribes to each topic: bit i for client i."""
    owners: list[list[int]]
    """Who had each queue of each topic and may keep it; `NOBODY` if there is none."""

    @property
    def is_uniform(self) -> bool:
        """Whether all clients subscribe to all topics."""
        everybody = (1 << len(self.clients)) - 1
        return all(audience == everybody for audience in self.audiences)

    @property
    def is_new(self) -> bool:
        """Whether nobody has a queue to keep."""
        return all(owners.count(NOBODY) == len(owners) for owners in self.owners)

    def dealt(self) -> dict[str, list[Queue]]:
        """Return client -> its queues when all are dealt like cards, one topic after the other.

        If all clients subscribe to all topics and nobody had anything, no sharing is more even, over all as within each
        topic: a topic is a run of the cards.
        """
        cards = list(chain.from_iterable(self.queues))
        return {client: cards[i :: len(self.clients)] for i, client in enumerate(self.clients)}

    def shares(self, owners: Iterable[int]) -> dict[str, list[Queue]]:
        """Return client -> its queues, from the owner of each queue, topic by topic in order."""
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
    """Cut a group into its regions.

    Args:
        topics: topic -> its queues, in order.
        subscribers: topic -> clients that want it; a topic that nobody wants is in no region.
        clients: all of them, each once, in the order in which they are to be treated.
        previous: queue -> its owner before; one that is gone or no longer subscribes does not count.

    Yields:
        Regions with at least one queue and one client each; a client that can get nothing is in none.
    """
    audiences = {topic: tuple(subscribers.get(topic, ())) for topic in sorted(topics) if topics[topic]}
    for members, its_topics in _connected(audiences):
        numbers = {client: i for i, client in enumerate(client for client in clients if client in members)}
        region = Region(list(numbers), [], [], [])
        # Most topics have the same audience as another.
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
    """Return the clients and the topics, sorted, of each part; without topics that nobody wants."""
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
