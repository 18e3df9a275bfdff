"""One kind of simulation: draws a world from a seed, runs it, judges it, counts it, and tells a failing one."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from tests.support.mutants.mutant import Mutant, alive
from tests.support.simulation.frame.broken import Broken, failures
from tests.support.simulation.frame.fault import Kind
from tests.support.simulation.frame.shrink import Trial, leave_out_faults
from tests.support.simulation.frame.world import AnyPlan, World

AnyWorld = TypeVar("AnyWorld", bound=World[Any])


class Simulation(ABC, Generic[AnyPlan, AnyWorld]):
    """The frame; a kind of simulation adds its plan, its world, its checkers and its words."""

    name: str
    """In sentences: worlds of ..."""
    kinds: Mapping[str, Kind]
    """All kinds of faults."""
    least: Mapping[str, int]
    """Counts that each world reaches; with fewer, little can have gone wrong in it."""
    runs: int
    """How many worlds `shrink` runs at most."""

    @abstractmethod
    def draw(self, seed: int, **given: Any) -> AnyPlan:
        """Draw a plan; `given`: arguments beside the seed, as a mutant has them."""

    @abstractmethod
    def world(self, plan: AnyPlan) -> AnyWorld:
        """Return the world of a plan, before it runs."""

    @abstractmethod
    def judge(self, world: AnyWorld) -> list[Broken]:
        """Return every rule that a world breaks; the story ends with the first one."""

    @abstractmethod
    def count(self, world: AnyWorld) -> Counter[str]:
        """Count events and what else happened beside the faults."""

    @abstractmethod
    def summary(self, happened: Counter[str]) -> str:
        """Return in words what `count` has counted."""

    @abstractmethod
    def story(self, world: AnyWorld, first: Broken) -> Iterable[str]:
        """Yield the lines of a failing world up to a broken rule."""

    def simplify(self, plan: AnyPlan, fails: Trial[AnyPlan]) -> AnyPlan:
        """Return a plan that fails too, and has less of what is not a fault."""
        del fails
        return plan

    def broken(self, world: AnyWorld) -> list[Broken]:
        """Return every rule that a world breaks; where the machine failed, that alone."""
        return list(failures(world)) or self.judge(world)

    def live(self, seed: int, happened: Counter[str]) -> str:
        """Run one world and count what happened; return the story if a rule is broken, else nothing.

        A world in which too little happened is told too: its silence would prove nothing.
        """
        plan = self.draw(seed)
        world = self.world(plan).run()
        counts = world.happened + self.count(world)
        happened.update(counts)
        if found := self.broken(world):
            return self.tell(self.shrink(plan, found[0].rule))
        missing = sorted(kind for kind in self.kinds if not counts[kind])
        is_poor = missing or any(counts[name] < least for name, least in self.least.items())
        said = ", ".join(f"{counts[name]} {name}" for name in self.least)
        return f"seed {seed}: too little happened; missing: {missing}, {said}" if is_poor else ""

    def coverage(self, happened: Counter[str], worlds: int) -> str:
        """Say how often what happened, in so many worlds."""
        lines = [f"{worlds} worlds of {self.name}, {happened['events']} events, {self.summary(happened)}"]
        kinds = [f"  {happened[name]:6d}  {name:15s} {kind.says}" for name, kind in self.kinds.items()]
        return "\n".join(lines + kinds)

    def shrink(self, plan: AnyPlan, rule: str, runs: int | None = None) -> AnyPlan:
        """Make a plan smaller as long as the same rule breaks: without faults first."""
        fails = Trial[AnyPlan](
            lambda smaller: any(one.rule == rule for one in self.broken(self.world(smaller).run())),
            self.runs if runs is None else runs,
        )
        return self.simplify(leave_out_faults(plan, fails), fails)

    def tell(self, plan: AnyPlan) -> str:
        """Tell the story of a world up to the first broken rule."""
        world = self.world(plan).run()
        found = self.broken(world)
        if not found:
            return f"seed {plan.seed}: no rule is broken"
        first = found[0]
        when = f"{first.at_ms / 1000:8.3f}s  " if first.at_ms else ""
        return "\n".join(
            [
                f"seed {plan.seed}: {first.rule} ({len(found)} times)",
                *self.story(world, first),
                f"  {when}BROKEN {first.rule}: {first.says}",
            ]
        )

    def finds(self, mutant: Mutant, tries: int) -> bool:
        """Whether a checker finds a mutant in one of the first worlds; a world must not end with an exception."""
        with alive(mutant):
            return any(self.broken(self.world(self.draw(seed, **mutant.world)).run()) for seed in range(tries))
