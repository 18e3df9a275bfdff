"""Committed offsets: commits, which only the owner of a queue can make and which never decrease, and resets."""

from msgspec import UNSET

from wakeroll_model import (
    assignment_limits,
    broadcast_offsets,
    config,
    doubtful_commits,
    leader_epochs,
    learning,
    offsets_by_filter,
    slicing,
)
from wakeroll_model.decisions import BY_THE_LOG, Offset, Rebalance, Rejected, Trigger
from wakeroll_model.events import Commit, CommittedOffset, Reset
from wakeroll_model.modes import SHARING, Sharing, offsets_of, sharing_of
from wakeroll_model.queue import Queue
from wakeroll_model.target import spread
from wakeroll_model.turn import NOTHING, Outcome, Turn, sending


def commit(turn: Turn, event: Commit) -> None:
    """Accept commits for queues that the client owns, including revoked ones, if the commit's epoch is not too low.

    The epoch must not be below that of the queue's assignment. Kafka has the same rule, one epoch per partition: a
    commit for a queue that its owner kept stays valid in later epochs. Invalid commits are rejected, queue by queue, in
    one decision. An offset that is not above the committed one is ignored, unless the log has lost its tail; the
    progress by filter in it still counts.
    """
    group = turn.group
    bad = []
    has_leader_epochs = turn.level >= 3
    sharing = sharing_of(group)
    committed = sharing.committed(group, event.client_id)
    known = sharing.leader_epochs(group, event.client_id)
    learnt = _learnt(turn, event, sharing) if group.is_learning else None
    for entry in event.offsets:
        wrong = _wrong(turn, event, entry, sharing, learnt)
        if wrong:
            bad.append(f"{entry.queue}: {wrong}")
            continue
        slicing.note(group, entry.queue)
        if group.sliced and group.mode == "clustering":
            slicing.adopt(turn, entry.queue, commits=True)
        before, leader_epoch = committed.get(entry.queue, -1), entry.leader_epoch if has_leader_epochs else None
        offset, epoch_before = entry.offset, known.get(entry.queue)
        is_news = leader_epochs.is_news(offset, leader_epoch, before, epoch_before)
        is_news |= leader_epoch is None and offset < before and sharing.is_doubted(turn, entry.queue)
        lost_tail = is_news and offset < before
        ahead = now_ahead = sharing.ahead(group, entry.queue)
        if is_news:
            more = entry.ahead if turn.level >= 3 else ()
            now_ahead = offsets_by_filter.merged(() if lost_tail else ahead, more, offset)
        elif entry.ahead and turn.level >= 3 and group.mode == "clustering":
            if leader_epoch is None or epoch_before is None or leader_epoch >= epoch_before:  # else it may be lost
                now_ahead = offsets_by_filter.merged(ahead, entry.ahead, before)
            offset, leader_epoch = before, epoch_before
        if is_news or now_ahead != ahead:
            sharing.commit(turn, event.client_id, entry.queue, offset, leader_epoch, now_ahead)
            turn.emit(
                Offset(
                    group_id=group.group_id,
                    queue=entry.queue,
                    client_id=event.client_id,
                    offset=offset,
                    epoch=event.epoch,
                    metadata=f"the log lost its tail; committed before: {before}" if lost_tail else entry.metadata,
                    reset_by=BY_THE_LOG if lost_tail else None,
                    mode=group.mode,
                    leader_epoch=UNSET if leader_epoch is None else leader_epoch,
                    ahead=sharing.ahead(group, entry.queue) or UNSET,
                )
            )
    if bad:
        detail = f"commit of {event.client_id!r} rejected: {'; '.join(bad)}"[: config.MAX_DETAIL]
        turn.emit(Rejected(rule="commit", detail=detail, group_id=group.group_id, client_id=event.client_id))


def reset(turn: Turn, event: Reset) -> Outcome:
    """Set committed offsets, back or forth, in an epoch of their own.

    A queue is assigned to its owner again, so that a commit in flight is too old. The next owner of a free queue starts
    at the offset. In a broadcasting group the offset is set for each known client.
    """
    sharing = offsets_of(turn.group)
    if not turn.accepts(event.request_id, "reset", _unknown(turn, event) or sharing.wrong_reset(turn, event)):
        return NOTHING
    begin_epoch(
        turn,
        "reset",
        len(event.offsets),
        f"{event.by!r} reset offsets, queues: {len(event.offsets)}{event.asked and '; requested: '}{event.asked}",
    )
    clients: set[str] = set()
    for entry in event.offsets:
        clients |= sharing.reset(turn, entry.queue, entry.offset, event.asked, event.by)
    return sending(clients)


