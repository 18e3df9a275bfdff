"""All checkers, asked about one world."""

from collections.abc import Iterator

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
from model.decisions import Rejected
from world.world import World

CHECKS = (owners, liveness, offsets, members, handovers, telling, messages, targets, places, record, conflicts, locks)


def broken(world: World) -> list[Broken]:
    """Return every rule that a world breaks, in order of time; where the machine failed, that alone."""
    evidence = Evidence(world)
    if failures := list(_failures(evidence)):
        return failures
    return sorted((one for module in CHECKS for one in module.check(evidence)), key=lambda one: one.at_ms)


def _failures(evidence: Evidence) -> Iterator[Broken]:
    """0. No event makes the machine fail; the other checkers could not rely on what it decides then."""
    for one in evidence.decisions:
        if isinstance(one, Rejected) and one.rule == "internal":
            yield Broken("the machine fails", evidence.at_ms(one), one.detail, None, one.group_id or "")
