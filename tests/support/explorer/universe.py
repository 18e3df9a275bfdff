"""States of a world, and the moves from one to the next.

A state is the coordinator, the processes, late copies of records that may still reach the log, and what the observer,
the operator and the snapshots have come to.  The coordinator hears a record in the moment that the log has it: a
coordinator that lags is one whose decisions are late, for it goes by the log's times.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tests.support.explorer import explored_process
from tests.support.explorer.explored_coordinator import SECOND_MS, Coordinator, Said
from tests.support.explorer.explored_process import FROZEN, OVER, UP, Processes
from tests.support.explorer.explored_worlds import TOPIC, World, matches_of
from wakeroll_model import feature_levels
from wakeroll_model.events import Configure, Kick, Level, Matches, Reset, Route
from wakeroll_model.queue import Queue
from wakeroll_model.slices import cut

Move = tuple[str | int | Queue | tuple[int, ...], ...]
"""Its name, and what it is done to."""

LONGEST_CALM_S = 20
"""A calm step is no longer, so that it is seen when something lasts."""

ROUNDS = 40
"""Exchanges within a second; more are a conversation without end."""


class State(NamedTuple):
    """One state of a world."""

    coordinator: int
    processes: tuple[int, ...]
    late: tuple[int, ...] = ()
    """Events that may still reach the log."""
    said: int = 0
    """The world's events that were said, a bit each."""
    route: int = -1
    """Of the topic's routes, the one that is true; -1: the first."""
    handled: tuple[int, ...] = ()
    """By queue, how many messages were handled at least once, from the first on."""
    kept: tuple[int, int] | None = None
    """The coordinator of the newest snapshot, and its age in seconds; None: there is none."""
    log: tuple[tuple[int, int], ...] | None = None
    """Age in ms and event of what a loss would leave of the log; None: nothing."""


class Next(NamedTuple):
    """What a move leads to."""

    move: Move
    state: State
    broken: tuple[str, ...]


Note = Callable[[str, int, int], None]
"""Called with ``record`` and its event, ``seconds`` and whether they had ticks, and others, while a path is told."""


