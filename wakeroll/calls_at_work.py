"""Running calls of an application's handler, for heartbeats and for the answer to `wakeroll inspect`."""

import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

from wakeroll.epoch_ms import now_ms
from wakeroll_model import config
from wakeroll_model.events import LongCall
from wakeroll_model.queue import Queue

LONG_MS = 30_000
"""How long a call must last to be listed in heartbeats (ms). Shorter calls would change the heartbeats often, which
costs the coordinator time."""


class CallAtWork(NamedTuple):
    """A running call of the application's handler with messages of one queue."""

    queue: Queue
    first: int
    last: int
    """Lowest and highest offset of the messages."""
    for_ms: int
    """How long it has lasted (ms)."""
    stack: Callable[[], str]
    """Returns the stack of the call: its innermost frames."""

    @property
    def words(self) -> str:
        """Describe the call without its stack."""
        return f"since {self.for_ms / 1_000:.0f} s with {self.queue}, offsets {self.first} to {self.last}"


class Application(NamedTuple):
    """Functions by which a member's control thread learns what its application does. Any thread may call them."""

    hanging: Callable[[], str] = str
    """Describes what the application does instead of the next `poll`, for the log; empty if that is not known."""
    calls: Callable[[], list[CallAtWork]] = list
    """Returns the running calls, the oldest first."""
    elsewhere: Callable[[bool], str] = lambda _: ""
    """Describes what the application does while no call runs, with or without the stack."""
    shows_stacks: bool = True
    """Whether an operator may see the stacks of its calls."""

    def report(self) -> str:
        """Return the answer to `wakeroll inspect`: what the application does now."""
        calls = self.calls()
        text = f"process {os.getpid()}, calls at work: {len(calls)}"
        if not calls and (elsewhere := self.elsewhere(self.shows_stacks)):
            text += f"; {elsewhere}"
        if not self.shows_stacks:
            text += "; it shows no stacks (inspectable=False)"
        for number, call in enumerate(calls):
            stack = call.stack() if self.shows_stacks else ""
            more = f"\n{call.words}{stack and ':'}\n{stack}".rstrip()
            rest = f"\nand {len(calls) - number} more"
            if len(text) + len(more) + len(rest) > config.MAX_REPORT:
                return (text + rest)[: config.MAX_REPORT]
            text += more
        return text[: config.MAX_REPORT]


class LongCalls:
    """The long calls of an application, each with its start time: its duration would change each heartbeat."""

    def __init__(self) -> None:
        """Begin without calls."""
        self.listed: list[LongCall] = []

    def update(self, calls: Iterable[CallAtWork]) -> list[LongCall]:
        """Return those of these calls that are long, the oldest first, at most `config.MAX_LONG_CALLS`."""
        known = {(one.queue, one.first_offset, one.last_offset): one for one in self.listed}
        long = [one for one in calls if one.for_ms >= LONG_MS][: config.MAX_LONG_CALLS]
        self.listed = [
            known.get((one.queue, one.first, one.last))
            or LongCall(queue=one.queue, first_offset=one.first, last_offset=one.last, since_ms=now_ms() - one.for_ms)
            for one in long
        ]
        return self.listed
