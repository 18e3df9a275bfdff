"""All checkers, asked about one world."""

from tests.support.simulation.frame.broken import Broken
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
from tests.support.simulation.groups.checks.evidence import Evidence
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


def judge(world: World) -> list[Broken]:
    """Return every rule that a world breaks, in order of time."""
    evidence = Evidence(world)
    return sorted((one for module in CHECKS for one in module.check(evidence)), key=lambda one: one.at_ms)
