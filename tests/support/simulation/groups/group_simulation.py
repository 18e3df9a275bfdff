"""The simulation of consumer groups: clients, observers, an operator, and faults of all of them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tests.support.simulation.frame.broken import Broken
from tests.support.simulation.frame.shrink import Trial
from tests.support.simulation.frame.simulation import Simulation
from tests.support.simulation.groups.checks.judge import judge
from tests.support.simulation.groups.group_faults import KINDS, SLICED_KINDS
from tests.support.simulation.groups.group_plan import Plan, draw
from tests.support.simulation.groups.group_story import story
from tests.support.simulation.groups.group_world import World

SOON_MS = 25_000
"""The calm of a small world begins so soon after its last fault."""


class GroupSimulation(Simulation[Plan, World]):
    """Worlds of groups."""

    name = "groups"
    kinds = KINDS
    least = MappingProxyType({"events": 300})
    runs = 150

    def draw(self, seed: int, **given: Any) -> Plan:
        """Draw a plan; `given`: arguments beside the seed, as a mutant has them."""
        return draw(seed, **given)

    def world(self, plan: Plan) -> World:
        """Return the world of a plan, before it runs."""
        return World(plan)

    def judge(self, world: World) -> list[Broken]:
        """Return every rule that a world breaks, in order of time."""
        return judge(world)

    def count(self, world: World) -> Counter[str]:
        """Count the records of the log and the messages that were handled."""
        return Counter(events=sum(map(len, world.broker.log)), messages=len(world.seen.handlings))

    def summary(self, happened: Counter[str]) -> str:
        """Return in words how many messages were handled."""
        return f"{happened['messages']} messages handled"

    def story(self, world: World, first: Broken) -> Iterable[str]:
        """Yield the lines of a failing world up to a broken rule."""
        return story(world, first)

    def simplify(self, plan: Plan, fails: Trial[Plan]) -> Plan:
        """Leave out clients without faults, then time."""
        for name in plan.clients:
            fewer = replace(plan, clients=tuple(other for other in plan.clients if other != name))
            hit = any(fault.who == name for fault in plan.faults)
            if fewer.clients and not hit and fails(fewer):
                plan = fewer
        chaos_ms = max((fault.at_ms + fault.length_ms for fault in plan.faults), default=0) + SOON_MS
        if chaos_ms < plan.chaos_ms and fails(replace(plan, chaos_ms=chaos_ms)):
            plan = replace(plan, chaos_ms=chaos_ms)
        return plan


class SlicedSimulation(GroupSimulation):
    """Worlds of groups whose topics are cut into slices, while all the rest goes wrong too."""

    name = "slices"
    kinds = SLICED_KINDS

    def draw(self, seed: int, **given: Any) -> Plan:
        """Draw a plan; `given`: arguments beside the seed, as a mutant has them."""
        return draw(seed, **({"only": ("slices",) * 8 + tuple(KINDS), "slices": True, "is_raised": True} | given))


GROUPS = GroupSimulation()
SLICES = SlicedSimulation()
