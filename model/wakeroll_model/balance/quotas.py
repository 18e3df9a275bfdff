"""Even shares with the fewest moves if every client may own every queue: one quota per client.

>>> share([0, 0, 0, 0, 0], 2)
[0, 1, 0, 1, 0]
"""

from collections import Counter
from collections.abc import Sequence

from wakeroll_model.balance.regions import NOBODY


def share(owners: Sequence[int], clients: int) -> list[int]:
    """Assign queues // clients queues to each client, and one more to the remainder; keep as many owners as possible.

    This is exact: in any even assignment a client keeps at most its quota, and queues % clients clients have the larger
    quota.  Clients that hold more than the smaller quota get the larger one first.

    Args:
        owners: previous owner of each queue; `NOBODY` if none.
        clients: number of clients; they are numbered 0 to `clients` - 1.

    Returns:
        The new owner of each queue.
    """
    held = Counter(owners)
    size, more = divmod(len(owners), clients)
    # The sort is stable: of two clients that can use one more queue, the first gets it.
    by_use = sorted(range(clients), key=lambda client: held[client] <= size)
    quotas = [size] * clients
    for client in by_use[:more]:
        quotas[client] += 1
    wants = [quota - held[client] for client, quota in enumerate(quotas)]
    generous: dict[int, list[int]] = {client: [] for client, want in enumerate(wants) if want < 0}
    for position, owner in enumerate(owners):
        if owner in generous:
            generous[owner].append(position)
    free = [position for position, owner in enumerate(owners) if owner == NOBODY]
    for client, positions in generous.items():
        free += _given_up(positions, -wants[client])
    # Assigned in turn, so that neighbours, which are queues of one topic, get different owners.
    hands = [client for hand in range(max(wants)) for client in range(clients) if wants[client] > hand]
    shared = list(owners)
    for position, client in zip(sorted(free), hands, strict=True):
        shared[position] = client
    return shared


def _given_up(positions: Sequence[int], surplus: int) -> list[int]:
    """Return the queues that a client loses: evenly spaced, so that it loses some of each topic and not all of one."""
    return [positions[(2 * i + 1) * len(positions) // (2 * surplus)] for i in range(surplus)]
