"""What if?  A shard's future with something changed, played with clients that obey at once.

The hypothetical events are applied by the very machines that decide about real ones; nothing is guessed but that all
members live, and that nothing else happens.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from model import config
from model.decisions import AnyDecision, Assignment, Fenced, Handover, Rebalance, Rejected, Unassigned
from model.events import AnyEvent, Configure, Heartbeat, Route, RoutedQueue, Tick, Unregister
from model.group import Group, Member
from model.queue import Queue
from model.records import Record, entity_of
from model.shard import Shard
from model.strategy_inputs import lags
from model.target import spread, strategy_of

LONGEST_MS = 600_000
"""Of the shard's clock: who is not calm by then may never be."""

_encode = msgspec.json.Encoder().encode


class NotPlayable(ValueError):
    """What was asked cannot be played; the message says why, and what could."""


class Variation(Struct, frozen=True, kw_only=True):
    """What is to be otherwise; what is not named stays."""

    settings: Mapping[str, Any] = {}
    """Of `Configure`, the strategy too."""
    add: int = 0
    """Members more; each wants what the oldest one wants."""
    remove: Sequence[str] = ()
    """Clients that leave."""
    queues: Mapping[str, int] = {}
    """Topic -> how many queues it has, on each of its brokers."""


class Situation(Struct, frozen=True, kw_only=True):
    """How a group stands, or would stand."""

    epoch: int
    strategy: str
    clients: list[str]
    """Its members, sorted."""
    owners: dict[Queue, str]
    """Sorted by queue."""
    unowned: list[Queue]
    """Queues of its topics that nobody has."""
    lag_messages: dict[Queue, int]
    """By the newest route; without the queues of which no offset was committed."""

    @property
    def spread(self) -> int:
        """Largest minus smallest number of queues of a member."""
        return spread(self.clients, self.owners)

    @property
    def shares(self) -> dict[str, list[Queue]]:
        """Each client's queues, by name."""
        shares: dict[str, list[Queue]] = {client_id: [] for client_id in self.clients}
        for queue, client_id in self.owners.items():
            shares[client_id].append(queue)
        return shares

    def lag_of(self, queues: Iterable[Queue]) -> int | None:
        """Return how many messages of these queues are not consumed yet; None if that is known of none."""
        known = [self.lag_messages[queue] for queue in queues if queue in self.lag_messages]
        return sum(known) if known else None


class Prediction(Struct, frozen=True, kw_only=True):
    """What would come of a change."""

    now: Situation
    then: Situation
    moved: list[Queue]
    """Queues that have an owner and get another, sorted."""
    handovers: list[Handover]
    """From one owner to another, one after the other; a queue may change hands more than once."""
    took_ms: int
    """From the change to the last queue that was given, by the log's clock; to drain a queue takes what it takes."""
    unassigned: list[Unassigned]
    """Queues that the last target leaves out, and why; of many, the first ones."""
    unassigned_count: int
    """How many these are."""
    notes: list[str]
    """Of the last target, and of whoever was refused."""
    is_calm: bool
    """Whether it came to rest within `LONGEST_MS`."""


def predict(shard: Shard, group_id: str, change: Variation) -> Prediction:
    """Play a change on a copy of a shard, until nobody of the group has anything to hear.

    Raises:
        NotPlayable: the shard has no such group, it broadcasts, or the change names what is not there or cannot be.
    """
    now = situation_of(shard, group_id)
    play = _Play(shard.copy(), group_id)
    play.beat()
    begin_ms, begin = play.now_ms, len(play.decisions)
    for event in _events(play.group, play.shard, change):
        play.tell(event)
    play.until_calm()
    then, decisions = situation_of(play.shard, group_id), play.decisions[begin:]
    given = [one for one in decisions if isinstance(one, Handover) and one.to is not None]
    targets = [one for one in decisions if isinstance(one, Rebalance)]
    refused = [one.client_id for one in decisions if isinstance(one, Fenced) and one.reason == "refused"]
    notes = [f"{client_id} is refused: the group has {len(then.clients)} members" for client_id in refused]
    return Prediction(
        now=now,
        then=then,
        moved=[queue for queue, owner in now.owners.items() if then.owners.get(queue, owner) != owner],
        handovers=[one for one in given if one.from_ not in (None, one.to)],
        took_ms=given[-1].at_ms - begin_ms if given else 0,
        unassigned=targets[-1].unassigned if targets else [],
        unassigned_count=targets[-1].unassigned_count if targets else 0,
        notes=[*(targets[-1].notes if targets else []), *notes],
        is_calm=play.is_calm,
    )


def situation_of(shard: Shard, group_id: str) -> Situation:
    """Return how a group stands.

    Raises:
        NotPlayable: the shard has no such group, or it broadcasts.
    """
    group = shard.group(group_id)
    if group is None:
        raise NotPlayable(f"there is no group {group_id!r} at that time")
    if group.is_broadcasting:
        raise NotPlayable(f"group {group_id!r} broadcasts: every member has every queue, whatever happens")
    queues = [queue for topic in group.topics for queue in shard.routes.queues(topic) or ()]
    return Situation(
        epoch=group.epoch,
        strategy=strategy_of(group)[0],
        clients=sorted(group.members),
        owners=dict(sorted(group.owners.items())),
        unowned=[queue for queue in queues if queue not in group.owners],
        lag_messages=lags(group, shard.routes, queues),
    )


