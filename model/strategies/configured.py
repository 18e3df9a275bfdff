"""CONFIG: everybody gets the queues that are configured.  RocketMQ's `AllocateMessageQueueByConfig`.

>>> queues = [Queue("orders", "b-1", number) for number in range(4)]
>>> shares = assign(queues, ["a"], {"message_queue_list": [["b-1", 3]]})
>>> [str(queue) for queue in shares["a"]]
['orders@b-1-3']
"""

from collections.abc import Mapping, Sequence
from typing import Any

from model.config import MAX_ANSWERS
from model.queue import Queue
from model.strategies.params import queue_list
from model.strategies.strategy_error import StrategyError

NAME = "CONFIG"


def assign(queues: Sequence[Queue], clients: Sequence[str], params: Mapping[str, Any], /) -> dict[str, list[Queue]]:
    """Give each client every queue of `message_queue_list`, in its order; nothing is checked, not even an empty id.

    RocketMQ gives the whole list for each topic that it shares; here each topic has its own queues of it, or a list
    over two topics would be given twice.  Where no list was ever set RocketMQ says null, which its clients take for
    nothing at all; so do we: it is no error, and the queues stand open as left out.  Raises `StrategyError` for a list
    that is too long for so many clients.
    """
    topic = queues[0].topic if queues else ""
    configured = queue_list(params, "message_queue_list", topic)
    of_topic = [queue for queue in configured if not queues or queue.topic == topic]
    if len(of_topic) * len(clients) > MAX_ANSWERS:
        found = f"message_queue_list has {len(of_topic)} queues for {len(clients)} clients"
        raise StrategyError(f"{found}; at most {MAX_ANSWERS} may be given")
    return {client: list(of_topic) for client in clients}
