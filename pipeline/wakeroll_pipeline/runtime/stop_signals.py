"""SIGTERM and SIGINT: the first one ends a service cleanly with exit code 0, and a second one ends it at once.

This holds from the first line of `wakeroll_pipeline.cli.main`; a signal to the interpreter before that has its usual
effect.
"""

import atexit
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

log = logging.getLogger("wakeroll")

SERVICES = frozenset({"run", "observe", "tap", "serve", "up", "wake", "watch-kafka"})
"""Commands that run until they are stopped. They exit with 0 then, because a service manager treats any other code as a
failure. `demo` has an end of its own: after Ctrl-C, it exits with 130, which shows a script that the end was not
reached."""

_BOTH = (signal.SIGTERM, signal.SIGINT)

AGAIN_S = 1.0
"""A second signal within this time (s) belongs to the same request: `timeout` sends it to the process and to its
group."""

RELEASE_S = 5.0
"""Longest time for the release of leases when the process ends during its start (s); leases also expire by
themselves."""


def exit_on_signals(interrupted: int = 0) -> None:
    """End this process at once on SIGTERM or SIGINT, because no work has begun that must be finished or undone.

    Args:
        interrupted: exit code after SIGINT; it is 0 after SIGTERM.
    """
    atexit.register(_ignore)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, lambda *_: os._exit(interrupted))


class StopSignals:
    """The handler of SIGTERM and SIGINT of a service, in the main thread.

    While the service starts, a signal calls `release` and ends the process with code 0. After `finish`, a signal sets
    `asked`, and the service first finishes its work in progress. A second signal, more than a second later, ends the
    process at once with 128 plus the number of the signal; work in progress is then cut.

    A separate thread receives the signals. Python calls a handler only between two steps of the main thread. The call
    may be late if the main thread waits in a call of a library, or begins one just after the signal has arrived.

    The end during the start raises no exception, which would pass through Spark's launcher. The launcher would then
    delete a file that its JVM needs, and the JVM would never end. Without an exception, the JVM ends when its input is
    closed.
    """

    def __init__(self, *, is_starting: bool = False, at_once: Callable[[int], NoReturn] | None = None) -> None:
        """Handle signals from now on.

        Args:
            is_starting: whether a signal ends the process until `finish` is called.
            at_once: function that a second signal calls with its number, by interrupting the main thread; by default,
                the process ends.
        """
        self.asked = threading.Event()
        self.number = 0
        """Number of the first signal; 0 before it."""
        self.release: Callable[[], object] = _nothing
        """Releases resources of the process, such as leases; called by another thread, for 5 s at most."""
        self._is_starting = is_starting
        self._at_once = at_once
        self._handled_s: float | None = None
        received, self._sent = os.pipe()
        os.set_blocking(self._sent, False)
        threading.Thread(target=self._receive, args=(received,), name="stop-signals", daemon=True).start()
        os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_forget)
        atexit.register(_ignore)
        self.install()

    def install(self) -> None:
        """Handle signals again, after another library replaced the handlers."""
        signal.set_wakeup_fd(self._sent, warn_on_full_buffer=False)
        for number in _BOTH:
            signal.signal(number, self._handle)

    def finish(self) -> None:
        """End the start: from now on, a signal lets work in progress finish."""
        self._is_starting = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        """Do the work that only the main thread can do."""
        while self._is_starting:  # it goes no further, and the process ends
            signal.pause()
        if self._handled_s is None:
            self._handled_s = time.monotonic()
        elif self._at_once is not None and time.monotonic() - self._handled_s > AGAIN_S:
            self._at_once(number)

    def _receive(self, received: int) -> None:
        first_s = 0.0
        for number in _numbers(received):
            if not self.number:
                self.number, first_s = number, time.monotonic()
                if self._is_starting:
                    threading.Thread(target=self._undo, name="undoing", daemon=True).start()
                else:
                    self.asked.set()
            elif self._at_once is None and time.monotonic() - first_s > AGAIN_S:
                _exit(number)

    def _undo(self) -> None:
        """Undo the start, and end the process."""
        log.info("stopping: nothing has been started that must be finished")
        releasing = threading.Thread(target=self.release, name="releasing", daemon=True)
        releasing.start()
        releasing.join(RELEASE_S)
        os._exit(0)


def _numbers(received: int) -> Iterator[int]:
    """Yield the numbers of SIGTERM and SIGINT as Python writes them into a pipe."""
    while True:
        for number in os.read(received, 64):
            if number in _BOTH:
                yield number


def _hold() -> None:
    """Hold signals before a fork, because a signal for the child would be written into the pipe of this process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _BOTH)


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BOTH)


def _forget() -> None:
    """Restore the default effect of signals in a forked process, which is not the service.

    Python's exception for SIGINT would be lost if the signal had arrived already.
    """
    signal.set_wakeup_fd(-1)
    for number in _BOTH:
        signal.signal(number, signal.SIG_DFL)
    _let_go()


def _exit(number: int) -> NoReturn:
    log.warning("%s again: stopping at once; the next start repeats what is cut now", signal.Signals(number).name)
    os._exit(128 + number)


def _ignore() -> None:
    """Ignore signals at the very end, where Python restores their default effect, which would change the exit code."""
    for number in _BOTH:
        signal.signal(number, signal.SIG_IGN)


def _nothing() -> None:
    """Release nothing."""
