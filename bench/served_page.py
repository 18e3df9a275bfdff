"""The process of `wakeroll serve` during a measurement."""

import http.client
import os
import re
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from wakeroll_pipeline.local.child_process import Child, ChildFailed
from wakeroll_pipeline.settings import Settings

READY_S = 240.0
"""Longest wait until the log is read (s)."""
_ADDRESS = re.compile(rb"http://\S+:\d+/")
_ANSWER_S = 10.0


class ServedPage(Child):
    """`wakeroll serve` as a child process, on a port that the system chooses."""

    def __init__(self, settings: Settings, log: Path) -> None:
        """Describe the process; `log` must not exist yet, because the address is read from it."""
        super().__init__(
            "wakeroll serve",
            [sys.executable, "-m", "wakeroll_pipeline.cli", "serve", "--port", "0", "--bootstrap", settings.bootstrap],
            log=log,
            env={**os.environ, **settings.environment()},
            grace_s=15,
        )
        self.address = ""
        """Of the page, once it listens."""

    def until_ready(self) -> float:
        """Wait until the page shows the present; return the seconds since this call.

        Raises:
            ChildFailed: it ended, or was not ready in time.
        """
        began_s = time.monotonic()
        self.wait_until(self._is_ready, READY_S)
        return time.monotonic() - began_s

    def check(self) -> None:
        """Raise `ChildFailed` if the process has ended by itself; the message names its log."""
        if not self.is_running:
            raise ChildFailed(f"{self.name} ended with code {self.returncode}; see {self.log}")

    def _is_ready(self) -> bool:
        if not self.address:
            told = _ADDRESS.search(self.log.read_bytes())
            if told is None:
                return False
            self.address = told[0].decode()
        parts = urlsplit(self.address)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_ANSWER_S)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()
