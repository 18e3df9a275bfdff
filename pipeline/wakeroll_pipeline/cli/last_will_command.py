"""The command that executes the last wills of processes in other containers.  It needs neither Spark nor settings."""

import os
from typing import Annotated

import typer

from wakeroll.errors import InvalidUsage
from wakeroll.last_will.executor_link import VARIABLE, command, is_supported, path_of

Listen = Annotated[
    str,
    typer.Option(
        "--listen",
        metavar="unix:PATH",
        help=f"Where consumers connect, which find it by the environment variable {VARIABLE}, or by `last_will=`.",
    ),
]


def last_will(listen: Listen = "unix:/run/wakeroll/will.sock") -> None:
    """Speak for consumers whose process has ended: commit what they had processed, and free their queues at once.

    A consumer starts such a process for itself. It cannot if it is process 1 of a container, because all others end
    with that: run this command in a container beside it, with a folder that both see. See docs/last-will.md.
    """
    if not is_supported():
        raise InvalidUsage("last wills need Linux 5.3 or later, with the system calls pidfd_open and memfd_create")
    try:
        path = path_of("--listen", listen)
    except ValueError as problem:
        raise InvalidUsage(str(problem)) from None
    program = command("--listen", path)
    os.execv(program[0], program)  # so its memory is that of the small process
