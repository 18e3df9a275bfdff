"""Assignments: which clients are sent their assignment, and what it contains."""

from collections.abc import Collection, Iterable, Mapping

from msgspec import UNSET, structs

from wakeroll_model import assignment_limits, config, differing_filters, offsets_by_filter, rounds, slicing
from wakeroll_model.decisions import AssignedQueue, Assignment
from wakeroll_model.group import Group
from wakeroll_model.modes import sharing_of
from wakeroll_model.queue import Queue
from wakeroll_model.turn import Turn


def without_settings(group: Group) -> frozenset[str]:
    """Return the clients that were sent no assignment since the settings changed."""
    return frozenset(
        client_id for client_id, member in group.members.items() if member.sent_epoch <= group.configured_epoch
    )


def send(turn: Turn, client_ids: Collection[str], claims: Mapping[str, Collection[Queue]]) -> None:
    """Send each of these clients that is a member its assignment, the oldest member first.

    `claims`: client -> queues that it lists and did not own; its assignment revokes those that it still does not own.
    """
    if not client_ids:
        return
    group = turn.group
    sharing = sharing_of(group)
    waiting = _waiting(group, client_ids)
    clustering = group.mode == "clustering"
    for client_id in [name for name in group.members if name in client_ids]:
        member = group.members[client_id]
        revoke = sorted({*member.revoking, *assignment_limits.first_claims(claims.get(client_id, ()), member.owned)})
        member.sent_epoch = group.epoch
        turn.emit(
            Assignment(
                group_id=group.group_id,
                client_id=client_id,
                instance_id=member.instance_id,
                epoch=group.epoch,
                queues=_bounded(
                    (
                        AssignedQueue(queue, assigned_epoch, sharing.start(group, client_id, queue))
                        for queue, assigned_epoch in sorted(member.owned.items())
                        if queue not in member.revoking
                    ),
                    len(member.owned),
                ),
                revoke=revoke,
                state="unrevoked" if revoke else "unreleased" if waiting[client_id] else "stable",
                heartbeat_ms=group.settings.heartbeat_ms,
                session_timeout_ms=group.settings.session_timeout_ms,
                revoke_timeout_ms=group.settings.revoke_timeout_ms,
                mode=group.mode,
                round=rounds.sent_in(turn),
                others=(differing_filters.others(group, member) if group.filters and clustering else []) or UNSET,
                paused=UNSET if group.paused is None else True,
                slices=(slicing.told(group, turn.routes, member) if clustering else {}) or UNSET,
            )
        )


def _bounded(queues: Iterable[AssignedQueue], count: int) -> list[AssignedQueue]:
    """Return assigned queues with as much of the progress beyond their offsets as there is room for.

    Messages whose progress is left out are delivered again. Progress of former slices is included.
    """
    bounded, room = [], config.MAX_AHEAD_SENT_BYTES if count <= config.FEW_QUEUES else 0
    for assigned in queues:
        if assigned.start.ahead or assigned.start.done:
            room -= offsets_by_filter.bytes_of(assigned.start.ahead) + slicing.bytes_of(assigned.start.done)
            if room < 0:
                assigned = structs.replace(assigned, start=structs.replace(assigned.start, ahead=(), done=()))
        bounded.append(assigned)
    return bounded


def _waiting(group: Group, client_ids: Collection[str]) -> Mapping[str, int]:
    """Return, for each of these clients, how many queues of its target it does not own yet."""
    waiting = dict.fromkeys(client_ids, 0)
    for queue, client_id in group.target.items():
        if client_id in waiting and group.owners.get(queue) != client_id:
            waiting[client_id] += 1
    return waiting
