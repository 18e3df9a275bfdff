"""SIGTERM and SIGINT: the first one ends a service in good order with exit code 0, a second one ends it at once.

This holds from the first line of `wakeroll_pipeline.cli.main`; a signal to the interpreter before that has its usual
effect.
"""

import atexit
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType
from typing import NoReturn

log = logging.getLogger("wakeroll")

SERVICES = frozenset({"run", "observe", "tap", "serve", "up", "wake", "watch-kafka"})
"""Commands that run until they are stopped.  They exit with 0 then, because nothing failed; a service manager takes
another code for a failure.  `demo` has an end of its own: with 130, Ctrl-C tells a script that it was not reached."""

AGAIN_S = 1.0
"""A signal that follows sooner (s) belongs to the same request: `timeout` sends it to the process and to its group."""

RELEASE_S = 5.0
"""Longest time (s) for releasing leases while the process ends during its start; they expire by themselves too."""


def exit_on_signals(interrupted: int = 0) -> None:
    """End this process at once on SIGTERM or SIGINT: nothing has begun that must be finished or undone.

    Args:
        interrupted: exit code after SIGINT; it is 0 after SIGTERM.
    """
    atexit.register(_ignore)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, lambda *_: os._exit(interrupted))


class StopSignals:
    """The handler of SIGTERM and SIGINT of a service, in the main thread.

    While the service starts, a signal calls `release` and ends the process with code 0. After `finish`, a signal sets
    `asked`, and the service finishes its work in progress first. A second signal, more than a second later, ends the
    process at once with 128 plus the number of the signal; work in progress is then cut.

    The end during the start raises no exception: it would pass through Spark's launcher, which then deletes a file that
    its JVM needs, and the JVM would never end. Without an exception, it ends when its input is closed.
    """

    def __init__(self, *, is_starting: bool = False, at_once: Callable[[int], NoReturn] | None = None) -> None:
        """Handle signals from now on.

        Args:
            is_starting: whether a signal ends the process until `finish` is called.
            at_once: what a second signal calls, with its number; by default it ends the process.
        """
        self.asked = threading.Event()
        self.number = 0
        """Number of the first signal; 0 before it."""
        self.release: Callable[[], object] = _nothing
        """Releases what the process holds, such as leases; called by another thread, for 5 s at most."""
        self._is_starting = is_starting
        self._at_once = at_once or _exit
        self._asked_s = 0.0
        # A handler must not set an event: it may have interrupted the thread that holds the event's lock.
        self._signals: SimpleQueue[int] = SimpleQueue()
        threading.Thread(target=self._pass_on, name="stop-signals", daemon=True).start()
        atexit.register(_ignore)
        self.install()

    def install(self) -> None:
        """Handle signals again, after another library replaced the handlers."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def finish(self) -> None:
        """End the start: from now on, a signal lets work in progress finish."""
        self._is_starting = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            if time.monotonic() - self._asked_s > AGAIN_S:
                self._at_once(number)
            return
        self.number, self._asked_s = number, time.monotonic()
        self._signals.put(number)
        while self._is_starting:  # the main thread goes no further, and the process ends
            signal.pause()

    def _pass_on(self) -> None:
        self._signals.get()
        if self._is_starting:
            undoing = threading.Thread(target=self._undo, daemon=True)
            undoing.start()
            undoing.join(RELEASE_S)
            os._exit(0)
        self.asked.set()

    def _undo(self) -> None:
        log.info("stopping: nothing has been started that must be finished")
        self.release()


def _exit(number: int) -> NoReturn:
    log.warning("%s again: stopping at once; the next start repeats what is cut now", signal.Signals(number).name)
    os._exit(128 + number)


def _ignore() -> None:
    """Ignore signals at the very end: Python restores their default effect, which would change the exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _nothing() -> None:
    """Release nothing."""
