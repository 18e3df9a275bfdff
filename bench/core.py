"""All that needs no broker, in one run: heartbeats, strategies, replay and held pulls."""

import time
from argparse import Namespace

from msgspec import Struct

from bench import heartbeats, holds, replay_speed, strategy_speed
from bench.frame import Bench, Chapter, option
from bench.machine import Machine


class Sizes(Struct, frozen=True):
    """How large everything is; the fields are named for what they are given to."""

    groups: list[int]
    """Of the shards in which heartbeats are measured."""
    members: list[int]
    beats: int
    """Heartbeats of a round."""
    same: list[tuple[int, int, int]]
    """Topics, queues each, clients."""
    own: list[tuple[int, int, int, int]]
    """The same, and topics of each client."""
    warmup_ms: int
    """Before each of Kafka's figures."""
    events: int
    replayed_groups: int
    large_groups: int
    large_members: int
    """Of each of these groups."""
    holds: int
    woken: list[int]
    ticked: list[int]


FULL = Sizes(
    groups=[1, 1_000, 10_000],
    members=[3, 1_000],
    beats=1_000,
    same=[(1, 10_000, 1_000), (100, 100, 1_000)],
    own=[(100, 50, 200, 5)],
    warmup_ms=1_500,
    events=100_000,
    replayed_groups=1_000,
    large_groups=10_000,
    large_members=10,
    holds=10_000,
    woken=[0, 1, 100, 10_000],
    ticked=[100, 1_000, 10_000],
)
TINY = Sizes(
    groups=[1, 150],
    members=[2, 4],
    beats=3,
    same=[(1, 8, 4), (2, 4, 4)],
    own=[(4, 3, 6, 2)],
    warmup_ms=1,
    events=300,
    replayed_groups=4,
    large_groups=150,
    large_members=2,
    holds=10,
    woken=[0, 10],
    ticked=[5, 10],
)
"""Enough to see that it works; the figures say nothing."""


class Results(Struct, frozen=True):
    """What `core` found."""

    machine: Machine
    heartbeats: heartbeats.Heartbeats
    strategies: strategy_speed.Strategies
    replay: replay_speed.Replay
    holds: holds.Holds


def measure(given: Namespace) -> Results:
    """Measure one part after the other."""
    sizes = TINY if given.tiny else FULL
    began = time.monotonic()

    def next_is(what: str) -> None:
        print(f"{time.monotonic() - began:4.0f} s  {what}", flush=True)

    next_is("heartbeats")
    beats = heartbeats.run(sizes.groups, sizes.members, sizes.beats)
    next_is("strategies, compared with Kafka's")
    shared = strategy_speed.run(sizes.same, sizes.own, sizes.warmup_ms)
    next_is("replay")
    replayed = replay_speed.run(sizes.events, sizes.replayed_groups, sizes.large_groups, sizes.large_members)
    next_is("held pulls")
    held = holds.run(sizes.holds, sizes.woken, sizes.ticked)
    next_is("done")
    return Results(given.machine, beats, shared, replayed, held)


BENCH = Bench(
    "core",
    "What needs no broker, beside Kafka's assignor: `make bench`.",
    "a minute or two",
    measure,
    options=(option("--tiny", action="store_true", help="sizes that only show that it works"),),
    chapters=(
        Chapter("A heartbeat that changes nothing", lambda found: heartbeats.section(found.heartbeats)),
        Chapter("Sharing queues", lambda found: strategy_speed.section(found.strategies)),
        Chapter("Replay, and many members", lambda found: replay_speed.section(found.replay)),
        Chapter("Long polling", lambda found: holds.section(found.holds)),
    ),
    figures=Results,
    file="results.json",
    run="The run",
    differs=lambda given: given.tiny,
    has_folder=False,
)
