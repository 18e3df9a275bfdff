"""What the invariants must remember of the decisions so far, so that each step can be judged by itself.

`wakeroll_model.invariants` reads lists of decisions.  Here the list before a step is replaced by its shortest one with
the same meaning: of each queue the last hand-over, of each queue the last offset, of each client the last assignment.
"""

from collections.abc import Hashable, Iterable
from itertools import pairwise
from typing import NamedTuple

import msgspec

from tests.support.explorer.clockwork import NOW_MS
from wakeroll_model import invariants
from wakeroll_model.decisions import AnyDecision, Assignment, Cause, Fenced, Handover, Membership, Offset
from wakeroll_model.events import AnyEvent, Kick
from wakeroll_model.group import Group
from wakeroll_model.queue import Queue

_encode = msgspec.msgpack.Encoder().encode
_RULES = (
    invariants.broken_epochs,
    lambda decisions: invariants.broken_ownership(decisions, whole=False),
    lambda decisions: invariants.broken_revocations(decisions, whole=False),
    invariants.broken_offsets,
)


class Memory(NamedTuple):
    """The decisions so far, as far as they matter."""

    past: tuple[AnyDecision, ...] = ()
    ended: tuple[str, ...] = ()
    """Lives that the coordinator has ended, sorted."""
    late: tuple[tuple[str, Queue], ...] = ()
    """Lives that lost a queue by a timeout, sorted: they may still be draining it."""
    out: tuple[tuple[str, str, int], ...] = ()
    """Clients that are kept out, sorted; each with the life that was kicked, and the end (ms of the shard's clock)."""

    @property
    def key(self) -> Hashable:
        """Equal memories, equal keys."""
        return tuple(map(_encode, self.past)), self.ended, self.late, self.out

    def later(self, by_ms: int) -> "Memory":
        """Return the memory with times that are relative to a moment so much later (ms)."""
        return self._replace(out=tuple((*who, until_ms - by_ms) for *who, until_ms in self.out if until_ms > by_ms))

    def after(
        self, event: AnyEvent, decisions: list[AnyDecision], group: Group | None, now_ms: int
    ) -> tuple["Memory", list[str]]:
        """Return the memory after the decisions of one record, and the rules that they break.

        Args:
            event: the event of the record.
            decisions: the decisions.
            group: the group after them.
            now_ms: the shard's clock after them.
        """
        if not decisions:
            return self, []
        broken = self._broken(decisions)
        out = self._out(event, decisions)
        ended, late = set(self.ended), set(self.late)
        instances = {one.client_id: one.instance_id for one in self.past if isinstance(one, Assignment)}
        for decision in decisions:
            if isinstance(decision, Fenced) and decision.reason != "refused":
                ended.add(decision.instance_id)
                late = {(life, queue) for life, queue in late if life != decision.instance_id}
            elif isinstance(decision, Handover) and decision.how == "timeout" and decision.from_ in instances:
                late.add((instances[decision.from_], decision.queue))
        past = _shortest([*self.past, *decisions])
        members = group.members if group else {}
        for client_id, member in members.items():
            if member.instance_id in ended:
                broken.append(f"{client_id} is a member as {member.instance_id}, a life that ended")
        for client_id, life, until_ms in out:
            if until_ms > now_ms and client_id in members and members[client_id].instance_id != life:
                broken.append(f"{client_id} is a member as {members[client_id].instance_id}, but {life} was kicked")
        return Memory(past, tuple(sorted(ended)), tuple(sorted(late)), out), broken

    def after_loss(self) -> "Memory":
        """Return what a coordinator still must know that goes on from this one's snapshot: who has ended."""
        return Memory(ended=self.ended)

    def _out(self, event: AnyEvent, decisions: list[AnyDecision]) -> tuple[tuple[str, str, int], ...]:
        """Return who is kept out after an event: a kick counts if the coordinator has accepted it."""
        accepted = [one for one in decisions if isinstance(one, Membership) and one.change in ("leaving", "readmitted")]
        if not isinstance(event, Kick) or not accepted:
            return self.out
        out = {client_id: (life, until_ms) for client_id, life, until_ms in self.out if client_id != event.client_id}
        if event.keep_out_ms and not event.readmit:
            out[event.client_id] = accepted[0].instance_id, NOW_MS + event.keep_out_ms
        return tuple((client_id, *more) for client_id, more in sorted(out.items()))

    def _broken(self, decisions: list[AnyDecision]) -> list[str]:
        """Return the rules broken by these decisions and not by the past alone, which is shortened."""
        found: list[str] = []
        if any(after.seq != before.seq + 1 for before, after in pairwise(decisions)):
            found.append("decisions are not numbered one by one")
        past = [msgspec.structs.replace(one, cause=Cause("", 0, -1)) for one in self.past]
        for rule in _RULES:
            before = rule(past)
            found += [sentence for sentence in rule([*past, *decisions]) if sentence not in before]
        return found


def _shortest(decisions: Iterable[AnyDecision]) -> tuple[AnyDecision, ...]:
    """Leave out what a later decision makes meaningless, and numbers and times."""
    kept: dict[tuple[str, object], AnyDecision] = {}
    for decision in decisions:
        match decision:
            case Handover(queue=queue):
                key: tuple[str, object] = ("Handover", queue)
            case Offset(queue=queue):
                key = "Offset" if decision.reset_by is None else "Reset", queue
            case Assignment(client_id=client_id):
                key = "Assignment", client_id
            case Fenced(client_id=client_id) if decision.reason != "refused":
                kept.pop(("Assignment", client_id), None)
                continue
            case Membership(change="forgotten"):
                kept.clear()
                continue
            case _:
                continue
        kept.pop(key, None)
        kept[key] = decision
    return tuple(map(_plain, kept.values()))


def _plain(decision: AnyDecision) -> AnyDecision:
    plain = msgspec.structs.replace(decision, seq=0, at_ms=0, cause=Cause("", 0, 0))
    if isinstance(plain, Handover):
        plain.revoked_ms = plain.released_ms = plain.assigned_ms = None
    return plain
