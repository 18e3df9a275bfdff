"""The socket on which systemd receives the reports of a unit with `Type=notify`."""

import socket
from pathlib import Path
from types import TracebackType
from typing import Self


class NotifySocket:
    """A real datagram socket, in a `with` block."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self.received: list[str] = []
        """All lines that were taken so far."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def take(self) -> list[str]:
        """Return the lines that have arrived since the last call."""
        lines: list[str] = []
        while True:
            try:
                lines += self._socket.recv(65_536).decode().split("\n")
            except BlockingIOError:
                self.received += lines
                return lines
