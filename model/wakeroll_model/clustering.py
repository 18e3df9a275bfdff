"""Clustering groups: each queue has one owner at most, and its offset is the group's.

This module implements `modes.Sharing`.
"""

from collections.abc import Collection, Mapping

from wakeroll_model import (
    claims,
    clustering_offsets,
    doubtful_commits,
    handover,
    offsets_by_filter,
    ownership,
    releases,
    slicing,
)
from wakeroll_model.decisions import How, Start, Trigger
from wakeroll_model.events import Ahead, Heartbeat, Reset
from wakeroll_model.group import Group, Member
from wakeroll_model.queue import Queue
from wakeroll_model.target import Target, compute, strategy_of
from wakeroll_model.turn import NOTHING, Outcome, Turn, combined

# --- members ---


def no_room(turn: Turn, topics: Collection[str]) -> str:
    """Return nothing: one more member needs no more queues."""
    return ""


def concerned(trigger: Trigger) -> Outcome:
    """Request a new target, in which all members share the queues of one that left, or share with one that joined."""
    return Outcome(triggers=(trigger,))


def join(turn: Turn, beat: Heartbeat, member: Member) -> Outcome:
    """Assign a new member the queues that it claims after a loss of state; the next target assigns all others."""
    return claims.accept(turn, beat, member, target_stands=False)


def resubscribe(turn: Turn, client_id: str, left: Collection[str]) -> Outcome:
    """Do nothing: the next target follows the topics."""
    return NOTHING


def receive(turn: Turn, beat: Heartbeat, member: Member, *, target_stands: bool) -> Outcome:
    """Free the queues that the member released, and let it claim queues after a loss of state."""
    if not member.revoking and turn.group.loss is None and len(beat.owned) >= len(member.owned):
        return NOTHING  # the case of almost every heartbeat
    withdrawn = claims.withdraw(turn, beat, member)
    released = releases.receipt_or_release(turn, beat, member)
    return combined(withdrawn, released, claims.accept(turn, beat, member, target_stands=target_stands))


def leave(turn: Turn, client_id: str, how: How) -> Outcome:
    """Free all queues of a member at once."""
    return ownership.free(turn, dict.fromkeys(sorted(turn.group.members[client_id].owned), how))


# --- the target ---


def target(turn: Turn) -> tuple[Target, bool]:
    """Compute the owner of each queue by the group's strategy; return it, and whether it differs from the last one."""
    found = compute(turn.group, turn.routes)
    return found, found.owners != turn.group.target


def follow_target(turn: Turn) -> Outcome:
    """Hand queues over to the owners in the target."""
    return handover.follow_target(turn)


# --- offsets ---


def start(group: Group, client_id: str, queue: Queue) -> Start:
    """Return where a member starts a queue: at the committed offset, else by its consume_from."""
    return clustering_offsets.start(group, client_id, queue)


def committer(group: Group, client_id: str, queue: Queue) -> str | None:
    """Return the owner of the queue."""
    return group.owners.get(queue)


def is_known(group: Group, client_id: str) -> bool:
    """Return True: the group has one offset per queue, whichever client commits it."""
    return True


def committed(group: Group, client_id: str) -> Mapping[Queue, int]:
    """Return the offsets of the group."""
    return group.offsets


def leader_epochs(group: Group, client_id: str) -> Mapping[Queue, int]:
    """Return the leader epochs of the group's offsets."""
    return group.leader_epochs


def is_doubted(turn: Turn, queue: Queue) -> bool:
    """Return whether a route contradicts the group's offset."""
    return doubtful_commits.is_contradicted(turn, queue)


def ahead(group: Group, queue: Queue) -> tuple[Ahead, ...]:
    """Return the group's progress beyond the committed offset of a queue."""
    return offsets_by_filter.of(group, queue)


def commit(
    turn: Turn, client_id: str, queue: Queue, offset: int, leader_epoch: int | None, ahead: tuple[Ahead, ...]
) -> None:
    """Store a commit as the offset of the group."""
    clustering_offsets.commit(turn, queue, offset, leader_epoch, ahead)


def wrong_reset(turn: Turn, event: Reset) -> str:
    """Return nothing: an event names no more queues than one reset may set."""
    return ""


def describe_reset(group: Group, queues: int) -> tuple[str, int]:
    """Return the group's strategy, and the number of queues in its target."""
    return strategy_of(group)[0], len(group.target)


def has_offset(group: Group, queue: Queue) -> bool:
    """Return whether the group has a committed offset of a queue."""
    return bool(slicing.with_offsets(group, queue))


def delete_offset(turn: Turn, queue: Queue, why: str, by: str) -> None:
    """Delete the offset of the group; for a whole queue, those of its slices too."""
    for one in slicing.with_offsets(turn.group, queue):
        clustering_offsets.delete(turn, one, why, by)


def reset(turn: Turn, queue: Queue, offset: int, why: str, by: str) -> frozenset[str]:
    """Set the offset of the group; for a whole queue, those of its slices. Return the owners to notify."""
    if queue.slices > 1:
        slicing.adopt(turn, queue, commits=True)  # the other slices keep their offsets
    owners: set[str] = set()
    for piece in slicing.pieces(turn.group, turn.routes, queue):
        owners |= clustering_offsets.reset(turn, piece, offset, why, by)
    return frozenset(owners)
