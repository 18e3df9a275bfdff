"""Breadth first: every state within a depth, each once, so that the first counter-example is a shortest one."""

from array import array
from dataclasses import dataclass, field

from tests.support.explorer import explored_rules
from tests.support.explorer.universe import Move, Next, State, Universe

NEVER_S = 10**9
LONGEST_S = 1_000
"""A calm world is not followed any longer."""


@dataclass
class Found:
    """A counter-example."""

    path: list[Move]
    says: list[str]


@dataclass
class Explored:
    """What an exploration has seen."""

    world: str
    depth: int = 0
    states: int = 0
    transitions: int = 0
    healed: int = 0
    """States that were asked whether the calm world heals them."""
    calm_states: int = 0
    slowest_s: int = 0
    """The longest that a calm world took to be well again."""
    found: list[Found] = field(default_factory=list)


class Healing:
    """How long a calm world takes until all is well and stays well; each calm state is judged once."""

    def __init__(self, universe: Universe) -> None:
        self._universe = universe
        self._ill_s: dict[State, int] = {}

    def __len__(self) -> int:
        return len(self._ill_s)

    def seconds(self, state: State) -> tuple[int, tuple[str, ...]]:
        """Return after how many calm seconds all is well for good, and the rules broken on the way."""
        universe, known = self._universe, self._ill_s
        path: list[tuple[State, int]] = []
        place: dict[State, int] = {}
        state, broken = universe.calmed(state)
        passed_s = 0
        while state not in known and state not in place and passed_s < LONGEST_S:
            place[state] = len(path)
            after, seconds, more = universe.calm(state)
            path.append((state, seconds))
            broken += more
            passed_s += seconds
            state = after
        if state in place:  # a circle: well for good only if it is well all the way round
            start = place[state]
            circle = [one for one, _ in path[start:]]
            value = 0 if all(explored_rules.is_well(universe, one) for one in circle) else NEVER_S
            for one in circle:
                known[one] = value
            del path[start:]
        elif state not in known:  # no circle: lives or epochs count up for ever
            known[state] = 0 if explored_rules.is_well(universe, state) else NEVER_S
        ill_s = known[state]
        for one, seconds in reversed(path):
            if ill_s or not explored_rules.is_well(universe, one):
                ill_s += seconds
            broken += tuple(explored_rules.broken(universe, one))
            known[one] = ill_s
        return ill_s, broken


class _Search:
    """An exploration under way."""

    def __init__(self, universe: Universe, *, heal: bool, heal_every: int, stop_at: int) -> None:
        self.universe = universe
        self.explored = Explored(universe.world.name)
        self.healing = Healing(universe) if heal else None
        self.heal_every = 1
        self._last_heal_every = heal_every
        self._stop_at = stop_at
        self._parents, self._moves = array("q"), list[Move]()
        self._frontier: list[tuple[State, tuple[int, ...], int]] = []
        self._visited: dict[State, list[tuple[int, ...]]] = {}
        self._met = 0

    def begin(self) -> None:
        """Visit the first state."""
        first = self.universe.first()
        if first.broken:
            self._note(-1, None, list(first.broken))
            return
        budget = tuple(self.universe.world.budgets.values())
        self._visited[first.state] = [budget]
        self._keep(first.state, budget, -1, first.move)

    def deepen(self, *, is_last: bool) -> bool:
        """Visit all states that are one move further; return whether to go on."""
        self.heal_every = self._last_heal_every if is_last else 1
        before, self._frontier = self._frontier, []
        for state, budget, at in before:
            for move, paid in self.universe.moves(state, budget):
                self.explored.transitions += 1
                left = budget if paid < 0 else (*budget[:paid], budget[paid] - 1, *budget[paid + 1 :])
                self._visit(state, self.universe.go(state, move), left, at)
                if len(self.explored.found) >= self._stop_at:
                    self._count()
                    return False
        self.explored.depth += 1
        self._count()
        return bool(self._frontier)

    def _visit(self, before: State, step: Next, left: tuple[int, ...], at: int) -> None:
        """Judge a state; go on from it unless it was met with as much left to go wrong."""
        known = self._visited.get(step.state)
        says = [*step.broken]
        if known is None:
            says += self._judge(before, step)
            self._visited[step.state] = [left]
        if says:
            self._note(at, step.move, says)
        elif known is None:
            self._keep(step.state, left, at, step.move)
        elif not any(all(a >= b for a, b in zip(one, left, strict=True)) for one in known):
            known.append(left)
            self._keep(step.state, left, at, step.move)

    def _judge(self, before: State, step: Next) -> list[str]:
        universe, explored = self.universe, self.explored
        resets = step.move[0] in ("say", "loss", "late")
        says = [*explored_rules.broken_step(universe, before, step.state, resets=resets)]
        says += explored_rules.broken(universe, step.state)
        self._met += 1
        if says or self.healing is None or self._met % self.heal_every:
            return says
        seconds, broken = self.healing.seconds(step.state)
        explored.healed += 1
        limit = universe.world.heals_in_s
        if seconds >= NEVER_S:
            return [*broken, "the calm world is never well"]
        if seconds > limit:
            return [*broken, f"the calm world is well after {seconds} s; {limit} is the limit"]
        explored.slowest_s = max(explored.slowest_s, seconds)
        return list(broken)

    def _keep(self, state: State, left: tuple[int, ...], at: int, move: Move) -> None:
        self._frontier.append((state, left, len(self._parents)))
        self._parents.append(at)
        self._moves.append(move)

    def _note(self, at: int, move: Move | None, says: list[str]) -> None:
        path = [] if move is None else [move]
        while at > 0:
            path.append(self._moves[at])
            at = self._parents[at]
        self.explored.found.append(Found(path[::-1], says))

    def _count(self) -> None:
        self.explored.states = len(self._visited)
        self.explored.calm_states = len(self.healing) if self.healing else 0


def explore(universe: Universe, depth: int, *, heal: bool = True, heal_every: int = 1, stop_at: int = 1) -> Explored:
    """Visit all states within `depth` moves.

    Args:
        universe: the world.
        depth: moves from the first state.
        heal: whether the states are asked how long the calm world takes to be well: all, but for the last depth.
        heal_every: of the states of the last depth, one in so many.
        stop_at: end at so many counter-examples; none goes on from a broken state.
    """
    search = _Search(universe, heal=heal, heal_every=heal_every, stop_at=stop_at)
    search.begin()
    while not search.explored.found and search.explored.depth < depth:
        if not search.deepen(is_last=search.explored.depth == depth - 1):
            break
    return search.explored
