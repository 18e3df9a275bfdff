"""A failing world made small, and told: what happened, in a few lines."""

from collections.abc import Iterator
from dataclasses import replace

from checks import Broken, broken
from model.decisions import Handover, Membership, Offset, Rebalance
from plan import Plan
from world import World


def shrink(plan: Plan, rule: str, runs: int = 150) -> Plan:
    """Leave out faults, then clients, then time, as long as the same rule breaks; runs at most so many worlds."""
    left = [runs]

    def fails(candidate: Plan) -> bool:
        left[0] -= 1
        return left[0] >= 0 and any(one.rule == rule for one in broken(World(candidate).run()))

    size = max(1, len(plan.faults) // 2)
    while size and left[0] > 0:
        for start in range(0, len(plan.faults), size):
            smaller = plan.without(*plan.faults[start : start + size])
            if len(smaller.faults) < len(plan.faults) and fails(smaller):
                plan = smaller
                break
        else:
            size //= 2
    for name in plan.clients:
        fewer = replace(plan, clients=tuple(other for other in plan.clients if other != name))
        if fewer.clients and fails(fewer):
            plan = fewer
    last_ms = max((fault.at_ms + fault.length_ms for fault in plan.faults), default=0) + 25_000
    if last_ms < plan.chaos_ms and fails(replace(plan, chaos_ms=last_ms)):
        plan = replace(plan, chaos_ms=last_ms)
    return plan


def tell(plan: Plan) -> str:
    """Tell the story of a world up to the first broken rule."""
    world = World(plan).run()
    found = broken(world)
    if not found:
        return f"seed {plan.seed}: no rule is broken"
    first = found[0]
    lines = sorted(
        [*_faults(world, first), *_decisions(world, first), *_handlings(world, first), *_drops(world, first)]
    )
    told = [f"  {at_ms / 1000:8.3f}s  {text}" for at_ms, text in lines]
    if len(told) > 60:
        told = [f"  ... {len(told) - 60} lines before", *told[-60:]]
    settings = (
        f"session {plan.session_ms / 1000:g} s, revoke timeout {plan.revoke_ms / 1000:g} s, "
        f"settle {plan.settle_ms / 1000:g} s" + ", ordered" * plan.orderly + ", eager" * plan.eager
    )
    return "\n".join(
        [
            f"seed {plan.seed}: {first.rule} ({len(found)} times)",
            f"  {', '.join(plan.clients)}; {settings}",
            *told,
            f"  {first.at_ms / 1000:8.3f}s  BROKEN {first.rule}: {first.says}",
        ]
    )


def _until(first: Broken) -> int:
    return first.at_ms + 1_000 if first.at_ms else 2**62


def _faults(world: World, first: Broken) -> Iterator[tuple[int, str]]:
    for fault in world.plan.faults:
        if fault.at_ms <= _until(first):
            yield fault.at_ms, f"FAULT {fault}"
    if world.plan.chaos_ms <= _until(first):
        yield world.plan.chaos_ms, "the calm begins"


def _decisions(world: World, first: Broken) -> Iterator[tuple[int, str]]:
    for coordinator in world.coordinators:
        for decision in coordinator.decisions:
            at_ms = world.broker.appended[decision.cause.partition][decision.cause.offset][0]
            group_id = getattr(decision, "group_id", None)
            if at_ms > _until(first) or (first.group_id and group_id != first.group_id):
                continue
            match decision:
                case Membership(instance_id=life, change=change, detail=detail):
                    yield at_ms, f"log: {life or 'the group'} {change} ({detail})"
                case Rebalance(epoch=epoch, trigger=trigger):
                    yield at_ms, f"log: epoch {epoch} by {trigger}"
                case Handover(queue=queue, from_=from_, to=to, how=how, epoch=epoch) if queue == first.queue:
                    yield at_ms, f"log: {queue} goes from {from_} to {to} ({how}, epoch {epoch})"
                case Offset(queue=queue, client_id=who, offset=offset) if queue == first.queue:
                    yield at_ms, f"log: {who} commits {queue} up to {offset}"


def _handlings(world: World, first: Broken) -> Iterator[tuple[int, str]]:
    """Tell what was handed out of the queue in question, in runs."""
    run: list[int] = []
    before = None
    for handling in world.handlings:
        if (handling.group_id, handling.queue) != (first.group_id, first.queue) or handling.from_ms > _until(first):
            continue
        giving = (handling.life, handling.given)
        if before is not None and giving != before:
            yield run[0], _run(before, first, run)
            run = []
        run = [
            run[0] if run else handling.from_ms,
            handling.from_ms,
            run[2] if run else handling.offset,
            handling.offset,
        ]
        before = giving
    if before is not None:
        yield run[0], _run(before, first, run)


def _run(giving: tuple[str, int], first: Broken, run: list[int]) -> str:
    return f"{giving[0]} (epoch {giving[1]}) hands out {first.queue} #{run[2]} to #{run[3]}, until {run[1] / 1000:.3f}s"


def _drops(world: World, first: Broken) -> Iterator[tuple[int, str]]:
    for at_ms, name, life, dropped in world.drops:
        if at_ms <= _until(first) and (not first.group_id or name.startswith(f"{first.group_id}/")):
            yield at_ms, f"{life} drops everything ({dropped.reason})"
