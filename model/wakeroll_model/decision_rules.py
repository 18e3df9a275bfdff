"""The rules of the decisions, each as an object that receives the decisions one by one, in the order of a shard (seq).

An object keeps only the present state (owners of queues, newest assignments, answers that are remembered), and no
earlier decisions. So its memory grows with the groups, and not with the length of their history.
`wakeroll_model.invariants` applies the same rules to whole lists.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from wakeroll_model import config
from wakeroll_model.coordinator_log.kafka_events import KIND
from wakeroll_model.decision_order import era_of
from wakeroll_model.decisions import (
    BY_THE_LOG,
    BY_THE_SLICES,
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
from wakeroll_model.offsets_by_filter import is_progress
from wakeroll_model.queue import Queue
from wakeroll_model.slices import overlapping


class Violation(NamedTuple):
    """A broken rule."""

    group_id: str | None
    """The group whose decisions break the rule; None if the rule is about all decisions of a shard."""
    says: str
    """The violation as a sentence."""


class DecisionRule(ABC):
    """A rule about decisions, which are passed to it in the order in which a shard made them."""

    def __init__(self, whole: bool = True) -> None:
        """Begin before the first decision.

        Args:
            whole: whether the decisions begin with the first of each shard. If they do not, because older ones were
                deleted or an era began quietly, the state before the first decision is assumed to be right.
        """
        self._whole = whole

    @abstractmethod
    def broken_by(self, decision: AnyDecision) -> Iterable[Violation]:
        """Process the next decision, and return the violations that it causes.

        The caller reads all of them before it passes another decision.
        """

    def broken_at_end(self) -> Iterable[Violation]:
        """Return the violations that remain after the last decision."""
        return ()


class NumberingRule(DecisionRule):
    """Each shard counts its decisions from 1, without gaps, and takes its records in order."""

    def __init__(self, whole: bool = True) -> None:
        """Begin before the first decision."""
        super().__init__(whole)
        self._last: dict[str, tuple[int, int]] = {}
        """Shard -> seq of its last decision, and offset of the record that caused it."""

    def broken_by(self, decision: AnyDecision) -> Sequence[Violation]:
        """Process the next decision: see `DecisionRule.broken_by`."""
        seq, offset = decision.seq, decision.cause.offset
        before = self._last.get(decision.shard)
        self._last[decision.shard] = seq, offset
        last_seq, last_offset = before or (0 if self._whole else seq - 1, offset)
        if seq == last_seq + 1 and offset >= last_offset:
            return ()
        found = []
        if seq != last_seq + 1:
            found.append(f"{_name(decision)} follows seq {last_seq}; expected seq {last_seq + 1}")
        if offset < last_offset:
            found.append(
                f"{_name(decision)} has the cause at offset {offset}; "
                f"expected at least {last_offset}, the offset of the previous decision"
            )
        return [Violation(None, says) for says in found]


class EpochRule(DecisionRule):
    """A group's epoch never falls, and every new target has an epoch of its own."""

    def __init__(self, whole: bool = True) -> None:
        """Begin before the first decision."""
        super().__init__(whole)
        self._newest: dict[str, int] = {}

    def broken_by(self, decision: AnyDecision) -> Sequence[Violation]:
        """Process the next decision: see `DecisionRule.broken_by`."""
        if not isinstance(decision, Assignment | Membership | Rebalance | Handover):
            return ()
        group_id, epoch = decision.group_id, self._newest.get(decision.group_id, 0)
        self._newest[group_id] = max(epoch, decision.epoch)
        says = f"{_name(decision)} of group {group_id} has epoch"
        if decision.epoch < epoch:
            return [Violation(group_id, f"{says} {decision.epoch}; expected at least {epoch}")]
        if isinstance(decision, Rebalance) and decision.epoch == epoch:
            return [Violation(group_id, f"{says} {epoch}; expected a higher one")]
        return ()


