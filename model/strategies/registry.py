"""Which strategies there are, and how one is found by its name."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from model.queue import Queue
from model.strategies.params import shown
from model.strategies.strategy_error import StrategyError


class TopicStrategy(Protocol):
    """How the queues of one topic are shared among its subscribers."""

    def __call__(
        self, queues: Sequence[Queue], clients: Sequence[str], params: Mapping[str, Any], /
    ) -> dict[str, list[Queue]]:
        """Return client -> its queues, from queues and clients in order; raises `StrategyError`."""
        ...


class GroupStrategy(Protocol):
    """How the queues of all topics of a group are shared."""

    def __call__(
        self,
        topics: Mapping[str, Sequence[Queue]],
        subscribers: Mapping[str, Sequence[str]],
        params: Mapping[str, Any],
        previous: Mapping[Queue, str],
        /,
    ) -> dict[str, list[Queue]]:
        """Return client -> its queues, from topic -> its queues and topic -> who wants it, all in order.

        Both mappings have the same topics, each with at least one queue and one client; `previous` is queue -> owner.
        Raises `StrategyError`.
        """
        ...


class Whole(NamedTuple):
    """A strategy that must be asked once for all topics of a group."""

    assign_all: GroupStrategy


STRATEGIES: dict[str, TopicStrategy | Whole] = {}
"""Every strategy by its name, as heartbeats and `configure` say it."""

_AROUND_ANOTHER: set[str] = set()
_NEEDS: dict[str, tuple[str, ...]] = {}


def register(module: Any) -> None:
    """Enter a strategy's module; one without `NAME` is no strategy."""
    if hasattr(module, "NAME"):
        STRATEGIES[module.NAME] = Whole(module.assign_all) if hasattr(module, "assign_all") else module.assign
        _NEEDS[module.NAME] = getattr(module, "NEEDS", ())
        if getattr(module, "AROUND_ANOTHER", False):
            _AROUND_ANOTHER.add(module.NAME)


def find(name: str) -> TopicStrategy | Whole:
    """Return the strategy of that name, which may go on with another's, like ``MACHINE_ROOM_NEARBY-AVG``.

    Raises:
        StrategyError: there is none; the message names those there are.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    around, _, inner = name.partition("-")
    outer = STRATEGIES.get(around)
    if around not in _AROUND_ANOTHER or outer is None or isinstance(outer, Whole):
        raise StrategyError(f"no strategy {name!r}; there are: {', '.join(sorted(STRATEGIES))}")
    find_inner(inner)
    return lambda queues, clients, params, /: outer(queues, clients, {**params, "inner": inner})


def find_inner(name: object) -> TopicStrategy:
    """Return the strategy by which another one shares: any that takes one topic and has no other inside itself.

    Raises:
        StrategyError: it is none of these; the message names them.
    """
    may = {
        known: strategy
        for known, strategy in STRATEGIES.items()
        if not isinstance(strategy, Whole) and known not in _AROUND_ANOTHER
    }
    if not isinstance(name, str) or name not in may:
        raise StrategyError(f"no strategy {shown(name)} that works inside another; there are: {', '.join(sorted(may))}")
    return may[name]


def is_whole(name: str) -> bool:
    """Whether a strategy must be asked once for all topics of a group; False for one that nobody knows."""
    return isinstance(STRATEGIES.get(name), Whole)


def needs_of(name: str) -> tuple[str, ...]:
    """Return the parameters that a strategy wants from whoever runs it, such as ``consumer_rooms``; often none."""
    return _NEEDS.get(name) or _NEEDS.get(name.partition("-")[0], ())
