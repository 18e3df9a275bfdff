"""All figures of a run, as stored in `results.json`, and the sizes of the measured cases."""

from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from bench import heartbeats, holds, replay_speed, strategy_speed
from bench.machine import Machine

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.json"

Figures = TypeVar("Figures", bound=Struct)


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
    """What `python -m bench` found."""

    machine: Machine
    heartbeats: heartbeats.Heartbeats
    strategies: strategy_speed.Strategies
    replay: replay_speed.Replay
    holds: holds.Holds


def write(found: Struct, path: Path) -> None:
    """Write figures as JSON that people can read."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def read(path: Path, kind: type[Figures]) -> Figures | None:
    """Return the figures of the last run; None if there was none."""
    return msgspec.json.decode(path.read_bytes(), type=kind) if path.exists() else None