class _LastHandover(Struct):
    """The state of a queue after the hand-overs so far."""

    owner: str | None = None
    last_owner: str | None = None
    """The last owner; None if the queue never had one, or was forgotten with its group."""
    assigned_epoch: int = 0
    claimed: bool = False
    """Whether the owner may have claimed it after a loss of state: then it may count as assigned in epoch 0."""


class OwnershipRule(DecisionRule):
    """A queue has at most one owner: hand-overs form a chain, and assignments agree with it.

    - The `from` of a hand-over is the queue's owner, or its last one if it is free.
    - A hand-over changes something: a free queue is assigned, an owned one is freed or passed on. A free queue may be
      `cut`, once: other slices have its messages then, and if it exists again later, it begins without a former owner.
    - An assignment lists the queues that its client owns, with the epochs of their hand-overs; others are in `revoke`.
    - A reset assigns the queue to its owner again, in its own epoch.
    - No two slices that have messages in common have owners.
    - A commit comes from the owner, in the epoch of the queue's assignment or a later one; so does a commit that moves
      back.
    """

    def __init__(self, whole: bool = True) -> None:
        """Begin before the first decision."""
        super().__init__(whole)
        self._groups: dict[str, dict[Queue, _LastHandover]] = {}
        self._numbers: dict[tuple[str, Queue], set[int]] = {}
        """Group and whole queue -> the numbers of slices that the queue has had; only for queues that were cut."""
        self._eras: dict[str, str] = {}

    def broken_by(self, decision: AnyDecision) -> Iterator[Violation]:
        """Process the next decision: see `DecisionRule.broken_by`."""
        groups, whole = self._groups, self._whole
        if _begins_era(decision, self._eras):
            groups.pop(str(decision.group_id), None)
        if isinstance(decision, Handover):
            before = _LastHandover() if whole else _before(decision)
            held = groups.setdefault(decision.group_id, {}).setdefault(decision.queue, before)
            yield from _about(decision, f" of {decision.queue}", _wrong_in_chain(held, decision))
            yield from _about(decision, f" of {decision.queue}", self._wrong_beside(decision))
            owner = None if decision.how == "cut" else decision.to or decision.from_
            claimed = decision.how == "first"
            groups[decision.group_id][decision.queue] = _LastHandover(decision.to, owner, decision.epoch, claimed)
        elif isinstance(decision, Offset) and decision.reset_by == BY_THE_SLICES:
            return  # its owner, if there is one, starts there
        elif isinstance(decision, Offset) and decision.reset_by not in (None, BY_THE_LOG):
            queues = groups.setdefault(decision.group_id, {})
            if whole or decision.queue in queues:
                held = queues.setdefault(decision.queue, _LastHandover())
                held.assigned_epoch, held.claimed = decision.epoch, False
        elif isinstance(decision, Offset) and decision.mode == "clustering":
            if not decision.client_id and decision.shard.startswith(f"{KIND}-"):
                return  # Kafka records who commits only by the owner of the queue, and it has none
            last = groups.get(decision.group_id, {}).get(decision.queue, _LastHandover() if whole else None)
            if last is not None:
                yield from _about(decision, f" of {decision.queue}", _wrong_in_commit(last, decision))
        elif isinstance(decision, Assignment) and decision.mode == "clustering":
            wrongs = _wrong_in(decision, groups.get(decision.group_id, {}), whole)
            yield from _about(decision, f" to {decision.client_id}", wrongs)
        elif isinstance(decision, Membership) and decision.change == "forgotten":
            groups.pop(decision.group_id, None)

    def _wrong_beside(self, handover: Handover) -> Iterator[str]:
        """Yield the owners of other slices that have messages in common with a queue that is assigned."""
        queue = handover.queue
        place = handover.group_id, queue.whole
        if queue.slices > 1:
            self._numbers.setdefault(place, {1}).add(queue.slices)
        if handover.to is None or place not in self._numbers:
            return
        queues = self._groups[handover.group_id]
        for other in overlapping(queue, sorted(self._numbers[place])):
            if other in queues and (owner := queues[other].owner) is not None:
                yield f"{owner} owns {other}, which has messages in common with it"


