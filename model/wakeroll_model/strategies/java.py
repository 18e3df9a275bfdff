"""The common parts of RocketMQ's strategies: Java's sort order, its text of a queue, and the check of the arguments."""

from collections.abc import Iterable, Sequence
from typing import Any

from wakeroll_model.queue import Queue
from wakeroll_model.strategies.params import StrategyError


def java_order(text: str) -> bytes:
    """Return a sort key in Java's order of strings: by UTF-16 code units, so that an emoji comes before U+E000."""
    return text.encode("utf-16-be", "surrogatepass")


def sort_clients(clients: Iterable[str]) -> list[str]:
    """Return the ids in the order of Java's `String.compareTo`."""
    listed = list(clients)
    # ASCII sorts equally in both orders, and most ids are ASCII; then no key is needed.
    listed.sort(key=None if all(map(str.isascii, listed)) else java_order)
    return listed


def sort_queues(queues: Iterable[Queue]) -> list[Queue]:
    """Return the queues in the order of `MessageQueue.compareTo`: by topic, broker, and numerically by queue_id."""
    listed = list(queues)
    # Many queues share few names, so ranks of names are cheaper than a key per queue.
    names = {queue.topic for queue in listed}.union(queue.broker for queue in listed)
    if all(map(str.isascii, names)):
        listed.sort()
    else:
        rank = {name: i for i, name in enumerate(sorted(names, key=java_order))}
        listed.sort(key=lambda queue: (rank[queue.topic], rank[queue.broker], *queue.numbers))
    return listed


def text_of(queue: Queue) -> str:
    """Return the text of `MessageQueue.toString`, from which the consistent hash is computed."""
    text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"
    return text if queue.slices == 1 else f"{text}/{queue.slice}of{queue.slices}"


def check(queues: Sequence[Any], clients: Sequence[str]) -> None:
    """Reject the arguments that `AbstractAllocateMessageQueueStrategy.check` rejects, in its order and with its words.

    Java checks the client that computes its own share; here one call computes the shares of all clients.

    Raises:
        StrategyError: a client_id is empty, or there are no queues, or no clients.
    """
    if not all(clients):
        raise StrategyError("currentCID is empty: a client has no id")
    if not queues:
        raise StrategyError("mqAll is null or mqAll empty: there are no queues to share")
    if not clients:
        raise StrategyError("cidAll is null or cidAll empty: there are no clients to share among")
