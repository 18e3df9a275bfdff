"""When a rejected login ends a process that had logged in before: its password or certificate has changed.

Kafka's clients retry for ever with what they read at the start. A process that ends with the reason is started again by
its supervisor, reads its files again, and works as soon as they are right.
"""

import time
from collections.abc import Callable

from wakeroll.errors import LoginFailed

LONGEST_S = 15.0
"""How long logins may be rejected before the process ends (s): brokers that restart one by one may disagree."""


class RefusedLogin:
    """The rejections of a login since the last answer. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without a rejection; `clock` returns seconds, and never goes back."""
        self._clock = clock
        self._since_s: float | None = None

    def worked(self) -> None:
        """Report that a broker has answered."""
        self._since_s = None

    def failed(self, error: Exception) -> LoginFailed | None:
        """Report why no broker has answered.

        Returns:
            The error that should end the process: nothing but rejections for `LONGEST_S`; None: it may go on.
        """
        if not isinstance(error, LoginFailed):
            return None  # a broker that is away says nothing about the login
        if self._since_s is None:
            self._since_s = self._clock()
        return error if self._clock() - self._since_s >= LONGEST_S else None
