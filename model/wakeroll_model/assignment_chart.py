"""A chart of an assignment: one line per client, one mark per queue.

>>> orders = [Queue("orders", "", number) for number in range(4)]
>>> rows = rows_of({"a": orders[:2], "b": orders[2:]}, before=dict.fromkeys(orders, "a"))
>>> [text_of(marks) for marks in rows.values()]
['orders ■■··', 'orders ··++']
"""

from collections.abc import Collection, Iterable, Mapping

from wakeroll_model.queue import Queue

HAS, HAS_NOW, HAS_NOT = "■", "+", "·"
"""Marks: the client has the queue; it has it and did not have it before; it does not have it."""


def rows_of(
    shares: Mapping[str, Collection[Queue]],
    before: Mapping[Queue, str] | None = None,
    queues: Iterable[Queue] = (),
) -> dict[str, list[tuple[str, str]]]:
    """Return the marks of each client.

    Args:
        shares: client -> its queues.
        before: queue -> its owner before; None: no queue is marked as new.
        queues: queues to include even if no client has or had them.

    Returns:
        client -> topic (and broker), and a mark for each of its queues; the same queues for each client.
    """
    everything = sorted({*(before or ()), *queues, *(queue for share in shares.values() for queue in share)})
    places: dict[str, list[Queue]] = {}
    for queue in everything:
        places.setdefault(f"{queue.topic}@{queue.broker}" if queue.broker else queue.topic, []).append(queue)
    return {
        client: [(place, "".join(_mark(queue, client, has, before) for queue in its)) for place, its in places.items()]
        for client, has in ((client, frozenset(share)) for client, share in shares.items())
    }


def text_of(row: Iterable[tuple[str, str]]) -> str:
    """Return a client's row as one line."""
    return "  ".join(f"{place} {marks}" for place, marks in row)


def _mark(queue: Queue, client: str, has: Collection[Queue], before: Mapping[Queue, str] | None) -> str:
    if queue not in has:
        return HAS_NOT
    return HAS if before is None or before.get(queue) == client else HAS_NOW
