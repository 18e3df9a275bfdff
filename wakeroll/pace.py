"""The length of a loop's waits: short while something happens, longer when nothing has happened for a while."""

import time

SLICE_S = 0.05
"""Longest wait while something happens (s); a change that cannot wake the loop is noticed after this time."""
REST_S = 0.25
"""Longest wait at rest (s). Each wait costs 0.1 to 0.7 ms of a core, so 20 in a second cost up to 1.3 % of it."""
REST_AFTER_S = 5.0
"""How long nothing must have happened before waits become long (s)."""


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
        """The longest wait of the loop at present (s)."""
        return SLICE_S if time.monotonic() - self._happened_s < REST_AFTER_S else REST_S
