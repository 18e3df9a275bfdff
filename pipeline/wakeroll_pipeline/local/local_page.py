"""The web page beside a system on this machine: a process of its own, which ends with this one."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.settings import Settings

READY_S = 120.0
"""Longest wait for the address of the page (s). It takes a second; busy cores may delay it."""


class LocalPage:
    """A running page."""

    def __init__(self, child: Child, address: str) -> None:
        self.address = address
        self._child = child

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self._child.is_running

    def check(self) -> None:
        """Raise `ChildFailed` if the process has ended by itself; the message has the reason."""
        self._child.check()


@contextmanager
def local_page(settings: Settings, port: int) -> Iterator[LocalPage]:
    """Run `wakeroll serve` during a `with` block.

    Args:
        settings: settings of the deployment; without brokers, the page shows the tables.
        port: port of the page; 0: one that the system chooses.

    Raises:
        ChildFailed: the page cannot be served, for example because the port is in use; the message has the reason.
    """
    child = Child(
        "wakeroll serve",
        [sys.executable, "-u", "-m", "wakeroll_pipeline.cli", "serve", "--port", str(port)],
        log=settings.logs / "serve.log",
        env={**os.environ, **settings.environment()},
    )
    with child:
        child.wait_until(lambda: bool(_address(child)), READY_S)
        yield LocalPage(child, _address(child))


def _address(child: Child) -> str:
    """Return the address that the process has printed; empty if it has not yet."""
    found = re.search(r"^http://\S+", child.log_tail(), re.MULTILINE)
    return found[0] if found else ""
