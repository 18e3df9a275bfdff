"""What must hold in every state, beyond what the steps themselves have found broken."""

from collections.abc import Iterator
from itertools import combinations

from tests.support.explorer.explored_process import FROZEN, KICKED, OUT, UP, View
from tests.support.explorer.universe import State, Universe
from wakeroll_model.events import Kick
from wakeroll_model.slices import cut, overlapping


def broken(universe: Universe, state: State) -> Iterator[str]:
    """Yield the rules that a state breaks."""
    yield from _two_readers(universe, state)


def broken_step(universe: Universe, before: State, after: State, *, resets: bool) -> Iterator[str]:
    """Yield the rules that a move breaks: offsets only grow, and nobody is shut out by the dead.

    Args:
        universe: the world.
        before: the state before the move.
        after: the state after it.
        resets: whether the move may set offsets back: a reset, a topic that is gone or made again, a loss of state.
    """
    if before.coordinator != after.coordinator and not resets:
        was, now = universe.coordinator.view(before.coordinator), universe.coordinator.view(after.coordinator)
        for queue, offset in was.offsets.items():
            if now.offsets.get(queue, -1) < offset:
                yield f"{queue} was committed up to {offset}, now up to {now.offsets.get(queue)}"
    for slot, (part, other) in enumerate(zip(before.processes, after.processes, strict=True)):
        was, now = universe.processes.parts[part].status, universe.processes.parts[other].status
        if now == OUT != was:
            yield from _shut_out(universe, after, slot)
        if now == KICKED != was:
            yield from _kicked(universe, after, slot)


def _two_readers(universe: Universe, state: State) -> Iterator[str]:
    """A queue is held by one process at most; one that was late to give it up may still drain it."""
    if universe.world.broadcasting:
        return
    views = [universe.processes.view(part) for part in state.processes]
    for one, two in combinations(views, 2):
        both = (one.reads | one.drains) & (two.reads | two.drains)
        if universe.world.knows_slices:
            yield from _two_readers_of_a_slice(one, two)
        if not both:
            continue
        said = universe.coordinator.view(state.coordinator)
        if said.is_eager:
            continue
        for queue in sorted(both):
            if queue in one.reads and queue in two.reads:
                yield f"{one.instance_id} and {two.instance_id} both read {queue}"
                continue
            drain = two if queue in one.reads else one
            is_late = any((life.instance_id, queue) in said.late for life in (one, two) if queue in life.drains)
            if not is_late and not _is_over(universe, state, drain.instance_id):
                yield f"{drain.instance_id} still drains {queue}, which the other one has already"


def _two_readers_of_a_slice(one: View, two: View) -> Iterator[str]:
    """Nobody reads a slice of what another process reads."""
    for queue in sorted(one.reads):
        for other in overlapping(queue, (1, 2)):
            if other in two.reads:
                yield f"{one.instance_id} reads {queue}, and {two.instance_id} reads {other}"


def _is_over(universe: Universe, state: State, life: str) -> bool:
    """Whether the coordinator has ended a life: what it still has in its hands is the price of a crash."""
    return life in universe.coordinator.parts[state.coordinator].memory.ended


def _shut_out(universe: Universe, state: State, slot: int) -> Iterator[str]:
    """Who is told to stay out has a living rival."""
    name = universe.world.processes[slot]
    rivals = (
        universe.processes.parts[part].status
        for at, part in enumerate(state.processes)
        if at != slot and universe.world.processes[at] == name
    )
    if not any(status in (UP, FROZEN) for status in rivals):
        yield f"{name} is told to stay out, and no other process has its name"


def _kicked(universe: Universe, state: State, slot: int) -> Iterator[str]:
    """Who is told that it was kicked was named by an operator."""
    name = universe.world.processes[slot]
    said = (event for number, event in enumerate(universe.world.events) if state.said >> number & 1)
    if not any(isinstance(event, Kick) and event.client_id == name for event in said):
        yield f"{name} is told that it was kicked, and nobody has kicked it"


def is_well(universe: Universe, state: State) -> bool:
    """Whether every process that runs is a member, and every queue is read by one of them; if broadcasting, by all."""
    views = [universe.processes.view(part) for part in state.processes]
    members = universe.coordinator.view(state.coordinator).members
    for view in views:
        if view.status == UP and (view.client_id, view.instance_id) not in members and _has_no_twin(view, views):
            return False
    up = sum(view.status == UP for view in views)
    readers = up if universe.world.broadcasting else 1
    reads = [
        {cell for queue in view.reads for cell in (cut(queue, 2) if universe.world.knows_slices else (queue,))}
        for view in views
    ]
    return all(sum(cell in read for read in reads) == readers for cell in universe.cells(state))


def _has_no_twin(view: object, views: list) -> bool:
    return sum(other.status == UP and other.client_id == view.client_id for other in views) == 1
