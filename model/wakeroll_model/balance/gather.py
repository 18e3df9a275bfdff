"""Slices of one partition go to the same member, because a member reads every partition of which it has a slice.

>>> queues = [Queue("t", "", number, 2, part) for number in range(2) for part in range(2)]
>>> gathered({"a": queues[::2], "b": queues[1::2]}, {"t": queues}, {})
{'a': [Queue(t-0/0of2), Queue(t-0/1of2)], 'b': [Queue(t-1/0of2), Queue(t-1/1of2)]}
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from wakeroll_model.queue import Queue


def gathered(
    shares: dict[str, list[Queue]], topics: Mapping[str, Sequence[Queue]], previous: Mapping[Queue, str]
) -> dict[str, list[Queue]]:
    """Exchange slices between the shares of clients, so that each reads few partitions.

    Each client keeps the number of queues that it has of each topic, and the queues that it had before.

    Args:
        shares: client -> its queues, by a strategy.
        topics: topic -> its queues, in order.
        previous: queue -> previous owner.
    """
    cut = {topic for topic, queues in topics.items() if any(queue.slices > 1 for queue in queues)}
    if not cut:
        return shares
    owners = {queue: client for client, share in shares.items() for queue in share if queue.topic in cut}
    for topic in sorted(cut):
        owners |= _gathered([queue for queue in topics[topic] if queue in owners], owners, previous)
    found: dict[str, list[Queue]] = {
        client: [queue for queue in share if queue.topic not in cut] for client, share in shares.items()
    }
    for queue, client in owners.items():
        found[client].append(queue)
    return {client: sorted(share) for client, share in found.items()}


def _gathered(queues: Sequence[Queue], owners: Mapping[Queue, str], previous: Mapping[Queue, str]) -> dict[Queue, str]:
    """Return new owners of the queues of a topic that their owners did not have before."""
    moved = [queue for queue in queues if previous.get(queue) != owners[queue]]
    wants = Counter(owners[queue] for queue in moved)
    readers: dict[Queue, Counter[str]] = {}
    for queue in queues:
        if previous.get(queue) == owners[queue]:
            readers.setdefault(queue.whole, Counter())[owners[queue]] += 1
    found: dict[Queue, str] = {}
    for queue in moved:  # to members that read the partition anyway, those first that have most of it
        known = sorted(readers.get(queue.whole, {}).items(), key=lambda item: (-item[1], item[0]))
        client = next((client for client, _ in known if wants[client]), None)
        if client is not None:
            found[queue] = client
            wants[client] -= 1
    others = iter(sorted(client for client, count in wants.items() for _ in range(count)))
    return found | {queue: next(others) for queue in moved if queue not in found}
