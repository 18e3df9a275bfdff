"""What the checkers judge by: the log of a world, what was decided about each record, and what was seen."""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import msgspec

from tests.support.simulation.frame.simulated_coordinator import Coordinator, Era
from tests.support.simulation.groups.group_world import World
from tests.support.simulation.groups.known_strategies import CARELESS
from tests.support.simulation.groups.seen import Handling
from wakeroll_model import slices
from wakeroll_model.config import LONGEST_STEP_MS
from wakeroll_model.decisions import (
    BY_THE_SLICES,
    WITHOUT_TARGET,
    AnyDecision,
    Assignment,
    Fenced,
    Handover,
    Membership,
    Offset,
    Rebalance,
)
from wakeroll_model.events import Commit, GroupEvent, Heartbeat, Reset, Tick, Unregister
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_model.shard_clock import ShardClock
from wakeroll_model.shard_state import ShardState

ERA = "era"
"""The coordinator lost its state."""
AnyEvent = TypeVar("AnyEvent", bound=GroupEvent)
_state_of = msgspec.msgpack.Decoder(ShardState).decode


@dataclass(frozen=True, slots=True)
class Page:
    """One record of a control partition, and what was decided about it."""

    partition: int
    offset: int
    at_ms: int
    """World time when it was appended."""
    clock_ms: int
    """The shard's clock."""
    may_expire: bool
    event: GroupEvent | None
    """None: it is no event."""
    decisions: list[AnyDecision]

    @property
    def is_tick(self) -> bool:
        """Whether deadlines are judged here."""
        return isinstance(self.event, Tick)


@dataclass
class Book:
    """What one era of a control partition decided, from its first record to its last."""

    era: Era
    pages: list[Page]
    undecided: list[Page]
    """What came after these, until the next era began to decide: the state was lost before."""
    before: list[GroupEvent]
    """What it had learnt from its log, or with its state, when it began to decide."""

    ended: set[tuple[str, str]]
    """Client and life of those that had ended before: they may be remembered."""

    @cached_property
    def heard(self) -> set[tuple[str, str]]:
        """Client and life of those that had been heard before, and may have ended in silence."""
        return {(one.client_id, one.instance_id) for one in self.known(Heartbeat)}

    def known(self, kind: type[AnyEvent]) -> Iterator[AnyEvent]:
        """Yield what it had learnt of one kind."""
        return (event for event in self.before if isinstance(event, kind))


