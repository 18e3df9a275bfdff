"""What the checkers judge by: the log of a world, what was decided about each record, and what was seen."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from model.clock import ShardClock
from model.config import LONGEST_STEP_MS
from model.decisions import AnyDecision, Assignment, Handover, Membership, Offset, Rebalance
from model.events import GroupEvent, Heartbeat, Tick
from model.queue import Queue
from world.seen import Handling
from world.strategies import CARELESS
from world.world import World


@dataclass(frozen=True)
class Broken:
    """A rule that does not hold."""

    rule: str
    at_ms: int
    says: str
    queue: Queue | None = None
    group_id: str = ""


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


class Evidence:
    """A world that has ended."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.plan = world.plan
        self.seen = world.seen

    @cached_property
    def pages(self) -> list[list[Page]]:
        """Each control partition from its beginning; a group stands in one of them only."""
        books = []
        for coordinator in self.world.coordinators:
            partition, clock = coordinator.partition, ShardClock()
            decided: dict[int, list[AnyDecision]] = defaultdict(list)
            for decision in coordinator.decisions:
                decided[decision.cause.offset].append(decision)
            book = []
            appended = self.world.broker.appended[partition]
            for record, (at_ms, event) in zip(self.world.broker.log[partition], appended, strict=True):
                moment = clock.read(record.timestamp_ms, tick=isinstance(event, Tick))
                now = (moment.now_ms, moment.may_expire)
                book.append(Page(partition, record.offset, at_ms, *now, event, decided.get(record.offset, [])))
            books.append(book)
        return books

    @cached_property
    def decisions(self) -> list[AnyDecision]:
        """All of them; those of a group in order."""
        return [decision for coordinator in self.world.coordinators for decision in coordinator.decisions]

    def at_ms(self, decision: AnyDecision) -> int:
        """Return when, in world time, the record was appended that a decision follows from."""
        return self.world.broker.appended[decision.cause.partition][decision.cause.offset][0]

    @cached_property
    def beats(self) -> dict[tuple[str, str], list[Page]]:
        """(group_id, instance_id) -> the pages of its heartbeats."""
        beats: dict[tuple[str, str], list[Page]] = defaultdict(list)
        for book in self.pages:
            for page in book:
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
        for decision in self.decisions:
            if isinstance(decision, Membership) and decision.change in ("joined", "replaced"):
                lives[decision.group_id, decision.client_id] = decision.instance_id
            elif isinstance(decision, Handover):
                life = lives.get((decision.group_id, decision.to), "")
                link = Link(life, decision.epoch, decision.how, decision.seq, decision.cause.offset)
                chains[decision.group_id, decision.queue].add(link)
            elif isinstance(decision, Offset) and decision.reset_by is not None and decision.mode == "clustering":
                chains[decision.group_id, decision.queue].reset(decision)
        return chains

    @cached_property
    def offsets(self) -> dict[tuple[str, Queue], list[Offset]]:
        """(scope, queue) -> what was put on record of it, commits and resets."""
        offsets: dict[tuple[str, Queue], list[Offset]] = defaultdict(list)
        for decision in self.decisions:
            if isinstance(decision, Offset):
                scope = self.plan.scope(decision.group_id, decision.client_id)
                offsets[scope, decision.queue].append(decision)
        return offsets

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
        """(group_id, queue) of what nobody has in the end: CARELESS leaves queues out, and says so."""
        last: dict[str, Rebalance] = {}
        for decision in self.decisions:
            if isinstance(decision, Rebalance) and decision.trigger != "reset":
                last[decision.group_id] = decision
        return {
            (group_id, one.queue)
            for group_id, target in last.items()
            if target.strategy == CARELESS
            for one in target.unassigned
            if one.reason
        }

    @cached_property
    def left_well(self) -> set[str]:
        """The lives that ended their work, committed and unregistered, before anybody replaced them."""
        left = {one.instance_id for one in self.decisions if isinstance(one, Membership) and one.change == "left"}
        return left & self.seen.left_well

    def dark_ms(self, from_ms: int, to_ms: int) -> int:
        """Return for how long there were no ticks in this time, but for the 5 s of each darkness that count."""
        dark_ms, counted_ms = 0, from_ms
        for begins, ends in sorted(self.seen.darkness):
            dark_ms += max(0, min(ends, to_ms) - max(begins, counted_ms) - LONGEST_STEP_MS)
            counted_ms = max(counted_ms, ends)
        return dark_ms

    def steps_forth(self, since_ms: int, to_ms: int | None = None) -> int:
        """Return how often the log's clock was set forth in this time; each counts as 5 s (see docs/decisions/0002)."""
        until_ms = self.world.now_ms if to_ms is None else to_ms
        return sum(
            1 for one in self.plan.faults if one.kind == "step" and one.amount > 0 and since_ms <= one.at_ms <= until_ms
        )


@dataclass(frozen=True, slots=True)
class Link:
    """One change in the life of a queue."""

    life: str
    """Who has it from now on; empty: nobody."""
    epoch: int
    how: str
    """How it came free, or ``reset``: it starts anew with whoever has it."""
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
        """Its offset was reset: whoever has it gets it anew, and reads again what was read."""
        life = self._links[-1].life if self._links else ""
        self._links.append(Link(life, to.epoch, "reset", to.seq, to.cause.offset))

    def given(self, life: str, epoch: int) -> Link | None:
        """Return how a life was given the queue in an epoch."""
        return next((link for link in self._links if (link.life, link.epoch) == (life, epoch)), None)

    def hows(self, earlier: Handling, later: Handling) -> list[str]:
        """Return all that happened to the queue between two givings."""
        start, end = self._index(earlier), self._index(later)
        if end < start:  # whoever was replaced may hand out the same message after its successor
            start, end = end, start
        return [link.how for link in self._links[start + 1 : end + 1]]

    def is_before(self, one: Handling, other: Handling) -> bool:
        """Whether the one giving came before the other."""
        return 0 <= self._index(one) < self._index(other)

    def end(self, handling: Handling) -> str:
        """Return how the life that had the queue lost it; empty if it never did."""
        return next(self._ends(handling), "")

    def _ends(self, handling: Handling) -> Iterator[str]:
        return (link.how for link in self._links[self._index(handling) + 1 :] if link.how != "reset")

    def _index(self, handling: Handling) -> int:
        for number, link in enumerate(self._links):
            if (link.life, link.epoch) == (handling.life, handling.given):
                return number
        return -1
