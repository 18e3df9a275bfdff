"""The groups, or the queues, of a shard: encoded until a record needs them, and restored after a failed event."""

from wakeroll_model import routine_beats
from wakeroll_model.coordinator_log.kafka_events import LogEvent
from wakeroll_model.decisions import Cause
from wakeroll_model.entity_machines import Around, Entity, Machine
from wakeroll_model.events import AnyEvent
from wakeroll_model.group import Group
from wakeroll_model.known_routes import Routes
from wakeroll_model.shard_clock import Moment
from wakeroll_model.shard_state import ShardState

_Step = tuple[AnyEvent | LogEvent, Moment, Cause, int, Around]
"""An event that succeeded, with its inputs and the mark of the routes at that time."""


class Entities:
    """The entities of a shard by name. Those that a batch does not touch stay encoded."""

    def __init__(self, state: ShardState, machine: Machine, routes: Routes) -> None:
        """Continue with the entities of a state, which `keep`, `drop` and `store` change."""
        self.used: dict[str, Entity] = {}
        """The decoded entities."""
        self._state = state
        self._machine = machine
        self._routes = routes
        self._steps: dict[str, list[_Step | dict[str, int]]] = {}
        """Entity -> the events that succeeded since it was encoded; between them, the times of routine heartbeats."""

    def __contains__(self, name: str) -> bool:
        return name in self.used or name in self._state.entities

    def names(self) -> list[str]:
        """Return the names of all entities, sorted."""
        return sorted(self._state.entities.keys() | self.used.keys())

    def load(self, name: str) -> Entity:
        """Decode an entity, or create it, and keep it in `used`."""
        entity = self.used[name] = self._decoded(name)
        return entity

    def succeeded(self, name: str, event: AnyEvent | LogEvent, moment: Moment, cause: Cause, around: Around) -> None:
        """Note that an event was applied to an entity; its inputs are needed if a later one fails."""
        self._steps.setdefault(name, []).append((event, moment, cause, self._routes.mark, around))

    def seen(self, name: str, seen_ms: dict[str, int]) -> None:
        """Note that the times of routine heartbeats were entered into a group."""
        self._steps.setdefault(name, []).append(seen_ms)

    def before(self, name: str) -> Entity:
        """Restore an entity as of its last successful event, from its bytes and the events since."""
        entity, steps = self._decoded(name), self._steps.get(name, [])
        marks = (step[3] for step in steps if not isinstance(step, dict))
        routes = self._routes.at(next(marks, self._routes.mark))
        for step in steps:
            if isinstance(step, dict):
                assert isinstance(entity, Group), "only members of groups send heartbeats"
                routine_beats.enter(step, entity)
                continue
            event, moment, cause, mark, around = step
            routes.follow(self._routes, mark)
            self._machine.step(entity, event, moment, cause, around._replace(routes=routes))
        return entity

    def keep(self, name: str, entity: Entity) -> None:
        """Encode an entity now: its events so far are not applied again if a later one fails."""
        self.used[name] = entity
        self._state.entities[name] = self._machine.encode(entity)
        self._steps.pop(name, None)

    def drop(self, name: str) -> Entity:
        """Forget an entity and return it."""
        self._state.entities.pop(name, None)
        self._steps.pop(name, None)
        return self.used.pop(name)

    def store(self) -> None:
        """Encode all decoded entities, as at the end of a batch."""
        for name, entity in self.used.items():
            self._state.entities[name] = self._machine.encode(entity)
        self._steps.clear()

    def _decoded(self, name: str) -> Entity:
        body = self._state.entities.get(name)
        if body is not None:
            return self._machine.decode(body)
        loss = self._state.loss
        is_over = loss is None or loss.ends_ms <= self._state.clock.now_ms
        return self._machine.new(name, self._state.lowest_epoch, None if is_over else loss)
