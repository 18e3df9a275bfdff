"""The simulation of the ring: draws a world from a seed, runs it, and tells a failing one, made small."""

from collections import Counter
from typing import Any

from tests.support.mutants.mutant import Mutant, alive
from tests.support.simulation.frame.shrink import Trial, leave_out_faults
from tests.support.simulation.ring.ring_plan import ENABLED, SLICED, RingPlan, draw
from tests.support.simulation.ring.ring_truth import Finding
from tests.support.simulation.ring.ring_world import RingWorld

TOLD = 150
"""Lines of a story that are shown."""
RUNS = 60
"""How many worlds a failing one is made smaller with."""


class RingSimulation:
    """The same interface as the simulations of the core; see `frame.simulation.Simulation`."""

    def __init__(self, name: str, **given: Any) -> None:
        """Draw worlds with these fields of their plans; see `draw`."""
        self.name = name
        self._given = given

    def live(self, seed: int, happened: Counter[str]) -> str:
        """Run one world and count what happened; return the story if a claim does not hold, else nothing."""
        world = RingWorld(draw(seed, **self._given))
        found = self.finding(world)
        happened.update(world.happened)
        if found is None:
            happened["switches"] += world.scheduler.switches
            happened["seconds"] += round(world.scheduler.now_s - world.began_s)
            return ""
        return self.tell(self.shrink(world.plan, found))

    def finding(self, world: RingWorld) -> AssertionError | None:
        """Run a world; return the claim that does not hold, or why the world does not end."""
        try:
            world.run()
        except AssertionError as problem:
            return problem
        return None

    def shrink(self, plan: RingPlan, found: AssertionError) -> RingPlan:
        """Leave out steps as long as the same claim does not hold."""
        rule = rule_of(found)

        def fails(smaller: RingPlan) -> bool:
            problem = self.finding(RingWorld(smaller))
            return problem is not None and rule_of(problem) == rule

        return leave_out_faults(plan, Trial[RingPlan](fails, RUNS))

    def tell(self, plan: RingPlan) -> str:
        """Tell the story of a world up to the finding."""
        world = RingWorld(plan)
        found = self.finding(world)
        groups = [f"  group {group}" for group in plan.groups]
        head = [f"seed {plan.seed}: {found}", f"  topics {dict(plan.topics)}, {plan.partitions} partitions", *groups]
        return "\n".join([*head, *world.story[-TOLD:], f"  BROKEN {found}"])

    def coverage(self, happened: Counter[str], worlds: int) -> str:
        """Say how often what happened, in so many worlds."""
        lines = [f"{worlds} worlds of {self.name}, {happened['seconds']} s, {happened['switches']} switches of threads"]
        return "\n".join(lines + [f"  {happened[name]:6d}  {name}" for name in (*ENABLED, *SLICED, "topics cut")])

    def finds(self, mutant: Mutant, tries: int) -> bool:
        """Whether a claim finds a mutant in one of the first worlds."""
        with alive(mutant):
            return any(self.finding(RingWorld(draw(seed, **mutant.world))) is not None for seed in range(tries))


def rule_of(problem: AssertionError) -> str:
    """Return the claim that does not hold; empty if the world itself fails."""
    return problem.rule if isinstance(problem, Finding) else ""


RING = RingSimulation("the ring")
SLICED_RING = RingSimulation("the ring, where topics are cut into slices", is_sliced=True)