class Universe:
    """All states of a world that were met so far."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.coordinator = Coordinator()
        self.processes = Processes(
            self.coordinator, world.preferences, commits=world.commits, knows_slices=world.knows_slices
        )
        self.note: Note | None = None
        self.budget_names = tuple(world.budgets)
        self.events = tuple(self.coordinator.number(event) for event in world.events)
        self._routes: tuple[Route, ...] = (world.route, *(one for one in world.events if isinstance(one, Route)))
        self._broken: list[str] = []
        self._calm: dict[State, tuple[State, int, tuple[str, ...]]] = {}

    # --- where it begins ---

    def first(self) -> Next:
        """Return the state that the exploration begins with."""
        world, coordinator = self.world, self.coordinator
        numbers = dict.fromkeys(world.processes, 0)
        parts = []
        for client_id in world.processes:
            parts.append(self.processes.nobody(client_id, 1 + 10 * numbers[client_id]))
            numbers[client_id] += 1
        handled = (0,) * max(len(route.queues) for route in self._routes) if world.commits else ()
        state = State(coordinator.empty(), tuple(parts), route=0, handled=handled)
        state = self._later(state, 1)
        state = self._append(state, coordinator.number(Level(level=feature_levels.NEWEST)))
        if world.settings is not None:
            state = self._append(state, coordinator.number(world.settings))
        state = self._append(state, coordinator.number(world.route))
        for slot in world.running:
            state = self._take(state, slot, self.processes.start(state.processes[slot]))
            state = self.pass_time(state, 3, world.running)
        if world.pattern:
            state = self._append(state, coordinator.number(matches_of(TOPIC)))
            state = self.pass_time(state, 3, world.running)
        return Next(("begin",), state, tuple(self._broken))

    # --- moves ---

    def moves(self, state: State, budget: tuple[int, ...]) -> Iterator[tuple[Move, int]]:
        """Yield what may happen next, and which budget it takes from; -1: none."""
        free = {name: at for at, (name, left) in enumerate(zip(self.budget_names, budget, strict=True)) if left}
        yield from self._of_all_processes(state, free)
        for at in range(len(state.late)):
            yield ("late", at), -1
        for number in range(len(self.events)):
            if not state.said >> number & 1:
                yield ("say", number), -1
                if self.world.ordered_events:
                    break
        for name in ("snapshot", "cut", "loss", "dark"):
            if name in free:
                yield (name,), free[name]
        for seconds, together in self.world.waits:
            yield ("wait", seconds, together), -1

    def _of_all_processes(self, state: State, free: dict[str, int]) -> Iterator[tuple[Move, int]]:
        for slot, part in enumerate(state.processes):
            for name, *more in self._of_a_process(state, part):
                paid = _PAID_BY.get(str(name))
                if paid is None:
                    yield (name, slot, *more), -1
                elif paid in free:
                    yield (name, slot, *more), free[paid]

    def go(self, state: State, move: Move) -> Next:
        """Make a move."""
        self._broken = []
        after = _MOVES[str(move[0])](self, state, *move[1:])
        return Next(move, after, tuple(self._broken))

    def calm(self, state: State) -> tuple[State, int, tuple[str, ...]]:
        """Let calm seconds pass until something happens: nobody is late, and who must give something up does.

        Returns:
            The state, after how many seconds it came, and the rules broken on the way.
        """
        known = self._calm.get(state)
        if known is None:
            self._broken = []
            slots = range(len(state.processes))
            seconds = min(self._quiet_s(state, slots), LONGEST_CALM_S)
            after = self._attended(self._exchange(self._later(state, seconds), slots))
            known = self._calm[state] = after, seconds, tuple(self._broken)
        return known

    def calmed(self, state: State) -> tuple[State, tuple[str, ...]]:
        """Let nothing be wrong any more: who is suspended goes on, what is under way arrives, somebody is there."""
        self._broken = []
        parts = self.processes
        for slot, part in enumerate(state.processes):
            if parts.parts[part].status == FROZEN:
                state = self._put(state, slot, parts.thaw(part))
        while state.late:
            state = self._late(state, 0)
        for slot, part in enumerate(state.processes):
            while parts.parts[state.processes[slot]].outbox and parts.parts[part].status in OVER:
                state = self._deliver(state, slot)
        state = self._attended(state)
        state = self._append(
            state, self.coordinator.number(self._routes[state.route])
        )  # as the observer does each minute
        state = self._exchange(state._replace(kept=None, log=None, said=0), range(len(state.processes)))
        return state, tuple(self._broken)

    def _attended(self, state: State) -> State:
        """Start a process if none runs: each may have been kicked."""
        if any(self.processes.parts[part].status == UP for part in state.processes):
            return state
        return self._take(state, 0, self.processes.start(state.processes[0]))

    # --- time ---

    def pass_time(self, state: State, seconds: int, together: Iterable[int], *, ticks: bool = True) -> State:
        """Let seconds pass; the processes named are in good touch meanwhile, of the others all is late."""
        slots = [slot for slot in together if slot < len(state.processes)]
        state = self._exchange(state, slots)
        while seconds > 0:
            step_s = min(seconds, self._quiet_s(state, slots)) if slots else seconds
            state = self._exchange(self._later(state, step_s, ticks=ticks), slots)
            seconds -= step_s
        return state

    def _quiet_s(self, state: State, together: Iterable[int]) -> int:
        """Return the number of seconds until something happens by itself that the others would hear of at once.

        All that happens before is silent, so that it may happen in one step.
        """
        quiet = [self.processes.quiet_s(state.processes[slot]) for slot in together]
        return min(self.coordinator.quiet_s(state.coordinator), *quiet)

    def _later(self, state: State, seconds: int, *, ticks: bool = True) -> State:
        """Let seconds pass, each with its tick; what clients and coordinator then say is on its way."""
        if self.note:
            self.note("seconds", seconds, int(ticks))
        steps = [self.processes.wait(part, seconds) for part in state.processes]
        log = state.log
        if log is not None:
            log = tuple((age_ms + seconds * SECOND_MS, event) for age_ms, event in log)
            log += tuple((age_s * SECOND_MS, self.coordinator.tick(0)) for age_s in reversed(range(seconds)) if ticks)
        kept = None if state.kept is None else (state.kept[0], min(state.kept[1] + seconds, 120))
        state = state._replace(processes=tuple(step.after for step in steps), log=log, kept=kept)
        for slot, step in enumerate(steps):
            self._note_step(state, slot, step)
        if not ticks:
            return state._replace(coordinator=self.coordinator.wait_in_the_dark(state.coordinator, seconds))
        return self._told(state, self.coordinator.wait(state.coordinator, seconds))

    def _exchange(self, state: State, slots: Iterable[int]) -> State:
        """Deliver and read all there is for these processes, until there is nothing more."""
        slots = list(slots)
        parts = self.processes.parts
        for _ in range(ROUNDS):
            before = state
            for slot in slots:
                while parts[state.processes[slot]].outbox:
                    state = self._deliver(state, slot)
                while parts[state.processes[slot]].inbox and parts[state.processes[slot]].status == UP:
                    state = self._hear(state, slot)
                for queue in sorted(self.processes.view(state.processes[slot]).drains):
                    state = self._release(state, slot, queue)
            left = [parts[state.processes[slot]] for slot in slots]
            if not any(part.outbox or (part.inbox and part.status == UP) for part in left):
                return state
            if state == before:
                break
        self._broken.append("client and coordinator answer each other within a second, and there is something to say")
        return state

    # --- moves of one process ---

    def _of_a_process(self, state: State, part: int) -> Iterator[tuple[str | Queue, ...]]:
        status, outbox, inbox = (found := self.processes.parts[part]).status, found.outbox, found.inbox
        if outbox:
            yield ("deliver",)
            yield ("lose",)
            yield ("repeat",)
        if status in OVER:
            yield ("start",)
            return
        yield ("crash",)
        yield ("die",)
        if outbox:
            yield ("crash late",)
            yield ("die late",)
        if status == FROZEN:
            yield ("thaw",)
            return
        yield ("freeze",)
        yield ("leave",)
        if inbox:
            yield ("hear",)
            yield ("miss",)
            yield ("hear twice",)
        view = self.processes.view(part)
        for queue in sorted(view.drains):
            yield "release", queue
        if self.world.commits:
            ends = self._ends(state)
            for queue, offset in found.read:
                if queue in view.reads and offset < ends.get(queue, 0):
                    yield "read", queue
            yield ("commit",)

    def _ends(self, state: State) -> dict[Queue, int]:
        return {one.queue: one.max_offset or 0 for one in self._routes[state.route].queues}

    def queues(self, state: State) -> list[Queue]:
        """Return the queues that there are now."""
        return [one.queue for one in self._routes[state.route].queues]

    def cells(self, state: State) -> list[Queue]:
        """Return the parts of the queues that no change of the number of slices divides."""
        queues = self.queues(state)
        return [cell for queue in queues for cell in cut(queue, 2)] if self.world.knows_slices else queues

    def _deliver(self, state: State, slot: int) -> State:
        part = state.processes[slot]
        event, _ = self.processes.parts[part].outbox[0]
        state = self._take(state, slot, self.processes.acknowledge(part))
        return self._append(state, event)

    def _repeat(self, state: State, slot: int) -> State:
        event, _ = self.processes.parts[state.processes[slot]].outbox[0]
        state = self._deliver(state, slot)
        return state._replace(late=(*state.late, event))

    def _lose(self, state: State, slot: int) -> State:
        return self._put(state, slot, self.processes.drop_record(state.processes[slot]))

    def _hear(self, state: State, slot: int) -> State:
        part = state.processes[slot]
        if self.note:
            self.note("hear", slot, self.processes.parts[part].inbox[0])
        return self._take(state, slot, self.processes.hear(part))

    def _hear_twice(self, state: State, slot: int) -> State:
        return self._take(state, slot, self.processes.hear_twice(state.processes[slot]))

    def _miss(self, state: State, slot: int) -> State:
        part = state.processes[slot]
        if self.note:
            self.note("miss", slot, self.processes.parts[part].inbox[0])
        return self._put(state, slot, self.processes.drop_decision(part))

    def _release(self, state: State, slot: int, queue: Queue) -> State:
        return self._take(state, slot, self.processes.release(state.processes[slot], queue))

    def _read(self, state: State, slot: int, queue: Queue) -> State:
        part = state.processes[slot]
        offset = dict(self.processes.parts[part].read)[queue]
        state = self._take(state, slot, self.processes.read(part, queue))
        if offset == state.handled[queue.queue_id]:
            state = _handled(state, queue, offset + 1)
        return state

    def _crash(self, state: State, slot: int) -> State:
        return self._put(state, slot, self.processes.crash(state.processes[slot]))

    def _crash_late(self, state: State, slot: int) -> State:
        events = tuple(event for event, _ in self.processes.parts[state.processes[slot]].outbox)
        state = self._crash(state, slot)
        return state._replace(late=(*state.late, *events))

    def _die(self, state: State, slot: int) -> State:
        """Crash, and have the last will executed at once; what the process had sent itself is lost."""
        return self._bequeath(self._crash(state, slot), self.processes.last_will(state.processes[slot]))

    def _die_late(self, state: State, slot: int) -> State:
        """Crash, and have the last will executed before the process's own records arrive."""
        return self._bequeath(self._crash_late(state, slot), self.processes.last_will(state.processes[slot]))

    def _bequeath(self, state: State, events: Iterable[int]) -> State:
        for event in events:
            state = self._append(state, event)
        return state

    def _simple(self, state: State, slot: int, step: Callable[[int], explored_process.Step]) -> State:
        return self._take(state, slot, step(state.processes[slot]))

    # --- moves of the rest of the world ---

    def _late(self, state: State, at: int) -> State:
        event = state.late[at]
        return self._append(state._replace(late=state.late[:at] + state.late[at + 1 :]), event)

    def _say(self, state: State, number: int) -> State:
        event = self.world.events[number]
        state = state._replace(said=state.said | 1 << number)
        if isinstance(event, Route):
            state = state._replace(route=self._routes.index(event))
            if not event.queues:  # messages that are gone can neither be handled nor missed
                state = state._replace(handled=(0,) * len(state.handled))
        elif isinstance(event, Reset) and state.handled:
            for entry in event.offsets:
                state = _handled(state, entry.queue, max(entry.offset, state.handled[entry.queue.queue_id]))
        else:
            assert isinstance(event, Configure | Kick | Matches | Reset), event
        return self._append(state, self.events[number])

    def _snapshot(self, state: State) -> State:
        if self.note:
            self.note("snapshot", -1, -1)
        return state._replace(kept=(state.coordinator, 0))

    def _cut(self, state: State) -> State:
        if self.note:
            self.note("cut", -1, -1)
        return state._replace(log=())

    def _loss(self, state: State) -> State:
        if self.note:
            self.note("loss", -1, -1)
        kept = None if state.kept is None else self.coordinator.wait_in_the_dark(*state.kept)
        after = self.coordinator.lost(state.coordinator, kept, state.log or ())
        return state._replace(coordinator=after, kept=None, log=None)

    def _wait(self, state: State, seconds: int, together: tuple[int, ...]) -> State:
        return self.pass_time(state, seconds, together)

    def _dark(self, state: State) -> State:
        return self.pass_time(state, 10, range(len(state.processes)), ticks=False)

    # --- inside ---

    def _append(self, state: State, event: int) -> State:
        """Append an event to the log: the coordinator hears it, the inboxes get what follows."""
        if self.note:
            self.note("record", event, -1)
        if state.log is not None:
            state = state._replace(log=(*state.log, (0, event)))
        return self._told(state, self.coordinator.hear(state.coordinator, event))

    def _told(self, state: State, said: Said) -> State:
        """Put what the coordinator said into the inboxes."""
        self._broken += said.broken
        processes = state.processes
        if said.told:
            parts = list(processes)
            for client_id, decision in said.told:
                for slot, name in enumerate(self.world.processes):
                    if name == client_id:
                        parts[slot] = self.processes.tell(parts[slot], decision)
            processes = tuple(parts)
        return state._replace(coordinator=said.after, processes=processes)

    def _put(self, state: State, slot: int, part: int) -> State:
        processes = state.processes
        return state._replace(processes=(*processes[:slot], part, *processes[slot + 1 :]))

    def _take(self, state: State, slot: int, step: explored_process.Step) -> State:
        state = self._put(state, slot, step.after)
        self._note_step(state, slot, step)
        return state

    def _note_step(self, state: State, slot: int, step: explored_process.Step) -> None:
        if step.broken:
            self._broken += step.broken
        for queue, offset in step.begun:
            if state.handled and offset > state.handled[queue.queue_id]:
                name = self.world.processes[slot]
                found = f"{name} reads {queue} from {offset}; {state.handled[queue.queue_id]} is not handled yet"
                self._broken.append(found)


