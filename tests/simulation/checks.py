"""What must hold in every world, judged from what was really handed out and from the record; not by the machine."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from model import invariants
from model.config import GRACE_MS, LONGEST_STEP_MS, MAX_DETAIL
from model.decisions import AnyDecision, Assignment, Handover, Membership, Offset, Rejected
from model.events import Commit, Configure, Heartbeat
from model.queue import Queue
from model.replay import encode_decision, replay
from plan import TOPICS
from world import Handling, World

UNCLEAN = ("timeout", "expired", "replaced", "eager", "unregistered")
"""How a queue may come free of an owner that has not said that it is done."""
TOLERANCE_MS = 100
"""How far two ticks, or a record and its append, may be from where they should be."""


@dataclass(frozen=True)
class Broken:
    """A rule that does not hold."""

    rule: str
    at_ms: int
    says: str
    queue: Queue | None = None
    group_id: str = ""


def broken(world: World) -> list[Broken]:
    """Return every rule that a world breaks, in order of time."""
    found = [
        *two_owners(world),
        *nobody_reads(world),
        *not_growing(world),
        *evicted(world),
        *timed_out_early(world),
        *lost(world),
        *repeated(world),
        *not_replayable(world),
        *unaccounted(world),
    ]
    return sorted(found, key=lambda one: one.at_ms)


def _decisions(world: World) -> Iterator[AnyDecision]:
    for coordinator in world.coordinators:
        yield from coordinator.decisions


def _by_queue(world: World) -> dict[tuple[str, Queue], list[Handling]]:
    handlings: dict[tuple[str, Queue], list[Handling]] = {}
    for handling in world.handlings:
        handlings.setdefault((handling.group_id, handling.queue), []).append(handling)
    return handlings


class Chain:
    """The hand-overs of one queue, each with the life that got it: which one ended a giving?"""

    def __init__(self) -> None:
        self.handovers: list[tuple[Handover, str]] = []

    def hows(self, earlier: Handling, later: Handling | None = None) -> list[str]:
        """Return how the queue came free between two givings; without a later one, how the earlier giving ended."""
        start = self._index(earlier)
        end = self._index(later) if later else start + 1
        if end < start:  # whoever was replaced may hand out the same message after its successor
            start, end = end, start
        return [handover.how for handover, _ in self.handovers[start + 1 : end + 1]]

    def _index(self, handling: Handling) -> int:
        for number, (handover, life) in enumerate(self.handovers):
            if (life, handover.epoch) == (handling.life, handling.given):
                return number
        return -1


def _chains(world: World) -> dict[tuple[str, Queue], Chain]:
    chains: dict[tuple[str, Queue], Chain] = defaultdict(Chain)
    lives: dict[tuple[str, str | None], str] = {}
    for decision in _decisions(world):
        if isinstance(decision, Membership) and decision.change in ("joined", "replaced"):
            lives[decision.group_id, decision.client_id] = decision.instance_id
        elif isinstance(decision, Handover):
            life = lives.get((decision.group_id, decision.to), "")
            chains[decision.group_id, decision.queue].handovers.append((decision, life))
    return chains


def two_owners(world: World) -> Iterator[Broken]:
    """1. A queue is never handed out by two lives at once, but after a timeout, in an eager group, or by a twin.

    Whoever handed out last has it.  A giving that somebody else has taken over must hand out nothing more; and unless
    the old life was out (expired, replaced), it must have nothing of the queue in its hands.
    """
    chains = _chains(world)
    excused = ("timeout", "expired", "replaced", *(("eager", "removed") if world.plan.eager else ()))
    for at_ms, group_id, queue, life in world.handed_after_take:
        yield Broken("two owners", at_ms, f"{life} hands out {queue} after it was taken", queue, group_id)
    for (group_id, queue), handlings in _by_queue(world).items():
        past: set[tuple[str, int]] = set()
        holder = handlings[0]
        for now in handlings:
            if (now.life, now.given) in past:
                hows = chains[group_id, queue].hows(now)
                if not hows or hows[0] not in ("timeout", "replaced", "eager" * world.plan.eager):
                    says = (
                        f"{now.life} hands out {queue} after {holder.life} began ({', '.join(hows) or 'never freed'})"
                    )
                    yield Broken("two owners", now.from_ms, says, queue, group_id)
                    past.discard((now.life, now.given))
                continue
            if (now.life, now.given) != (holder.life, holder.given):
                past.add((holder.life, holder.given))
                hows = chains[group_id, queue].hows(holder)
                in_hands = holder.to_ms < 0 and holder.lost_ms < 0
                done_ms = world.now_ms + 1 if in_hands else max(holder.to_ms, holder.lost_ms)
                if done_ms > now.from_ms and hows and hows[0] not in excused:
                    says = f"{now.life} gets a message of {queue} while {holder.life} has one ({hows[0]})"
                    yield Broken("two owners", now.from_ms, says, queue, group_id)
            holder = now
    for decision in _decisions(world):
        if world.plan.orderly and isinstance(decision, Handover) and decision.how == "timeout":
            at_ms = _world_ms(world, decision)
            says = f"{decision.queue} of an ordered group is taken from {decision.from_} by a timeout"
            yield Broken("two owners", at_ms, says, decision.queue, decision.group_id)


def nobody_reads(world: World) -> Iterator[Broken]:
    """2. In the calm, every queue of a topic that a living client subscribes has somebody who reads it."""
    read = {(one.group_id, one.queue) for one in world.handlings if one.from_ms >= world.plan.end_ms}
    for queue in world.probes:
        for group_id in sorted({process.group_id for process in world.living() if queue.topic in process.topics}):
            if (group_id, queue) not in read:
                yield Broken("nobody reads", world.plan.end_ms, f"nobody of {group_id} reads {queue}", queue, group_id)

    yield from _left_waiting(world)


def _left_waiting(world: World) -> Iterator[Broken]:
    """Nobody still holds in the calm what it was asked to give up, and nobody has nothing while another has plenty.

    The `state` of a member's last assignment is not asked: it is not said anew when what it waited for has changed.
    """
    owners: dict[tuple[str, Queue], str] = {}
    last: dict[tuple[str, str], Assignment] = {}
    for decision in _decisions(world):
        if isinstance(decision, Assignment):
            last[decision.group_id, decision.instance_id] = decision
        elif isinstance(decision, Handover):
            owners[decision.group_id, decision.queue] = decision.to or ""
    for process in world.living():
        group_id, life = process.group_id, process.client.instance_id
        told = last.get((group_id, life))
        held = [queue for queue in (told.revoke if told else ()) if owners.get((group_id, queue)) == process.client_id]
        if told is None or held:
            says = f"{life} of {group_id} {f'still holds {held[0]}' if held else 'is told nothing'}"
            yield Broken("nobody reads", world.plan.end_ms, says, None, group_id)
        elif told.state == "unreleased" and (group_id, process.client_id) not in {
            (group, owner) for (group, _), owner in owners.items()
        }:
            plenty = Counter((owner, queue.topic) for (group, queue), owner in owners.items() if group == group_id)
            if any(count > 1 and topic in process.topics for (_, topic), count in plenty.items()):
                says = f"{life} of {group_id} waits for queues that nobody gives up"
                yield Broken("nobody reads", world.plan.end_ms, says, None, group_id)


def not_growing(world: World) -> Iterator[Broken]:
    """3. Epochs only grow, offsets only grow; hand-overs form a chain."""
    offsets: dict[tuple[str, Queue], int] = {}
    for coordinator in world.coordinators:
        for says in invariants.broken(coordinator.decisions):
            yield Broken("not growing", 0, says)
        for decision in coordinator.decisions:
            if isinstance(decision, Offset):
                key = (decision.group_id, decision.queue)
                if decision.offset <= offsets.get(key, -1):
                    says = f"the committed offset of {decision.queue} goes from {offsets[key]} to {decision.offset}"
                    yield Broken("not growing", _world_ms(world, decision), says, decision.queue, decision.group_id)
                offsets[key] = decision.offset
    yield from _commits_of_others(world)


def _commits_of_others(world: World) -> Iterator[Broken]:
    """An offset is committed by the life that owns its queue, in the epoch it was given in or later."""
    owner: dict[tuple[str, Queue], tuple[str, int]] = {}
    lives: dict[tuple[str, str | None], str] = {}
    for decision in _decisions(world):
        if isinstance(decision, Membership) and decision.change in ("joined", "replaced"):
            lives[decision.group_id, decision.client_id] = decision.instance_id
        elif isinstance(decision, Handover):
            owner[decision.group_id, decision.queue] = lives.get((decision.group_id, decision.to), ""), decision.epoch
        elif isinstance(decision, Offset):
            at_ms, event = world.broker.appended[decision.cause.partition][decision.cause.offset]
            life, given = owner.get((decision.group_id, decision.queue), ("", 0))
            if isinstance(event, Commit) and (event.instance_id != life or event.epoch < given):
                says = (
                    f"{event.instance_id} commits {decision.queue} in epoch {event.epoch}; it is {life}'s since {given}"
                )
                yield Broken("not growing", at_ms, says, decision.queue, decision.group_id)


def evicted(world: World) -> Iterator[Broken]:
    """4. Nobody expires whose heartbeats reached the log in time; a dark log is no silence, grace follows."""
    for decision in _decisions(world):
        if not isinstance(decision, Membership) or decision.change != "expired":
            continue
        at_ms = _world_ms(world, decision)
        beat_ms, session_ms = -1, 45_000
        for when_ms, event in world.broker.appended[decision.cause.partition][: decision.cause.offset]:
            if isinstance(event, Heartbeat) and (event.group_id, event.instance_id) == (
                decision.group_id,
                decision.instance_id,
            ):
                beat_ms = when_ms
            elif isinstance(event, Configure) and event.group_id == decision.group_id:
                session_ms = event.session_timeout_ms
        dark_ms = _dark_ms(world, beat_ms, at_ms)
        # A clock that is set forth counts five seconds, though one has passed (see docs/decisions/0002).
        forth = sum(
            1 for one in world.plan.faults if one.kind == "step" and one.amount > 0 and one.at_ms >= beat_ms - 1_000
        )
        silent_ms = at_ms - beat_ms - dark_ms + forth * LONGEST_STEP_MS
        who = f"{decision.instance_id} of {decision.group_id}"
        if silent_ms < session_ms - TOLERANCE_MS:
            says = f"{who} expires after {silent_ms} ms of silence; the session is {session_ms}"
            yield Broken("evicted", at_ms, says, None, decision.group_id)
        # Not every darkness shows in the log: what is shorter than five ticks counts as time.
        gaps = [
            to
            for from_, to in world.darkness
            if to - from_ > 7_000 and to <= at_ms < to + GRACE_MS - 2_000 and not _clock_wrong(world, from_, to)
        ]
        if gaps:
            says = f"{who} expires {at_ms - gaps[-1]} ms after the log was dark"
            yield Broken("evicted", at_ms, says, None, decision.group_id)


def timed_out_early(world: World) -> Iterator[Broken]:
    """4b. No timeout runs against a client for what the log does not show it has received; the dead replace nobody."""
    for at_ms, life, by in world.killed_by_dead:
        beats = [
            event.instance_id
            for appended in world.broker.appended
            for _, event in appended
            if isinstance(event, Heartbeat) and event.instance_id in (life, by)
        ]
        # Open: a life that dies before its first heartbeat is in the log looks like a newer one when that arrives.
        if beats and beats[0] == by:
            yield Broken("evicted", at_ms, f"{life} is replaced by {by}, which was dead before it began")
    shortest_ms = min([world.plan.revoke_ms, *(one.amount for one in world.plan.faults if one.kind == "configure")])
    asked: dict[tuple[str, str, Queue], tuple[str, int]] = {}
    for decision in _decisions(world):
        if isinstance(decision, Assignment):
            for queue in decision.revoke:
                asked.setdefault((decision.group_id, decision.client_id, queue), (decision.instance_id, decision.epoch))
        elif isinstance(decision, Handover) and decision.from_ is not None:
            life, epoch = asked.pop((decision.group_id, decision.from_, decision.queue), ("", 0))
            at_ms = _world_ms(world, decision)
            shown = [
                when_ms
                for when_ms, event in world.broker.appended[decision.cause.partition][: decision.cause.offset]
                if decision.how == "timeout"
                and isinstance(event, Heartbeat)
                and (event.group_id, event.instance_id) == (decision.group_id, life)
                and event.epoch >= epoch
            ]
            if decision.how == "timeout" and (not shown or at_ms - shown[0] < shortest_ms - TOLERANCE_MS):
                says = f"{decision.queue} is taken from {life} too early: {'asked in time' if shown else 'never heard'}"
                yield Broken("evicted", at_ms, says, decision.queue, decision.group_id)


def _clock_wrong(world: World, from_ms: int, to_ms: int) -> bool:
    """Whether the log's clock was touched meanwhile: set back, it hides that the log was dark."""
    for begins, ends in sorted(world.darkness, reverse=True):
        if begins < from_ms <= ends + 1_000:  # one darkness goes on into the next
            from_ms = begins
    return any(fault.kind == "step" and from_ms - 15_000 <= fault.at_ms <= to_ms + 1_000 for fault in world.plan.faults)


