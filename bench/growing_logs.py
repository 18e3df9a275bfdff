"""Text files that other processes append to, read on as they grow."""

from pathlib import Path


class GrowingLogs:
    """Remembers how far each file was read."""

    def __init__(self) -> None:
        self._read: dict[Path, int] = {}

    def new_lines(self, path: Path) -> list[str]:
        """Return the lines that were added since the last call; a line without its end is left for the next one."""
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(complete)
        return complete.decode("ascii").splitlines()
