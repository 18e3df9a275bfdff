"""How long a loop waits at once: shortly while something happens, longer when nothing has happened for a while."""

import time

SLICE_S = 0.05
"""Longest wait while something happens (s): so soon the loop notices what cannot wake it."""
REST_S = 0.25
"""Longest wait at rest (s). Each wait costs 0.1 to 0.7 ms of a core, so 20 in a second cost up to 1.3 % of it."""
REST_AFTER_S = 5.0
"""How long nothing must have happened (s)."""


class Pace:
    """The pace of one loop; only the thread of the loop uses it."""

    def __init__(self) -> None:
        """Begin as if something had just happened."""
        self._happened_s = time.monotonic()

    def note(self) -> None:
        """Note that something has happened."""
        self._happened_s = time.monotonic()

    @property
    def wait_s(self) -> float:
        """How long the loop may wait at once now (s)."""
        return SLICE_S if time.monotonic() - self._happened_s < REST_AFTER_S else REST_S
