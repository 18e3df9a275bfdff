"""A summary of a group from its decisions: its mode, its topics, and its committed offsets."""

from collections.abc import Iterable
from typing import Self

from wakeroll_model.decision_order import era_of
from wakeroll_model.decisions import Assignment, Decision, Fenced, Membership, Offset, Rebalance, Rejected
from wakeroll_model.events import Mode
from wakeroll_model.queue import Queue


class History:
    """The state of a group as derived from its decisions, oldest first; deleted decisions are not included."""

    def __init__(self) -> None:
        self.mode: Mode = "clustering"
        """Mode in the newest decision that contains one."""
        self.committed: dict[tuple[str, Queue], int] = {}
        """(client_id, queue) -> the next message to consume; client_id is empty if the group shares one offset."""
        self._assigned: dict[str, Assignment] = {}
        """client_id -> newest assignment; only clients that are members now."""
        self.members: set[str] | None = None
        """Clients that are members now, as far as they are known; None if none is. The decisions about members that
        joined long ago are deleted, and members rejoin only after the begin of a new era. So there may be other
        members."""
        self._is_complete = False
        """Whether all members are known."""
        self._left_out: set[str] = set()
        """Topics of queues that no member owns, by the newest target."""
        self._patterns: dict[str, str] = {}
        """client_id of a member -> its pattern of topics; without members, those of the members that left last."""
        self.joins = 0
        """Number of members that joined."""
        self.newest_ms = 0
        """Log time of the newest decision (epoch ms); 0 if there is none."""
        self._era = 0

    @classmethod
    def of(cls, decisions: Iterable[Decision]) -> Self:
        """Derive the state from decisions in the order of the record, without repetitions."""
        history = cls()
        for decision in decisions:
            history.learn(decision)
        return history

    def learn(self, decision: Decision) -> None:
        """Process one more decision."""
        self.newest_ms = max(self.newest_ms, decision.at_ms)
        if isinstance(decision, Rejected):  # it may be of another shard, with eras of its own
            return
        era = era_of(decision.shard)
        if era != self._era:  # it begins without members; in another shard of the same era the members continue
            self._era, self.members = era, None if self.members or not self._is_complete else set()
            self._is_complete = self.members is not None
        match decision:
            case Offset():
                self.mode = decision.mode
                owner = decision.client_id if decision.mode == "broadcasting" else ""
                if decision.deleted:
                    self.committed.pop((owner, decision.queue), None)
                else:
                    self.committed[owner, decision.queue] = decision.offset
            case Rebalance():
                self._left_out = {one.queue.topic for one in decision.unassigned}
            case Assignment():
                self.mode = decision.mode
                self._assigned[decision.client_id] = decision
            case Fenced(client_id=client_id, instance_id=instance_id):
                assigned = self._assigned.get(client_id)
                if assigned is not None and assigned.instance_id == instance_id:
                    del self._assigned[client_id]
            case Membership(change="forgotten"):
                self.committed.clear()
                self._assigned.clear()
                self._patterns.clear()
                self.members, self._is_complete = set(), True
            case Membership(change="emptied"):
                self.members, self._is_complete = set(), True
            case Membership():
                self._count(decision)
            case _:
                pass

    @property
    def lowest(self) -> dict[tuple[str, Queue], int]:
        """`committed`, with the lowest offset of its slices for each partition that is cut."""
        found = dict(self.committed)
        for (owner, queue), offset in self.committed.items():
            if queue.slices > 1:
                found[owner, queue.whole] = min(offset, found.get((owner, queue.whole), offset))
        return found

    def forget_members(self) -> None:
        """Note that decisions are missing: members may have joined or left."""
        self.members, self._is_complete = None, False

    def _count(self, membership: Membership) -> None:
        members = self.members or set()
        match membership.change:
            case "joined":
                if not members:
                    self._patterns.clear()
                members.add(membership.client_id)
                self.joins += 1
                self._note_pattern(membership)
            case "resubscribed":
                self._note_pattern(membership)
            case "left" | "died" | "expired" | "kicked":
                members.discard(membership.client_id)
                if members:
                    self._patterns.pop(membership.client_id, None)
            case _:
                pass
        self.members = members if members or self._is_complete else None

    def _note_pattern(self, membership: Membership) -> None:
        if membership.pattern:
            self._patterns[membership.client_id] = membership.pattern
        else:
            self._patterns.pop(membership.client_id, None)

    @property
    def patterns(self) -> list[str]:
        """Patterns of topics of its members, or of the last ones if it has none now; sorted."""
        return sorted(set(self._patterns.values()))

    @property
    def topics(self) -> list[str]:
        """Topics of its committed offsets and of its members' queues, sorted."""
        topics = {queue.topic for _, queue in self.committed}
        for assignment in self._assigned.values():
            topics.update(each.queue.topic for each in assignment.queues)
            topics.update(queue.topic for queue in assignment.revoke)  # its next owner may not have it yet
        return sorted(topics)

    @property
    def topics_of_members(self) -> list[str]:
        """Topics of which members own queues, or should own some, sorted."""
        queues = [each.queue for assignment in self._assigned.values() for each in assignment.queues]
        queues += [queue for assignment in self._assigned.values() for queue in assignment.revoke]
        return sorted(self._left_out | {queue.topic for queue in queues})

    @property
    def clients(self) -> list[str]:
        """Known clients with own offsets in a broadcasting group, members and former members; sorted."""
        return sorted({owner for owner, _ in self.committed if owner} | self._assigned.keys())
