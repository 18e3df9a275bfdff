"""The story of a failing world of groups: what happened to the group and the queue in question, in a few lines."""

from collections.abc import Iterator

from tests.support.simulation.frame.broken import Broken
from tests.support.simulation.groups.group_plan import Plan
from tests.support.simulation.groups.group_world import World
from tests.support.simulation.groups.seen import Handling
from wakeroll_model.decisions import AnyDecision, Handover, Membership, Offset, Rebalance

LINES = 60
"""A story has at most so many."""


def story(world: World, first: Broken) -> Iterator[str]:
    """Tell the clients and the settings of a world, and what happened up to a broken rule."""
    yield f"  {', '.join(world.plan.clients)}; {_settings(world.plan)}"
    lines = sorted(
        [*_faults(world, first), *_decisions(world, first), *_handlings(world, first), *_drops(world, first)]
    )
    if len(lines) > LINES:
        yield f"  ... {len(lines) - LINES} lines before"
    yield from (f"  {at_ms / 1000:8.3f}s  {text}" for at_ms, text in lines[-LINES:])


def _settings(plan: Plan) -> str:
    seconds = {"session": plan.session_ms, "revoke timeout": plan.revoke_ms, "settle": plan.settle_ms}
    words = [f"{name} {length_ms / 1000:g} s" for name, length_ms in seconds.items()]
    kinds = {"ordered": plan.orderly, "eager": plan.eager, "audit broadcasts": plan.broadcasting}
    return ", ".join(words + [kind for kind, is_so in kinds.items() if is_so])


def _until_ms(first: Broken) -> int:
    return first.at_ms + 1_000 if first.at_ms else 2**62


def _concerns(first: Broken, group_id: str | None) -> bool:
    """Whether something of a group belongs to the story; a broken rule may name a scope."""
    return not first.group_id or group_id == first.group_id.partition("/")[0]


def _faults(world: World, first: Broken) -> Iterator[tuple[int, str]]:
    for fault in world.plan.faults:
        if fault.at_ms <= _until_ms(first):
            yield fault.at_ms, f"FAULT {fault}"
    if world.plan.chaos_ms <= _until_ms(first):
        yield world.plan.chaos_ms, "the calm begins"


def _decisions(world: World, first: Broken) -> Iterator[tuple[int, str]]:
    for coordinator in world.coordinators:
        for decision in coordinator.decisions:
            at_ms = world.broker.appended_ms(decision.cause)
            if at_ms <= _until_ms(first) and _concerns(first, getattr(decision, "group_id", None)):
                yield from ((at_ms, text) for text in _words(decision, first))


def _words(decision: AnyDecision, first: Broken) -> Iterator[str]:
    match decision:
        case Membership(instance_id=life, change=change, detail=detail):
            yield f"log: {life or 'the group'} {change} ({detail})"
        case Rebalance(epoch=epoch, trigger=trigger):
            yield f"log: epoch {epoch} by {trigger}"
        case Handover(queue=queue, from_=from_, to=to, how=how, epoch=epoch) if queue == first.queue:
            yield f"log: {queue} goes from {from_} to {to} ({how}, epoch {epoch})"
        case Offset(queue=queue, client_id=who, offset=offset, reset_by=by) if queue == first.queue:
            yield f"log: {by} resets {queue} to {offset}" if by else f"log: {who} commits {queue} up to {offset}"
        case _:
            pass


def _handlings(world: World, first: Broken) -> Iterator[tuple[int, str]]:
    """Tell what was handed out of the queue in question: in runs, each of one giving."""
    run: list[Handling] = []
    for handling in world.seen.handlings:
        is_asked = handling.queue == first.queue and _concerns(first, handling.scope.partition("/")[0])
        if not is_asked or handling.from_ms > _until_ms(first):
            continue
        if run and (run[0].life, run[0].given) != (handling.life, handling.given):
            yield run[0].from_ms, _run(run)
            run = []
        run.append(handling)
    if run:
        yield run[0].from_ms, _run(run)


def _run(run: list[Handling]) -> str:
    who, what = f"{run[0].life} (epoch {run[0].given})", f"{run[0].queue} #{run[0].offset} to #{run[-1].offset}"
    return f"{who} hands out {what}, until {run[-1].from_ms / 1000:.3f}s"


def _drops(world: World, first: Broken) -> Iterator[tuple[int, str]]:
    for at_ms, name, life, dropped in world.seen.drops:
        if at_ms <= _until_ms(first) and _concerns(first, name.partition("/")[0]):
            yield at_ms, f"{life} drops everything ({dropped.reason})"
