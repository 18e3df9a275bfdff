"""A path told as a story in the format of tests/scenarios: what reached the log, and comments on what did not."""

from collections.abc import Sequence
from typing import Any

from msgspec import NODEFAULT, UNSET, structs

from tests.support.explorer.explored_coordinator import GROUP
from tests.support.explorer.explored_worlds import World
from tests.support.explorer.universe import Move, State, Universe
from tests.support.story import Story
from wakeroll_model.config import ERA_EPOCHS
from wakeroll_model.decisions import AnyDecision, Assignment, Fenced
from wakeroll_model.events import Commit, Configure, Heartbeat, Kick, Level, Matches, Reset, Route, Unregister

_SHOWN = frozenset({"group_id", "client_id", "instance_id", "epoch", "owned", "subscriptions"})


class Tale:
    """A path being told."""

    def __init__(self, world: World) -> None:
        self._universe = Universe(world)
        self._universe.note = self._note
        self._second = 0
        self._lines: list[str] = []
        self._calm_s = 60
        self._ticks_by_hand = any(name == "dark" for name in world.budgets)

    def tell(self, path: Sequence[Move], says: Sequence[str]) -> str:
        """Return the story, with the shard's answers."""
        universe = self._universe
        state = universe.first().state
        lines = self._lines
        lines.append("# From here on:")
        for move in path:
            lines.append(f"# {self._words(state, move)}")
            state = universe.go(state, move).state
        head = [f"# {universe.world.name}, {universe.world.about}: {'; '.join(dict.fromkeys(says))}"[:300]]
        head += ["partitions 1", f"group {GROUP}"] + (["ticks by hand"] if self._ticks_by_hand else [])
        if any("calm" in one for one in says):
            lines.append("# In the calm:")
            state, _ = universe.calmed(state)
            begun = self._second
            seen = set()
            while self._second < begun + self._calm_s and state not in seen:  # what was told once is not told again
                seen.add(state)
                state, _, _ = universe.calm(state)
        if self._second:
            lines.append(f"        ticks until {self._second}s")
        return Story().tell("\n".join([*head, *lines]))

    def _note(self, what: str, first: int, second: int) -> None:
        if what == "seconds":
            for _ in range(first):
                self._second += 1
                if self._ticks_by_hand and second:
                    self._lines.append(f"{self._second}s tick")
        elif what == "record":
            event = self._universe.coordinator.events[first]
            self._lines.append(f"{self._second}s {words_of(event)}")
        elif what == "snapshot":
            self._lines.append(f"{self._second}s keep state")
        elif what == "cut":
            self._lines.append(f"{self._second}s keep log")
        elif what == "loss":
            self._lines.append(f"{self._second}s lost rest")
        elif what == "hear":
            heard = self._universe.coordinator.decisions[second]
            self._lines.append(f"#   {self._who(first)} hears {_heard(heard)}")
        elif what == "miss":
            heard = self._universe.coordinator.decisions[second]
            self._lines.append(f"#   {self._who(first)} never hears {_heard(heard)}")

    def _who(self, slot: int) -> str:
        twins = self._universe.world.processes.count(self._universe.world.processes[slot]) > 1
        return self._universe.world.processes[slot] + (f" (process {slot})" if twins else "")

    def _words(self, state: State, move: Move) -> str:
        name, *what = move
        if name == "wait":
            together = [self._who(slot) for slot in what[1] if slot < len(state.processes)]
            touch = f"only {', '.join(together)} in touch" if together else "all is late"
            return f"{what[0]} s pass, {touch}"
        if name == "say":
            return f"said from outside: {words_of(self._universe.world.events[what[0]])}"
        if name == "late":
            return f"a late copy arrives: {words_of(self._universe.coordinator.events[state.late[what[0]]])}"
        if what:
            return f"{self._who(what[0])}: {name} {' '.join(map(str, what[1:]))}".rstrip()
        return str(name)


def words_of(event: Any) -> str:
    """Return the line of an event in a story."""
    match event:
        case Heartbeat():
            topics = " ".join(one.topic for one in event.subscriptions)
            owned = ",".join(map(str, event.owned)) or "none"
            epoch = _epoch(event.epoch)
            return f"beat {event.instance_id} {topics} epoch={epoch} owned={owned}{_more(event, _SHOWN)}"
        case Matches():
            return f"matches {event.pattern} {' '.join(event.topics)}".rstrip()
        case Unregister():
            return f"leave {event.instance_id}"
        case Commit():
            offsets = " ".join(f"{one.queue}={one.offset}" for one in event.offsets)
            return f"commit {event.instance_id} {offsets} epoch={_epoch(event.epoch)}"
        case Route():
            if not event.queues:
                return f"route {event.topic} gone"
            end = event.queues[0].max_offset
            ends = "" if end is None else f" ends={end}"
            return f"route {event.topic} {len(event.queues)}{ends}"
        case Reset():
            offsets = " ".join(f"{one.queue}={one.offset}" for one in event.offsets)
            return f"reset {offsets} by={event.by} request_id={event.request_id}"
        case Kick():
            return f"kick {event.client_id}" + _more(event, {"group_id", "client_id"})
        case Level():
            return f"level {event.level}"
        case Configure():
            return "configure" + _more(event, {"group_id"})
    raise ValueError(f"no story says {event!r}")


def _more(event: Any, shown: frozenset[str] | set[str]) -> str:
    """Return the fields that differ from their defaults."""
    words = []
    for name, default in zip(event.__struct_fields__, _defaults(event), strict=True):
        value = getattr(event, name)
        if name not in shown and value is not UNSET and value != default:
            words.append(f"{name}={str(value).lower() if isinstance(value, bool) else value}")
    return "".join(f" {word}" for word in words)


def _defaults(event: Any) -> list[Any]:
    return [
        one.default_factory() if one.default is NODEFAULT and one.default_factory is not NODEFAULT else one.default
        for one in structs.fields(event)
    ]


def _epoch(epoch: int) -> str:
    """Write an epoch as stories do: one of a later era than the first with its era before it."""
    era, number = divmod(epoch, ERA_EPOCHS)
    return f"{era + 1}:{number}" if era > 0 else str(epoch)


def _heard(decision: AnyDecision) -> str:
    match decision:
        case Assignment():
            queues = ", ".join(str(one.queue) for one in decision.queues) or "nothing"
            revoke = f"; must give up {', '.join(map(str, decision.revoke))}" if decision.revoke else ""
            return f"its assignment of epoch {_epoch(decision.epoch)}: {queues}{revoke} (for {decision.instance_id})"
        case Fenced():
            return f"that {decision.instance_id} is fenced: {decision.reason}"
    return f"a {type(decision).__name__.lower()}"
