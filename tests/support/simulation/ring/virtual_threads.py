"""Threads, locks and time under a seed's control: real threads, of which one runs at a time, in virtual time.

Unlike the scheduler of the push worlds, it hands control from one thread to the next directly, knows processes (groups
of threads that freeze together), runs timers, and raises an exception in a waiting thread as a signal handler does.
"""

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from queue import Empty
from random import Random
from types import TracebackType
from typing import Any, Self

NEVER_S = float("inf")
FOR_EVER_S = 1e12
"""Until when a killed process is frozen (s)."""
SWITCHES = 1_500_000
"""Most switches in a world; more mean that it does not come to rest."""
SHORTEST_S = 1e-4
"""Shortest wait with a timeout (s): a loop that polls without waiting would stop the virtual time."""
UNWINDS = 500
"""How often the end of the world is raised in a thread; one that catches it for ever is left alone then."""


class Over(BaseException):
    """Raised in every thread that is left when the world ends."""


class Scheduler:
    """Runs real threads one at a time, in virtual time that passes only while all of them wait."""

    def __init__(self, rng: Random, switches_at_locks: float) -> None:
        """Begin without threads; a thread that takes a lock is interrupted with probability `switches_at_locks`."""
        self.now_s = 1_000.0
        self.threads: list[VirtualThread] = []
        self.current: VirtualThread | None = None
        self.is_over = False
        self.failure: BaseException | None = None
        """Why the world cannot go on: a deadlock, or no end."""
        self.switches = 0
        self.on_problem: Callable[[VirtualThread, BaseException], object] = lambda _thread, _problem: None
        """Called with each exception that ends a thread."""
        self._rng = rng
        self._switches_at_locks = switches_at_locks
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._back = threading.Semaphore(0)
        """Released when the world is over, and when a thread has ended after that."""
        self._driver: VirtualThread | None = None

    # --- the world ---

    def run(self, main: Callable[[], None]) -> None:
        """Run `main` and the threads that it starts, until it returns; then end all threads.

        Raises:
            BaseException: what `main` raised, or AssertionError: the world has stopped, or does not end.
        """
        driver = self._driver = VirtualThread(self, main, name="driver")
        driver.start()
        self._go(self._pick())
        self._back.acquire()
        self.is_over = True
        for thread in self.threads:
            if not thread.is_finished:
                self.current = thread
                thread.go.release()
                assert self._back.acquire(timeout=20), f"thread {thread.name} does not end"
        self.threads.clear()
        if self.failure is not None:
            raise self.failure
        if driver.problem is not None:
            raise driver.problem

    def at(self, at_s: float, call: Callable[[], None]) -> None:
        """Make a call at this time, in whichever thread; it must not wait."""
        heapq.heappush(self._timers, (max(at_s, self.now_s), next(self._numbers), call))

    def sleep(self, seconds: float) -> None:
        """Let the running thread wait."""
        self.wait_until(self.now_s + max(seconds, 0.0))

    def wait_until(self, at_s: float) -> None:
        """Let the running thread wait until this time, or until another thread makes it ready.

        Raises:
            BaseException: the signal that came meanwhile; see `VirtualThread.signal`.
        """
        me = self.me()
        me.wake_s = at_s
        self._switch(me)
        if me.signals:
            raise me.signals.popleft()

    def maybe_switch(self) -> None:
        """Interrupt the running thread sometimes."""
        if self._switches_at_locks and self._rng.random() < self._switches_at_locks:
            me = self.me()
            me.wake_s = self.now_s
            self._switch(me)

    def me(self) -> "VirtualThread":
        """Return the running thread."""
        thread = self.current
        assert thread is not None, "only a virtual thread may wait"
        if self.is_over:
            self._unwind(thread)
        return thread

    def process(self, name: str) -> "list[VirtualThread]":
        """Return the living threads of a process."""
        return [thread for thread in self.threads if thread.process == name and not thread.is_finished]

    def freeze(self, name: str, until_s: float) -> None:
        """Stop all threads of a process until this time."""
        for thread in self.process(name):
            thread.frozen_until_s = max(thread.frozen_until_s, until_s)

    def frozen_until_s(self, name: str) -> float:
        """Return until when a process is frozen; 0 if it was never."""
        return max((thread.frozen_until_s for thread in self.process(name)), default=0.0)

    # --- inside ---

    def _unwind(self, thread: "VirtualThread") -> None:
        thread.unwinds += 1
        if thread.unwinds > UNWINDS:
            self._back.release()
            threading.Semaphore(0).acquire()
        raise Over

    def _switch(self, me: "VirtualThread") -> None:
        following = self._pick()
        if following is not me:
            self._go(following)
            me.go.acquire()
        if self.is_over:
            self._unwind(me)

    def _go(self, following: "VirtualThread | None") -> None:
        if following is None:
            self.is_over = True
            self._back.release()
            return
        self.current = following
        following.go.release()

    def _pick(self) -> "VirtualThread | None":
        """Return the next thread, and let time pass until it is ready; None: the world cannot go on."""
        self.switches += 1
        if self.switches > SWITCHES:
            self.failure = AssertionError(f"no end after {SWITCHES} switches, at {self.now_s:.1f} s")
            return None
        while True:
            due_s = min(thread.due_s for thread in self.threads)
            if self._timers and self._timers[0][0] <= max(due_s, self.now_s):
                at_s, _, call = heapq.heappop(self._timers)
                self.now_s = max(self.now_s, at_s)
                call()
                continue
            if due_s >= FOR_EVER_S:
                self.failure = AssertionError(f"a deadlock: {[thread.name for thread in self.threads]}")
                return None
            self.now_s = max(self.now_s, due_s)
            ready = [thread for thread in self.threads if thread.due_s <= self.now_s]
            following = self._rng.choice(ready) if len(ready) > 1 else ready[0]
            self.current = following
            return following

    def ended(self, thread: "VirtualThread") -> None:
        """Note that a thread has ended, and let the next one run."""
        thread.is_finished = True
        if self.is_over or thread is self._driver:
            self._back.release()
            return
        self.threads.remove(thread)
        for waiting in thread.waiting:
            waiting.wake_s = self.now_s
        self._go(self._pick())


