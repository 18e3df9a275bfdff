"""A program in a terminal of its own, whose window a test can resize and type into."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Sequence

from tests.support.waiting import wait_until


class TerminalWindow:
    """Runs a program until it is left; what it writes is collected, control codes included."""

    def __init__(self, command: Sequence[str], rows: int = 40, columns: int = 140) -> None:
        """Start the program in a window of this size."""
        self._master, slave = pty.openpty()
        self.resize(rows, columns)
        variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**variables, "TERM": "xterm-256color"},
            start_new_session=True,
            # The terminal controls the session, so that it can send Ctrl-C.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.written = b""

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the window."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        """Send keys, such as 03 (hexadecimal), which is Ctrl-C."""
        os.write(self._master, keys)

    def read(self) -> bytes:
        """Read what was written since the last call; return everything written so far."""
        while select.select([self._master], [], [], 0.05)[0]:
            try:
                new = os.read(self._master, 65_536)
            except OSError:  # the program has ended
                break
            if not new:
                break
            self.written += new
        return self.written

    def wait_for(self, text: bytes, since: int = 0) -> None:
        """Wait until the program has written a text after its first `since` bytes."""
        wait_until(
            lambda: text in self.read()[since:], f"it writes {text!r}", state=lambda: repr(self.written[-2_000:])
        )

    def wait_for_end(self) -> int:
        """Wait until the program has ended; return its exit code."""

        def ended() -> bool:
            self.read()
            return self.process.poll() is not None

        wait_until(ended, "the program ends")
        self.read()
        return self.process.returncode

    def close(self) -> None:
        """Kill the program if it runs, and close the window."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
