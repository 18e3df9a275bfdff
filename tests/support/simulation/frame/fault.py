"""Faults of a simulated world: one fault, the kinds of faults, and how the faults of a plan are drawn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol


@dataclass(frozen=True)
class Fault:
    """What happens when, to whom, for how long and how much; its kind says what that means."""

    at_ms: int
    kind: str
    who: str = ""
    """A client as ``group/client_id``, a group, a topic, or the key of a queue."""
    length_ms: int = 0
    amount: int = 0

    def __str__(self) -> str:
        parts = [self.kind, self.who, f"for {self.length_ms / 1000:g} s" * bool(self.length_ms)]
        return " ".join([part for part in parts if part] + [f"({self.amount})"] * bool(self.amount))


Draw = Callable[[Random, Any], int]
"""Draws a number for a fault; the second argument is the plan."""


def nothing(_rng: Random, _plan: object) -> int:
    """Draw nothing: no random number is used."""
    return 0


def one_of(*values: int) -> Draw:
    """Draw one of some values; even of a single value, a random number is used."""
    return lambda rng, _: rng.choice(values)


def between(least: int, most: int) -> Draw:
    """Draw a number of a range, both ends included."""
    return lambda rng, _: rng.randint(least, most)


@dataclass(frozen=True)
class Kind:
    """One kind of fault."""

    says: str
    who: str = "client"
    """The target: a ``client``, a ``group``, a ``topic``, a ``queue`` or the whole ``world``."""
    length_ms: Draw = nothing
    amount: Draw = nothing
    ends: bool = True
    """Whether its length ends with the chaos at the latest."""


class Targeted(Protocol):
    """What the drawing of faults needs of a plan."""

    @property
    def chaos_ms(self) -> int:
        """Time of the last fault at the latest, in ms since the beginning of the world."""

    @property
    def targets(self) -> Mapping[str, Sequence[str]]:
        """`Kind.who` -> the names that a fault of such a kind may have."""


def draw_faults(
    rng: Random,
    plan: Targeted,
    kinds: Mapping[str, Kind],
    only: Sequence[str],
    *,
    one_more_per_ms: int,
    first_ms: int,
    quiet_ms: int,
) -> tuple[Fault, ...]:
    """Draw all faults of a plan, in order of time.

    Args:
        rng: the source of all draws.
        plan: the world before anything happens.
        kinds: all kinds of faults, by name.
        only: the kinds that happen, each once at least; a kind that stands there twice happens more often.
        one_more_per_ms: up to one additional fault for so much time of chaos.
        first_ms: no fault begins before this time.
        quiet_ms: no fault begins so shortly before the end of the chaos.
    """
    names = list(only) + rng.choices(only, k=rng.randint(0, plan.chaos_ms // one_more_per_ms)) if only else []
    faults = []
    for name in names:
        kind, at_ms = kinds[name], rng.randint(first_ms, plan.chaos_ms - quiet_ms)
        length_ms = kind.length_ms(rng, plan)
        if kind.ends:
            length_ms = min(length_ms, plan.chaos_ms - at_ms)
        faults.append(Fault(at_ms, name, rng.choice(plan.targets[kind.who]), length_ms, kind.amount(rng, plan)))
    return tuple(sorted(faults, key=lambda fault: (fault.at_ms, fault.kind, fault.who)))
