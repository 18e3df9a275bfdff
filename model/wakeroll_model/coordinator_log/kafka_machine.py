"""The state machine of Kafka's own groups: it turns an event from Kafka's log into decisions that show the change.

It decides nothing itself. Each generation of a classic group, and each target epoch of a later protocol, is a
`rebalance` with the reasons that the records before it show; `unknown` where they show none. Ownership follows Kafka's
assignments: in a classic group, those of the generation; in other groups, those that each member has reached.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

from wakeroll_model.coordinator_log.kafka_events import (
    AnyKafkaEvent,
    AssignedMember,
    Committed,
    CurrentSeen,
    Described,
    ExpressionSeen,
    Generation,
    GroupEpoch,
    MemberSeen,
    SeenMember,
    Shares,
    TargetEpoch,
    TargetSeen,
    TopicsSeen,
    Topology,
    Vanished,
    queues_of,
)
from wakeroll_model.coordinator_log.kafka_group import KafkaGroup, Reason
from wakeroll_model.coordinator_log.kafka_turn import KafkaTurn
from wakeroll_model.decisions import AnyDecision, Cause, How, Membership, Offset, Trigger
from wakeroll_model.events import Route, Tick
from wakeroll_model.known_routes import Routes
from wakeroll_model.queue import Queue
from wakeroll_model.shard_clock import Moment

GONE = "it left, or its session ended: Kafka does not record which"
BACK = "a static member has come back"
NO_OLDER = "a member when the record begins"
UNNAMED = "kafka"
"""Author of an offset that moved back or was deleted: Kafka does not record who requested it."""


def step(
    group: KafkaGroup, event: AnyKafkaEvent | Route | Tick, moment: Moment, cause: Cause, routes: Routes
) -> list[AnyDecision]:
    """Apply one event to a group, in place.

    Args:
        group: the state before; changed into the state after.
        event: the content of a record.
        moment: the time of the record.
        cause: the event.
        routes: the queues of every topic that the shard knows.

    Returns:
        The decisions, in order and without their header. An event that changes nothing leads to none.
    """
    turn = KafkaTurn(group, moment, cause, routes)
    match event:
        case Generation():
            _generation(turn, event)
        case Described():
            _described(turn, event)
        case Vanished():
            _vanished(turn, event)
        case Committed():
            _committed(turn, event)
        case Route() | Tick():
            pass
        case _:
            _later(turn, event)
    return turn.decisions


_Later = GroupEpoch | MemberSeen | TargetSeen | TargetEpoch | CurrentSeen | ExpressionSeen | TopicsSeen | Topology


def _later(turn: KafkaTurn, event: _Later) -> None:
    """Apply an event of a protocol after the classic one."""
    match event:
        case GroupEpoch():
            _group_epoch(turn, event)
        case MemberSeen():
            _member(turn, event)
        case TargetSeen():
            _target(turn, event)
        case TargetEpoch():
            _target_epoch(turn, event)
        case CurrentSeen():
            _current(turn, event)
        case ExpressionSeen():
            _expression(turn, event)
        case TopicsSeen():
            _topics(turn, event)
        case Topology():
            turn.side.parts = dict(event.parts)
        case _:
            assert_never(event)


# --- classic groups ---


def _generation(turn: KafkaTurn, event: Generation) -> None:
    """Follow a generation. If the same one is recorded again, a static name has another member, without a rebalance."""
    side = turn.side
    is_again = side.protocol == "classic" and event.generation == side.generation and not side.is_described
    is_first = side.protocol == ""
    side.name, side.protocol, side.is_described = event.kafka_group, "classic", False
    if event.generation <= 0 and not event.members and side.generation < 0:
        side.generation = 0  # the group was created, and nobody has joined yet
        return
    side.wanted, side.has, side.revoking = {}, {}, {}
    before, leader = dict(side.seen), side.leader
    side.assignor, side.leader = event.assignor, event.leader
    is_known = not is_first or event.generation <= 1
    reasons = _follow_members(turn, event.members, is_known=is_known)
    target = _target_of(event.members)
    if is_again:
        turn.group.target = target
    else:
        turn.begin(event.generation)
        if not reasons and is_known:
            reasons = _reasons_of_leader(turn, target, event, leader)
        turn.rebalance(target, reasons, _unreadable(event.members))
    _follow_owners(turn, target, gone={one.client_id for one in before.values()} - {*turn.group.members})


def _reasons_of_leader(turn: KafkaTurn, target: dict[Queue, str], event: Generation, leader: str) -> list[Reason]:
    """Return why a generation follows another one with the same members and subscriptions."""
    before = turn.group.target
    fresh = [queue for queue, name in target.items() if before.get(queue) != name]
    if not fresh and target.keys() == before.keys():
        return []
    free = [queue for queue in fresh if queue not in turn.group.owners]
    if any(queue not in turn.group.freed for queue in free):
        return [Reason("route", "partitions are assigned that had no owner before", turn.cause)]
    if free and free == fresh:
        return [Reason("released", f"{len(fresh)} released partitions are assigned", turn.cause)]
    changed = "" if leader == event.leader else "; the leader is another member"
    return [Reason("leader", f"the leader assigns differently to the same members{changed}", turn.cause)]


def _described(turn: KafkaTurn, event: Described) -> None:
    """Follow a description by a broker: an epoch of our own begins if members or their queues differ."""
    side = turn.side
    target = _target_of(event.members)
    names = {one.member.member_id for one in event.members}
    if names == side.seen.keys() and target == turn.group.owners:
        return
    is_first = side.protocol == "" or not side.is_described
    side.name, side.protocol, side.is_described, side.assignor = event.kafka_group, "classic", True, event.assignor
    before = dict(side.seen)
    reasons = _follow_members(turn, event.members, is_known=not is_first)
    turn.begin(side.generation + 1 if side.generation >= 0 else 1)
    turn.rebalance(target, reasons, ["a broker described the group; its record is not readable"])
    _follow_owners(turn, target, gone={one.client_id for one in before.values()} - {*turn.group.members})


def _follow_members(turn: KafkaTurn, members: Sequence[AssignedMember], *, is_known: bool) -> list[Reason]:
    """Store all members of a generation; return the reasons for it that their changes show."""
    side = turn.side
    before, side.seen = side.seen, {one.member.member_id: one.member for one in members}
    names = {one.client_id: one for one in before.values()}
    reasons: list[Reason] = []

    def because(trigger: Trigger, text: str) -> None:
        if is_known:
            reasons.append(Reason(trigger, text, turn.cause))

    now = {one.client_id for one in side.seen.values()}
    for member_id, seen in before.items():
        if member_id not in side.seen and seen.client_id not in now:
            turn.remove(seen, GONE)
            because("gone", f"{seen.client_id} left or was lost")
    for member_id, seen in side.seen.items():
        known = before.get(member_id)
        if known is None and seen.client_id in names:
            turn.note(names[seen.client_id], "gone", "its next instance has its place: it is a static member")
            turn.put(seen, "joined", BACK)
            because("returned", f"{seen.client_id}, a static member, returned")
        elif known is None:
            is_kept = seen.client_id in turn.group.members
            turn.put(seen, None if is_kept else "joined", "" if is_known else NO_OLDER)
            if not is_kept:
                because("join", f"{seen.client_id} joined")
        elif (known.topics, known.expression) != (seen.topics, seen.expression):
            turn.put(seen, "resubscribed")
            because("subscription", f"{seen.client_id} subscribes {', '.join(seen.topics)}"[:255])
        else:
            turn.put(seen, None)
    if before:
        turn.note_if_empty()
    return reasons


def _target_of(members: Iterable[AssignedMember]) -> dict[Queue, str]:
    """Return the owner of each queue; if two members were assigned one, the first one by name."""
    target: dict[Queue, str] = {}
    for one in sorted(members, key=lambda its: its.member.client_id):
        for queue in queues_of(one.queues):
            target.setdefault(queue, one.member.client_id)
    return target


def _follow_owners(turn: KafkaTurn, target: dict[Queue, str], gone: set[str]) -> None:
    """Hand queues over so that the owners are those of a target."""
    for queue in sorted({*turn.group.owners, *target}):
        owner = turn.group.owners.get(queue)
        turn.hand_over(queue, target.get(queue), "gone" if owner in gone else "released")


def _unreadable(members: Iterable[AssignedMember]) -> list[str]:
    names = [one.member.client_id for one in members if not one.member.readable]
    return [f"the subscription or assignment of {len(names)} members cannot be read"] if names else []


# --- groups of later protocols ---


def _group_epoch(turn: KafkaTurn, event: GroupEpoch) -> None:
    """Note that a new assignment is due. The hash of the topics shows if these have changed."""
    side = turn.side
    _adopt(turn, event.protocol)
    side.name = event.kafka_group
    if event.topics_hash and side.topics_hash and event.topics_hash != side.topics_hash and not side.reasons:
        turn.because("route", "the subscribed topics or their partitions have changed")
    side.topics_hash = event.topics_hash or side.topics_hash
    if not side.seen and side.generation >= 0:  # before 4.4, no target is recorded for a group without members
        _complete(turn, event.epoch)


def _adopt(turn: KafkaTurn, protocol: str) -> None:
    """Change to another protocol. Members of the former one stay until the first target shows which of them remain."""
    side = turn.side
    if side.protocol != protocol:
        side.protocol, side.seen, side.wanted, side.has, side.revoking = protocol, {}, {}, {}, {}
        side.leader = ""


def _member(turn: KafkaTurn, event: MemberSeen) -> None:
    """Follow a member that joined, changed, or is gone."""
    side, seen = turn.side, event.member
    _adopt(turn, event.protocol)
    known = side.seen.get(event.member_id)
    if seen is None:
        if known is not None:
            side.seen = {name: one for name, one in side.seen.items() if name != event.member_id}
            if not any(one.client_id == known.client_id for one in side.seen.values()):
                turn.remove(known, GONE)
                turn.note_if_empty()
                turn.because("gone", f"{known.client_id} left or was lost")
        return
    side.seen = {**side.seen, event.member_id: seen}
    if seen.assignor:
        side.assignor = seen.assignor
    if known is None:
        _new_member(turn, seen)
    elif (known.topics, known.expression) != (seen.topics, seen.expression):
        turn.put(seen, "resubscribed", seen.expression and f"regular expression {seen.expression!r:.200}")
        turn.because("subscription", f"{seen.client_id} changed its subscription")
    else:
        turn.put(seen, None)
        if (known.assignor, known.rack) != (seen.assignor, seen.rack):
            turn.because("subscription", f"{seen.client_id} changed its assignor or rack")


def _new_member(turn: KafkaTurn, seen: SeenMember) -> None:
    """Store a member: a new one, one that returns under its static name, or one known by another protocol."""
    side = turn.side
    left = [one for one in side.reasons if one.text == f"{seen.client_id} left or was lost"]
    if seen.static and left:
        side.reasons = [one for one in side.reasons if one not in left]  # its target is its next instance's
        turn.put(seen, "joined", BACK)
    elif seen.client_id in turn.group.members:
        turn.put(seen, None)
    else:
        turn.put(seen, "joined", seen.expression and f"regular expression {seen.expression!r:.200}")
        turn.because("join", f"{seen.client_id} joined")


def _target(turn: KafkaTurn, event: TargetSeen) -> None:
    side = turn.side
    _adopt(turn, event.protocol)
    side.wanted = {name: one for name, one in side.wanted.items() if name != event.member_id}
    if event.queues is not None:
        side.wanted[event.member_id] = event.queues


def _target_epoch(turn: KafkaTurn, event: TargetEpoch) -> None:
    """Follow a complete target. One whose epoch is not above the last one is a repetition, or was reset to 0."""
    _adopt(turn, event.protocol)
    _complete(turn, event.epoch)


def _complete(turn: KafkaTurn, epoch: int) -> None:
    """Record the target of an epoch, unless it is recorded already."""
    side = turn.side
    if epoch == side.generation or epoch <= 0:
        return
    is_first = side.generation < 0
    names = {one.client_id for one in side.seen.values()}
    for name in [name for name in turn.group.members if name not in names]:  # of the protocol before
        seen = SeenMember(client_id=name, member_id=name)
        turn.remove(seen, GONE)
        turn.because("gone", f"{name} left or was lost")
    turn.begin(epoch)
    reasons, side.reasons = side.reasons, []
    notes = [] if reasons or not is_first else ["the record begins here"]
    target = {} if side.protocol == "share" else _wanted(turn)
    if side.protocol == "share":
        notes.append("a share group: several members may read the same partition")
    turn.rebalance(target, reasons, notes)


def _wanted(turn: KafkaTurn) -> dict[Queue, str]:
    side = turn.side
    target: dict[Queue, str] = {}
    for member_id, shares in side.wanted.items():
        if (seen := side.seen.get(member_id)) is not None:
            target |= dict.fromkeys(_queues(turn, shares), seen.client_id)
    return target


def _queues(turn: KafkaTurn, shares: Shares) -> list[Queue]:
    """Return the queues of shares. In a streams group, the shares are tasks of parts of its topology."""
    if turn.side.protocol != "streams":
        return queues_of(shares)
    found = {
        Queue(topic, "", number)
        for part, numbers in shares.items()
        for topic in turn.side.parts.get(part, ())
        for number in numbers
    }
    return sorted(found)


def _current(turn: KafkaTurn, event: CurrentSeen) -> None:
    """Follow the current assignment of a member: it keeps a queue until it has released it."""
    side, group = turn.side, turn.group
    _adopt(turn, event.protocol)
    seen = side.seen.get(event.member_id)
    side.has = {name: one for name, one in side.has.items() if name != event.member_id}
    side.revoking = {name: one for name, one in side.revoking.items() if name != event.member_id}
    if event.queues is not None:
        side.has[event.member_id], side.revoking[event.member_id] = event.queues, event.revoking
    if seen is None or side.protocol == "share":
        return
    name = seen.client_id
    if (member := group.members.get(name)) is not None:
        member.shown_epoch = max(event.epoch, -1)
        member.seen_ms = turn.now_ms
    has = set(_queues(turn, event.queues or {}))
    leaving = set(_queues(turn, event.revoking)) - has
    for queue in sorted(queue for queue, owner in group.owners.items() if owner == name):
        if queue not in has and queue not in leaving:
            how: How = "gone" if event.queues is None else "released"
            turn.hand_over(queue, None, how, turn.revoked_ms(queue) or turn.now_ms if how == "released" else None)
    for queue in sorted(has):
        turn.hand_over(queue, name, "released", turn.revoked_ms(queue))
    turn.revoke(name, leaving)


def _expression(turn: KafkaTurn, event: ExpressionSeen) -> None:
    """Follow a regular expression that was resolved: its members subscribe the topics that match it now."""
    side = turn.side
    _adopt(turn, "consumer")
    before = side.expressions.get(event.expression)
    side.expressions = {name: one for name, one in side.expressions.items() if name != event.expression}
    if event.topics is None:
        return
    side.expressions[event.expression] = event.topics
    if before == event.topics:
        return
    for seen in side.seen.values():
        if seen.expression == event.expression:
            turn.put(seen, None)
    matches = ", ".join(event.topics)
    turn.because("expression", f"the regular expression {event.expression!r:.100} matches {matches or 'nothing'}"[:255])


def _topics(turn: KafkaTurn, event: TopicsSeen) -> None:
    """Follow the topics of a group, as records up to Kafka 4.0 name them."""
    side = turn.side
    before, side.partitions = side.partitions, dict(event.topics)
    changed = [
        f"{topic} has {event.topics[topic]} partitions; before {before[topic]}"
        for topic in sorted(before.keys() & event.topics.keys())
        if before[topic] != event.topics[topic]
    ]
    subscribed = {topic for member in turn.group.members.values() for topic in member.subscriptions}
    changed += [f"{topic} has vanished" for topic in sorted((before.keys() - event.topics.keys()) & subscribed)]
    if changed:
        turn.because("route", "; ".join(changed)[:255])


# --- all groups ---


def _vanished(turn: KafkaTurn, event: Vanished) -> None:
    """Follow the end of a group; one with members goes over to another protocol, which the next records show."""
    group, side = turn.group, turn.side
    if side.protocol not in ("", event.protocol) or group.members:
        return
    was_there = bool(side.protocol)
    side.protocol, side.generation, side.leader, side.assignor, side.topics_hash = "", -1, "", "", 0
    side.seen, side.wanted, side.has, side.revoking, side.reasons = {}, {}, {}, {}, []
    side.expressions, side.parts, side.partitions = {}, {}, {}
    group.target, group.freed, group.emptied_ms = {}, {}, -1
    if was_there:
        turn.decisions.append(Membership(group_id=group.group_id, client_id="", change="forgotten", epoch=group.epoch))


def _committed(turn: KafkaTurn, event: Committed) -> None:
    """Follow committed offsets."""
    group = turn.group
    for one in event.offsets:
        known = group.offsets.get(one.queue)
        if known == one.offset:
            continue
        owner = group.owners.get(one.queue, "")
        is_back = known is not None and one.offset < known
        group.offsets[one.queue] = one.offset
        turn.decisions.append(
            Offset(
                group_id=group.group_id,
                queue=one.queue,
                client_id=owner,
                offset=one.offset,
                epoch=group.epoch,
                metadata=one.metadata,
                reset_by=UNNAMED if is_back else None,
            )
        )
    for queue in event.deleted:
        offset = group.offsets.pop(queue, None)
        if offset is not None:
            turn.decisions.append(
                Offset(
                    group_id=group.group_id,
                    queue=queue,
                    client_id=group.owners.get(queue, ""),
                    offset=offset,
                    epoch=group.epoch,
                    reset_by=UNNAMED,
                    deleted=True,
                )
            )
