"""What if? The future of a shard after a hypothetical change, simulated with clients that react at once.

The machines that decide real events apply the hypothetical ones. There are two assumptions: all members are alive, and
nothing else happens.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from wakeroll_model import config, slicing
from wakeroll_model.coordinator_log.own_copy import own_copy
from wakeroll_model.decisions import AnyDecision, Assignment, Fenced, Handover, Rebalance, Rejected, Unassigned
from wakeroll_model.events import AnyEvent, Configure, Heartbeat, Route, RoutedQueue, Tick, Unregister
from wakeroll_model.group import Group, Member
from wakeroll_model.partition_progress import overlaps
from wakeroll_model.queue import Queue
from wakeroll_model.records import SLICES_LEVEL, Record, entity_of
from wakeroll_model.shard import Shard
from wakeroll_model.strategies import pinned
from wakeroll_model.strategy_inputs import lags
from wakeroll_model.target import spread, strategy_of

LONGEST_MS = 600_000
"""Longest time to simulate, ms of the shard's clock; a group that is not calm by then may never become calm."""

_encode = msgspec.json.Encoder().encode


class NotPlayable(ValueError):
    """A change that cannot be played; the message gives the reason and the possible values."""


class Variation(Struct, frozen=True, kw_only=True):
    """A hypothetical change; everything that it does not name stays the same."""

    settings: Mapping[str, Any] = {}
    """Fields of `Configure` with their new values, such as `strategy`."""
    add: int = 0
    """Number of new members; each has the preferences of the oldest one."""
    remove: Sequence[str] = ()
    """Clients that leave."""
    queues: Mapping[str, int] = {}
    """Topic -> its new number of queues on each of its brokers."""


class Situation(Struct, frozen=True, kw_only=True):
    """The actual or the predicted state of a group."""

    epoch: int
    strategy: str
    clients: list[str]
    """Members, sorted."""
    owners: dict[Queue, str]
    """Queue -> owner, sorted by queue."""
    unowned: list[Queue]
    """Queues of its topics without an owner."""
    lag_messages: dict[Queue, int]
    """Queue -> lag by the newest route; without queues that have no committed offset."""

    @property
    def spread(self) -> int:
        """Largest minus smallest number of queues of a member."""
        return spread(self.clients, self.owners)

    @property
    def readers(self) -> dict[Queue, int]:
        """Number of members that read each partition; for a partition that is cut, all members with slices of it."""
        found: dict[Queue, set[str]] = {}
        for queue, client_id in self.owners.items():
            found.setdefault(queue.whole, set()).add(client_id)
        return {whole: len(clients) for whole, clients in found.items()}

    @property
    def amplification(self) -> float:
        """Average number of members that read a partition; 1 if none is cut, 0 if none has an owner."""
        readers = self.readers
        return sum(readers.values()) / len(readers) if readers else 0.0

    @property
    def shares(self) -> dict[str, list[Queue]]:
        """Queues of each client, by client_id."""
        shares: dict[str, list[Queue]] = {client_id: [] for client_id in self.clients}
        for queue, client_id in self.owners.items():
            shares[client_id].append(queue)
        return shares

    def lag_of(self, queues: Iterable[Queue]) -> int | None:
        """Return the lag of these queues in messages; None if it is not known for any of them."""
        known = [self.lag_messages[queue] for queue in queues if queue in self.lag_messages]
        return sum(known) if known else None


class Prediction(Struct, frozen=True, kw_only=True):
    """The predicted result of a change."""

    now: Situation
    then: Situation
    moved: list[Queue]
    """Queues that have an owner and get another one, sorted. If the number of slices changes, the parts of queues that
    get another owner."""
    handovers: list[Handover]
    """Hand-overs from one owner to another, in order; a queue may change its owner more than once."""
    took_ms: int
    """Log time from the change to the last hand-over, ms; simulated clients drain at once."""
    unassigned: list[Unassigned]
    """Queues that the last target leaves out, with reasons; the first ones if there are many."""
    unassigned_count: int
    """Number of queues that the last target leaves out."""
    notes: list[str]
    """Notes of the last target, and one for each client that was refused."""
    is_calm: bool
    """Whether the group became calm within `LONGEST_MS`."""


def predict(shard: Shard, group_id: str, change: Variation) -> Prediction:
    """Simulate a change on a copy of a shard, until no client of the group has anything to receive.

    Raises:
        NotPlayable: the shard has no such group, it broadcasts, or the change names something unknown or impossible.
    """
    now = situation_of(shard, group_id)
    play = _Play(own_copy(shard, group_id), group_id)
    play.beat()
    begin_ms, begin = play.now_ms, len(play.decisions)
    for event in _events(play.group, play.shard, change):
        play.append(event)
    play.until_calm()
    then, decisions = situation_of(play.shard, group_id), play.decisions[begin:]
    assigned = [one for one in decisions if isinstance(one, Handover) and one.to is not None]
    targets = [one for one in decisions if isinstance(one, Rebalance)]
    refused = [one.client_id for one in decisions if isinstance(one, Fenced) and one.reason == "refused"]
    notes = [f"{client_id} is refused: the group has {len(then.clients)} members" for client_id in refused]
    return Prediction(
        now=now,
        then=then,
        moved=_moved(now.owners, then.owners),
        handovers=[one for one in assigned if one.from_ not in (None, one.to)],
        took_ms=assigned[-1].at_ms - begin_ms if assigned else 0,
        unassigned=targets[-1].unassigned if targets else [],
        unassigned_count=targets[-1].unassigned_count if targets else 0,
        notes=[*(_of_target(targets[-1], change) if targets else []), *notes, *_of_pinned(then, change), *play.notes],
        is_calm=play.is_calm,
    )


