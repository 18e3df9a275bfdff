"""What may go wrong in a world of long polling, or change."""

from tests.support.simulation.frame.fault import Kind, one_of

QUIET_MS = 2_000
"""Nothing goes wrong before this, nor so shortly before the calm."""


def _kind(
    says: str,
    who: str = "world",
    *,
    lengths_ms: tuple[int, ...] = (0,),
    amounts: tuple[int, ...] = (0,),
    ends: bool = True,
) -> Kind:
    """Return a kind of fault with one of these lengths and one of these amounts.

    If it does not end with the chaos, the chaos lasts as long as it does.
    """
    return Kind(says, who, one_of(*lengths_ms), one_of(*amounts), ends)


KINDS = {
    # --- a client ---
    "crash": _kind(
        "a client dies and comes back as a new life; its last pull comes once more, before or after that",
        "client",
        lengths_ms=(10, 500, 5_000),
        amounts=(5, 800, 3_000),
    ),
    "cancel": _kind("a client does not wait any more, and goes on later", "client", lengths_ms=(10, 2_000, 8_000)),
    "deaf": _kind("a client's wakes are lost for a while", "client", lengths_ms=(3_000, 15_000)),
    "rough pulls": _kind(
        "a client's pulls and cancels are lost, repeated or overtaken for a while", "client", lengths_ms=(3_000, 15_000)
    ),
    "wish": _kind("a client wants other messages", "client", amounts=tuple(range(12))),
    "misread": _kind("a client pulls with an expression that nobody can read", "client"),
    "echo": _kind(
        "a client's wakes come twice for a while, the second time late", "client", lengths_ms=(3_000, 15_000)
    ),
    "crowd": _kind("many clients pull one queue at once, more than may be held", "queue", amounts=(5, 12, 30)),
    "flood": _kind(
        "a client pulls under ever new names with ever new expressions, other queues too", "queue", amounts=(10, 40)
    ),
    "beyond": _kind("a client pulls from far beyond the end", "queue", amounts=(1, 1_000, 2**62)),
    # --- queues, and reports of their ends ---
    "truncate": _kind("a queue loses its newest messages", "queue", amounts=(1, 3, 50)),
    "recreate": _kind("a topic is deleted and made again", "topic"),
    "lie": _kind("somebody hints at an end that is not there", "queue", amounts=(1, 1_000, 2**62)),
    "false report": _kind("an observer's report is wrong, once", "queue", amounts=(0, 3, 1_000, 2**62)),
    "late arrival": _kind("what was told of a queue's end before is told again", "queue", amounts=(0, 50, 90, 99)),
    "second observer": _kind("another observer works for a while", lengths_ms=(3_000, 15_000)),
    "new observer": _kind("the observer is another process from now on"),
    "rough arrivals": _kind(
        "reports of the ends of a topic's queues are lost, repeated or overtaken for a while",
        "topic",
        lengths_ms=(3_000, 15_000),
    ),
    # --- the coordinator ---
    "kill": _kind(
        "the coordinator dies after it published a part of a batch, which is repeated", amounts=(0, 30, 70, 100)
    ),
    "restore": _kind(
        "the coordinator's checkpoints are lost, and it goes on from an older state", amounts=(0, 50, 90, 99)
    ),
    "behind": _kind(
        "the coordinator stands still, and catches up in one batch",
        lengths_ms=(3_000, 10_000, 10_000, 30_000, 30_000, 600_000),
        ends=False,
    ),
    # --- the log ---
    "dark": _kind("nothing is appended to the log for a while", lengths_ms=(2_000, 6_000, 20_000)),
    "no ticks": _kind(
        "no observer works for a while: no ticks, and only producers tell of growth",
        lengths_ms=(2_000, 6_000, 20_000),
    ),
    "step": _kind("the log's clock is set forth or back", amounts=(-30_000, -900, 900, 30_000)),
    "junk": _kind("a record that is no event, or stands where it does not belong", amounts=(0, 1, 2, 3)),
}
"""Each happens at least once in every world that leaves nothing out."""
