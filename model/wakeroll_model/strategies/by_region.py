"""The common part of the strategies that assign all topics of a group: they assign region by region."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from wakeroll_model.balance.regions import Region, regions
from wakeroll_model.queue import Queue
from wakeroll_model.strategies.java import sort_clients


def share_regions(
    topics: Mapping[str, Sequence[Queue]],
    subscribers: Mapping[str, Sequence[str]],
    previous: Mapping[Queue, str],
    share: Callable[[Region], dict[str, list[Queue]]],
) -> dict[str, list[Queue]]:
    """Assign the queues of a group region by region; the answer names every client.

    Args:
        topics: topic -> its queues, in order.
        subscribers: topic -> clients that subscribe to it.
        previous: queue -> previous owner; an owner that has left or no longer subscribes is ignored.
        share: returns client -> queues for one region.
    """
    clients = sort_clients(set(chain.from_iterable(subscribers.values())))
    shares: dict[str, list[Queue]] = {client: [] for client in clients}
    for region in regions(topics, subscribers, clients, previous):
        shares |= share(region)
    return shares
