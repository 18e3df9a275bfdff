"""The operator of a world: settings, strategies and resets, and what is put right before the calm."""

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from tests.support.simulation.groups.group_plan import GROUPS, TOPICS
from tests.support.simulation.groups.known_strategies import PARAMS, UNKNOWN, by_percent
from wakeroll_model import feature_levels
from wakeroll_model.config import BEATS_PER_SESSION, MAX_MEMBERS, MIN_SESSION_MS
from wakeroll_model.events import Configure, Delete, GroupEvent, Inspect, Kick, Level, Pause, Reset, ResetOffset
from wakeroll_model.queue import Queue

if TYPE_CHECKING:
    from tests.support.simulation.groups.group_world import World


class Operator:
    """Appends what an operator would; when the log is dark, as soon as it is not."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._eager = dict.fromkeys(GROUPS, world.plan.eager)
        """Group -> whether its hand-overs are eager."""
        self._strategies: dict[str, str] = {}
        self._mistaken: set[str] = set()
        """Groups that once had a strategy that does not exist."""
        self._kept_out: set[str] = set()
        """Clients that were kicked, and kept out for a time."""
        self._paused: set[str] = set()
        """Groups that were paused once."""
        self._slicing = Random(f"slices {world.plan.seed}")  # of its own, so that older seeds stay the same
        self._requests = 0
        self._waiting: deque[GroupEvent | Level] = deque()

    def start(self) -> None:
        """Give every group its settings, and raise the level when the plan says so."""
        if self._world.plan.level_ms is not None:
            self._world.after(self._world.plan.level_ms, self._append, Level(level=feature_levels.NEWEST))
        for group_id in GROUPS:
            self._set(group_id, strategy_params=PARAMS)
            self.configure(group_id, self._world.plan.session_ms, self._world.plan.revoke_ms)

    def configure(self, group_id: str, session_ms: int, revoke_ms: int) -> None:
        """Set how long a group waits for whom."""
        self._set(
            group_id,
            session_timeout_ms=session_ms,
            heartbeat_ms=session_ms // BEATS_PER_SESSION if session_ms == MIN_SESSION_MS else session_ms // 4,
            revoke_timeout_ms=revoke_ms,
            settle_ms=self._world.plan.settle_ms,
            handover="eager" if self._eager[group_id] else "cooperative",
        )

    def switch_handover(self, group_id: str) -> None:
        """Let the hand-overs of a group be eager, or cooperative again."""
        self._eager[group_id] = not self._eager[group_id]
        self._world.seen.eager.add(group_id)
        self._set(group_id, handover="eager" if self._eager[group_id] else "cooperative")

    def set_strategy(self, group_id: str, percent: int) -> None:
        """Set a group's strategy to one of all that there are, the unknown one too."""
        self._strategies[group_id] = by_percent(percent, UNKNOWN)
        if self._strategies[group_id] == UNKNOWN:
            self._mistaken.add(group_id)
        self._set(group_id, strategy=self._strategies[group_id])

    def cut(self, topic: str, number: int) -> None:
        """Cut the partitions of a topic into slices for one of the groups, in a world with slices."""
        if self._world.plan.slices:
            self._set(self._slicing.choice(GROUPS), slices={topic: number})

    def limit(self, group_id: str, members: int, length_ms: int) -> None:
        """Let a group have no more members than so many, for a while."""
        self._set(group_id, max_members=members)
        self._world.after(length_ms, self._set_max_members, group_id)

    def reset(self, group_id: str, percent: int) -> None:
        """Set the offsets of some queues of a topic to that part of what each holds; maybe say it twice."""
        world = self._world
        queues = world.observer.queues(world.rng.choice(TOPICS))
        queues = world.rng.sample(queues, world.rng.randint(1, len(queues))) if queues else []
        if world.rng.random() < 0.1:
            queues.append(Queue(TOPICS[0], "", 77))
        if not queues:
            return
        self._requests += 1
        event = Reset(
            request_id=f"reset-{self._requests}",
            group_id=group_id,
            offsets=[
                ResetOffset(queue=queue, offset=world.ends.get(queue, 0) * percent // 100) for queue in sorted(queues)
            ],
            by="ops",
        )
        self._append_maybe_twice(event, (0, 700, 5_000))

    def kick(self, name: str, keep_out_ms: int) -> None:
        """Kick a client, and keep it out for a time; maybe say it twice."""
        world = self._world
        event = self._kick(name, keep_out_ms=keep_out_ms, reason=world.rng.choice(("", "it is stuck")))
        self._append_maybe_twice(event, (0, 700, 5_000))
        if keep_out_ms:
            self._kept_out.add(name)

    def inspect(self, name: str) -> None:
        """Ask a client what it does; maybe say it twice."""
        self._requests += 1
        group_id, _, client_id = name.partition("/")
        event = Inspect(request_id=f"inspect-{self._requests}", group_id=group_id, client_id=client_id, by="ops")
        self._append_maybe_twice(event, (0, 700))

    def pause(self, group_id: str, length_ms: int) -> None:
        """Pause a group, and resume it after a while; maybe say each twice."""
        self._paused.add(group_id)
        for later_ms, resume in ((0, False), (length_ms, True)):
            self._requests += 1
            event = Pause(request_id=f"pause-{self._requests}", group_id=group_id, resume=resume, by="ops")
            self._world.after(later_ms, self._append, event)
            if self._world.rng.random() < 0.3:
                self._world.after(later_ms + self._world.rng.choice((0, 700)), self._append, event)

    def delete_offsets(self, group_id: str, topic: str) -> None:
        """Delete the offsets of some queues of a topic, which members may still subscribe; maybe say it twice."""
        world = self._world
        queues = world.observer.queues(topic)
        if not queues:
            return
        self._requests += 1
        event = Delete(
            request_id=f"delete-{self._requests}",
            group_id=group_id,
            what="offsets",
            queues=world.rng.sample(queues, world.rng.randint(1, len(queues))),
            by="ops",
        )
        self._append_maybe_twice(event, (0, 700, 5_000))

    def _kick(self, name: str, **wanted: Any) -> Kick:
        self._requests += 1
        group_id, _, client_id = name.partition("/")
        return Kick(request_id=f"kick-{self._requests}", group_id=group_id, client_id=client_id, by="ops", **wanted)

    def put_right(self) -> None:
        """Replace what cannot work: a strategy that does not exist, and what it was replaced by, if the log lost that.

        The same with a bound whose end was lost, with clients that are kept out, and with groups that are paused.
        """
        for group_id in sorted(self._paused):
            self._requests += 1
            self._append(Pause(request_id=f"pause-{self._requests}", group_id=group_id, resume=True, by="ops"))
        for name in sorted(self._kept_out):
            self._append(self._kick(name, readmit=True))
        faults = {fault.kind for fault in self._world.plan.faults}
        for group_id in self._world.plan.groups if faults >= {"full", "loss"} else ():
            self._set_max_members(group_id)
        for group_id, strategy in self._strategies.items():
            if strategy == UNKNOWN:
                self.set_strategy(group_id, 0)
            elif group_id in self._mistaken and "loss" in faults:
                self._set(group_id, strategy=strategy)

    def _set_max_members(self, group_id: str) -> None:
        self._set(group_id, max_members=MAX_MEMBERS)

    def _set(self, group_id: str, **settings: Any) -> None:
        self._append(Configure(group_id=group_id, **settings))

    def _append_maybe_twice(self, event: GroupEvent, later_ms: Sequence[int]) -> None:
        """Append an event, and maybe again, so much later."""
        self._append(event)
        if self._world.rng.random() < 0.3:
            self._world.after(self._world.rng.choice(later_ms), self._append, event)

    def _append(self, event: GroupEvent | Level) -> None:
        self._waiting.append(event)
        self._append_waiting()

    def _append_waiting(self) -> None:
        """Append what is waiting, in order; later, if the log is dark."""
        world = self._world
        if self._waiting and world.now_ms < world.broker.dark_until_ms:
            world.after(1_000, self._append_waiting)
            return
        while self._waiting:
            world.broker.append(self._waiting.popleft(), world.now_ms)
