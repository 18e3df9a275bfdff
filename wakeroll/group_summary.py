"""What the decisions about a group tell of it: its mode, its topics, and how far it has consumed."""

from collections.abc import Iterable
from typing import Self

from model.decisions import Assignment, Decision, Fenced, Membership, Offset
from model.events import Mode
from model.queue import Queue


class History:
    """A group as its decisions tell it, the oldest first; what is older than the oldest of them is not seen."""

    def __init__(self) -> None:
        self.mode: Mode = "clustering"
        """As the newest decision that tells it says."""
        self.committed: dict[tuple[str, Queue], int] = {}
        """(client_id, queue) -> the next message to consume; the client is empty where the group shares one offset."""
        self._assigned: dict[str, Assignment] = {}
        """client_id -> its newest assignment; present members alone."""

    @classmethod
    def of(cls, decisions: Iterable[Decision]) -> Self:
        """Return what these tell, in the order of the record and without repetitions."""
        history = cls()
        for decision in decisions:
            history.learn(decision)
        return history

    def learn(self, decision: Decision) -> None:
        """Take one more decision."""
        match decision:
            case Offset():
                self.mode = decision.mode
                owner = decision.client_id if decision.mode == "broadcasting" else ""
                self.committed[owner, decision.queue] = decision.offset
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
            case _:
                pass

    @property
    def topics(self) -> list[str]:
        """Topics of its committed offsets and of what its members hold now, sorted."""
        topics = {queue.topic for _, queue in self.committed}
        for assignment in self._assigned.values():
            topics.update(each.queue.topic for each in assignment.queues)
            topics.update(queue.topic for queue in assignment.revoke)  # it may be on its way to another member
        return sorted(topics)

    @property
    def clients(self) -> list[str]:
        """Who has offsets of its own, as far as is known: in a broadcasting group, members and who left; sorted."""
        return sorted({owner for owner, _ in self.committed if owner} | self._assigned.keys())
