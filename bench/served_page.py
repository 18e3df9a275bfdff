"""The process of `wakeroll serve` during a measurement."""

import http.client
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.frame import NotMeasured
from wakeroll_pipeline.local.child_process import Child
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

    def get(self, path: str, timeout_s: float = _ANSWER_S) -> str:
        """Return the text of a page.

        Raises:
            NotMeasured: it is not answered with 200.
            OSError: no answer.
        """
        parts = urlsplit(self.address)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise NotMeasured(f"GET {path} was answered with {answer.status}: {text[-2_000:]}")
        return text

    def health(self) -> dict[str, Any]:
        """Return what the page says of itself; its `state` is such as ``live``."""
        return dict(json.loads(self.get("/api/groups?limit=1", timeout_s=30))["health"])

    def _is_ready(self) -> bool:
        if not self.address:
            told = _ADDRESS.search(self.log.read_bytes())
            if told is None:
                return False
            self.address = told[0].decode()
        try:
            self.get("/readyz")
        except (NotMeasured, OSError):
            return False
        return True
