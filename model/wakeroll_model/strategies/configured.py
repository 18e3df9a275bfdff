"""CONFIG: every client gets the configured queues.  RocketMQ's `AllocateMessageQueueByConfig`.

>>> queues = [Queue("orders", "b-1", number) for number in range(4)]
>>> shares = assign(queues, ["a"], {"message_queue_list": [["b-1", 3]]})
>>> [str(queue) for queue in shares["a"]]
['orders@b-1-3']
"""

from collections.abc import Mapping, Sequence
from typing import Any

from wakeroll_model.config import MAX_ANSWERS
from wakeroll_model.queue import Queue
from wakeroll_model.strategies.params import StrategyError, queue_list

NAME = "CONFIG"


def assign(queues: Sequence[Queue], clients: Sequence[str], params: Mapping[str, Any], /) -> dict[str, list[Queue]]:
    """Assign every queue of `message_queue_list` to each client, in its order; an empty client_id is allowed.

    RocketMQ returns the whole list for each topic.  Here each topic gets only its own queues of the list; otherwise a
    list of two topics would be assigned twice.  Without a list RocketMQ returns null, which its clients treat as no
    queues.  Here, too, it is not an error: the queues stay unassigned.

    Raises:
        StrategyError: the number of configured queues times the number of clients is above `MAX_ANSWERS`.
    """
    topic = queues[0].topic if queues else ""
    configured = queue_list(params, "message_queue_list", topic)
    of_topic = [queue for queue in configured if not queues or queue.topic == topic]
    if len(of_topic) * len(clients) > MAX_ANSWERS:
        found = f"message_queue_list has {len(of_topic)} queues for {len(clients)} clients"
        raise StrategyError(f"{found}; expected at most {MAX_ANSWERS} queues times clients")
    return {client: list(of_topic) for client in clients} if of_topic else {}
