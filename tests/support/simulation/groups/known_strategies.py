"""The strategies that a world's groups may have: all that there are, one that answers badly, and one that is missing.

CARELESS is what anybody's code may be: it gives every queue to everybody, whether they subscribe its topic or not, and
to a stranger; it names a queue that is not there, and leaves out a topic's last queue.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from wakeroll_model.queue import Queue
from wakeroll_model.strategies import STRATEGIES, StrategyError, Whole, allocate

CARELESS = "CARELESS"
UNKNOWN = "NONE_SUCH"
"""A strategy that fails, whatever it is asked."""
PARAMS = {"lag_unit": 20}
"""What every group's strategy is told: queues of a world lag by tens of messages, and that must count for one."""


def assign_all(
    topics: Mapping[str, Sequence[Queue]],
    subscribers: Mapping[str, Sequence[str]],
    _params: Mapping[str, Any],
    _previous: Mapping[Queue, str],
) -> dict[str, list[Queue]]:
    """Share all topics, carelessly."""
    clients = sorted({client for names in subscribers.values() for client in names})
    given = [queue for queues in topics.values() for queue in queues[: max(1, len(queues) - 1)]]
    unknown = [Queue(topic, "", 99) for topic in topics]
    return dict.fromkeys(["a-stranger", *clients], given + unknown)


@contextmanager
def careless() -> Iterator[None]:
    """Have CARELESS among the strategies for a while."""
    STRATEGIES[CARELESS] = Whole(assign_all)
    try:
        yield
    finally:
        del STRATEGIES[CARELESS]


def by_percent(percent: int, *more: str) -> str:
    """Return one of the strategies that work, or of `more`: a number below 100 stands for one of them."""
    names = [*_working(), CARELESS, *more]
    return names[percent * len(names) // 100]


@cache
def _working() -> tuple[str, ...]:
    """Return the names of all strategies that share a topic's queues without parameters of their own, AVG first."""
    names = (one for name in sorted(STRATEGIES) for one in (name, f"{name}-AVG"))
    return tuple(name for name in names if name != CARELESS and _works(name))


def _works(name: str) -> bool:
    queues = [Queue("orders", "", number) for number in range(4)]
    params = {"consumer_rooms": {"a": "r0", "b": "r1"}, "queue_rooms": dict.fromkeys(queues, "r0")}
    params |= {"weights": {"a": 1.0, "b": 1.0}, "lags": {}}
    try:
        shares = allocate(name, queues, ["a", "b"], params)
    except StrategyError:
        return False
    return sorted(queue for share in shares.values() for queue in share) == queues