def situation_of(shard: Shard, group_id: str) -> Situation:
    """Return the state of a group.

    Raises:
        NotPlayable: the shard has no such group, or it broadcasts.
    """
    group = shard.group(group_id)
    if group is None:
        raise NotPlayable(f"there is no group {group_id!r} at that time")
    if group.mode == "broadcasting":
        raise NotPlayable(f"group {group_id!r} broadcasts: every member always has every queue")
    queues = [queue for topic in group.topics for queue in slicing.expanded(group, shard.routes, topic) or ()]
    return Situation(
        epoch=group.epoch,
        strategy=strategy_of(group)[0],
        clients=sorted(group.members),
        owners=dict(sorted(group.owners.items())),
        unowned=[queue for queue in queues if queue not in group.owners],
        lag_messages=lags(group, shard.routes, queues),
    )


def _moved(now: Mapping[Queue, str], then: Mapping[Queue, str]) -> list[Queue]:
    """Return the queues with another owner after the change; of two that overlap, the smaller one."""
    moved = set[Queue]()
    for queue, owner in now.items():
        for other in (queue, *overlaps(queue)):
            if then.get(other, owner) != owner:
                moved.add(max(queue, other, key=lambda one: one.slices))
    return sorted(moved)


def _of_target(target: Rebalance, change: Variation) -> list[str]:
    """Return the notes of a target, except for one that only repeats the change: which topics are cut."""
    numbers: Mapping[str, int] = change.settings.get("slices", {})
    named = slicing.NOTE + ", ".join(f"{topic} {number}" for topic, number in sorted(numbers.items()) if number > 1)
    return [note for note in target.notes if note != named]


def _of_pinned(then: Situation, change: Variation) -> list[str]:
    """Return a note if new members cannot get queues, because another coordinator assigns them."""
    if then.strategy != pinned.NAME or not change.add:
        return []
    return ["PINNED gives a new member nothing, because it follows another coordinator; name a strategy to compare"]


class _Play:
    """A shard, a log that continues from its last record, and the clients of one group."""

    def __init__(self, shard: Shard, group_id: str) -> None:
        self.shard = shard
        self.group_id = group_id
        self.now_ms = shard.tick_ms
        """Log time, epoch ms."""
        self.decisions: list[AnyDecision] = []
        """Decisions about the group, in order."""
        self.notes: list[str] = []
        """Notes about assumptions, beyond the state of the group."""
        self._beats = {client_id: _last_beat(group_id, client_id, one) for client_id, one in self.group.members.items()}
        cut = self.group.settings.slices.keys()
        self._ignorant = {
            client_id
            for client_id, member in self.group.members.items()
            if member.slice_by is None and member.sent_epoch >= 0 and not cut.isdisjoint(member.subscriptions)
        }
        """Members that received that one of their topics is cut, and whose heartbeats have no `slice_by`."""
        self._news: dict[str, None] = {}
        self._tick()
        self.now_ms += config.SLACK_MS
        self._tick()  # for so long the ticks of a new observer add no time
        self.now_ms += config.TICK_MS
        self._beat_ms = self.now_ms

    @property
    def group(self) -> Group:
        group = self.shard.group(self.group_id)
        assert group is not None, "a group with an epoch is never forgotten"
        return group

    @property
    def is_calm(self) -> bool:
        """Whether no work is pending; a group that depends on lag must have compared its target again."""
        group = self.group
        in_doubt = group.pending or group.loss is not None or self._news
        return (
            not in_doubt
            and not any(member.revoking for member in group.members.values())
            and (not group.stale or group.checked_ms > group.retargeted_ms)
        )

    def until_calm(self) -> None:
        """Let clients answer and time pass until there is nothing more to receive."""
        end_ms = self.now_ms + LONGEST_MS
        self._answer()
        while not self.is_calm and self.now_ms < end_ms:
            self.now_ms += config.TICK_MS
            self._tick()
            if self.now_ms - self._beat_ms >= self.group.settings.heartbeat_ms:
                self.beat()
            self._answer()

    def _tick(self) -> None:
        self.append(Tick(observer="what-if", uptime_ms=self.now_ms))

    def beat(self) -> None:
        """Let every client send a heartbeat that shows its last assignment as applied."""
        self._beat_ms = self.now_ms
        for beat in list(self._beats.values()):
            self.append(beat)
        self._answer()

    def append(self, event: AnyEvent) -> None:
        """Append an event to the log, and let clients receive the decisions about their group.

        Raises:
            NotPlayable: the event is rejected.
        """
        if isinstance(event, Heartbeat):
            self._beats.setdefault(event.client_id, event)
        key = entity_of(event).encode() or None
        at = self.shard.topic, self.shard.partition, self.shard.offset + 1, self.now_ms
        for decision in self.shard.apply(Record(*at, key, _encode(event))):
            if getattr(decision, "group_id", None) != self.group_id:
                continue
            self.decisions.append(decision)
            match decision:
                case Rejected() if decision.rule != "limit":  # a client beyond the limit is fenced too
                    raise NotPlayable(decision.detail)
                case Fenced():
                    self._beats.pop(decision.client_id, None)
                    self._news.pop(decision.client_id, None)
                case Assignment():
                    owned = [assigned.queue for assigned in decision.queues]
                    beat = self._beats[decision.client_id]
                    by = self._slice_by(beat) if decision.slices and beat.slice_by is None else beat.slice_by
                    self._beats[decision.client_id] = structs.replace(
                        beat, epoch=decision.epoch, owned=owned, slice_by=by
                    )
                    self._news[decision.client_id] = None

    def _slice_by(self, beat: Heartbeat) -> str | None:
        """Return the `slice_by` of a simulated heartbeat; None if the real member should have sent it and did not."""
        if beat.client_id in self._ignorant:
            return None
        if not self.notes:
            self.notes.append(
                "members that did not report their slice_by are assumed to support slices, cut by the key"
            )
        return slicing.slice_by(self.group) or ""

    def _answer(self) -> None:
        """Let every client with a new assignment show it in a heartbeat, with the revoked queues released."""
        while self._news:
            news, self._news = self._news, {}
            for client_id in news:
                if client_id in self._beats:
                    self.append(self._beats[client_id])