class VirtualThread:
    """The part of `threading.Thread` that the SDK uses."""

    def __init__(
        self,
        scheduler: Scheduler,
        target: Callable[..., object],
        name: str = "thread",
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
        process: str | None = None,
    ) -> None:
        del daemon
        self.name = name
        self.process: str = process if process is not None else getattr(scheduler.current, "process", "world")
        """Process whose thread it is: that of the thread that made it."""
        self.go = threading.Semaphore(0)
        self.wake_s = scheduler.now_s
        self.frozen_until_s = 0.0
        self.is_finished = True
        self.was_started = False
        self.problem: BaseException | None = None
        self.signals: deque[BaseException] = deque()
        """Exceptions that the next end of a wait raises."""
        self.unwinds = 0
        self.waiting: list[VirtualThread] = []
        self.is_spare = False
        """Whether it is a thread of a pool without work: Python ends it when it finds the pool unused."""
        self.real: threading.Thread | None = None
        self._scheduler = scheduler
        self._target, self._args, self._kwargs = target, tuple(args), dict(kwargs or {})

    @property
    def due_s(self) -> float:
        """When it can run."""
        return self.wake_s if self.wake_s > self.frozen_until_s else self.frozen_until_s

    @property
    def ident(self) -> int | None:
        return None if self.real is None else self.real.ident

    def start(self) -> None:
        scheduler = self._scheduler
        if scheduler.is_over:
            raise Over
        self.is_finished, self.was_started = False, True
        self.wake_s = scheduler.now_s
        self.frozen_until_s = scheduler.frozen_until_s(self.process)
        scheduler.threads.append(self)
        self.real = threading.Thread(target=self._run, name=self.name, daemon=True)
        self.real.start()

    def is_alive(self) -> bool:
        return self.was_started and not self.is_finished

    def join(self, timeout: float | None = None) -> None:
        scheduler = self._scheduler
        until_s = NEVER_S if timeout is None else scheduler.now_s + timeout
        me = scheduler.me()
        while self.is_alive() and scheduler.now_s < until_s:
            self.waiting.append(me)
            try:
                scheduler.wait_until(until_s)
            finally:
                self.waiting.remove(me)

    def signal(self, problem: BaseException) -> None:
        """Let a handler of a signal raise this exception in the thread: at the end of its wait, which is now."""
        self.signals.append(problem)
        self.wake_s = self._scheduler.now_s

    def _run(self) -> None:
        self.go.acquire()
        try:
            if not self._scheduler.is_over:
                self._target(*self._args, **self._kwargs)
        except Over:
            pass
        except BaseException as problem:
            self.problem = problem
            self._scheduler.on_problem(self, problem)
        self._scheduler.ended(self)


