"""Threads, locks and time of one seed: one thread runs at a time, and the seed chooses which one at each switch."""

import threading
from collections import deque
from collections.abc import Callable
from random import Random
from types import SimpleNamespace, TracebackType
from typing import Any, Self

NEVER_S = float("inf")
SWITCHES = 400_000
"""Most switches in a world; more mean that it does not come to rest."""


class Over(BaseException):
    """Raised in every thread that is left when the world ends."""


class Scheduler:
    """Runs real threads one at a time, in virtual time that passes only while all of them wait."""

    def __init__(self, rng: Random, switches_at_locks: float) -> None:
        """Begin without threads; a thread that takes a lock is interrupted with probability `switches_at_locks`."""
        self.now_s = 1_000.0
        self.threads: list[ScheduledThread] = []
        self.current: ScheduledThread | None = None
        self.is_over = False
        self.problems: list[BaseException] = []
        """Exceptions that ended a thread."""
        self._rng = rng
        self._switches_at_locks = switches_at_locks
        self._baton = threading.Semaphore(0)

    def run(self, main: Callable[[], None]) -> None:
        """Run `main` and the threads that it starts, until it returns; then end all threads."""
        driver = ScheduledThread(self, main, "driver")
        driver.start()
        try:
            for _ in range(SWITCHES):
                if driver.is_finished:
                    break
                self._resume(self._next())
            else:
                raise AssertionError(f"no end after {SWITCHES} switches, at {self.now_s:.1f} s")
        finally:
            self.is_over = True
            while left := [thread for thread in self.threads if not thread.is_finished]:
                self._resume(left[0])
        if driver.problem is not None:
            raise driver.problem

    def sleep(self, seconds: float) -> None:
        """Let the running thread wait."""
        self.wait_until(self.now_s + seconds)

    def wait_until(self, at_s: float) -> None:
        """Let the running thread wait until this time, or until another thread makes it ready."""
        me = self._me()
        me.wake_s = at_s
        self._switch(me)

    def maybe_switch(self) -> None:
        """Interrupt the running thread sometimes."""
        if self._rng.random() < self._switches_at_locks:
            me = self._me()
            me.wake_s = self.now_s
            self._switch(me)

    def _me(self) -> "ScheduledThread":
        if self.is_over:
            raise Over
        assert self.current is not None, "only a scheduled thread may wait"
        return self.current

    def _switch(self, me: "ScheduledThread") -> None:
        self._baton.release()
        me.go.acquire()
        if self.is_over:
            raise Over

    def _next(self) -> "ScheduledThread":
        living = [thread for thread in self.threads if not thread.is_finished]
        self.threads = living
        due_s = min(max(thread.wake_s, thread.frozen_until_s) for thread in living)
        assert due_s < NEVER_S, f"a deadlock: {[thread.name for thread in living]}"
        self.now_s = max(self.now_s, due_s)
        ready = [thread for thread in living if max(thread.wake_s, thread.frozen_until_s) <= self.now_s]
        return self._rng.choice(ready)

    def _resume(self, thread: "ScheduledThread") -> None:
        self.current = thread
        thread.go.release()
        self._baton.acquire()

    def ended(self, thread: "ScheduledThread") -> None:
        """Note that a thread has ended."""
        thread.is_finished = True
        self._baton.release()

    def modules(self) -> tuple[Any, Any]:
        """Return what stands in for the modules `threading` and `time`."""
        owner = self

        def of(kind: type) -> Callable[..., Any]:
            return lambda *arguments, **named: kind(owner, *arguments, **named)

        def make_thread(target: Callable[[], None], name: str, daemon: bool) -> ScheduledThread:
            assert daemon
            return ScheduledThread(owner, target, name)

        threads = SimpleNamespace(
            Thread=make_thread,
            get_ident=lambda: 0,  # for the log only
            Lock=of(ScheduledLock),
            RLock=of(ScheduledLock),
            Condition=of(ScheduledCondition),
            Event=of(ScheduledEvent),
        )
        return threads, SimpleNamespace(monotonic=lambda: owner.now_s, sleep=self.sleep)


class ScheduledThread:
    """The part of `threading.Thread` that the SDK uses."""

    def __init__(self, scheduler: Scheduler, target: Callable[[], None], name: str) -> None:
        self.name = name
        self.client = getattr(scheduler.current, "client", "")
        """Client whose thread it is: that of the thread that made it."""
        self.go = threading.Semaphore(0)
        self.wake_s = scheduler.now_s
        self.frozen_until_s = 0.0
        self.is_finished = True
        self.problem: BaseException | None = None
        self._scheduler = scheduler
        self._target = target

    def start(self) -> None:
        self.is_finished = False
        self.frozen_until_s = getattr(self._scheduler.current, "frozen_until_s", 0.0)
        self._scheduler.threads.append(self)
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def is_alive(self) -> bool:
        return not self.is_finished

    def join(self, timeout: float = NEVER_S) -> None:
        until_s = self._scheduler.now_s + timeout
        while not self.is_finished and self._scheduler.now_s < until_s:
            self._scheduler.wait_until(min(until_s, self._scheduler.now_s + 0.05))

    def _run(self) -> None:
        self.go.acquire()
        try:
            if not self._scheduler.is_over:
                self._target()
        except Over:
            pass
        except BaseException as problem:
            self.problem = problem
            self._scheduler.problems.append(problem)
        self._scheduler.ended(self)


class ScheduledLock:
    """The part of `threading.Lock` that the SDK uses."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_held = False
        self._waiting: deque[ScheduledThread] = deque()

    def __enter__(self) -> Self:
        self._scheduler.maybe_switch()
        self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give()

    def release(self) -> None:
        """Refuse: it is called by threads that do not hold the lock."""
        raise RuntimeError("no exception comes between a block and its end in a simulated world")

    def take(self) -> None:
        while self._is_held and not self._scheduler.is_over:
            assert self._scheduler.current is not None
            self._waiting.append(self._scheduler.current)
            self._scheduler.wait_until(NEVER_S)
        self._is_held = True

    def give(self) -> None:
        self._is_held = False
        if self._waiting:
            self._waiting.popleft().wake_s = self._scheduler.now_s


class ScheduledCondition:
    """The part of `threading.Condition` that the SDK uses."""

    def __init__(self, scheduler: Scheduler, lock: ScheduledLock | None = None) -> None:
        self._scheduler = scheduler
        self._lock = ScheduledLock(scheduler) if lock is None else lock
        self._waiting: list[ScheduledThread] = []

    def __enter__(self) -> Self:
        self._lock.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.give()

    def release(self) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = self._scheduler
        me = scheduler.current
        assert me is not None
        self._waiting.append(me)
        self._lock.give()
        scheduler.wait_until(NEVER_S if timeout is None else scheduler.now_s + timeout)
        was_notified = me not in self._waiting
        if not was_notified:
            self._waiting.remove(me)
        self._lock.take()
        return was_notified

    def wait_for(self, condition: Callable[[], Any], timeout: float | None = None) -> Any:
        until_s = NEVER_S if timeout is None else self._scheduler.now_s + timeout
        while not (value := condition()) and self._scheduler.now_s < until_s:
            self.wait(None if until_s == NEVER_S else until_s - self._scheduler.now_s)
        return value

    def notify(self, count: int = 1) -> None:
        for thread in self._waiting[:count]:
            thread.wake_s = self._scheduler.now_s
        del self._waiting[:count]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class ScheduledEvent:
    """The part of `threading.Event` that the SDK uses."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._changed = ScheduledCondition(scheduler)
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