class _LastAssignment(Struct):
    """The newest assignment of a live instance."""

    instance_id: str
    queues: frozenset[Queue]
    revoke: frozenset[Queue]


class RevocationRule(DecisionRule):
    """A live owner loses a queue only after a revocation, and assignments do not overlap.

    - A queue that was `released`, or freed by `timeout`, was in `revoke` of its owner's last assignment.
    - If a queue is freed as `unregistered`, `died` or `expired`, its owner left, died or expired by the same record.
    - After each record, no two live clients have the same queue in their newest assignments, nor overlapping slices.

    Decisions about Kafka's own groups are left out: Kafka's coordinator does not record what it sends to members.
    """

    def __init__(self, whole: bool = True) -> None:
        """Begin before the first decision."""
        super().__init__(whole)
        self._sent: dict[str, dict[str, _LastAssignment]] = {}
        self._owners: dict[str, dict[Queue, str | None]] = {}
        self._went: set[tuple[str, str, str]] = set()
        self._changed: dict[str, AnyDecision] = {}
        """Groups with new assignments by the present record -> one of their decisions, for the message."""
        self._cause: Cause | None = None
        self._eras: dict[str, str] = {}

    def broken_by(self, decision: AnyDecision) -> Iterator[Violation]:
        """Process the next decision: see `DecisionRule.broken_by`."""
        if decision.shard.startswith(f"{KIND}-"):
            return
        sent, owners = self._sent, self._owners
        if _begins_era(decision, self._eras):
            sent.pop(str(decision.group_id), None)
            owners.pop(str(decision.group_id), None)
            self._changed.pop(str(decision.group_id), None)
        if decision.cause != self._cause:
            yield from self.broken_at_end()
            self._changed, self._went, self._cause = {}, set(), decision.cause
        match decision:
            case Assignment(group_id=group_id, client_id=client_id, mode="clustering"):
                queues = frozenset(one.queue for one in decision.queues)
                newest = _LastAssignment(decision.instance_id, queues, frozenset(decision.revoke))
                sent.setdefault(group_id, {})[client_id] = newest
                self._changed[group_id] = decision
            case Fenced(group_id=group_id, client_id=client_id, reason=reason) if reason in _HOW_IT_WENT:
                died = (group_id, client_id, "died")
                self._went.add((group_id, client_id, _HOW_IT_WENT[reason]) if died not in self._went else died)
            case Membership(group_id=group_id, client_id=client_id, change="died" | "expired" as change):
                self._went.add((group_id, client_id, change))  # before its instance is fenced
            case Handover(group_id=group_id, queue=queue, how=how):
                owner = owners.setdefault(group_id, {}).get(queue)
                if owner is not None:
                    last = sent.get(group_id, {}).get(owner)
                    asked = queue in last.revoke if last is not None else not self._whole
                    wrongs = _wrong_in_leaving(owner, how, asked, (group_id, owner, how) in self._went)
                    yield from _about(decision, f" of {queue}", wrongs)
                owners[group_id][queue] = decision.to
            case Membership(group_id=group_id, change="forgotten"):
                owners.pop(group_id, None)
            case _:
                pass
        if isinstance(decision, Fenced):
            _forget_sent(decision, sent.get(decision.group_id, {}))

    def broken_at_end(self) -> Iterator[Violation]:
        """Yield queues in the newest assignments of two clients of a group."""
        for group_id, decision in self._changed.items():
            has: dict[Queue, str] = {}
            numbers: dict[Queue, set[int]] = {}
            for client_id, newest in self._sent[group_id].items():
                for queue in sorted(newest.queues):
                    if queue in has:
                        twice = f"{queue} is in the newest assignments of {has[queue]} and {client_id}"
                        yield Violation(group_id, f"{_name(decision)}: {twice}")
                    has[queue] = client_id
                    if queue.slices > 1:
                        numbers.setdefault(queue.whole, {1}).add(queue.slices)
            for queue, client_id in has.items():
                for other in overlapping(queue, sorted(numbers.get(queue.whole, ()))):
                    if has.get(other, client_id) != client_id:
                        twice = f"{queue} of {client_id} and {other} of {has[other]} have messages in common"
                        yield Violation(group_id, f"{_name(decision)}: {twice} in their newest assignments")