class Evidence:
    """A world that has ended."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.plan = world.plan
        self.seen = world.seen

    @cached_property
    def books(self) -> list[Book]:
        """Each era of each control partition; a group stands in one partition only."""
        books = []
        for coordinator in self.world.coordinators:
            appended = self.world.broker.appended[coordinator.partition]
            ended = set[tuple[str, str]]()
            for era in coordinator.eras:
                before = [event for offset, (_, event) in enumerate(appended[: era.quiet_until]) if era.knows(offset)]
                pages = list(self._pages_of(coordinator, era))
                decided = [page for page in pages if page.offset < era.ended_at]
                undecided = pages[len(decided) :]
                known = [event for event in before if event is not None]
                over = {(one.client_id, one.instance_id) for one in known if isinstance(one, Unregister)}
                books.append(Book(era, decided, undecided, known, ended | over))
                for decision in coordinator.decided(era):
                    if isinstance(decision, Fenced):
                        ended.add((decision.client_id, decision.instance_id))
        return books

    @cached_property
    def last_books(self) -> list[Book]:
        """Of each control partition, what was decided in the last era."""
        return [book for book in self.books if book.era in [one.eras[-1] for one in self.world.coordinators]]

    @property
    def pages(self) -> Iterator[Page]:
        """All of them."""
        return (page for book in self.books for page in (*book.pages, *book.undecided))

    def _pages_of(self, coordinator: Coordinator, era: Era) -> Iterator[Page]:
        """Yield the pages that an era decided about; its clock has run through those before, as far as it has them."""
        partition = coordinator.partition
        appended = self.world.broker.appended[partition]
        decided: dict[int, list[AnyDecision]] = defaultdict(list)
        for decision in coordinator.decided(era):
            decided[decision.cause.offset].append(decision)
        clock = ShardClock() if era.body is None else _state_of(era.body).clock
        for record in coordinator.log[era.position : coordinator.end_of(era)]:
            at_ms, event = appended[record.offset]
            moment = clock.read(record.timestamp_ms, event if isinstance(event, Tick) else None)
            if record.offset >= era.quiet_until:
                now = moment.now_ms, moment.may_expire
                yield Page(partition, record.offset, at_ms, *now, event, decided.get(record.offset, []))

    @cached_property
    def decisions(self) -> list[AnyDecision]:
        """All of them; those of a group in order."""
        return [decision for coordinator in self.world.coordinators for decision in coordinator.decisions]

    def at_ms(self, decision: AnyDecision) -> int:
        """Return when, in world time, the record was appended that a decision follows from."""
        return self.world.broker.appended_ms(decision.cause)

    @cached_property
    def beats(self) -> dict[tuple[str, str], list[Page]]:
        """(group_id, instance_id) -> the pages of its heartbeats."""
        beats: dict[tuple[str, str], list[Page]] = defaultdict(list)
        for page in self.pages:
            if isinstance(page.event, Heartbeat):
                beats[page.event.group_id, page.event.instance_id].append(page)
        return beats

    @cached_property
    def handlings(self) -> dict[tuple[str, Queue], list[Handling]]:
        """(scope, queue) -> the messages that were handed out of it."""
        handlings: dict[tuple[str, Queue], list[Handling]] = {}
        for handling in self.seen.handlings:
            handlings.setdefault((handling.scope, handling.queue), []).append(handling)
        return handlings

    @cached_property
    def chains(self) -> "dict[tuple[str, Queue], Chain]":
        """(group_id, queue) -> whose it was, one after the other."""
        chains: dict[tuple[str, Queue], Chain] = defaultdict(Chain)
        lives: dict[tuple[str, str | None], str] = {}
        shards: dict[str, str] = {}
        for decision in self.decisions:
            if not isinstance(decision, Membership | Handover | Offset):
                continue
            group_id = decision.group_id
            if shards.setdefault(group_id, decision.shard) != decision.shard:
                shards[group_id] = decision.shard
                for (name, _), chain in chains.items():
                    if name == group_id:
                        chain.add(Link("", 0, ERA, decision.seq, decision.cause.offset))
            if isinstance(decision, Membership) and decision.change == "joined":
                lives[group_id, decision.client_id] = decision.instance_id
            elif isinstance(decision, Handover):
                life = lives.get((group_id, decision.to), "")
                link = Link(life, decision.epoch, decision.how, decision.seq, decision.cause.offset)
                for cell in self.plan.cells(decision.queue):
                    chains[group_id, cell].add(link)
            elif isinstance(decision, Offset) and decision.reset_by is not None and decision.mode == "clustering":
                for cell in self.plan.cells(decision.queue) if decision.reset_by != BY_THE_SLICES else ():
                    chains[group_id, cell].reset(decision)
        return chains

    def is_twisted(self, scope: str, queue: Queue) -> bool:
        """Whether a queue's offsets do not tell which messages are meant: it was made again, truncated or lied of."""
        is_new = any(queue.topic == topic for _, topic in self.seen.made_again)
        return is_new or queue.whole in self.seen.truncated or self.is_far(scope, queue)

    def is_far(self, scope: str, queue: Queue) -> bool:
        """Whether somebody has committed a queue, or another slice with its messages, beyond its end."""
        return any((scope, one) in self.seen.far_commits for one in (queue, *slices.overlapping(queue, (1, 2, 4))))

    def has_cell(self, queues: Collection[Queue], queue: Queue) -> bool:
        """Whether some of these queues has the messages of a queue, or of a cell of one."""
        return any(one == queue or queue in self.plan.cells(one) for one in queues)

    def is_forged_end(self, scope: str, queue: Queue) -> bool:
        """Whether somebody has committed a queue that lost its tail in the name of its owner."""
        return queue.whole in self.seen.truncated and self.is_far(scope, queue)

    def has_eras(self, scope: str) -> bool:
        """Whether the coordinator of a group has lost its state."""
        partition = partition_of(scope.partition("/")[0].encode(), len(self.world.coordinators))
        return len(self.world.coordinators[partition].eras) > 1

    def was_eager(self, scope: str) -> bool:
        """Whether the hand-overs of a group were ever eager."""
        return self.plan.eager or scope.partition("/")[0] in self.seen.eager

    @cached_property
    def offsets(self) -> dict[tuple[str, Queue], list[Offset]]:
        """(scope, queue) -> what was put on record of it, commits and resets."""
        offsets: dict[tuple[str, Queue], list[Offset]] = defaultdict(list)
        for decision in self.decisions:
            if isinstance(decision, Offset):
                if decision.mode == "broadcasting" and not self.plan.broadcasts(decision.group_id):
                    continue  # a stranger's, who was alone in the group
                scope = self.plan.scope(decision.group_id, decision.client_id)
                for cell in self.plan.cells(decision.queue) if decision.reset_by != BY_THE_SLICES else ():
                    before = offsets[scope, cell][-1] if offsets[scope, cell] else None
                    is_same = before is not None and not before.deleted and before.shard == decision.shard
                    if self.plan.slices and is_same and decision.reset_by is None and decision.offset <= before.offset:
                        continue  # a former slice has done more of this cell
                    offsets[scope, cell].append(decision)
        return offsets

    def of_cell(self, queue: Queue, from_: int, to: int) -> set[int]:
        """Return the offsets in a range that belong to a queue, or to a cell of one."""
        return {offset for offset in range(from_, to) if self.plan.cell_of(queue, offset) == queue}

    @cached_property
    def said_offsets(self) -> dict[tuple[str, Queue], set[int]]:
        """(scope, queue) -> what was ever put on record of it, or wanted to be: a new era may have learnt that."""
        said: dict[tuple[str, Queue], set[int]] = defaultdict(set)
        for key, offsets in self.offsets.items():
            said[key] |= {one.offset for one in offsets}
        for page in self.pages:
            if isinstance(page.event, Commit | Reset):
                client_ids = [page.event.client_id] if isinstance(page.event, Commit) else ["c1", "c2", "c3", "c4"]
                for scope in {self.plan.scope(page.event.group_id, client_id) for client_id in client_ids}:
                    for entry in page.event.offsets:
                        for cell in self.plan.cells(entry.queue):
                            said[scope, cell].add(entry.offset)
        return said

    @cached_property
    def told(self) -> dict[str, list[Assignment]]:
        """Life -> all assignments that were made for it, in order."""
        told: dict[str, list[Assignment]] = defaultdict(list)
        for decision in self.decisions:
            if isinstance(decision, Assignment):
                told[decision.instance_id].append(decision)
        return told

    @cached_property
    def left_out(self) -> set[tuple[str, Queue]]:
        """(group_id, queue) of what nobody has in the end: CARELESS leaves a topic's last queue out.

        It says so, but not when a route takes effect that changes no target.
        """
        last: dict[str, Rebalance] = {}
        for decision in self.decisions:
            if isinstance(decision, Rebalance) and decision.trigger not in WITHOUT_TARGET:
                last[decision.group_id] = decision
        careless = [(group_id, target) for group_id, target in last.items() if target.strategy == CARELESS]
        said = {(group_id, one.queue) for group_id, target in careless for one in target.unassigned if one.reason}
        ends = {queue.topic: queue for queue in sorted(self.world.ends)}
        said |= {(group_id, queue) for group_id, _ in careless for queue in ends.values()}
        return said | {(group_id, cell) for group_id, queue in said for cell in self.plan.cells(queue)}

    @cached_property
    def left_well(self) -> set[str]:
        """The lives that ended their work, committed and unregistered, and whose `unregister` was heard."""
        left = {one.instance_id for one in self.decisions if isinstance(one, Membership) and one.change == "left"}
        return left & self.seen.left_well

    def dark_ms(self, from_ms: int, to_ms: int) -> int:
        """Return for how long there were no ticks in this time, but for the 3 s of each darkness that count."""
        dark_ms, counted_ms = 0, from_ms
        for begins, ends in sorted(self.seen.darkness):
            dark_ms += max(0, min(ends, to_ms) - max(begins, counted_ms) - LONGEST_STEP_MS)
            counted_ms = max(counted_ms, ends)
        return dark_ms

    @cached_property
    def gave_up_ms(self) -> dict[str, int]:
        """Life -> when its client dropped everything, in world time."""
        return {dropped_life: at_ms for at_ms, _, dropped_life, _ in self.seen.drops}

    def is_deaf(self, scope: str, life: str, at_ms: int) -> bool:
        """Whether a life was evicted because it heard nothing, or cannot hear for long that it was turned away."""
        told_ms, is_evicted = self._fenced.get(life, (at_ms, False))
        return is_evicted or (at_ms - told_ms > self.plan.longest_session_ms and self._is_unheard(scope, life, at_ms))

    def _is_unheard(self, scope: str, life: str, at_ms: int) -> bool:
        who = f"{scope.partition('/')[0]}/{life.partition('.')[0]}"
        return any(
            fault.kind == "unheard" and fault.who == who and fault.at_ms <= at_ms <= fault.at_ms + fault.length_ms
            for fault in self.plan.faults
        )

    @cached_property
    def _fenced(self) -> dict[str, tuple[int, bool]]:
        """Life -> when it was told first that it is out, in world time, and whether because it heard nothing."""
        found: dict[str, tuple[int, bool]] = {}
        deaf = {  # one that an operator has kicked is told that instead
            one.instance_id
            for one in self.decisions
            if isinstance(one, Membership) and one.change == "expired" and one.detail.startswith("deaf")
        }
        for one in self.decisions:
            if isinstance(one, Fenced):
                told_ms, is_evicted = found.get(one.instance_id, (self.at_ms(one), one.instance_id in deaf))
                found[one.instance_id] = told_ms, is_evicted or one.reason == "deaf"
        return found


