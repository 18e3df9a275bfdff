"""The common part of plans: a world before anything happens, drawn from one seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from tests.support.simulation.frame.fault import Fault


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A world before anything happens; times in ms since its beginning."""

    seed: int
    clients: tuple[str, ...]
    """``group/client_id``."""
    chaos_ms: int
    """No fault begins after this time."""
    faults: tuple[Fault, ...]

    @property
    def probe_ms(self) -> int:
        """When the calm has lasted so long that everything must work: the last messages come then."""
        raise NotImplementedError

    @property
    def end_ms(self) -> int:
        """When the world ends."""
        raise NotImplementedError

    @property
    def targets(self) -> Mapping[str, Sequence[str]]:
        """`Kind.who` -> the names that a fault of such a kind may have."""
        raise NotImplementedError

    def without(self, *faults: Fault) -> Self:
        """Return the plan without these faults."""
        return replace(self, faults=tuple(fault for fault in self.faults if fault not in faults))