class _Play:
    """A shard, a log that goes on from its last record, and the clients of one group."""

    def __init__(self, shard: Shard, group_id: str) -> None:
        self.shard = shard
        self.group_id = group_id
        self.now_ms = shard.tick_ms
        """Log time."""
        self.decisions: list[AnyDecision] = []
        """About the group, in order."""
        self._said = {client_id: _last_word(group_id, client_id, one) for client_id, one in self.group.members.items()}
        self._news: dict[str, None] = {}
        self._tick()
        self.now_ms += config.SLACK_MS
        self._tick()  # so long, what a new observer's ticks say counts for nothing
        self.now_ms += config.TICK_MS
        self._beat_ms = self.now_ms

    @property
    def group(self) -> Group:
        group = self.shard.group(self.group_id)
        assert group is not None, "a group with an epoch is never forgotten"
        return group

    @property
    def is_calm(self) -> bool:
        """Whether nothing is asked for or under way; who looks at lag has looked again since the last target."""
        group = self.group
        in_doubt = group.pending or group.loss is not None or self._news
        return (
            not in_doubt
            and not any(member.revoking for member in group.members.values())
            and (not group.stale or group.checked_ms > group.retargeted_ms)
        )

    def until_calm(self) -> None:
        """Let everybody answer, and time pass, until there is nothing more to hear."""
        end_ms = self.now_ms + LONGEST_MS
        self._answer()
        while not self.is_calm and self.now_ms < end_ms:
            self.now_ms += config.TICK_MS
            self._tick()
            if self.now_ms - self._beat_ms >= self.group.settings.heartbeat_ms:
                self.beat()
            self._answer()

    def _tick(self) -> None:
        self.tell(Tick(observer="what-if", uptime_ms=self.now_ms))

    def beat(self) -> None:
        """Let everybody say that they live, and have done what they were told."""
        self._beat_ms = self.now_ms
        for beat in list(self._said.values()):
            self.tell(beat)
        self._answer()

    def tell(self, event: AnyEvent) -> None:
        """Append an event to the log, and let clients hear what is decided about their group.

        Raises:
            NotPlayable: it is refused.
        """
        if isinstance(event, Heartbeat):
            self._said.setdefault(event.client_id, event)
        key = entity_of(event).encode() or None
        at = self.shard.topic, self.shard.partition, self.shard.offset + 1, self.now_ms
        for decision in self.shard.apply(Record(*at, key, _encode(event))):
            if getattr(decision, "group_id", None) != self.group_id:
                continue
            self.decisions.append(decision)
            match decision:
                case Rejected() if decision.rule != "limit":  # who is one too many is fenced
                    raise NotPlayable(decision.detail)
                case Fenced():
                    self._said.pop(decision.client_id, None)
                    self._news.pop(decision.client_id, None)
                case Assignment():
                    owned = [assigned.queue for assigned in decision.queues]
                    said = self._said[decision.client_id]
                    self._said[decision.client_id] = structs.replace(said, epoch=decision.epoch, owned=owned)
                    self._news[decision.client_id] = None

    def _answer(self) -> None:
        """Let whoever heard something say so: received, and released."""
        while self._news:
            news, self._news = self._news, {}
            for client_id in news:
                if client_id in self._said:
                    self.tell(self._said[client_id])


def _last_word(group_id: str, client_id: str, member: Member) -> Heartbeat:
    """Return what a member says that has done all that it was told."""
    return Heartbeat(
        group_id=group_id,
        client_id=client_id,
        instance_id=member.instance_id,
        epoch=max(member.shown_epoch, member.sent_epoch),
        owned=sorted(member.owned.keys() - member.revoking.keys()),
        mode=member.mode,
        consume_from=member.consume_from,
        consume_from_ms=member.consume_from_ms,
        subscriptions=list(member.subscriptions.values()),
        strategy=member.strategy,
        strategy_params=member.strategy_params,
        orderly=member.orderly,
        room=member.room,
        weight=member.weight,
    )


def _events(group: Group, shard: Shard, change: Variation) -> list[AnyEvent]:
    """Return the events that make a change."""
    members = group.members
    unknown = [client_id for client_id in change.remove if client_id not in members]
    if unknown:
        raise NotPlayable(f"no client {unknown[0]!r} in {group.group_id}; there are: {', '.join(members) or 'none'}")
    if change.add and not members:
        raise NotPlayable(f"{group.group_id} has no members; nobody says what a new one would want")
    events: list[AnyEvent] = [Configure(group_id=group.group_id, **change.settings)] if change.settings else []
    if change.add:
        oldest = next(iter(members))
        wishes = structs.replace(_last_word(group.group_id, oldest, members[oldest]), epoch=-1, owned=[])
        events += [
            structs.replace(wishes, client_id=client_id, instance_id=f"what-if-{client_id}")
            for client_id in _new_names(members, change.add)
        ]
    for client_id in change.remove:
        # It is the copy's own: the secret of a provable instance is its client's alone.
        instance_id = members[client_id].instance_id = f"what-if-{client_id}"
        events.append(Unregister(group_id=group.group_id, client_id=client_id, instance_id=instance_id))
    return events + [_route(shard, topic, count) for topic, count in change.queues.items()]


def _new_names(members: Mapping[str, Member], count: int) -> list[str]:
    """Name new members so that they sort in the order in which they come."""
    width = len(str(count))
    names = (f"new-{number:0{width}}" for number in range(1, count + len(members) + 1))
    return [name for name in names if name not in members][:count]


def _route(shard: Shard, topic: str, count: int) -> Route:
    """Return a topic's route with another number of queues; the first ones stay as they are."""
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