def _dark_ms(world: World, from_ms: int, to_ms: int) -> int:
    """Return for how long there were no ticks in this time, but for the five seconds of each darkness that count."""
    dark_ms, counted_ms = 0, from_ms
    for begins, ends in sorted(world.darkness):
        dark_ms += max(0, min(ends, to_ms) - max(begins, counted_ms) - LONGEST_STEP_MS)
        counted_ms = max(counted_ms, ends)
    return dark_ms


def lost(world: World) -> Iterator[Broken]:
    """5a. Every message is handled to its end by somebody of every group that subscribes its topic to the end."""
    handlings = _by_queue(world)
    for topic in TOPICS:
        groups = sorted({process.group_id for process in world.living() if topic in process.topics})
        for queue in [queue for queue in world.ends if queue.topic == topic and queue.queue_id < world.routed[topic]]:
            for group_id in groups:
                done = {one.offset for one in handlings.get((group_id, queue), ()) if one.to_ms >= 0}
                missing = sorted(set(range(max(done, default=0))) - done)
                if missing:
                    says = f"{len(missing)} messages of {queue} were never handled by {group_id}, first {missing[0]}"
                    yield Broken("lost", world.plan.end_ms, says, queue, group_id)


def repeated(world: World) -> Iterator[Broken]:
    """5b. A message is handled twice only if its queue came free of somebody who had not said that it was done."""
    if world.plan.eager:
        return
    chains = _chains(world)
    for (group_id, queue), handlings in _by_queue(world).items():
        first: dict[int, Handling] = {}
        for handling in handlings:
            before = first.setdefault(handling.offset, handling)
            if before is handling:
                continue
            hows = chains[group_id, queue].hows(before, handling)
            if not any(how in UNCLEAN for how in hows) or _left_well(world, before, hows):
                who = f"{before.life} and {handling.life}"
                says = f"{queue} #{handling.offset} is handled by {who}, though it was {', '.join(hows) or 'kept'}"
                yield Broken("repeated", handling.from_ms, says, queue, group_id)
            first[handling.offset] = handling


