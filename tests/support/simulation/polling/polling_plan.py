"""What will happen in a world of long polling: drawn from one seed, before anything happens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.support.simulation.frame.fault import draw_faults
from tests.support.simulation.frame.plan import Plan as AnyPlan
from tests.support.simulation.polling.polling_faults import KINDS, QUIET_MS
from wakeroll_model.queue import Queue

OBSERVED, TOLD = "orders", "payments"
"""Of the one topic only the observer tells; of the other, producers do too, and say what is in it."""
GROUPS = ("billing", "audit")
LOOK_MS = 100
"""How often an observer looks whether it should ask for ends."""
TIMEOUTS_MS = (600, 3_000, 20_000)
"""How long clients want to be held; the shortest may end before the next tick."""
GIVE_UP_MS = 3_000
"""A client waits this much longer than it wants to be held: its wake may be lost."""
SETTLE_MS = max(TIMEOUTS_MS) + GIVE_UP_MS + 12_000
"""In the calm, every client reads its queues to the end once in this time: a hold, giving up, a few batches, and as
long as an observer needs to contradict what is wrong."""


@dataclass(frozen=True, kw_only=True)
class Plan(AnyPlan):
    """A world of long polling before anything happens."""

    queues: tuple[Queue, ...]
    pace_ms: int
    """How often somewhere a message comes."""
    knowledge: tuple[int, ...]
    """What producers tell of their messages: kinds as `Message.knowledge` counts them."""

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics."""
        return OBSERVED, TOLD

    @property
    def probe_ms(self) -> int:
        """When the last messages come: everybody has found out what it missed."""
        return self.chaos_ms + SETTLE_MS

    @property
    def end_ms(self) -> int:
        """When everybody must have read them, and goes."""
        return self.probe_ms + SETTLE_MS

    @property
    def targets(self) -> Mapping[str, Sequence[str]]:
        """`Kind.who` -> the names that a fault of such a kind may have."""
        keys = [queue.key for queue in self.queues]
        return {"client": self.clients, "topic": self.topics, "queue": keys, "world": ("",)}


def draw(seed: int, only: tuple[str, ...] = tuple(KINDS), **given: object) -> Plan:
    """Draw a world.

    Args:
        seed: the same seed, the same world.
        only: the kinds of faults that happen.
        given: fields of `Plan` that are not drawn.
    """
    rng = Random(seed)
    clients = [f"{group}/c{number}" for group in GROUPS for number in range(1, rng.choice([3, 4]))]
    queues = [Queue(topic, "", number) for topic in (OBSERVED, TOLD) for number in range(rng.choice([1, 2]))]
    plan = Plan(
        seed=seed,
        clients=tuple(clients),
        queues=tuple(queues),
        pace_ms=rng.choice([200, 500, 2_000]),
        knowledge=rng.choice([(1,), (2,), (4,), (7,), (1, 3, 5), tuple(range(8))]),
        chaos_ms=rng.choice([80_000, 80_000, 100_000]),
        faults=(),
    )
    plan = replace(plan, **given)
    faults = draw_faults(rng, plan, KINDS, only, one_more_per_ms=5_000, first_ms=QUIET_MS, quiet_ms=QUIET_MS)
    lasting = [fault.at_ms + fault.length_ms for fault in faults if not KINDS[fault.kind].ends]
    return replace(plan, chaos_ms=max([plan.chaos_ms, *lasting]), faults=faults)
