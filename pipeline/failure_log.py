"""Something that keeps failing is said once when it begins, and once when it is over."""

import logging


class Trouble:
    """One thing that may fail again and again, and its one line in the log."""

    def __init__(self, log: logging.Logger, over: str) -> None:
        """Start without trouble.

        Args:
            log: where to say it.
            over: what to say when it works again.
        """
        self._log = log
        self._over = over
        self._lasts = False

    def began(self, what: str) -> None:
        """Say what fails, unless that has been said since it last worked."""
        if not self._lasts:
            self._log.warning("%s", what)
        self._lasts = True

    def ended(self) -> None:
        """Say that it works again, if it did not."""
        if self._lasts:
            self._log.info("%s", self._over)
        self._lasts = False
