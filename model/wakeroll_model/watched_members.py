"""The members of a watched group: the heartbeats and unregisters that state what another coordinator assigned.

A member's instances are derived from its name, not random: two processes that watch the same group, or one that was
restarted, append records of the same instances.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from wakeroll_model import config
from wakeroll_model.decisions import Assignment, Fenced
from wakeroll_model.events import Heartbeat, Subscription, Unregister
from wakeroll_model.queue import Queue
from wakeroll_model.strategies import pinned

REFUSED_MS = 60_000
"""Pause before a member that was refused tries to join again, ms."""
REPEAT_MS = 10_000
"""Pause before an unregister without an answer is repeated, ms; its record may be lost."""
MAX_FORMER = 1_000
"""Clients whose ended instances are remembered; one that returns after that is fenced once before it joins."""


class SeenMember(Struct, frozen=True, kw_only=True):
    """A member of the watched group as its coordinator describes it."""

    client_id: str
    """Unique in the group, and the same in each description of the member."""
    queues: tuple[Queue, ...]
    """The queues assigned to it, sorted."""
    host: str = ""


class _Member(Struct):
    """A member on record, or one that is about to join."""

    instance_id: str
    epoch: int = -1
    """Epoch of the newest assignment for it; -1 if none."""
    owned: tuple[Queue, ...] = ()
    """The queues that the newest assignment gives it, sorted."""
    said: Heartbeat | None = None
    """Its last heartbeat; None if another process sent it."""
    said_ms: int = 0


class WatchedMembers:
    """Compares the members of a watched group with those on record."""

    def __init__(self, group_id: str, heartbeat_ms: int) -> None:
        """Begin without members; a heartbeat without news is repeated after `heartbeat_ms`."""
        self._group_id = group_id
        self._heartbeat_ms = heartbeat_ms
        self._session_ms = config.SESSION_TIMEOUT_MS
        self._members: dict[str, _Member] = {}
        self._leaving: dict[str, tuple[Unregister, int, int]] = {}
        """client_id -> its unregister that has no answer yet, when it is repeated, and when its session has ended."""
        self._seen: Mapping[str, SeenMember] = {}
        self._topics: list[str] = []
        self._next: dict[str, str] = {}
        """client_id -> its next instance, because an earlier one has ended."""
        self._refused: dict[str, int] = {}
        """client_id -> when it may try to join again."""

    @property
    def owners(self) -> dict[Queue, str]:
        """Queue -> its owner on record."""
        return {queue: client_id for client_id, member in self._members.items() for queue in member.owned}

    @property
    def stated(self) -> set[Queue]:
        """The queues that members have by the last description."""
        return {queue for seen in self._seen.values() for queue in seen.queues}

    def __len__(self) -> int:
        """Return the number of members on record, as far as is known."""
        return len(self._members)

    def life_of(self, client_id: str) -> tuple[str, int]:
        """Return the instance of a member, and the epoch of its newest assignment."""
        member = self._members[client_id]
        return member.instance_id, member.epoch

    def see(self, seen: Sequence[SeenMember]) -> None:
        """Take a new description of all members. All of them subscribe to each topic of which any member has queues."""
        self._seen = {member.client_id: member for member in seen}
        topics = sorted({queue.topic for queue in self.stated})
        self._topics = topics[: config.MAX_TOPICS] or self._topics

    def changes(self, now_ms: int, *, leave: bool) -> Iterator[Heartbeat | Unregister]:
        """Yield the events of members that have news, or whose heartbeat is due, in the order that tells causes.

        A member that joins or leaves causes a new target, so its event comes after the news of those that stay. If
        several join, only the last one comes after them: until then, a queue that two members state stays where it is.

        Args:
            now_ms: monotonic time, ms.
            leave: whether members that are not described any more leave.
        """
        joins, stays = [], []
        for client_id in sorted(self._seen):
            if client_id in self._members:
                stays += self._renew(client_id, now_ms)
            elif now_ms >= self._refused.get(client_id, now_ms):
                joins.append(self._join(client_id, now_ms))
        yield from [*joins[:-1], *stays, *joins[-1:]]
        yield from self._repeated(now_ms)
        for client_id in sorted(self._members.keys() - self._seen.keys()) if leave else ():
            yield self._leave(client_id, now_ms)

    def receive(self, assignment: Assignment, now_ms: int) -> list[Heartbeat]:
        """Follow an assignment, also one of an instance that another process let join; return the receipt."""
        member = self._members.get(assignment.client_id)
        if member is None or member.instance_id != assignment.instance_id:
            member = self._members[assignment.client_id] = _Member(assignment.instance_id)
        owned = tuple(assigned.queue for assigned in assignment.queues)
        is_news = (member.epoch, member.owned) != (assignment.epoch, owned)
        member.epoch, member.owned = assignment.epoch, owned
        self._session_ms = assignment.session_timeout_ms
        if not is_news or member.said is None or assignment.client_id not in self._seen:
            return []
        member.said_ms = now_ms
        member.said = structs.replace(
            member.said, epoch=member.epoch, owned=list(owned), session_timeout_ms=self._session_ms
        )
        return [member.said]

    def end(self, fenced: Fenced, now_ms: int) -> list[Heartbeat]:
        """End an instance. If its client is still described, the next one joins: at once, or later if it was refused.

        An instance that ended never becomes a member again.
        """
        client_id = fenced.client_id
        if client_id in self._leaving and self._leaving[client_id][0].instance_id == fenced.instance_id:
            del self._leaving[client_id]
        member = self._members.get(client_id)
        if member is None or member.instance_id != fenced.instance_id:
            return []
        del self._members[client_id]
        if fenced.reason in ("refused", "duplicate"):
            self._refused[client_id] = now_ms + REFUSED_MS
            return []
        self._remember_end(client_id, fenced.instance_id)
        return [self._join(client_id, now_ms)] if client_id in self._seen else []

    def _join(self, client_id: str, now_ms: int) -> Heartbeat:
        self._refused.pop(client_id, None)
        self._members[client_id] = _Member(self._next.get(client_id) or _instance(self._group_id, client_id))
        return self._beat(client_id, now_ms)

    def _renew(self, client_id: str, now_ms: int) -> list[Heartbeat]:
        """Return a heartbeat of a member if it has news, or if it is due."""
        member = self._members[client_id]
        said, said_ms = member.said, member.said_ms
        beat = self._beat(client_id, now_ms)
        if beat == said and now_ms - said_ms < self._heartbeat_ms:
            member.said_ms = said_ms
            return []
        return [beat]

    def _leave(self, client_id: str, now_ms: int) -> Unregister:
        instance_id = self._members.pop(client_id).instance_id
        self._remember_end(client_id, instance_id)
        left = Unregister(group_id=self._group_id, client_id=client_id, instance_id=instance_id)
        self._leaving[client_id] = (left, now_ms + REPEAT_MS, now_ms + self._session_ms)
        return left

    def _repeated(self, now_ms: int) -> Iterator[Unregister]:
        """Yield the unregisters that may be lost: without one, its member would expire as if nobody watched."""
        for client_id, (left, again_ms, end_ms) in list(self._leaving.items()):
            if now_ms >= end_ms:
                del self._leaving[client_id]
            elif now_ms >= again_ms:
                self._leaving[client_id] = (left, now_ms + REPEAT_MS, end_ms)
                yield left

    def _remember_end(self, client_id: str, instance_id: str) -> None:
        self._next.pop(client_id, None)
        self._next[client_id] = _instance(self._group_id, instance_id)
        while len(self._next) > MAX_FORMER:
            del self._next[next(iter(self._next))]

    def _beat(self, client_id: str, now_ms: int) -> Heartbeat:
        """Return the heartbeat of a described member, by what is known now."""
        member = self._members[client_id]
        member.said_ms = now_ms
        member.said = Heartbeat(
            group_id=self._group_id,
            client_id=client_id,
            instance_id=member.instance_id,
            epoch=member.epoch,
            session_timeout_ms=self._session_ms,
            owned=list(member.owned),
            subscriptions=[Subscription(topic=topic) for topic in self._topics],
            strategy=pinned.NAME,
            strategy_params=_statement(self._seen[client_id]),
        )
        return member.said


def _instance(*words: str) -> str:
    return hashlib.blake2b("\n".join(words).encode(), digest_size=16).hexdigest()


def _statement(seen: SeenMember) -> dict[str, Any]:
    """Return the parameters by which a member states its queues; `host` is for the record only."""
    queues: dict[str, list[int]] = {}
    for queue in seen.queues:
        queues.setdefault(queue.topic, []).append(queue.queue_id)
    return {"queues": queues, "host": seen.host}