class OffsetRule(DecisionRule):
    """A committed offset only grows, except by a reset, after its deletion, and after its loss in a new era.

    It may stay the same if the progress beyond it grows for some filter.
    """

    def __init__(self, whole: bool = True, *, has_progress: bool = True) -> None:
        """Begin before the first decision.

        Args:
            whole: as for `DecisionRule`.
            has_progress: whether the decisions contain `ahead`; if not, each offset may stay the same.
        """
        super().__init__(whole)
        self._has_progress = has_progress
        self._progress: dict[str, dict[tuple[Queue, str], dict[Filter, Ahead]]] = {}
        """Group -> (queue, and client in a broadcasting group) -> filter -> the progress beyond the offset."""
        self._committed: dict[str, dict[tuple[Queue, str], int]] = {}
        self._eras: dict[str, str] = {}

    def broken_by(self, decision: AnyDecision) -> Sequence[Violation]:
        """Process the next decision: see `DecisionRule.broken_by`."""
        if _begins_era(decision, self._eras):
            self._forget(decision.group_id)
        if isinstance(decision, Membership) and decision.change == "forgotten":
            self._forget(decision.group_id)
        if not isinstance(decision, Offset):
            return ()
        offsets = self._committed.setdefault(decision.group_id, {})
        whose = decision.queue, decision.client_id if decision.mode == "broadcasting" else ""
        before, offsets[whose] = offsets.get(whose, -1), decision.offset
        if decision.deleted:
            del offsets[whose]
        grows = self._grows(decision, whose) or not self._has_progress
        if decision.offset > before or decision.reset_by is not None or (decision.offset == before and grows):
            return ()
        says = f"{_name(decision)} of {decision.queue} has offset {decision.offset}; expected more than {before}"
        return [Violation(decision.group_id, says)]

    def _grows(self, decision: Offset, whose: tuple[Queue, str]) -> bool:
        """Return whether the progress beyond the offset grows for some filter; remember it."""
        its = self._progress.get(decision.group_id)
        known = its.pop(whose, {}) if its else {}
        if not decision.ahead:
            return False
        beyond = {one.filter: one for one in decision.ahead}
        self._progress.setdefault(decision.group_id, {})[whose] = beyond
        return any(is_progress(one, known.get(its_filter)) for its_filter, one in beyond.items())

    def _forget(self, group_id: str | None) -> None:
        for known in (self._committed, self._progress):
            known.pop(str(group_id), None)


class AnswerRule(DecisionRule):
    """A pull is answered once while its instance is remembered; an `overflow` is not remembered."""

    def __init__(self, whole: bool = True) -> None:
        """Begin before the first decision."""
        super().__init__(whole)
        self._answered: dict[tuple[str, str, Queue, str], tuple[int, str]] = {}
        """Request -> time of its answer (epoch ms), and the name of that decision; ordered by time."""
        self._newest_ms = 0

    def broken_by(self, decision: AnyDecision) -> Sequence[Violation]:
        """Process the next decision: see `DecisionRule.broken_by`."""
        if not isinstance(decision, Wake):
            return ()
        request = decision.group_id, decision.client_id, decision.queue, decision.request_id
        before = self._answered.pop(request, None)
        if decision.reason != "overflow":
            self._answered[request] = decision.at_ms, _name(decision)
        self._forget(decision.at_ms)
        if before is None or decision.at_ms - before[0] >= config.REMEMBER_MS:
            return ()
        says = f"{_name(decision)} answers {decision.request_id} again, after {before[1]}"
        return [Violation(decision.group_id, says)]

    def _forget(self, at_ms: int) -> None:
        """Forget answers that no coordinator remembers any more, even if the clock of the log was set back since."""
        self._newest_ms = max(self._newest_ms, at_ms)
        while self._answered:
            oldest = next(iter(self._answered))
            if self._newest_ms - self._answered[oldest][0] < 2 * config.REMEMBER_MS:
                return
            del self._answered[oldest]


