"""WEIGHTED: an assignment by the loads of queues and the weights of clients, with few moves per rebalance.

The load of a queue is its lag plus `lag_unit`: with a `lag_unit` of 1,000, a queue with a lag of 3,000 messages has the
load of four queues without lag.  A client of weight 2 should have twice the load of a client of weight 1.  Lags change
all the time, so the strategy prefers a stable answer over the best one: queues stay where they are, differences within
the dead band are ignored, and a rebalance moves a limited number of queues.

>>> queues = [Queue("t", "", i) for i in range(4)]
>>> shares = assign_all({"t": queues}, {"t": ["a", "b"]}, {"lags": {queues[2]: 2_000}}, {})
>>> {client: [queue.queue_id for queue in share] for client, share in shares.items()}
{'a': [2], 'b': [0, 1, 3]}
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from msgspec import Struct

from wakeroll_model.balance.loads import MILLION, Loads, Weighed
from wakeroll_model.balance.regions import Region
from wakeroll_model.queue import Queue
from wakeroll_model.strategies.by_region import share_regions
from wakeroll_model.strategies.params import StrategyError, mapping, whole_number

NAME = "WEIGHTED"
NEEDS = ("weights", "lags")

LAG_UNIT = 1_000
"""Default lag (messages) that adds the load of one more queue; a smaller lag is no reason to move a queue."""
DEAD_BAND = 0.1
"""Default relative difference from the fair share that is ignored; AWS's KCL also ignores 10 % around the mean."""
MAX_SKEW = 0.5
"""Default share by which a client may have more queues than its weight's part, even if none of them lags."""
MOVED_PART = 4
"""One in this many queues may move per rebalance, so that the share of a fourth (or later) client moves at once."""
MAX_SHARE = 1_000
MAX_WEIGHT = 1_000_000
"""Maximum weight, as in a heartbeat.  The smallest weight is a millionth; a smaller one counts as a millionth."""


class WeightedParams(Struct, frozen=True):
    """Parameters of WEIGHTED, with shares in millionths."""

    lag_unit: int
    dead_band: int
    max_skew: int
    max_moves: int | None


def assign_all(
    topics: Mapping[str, Sequence[Queue]],
    subscribers: Mapping[str, Sequence[str]],
    params: Mapping[str, Any],
    previous: Mapping[Queue, str],
    /,
) -> dict[str, list[Queue]]:
    """Keep the owners, assign queues without owner, then move queues away from clients with high pressure.

    Args:
        topics: topic -> its queues, in order.
        subscribers: topic -> clients that subscribe to it.
        params: `weights`, client -> relative capacity, by default 1.0; `lags`, queue -> messages, by default 0;
            `lag_unit`, messages that add the load of one queue; `dead_band`, a share; `max_skew`, share by which a
            client may have more queues than its weight's part; `max_moves`, queues that may move, by default a fourth
            of all queues; new queues and queues of clients that left do not count as moves.
        previous: queue -> previous owner.

    Raises:
        StrategyError: a parameter is invalid.
    """
    settings = _settings(params)
    weights, lags = _weights(params), _lags(params)
    a_part = max(1, sum(map(len, topics.values())) // MOVED_PART)
    moves = a_part if settings.max_moves is None else settings.max_moves

    def share(region: Region) -> dict[str, list[Queue]]:
        nonlocal moves
        loads = _loads(region, settings, weights, lags)
        loads.place()
        moves = loads.ease(settings.dead_band, moves)
        return region.shares(loads.owners)

    return share_regions(topics, subscribers, previous, share)


def _loads(region: Region, settings: WeightedParams, weights: Mapping[str, int], lags: Mapping[Queue, int]) -> Loads:
    queues = [
        Weighed(settings.lag_unit + lags.get(queue, 0), audience)
        for of_topic, audience in zip(region.queues, region.audiences, strict=True)
        for queue in of_topic
    ]
    of_clients = [weights.get(client, MILLION) for client in region.clients]
    all_weights = sum(of_clients)
    # Rounded up, so that the limits have room for all queues.
    limits = [
        -(-len(queues) * weight * (MILLION + settings.max_skew) // (all_weights * MILLION)) for weight in of_clients
    ]
    return Loads(queues, list(chain.from_iterable(region.owners)), of_clients, limits)


def _settings(params: Mapping[str, Any]) -> WeightedParams:
    lag_unit = whole_number(params, "lag_unit", LAG_UNIT)
    if lag_unit < 1:
        raise StrategyError(f"lag_unit is {lag_unit}; it must be 1 message or more")
    max_moves = None if params.get("max_moves") is None else whole_number(params, "max_moves", 0)
    if max_moves is not None and max_moves < 0:
        raise StrategyError(f"max_moves is {max_moves}; it must be 0 queues or more")
    dead_band, max_skew = _share(params, "dead_band", DEAD_BAND), _share(params, "max_skew", MAX_SKEW)
    return WeightedParams(lag_unit, dead_band, max_skew, max_moves)


def _share(params: Mapping[str, Any], name: str, default: float) -> int:
    """Return a share parameter in millionths; 0.1 is 10 %."""
    given = default if params.get(name) is None else params[name]
    if not _is_number(given) or not 0 <= given <= MAX_SHARE:
        raise StrategyError(f"{name} is {given!r:.100}; it must be a share from 0 to {MAX_SHARE}, where 0.1 is 10 %")
    return round(given * MILLION)


def _weights(params: Mapping[str, Any]) -> dict[str, int]:
    """Return client -> weight, in millionths."""
    weights: dict[str, int] = {}
    for client, given in (mapping(params, "weights") or {}).items():
        if not _is_number(given) or not 0 < given <= MAX_WEIGHT:
            raise StrategyError(
                f"the weight of {client!r:.100} is {given!r:.100}; it must be above 0 and at most {MAX_WEIGHT}"
            )
        weights[client] = max(1, round(given * MILLION))
    return weights


def _lags(params: Mapping[str, Any]) -> Mapping[Queue, int]:
    lags = mapping(params, "lags") or {}
    for queue, given in lags.items():
        if not isinstance(queue, Queue):
            raise StrategyError(
                f"lags has {queue!r:.100}, which is not a queue; lags are computed from routes and commits"
            )
        if not isinstance(given, int) or isinstance(given, bool) or given < 0:
            raise StrategyError(f"the lag of {queue} is {given!r:.100}; it must be 0 messages or more")
    return lags


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)
