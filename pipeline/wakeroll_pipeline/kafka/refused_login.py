"""The end of a process whose login is rejected although it worked before: its password or certificate has changed.

Kafka's clients retry for ever with the files that they read at the start. If the process ends with the reason, its
supervisor restarts it; then it reads its files again, and works as soon as they are right.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wakeroll.connection import Connection
from wakeroll.errors import LoginFailed, NotReachable
from wakeroll_pipeline.kafka.topic_admin import Cluster

_EVERY_S = 3.0
"""Interval of the queries to the brokers, and longest wait for each answer (s)."""
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
            The error that should end the process, after `LONGEST_S` of rejections only; None: the process may continue.
        """
        if not isinstance(error, LoginFailed):
            return None  # a broker that is away says nothing about the login
        if self._since_s is None:
            self._since_s = self._clock()
        return error if self._clock() - self._since_s >= LONGEST_S else None


@contextmanager
def login_watched(connection: Connection, stop: threading.Event) -> Iterator[None]:
    """Watch the login of a process with one client on behalf of all others; set `stop` if it is rejected.

    The client is never replaced, because a new one would read newer certificates than the other clients.

    Raises:
        LoginFailed: at the end of the block, if the brokers have rejected the login for `LONGEST_S`; in place of an
            error of the block, which is then a consequence.
    """
    refused: list[LoginFailed] = []
    ended = threading.Event()

    def watch() -> None:
        cluster, logins = Cluster(connection, patience_s=_EVERY_S, stop=ended, renew_s=math.inf), RefusedLogin()
        while not ended.wait(_EVERY_S):
            try:
                cluster.racks([connection.topics.groups])
            except NotReachable as error:
                if (reason := logins.failed(error)) is not None:
                    refused.append(reason)
                    stop.set()
                    return
            else:
                logins.worked()

    thread = threading.Thread(target=watch, name="login", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(2 * _EVERY_S)
        if refused:
            raise refused[0]
