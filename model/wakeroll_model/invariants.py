"""The invariants of the decisions; each function returns the broken rules as sentences.

Property tests, stories, simulation and quality checks use the same functions. Decisions are passed in the order in
which a shard made them (seq): log times may step back with a leader's clock, the order does not.

A new era of a shard begins without owners: queues that its clients had are claimed, not handed over.

`whole` means that the decisions begin with the first of each shard. If they do not, because older ones were deleted or
an era began quietly, the state before the first decision is assumed to be right.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from wakeroll_model import config
from wakeroll_model.decision_order import era_of
from wakeroll_model.decisions import (
    BY_THE_LOG,
    AnyDecision,
    Assignment,
    Cause,
    Fenced,
    Handover,
    How,
    Membership,
    Offset,
    Rebalance,
    Wake,
)
from wakeroll_model.events import Ahead, Filter
from wakeroll_model.group import Group, Member
from wakeroll_model.held_queue import HeldQueue
from wakeroll_model.offsets_by_filter import is_progress
from wakeroll_model.queue import Queue


def broken(decisions: Iterable[AnyDecision]) -> list[str]:
    """Return every rule that these decisions break; they must begin with the first decision of each shard."""
    all_of_them = list(decisions)
    rules = (broken_numbering, broken_epochs, broken_ownership, broken_telling, broken_offsets, broken_answers)
    return [sentence for rule in rules for sentence in rule(all_of_them)]


def broken_numbering(decisions: Iterable[AnyDecision], whole: bool = True) -> list[str]:
    """Check that each shard counts its decisions from 1, without gaps, and takes its records in order."""
    found: list[str] = []
    last: dict[str, AnyDecision] = {}
    for decision in decisions:
        before = last.get(decision.shard)
        expected = before.seq + 1 if before else 1 if whole else decision.seq
        if decision.seq != expected:
            found.append(f"{_name(decision)} follows seq {expected - 1}; expected seq {expected}")
        if before and decision.cause.offset < before.cause.offset:
            found.append(
                f"{_name(decision)} has the cause at offset {decision.cause.offset}; "
                f"expected at least {before.cause.offset}, the offset of the previous decision"
            )
        last[decision.shard] = decision
    return found


def broken_epochs(decisions: Iterable[AnyDecision]) -> list[str]:
    """Check that a group's epoch never falls, and that every new target has an epoch of its own."""
    found: list[str] = []
    newest: dict[str, int] = {}
    for decision in decisions:
        if not isinstance(decision, Assignment | Membership | Rebalance | Handover):
            continue
        epoch = newest.get(decision.group_id, 0)
        if decision.epoch < epoch:
            found.append(
                f"{_name(decision)} of group {decision.group_id} has epoch {decision.epoch}; expected at least {epoch}"
            )
        elif isinstance(decision, Rebalance) and decision.epoch == epoch:
            found.append(f"{_name(decision)} of group {decision.group_id} has epoch {epoch}; expected a higher one")
        newest[decision.group_id] = max(epoch, decision.epoch)
    return found


class _LastHandover(Struct):
    """The state of a queue after the hand-overs so far."""

    owner: str | None = None
    last_owner: str | None = None
    """The last owner; None if the queue never had one, or was forgotten with its group."""
    given: int = 0
    claimed: bool = False
    """Whether the owner may have claimed it after a loss of state: then it may count as assigned in epoch 0."""


