"""What will happen in a world: drawn from one seed, before anything happens, so that parts of it can be left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from tests.support.simulation.frame.fault import draw_faults
from tests.support.simulation.frame.plan import Plan as AnyPlan
from tests.support.simulation.groups.group_faults import KINDS, QUIET_MS, SLICED_KINDS
from wakeroll_model.config import LONGEST_STEP_MS, MIN_SESSION_MS
from wakeroll_model.queue import Queue
from wakeroll_model.slices import cut, key_of_offset, slice_of

TOPICS = ("orders", "payments")
GROUPS = ("billing", "audit")
"""The one belongs to control partition 1 of 2, the other to 0."""
FINEST = 4
"""The largest number of slices in a world: a message belongs to one of so many cells of its partition."""
TWO_ROUTES_MS = 62_000
"""So long it takes until the observer has told twice where a queue ends."""


@dataclass(frozen=True, kw_only=True)
class Plan(AnyPlan):
    """A world of groups before anything happens."""

    queues: tuple[int, ...]
    """Of each topic, at first."""
    session_ms: int
    revoke_ms: int
    settle_ms: int
    orderly: bool
    eager: bool
    broadcasting: bool
    """Whether every client of the group audit reads every queue."""
    tick_ms: int
    """How often each observer ticks."""
    observers: int
    """How many there are at first."""
    consume_from: Literal["first", "last"]
    handling_ms: int
    """How long an application handles a message, at most."""

    groups = GROUPS
    topics = TOPICS

    is_raised: bool = False
    """Whether the feature level is raised at the beginning; else the seed says when."""
    patterns: bool = False
    """Whether clients subscribe by patterns."""

    slices: bool = False
    """Whether an operator cuts partitions into slices, and changes their number."""

    def cells(self, queue: Queue) -> list[Queue]:
        """Return the parts of a queue that no change of the number of slices divides; without slices, itself."""
        return cut(queue, FINEST) if self.slices else [queue]

    def cell_of(self, queue: Queue, offset: int) -> Queue:
        """Return the part of a whole queue that a message belongs to."""
        if not self.slices:
            return queue
        return self.cells(queue.whole)[slice_of(key_of_offset(offset), FINEST)]

    @property
    def level_ms(self) -> int | None:
        """When the operator raises the feature level; None: never. Not drawn, so that older seeds stay the same."""
        return 0 if self.is_raised else (None, 0, self.chaos_ms // 2)[self.seed % 3]

    @property
    def by_pattern(self) -> bool:
        """Whether clients subscribe by patterns instead of names.

        A loss of state may lose the level too, and a pattern with it.
        """
        return self.patterns and self.level_ms == 0 and all(fault.kind != "loss" for fault in self.faults)

    @property
    def has_replicas(self) -> bool:
        """Whether a second coordinator runs, until the state is lost: it cannot begin an era."""
        return self.seed % 2 == 1 and any(fault.kind == "outage" for fault in self.faults)

    @property
    def longest_session_ms(self) -> int:
        """The longest session that any client may still trust."""
        return max([45_000, self.session_ms, *(fault.length_ms for fault in self.faults if fault.kind == "configure")])

    @property
    def longest_revoke_ms(self) -> int:
        """The longest revoke timeout of the world."""
        return max([self.revoke_ms, *(fault.amount for fault in self.faults if fault.kind == "configure")])

    @property
    def probe_ms(self) -> int:
        """When every queue must have a reader: session + settle + revoke timeouts + 2 ticks, and some latency.

        Where a tick counts for less than passed since the last one, the shard's clock takes longer for these.
        """
        wait_ms = self.longest_session_ms + self.settle_ms + self.longest_revoke_ms
        if any(fault.kind == "truncated" for fault in self.faults):
            wait_ms += TWO_ROUTES_MS  # a newcomer that waited for the end of a loss begins beyond the end until then
        return self.chaos_ms + wait_ms * max(self.tick_ms, LONGEST_STEP_MS) // LONGEST_STEP_MS + 3_000

    def broadcasts(self, group_id: str) -> bool:
        """Whether every client of a group reads every queue of its topics."""
        return self.broadcasting and group_id == GROUPS[1]

    def scope(self, group_id: str, client_id: str) -> str:
        """Name who shares the queues: the whole group, or in broadcasting this client alone."""
        return f"{group_id}/{client_id}" if self.broadcasts(group_id) else group_id

    @property
    def end_ms(self) -> int:
        """When the world ends; the last messages are read before."""
        return self.probe_ms + 5_000

    @property
    def targets(self) -> Mapping[str, Sequence[str]]:
        """`Kind.who` -> the names that a fault of such a kind may have."""
        return {"client": self.clients, "group": GROUPS, "topic": TOPICS, "world": ("",)}


def draw(seed: int, only: tuple[str, ...] = tuple(KINDS), chaos_ms: int | None = None, **given: object) -> Plan:
    """Draw a world.

    Args:
        seed: the same seed, the same world.
        only: the kinds of faults that happen, each once at least; who stands there twice happens more often.
        chaos_ms: how long; drawn if not given.
        given: fields of `Plan` that are not drawn.
    """
    rng = Random(seed)
    names = [f"{GROUPS[0]}/c{number}" for number in range(1, rng.choice([3, 3, 4, 5]))]
    names += [f"{GROUPS[1]}/c{number}" for number in range(1, rng.choice([2, 3]))]
    plan = Plan(
        seed=seed,
        clients=tuple(names),
        queues=(rng.choice([2, 4, 6]), rng.choice([1, 3])),
        session_ms=rng.choice([MIN_SESSION_MS, 14_000, 20_000, 45_000]),
        revoke_ms=rng.choice([3_000, 10_000, 30_000]),
        settle_ms=rng.choice([0, 1_000, 1_000, 3_000]),
        orderly=rng.random() < 0.2,
        eager=rng.random() < 0.1,
        broadcasting=rng.random() < 0.4,
        tick_ms=rng.choice([200, 1_000, 1_000, 1_000, 2_500, 6_000]),
        observers=rng.choice([1, 1, 2, 3]),
        consume_from=rng.choice(["first", "last"]),
        handling_ms=rng.choice([20, 100, 300]),
        chaos_ms=chaos_ms or rng.choice([240_000, 360_000, 480_000]),
        faults=(),
    )
    plan = replace(plan, **given)  # type: ignore[arg-type]
    faults = draw_faults(rng, plan, SLICED_KINDS, only, one_more_per_ms=20_000, first_ms=5_000, quiet_ms=QUIET_MS)
    for fault in faults:
        if fault.kind in ("behind", "outage"):
            plan = replace(plan, chaos_ms=max(plan.chaos_ms, fault.at_ms + fault.length_ms + QUIET_MS))
    return replace(plan, faults=faults)
