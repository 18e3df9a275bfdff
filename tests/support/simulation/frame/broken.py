"""The finding of a checker, and the one checker that both kinds of world have: no event makes the machine fail."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.simulation.frame.world import World
from wakeroll_model.decisions import Rejected
from wakeroll_model.queue import Queue


@dataclass(frozen=True)
class Broken:
    """A rule that does not hold."""

    rule: str
    at_ms: int
    """In world time; 0 if the finding has no single time."""
    says: str
    queue: Queue | None = None
    group_id: str = ""
    """A group or a scope; empty if the finding is not about one."""
    partition: int = -1
    """The record's partition and offset; -1 if the finding is not about one record."""
    offset: int = -1


def failures(world: World[Any]) -> Iterator[Broken]:
    """0. No event makes the machine fail; the other checkers could not rely on what it decides then."""
    for coordinator in world.coordinators:
        for one in coordinator.decisions:
            if isinstance(one, Rejected) and one.rule == "internal":
                at_ms = world.broker.appended_ms(one.cause)
                where = one.cause.partition, one.cause.offset
                yield Broken("the machine fails", at_ms, one.detail, None, one.group_id or "", *where)