def broken_ownership(decisions: Iterable[AnyDecision], whole: bool = True) -> list[str]:
    """Check that a queue has at most one owner: hand-overs form a chain, and assignments agree with it.

    - The `from` of a hand-over is the queue's owner, or its last one if it is free.
    - A hand-over changes something: a free queue is assigned, an owned one is freed or passed on.
    - An assignment lists the queues that its client owns, with the epochs of their hand-overs; others are in `revoke`.
    - A reset assigns the queue to its owner again, in its own epoch.
    - A commit is the owner's, made in the epoch of the queue's assignment or a later one; also one that goes back.
    """
    found: list[str] = []
    groups: dict[str, dict[Queue, _LastHandover]] = {}
    eras: dict[str, str] = {}
    for decision in decisions:
        if _begins_era(decision, eras):
            groups.pop(str(decision.group_id), None)
        if isinstance(decision, Handover):
            unheard = _LastHandover() if whole else _before(decision)
            held = groups.setdefault(decision.group_id, {}).setdefault(decision.queue, unheard)
            found += (f"{_name(decision)} of {decision.queue}: {wrong}" for wrong in _wrong_in_chain(held, decision))
            owner = decision.to or decision.from_
            claimed = decision.how == "first"
            groups[decision.group_id][decision.queue] = _LastHandover(decision.to, owner, decision.epoch, claimed)
        elif isinstance(decision, Offset) and decision.reset_by not in (None, BY_THE_LOG):
            queues = groups.setdefault(decision.group_id, {})
            if whole or decision.queue in queues:
                held = queues.setdefault(decision.queue, _LastHandover())
                held.given, held.claimed = decision.epoch, False
        elif isinstance(decision, Offset) and decision.mode == "clustering":
            told = groups.get(decision.group_id, {}).get(decision.queue, _LastHandover() if whole else None)
            if told is not None:
                wrongs = _wrong_in_commit(told, decision)
                found += (f"{_name(decision)} of {decision.queue}: {wrong}" for wrong in wrongs)
        elif isinstance(decision, Assignment) and decision.mode == "clustering":
            wrongs = _wrong_in(decision, groups.get(decision.group_id, {}), whole)
            found += (f"{_name(decision)} to {decision.client_id}: {wrong}" for wrong in wrongs)
        elif isinstance(decision, Membership) and decision.change == "forgotten":
            groups.pop(decision.group_id, None)
    return found


class _LastAssignment(Struct):
    """The newest assignment of a live instance."""

    instance_id: str
    queues: frozenset[Queue]
    revoke: frozenset[Queue]


def broken_telling(decisions: Iterable[AnyDecision], whole: bool = True) -> list[str]:
    """Check that a live owner loses a queue only after a revocation, and that assignments do not overlap.

    - A queue that was `released`, or freed by `timeout`, was in `revoke` of its owner's last assignment.
    - If a queue is freed as `unregistered` or `expired`, its owner left or expired by the same record.
    - After each record, no two live clients have the same queue in their newest assignments.
    """
    found: list[str] = []
    told: dict[str, dict[str, _LastAssignment]] = {}
    owners: dict[str, dict[Queue, str | None]] = {}
    went: set[tuple[str, str, str]] = set()
    changed: dict[str, AnyDecision] = {}
    cause: Cause | None = None
    eras: dict[str, str] = {}
    for decision in decisions:
        if _begins_era(decision, eras):
            for known in (told, owners, changed):
                known.pop(str(decision.group_id), None)
        if decision.cause != cause:
            found += _told_twice(changed, told)
            changed, went, cause = {}, set(), decision.cause
        match decision:
            case Assignment(group_id=group_id, client_id=client_id, mode="clustering"):
                queues = frozenset(one.queue for one in decision.queues)
                heard = _LastAssignment(decision.instance_id, queues, frozenset(decision.revoke))
                told.setdefault(group_id, {})[client_id] = heard
                changed[group_id] = decision
            case Fenced(group_id=group_id, client_id=client_id, reason=reason) if reason in _HOW_IT_WENT:
                went.add((group_id, client_id, _HOW_IT_WENT[reason]))
            case Handover(group_id=group_id, queue=queue, how=how):
                owner = owners.setdefault(group_id, {}).get(queue)
                if owner is not None:
                    last = told.get(group_id, {}).get(owner)
                    asked = queue in last.revoke if last is not None else not whole
                    wrongs = _wrong_in_leaving(owner, how, asked, (group_id, owner, how) in went)
                    found += (f"{_name(decision)} of {queue}: {wrong}" for wrong in wrongs)
                owners[group_id][queue] = decision.to
            case Membership(group_id=group_id, change="forgotten"):
                owners.pop(group_id, None)
            case _:
                pass
        if isinstance(decision, Fenced):
            _forget_told(decision, told.get(decision.group_id, {}))
    return [*found, *_told_twice(changed, told)]


def _wrong_in_leaving(owner: str, how: How, asked: bool, went: bool) -> Iterator[str]:
    if how in ("released", "timeout") and not asked:
        yield f"`how` is {how}, but the queue was not revoked from {owner}"
    if how in _HOW_IT_WENT.values() and not went:
        yield f"`how` is {how}, but {owner} was not fenced for that reason"


def _forget_told(fenced: Fenced, clients: dict[str, _LastAssignment]) -> None:
    """Forget the assignment of an instance that was fenced, unless a newer instance of its client has replaced it."""
    if fenced.client_id in clients and clients[fenced.client_id].instance_id == fenced.instance_id:
        del clients[fenced.client_id]


