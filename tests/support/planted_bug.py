"""A bug that tests plant into the machine: it breaks half way through every event of one client."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from wakeroll_model import group_machine

CLIENT = "poison"

_real_step = group_machine.step


def _step(group: Any, event: Any, *others: Any) -> Any:
    if getattr(event, "client_id", "") == CLIENT:
        group.members.clear()
        group.epoch = 99
        raise ZeroDivisionError("a planted bug")
    return _real_step(group, event, *others)


def plant() -> None:
    """Plant it in this process, for its life."""
    group_machine.step = _step


@contextmanager
def planted() -> Iterator[None]:
    """Plant it in this process for the time of a `with`: a replay decides the same only where it fails the same."""
    plant()
    try:
        yield
    finally:
        group_machine.step = _real_step
