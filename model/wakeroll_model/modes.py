"""Modes: the functions on members, queues and offsets that depend on a group's mode, with two implementations.

The modules `clustering` and `broadcasting` implement it. Nothing else in the group machine depends on the mode.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from wakeroll_model import broadcasting, clustering
from wakeroll_model.decisions import How, Start, Trigger
from wakeroll_model.events import Ahead, Heartbeat, Mode, Reset
from wakeroll_model.group import Group, Member
from wakeroll_model.queue import Queue
from wakeroll_model.target import Target
from wakeroll_model.turn import Outcome, Turn


class Sharing(Protocol):
    """How the members of a group share its queues and its committed offsets."""

    # --- members ---

    def no_room(self, turn: Turn, topics: Collection[str]) -> str:
        """Return why a client with these topics cannot join; empty if it can."""

    def concerned(self, trigger: Trigger) -> Outcome:
        """Request a new target because members or their topics changed, if that concerns other members."""

    def join(self, turn: Turn, beat: Heartbeat, member: Member) -> Outcome:
        """Assign a new member the queues that it may have at once, with those that it had before a loss of state."""

    def resubscribe(self, turn: Turn, client_id: str, left: Collection[str]) -> Outcome:
        """Follow a change of a member's topics; `left`: topics that it no longer subscribes."""

    def receive(self, turn: Turn, beat: Heartbeat, member: Member, *, target_stands: bool) -> Outcome:
        """Process the queues that a member's heartbeat lists; `target_stands`: whether no new target was requested."""

    def leave(self, turn: Turn, client_id: str, how: How) -> Outcome:
        """Take all queues from a member that leaves; it is removed next."""

    # --- the target ---

    def target(self, turn: Turn) -> tuple[Target, bool]:
        """Compute the target; return it, and whether a queue must be assigned or revoked because of it."""

    def follow_target(self, turn: Turn) -> Outcome:
        """Assign and revoke queues by the new target."""

    # --- offsets ---

    def start(self, group: Group, client_id: str, queue: Queue) -> Start:
        """Return where a member starts a queue."""

    def committer(self, group: Group, client_id: str, queue: Queue) -> str | None:
        """Return the client that may commit a queue for which `client_id` sent a commit; None if no client may."""

    def is_known(self, group: Group, client_id: str) -> bool:
        """Return whether the group has offsets that commits of a client advance, even if it is no member."""

    def committed(self, group: Group, client_id: str) -> Mapping[Queue, int]:
        """Return the map of committed offsets that commits of a client advance; it follows later changes."""

    def leader_epochs(self, group: Group, client_id: str) -> Mapping[Queue, int]:
        """Return the leader epochs of the committed offsets, as far as they are known."""

    def is_doubted(self, turn: Turn, queue: Queue) -> bool:
        """Return whether the newest routes show that a queue ends below its committed offset."""

    def ahead(self, group: Group, queue: Queue) -> tuple[Ahead, ...]:
        """Return the progress beyond the committed offset of a queue, by filter; see `offsets_by_filter`."""

    def commit(
        self,
        turn: Turn,
        client_id: str,
        queue: Queue,
        offset: int,
        leader_epoch: int | None,
        ahead: tuple[Ahead, ...],
    ) -> None:
        """Store a valid commit, the leader epoch if it is known, and all progress beyond it."""

    def wrong_reset(self, turn: Turn, event: Reset) -> str:
        """Return why a reset sets too many offsets; empty if it does not."""

    def describe_reset(self, group: Group, queues: int) -> tuple[str, int]:
        """Return the strategy and the number of queues for the record of a reset of this many `queues`."""

    def has_offset(self, group: Group, queue: Queue) -> bool:
        """Return whether there is any committed offset of a queue."""

    def delete_offset(self, turn: Turn, queue: Queue, why: str, by: str) -> None:
        """Delete the committed offsets of a queue that no member subscribes, and record each of them."""

    def reset(self, turn: Turn, queue: Queue, offset: int, why: str, by: str) -> frozenset[str]:
        """Set the committed offsets of a queue; return the clients that must be sent their assignment."""


SHARING: Mapping[Mode, Sharing] = {"clustering": clustering, "broadcasting": broadcasting}
"""Mode -> its implementation."""


def sharing_of(group: Group) -> Sharing:
    """Return how a group shares its queues; a group without members is a clustering group."""
    return SHARING[group.mode]


def offsets_of(group: Group) -> Sharing:
    """Return how a group shares its offsets; a group without members keeps the mode of its last one."""
    return SHARING[group.mode if group.members else group.mode_before]