def broken_offsets(decisions: Iterable[AnyDecision]) -> list[str]:
    """Check that a committed offset only grows, except by a reset and after a new era that has lost it.

    It may stay if the progress beyond it grows for some filter.
    """
    found: list[str] = []
    progress: dict[tuple[str, Queue, str], dict[Filter, Ahead]] = {}
    committed: dict[str, dict[tuple[Queue, str], int]] = {}
    eras: dict[str, str] = {}
    for decision in decisions:
        if _begins_era(decision, eras):
            committed.pop(str(decision.group_id), None)
        if isinstance(decision, Offset):
            offsets = committed.setdefault(decision.group_id, {})
            whose = decision.queue, decision.client_id if decision.mode == "broadcasting" else ""
            before = offsets.get(whose, -1)
            beyond = {one.filter: one for one in decision.ahead or ()}
            known = progress.get((decision.group_id, *whose), {})
            grows = any(is_progress(one, known.get(its_filter)) for its_filter, one in beyond.items())
            stays = decision.offset == before and grows
            progress[decision.group_id, *whose] = beyond
            if decision.offset <= before and decision.reset_by is None and not stays:
                found.append(
                    f"{_name(decision)} of {decision.queue} has offset {decision.offset}; expected more than {before}"
                )
            offsets[whose] = decision.offset
        elif isinstance(decision, Membership) and decision.change == "forgotten":
            committed.pop(decision.group_id, None)
    return found


def broken_answers(decisions: Iterable[AnyDecision]) -> list[str]:
    """Check that a pull is answered once while its instance is remembered; an `overflow` is not remembered."""
    found: list[str] = []
    answered: dict[tuple[str, str, Queue, str], Wake] = {}
    for decision in decisions:
        if isinstance(decision, Wake):
            request = decision.group_id, decision.client_id, decision.queue, decision.request_id
            before = answered.get(request)
            if before and before.reason != "overflow" and decision.at_ms - before.at_ms < config.REMEMBER_MS:
                found.append(f"{_name(decision)} answers {decision.request_id} again, after {_name(before)}")
            answered[request] = decision
    return found


def broken_queue(queue: HeldQueue) -> list[str]:
    """Return the rules that the state of a queue breaks: its parts and their indexes must agree."""
    found: list[str] = []
    holds, index = queue.holds, queue.waiting
    clients = [(hold.group_id, hold.client_id) for hold in holds.values()]
    if len(set(clients)) < len(clients):
        found.append("a client has two held pulls")
    if sorted(holds) != list(holds) or any(number >= queue.pulls for number in holds):
        found.append(f"the held pulls {list(holds)} are not in order, or not below {queue.pulls}")
    if {hold.filter_number for hold in holds.values()} != queue.pull_filters.keys():
        found.append(f"the expressions {sorted(queue.pull_filters)} are not those of the held pulls")
    if index.filters != sum(pull_filter.cost for pull_filter in set(queue.pull_filters.values())):
        found.append(
            f"the index counts {index.filters} characters in the expressions {list(queue.pull_filters.values())}"
        )
    if sorted(index.numbers()) != list(holds):
        found.append(f"the index has the pulls {sorted(index.numbers())}; expected {list(holds)}")
    deadlines = [hold.due_ms for hold in holds.values()]
    deadlines += (answered.at_ms + config.REMEMBER_MS for answered in queue.answered.values())
    if queue.due_ms > min(deadlines, default=config.NEVER_MS):
        found.append(f"the next deadline is {queue.due_ms}; expected at most {min(deadlines)}")
    return found


def broken_state(group: Group) -> list[str]:
    """Return the rules that a group's state breaks: its parts must agree."""
    found: list[str] = []
    owned = {
        (queue, client_id)
        for client_id, member in group.members.items()
        for queue in member.owned
        if member.mode == "clustering"
    }
    found += (f"the lock on {queue} belongs to a client that does not own the queue" for queue in _stray_locks(group))
    found += (
        f"the mode of {name} is {member.mode}; expected {group.mode}, the mode of the group"
        for name, member in _of_another_mode(group)
    )
    found += (
        f"the owner of {queue} is {who} in the map or in the member, but not in both"
        for queue, who in sorted(owned ^ group.owners.items())
    )
    found += (f"{queue} is free and has an owner" for queue in sorted(group.owners.keys() & group.freed.keys()))
    for client_id, member in group.members.items():
        for queue, given in sorted(member.owned.items()):
            if not 0 <= given <= group.epoch:
                found.append(f"{queue} was assigned in epoch {given}; expected at most {group.epoch}")
        for queue, revocation in sorted(member.revoking.items()):
            if queue not in member.owned:
                found.append(f"{queue} is revoked from {client_id}, which does not own it")
            elif not member.owned[queue] < revocation.epoch <= group.epoch:
                given = member.owned[queue]
                found.append(
                    f"{queue} is revoked in epoch {revocation.epoch}; expected one above {given}, the epoch of its "
                    f"assignment, and at most {group.epoch}"
                )
        if member.sent_epoch > group.epoch:
            found.append(f"epoch {member.sent_epoch} was sent to {client_id}; expected at most {group.epoch}")
        if f"{client_id} {member.instance_id}" in group.ended:
            found.append(f"the live instance {member.instance_id} of {client_id} has ended")
    added = sorted(group.added.keys() & group.offsets.keys())
    found += (f"{queue} starts at first and has a committed offset" for queue in added)
    if group.members and group.emptied_ms >= 0:
        found.append("the group has members and is marked as empty")
    return found


