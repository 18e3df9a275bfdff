"""What stands in for Python's modules in the shipped code while a world runs: its threads, its time, its random ids.

Every module of the packages gets it that has imported `threading`, `time`, `uuid` or `asyncio`, so code that is added
later is under the seed's control too. An architecture test of the project does not allow `from threading import ...`.
"""

import asyncio
import queue
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from random import Random
from types import ModuleType
from typing import Any
from zlib import crc32

from tests.support.simulation.ring.virtual_asyncio import VirtualLoop, VirtualPool
from tests.support.simulation.ring.virtual_threads import (
    Scheduler,
    VirtualCondition,
    VirtualEvent,
    VirtualFuture,
    VirtualLock,
    VirtualQueue,
    VirtualRLock,
    VirtualThread,
    wait_for_all,
)
from wakeroll import failure_topics, keys
from wakeroll.push import failure_handling, push_loop, queue_work, send_back

LATE = (failure_topics, keys, failure_handling, push_loop, queue_work, send_back)
"""Modules that the SDK imports only when a call needs them. A world must not begin without them: they would have real
threads and clocks."""
PACKAGES = ("wakeroll", "wakeroll_pipeline")
WALL_S = 1_767_225_600.0
"""Wall clock of every world at its time 0: 2026-01-01T00:00:00Z (epoch s)."""
SLICES = {"SLICE_S": 0.25, "_SLICE_S": 0.25}
"""Names of pauses between two looks at something, and how long they are here at least (s): each costs a switch."""


class _StandIn(ModuleType):
    """A module with some names replaced."""

    def __init__(self, real: ModuleType, **others: Any) -> None:
        super().__init__(real.__name__)
        self._real = real
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class VirtualClock:
    """The clocks of a world."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.wall_shift_s = 0.0
        """How much the wall clock was set forward."""

    def monotonic(self) -> float:
        return self._scheduler.now_s

    def monotonic_ns(self) -> int:
        return round(self._scheduler.now_s * 1e9)

    def clock_gettime_ns(self, _clock: int) -> int:
        return self.monotonic_ns()

    def clock_gettime(self, _clock: int) -> float:
        return self._scheduler.now_s

    def time(self) -> float:
        return WALL_S + self._scheduler.now_s + self.wall_shift_s

    def time_ns(self) -> int:
        return round(self.time() * 1e9)


def _others(scheduler: Scheduler, clock: VirtualClock, rng: Random) -> tuple[dict[ModuleType, Any], dict[Any, Any]]:
    """Return what stands in for modules, and for classes and functions that were imported from them."""

    def of(kind: type) -> Any:
        return lambda *arguments, **named: kind(scheduler, *arguments, **named)

    def make_thread(
        group: None = None, target: Any = None, name: str = "thread", args: Any = (), kwargs: Any = None, **named: Any
    ) -> VirtualThread:
        del group
        return VirtualThread(scheduler, target, name, args, kwargs, **named)

    def new_future() -> VirtualFuture:
        future = VirtualFuture()
        future.scheduler = scheduler
        return future

    def wait(some: Any, timeout: float | None = None, **_: Any) -> Any:
        some = list(some)
        wait_for_all(scheduler, some, timeout)
        done = {future for future in some if future.done()}
        return futures._base.DoneAndNotDoneFutures(done, set(some) - done)

    def new_uuid() -> uuid.UUID:
        return uuid.UUID(int=rng.getrandbits(128), version=4)

    others = {
        threading: _StandIn(
            threading,
            Thread=make_thread,
            Lock=of(VirtualLock),
            RLock=of(VirtualRLock),
            Condition=of(VirtualCondition),
            Event=of(VirtualEvent),
        ),
        time: _StandIn(
            time,
            sleep=scheduler.sleep,
            **{
                name: getattr(clock, name) for name in dir(clock) if not name.startswith("_") and name != "wall_shift_s"
            },
        ),
        uuid: _StandIn(uuid, uuid4=new_uuid),
        asyncio: _StandIn(asyncio, new_event_loop=lambda: VirtualLoop(scheduler)),
    }
    values = {
        futures.ThreadPoolExecutor: of(VirtualPool),
        futures.Future: new_future,
        futures.wait: wait,
        queue.SimpleQueue: of(VirtualQueue),
    }
    return others, values


@contextmanager
def stand_ins(scheduler: Scheduler, clock: VirtualClock, rng: Random) -> Iterator[None]:
    """Let the packages run in virtual time for the duration of a `with` block."""
    others, values = _others(scheduler, clock, rng)
    VirtualFuture.scheduler = scheduler
    undo: list[tuple[ModuleType, str, Any]] = []
    try:
        for module in [module for name, module in sys.modules.items() if name.split(".")[0] in PACKAGES]:
            for name, value in list(vars(module).items()):
                new: Any = None
                if isinstance(value, ModuleType):
                    new = others.get(value)
                elif name in SLICES and isinstance(value, float) and value < SLICES[name]:
                    new = SLICES[name]
                elif isinstance(value, type) or name == "wait":
                    new = next((other for known, other in values.items() if value is known), None)
                if new is not None:
                    undo.append((module, name, value))
                    setattr(module, name, new)
            if module.__name__ == "wakeroll.push.queue_work":
                module.hash = crc32  # type: ignore[attr-defined]  # the same in every process
        yield
    finally:
        for module, name, value in undo:
            setattr(module, name, value)
        vars(sys.modules["wakeroll.push.queue_work"]).pop("hash", None)
