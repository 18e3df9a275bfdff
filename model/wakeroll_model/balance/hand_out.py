"""The choice of queues, once the number of queues of each client is known.

>>> hand_out([0, 0, 1, NOBODY], {0: 1, 2: 3})
[0, 2, 2, 2]
"""

from collections.abc import Mapping, Sequence

from wakeroll_model.balance.regions import NOBODY


def hand_out(owners: Sequence[int], numbers: Mapping[int, int]) -> list[int]:
    """Let each client keep its first queues, up to its number, and assign the other queues in turn.

    Args:
        owners: previous owner of each queue of the topic; `NOBODY` if none.
        numbers: client -> number of queues that it gets; the sum is the number of queues.

    Returns:
        The new owner of each queue.
    """
    wants = dict(numbers)
    shared = [NOBODY] * len(owners)
    free = []
    for position, owner in enumerate(owners):
        if wants.get(owner, 0) > 0:
            wants[owner] -= 1
            shared[position] = owner
        else:
            free.append(position)
    hungry = sorted(client for client, queues in wants.items() if queues > 0)
    assert len(free) == sum(wants[client] for client in hungry), "the numbers are not those of the queues"
    while free:
        for client, position in zip(hungry, free, strict=False):
            shared[position] = client
            wants[client] -= 1
        free = free[len(hungry) :]
        hungry = [client for client in hungry if wants[client] > 0]
    return shared
