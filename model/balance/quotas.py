"""Even shares with the fewest moves where everybody may own everything: a quota for each client.

>>> share([0, 0, 0, 0, 0], 2)
[0, 1, 0, 1, 0]
"""

from collections import Counter
from collections.abc import Sequence

from model.balance.regions import NOBODY


def share(owners: Sequence[int], clients: int) -> list[int]:
    """Give each client queues // clients queues, and one more to as many as it takes; keep as many as possible.

    This is exact: in any even sharing a client keeps at most its quota, and only queues % clients of them have the
    larger one; those that hold enough to use it are asked first.

    Args:
        owners: who had each queue; `NOBODY` if there is none.
        clients: how many there are; they are 0 to `clients` - 1.

    Returns:
        Who has each queue now.
    """
    held = Counter(owners)
    size, more = divmod(len(owners), clients)
    # Stable: of two that can use one more, the first gets it.
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
    # Dealt like cards, so that neighbours, which are queues of one topic, go to different clients.
    hands = [client for hand in range(max(wants)) for client in range(clients) if wants[client] > hand]
    shared = list(owners)
    for position, client in zip(sorted(free), hands, strict=True):
        shared[position] = client
    return shared


def _given_up(positions: Sequence[int], surplus: int) -> list[int]:
    """Choose what a client gives up: evenly spaced, so that it loses some of each topic and not all of one."""
    return [positions[(2 * i + 1) * len(positions) // (2 * surplus)] for i in range(surplus)]
