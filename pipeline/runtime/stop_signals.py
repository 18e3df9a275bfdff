"""SIGTERM and SIGINT: the first one ends a service in good order with exit code 0, a second one ends it at once.

This holds from the first line of `pipeline.cli.main`; a signal to the interpreter before that has its usual effect.
"""

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


def exit_on_signals(interrupted: int = 0) -> None:
    """End this process at once on SIGTERM or SIGINT: nothing has begun that must be finished or undone.

    Args:
        interrupted: exit code after SIGINT; it is 0 after SIGTERM.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, lambda *_: os._exit(interrupted))


class StopSignals:
    """The handler of SIGTERM and SIGINT of a service, in the main thread.

    While the service starts, a signal raises SystemExit(0), so `with` blocks release what they hold. After `finish`, a
    signal sets `asked`, and the service finishes its work in progress first. A second signal, more than a second later,
    ends the process at once with 128 plus the number of the signal; work in progress is then cut.
    """

    def __init__(self, *, is_starting: bool = False, at_once: Callable[[int], NoReturn] | None = None) -> None:
        """Handle signals from now on.

        Args:
            is_starting: whether a signal raises SystemExit until `finish` is called.
            at_once: what a second signal calls, with its number; by default it ends the process.
        """
        self.asked = threading.Event()
        self.number = 0
        """Number of the first signal; 0 before it."""
        self._is_starting = is_starting
        self._at_once = at_once or _exit
        self._asked_s = 0.0
        # A handler must not set an event: it may have interrupted the thread that holds the event's lock.
        self._signals: SimpleQueue[int] = SimpleQueue()
        threading.Thread(target=self._pass_on, name="stop-signals", daemon=True).start()
        self.install()

    def install(self) -> None:
        """Handle signals again, after another library replaced the handlers."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def finish(self) -> None:
        """End the start: from now on, work in progress is finished.

        Raises:
            SystemExit: a signal arrived before; code that caught the exception of the handler cannot suppress it.
        """
        self._is_starting = False
        if self.number:
            raise SystemExit(0)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            if time.monotonic() - self._asked_s > AGAIN_S:
                self._at_once(number)
            return
        self.number, self._asked_s = number, time.monotonic()
        if self._is_starting:
            log.info("stopping: nothing has been started that must be finished")
            raise SystemExit(0)
        self._signals.put(number)

    def _pass_on(self) -> None:
        self._signals.get()
        self.asked.set()


def _exit(number: int) -> NoReturn:
    log.warning("%s again: stopping at once; the next start repeats what is cut now", signal.Signals(number).name)
    os._exit(128 + number)
