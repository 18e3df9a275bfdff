"""What a seed has drawn: the groups, the topics and the steps of a world."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.support.simulation.ring.ring_subscriptions import PATTERNS, Wanted
from wakeroll_model.events import Mode

GRACEFUL = ("join", "leave", "stop", "pause", "resume", "produce", "hang briefly")
"""Steps after which nothing may be repeated."""
ROUGH = (
    "kill",
    "freeze",
    "cut off",
    "brokers away",
    "coordinator away",
    "observer away",
    "repeat a batch",
    "slow network",
    "failed sends",
    "crash of a handler",
    "hang",
    "interrupt",
    "cancel",
    "reset offsets",
    "configure",
    "resend letters",
    "drop letters",
    "reshard",
    "expire",
    "set the wall clock",
    "truncate",
    "change the mode",
)
"""Steps that break something, or that an operator makes."""
ENABLED = (*GRACEFUL, *ROUGH)
SLICED_GRACEFUL = ("cut into slices",)
SLICED_ROUGH = ("cut into slices", "seek")
"""Steps that are added in worlds with slices, or in those that break something."""
SLICED = SLICED_ROUGH
CHANGING = ("resubscribe", "create a topic", "delete a topic")
"""Steps that are added in worlds whose members change their topics."""


@dataclass(frozen=True)
class GroupPlan:
    """A group of a world."""

    group_id: str
    topics: tuple[str, ...]
    tags: tuple[str, ...]
    """Tags that its members want; none: they want all messages."""
    orderly: bool
    strategy: str
    kinds: tuple[str, ...]
    """Kinds of its processes."""
    members: int
    fails: float
    max_retries: int
    handle_timeout_s: float
    session_timeout_ms: int
    heartbeat_ms: int
    revoke_timeout_ms: int
    mode: Mode = "clustering"
    """Mode of its first members; the step "change the mode" changes that of a broadcasting group."""
    later_tags: tuple[str, ...] | None = None
    """Tags that members want which a rolling deployment starts later; None: all members want the same."""
    pattern: str = ""
    """Pattern of further topics of its first members; empty: they have none."""
    later: tuple[tuple[str, ...], str] | None = None
    """Topics and pattern that all members have in the end; None: nobody changes them."""

    @property
    def first(self) -> Wanted:
        """What its first members subscribe."""
        return Wanted(self.topics, self.tags, self.pattern)

    @property
    def last(self) -> Wanted:
        """What all members subscribe in the end."""
        topics, pattern = (self.topics, self.pattern) if self.later is None else self.later
        return Wanted(topics, self.tags if self.later_tags is None else self.later_tags, pattern)

    @property
    def changes(self) -> bool:
        """Whether members subscribe something else than others, or than before."""
        return self.later is not None or self.later_tags is not None


@dataclass(frozen=True)
class Step:
    """Something that happens."""

    after_s: float
    """How long after the step before (s)."""
    name: str
    draw: int
    """Seed of what else it draws."""


@dataclass(frozen=True)
class RingPlan:
    """A world."""

    seed: int
    is_rough: bool
    topics: Mapping[str, int]
    """Topic -> number of its queues."""
    messages: int
    groups: tuple[GroupPlan, ...]
    partitions: int
    """Number of partitions of the control topics."""
    switches_at_locks: float
    watchers: tuple[str, ...]
    """Kinds of processes that follow the decisions."""
    pace_s: float
    """How long a batch of the coordinator takes (s)."""
    faults: tuple[Step, ...]
    """The steps, in order."""
    is_sliced: bool = False
    """Whether an operator cuts topics into slices."""

    @property
    def keys(self) -> list[bytes | None]:
        """Keys of the messages; of eight slices, these are of five."""
        return [None, *(bytes([number]) for number in (b"abcdefghij" if self.is_sliced else b"abcd"))]

    def without(self, *faults: object) -> "RingPlan":
        """Return the plan without these steps."""
        return replace(self, faults=tuple(one for one in self.faults if not any(one is other for other in faults)))


def _with_changes(
    seed: int, steps: tuple[Step, ...], groups: Sequence[GroupPlan], only: tuple[str, ...]
) -> tuple[Step, ...]:
    """Return the steps, with some in which a member changes its filter, if that differs in a later deployment."""
    rng, changed = Random(f"changes {seed}"), list(steps)
    if all(group.later_tags is None for group in groups) or (only and "subscribe" not in only):
        return steps
    for _ in range(rng.choice([1, 2, 3])):
        changed.insert(rng.randint(0, len(changed)), Step(rng.choice([0.0, 2.0]), "subscribe", rng.getrandbits(32)))
    return tuple(changed)


def draw(seed: int, *, only: tuple[str, ...] = (), **given: Any) -> RingPlan:
    """Draw a world.

    Args:
        seed: the same seed is the same world.
        only: names of steps; others do not happen.
        given: fields of the plan, or of each group, that are not drawn.
    """
    rng = Random(f"ring {seed}")
    is_rough = bool(given.pop("is_rough", rng.random() < 0.75))
    topics = {"orders": rng.choice([1, 2, 4]), "returns": rng.choice([1, 2])}
    session_ms = rng.choice([10_000, 20_000, 45_000])
    shared = {
        "strategy": rng.choice(["AVG", "SPREAD", "AVG_BY_CIRCLE"]),
        "session_timeout_ms": session_ms,
        "heartbeat_ms": min(session_ms // 3, rng.choice([2_000, 10_000])),
        "revoke_timeout_ms": rng.choice([5_000, 10_000, 30_000]),
        "handle_timeout_s": rng.choice([8.0, 60.0]),
        "max_retries": rng.choice([0, 1, 2, 3]),
    }
    orderly = rng.random() < 0.3
    groups = [
        GroupPlan(
            group_id="billing",
            topics=("orders",) if rng.random() < 0.5 else ("orders", "returns"),
            tags=rng.choice([(), (), ("paid",), ("paid", "refunded")]),
            orderly=orderly,
            kinds=("run",),
            members=rng.choice([1, 2, 3]),
            fails=rng.choice([0.0, 0.1, 0.4]),
            **shared,
        )
    ]
    if rng.random() < 0.6:
        groups.append(
            GroupPlan(
                group_id="audit",
                topics=("orders",),
                tags=rng.choice([(), ("refunded",)]),
                orderly=rng.random() < 0.5,
                kinds=rng.choice([("poll",), ("poll", "async"), ("async",)]),
                members=rng.choice([1, 2]),
                fails=rng.choice([0.0, 0.2]),
                **shared,
            )
        )
    known = ENABLED if is_rough else GRACEFUL
    names = [name for name in known if not only or name in only]
    steps = tuple(
        Step(rng.choice([0.0, 0.3, 2.0, 12.0]), rng.choice(names), rng.getrandbits(32))
        for _ in range(rng.choice([4, 8, 16]))
    )
    plan = RingPlan(
        seed=seed,
        is_rough=is_rough,
        topics=topics,
        messages=rng.choice([10, 30, 60]),
        groups=tuple(groups),
        partitions=rng.choice([1, 2]),
        switches_at_locks=rng.choice([0.0, 0.02, 0.2]),
        watchers=Random(f"watchers {seed}").choice([(), ("mirror",), ("live view",), ("mirror", "live view")]),
        pace_s=rng.choice([0.05, 0.5, 1.5]),
        faults=steps,
    )
    crowds = Random(f"crowds {seed}")
    if crowds.random() < 0.25:
        groups.append(
            GroupPlan(
                group_id="cache",
                topics=("orders",),
                tags=crowds.choice([(), ("paid",)]),
                orderly=crowds.random() < 0.5,
                kinds=crowds.choice([("run",), ("poll",), ("async", "run")]),
                members=crowds.choice([1, 2, 3]),
                fails=crowds.choice([0.0, 0.2]),
                mode="broadcasting",
                **shared,
            )
        )
    deployments = Random(f"deployments {seed}")
    for at, group in enumerate(plan.groups):
        if deployments.random() < 0.3:
            others = [tags for tags in ((), ("paid",), ("refunded",), ("paid", "refunded")) if tags != group.tags]
            groups[at] = replace(group, later_tags=deployments.choice(others))
    plan = replace(plan, groups=tuple(groups), faults=_with_changes(seed, plan.faults, groups, only))
    cuts = Random(f"slices {seed}")  # of its own, so that the other steps of a seed stay the same
    topics_of = Random(f"topics {seed}")  # of its own too
    if topics_of.random() < 0.35 if not only else "resubscribe" in only:
        plan = _with_topics(plan, topics_of, only)
    own = {name: value for name, value in given.items() if name in RingPlan.__dataclass_fields__}
    known = tuple(name for name in (SLICED_ROUGH if is_rough else SLICED_GRACEFUL) if not only or name in only)
    if known and own.setdefault("is_sliced", cuts.random() < 0.3):
        plan = replace(plan, faults=_with_slices(plan.faults, cuts, known))
    of_groups = {name: value for name, value in given.items() if name not in own}
    return replace(plan, **own, groups=tuple(replace(one, **of_groups) for one in plan.groups))


def _with_topics(plan: RingPlan, rng: Random, only: tuple[str, ...]) -> RingPlan:
    """Return the plan with members that change their topics: from a list to a pattern, to another one, to a list."""
    groups = tuple(
        replace(one, **dict(zip(("topics", "pattern"), drawn_topics(rng), strict=True))) for one in plan.groups
    )
    groups = tuple(replace(one, later=drawn_topics(rng)) for one in groups)
    found = list(plan.faults)
    names = [name for name in CHANGING if not only or name in only]
    for name in ["resubscribe", *(rng.choice(names) for _ in range(rng.choice([3, 6, 9])))]:
        found.insert(rng.randrange(len(found) + 1), Step(rng.choice([0.0, 0.3, 2.0, 12.0]), name, rng.getrandbits(32)))
    return replace(plan, groups=groups, faults=tuple(found))


def drawn_topics(rng: Random) -> tuple[tuple[str, ...], str]:
    """Draw topics and a pattern that a member may have."""
    topics = rng.choice([("orders",), ("orders", "returns"), ("returns",), ()])
    return topics, rng.choice(PATTERNS if not topics else ["", "", *PATTERNS])


def _with_slices(steps: tuple[Step, ...], rng: Random, names: tuple[str, ...]) -> tuple[Step, ...]:
    """Return the steps with changes of the number of slices among them, of which the first one is early."""
    found = list(steps)
    found.insert(rng.randrange(2), Step(rng.choice([0.0, 2.0, 12.0]), names[0], rng.getrandbits(32)))
    for _ in range(rng.choice([1, 2, 4])):
        step = Step(rng.choice([0.0, 0.3, 2.0, 12.0]), rng.choice(names), rng.getrandbits(32))
        found.insert(rng.randrange(len(found) + 1), step)
    return tuple(found)
