"""Asyncio in virtual time: an event loop that waits as virtual threads do, and a pool of virtual threads."""

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tests.support.simulation.ring.virtual_threads import (
    Scheduler,
    VirtualCondition,
    VirtualFuture,
    VirtualLock,
    VirtualThread,
)


class _Selector:
    """What the loop waits with: there are no sockets, only other threads that wake it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._changed = VirtualCondition(scheduler, VirtualLock(scheduler))
        self._is_woken = False

    def wake(self) -> None:
        self._is_woken = True
        self._changed.notify_all()

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            with self._changed:
                self._changed.wait_for(lambda: self._is_woken, timeout)
        self._is_woken = False
        return []

    def close(self) -> None:
        pass


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._selector = _Selector(scheduler)
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._scheduler.now_s

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        pool = executor if executor is not None else VirtualPool(self._scheduler, 1, "asyncio")
        answer = asyncio.wrap_future(pool.submit(func, *args), loop=self)
        if executor is None:
            pool.shutdown(wait=False)
        return answer

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._scheduler.is_over:  # tasks are left when the world ends
            super().call_exception_handler(context)

    def _write_to_self(self) -> None:
        self._selector.wake()

    def _process_events(self, event_list: list[Any]) -> None:
        del event_list


class VirtualPool:
    """`ThreadPoolExecutor`, whose threads are virtual."""

    def __init__(self, scheduler: Scheduler, max_workers: int = 1, thread_name_prefix: str = "pool", **_: Any) -> None:
        self._scheduler = scheduler
        self._most = max_workers
        self._name = thread_name_prefix
        self._changed = VirtualCondition(scheduler)
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads: list[VirtualThread] = []
        self._idle = 0
        self._is_shut_down = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with self._changed:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            future = VirtualFuture()
            self._calls.append((future, functools.partial(fn, *args, **kwargs)))
            if self._idle:
                self._changed.notify()
            elif len(self._threads) < self._most:
                self._threads.append(VirtualThread(self._scheduler, self._work, f"{self._name}-{len(self._threads)}"))
                self._threads[-1].start()
            return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._changed:
            self._is_shut_down = True
            while cancel_futures and self._calls:
                self._calls.popleft()[0].cancel()
            self._changed.notify_all()
        for thread in self._threads if wait else ():
            thread.join()

    def _work(self) -> None:
        me = self._scheduler.me()
        while True:
            with self._changed:
                while not self._calls:
                    if self._is_shut_down:
                        return
                    self._idle += 1
                    me.is_spare = True
                    self._changed.wait(None)
                    me.is_spare = False
                    self._idle -= 1
                future, call = self._calls.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as problem:
                if self._scheduler.is_over:
                    raise
                future.set_exception(problem)
