"""What the strategies that look at a whole group have in common: they share region by region."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from model.balance.regions import Region, regions
from model.queue import Queue
from model.strategies.java import sort_clients


def share_regions(
    topics: Mapping[str, Sequence[Queue]],
    subscribers: Mapping[str, Sequence[str]],
    previous: Mapping[Queue, str],
    share: Callable[[Region], dict[str, list[Queue]]],
) -> dict[str, list[Queue]]:
    """Share a group's queues region by region; every client is in the answer.

    Args:
        topics: topic -> its queues, in order.
        subscribers: topic -> clients that want it.
        previous: queue -> its owner before; one that is gone or no longer subscribes does not count.
        share: gives each client of a region its queues.
    """
    clients = sort_clients(set(chain.from_iterable(subscribers.values())))
    shares: dict[str, list[Queue]] = {client: [] for client in clients}
    for region in regions(topics, subscribers, clients, previous):
        shares |= share(region)
    return shares
