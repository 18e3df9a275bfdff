"""All checkers, asked about one world."""

from collections.abc import Iterator

from model.decisions import Rejected
from tests.support.simulation.groups.checks import (
    check_conflicts,
    check_handovers,
    check_liveness,
    check_locks,
    check_members,
    check_messages,
    check_offsets,
    check_owners,
    check_places,
    check_record,
    check_targets,
    check_telling,
)
from tests.support.simulation.groups.checks.evidence import Broken, Evidence
from tests.support.simulation.groups.group_world import World

CHECKS = (
    check_owners,
    check_liveness,
    check_offsets,
    check_members,
    check_handovers,
    check_telling,
    check_messages,
    check_targets,
    check_places,
    check_record,
    check_conflicts,
    check_locks,
)


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