def _handled(state: State, queue: Queue, next_offset: int) -> State:
    handled = list(state.handled)
    handled[queue.queue_id] = next_offset
    return state._replace(handled=tuple(handled))


_PAID_BY = {
    name: name
    for name in ("lose", "repeat", "crash", "die", "freeze", "leave", "miss", "hear twice", "start", "commit")
} | {"crash late": "crash", "die late": "die"}
"""Move of a process -> the budget that it takes from; all others are always possible."""

_MOVES: dict[str, Callable[..., State]] = {
    "deliver": Universe._deliver,
    "lose": Universe._lose,
    "repeat": Universe._repeat,
    "hear": Universe._hear,
    "miss": Universe._miss,
    "hear twice": Universe._hear_twice,
    "release": Universe._release,
    "read": Universe._read,
    "commit": lambda self, state, slot: self._simple(state, slot, self.processes.commit),
    "start": lambda self, state, slot: self._simple(state, slot, self.processes.start),
    "leave": lambda self, state, slot: self._simple(state, slot, self.processes.leave),
    "crash": Universe._crash,
    "crash late": Universe._crash_late,
    "die": Universe._die,
    "die late": Universe._die_late,
    "freeze": lambda self, state, slot: self._put(state, slot, self.processes.freeze(state.processes[slot])),
    "thaw": lambda self, state, slot: self._put(state, slot, self.processes.thaw(state.processes[slot])),
    "late": Universe._late,
    "say": Universe._say,
    "snapshot": Universe._snapshot,
    "cut": Universe._cut,
    "loss": Universe._loss,
    "wait": Universe._wait,
    "dark": Universe._dark,
}
