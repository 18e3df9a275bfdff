"""One log line when a repeated failure begins, and one when it ends."""

import logging


class Trouble:
    """The state of one operation that may fail repeatedly, and its log lines."""

    def __init__(self, log: logging.Logger, over: str) -> None:
        """Begin in the working state.

        Args:
            log: logger of the lines.
            over: text of the line at the end of a failure.
        """
        self._log = log
        self._over = over
        self._lasts = False

    def began(self, what: str) -> None:
        """Log the failure as a warning, unless it was logged since the operation last worked."""
        if not self._lasts:
            self._log.warning("%s", what)
        self._lasts = True

    def ended(self) -> None:
        """Log the end of the failure, if one was logged."""
        if self._lasts:
            self._log.info("%s", self._over)
        self._lasts = False
