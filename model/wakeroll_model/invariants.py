"""The invariants of the decisions and of the state; each function returns the broken rules as sentences.

Property tests, stories and simulation use them; quality checks pass decisions one by one to the same rules, those of
`wakeroll_model.decision_rules`. Decisions are passed in the order in which a shard made them (seq): log times may step
back with a leader's clock, but this order is reliable.

A new era of a shard begins without owners: queues that its clients had are claimed, not handed over.

`whole` means that the decisions begin with the first of each shard. If they do not, because older ones were deleted or
an era began quietly, the state before the first decision is assumed to be right.
"""

from collections.abc import Iterable

from wakeroll_model import config, slicing
from wakeroll_model.decision_rules import (
    AnswerRule,
    DecisionRule,
    EpochRule,
    NumberingRule,
    OffsetRule,
    OwnershipRule,
    RevocationRule,
)
from wakeroll_model.decisions import AnyDecision
from wakeroll_model.group import Group, Member
from wakeroll_model.held_queue import HeldQueue
from wakeroll_model.queue import Queue


def broken(decisions: Iterable[AnyDecision]) -> list[str]:
    """Return every rule that these decisions break; they must begin with the first decision of each shard."""
    all_of_them = list(decisions)
    rules = (broken_numbering, broken_epochs, broken_ownership, broken_revocations, broken_offsets, broken_answers)
    return [sentence for rule in rules for sentence in rule(all_of_them)]


def broken_numbering(decisions: Iterable[AnyDecision], whole: bool = True) -> list[str]:
    """Check that each shard counts its decisions from 1, without gaps, and takes its records in order."""
    return _broken(NumberingRule(whole), decisions)


def broken_epochs(decisions: Iterable[AnyDecision]) -> list[str]:
    """Check that a group's epoch never falls, and that every new target has an epoch of its own."""
    return _broken(EpochRule(), decisions)


def broken_ownership(decisions: Iterable[AnyDecision], whole: bool = True) -> list[str]:
    """Check that a queue has at most one owner: see `OwnershipRule`."""
    return _broken(OwnershipRule(whole), decisions)


def broken_revocations(decisions: Iterable[AnyDecision], whole: bool = True) -> list[str]:
    """Check that a live owner loses a queue only after a revocation: see `RevocationRule`."""
    return _broken(RevocationRule(whole), decisions)


def broken_offsets(decisions: Iterable[AnyDecision]) -> list[str]:
    """Check that a committed offset only grows, except by a reset and after a new era: see `OffsetRule`."""
    return _broken(OffsetRule(), decisions)


def broken_answers(decisions: Iterable[AnyDecision]) -> list[str]:
    """Check that a pull is answered once while its instance is remembered; an `overflow` is not remembered."""
    return _broken(AnswerRule(), decisions)


def _broken(rule: DecisionRule, decisions: Iterable[AnyDecision]) -> list[str]:
    found = [one.says for decision in decisions for one in rule.broken_by(decision)]
    return [*found, *(one.says for one in rule.broken_at_end())]


def broken_queue(queue: HeldQueue) -> list[str]:
    """Return the rules that the state of a queue breaks: its parts and their indexes must be consistent."""
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
    """Return the rules that a group's state breaks: its parts must be consistent."""
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
    for what, queues in (("owners", group.owners), ("committed offsets", group.offsets)):
        found += (
            f"{queue} and {other} have {what}, and messages in common"
            for queue in sorted(queues)
            for other in slicing.overlapping(group, queue)
            if other in queues and queue < other
        )
    for client_id, member in group.members.items():
        for queue, since in sorted(member.owned.items()):
            if not 0 <= since <= group.epoch:
                found.append(f"{queue} was assigned in epoch {since}; expected at most {group.epoch}")
        for queue, revocation in sorted(member.revoking.items()):
            if queue not in member.owned:
                found.append(f"{queue} is revoked from {client_id}, which does not own it")
            elif not member.owned[queue] < revocation.epoch <= group.epoch:
                since = member.owned[queue]
                found.append(
                    f"{queue} is revoked in epoch {revocation.epoch}; expected one above {since}, the epoch of its "
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


def _stray_locks(group: Group) -> list[Queue]:
    return sorted(queue for queue, held in group.locks.items() if group.owners.get(queue) != held.client_id)


def _of_another_mode(group: Group) -> list[tuple[str, Member]]:
    return [(name, member) for name, member in group.members.items() if member.mode != group.mode]
