"""What will happen in a world: drawn from one seed, before anything happens, so that parts of it can be left out."""

from dataclasses import dataclass, replace
from random import Random

FAULTS = {
    "crash": "a client dies without a word and comes back under its name later",
    "restart": "a client dies and comes back at once; what it sent last arrives after the new life's first heartbeat",
    "leave": "a client ends its work, commits and unregisters, and comes back later",
    "abort": "a client unregisters in the middle of its work, which is lost",
    "twin": "a second process under the same client_id",
    "zombie": "a client stands still for longer than its session, and goes on as if nothing had happened",
    "pause": "a client stands still for a while",
    "cut": "a client is cut off from the broker both ways; what it sends is delivered afterwards, if not too old",
    "deaf": "a client's inbox and acknowledgements do not come for a while; what it sends arrives",
    "slow": "a message is handled for longer than the revoke timeout",
    "kill": "the coordinator dies after it published a part of a batch, which is repeated",
    "behind": "the coordinator stands still, and catches up in one batch",
    "late": "the inbox is delayed for everybody",
    "dark": "nothing is appended to the log for a while, and nothing is read from the broker",
    "no ticks": "the observer is dead for a minute",
    "step": "the log's clock is set forth or back",
    "route": "queues are added to a topic, or removed",
    "wish": "a client subscribes another set of topics",
    "configure": "an operator changes a group's settings",
    "junk": "a record that is no event",
}
"""Kind -> what it does.  Each happens at least once in every world that leaves nothing out."""

TOPICS = ("orders", "payments")
GROUPS = ("billing", "audit")
"""The one belongs to control partition 1 of 2, the other to 0."""
PARTITIONS = 2
QUIET_MS = 20_000
"""Before the calm begins, nothing happens that would have to be waited for longer than the rules say."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, or changes."""

    at_ms: int
    kind: str
    who: str = ""
    """A client as ``group/client_id``, a group, or a topic."""
    length_ms: int = 0
    amount: int = 0

    def __str__(self) -> str:
        parts = [self.kind, self.who, f"for {self.length_ms / 1000:g} s" * bool(self.length_ms)]
        return " ".join([part for part in parts if part] + [f"({self.amount})"] * bool(self.amount))


@dataclass(frozen=True)
class Plan:
    """A world before it happens; times in ms since its beginning."""

    seed: int
    clients: tuple[str, ...]
    """``group/client_id``."""
    queues: tuple[int, ...]
    """Of each topic, at first."""
    session_ms: int
    revoke_ms: int
    settle_ms: int
    orderly: bool
    eager: bool
    handling_ms: int
    """How long an application handles a message, at most."""
    chaos_ms: int
    """Then nothing goes wrong any more."""
    faults: tuple[Fault, ...]

    @property
    def longest_session_ms(self) -> int:
        """The longest session that any client may still trust."""
        return max([45_000, self.session_ms, *(fault.length_ms for fault in self.faults if fault.kind == "configure")])

    @property
    def longest_revoke_ms(self) -> int:
        """The longest revoke timeout of the world."""
        return max([self.revoke_ms, *(fault.amount for fault in self.faults if fault.kind == "configure")])

    @property
    def end_ms(self) -> int:
        """When every queue must have a reader: session + settle + revoke timeouts + 2 ticks, and some latency."""
        return self.chaos_ms + self.longest_session_ms + self.settle_ms + self.longest_revoke_ms + 3_000

    def without(self, *faults: Fault) -> "Plan":
        """Return the plan without these faults."""
        return replace(self, faults=tuple(fault for fault in self.faults if fault not in faults))


def draw(seed: int, only: tuple[str, ...] = tuple(FAULTS), chaos_ms: int | None = None, **given: object) -> Plan:
    """Draw a world.

    Args:
        seed: the same seed, the same world.
        only: the kinds of faults that happen.
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
        session_ms=rng.choice([6_000, 10_000, 20_000, 45_000]),
        revoke_ms=rng.choice([3_000, 10_000, 30_000]),
        settle_ms=rng.choice([0, 1_000, 1_000, 3_000]),
        orderly=rng.random() < 0.2,
        eager=rng.random() < 0.1,
        handling_ms=rng.choice([20, 100, 300]),
        chaos_ms=chaos_ms or rng.choice([240_000, 360_000, 480_000]),
        faults=(),
    )
    plan = replace(plan, **given)
    kinds = list(only) + rng.choices(only, k=rng.randint(0, plan.chaos_ms // 20_000)) if only else []
    faults = [_fault(rng, kind, plan) for kind in kinds]
    for fault in faults:
        if fault.kind == "behind":
            plan = replace(plan, chaos_ms=max(plan.chaos_ms, fault.at_ms + fault.length_ms + QUIET_MS))
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: (fault.at_ms, fault.kind, fault.who))))


def _fault(rng: Random, kind: str, plan: Plan) -> Fault:  # noqa: C901 - a table of what may be drawn
    at_ms = rng.randint(5_000, plan.chaos_ms - QUIET_MS)
    who = rng.choice(plan.clients)
    session, revoke = plan.session_ms, plan.revoke_ms
    left_ms = plan.chaos_ms - at_ms
    length, amount = 0, 0
    match kind:
        case "crash" | "leave" | "abort":
            length = rng.choice([500, session // 2, session + 5_000, 2 * session])
        case "restart":
            length, amount = rng.choice([10, 200, 1_000]), rng.choice([0, 500, 3_000])
        case "twin":
            length = 0
        case "zombie":
            length = session + rng.choice([100, 1_500, 20_000, 60_000])
        case "pause":
            length = rng.randint(300, session)
        case "cut" | "deaf":
            length = rng.choice([2_000, session - 1_000, session + 500, session + 5_000, 2 * session, 60_000])
        case "slow":
            length = revoke + rng.randint(-1_000, 15_000)
        case "kill":
            amount = rng.randint(0, 100)
        case "behind":
            length = rng.choice([2_000, 8_000, 20_000, 60_000, 600_000 if rng.random() < 0.3 else 120_000])
        case "late":
            length, amount = rng.choice([2_000, 20_000]), rng.choice([500, 2_000, 8_000])
        case "dark":
            length, amount = rng.choice([2_000, 6_000, 15_000, 60_000]), rng.choice([0, 1])
        case "no ticks":
            length = 60_000
        case "step":
            # Not forth by less than 5 s: the shard's clock would take that for time, and the client's would not.
            who, amount = "", rng.choice([-900, -3_000, -4_900, -30_000, -600_000, 30_000, 600_000])
        case "route":
            topic = rng.randrange(len(TOPICS))
            who, amount = TOPICS[topic], max(1, plan.queues[topic] + rng.choice([-2, -1, 1, 2, 3]))
        case "wish":
            amount = rng.choice([1, 2, 3])
        case "configure":
            who, length, amount = (
                who.partition("/")[0],
                rng.choice([6_000, 15_000, 45_000]),
                rng.choice([3_000, 20_000]),
            )
        case "junk":
            who = rng.choice(["", *GROUPS])
    if kind in ("dark", "no ticks", "behind", "kill", "late", "junk") and kind != "junk":
        who = ""
    if kind not in ("restart", "slow", "configure", "behind"):
        length = min(length, left_ms)
    return Fault(at_ms, kind, who, length, amount)
