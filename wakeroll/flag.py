"""An event for one waiting thread; an exception of a signal handler cannot leave it locked."""

import time
from queue import Empty, SimpleQueue


class Flag:
    """The part of `threading.Event` that one thread waits for, and any thread sets.

    The lock of an `Event` would stay locked if an exception of a signal handler came at the wrong moment; then the next
    thread that sets it would wait for ever.
    """

    def __init__(self) -> None:
        """Begin unset."""
        self._is_set = False
        self._bell: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake the thread that waits."""
        self._is_set = True
        if self._bell.empty():
            self._bell.put(None)

    def clear(self) -> None:
        """Reset it; for the thread that waits."""
        self._is_set = False

    def wait(self, timeout: float) -> bool:
        """Wait until it is set, at most `timeout` seconds; return whether it is."""
        deadline = time.monotonic() + timeout
        while not self._is_set and (left_s := deadline - time.monotonic()) > 0:
            try:
                self._bell.get(timeout=left_s)
            except Empty:
                break
        return self._is_set
