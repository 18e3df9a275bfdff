"""One event about one of Kafka's groups: the changes of its state, and the decisions that record them."""

import re
from collections.abc import Collection, Mapping

from msgspec import UNSET

from wakeroll_model import config
from wakeroll_model.coordinator_log.kafka_events import SeenMember
from wakeroll_model.coordinator_log.kafka_group import KafkaGroup, Reason
from wakeroll_model.coordinator_log.kafka_names import instance_name
from wakeroll_model.decisions import (
    AnyDecision,
    Cause,
    Change,
    Handover,
    How,
    Membership,
    Rebalance,
    Trigger,
    Unassigned,
)
from wakeroll_model.events import About, Subscription
from wakeroll_model.group import Freed, Member, Received, Revocation
from wakeroll_model.known_routes import Routes
from wakeroll_model.queue import Queue
from wakeroll_model.shard_clock import Moment

SHOWN_UNASSIGNED = 256
_NOT_HOST = re.compile(r"[^ -~]")
NOT_TOLD: Trigger = "unknown"
ORDER: tuple[Trigger, ...] = ("gone", "join", "subscription", "expression", "route", "returned", "released", "leader")
"""Triggers by rank: of several reasons, the first one of these names the rebalance, and its notes name all."""


class KafkaTurn:
    """One event: its context, and the decisions so far."""

    def __init__(self, group: KafkaGroup, moment: Moment, cause: Cause, routes: Routes) -> None:
        self.group = group
        self.side = group.kafka
        self.now_ms = moment.at_ms
        """Time of the record, epoch ms."""
        self.cause = cause
        self.routes = routes
        self.decisions: list[AnyDecision] = []

    # --- epochs ---

    def begin(self, number: int) -> None:
        """Follow Kafka's generation or epoch; if Kafka counts from 1 again, wakeroll's epochs continue."""
        side, group = self.side, self.group
        if side.base + number <= group.epoch:
            side.base = group.epoch + 1 - number
        side.generation = number
        group.epoch = side.base + number

    def because(self, trigger: Trigger, text: str) -> None:
        """Note a reason for the next rebalance."""
        if len(self.side.reasons) < config.MAX_CAUSES:
            self.side.reasons = [*self.side.reasons, Reason(trigger, text, self.cause)]

    # --- members ---

    def put(self, seen: SeenMember, change: Change | None, detail: str = "") -> None:
        """Add or change a member; record the `change`."""
        group, name = self.group, seen.client_id
        before = group.members.get(name)
        member = Member(
            instance_id=instance_name(seen.member_id),
            seen_ms=self.now_ms,
            subscriptions={topic: Subscription(topic=topic) for topic in self._topics_of(seen)},
            session_ms=seen.session_ms or config.SESSION_TIMEOUT_MS,
            mode="broadcasting" if self.side.protocol == "share" else "clustering",
            strategy=seen.assignor or self.side.assignor,
            room=seen.rack[:255],
            joined_ms=self.now_ms if before is None or change == "joined" else before.joined_ms,
            about=About(host=_NOT_HOST.sub("?", seen.host)[:253]),
            owned={} if before is None else before.owned,
            revoking={} if before is None else before.revoking,
        )
        group.members[name] = member
        group.emptied_ms = -1
        if change is not None:
            self._say(seen, change, detail or ", ".join(member.subscriptions))

    def remove(self, seen: SeenMember, detail: str) -> None:
        """Remove a member; it remains the owner of its queues until `hand_over` frees them."""
        self.group.members.pop(seen.client_id, None)
        self._say(seen, "gone", detail)

    def note_if_empty(self) -> None:
        """Record that the group has lost its last member."""
        if not self.group.members and self.group.emptied_ms < 0:
            self.group.emptied_ms = self.now_ms
            self.decisions.append(
                Membership(group_id=self.group.group_id, client_id="", change="emptied", epoch=self.group.epoch)
            )

    def note(self, seen: SeenMember, change: Change, detail: str) -> None:
        """Record a change of a member that changes nothing else."""
        self._say(seen, change, detail)

    def _say(self, seen: SeenMember, change: Change, detail: str) -> None:
        member = self.group.members.get(seen.client_id)
        about = member.about if member is not None and change == "joined" else None
        self.decisions.append(
            Membership(
                group_id=self.group.group_id,
                client_id=seen.client_id,
                instance_id=instance_name(seen.member_id),
                change=change,
                epoch=self.group.epoch,
                detail=detail[: config.MAX_DETAIL],
                about=UNSET if about is None or not about.host else about,
            )
        )

    def _topics_of(self, seen: SeenMember) -> list[str]:
        of_expression = self.side.expressions.get(seen.expression, []) if seen.expression else []
        return sorted({*seen.topics, *of_expression})

    # --- queues ---

    def rebalance(self, target: Mapping[Queue, str], reasons: Collection[Reason], notes: Collection[str] = ()) -> None:
        """Record a new target, for the epoch that has begun."""
        group = self.group
        before, group.target = group.target, dict(sorted(target.items()))
        moved = sum(1 for queue, name in target.items() if before.get(queue, name) != name)
        lost = sorted(before.keys() - target.keys()) if group.members and self.side.protocol != "share" else []
        counts = dict.fromkeys(group.members, 0)
        for name in target.values():
            counts[name] = counts.get(name, 0) + 1
        ranked = sorted(reasons, key=lambda one: ORDER.index(one.trigger) if one.trigger in ORDER else len(ORDER))
        trigger = ranked[0].trigger if ranked else NOT_TOLD
        texts = dict.fromkeys((*(one.text for one in reasons), *notes))
        group.note_rebalance(self.now_ms, trigger, self.side.assignor, moved)
        self.decisions.append(
            Rebalance(
                group_id=group.group_id,
                epoch=group.epoch,
                trigger=trigger,
                causes=list(dict.fromkeys([*(one.cause for one in reasons), self.cause]))[: config.MAX_CAUSES],
                strategy=self.side.assignor,
                clients=len(group.members),
                queues=len(target) + len(lost),
                moved=moved,
                unassigned=[Unassigned(queue, WITHOUT) for queue in lost[:SHOWN_UNASSIGNED]],
                unassigned_count=len(lost),
                spread=max(counts.values(), default=0) - min(counts.values(), default=0),
                notes=[text for text in texts if text],
            )
        )

    def hand_over(self, queue: Queue, to: str | None, how: How, revoked_ms: int | None = None) -> None:
        """Record that a queue has another owner, or none."""
        group = self.group
        owner = group.owners.get(queue)
        if owner == to:
            return
        released_ms: int | None = self.now_ms
        if owner is None:
            freed = group.freed.pop(queue, None)
            owner = None if freed is None else freed.client_id
            how = "first" if freed is None else freed.how
            released_ms = None if freed is None else freed.at_ms
            revoked_ms = None if freed is None else freed.revoked_ms
        elif (member := group.members.get(owner)) is not None:
            member.owned = {one: epoch for one, epoch in member.owned.items() if one != queue}
            member.revoking = {one: its for one, its in member.revoking.items() if one != queue}
        if to is None:
            assert owner is not None, "a free queue was freed"
            del group.owners[queue]
            group.received.pop(queue, None)
            group.freed[queue] = Freed(owner, how, self.now_ms, revoked_ms, group.epoch)
        else:
            group.owners[queue] = to
            group.received[queue] = Received(group.epoch, self.now_ms, how, owner)
            if (taker := group.members.get(to)) is not None:
                taker.owned = {**taker.owned, queue: group.epoch}
        self.decisions.append(
            Handover(
                group_id=group.group_id,
                queue=queue,
                from_=owner,
                to=to,
                epoch=group.epoch,
                revoked_ms=revoked_ms,
                released_ms=released_ms,
                assigned_ms=None if to is None else self.now_ms,
                how=how,
            )
        )

    def revoke(self, name: str, queues: Collection[Queue]) -> None:
        """Note the queues that a member must release."""
        member = self.group.members.get(name)
        if member is None:
            return
        known = member.revoking
        fresh = Revocation(self.group.epoch, self.now_ms, config.REVOKE_TIMEOUT_MS)
        member.revoking = {queue: known.get(queue, fresh) for queue in sorted(queues)}

    def revoked_ms(self, queue: Queue) -> int | None:
        """Return when the queue was revoked (epoch ms); None if it was not."""
        owner = self.group.members.get(self.group.owners.get(queue, ""))
        its = None if owner is None else owner.revoking.get(queue)
        return None if its is None else its.at_ms


WITHOUT = "Kafka's assignment leaves it out; a member may have to release it first"
"""Reason for which a queue that had an owner is not part of an assignment."""
