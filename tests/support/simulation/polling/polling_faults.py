"""What may go wrong in a world of long polling, or change: its kinds, and how one of each is drawn."""

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from tests.support.simulation.frame.fault import Fault

if TYPE_CHECKING:
    from tests.support.simulation.polling.polling_plan import Plan

QUIET_MS = 2_000
"""Nothing goes wrong before this, nor so shortly before the calm."""


@dataclass(frozen=True)
class Kind:
    """One kind of fault."""

    says: str
    who: str = "world"
    """Whom it hits: a ``client``, a ``topic``, a ``queue``, or the whole ``world``."""
    lengths_ms: tuple[int, ...] = (0,)
    amounts: tuple[int, ...] = (0,)
    ends: bool = True
    """Whether its length ends with the chaos at the latest; else the chaos lasts as long."""


KINDS = {
    # --- a client ---
    "crash": Kind(
        "a client dies and comes back as a new life; its last pull comes once more, before or after that",
        "client",
        lengths_ms=(10, 500, 5_000),
        amounts=(5, 800, 3_000),
    ),
    "cancel": Kind("a client does not wait any more, and goes on later", "client", lengths_ms=(10, 2_000, 8_000)),
    "deaf": Kind("a client's wakes are lost for a while", "client", lengths_ms=(3_000, 15_000)),
    "rough pulls": Kind(
        "a client's pulls and cancels are lost, repeated or overtaken for a while", "client", lengths_ms=(3_000, 15_000)
    ),
    "wish": Kind("a client wants other messages", "client", amounts=tuple(range(12))),
    "misread": Kind("a client pulls with an expression that nobody can read", "client"),
    "echo": Kind("a client's wakes come twice for a while, the second time late", "client", lengths_ms=(3_000, 15_000)),
    "crowd": Kind("many clients pull one queue at once, more than may be held", "queue", amounts=(5, 12, 30)),
    "flood": Kind(
        "a client pulls under ever new names with ever new expressions, other queues too", "queue", amounts=(10, 40)
    ),
    "beyond": Kind("a client pulls from far beyond the end", "queue", amounts=(1, 1_000, 2**62)),
    # --- queues, and what is told of them ---
    "truncate": Kind("a queue loses its newest messages", "queue", amounts=(1, 3, 50)),
    "recreate": Kind("a topic is deleted and made again", "topic"),
    "lie": Kind("somebody hints at an end that is not there", "queue", amounts=(1, 1_000, 2**62)),
    "false report": Kind("an observer's report is wrong, once", "queue", amounts=(0, 3, 1_000, 2**62)),
    "late arrival": Kind("what was told of a queue's end before is told again", "queue", amounts=(0, 50, 90, 99)),
    "second observer": Kind("another observer works for a while", lengths_ms=(3_000, 15_000)),
    "new observer": Kind("the observer is another process from now on"),
    "rough arrivals": Kind(
        "what is told of a topic's growth is lost, repeated or overtaken for a while",
        "topic",
        lengths_ms=(3_000, 15_000),
    ),
    # --- the coordinator ---
    "kill": Kind(
        "the coordinator dies after it published a part of a batch, which is repeated", amounts=(0, 30, 70, 100)
    ),
    "restore": Kind(
        "the coordinator's checkpoints are lost, and it goes on from an older state", amounts=(0, 50, 90, 99)
    ),
    "behind": Kind(
        "the coordinator stands still, and catches up in one batch",
        lengths_ms=(3_000, 10_000, 10_000, 30_000, 30_000, 600_000),
        ends=False,
    ),
    # --- the log ---
    "dark": Kind("nothing is appended to the log for a while", lengths_ms=(2_000, 6_000, 20_000)),
    "no ticks": Kind(
        "no observer works for a while: no ticks, and only producers tell of growth",
        lengths_ms=(2_000, 6_000, 20_000),
    ),
    "step": Kind("the log's clock is set forth or back", amounts=(-30_000, -900, 900, 30_000)),
    "junk": Kind("a record that is no event, or stands where it does not belong", amounts=(0, 1, 2, 3)),
}
"""Each happens at least once in every world that leaves nothing out."""


def draw_fault(rng: Random, kind: str, plan: "Plan") -> Fault:
    """Draw when a fault happens, to whom, for how long and how much."""
    at_ms = rng.randint(QUIET_MS, plan.chaos_ms - QUIET_MS)
    one = KINDS[kind]
    length_ms = rng.choice(one.lengths_ms)
    if one.ends:
        length_ms = min(length_ms, plan.chaos_ms - at_ms)
    keys = tuple(queue.key for queue in plan.queues)
    whom = {"client": plan.clients, "topic": plan.topics, "queue": keys, "world": ("",)}[one.who]
    return Fault(at_ms, kind, rng.choice(whom), length_ms, rng.choice(one.amounts))
