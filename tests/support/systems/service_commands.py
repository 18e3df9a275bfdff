"""Shell commands that stop and start processes of a test, as a service manager offers them to an operator."""

import shlex
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

_POLL_S = 0.05


class ServiceCommands(threading.Thread):
    """Executes requests of shell commands during a `with` block: a command creates a file, and waits for its end."""

    def __init__(self, folder: Path, actions: Mapping[str, Callable[[], object]]) -> None:
        """Prepare.

        Args:
            folder: of the requests; created.
            actions: name of a request -> what is done.
        """
        super().__init__(name="service-commands", daemon=True)
        self._folder = folder
        self._actions = actions
        self._ended = threading.Event()

    def command(self, action: str) -> str:
        """Return the shell command of an action."""
        file = shlex.quote(str(self._folder / action))
        return f"touch {file}; while [ -e {file} ]; do sleep 0.1; done"

    def run(self) -> None:
        """Execute requests until the end of the block."""
        while not self._ended.wait(_POLL_S):
            for name, action in self._actions.items():
                if (self._folder / name).exists():
                    action()
                    (self._folder / name).unlink()

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self.join()
