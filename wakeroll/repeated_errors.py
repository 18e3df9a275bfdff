"""Errors that may occur once per message or call: the first is logged at once, further ones as one count per minute."""

import threading
import time

EVERY_S = 60.0
"""How long further errors of a kind are counted without a line in the log (s)."""
MOST_KINDS = 1_000
"""Maximum number of kinds of errors that are remembered; beyond it, all of them are forgotten."""


class RepeatedErrors:
    """Decides which errors of this process are logged. Any thread may use it."""

    def __init__(self) -> None:
        """Begin without errors."""
        self._lock = threading.Lock()
        self._kinds: dict[str, tuple[float, int]] = {}
        """Kind -> the time of its last line in the log, by the monotonic clock (s), and the number of errors since."""

    def words(self, kind: str) -> str | None:
        """Return the end of the line about an error: how many of its kind were not logged; None: do not log it."""
        now_s = time.monotonic()
        with self._lock:
            if kind not in self._kinds and len(self._kinds) >= MOST_KINDS:
                self._kinds.clear()
            logged_s, silent = self._kinds.get(kind, (-EVERY_S, 0))
            if kind in self._kinds and now_s < logged_s + EVERY_S:
                self._kinds[kind] = logged_s, silent + 1
                return None
            self._kinds[kind] = now_s, 0
        return f"; and {silent} others since the last such line" if silent else ""


repeated = RepeatedErrors()
"""The errors of this process, of all its clients."""
