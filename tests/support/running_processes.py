"""Processes for tests: a command that is run to its end, and whether a process is still there."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The checkout."""


def run_process(
    command: Sequence[str | Path],
    *,
    folder: Path = ROOT,
    without: Sequence[str] = (),
    patience_s: float | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; return its exit code and its output.

    Args:
        command: the program and its arguments.
        folder: its working directory.
        without: names of environment variables that it does not inherit.
        patience_s: it is killed after so many seconds; None: never.
        environment: environment variables beside the inherited ones.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in without}
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=patience_s,
        check=False,
    )


def lives(pid: int) -> bool:
    """Whether there is such a process; one that has ended and whose parent has not asked for its exit code is dead."""
    state = run_process(["ps", "-o", "stat=", "-p", str(pid)]).stdout.strip()
    return state != "" and not state.startswith("Z")
