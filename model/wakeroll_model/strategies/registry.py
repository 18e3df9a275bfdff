"""The registry of strategies, and the lookup by name."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from wakeroll_model.queue import Queue
from wakeroll_model.strategies.params import StrategyError, shown


class TopicStrategy(Protocol):
    """A strategy that assigns the queues of one topic to its subscribers."""

    def __call__(
        self, queues: Sequence[Queue], clients: Sequence[str], params: Mapping[str, Any], /
    ) -> dict[str, list[Queue]]:
        """Return client -> its queues, from sorted queues and clients; clients without queues may be left out.

        Raises:
            StrategyError: the parameters are invalid, or the queues cannot be assigned.
        """
        ...


class GroupStrategy(Protocol):
    """A strategy that assigns the queues of all topics of a group at once."""

    def __call__(
        self,
        topics: Mapping[str, Sequence[Queue]],
        subscribers: Mapping[str, Sequence[str]],
        params: Mapping[str, Any],
        previous: Mapping[Queue, str],
        /,
    ) -> dict[str, list[Queue]]:
        """Return client -> its queues, from topic -> sorted queues and topic -> sorted subscribers.

        Clients without queues may be left out.

        Both mappings have the same topics, each with at least one queue and one client; `previous` is queue -> owner.

        Raises:
            StrategyError: the parameters are invalid, or the queues cannot be assigned.
        """
        ...


class Whole(NamedTuple):
    """Wrapper of a strategy that assigns all topics of a group in one call."""

    assign_all: GroupStrategy


STRATEGIES: dict[str, TopicStrategy | Whole] = {}
"""Name, as in heartbeats and `configure` -> strategy."""

_AROUND_ANOTHER: set[str] = set()
_UNLISTED: set[str] = set()
_NEEDS: dict[str, tuple[str, ...]] = {}


def register(module: Any) -> None:
    """Register the strategy of a module; ignore a module without `NAME`."""
    if hasattr(module, "NAME"):
        STRATEGIES[module.NAME] = Whole(module.assign_all) if hasattr(module, "assign_all") else module.assign
        _NEEDS[module.NAME] = getattr(module, "NEEDS", ())
        if getattr(module, "AROUND_ANOTHER", False):
            _AROUND_ANOTHER.add(module.NAME)
        if getattr(module, "UNLISTED", False):
            _UNLISTED.add(module.NAME)


def find(name: str) -> TopicStrategy | Whole:
    """Return the strategy with a name; the name may include an inner strategy, as in ``MACHINE_ROOM_NEARBY-AVG``.

    Raises:
        StrategyError: there is no such strategy; the message names the existing ones.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    around, _, inner = name.partition("-")
    outer = STRATEGIES.get(around)
    if around not in _AROUND_ANOTHER or outer is None or isinstance(outer, Whole):
        raise StrategyError(f"no strategy {name!r}; there are: {', '.join(listed())}")
    find_inner(inner)
    return lambda queues, clients, params, /: outer(queues, clients, {**params, "inner": inner})


def listed() -> list[str]:
    """Return the names of the strategies that an error proposes, sorted.

    The message is part of a decision, whose bytes must not change. So a strategy that people do not choose is not
    listed.
    """
    return sorted(STRATEGIES.keys() - _UNLISTED)


def find_inner(name: object) -> TopicStrategy:
    """Return an inner strategy: one that assigns a single topic and has no inner strategy itself.

    Raises:
        StrategyError: there is no such inner strategy; the message names the existing ones.
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
    """Return whether one call of a strategy assigns all topics of a group; False for an unknown name."""
    return isinstance(STRATEGIES.get(name), Whole)


def needs_of(name: str) -> tuple[str, ...]:
    """Return the names of the facts that a strategy needs from its caller, such as ``consumer_rooms``."""
    return _NEEDS.get(name) or _NEEDS.get(name.partition("-")[0], ())
