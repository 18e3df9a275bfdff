"""One world of long polling from a seed: run, judged and counted."""

from collections import Counter
from typing import get_args

from model.decisions import Wake, WakeReason
from tests.support.simulation.polling.polling_checks import broken
from tests.support.simulation.polling.polling_faults import KINDS
from tests.support.simulation.polling.polling_plan import draw
from tests.support.simulation.polling.polling_story import shrink, tell
from tests.support.simulation.polling.polling_world import World

REASONS = get_args(WakeReason)
"""How a pull may be answered."""
LEAST_EVENTS, LEAST_PULLS = 300, 30
"""In the log of a world, and answered in it: fewer, and little can have gone wrong."""


def live(seed: int, happened: Counter[str]) -> str:
    """Run one world and count what happened; return the story if a rule is broken, else nothing."""
    plan = draw(seed)
    world = World(plan).run()
    decisions = [decision for coordinator in world.coordinators for decision in coordinator.decisions]
    reasons = Counter(decision.reason for decision in decisions if isinstance(decision, Wake))
    events = sum(len(coordinator.log) for coordinator in world.coordinators)
    happened.update(world.happened)
    happened.update(reasons)
    happened["events"] += events
    if found := broken(world):
        return tell(shrink(plan, found[0].rule))
    missing = sorted(KINDS.keys() - world.happened.keys())
    is_poor = missing or events < LEAST_EVENTS or reasons.total() < LEAST_PULLS
    said = f"missing: {missing}, {events} events, answers: {dict(reasons)}"
    return f"seed {seed}: too little happened; {said}" if is_poor else ""


def coverage(happened: Counter[str], worlds: int) -> str:
    """Say how often what happened."""
    answers = ", ".join(f"{happened[reason]} {reason}" for reason in REASONS)
    lines = [f"{worlds} worlds of long polling, {happened['events']} events; answers: {answers}"]
    return "\n".join(lines + [f"  {happened[name]:6d}  {name:14s} {kind.says}" for name, kind in KINDS.items()])