def _left_well(world: World, handling: Handling, hows: list[str]) -> bool:
    """Whether the queue came free because a client that had ended its work unregistered."""
    return hows == ["unregistered"] and handling.to_ms >= 0 and handling.life in world.left_well


def not_replayable(world: World) -> Iterator[Broken]:
    """6. The same records give the same decisions: repeated, cut into other batches, or all at once."""
    for coordinator in world.coordinators:
        records = world.broker.log[coordinator.partition]
        again = [encode_decision(decision) for decision in replay(records, len(world.coordinators))]
        if again != coordinator.encoded:
            number = next(
                (n for n, pair in enumerate(zip(again, coordinator.encoded, strict=False)) if pair[0] != pair[1]), -1
            )
            yield Broken("not replayable", 0, f"decision {number + 1} of partition {coordinator.partition} differs")
        for says in coordinator.differing:
            yield Broken("not replayable", 0, f"a repeated batch decides otherwise: {says}")


def unaccounted(world: World) -> Iterator[Broken]:  # noqa: C901
    """7. Every record is processed or rejected: no event is rejected, every queue of a commit is answered."""
    rejected: dict[tuple[int, int], list[Rejected]] = {}
    advanced: set[tuple[int, int, Queue]] = set()
    for decision in _decisions(world):
        at = (decision.cause.partition, decision.cause.offset)
        if isinstance(decision, Rejected):
            rejected.setdefault(at, []).append(decision)
        elif isinstance(decision, Offset):
            advanced.add((*at, decision.queue))
    for partition, offset in world.junk:
        if len(rejected.pop((partition, offset), ())) != 1:
            yield Broken("unaccounted", 0, f"what is no event at {partition}/{offset} is not rejected")
    newest: dict[tuple[str, Queue], int] = {}
    for partition, appended in enumerate(world.broker.appended):
        for offset, (at_ms, event) in enumerate(appended):
            if not isinstance(event, Commit):
                if (partition, offset) in rejected:
                    says = f"{event} is rejected: {rejected[partition, offset][0].detail}"
                    yield Broken("unaccounted", at_ms, says)
                continue
            details = " ".join(one.detail for one in rejected.get((partition, offset), ()))
            for entry in event.offsets:
                key = (event.group_id, entry.queue)
                if (partition, offset, entry.queue) in advanced:
                    newest[key] = entry.offset
                elif (
                    f"{entry.queue} " not in details
                    and len(details) < MAX_DETAIL
                    and entry.offset > newest.get(key, -1)
                ):
                    says = f"the commit of {entry.queue} by {event.instance_id} has no answer"
                    yield Broken("unaccounted", at_ms, says, entry.queue, event.group_id)


def _world_ms(world: World, decision: AnyDecision) -> int:
    return world.broker.appended[decision.cause.partition][decision.cause.offset][0]
