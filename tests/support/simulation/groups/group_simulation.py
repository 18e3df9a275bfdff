"""One world of groups from a seed: run, judged and counted."""

from collections import Counter

from tests.support.simulation.groups.checks.judge import broken
from tests.support.simulation.groups.group_faults import KINDS
from tests.support.simulation.groups.group_plan import draw
from tests.support.simulation.groups.group_story import shrink, tell
from tests.support.simulation.groups.group_world import World

LEAST_EVENTS = 300
"""In the log of a world: fewer, and little can have gone wrong."""


def live(seed: int, happened: Counter[str]) -> str:
    """Run one world and count what happened; return the story if a rule is broken, else nothing."""
    plan = draw(seed)
    world = World(plan).run()
    events = sum(len(log) for log in world.broker.log)
    happened.update(world.happened)
    happened["events"] += events
    happened["messages"] += len(world.seen.handlings)
    if found := broken(world):
        return tell(shrink(plan, found[0].rule))
    missing = sorted(KINDS.keys() - world.happened.keys())
    is_poor = missing or events < LEAST_EVENTS
    return f"seed {seed}: too little happened; missing: {missing}, {events} events" if is_poor else ""


def coverage(happened: Counter[str], worlds: int) -> str:
    """Say how often what happened."""
    lines = [f"{worlds} worlds of groups, {happened['events']} events, {happened['messages']} messages handled"]
    return "\n".join(lines + [f"  {happened[name]:6d}  {name:10s} {kind.says}" for name, kind in KINDS.items()])
