"""The command that executes the last wills of processes in other containers.  It needs neither Spark nor settings."""

from typing import Annotated

import typer

from wakeroll.last_will.executor_link import LISTEN, VARIABLE
from wakeroll.last_will.executor_link import listen as listen_at

Listen = Annotated[
    str,
    typer.Option(
        "--listen",
        metavar="unix:PATH",
        help=f"Where consumers connect, which find it by the environment variable {VARIABLE}, or by `last_will=`.",
    ),
]


def last_will(listen: Listen = LISTEN) -> None:
    """Speak for consumers whose process has ended: commit what they had processed, and free their queues at once.

    A consumer starts such a process for itself. It cannot if it is process 1 of a container, because all others end
    with that: run this command in a container beside it, with a folder that both see. See docs/last-will.md. An
    image that has only the SDK has the same as `python -m wakeroll.last_will`.
    """
    listen_at("--listen", listen)
