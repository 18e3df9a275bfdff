"""Reports to systemd, for units with `Type=notify`: whether a process is ready, what it waits for, and keep-alives.

Systemd names its socket in NOTIFY_SOCKET. Without this variable nothing is sent.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wakeroll_pipeline.metrics.health import Answer, Health

log = logging.getLogger("wakeroll.metrics")

_POLL_S = 1.0
"""Interval in which the health is read (s)."""
LONGEST_PAUSE_S = 20.0
"""Longest time between two keep-alives (s); less if the unit has a shorter WatchdogSec."""
START_S = 900.0
"""Time that systemd grants the start after each round of a loop (s). Spark's start has no rounds, and took six minutes
on a machine with a load of 38."""
_STATUS_S = 5.0
"""Minimum time between two reports of a reason why the process is not ready (s), because some reasons contain a
duration."""
_ANSWER_S = 1.0
"""Longest wait for systemd to accept a report (s)."""
_LONGEST_STATUS = 500
"""Length of a status (characters), which `systemctl status` shows in one line."""


def is_awaited() -> bool:
    """Return whether systemd waits for reports of this process."""
    return bool(os.environ.get("NOTIFY_SOCKET"))


@contextmanager
def reported_to_systemd(health: Health, readiness: Callable[[], Answer] | None = None) -> Iterator[None]:
    """Send reports during a `with` block; do nothing if systemd does not wait for any.

    A keep-alive (`WATCHDOG=1`) is sent while all loops begin new rounds, even if brokers or a store cannot be reached,
    because a restart would not repair that. While the process starts, each new round extends the time for its start.

    Args:
        health: health of this process.
        readiness: returns whether the process is ready; None: that of `health`.
    """
    if not is_awaited():
        yield
        return
    reports = Reports(os.environ["NOTIFY_SOCKET"], health, readiness or health.readiness, _watchdog_s())
    stopped = threading.Event()

    def send() -> None:
        while not stopped.wait(_POLL_S):
            reports.send()

    thread = threading.Thread(target=send, name="systemd reports", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        reports.send()
        reports.close()


class Reports:
    """The reports of one process; each call of `send` sends what is due."""

    def __init__(
        self,
        address: str,
        health: Health,
        readiness: Callable[[], Answer],
        watchdog_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open a socket.

        Args:
            address: path of systemd's socket; one that begins with "@" is in the abstract namespace.
            health: health of this process.
            readiness: returns whether the process is ready.
            watchdog_s: the unit's WatchdogSec (s); 0: it has none.
            clock: returns seconds, and never goes back.
        """
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._health = health
        self._readiness = readiness
        self._pause_s = min(watchdog_s / 3, LONGEST_PAUSE_S) if watchdog_s else LONGEST_PAUSE_S
        self._clock = clock
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(_ANSWER_S)
        self._is_ready = False
        """Whether the process was ready once; only the status can then report to systemd that it is not ready any
        more."""
        self._status = ""
        self._status_due_s = 0.0
        self._due_s = 0.0
        self._rounds = 0
        """Rounds of the loops at the last keep-alive."""

    def send(self) -> None:
        """Send what has changed since the last call, and a keep-alive if it is due."""
        ready, lines = self._readiness(), []
        if ready.ok and not self._is_ready:
            lines.append("READY=1")
        status = " ".join(ready.reason.split())[:_LONGEST_STATUS]
        now_s, rounds, is_up = self._clock(), self._health.rounds, self._is_ready or ready.ok
        if status != self._status and (ready.ok or now_s >= self._status_due_s):
            lines.append(f"STATUS={status}")
        gets_on = self._health.liveness().ok and (is_up or rounds != self._rounds)
        if is_due := gets_on and now_s >= self._due_s:
            lines.append("WATCHDOG=1" if is_up else f"EXTEND_TIMEOUT_USEC={START_S * 1e6:.0f}")
        if not lines:
            return
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:  # the next call sends it again
            log.debug("systemd does not take a report: %s", error)
            return
        self._is_ready = is_up
        if f"STATUS={status}" in lines:
            self._status, self._status_due_s = status, now_s if ready.ok else now_s + _STATUS_S
        if is_due:
            self._due_s, self._rounds = now_s + self._pause_s, rounds

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _watchdog_s() -> float:
    """Return the unit's WatchdogSec (s); 0 if it has none, or if it is for another process."""
    text, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", str(os.getpid()))
    return int(text) / 1e6 if text.isdigit() and pid == str(os.getpid()) else 0.0
