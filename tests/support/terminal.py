"""A terminal in which the commands of a page are typed one after the other, as a reader would."""

import os
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

_END = "--- the command has ended ---"


class Terminal:
    """A shell for the time of a ``with``; programs that it has started in the background end with it."""

    def __init__(self, folder: Path, **environment: str) -> None:
        """Start a shell in a folder, with these variables beside the inherited ones."""
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> str:
        """Type a command, wait until it has ended or runs in the background, and return what it prints."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{command}\necho '{_END}'\n")
        self._shell.stdin.flush()
        printed: list[str] = []
        for line in self._shell.stdout:
            if line.rstrip("\n").endswith(_END):
                return "".join([*printed, line.removesuffix(f"{_END}\n")])
            printed.append(line)
        raise AssertionError(f"the shell ended with {self._shell.wait()} at {command!r}: {''.join(printed)}")

    def __enter__(self) -> Self:
        """Return the terminal."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the shell, and all that runs in it."""
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()