def begin_epoch(turn: Turn, trigger: Trigger, queues: int, note: str) -> None:
    """Begin a new epoch without a new target: for offsets that are set, so that a commit in flight is too old."""
    group = turn.group
    group.epoch += 1
    if not group.members:  # an empty group is forgotten a week after the last change by an operator
        group.emptied_ms = turn.moment.now_ms
        group.remind(group.emptied_ms + turn.forget_ms)
    strategy, size = offsets_of(group).describe_reset(group, queues)
    group.note_rebalance(turn.moment.at_ms, trigger, strategy, moved=0)
    turn.emit(
        Rebalance(
            group_id=group.group_id,
            epoch=group.epoch,
            trigger=trigger,
            causes=[turn.cause],
            strategy=strategy,
            clients=len(group.members),
            queues=size,
            moved=0,
            unassigned=[],
            spread=spread(group.members, group.target),
            notes=assignment_limits.first_notes([note]),
        )
    )


def _unknown(turn: Turn, event: Reset) -> str:
    """Return the sentence that a queue of a reset does not exist; empty if all exist."""
    for entry in event.offsets:
        if turn.routes.lacks(entry.queue):
            count = len(turn.routes.queues(entry.queue.topic) or ())
            return f"there is no queue {entry.queue}; {entry.queue.topic} has {count} queues"
        if entry.queue.slices > 1 and (wrong := _wrong_slice(turn, entry.queue)):
            return wrong
    return ""


def _wrong_slice(turn: Turn, queue: Queue) -> str:
    """Return why a slice cannot be reset; empty if it can."""
    group = turn.group
    is_cut = offsets_of(group) is SHARING["clustering"]
    number = slicing.number_of(group, turn.routes, queue.topic) if is_cut else 1
    if queue.slices != number:
        there = f"is cut into {number} slices" if number > 1 else "is not cut into slices"
        return f"there is no queue {queue}; {queue.whole} {there}"
    if (other := slicing.owned_in_part(group, queue)) is not None:
        owner = group.owners[other]
        return f"the number of slices of {queue.whole} changes, and {owner} still has {other}; repeat this afterwards"
    return ""


def _wrong_of_left(turn: Turn, event: Commit, queue: Queue) -> str:
    """Return why a broadcasting client's commit for a queue that it drains is invalid; empty if it is valid."""
    own = turn.group.broadcast_offsets[event.client_id]
    if not broadcast_offsets.was_assigned(own, queue):
        return "never assigned to this client"
    since = own.reset_epochs.get(queue, -1)
    if since == broadcast_offsets.UNTIL_ASSIGNED:
        return "reset since it was assigned to this client"
    return f"reset in epoch {since}; the commit has epoch {event.epoch}" if event.epoch < since else ""


def _learnt(turn: Turn, event: Commit, sharing: Sharing) -> set[Queue]:
    """Return the queues whose commits count while the group only learns from a log."""
    return learning.counted(turn, event) if sharing.is_known(turn.group, event.client_id) else set()


def _wrong(turn: Turn, event: Commit, entry: CommittedOffset, sharing: Sharing, learnt: set[Queue] | None) -> str:
    """Return why a commit for a queue is invalid; empty if it is valid.

    `learnt`: the queues whose commits count while the group only learns from a log; else None.
    """
    group, queue = turn.group, entry.queue
    if doubtful_commits.is_too_far(turn, queue, entry.offset):
        return f"offset {entry.offset} is more than {turn.limits.max_growth} messages beyond the end of the queue"
    if learnt is not None:
        return "" if queue in learnt else "not in the last heartbeat of the instance, or reset since then"
    member = group.members.get(event.client_id)
    owner = sharing.committer(group, event.client_id, queue)
    if member is None or owner != event.client_id:
        return "not assigned to this client" if owner in (None, event.client_id) else f"owned by {owner!r}"
    if event.instance_id != member.instance_id:
        return f"owned by instance {member.instance_id!r}; the commit is from instance {event.instance_id!r}"
    if queue not in member.owned:  # the client may drain it: without owners, nothing is released
        return _wrong_of_left(turn, event, queue)
    if queue in member.revoking and member.revoking[queue].was_reset:
        return "reset while it is being revoked"
    assigned = member.owned[queue]
    return f"assigned in epoch {assigned}; the commit has epoch {event.epoch}" if event.epoch < assigned else ""