def _begins_era(decision: AnyDecision, eras: dict[str, str]) -> bool:
    """Return whether this is a group's first decision in a new era: its owners were forgotten."""
    if isinstance(decision, Wake) or decision.group_id is None:
        return False
    before = eras.get(decision.group_id, decision.shard)
    eras[decision.group_id] = decision.shard
    return era_of(before) != era_of(decision.shard)  # the group may move to another shard, in the same era


def _stray_locks(group: Group) -> list[Queue]:
    return sorted(queue for queue, held in group.locks.items() if group.owners.get(queue) != held.client_id)


def _of_another_mode(group: Group) -> list[tuple[str, Member]]:
    return [(name, member) for name, member in group.members.items() if member.mode != group.mode]


def _before(handover: Handover) -> _LastHandover:
    """Return the state that the first known hand-over of a queue agrees with; the ones before it were deleted."""
    return _LastHandover(owner=handover.from_ if handover.to is None else None, last_owner=handover.from_)


def _wrong_in_chain(held: _LastHandover, handover: Handover) -> Iterator[str]:
    before = held.owner or held.last_owner
    if handover.from_ != before:
        yield f"`from` is {handover.from_}; expected {before}, the previous owner"
    if (handover.how == "first") != (handover.from_ is None):
        yield f"`how` is {handover.how}, but `from` is {handover.from_}"
    # Only a queue that was freed in between may go to the same client again, as to another instance of it.
    if handover.to == held.owner and (handover.to is None or handover.how == "eager"):
        yield f"the owner stays {held.owner}; expected another one"


def _wrong_in(assignment: Assignment, queues: dict[Queue, _LastHandover], whole: bool) -> Iterator[str]:
    given = {one.queue: one.given for one in assignment.queues if whole or one.queue in queues}
    owned = {queue for queue, held in queues.items() if held.owner == assignment.client_id}
    for queue in sorted(given.keys() - owned):
        owner = queues[queue].owner if queue in queues else None
        yield f"it lists {queue}, but the owner is {owner}"
    for queue in sorted(owned - given.keys() - set(assignment.revoke)):
        yield f"it does not list {queue}, which the client owns"
    for queue in sorted(given.keys() & owned):
        if given[queue] != queues[queue].given and not (queues[queue].claimed and given[queue] == 0):
            yield f"`given` of {queue} is {given[queue]}; expected {queues[queue].given}"


def _wrong_in_commit(held: _LastHandover, offset: Offset) -> Iterator[str]:
    if held.owner != offset.client_id:
        yield f"the commit is from {offset.client_id}; expected {held.owner}, the owner"
    if offset.epoch < held.given and not held.claimed:
        yield f"the commit has epoch {offset.epoch}; expected at least {held.given}"


_HOW_IT_WENT = {"left": "unregistered", "expired": "expired", "deaf": "expired"}
"""Reason of a `Fenced` -> how the client's queues are freed."""


def _told_twice(changed: dict[str, AnyDecision], told: dict[str, dict[str, _LastAssignment]]) -> Iterator[str]:
    """Yield queues in the newest assignments of two clients; `changed`: groups, each with a decision to name."""
    for group_id, decision in changed.items():
        has: dict[Queue, str] = {}
        for client_id, heard in told[group_id].items():
            for queue in sorted(heard.queues):
                if queue in has:
                    yield f"{_name(decision)}: {queue} is in the newest assignments of {has[queue]} and {client_id}"
                has[queue] = client_id


def _name(decision: AnyDecision) -> str:
    return f"decision {decision.shard}/{decision.seq}"