@dataclass(frozen=True, slots=True)
class Link:
    """One change in the life of a queue."""

    life: str
    """Who has it from now on; empty: nobody."""
    epoch: int
    how: str
    """How it came free; ``reset``: it starts again with whoever has it; `ERA`: nobody knows any more whose it is."""
    seq: int
    """Of the decision, in its shard."""
    offset: int
    """Of the record that caused it."""


class Chain:
    """Whose a queue was, and how one giving ended."""

    def __init__(self) -> None:
        self._links: list[Link] = []

    def add(self, link: Link) -> None:
        """The queue changed hands."""
        self._links.append(link)

    def reset(self, to: Offset) -> None:
        """Its offset was reset: whoever has it gets it again, and reads again what was read."""
        life = self._links[-1].life if self._links else ""
        self._links.append(Link(life, to.epoch, "reset", to.seq, to.cause.offset))

    def given(self, life: str, epoch: int) -> Link | None:
        """Return how a life was given the queue in an epoch."""
        claimed = (link for link in self._links if epoch == 0 and (link.life, link.how) == (life, "first"))
        return next((link for link in self._links if (link.life, link.epoch) == (life, epoch)), next(claimed, None))

    def hows(self, earlier: Handling, later: Handling) -> list[str]:
        """Return all that happened to the queue between two givings."""
        start, end = self._index(earlier), self._index(later)
        if end < start:  # who lost it by a timeout may hand out the same message after its successor
            start, end = end, start
        return [link.how for link in self._links[start + 1 : end + 1]]

    def is_before(self, one: Handling, other: Handling) -> bool:
        """Whether the one giving came before the other."""
        return 0 <= self._index(one) < self._index(other)

    def end(self, handling: Handling) -> str:
        """Return how the life that had the queue lost it; empty if it never did."""
        return next(self._ends(handling), "")

    def _ends(self, handling: Handling) -> Iterator[str]:
        """Of a coordinator that has lost its state, who reads on claims the queue: that is no end."""
        for link in self._links[self._index(handling) + 1 :]:
            if link.how not in ("reset", ERA) and not (link.how == "first" and link.life == handling.life):
                yield link.how

    def _index(self, handling: Handling) -> int:
        for number, link in enumerate(self._links):
            if (link.life, link.epoch) == (handling.life, handling.given):
                return number
            if handling.given == 0 and link.how == "first" and link.life == handling.life:  # it was claimed
                return number
        return -1
