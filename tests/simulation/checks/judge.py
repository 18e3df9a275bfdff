"""All checkers, asked about one world."""

from checks import (
    conflicts,
    handovers,
    liveness,
    locks,
    members,
    messages,
    offsets,
    owners,
    places,
    record,
    targets,
    telling,
)
from checks.evidence import Broken, Evidence
from world.world import World

CHECKS = (owners, liveness, offsets, members, handovers, telling, messages, targets, places, record, conflicts, locks)


def broken(world: World) -> list[Broken]:
    """Return every rule that a world breaks, in order of time."""
    evidence = Evidence(world)
    return sorted((one for module in CHECKS for one in module.check(evidence)), key=lambda one: one.at_ms)
