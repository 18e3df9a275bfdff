"""The duration of each strategy, the balance of its result, and the moves after a join, compared with Kafka's."""

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from bench.figures import both, measure, table, times
from bench.sharing import (
    KAFKA,
    SEED,
    Case,
    Shared,
    judged,
    kafkas_answers,
    moves,
    of_their_own,
    owners_of,
    same_for_all,
)
from wakeroll_model.queue import Queue
from wakeroll_model.strategies import STRATEGIES, allocate, needs_of

ROOMS = 3
NEAREST = "MACHINE_ROOM_NEARBY"
OF_THEIR_OWN = ("BALANCED", "SPREAD")
"""Strategies that promise something when members subscribe to different topics."""


_HEADS = ("strategy", "sorted", "times Kafka", "unsorted", "join", "times Kafka", "moved", "evenness", "squares")


class Strategies(Struct, frozen=True):
    """All of it."""

    same: list[Shared]
    """Cases in which all want all topics."""
    own: list[Shared]
    """Cases in which they do not."""
    kafka: str
    """The version of Kafka's assignor; empty if it did not run."""
    missing: str
    """Why it did not run; empty if it did."""


def run(same: list[tuple[int, int, int]], own: list[tuple[int, int, int, int]], warmup_ms: int) -> Strategies:
    """Measure cases of topics, queues each and clients; the others also have the number of topics of each client."""
    for_all = [same_for_all(*case) for case in same]
    for_some = [of_their_own(*case) for case in own]
    ours = [shared for case in for_all for name in sorted(STRATEGIES) for shared in _of_strategy(name, case)]
    ours_own = [shared for case in for_some for name in OF_THEIR_OWN for shared in _of_strategy(name, case)]
    answers, version, missing = kafkas_answers([*for_all, *for_some], warmup_ms)
    names = {case.name for case in for_all}
    return Strategies(
        ours + [shared for shared in answers if shared.case in names],
        ours_own + [shared for shared in answers if shared.case not in names],
        version,
        missing,
    )


def section(found: Strategies) -> str:
    """Return the chapter of these figures."""
    beside = (
        f"Kafka's figures are those of the `UniformAssignor` in Kafka {found.kafka}, after warm-up, in the same run."
        if not found.missing
        else f"Kafka's assignor did not run: {found.missing}."
    )
    tables = "\n\n".join(_tables(found.same + found.own))
    return f"""\
Every registered strategy distributes all queues among all clients. *Sorted* and *unsorted* start without owners, with
queues and clients in order or in random order. *Join* adds one client to the others, whose queues are known. Strategies
of one topic compute one topic after the other. {beside}

*Evenness* is the smallest and the largest number of queues of a client after the join; *squares* is the sum of the
squares of all these numbers (less is more even). *Moved* is the number of queues that moved from one client to another
when the last client joined. It is empty for CONFIG and POP, which assign a queue to several clients. WEIGHTED has lags
and weights that differ, and distributes the queues by them.

{tables}
"""


def _tables(rows: list[Shared]) -> list[str]:
    found = []
    for case in dict.fromkeys(row.case for row in rows):
        of_case = [row for row in rows if row.case == case]
        by_who = {
            who: {row.mode: row for row in of_case if row.who == who}
            for who in dict.fromkeys(row.who for row in of_case)
        }
        kafkas = by_who.get(KAFKA, {})
        found.append(f"**{case}**\n\n" + table(_HEADS, [_row(who, modes, kafkas) for who, modes in by_who.items()]))
    return found


def _row(who: str, modes: Mapping[str, Shared], kafkas: Mapping[str, Shared]) -> tuple[str, ...]:
    def beside(mode: str) -> str:
        return times(modes[mode].time, kafkas[mode].time) if mode in kafkas else ""

    full, join = modes["sorted"], modes["join"]
    return (
        who,
        both(full.time),
        beside("sorted"),
        both(modes["unsorted"].time) if "unsorted" in modes else "",
        both(join.time),
        beside("join"),
        "" if join.moved is None else f"{join.moved:,}",
        f"{join.smallest:,}-{join.largest:,}",
        f"{join.squares:,}",
    )


def _of_strategy(strategy: str, case: Case) -> list[Shared]:
    """Measure one strategy on one case: sorted, unsorted, and when the last client joins."""
    name = f"{NEAREST}-AVG" if strategy == NEAREST else strategy
    queues, clients, subscriptions = case.queues, case.clients, case.subscriptions
    params = _params(name, queues, clients)
    chance = random.Random(SEED)
    shuffled_queues, shuffled_clients = queues.copy(), clients.copy()
    chance.shuffle(shuffled_queues)
    chance.shuffle(shuffled_clients)

    def share(
        queues: list[Queue], clients: list[str], presorted: bool, before: Mapping[Queue, str] | None = None
    ) -> dict[str, list[Queue]]:
        return allocate(
            name, queues, clients, params, subscriptions=subscriptions, previous=before, presorted=presorted
        )

    before = owners_of(share(queues, clients[:-1], True))
    modes = {
        "sorted": partial(share, queues, clients, True),
        "unsorted": partial(share, shuffled_queues, shuffled_clients, False),
        "join": partial(share, queues, clients, True, before),
    }
    return [_asked(name, case, mode, ask, before if mode == "join" else {}) for mode, ask in modes.items()]


def _asked(
    name: str, case: Case, mode: str, ask: Callable[[], dict[str, list[Queue]]], before: Mapping[Queue, str]
) -> Shared:
    time = measure(lambda _: ask(), lambda: None)
    answer = ask()
    after = owners_of(answer)
    has_one_owner_each = sum(map(len, answer.values())) == len(after)
    moved = moves(before, after) if before and has_one_owner_each else None
    return judged(name, case, mode, time, map(len, answer.values()), moved)


def _params(name: str, queues: list[Queue], clients: list[str]) -> dict[str, Any]:
    """Return what a strategy must be told to have something to share; those that need nothing get nothing."""
    numbers: dict[str, dict[str, list[int]]] = {client: {} for client in clients}
    for i, queue in enumerate(queues):
        name_there = f"{queue.topic}@{queue.broker}" if queue.broker else queue.topic
        numbers[clients[i % len(clients)]].setdefault(name_there, []).append(queue.queue_id)
    facts: dict[str, Any] = {
        "pins": numbers,
        "consumer_rooms": {client: f"r{i % ROOMS}" for i, client in enumerate(clients)},
        "queue_rooms": {queue: queue.broker.partition("@")[0] for queue in queues},
        "weights": {client: 1.0 + i % 3 for i, client in enumerate(clients)},
        "lags": {queue: i * 7_919 % 5_000 for i, queue in enumerate(queues)},
    }
    own: dict[str, dict[str, Any]] = {
        "MACHINE_ROOM": {"consumeridcs": [f"r{room}" for room in range(ROOMS)]},
        "CONFIG": {"message_queue_list": queues[: len(queues) // len(clients)]},
        "POP": {"pop_share_queue_num": 1},
    }
    return {need: facts[need] for need in needs_of(name)} | own.get(name, {})
