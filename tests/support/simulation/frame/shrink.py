"""Makes a failing world small: leaves out faults as long as the same rule breaks."""

from collections.abc import Callable
from typing import Generic, Protocol, Self, TypeVar


class Faulty(Protocol):
    """A plan of a world, of either kind."""

    @property
    def faults(self) -> tuple[object, ...]:
        """What will go wrong, in order of time."""

    def without(self, *faults: object) -> Self:
        """Return the plan without these faults."""


AnyPlan = TypeVar("AnyPlan", bound=Faulty)


class Trial(Generic[AnyPlan]):
    """Asks whether a smaller plan fails too, so many times at most; then nothing fails any more."""

    def __init__(self, fails: Callable[[AnyPlan], bool], runs: int) -> None:
        self._fails = fails
        self._runs = runs

    def __call__(self, plan: AnyPlan) -> bool:
        """Whether this plan fails."""
        self._runs -= 1
        return self._runs >= 0 and self._fails(plan)


def leave_out_faults(plan: AnyPlan, fails: Trial[AnyPlan]) -> AnyPlan:
    """Leave out faults as long as the plan fails: halves first, then smaller parts, then single ones."""
    size = max(1, len(plan.faults) // 2)
    while size:
        for start in range(0, len(plan.faults), size):
            smaller = plan.without(*plan.faults[start : start + size])
            if fails(smaller):
                plan = smaller
                break
        else:
            size //= 2
    return plan