def _begins_era(decision: AnyDecision, eras: dict[str, str]) -> bool:
    """Return whether this is a group's first decision in a new era: its owners were forgotten."""
    if isinstance(decision, Wake) or decision.group_id is None:
        return False
    before = eras.get(decision.group_id, decision.shard)
    eras[decision.group_id] = decision.shard
    return era_of(before) != era_of(decision.shard)  # the group may move to another shard, in the same era


def _about(decision: AnyDecision, of: str, wrongs: Iterable[str]) -> Iterator[Violation]:
    return (Violation(decision.group_id, f"{_name(decision)}{of}: {wrong}") for wrong in wrongs)


def _before(handover: Handover) -> _LastHandover:
    """Return the state before the first known hand-over of a queue; earlier hand-overs were deleted."""
    is_freed = handover.to is None and handover.how != "cut"
    return _LastHandover(owner=handover.from_ if is_freed else None, last_owner=handover.from_)


def _wrong_in_chain(held: _LastHandover, handover: Handover) -> Iterator[str]:
    before = held.owner or held.last_owner
    if handover.from_ != before:
        yield f"`from` is {handover.from_}; expected {before}, the previous owner"
    if (handover.how == "first") != (handover.from_ is None):
        yield f"`how` is {handover.how}, but `from` is {handover.from_}"
    # Only a queue that was freed in between may go to the same client again, as to another instance of it.
    if handover.how == "cut":
        if held.owner is not None or handover.to is not None:
            yield f"`how` is cut, from owner {held.owner} to {handover.to}; expected a free queue that stays free"
    elif handover.to == held.owner and (handover.to is None or handover.how == "eager"):
        yield f"the owner stays {held.owner}; expected another one"


def _wrong_in(assignment: Assignment, queues: dict[Queue, _LastHandover], whole: bool) -> Iterator[str]:
    assigned = {one.queue: one.assigned_epoch for one in assignment.queues if whole or one.queue in queues}
    owned = {queue for queue, held in queues.items() if held.owner == assignment.client_id}
    for queue in sorted(assigned.keys() - owned):
        owner = queues[queue].owner if queue in queues else None
        yield f"it lists {queue}, but the owner is {owner}"
    for queue in sorted(owned - assigned.keys() - set(assignment.revoke)):
        yield f"it does not list {queue}, which the client owns"
    for queue in sorted(assigned.keys() & owned):
        if assigned[queue] != queues[queue].assigned_epoch and not (queues[queue].claimed and assigned[queue] == 0):
            yield f"`given` of {queue} is {assigned[queue]}; expected {queues[queue].assigned_epoch}"


def _wrong_in_commit(held: _LastHandover, offset: Offset) -> Iterator[str]:
    if held.owner != offset.client_id:
        yield f"the commit is from {offset.client_id}; expected {held.owner}, the owner"
    if offset.epoch < held.assigned_epoch and not held.claimed:
        yield f"the commit has epoch {offset.epoch}; expected at least {held.assigned_epoch}"


def _wrong_in_leaving(owner: str, how: How, asked: bool, went: bool) -> Iterator[str]:
    if how in ("released", "timeout") and not asked:
        yield f"`how` is {how}, but the queue was not revoked from {owner}"
    if how in ("died", *_HOW_IT_WENT.values()) and not went:
        yield f"`how` is {how}, but {owner} was not fenced for that reason"


def _forget_sent(fenced: Fenced, clients: dict[str, _LastAssignment]) -> None:
    """Forget the assignment of an instance that was fenced, unless a newer instance of its client has replaced it."""
    if fenced.client_id in clients and clients[fenced.client_id].instance_id == fenced.instance_id:
        del clients[fenced.client_id]


_HOW_IT_WENT = {"left": "unregistered", "expired": "expired", "deaf": "expired"}
"""Reason of a `Fenced` -> how the client's queues are freed."""


def _name(decision: AnyDecision) -> str:
    return f"decision {decision.shard}/{decision.seq}"