def _last_beat(group_id: str, client_id: str, member: Member) -> Heartbeat:
    """Return the heartbeat of a member that has applied all its assignments."""
    return Heartbeat(
        group_id=group_id,
        client_id=client_id,
        instance_id=member.instance_id,
        epoch=max(member.shown_epoch, member.sent_epoch),
        owned=sorted(member.owned.keys() - member.revoking.keys()),
        mode=member.mode,
        consume_from=member.consume_from,
        consume_from_ms=member.consume_from_ms,
        subscriptions=[one for topic, one in member.subscriptions.items() if topic not in member.matched],
        pattern=member.pattern,
        pattern_expression=member.pattern_expression,
        pattern_expression_type=member.pattern_expression_type,
        strategy=member.strategy,
        strategy_params=member.strategy_params,
        slice_by=member.slice_by,
        orderly=member.orderly,
        room=member.room,
        weight=member.weight,
    )


def _events(group: Group, shard: Shard, change: Variation) -> list[AnyEvent]:
    """Return the events that make a change."""
    members = group.members
    if change.settings.get("slices") and shard.level < SLICES_LEVEL:
        raise NotPlayable(
            f"slices need feature level {SLICES_LEVEL}, and the shard of {group.group_id} is at {shard.level}; "
            "`wakeroll upgrade` raises it"
        )
    unknown = [client_id for client_id in change.remove if client_id not in members]
    if unknown:
        raise NotPlayable(f"no client {unknown[0]!r} in {group.group_id}; there are: {', '.join(members) or 'none'}")
    if change.add and not members:
        raise NotPlayable(f"{group.group_id} has no members, so the preferences of a new member are not known")
    events: list[AnyEvent] = [Configure(group_id=group.group_id, **change.settings)] if change.settings else []
    if change.add:
        oldest = next(iter(members))
        wanted = structs.replace(_last_beat(group.group_id, oldest, members[oldest]), epoch=-1, owned=[])
        events += [
            structs.replace(wanted, client_id=client_id, instance_id=f"what-if-{client_id}")
            for client_id in _new_names(members, change.add)
        ]
    for client_id in change.remove:
        # The instance_id is changed in the copy: only the client knows the secret of a provable instance.
        instance_id = members[client_id].instance_id = f"what-if-{client_id}"
        events.append(Unregister(group_id=group.group_id, client_id=client_id, instance_id=instance_id))
    return events + [_route(shard, topic, count) for topic, count in change.queues.items()]


def _new_names(members: Mapping[str, Member], count: int) -> list[str]:
    """Name new members so that they sort in the order in which they join."""
    width = len(str(count))
    names = (f"new-{number:0{width}}" for number in range(1, count + len(members) + 1))
    return [name for name in names if name not in members][:count]


def _route(shard: Shard, topic: str, count: int) -> Route:
    """Return a topic's route with another number of queues; the first queues stay the same."""
    known = shard.routes.get(topic)
    if known is None:
        raise NotPlayable(f"no topic {topic!r} has ever been routed here; there are: {', '.join(shard.routes.topics)}")
    there = {routed.queue: routed for routed in known.queues}
    queues = [
        there.get(Queue(topic, broker, number)) or RoutedQueue(topic=topic, broker=broker, queue_id=number)
        for broker in sorted({queue.broker for queue in there}) or [""]
        for number in range(count)
    ]
    return Route(topic=topic, queues=queues, version=f"what-if-{count}")