class VirtualLock:
    """`threading.Lock`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_held = False
        self._waiting: deque[VirtualThread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = self._scheduler
        if scheduler.is_over:
            return True
        if blocking:
            scheduler.maybe_switch()
        until_s = NEVER_S if timeout < 0 else scheduler.now_s + timeout
        while self._is_held:
            if not blocking or scheduler.now_s >= until_s:
                return False
            me = scheduler.me()
            self._waiting.append(me)
            try:
                scheduler.wait_until(until_s)
            finally:
                if me in self._waiting:
                    self._waiting.remove(me)
        self._is_held = True
        return True

    def release(self) -> None:
        if not self._is_held:
            raise RuntimeError("release unlocked lock")
        self._is_held = False
        if self._waiting:
            self._waiting.popleft().wake_s = self._scheduler.now_s

    def locked(self) -> bool:
        return self._is_held

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_held or not self._scheduler.is_over:  # at the end of the world, locks are not taken any more
            self.release()


class VirtualRLock(VirtualLock):
    """`threading.RLock`."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.owner: VirtualThread | None = None
        self.depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self.owner is not None and self.owner is self._scheduler.current:
            self.depth += 1
            return True
        if not super().acquire(blocking, timeout):
            return False
        self.owner, self.depth = self._scheduler.current, 1
        return True

    def release(self) -> None:
        if self.owner is None or (self.owner is not self._scheduler.current and not self._scheduler.is_over):
            raise RuntimeError("cannot release un-acquired lock")
        self.depth -= 1
        if self.depth <= 0:
            self.owner = None
            super().release()


class VirtualCondition:
    """`threading.Condition`."""

    def __init__(self, scheduler: Scheduler, lock: VirtualLock | None = None) -> None:
        self._scheduler = scheduler
        self._lock = VirtualRLock(scheduler) if lock is None else lock
        self._waiting: list[VirtualThread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.__exit__(kind, problem, trace)

    def wait(self, timeout: float | None = None) -> bool:
        scheduler, lock = self._scheduler, self._lock
        me = scheduler.me()
        depth = lock.depth if isinstance(lock, VirtualRLock) else 1
        if isinstance(lock, VirtualRLock):
            lock.depth = 1
        self._waiting.append(me)
        lock.release()
        try:
            scheduler.wait_until(NEVER_S if timeout is None else scheduler.now_s + max(timeout, SHORTEST_S))
        finally:
            was_notified = me not in self._waiting
            if not was_notified:
                self._waiting.remove(me)
            signals, me.signals = me.signals, deque()  # a second signal comes at the end of the next wait
            lock.acquire()
            me.signals.extendleft(reversed(signals))
            if isinstance(lock, VirtualRLock):
                lock.depth = depth
        return was_notified

    def wait_for(self, condition: Callable[[], Any], timeout: float | None = None) -> Any:
        until_s = NEVER_S if timeout is None else self._scheduler.now_s + timeout
        while not (value := condition()) and self._scheduler.now_s < until_s:
            self.wait(None if until_s == NEVER_S else until_s - self._scheduler.now_s)
        return value

    def notify(self, n: int = 1) -> None:
        for thread in self._waiting[:n]:
            thread.wake_s = self._scheduler.now_s
        del self._waiting[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class VirtualEvent:
    """`threading.Event`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._changed = VirtualCondition(scheduler, VirtualLock(scheduler))
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._changed.notify_all()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        with self._changed:
            return bool(self._changed.wait_for(lambda: self._is_set, timeout))


class VirtualQueue:
    """`queue.SimpleQueue`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._items: deque[Any] = deque()
        self._changed = VirtualCondition(scheduler, VirtualLock(scheduler))

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._changed.notify()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        assert block
        with self._changed:
            if not self._changed.wait_for(lambda: self._items, timeout):
                raise Empty
            return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class VirtualFuture(Future[Any]):
    """`concurrent.futures.Future`, whose result is awaited in virtual time."""

    scheduler: Scheduler

    def result(self, timeout: float | None = None) -> Any:
        self._await(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._await(timeout)
        return super().exception(0)

    def _await(self, timeout: float | None) -> None:
        wait_for_all(self.scheduler, [self], timeout)


def wait_for_all(scheduler: Scheduler, futures: Iterable[Future[Any]], timeout: float | None) -> bool:
    """Wait until all futures are done; return whether they are."""
    left = [future for future in futures if not future.done()]
    if not left:
        return True
    me = scheduler.me()
    is_waiting = True

    def wake(_: Future[Any]) -> None:
        if is_waiting:
            me.wake_s = scheduler.now_s

    for future in left:
        future.add_done_callback(wake)
    until_s = NEVER_S if timeout is None else scheduler.now_s + max(timeout, SHORTEST_S)
    try:
        while not (is_done := all(future.done() for future in left)) and scheduler.now_s < until_s:
            scheduler.wait_until(until_s)
    finally:
        is_waiting = False
    return is_done
