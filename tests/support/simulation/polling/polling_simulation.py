"""The simulation of long polling: clients that wait, producers, observers, and faults of all of them."""

from collections import Counter
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, get_args

from tests.support.simulation.frame.broken import Broken
from tests.support.simulation.frame.simulation import Simulation
from tests.support.simulation.polling.polling_checks import judge
from tests.support.simulation.polling.polling_faults import KINDS
from tests.support.simulation.polling.polling_plan import Plan, draw
from tests.support.simulation.polling.polling_story import story
from tests.support.simulation.polling.polling_world import World
from wakeroll_model.decisions import Wake, WakeReason

REASONS = get_args(WakeReason)
"""How a pull may be answered."""


class PollingSimulation(Simulation[Plan, World]):
    """Worlds of long polling."""

    name = "long polling"
    kinds = KINDS
    least = MappingProxyType({"events": 300, "answers": 30})
    runs = 60

    def draw(self, seed: int, **given: Any) -> Plan:
        """Draw a plan; `given`: arguments beside the seed, as a mutant has them."""
        return draw(seed, **given)

    def world(self, plan: Plan) -> World:
        """Return the world of a plan, before it runs."""
        return World(plan)

    def judge(self, world: World) -> list[Broken]:
        """Return every rule that a world breaks; first what is wrong in the log, in order of offsets."""
        return judge(world)

    def count(self, world: World) -> Counter[str]:
        """Count the records of the log and the answers, by reason and together."""
        decisions = [decision for coordinator in world.coordinators for decision in coordinator.decisions]
        reasons = Counter[str](decision.reason for decision in decisions if isinstance(decision, Wake))
        return reasons + Counter(events=sum(map(len, world.broker.log)), answers=reasons.total())

    def summary(self, happened: Counter[str]) -> str:
        """Return in words how many pulls were answered, by reason."""
        return "answers: " + ", ".join(f"{happened[reason]} {reason}" for reason in REASONS)

    def story(self, world: World, first: Broken) -> Iterable[str]:
        """Yield the lines of a failing world up to a broken rule."""
        return story(world, first)


POLLING = PollingSimulation()
