"""Health of a process: whether its loops run, and whether it has done its first work."""

import math
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

LOOP_TIMEOUT_S = 300.0
"""Longest time between two rounds of a loop that is alive (s). Snapshots may take a minute on a busy machine."""


class Answer(NamedTuple):
    """The answer to a probe."""

    ok: bool
    reason: str
    """One sentence."""


class Health:
    """The reports of the loops of a process. For any thread.

    A loop is alive while it begins a new round often enough. A broker that does not answer is not a reason to restart a
    process, and does not count.
    """

    def __init__(
        self,
        awaited: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        lapsed: str = "",
        lapse_s: float = math.inf,
    ) -> None:
        """Begin: alive, because no loop has begun, and not ready.

        Args:
            awaited: the first work of this process, such as "the first batch is not complete".
            clock: returns seconds, and never goes back.
            lapsed: reason if the process is not ready any more, such as "no tick was acknowledged".
            lapse_s: how long the process stays ready after `ready` (s).
        """
        self._clock = clock
        self._lapsed = lapsed
        self._lapse_s = lapse_s
        self._ready_s = math.inf
        """Time of the last success (s)."""
        self._parts: dict[str, str] = {}
        """Part of the process -> reason why it is not ready; empty if it is ready."""
        self._rounds: dict[str, float] = {}
        """Loop -> time of its last round (s)."""
        self.rounds = 0
        """Number of rounds that all loops have begun; it grows while the process makes progress."""
        self._awaited = awaited
        self._unready = awaited
        self._stops = False
        self._lock = threading.Lock()

    def beat(self, loop: str) -> None:
        """Report that a loop begins a round; its first round starts its supervision."""
        with self._lock:
            if not self._stops:
                self._rounds[loop] = self._clock()
                self.rounds += 1

    def awaits(self, what: str) -> None:
        """Report what this process waits for, as a sentence without its period, until `begun`."""
        with self._lock:
            if not self._stops:
                self._unready = what

    def begun(self, loop: str) -> None:
        """Report that a loop of the start has ended successfully, so that it makes no more rounds."""
        with self._lock:
            self._rounds.pop(loop, None)
            if not self._stops:
                self._unready = self._awaited

    def judged(self, part: str, unready: str) -> None:
        """Report why a part of the process, such as a query, is not ready; an empty reason means that it is."""
        with self._lock:
            self._parts[part] = unready

    def ready(self) -> None:
        """Report that work has succeeded; this has no effect on a process that is about to end."""
        with self._lock:
            if not self._stops:
                self._unready = ""
                self._ready_s = self._clock()

    def stopping(self) -> None:
        """Report that this process is about to end, so that its loops need not run any more."""
        with self._lock:
            self._stops = True
            self._unready = "the process is stopping"
            self._rounds.clear()

    def liveness(self) -> Answer:
        """Return whether all loops run."""
        now_s = self._clock()
        with self._lock:
            ages_s = {loop: now_s - at_s for loop, at_s in self._rounds.items()}
        if stuck := sorted(loop for loop, age_s in ages_s.items() if age_s > LOOP_TIMEOUT_S):
            ages = ", ".join(f"{loop} for {ages_s[loop]:.0f} s" for loop in stuck)
            return Answer(False, f"not alive: no new round of {ages}; the limit is {LOOP_TIMEOUT_S:.0f} s")
        if not ages_s:
            return Answer(True, "alive: starting or stopping; no loop runs")
        ages = ", ".join(f"{loop} {age_s:.1f} s" for loop, age_s in sorted(ages_s.items()))
        return Answer(True, f"alive: time since the last round of {ages}")

    def is_ready(self, part: str = "") -> bool:
        """Return whether a part of the process is ready; the whole process if no part, or an unknown one, is named."""
        with self._lock:
            unready = None if self._stops else self._parts.get(part)
        return self.readiness().ok if unready is None else not unready

    def readiness(self) -> Answer:
        """Return whether the last work has succeeded recently, and the process is not about to end."""
        with self._lock:
            age_s = self._clock() - self._ready_s
            unready = self._unready or (f"{self._lapsed} for {age_s:.0f} s" if age_s > self._lapse_s else "")
        return Answer(False, f"not ready: {unready}") if unready else Answer(True, "ready")
