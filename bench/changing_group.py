"""A group of consumer processes whose members change, while every queue gets messages."""

import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.group_cases import Case
from bench.handed_out import Change, Handed, Kind, LogTail
from bench.running_system import make_topic
from bench.steady_traffic import SteadyTraffic
from wakeroll.connection import Connection
from wakeroll_pipeline.local.child_process import Child

QUEUES = 12
"""So that three consumers have four each, and four have three."""
PER_SECOND = 300
STABLE_S = 2.0
"""A group is settled when its queues have been distributed evenly for so long (s)."""
_POLL_S = 0.05


class NotSettled(Exception):
    """A group did not do in time what it should have done; the message names the step and the logs."""


class ChangingGroup:
    """A group during a `with` block, with traffic; its processes end with the block."""

    def __init__(self, connection: Connection, case: Case, group_id: str, folder: Path, limit_s: float) -> None:
        """Prepare.

        Args:
            connection: the broker.
            case: the kind of group.
            group_id: its name, and the name of its topic.
            folder: of its logs; created.
            limit_s: longest duration of a step (s).
        """
        self._connection = connection
        self._case = case
        self._name = group_id
        self._folder = folder
        self._limit_s = limit_s
        self._stack = ExitStack()
        self._children: dict[str, Child] = {}
        self._logs: dict[Path, str] = {}
        self._tail = LogTail()
        self._traffic = SteadyTraffic(connection, group_id, QUEUES, PER_SECOND)

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        make_topic(self._connection, self._name, QUEUES)
        self._case.prepare(self._connection, self._name)
        self._stack.enter_context(self._traffic)
        for number in range(os.cpu_count() or 1) if self._case.is_busy else ():
            busy = Child(
                f"process {number} that keeps a core busy",
                [sys.executable, "-c", "while True: pass"],
                log=self._folder / "busy.output",
                env=os.environ,
            )
            busy.start()
            self._stack.callback(busy.kill)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def handed(self) -> list[Handed]:
        """All messages that were handed out so far, in order of time."""
        return sorted(self._tail.handed)

    def start(self, client_ids: Iterable[str]) -> None:
        """Start the first consumers, and wait until the group is settled."""
        for client_id in client_ids:
            self._launch(client_id)
        self._settle("the first consumers share the queues", time.monotonic_ns())

    def join(self, client_id: str) -> Change:
        """Let a consumer join; return when the group is settled."""
        log = self._launch(client_id)
        self._until("the new consumer runs", lambda: log in self._tail.began)
        return self._change("join", client_id, self._tail.began[log])

    def leave(self, client_id: str) -> Change:
        """Let a consumer leave in good order; return when the group is settled."""
        log = next(path for path, name in reversed(self._logs.items()) if name == client_id)
        child = self._children.pop(client_id)
        child.stop()
        self._until("the consumer leaves", lambda: log in self._tail.leaving)
        return self._change("leave", client_id, self._tail.leaving[log])

    def crash(self, client_id: str, after_s: float) -> Change:
        """Kill a consumer after a time; return when the group is settled."""
        time.sleep(after_s)
        child = self._children.pop(client_id)
        killed_ns = time.monotonic_ns()
        child.kill()
        return self._change("crash", client_id, killed_ns)

    def finish(self) -> int:
        """Stop the traffic, let the consumers handle all messages, and stop them; return how many are missing."""
        self._traffic.close()
        try:
            self._until("every message is consumed", lambda: not self._missing())
        except NotSettled as problem:
            print(problem, flush=True)  # the number of lost messages is the result
        for child in self._children.values():
            child.stop()
        self._tail.follow(self._logs)
        return len(self._missing())

    def _missing(self) -> set[tuple[int, int]]:
        return self._traffic.stored - {(one.queue_id, one.offset) for one in self._tail.handed}

    def _launch(self, client_id: str) -> Path:
        log = self._folder / f"{client_id}.{len(self._logs)}"
        child = Child(
            f"consumer {client_id} of {self._name}",
            [
                *(sys.executable, "-m", "bench.group_consumer", "--bootstrap", self._connection.bootstrap),
                *("--group", self._name, "--client", client_id, "--topic", self._name, "--log", str(log)),
                *self._case.arguments(self._connection),
            ],
            log=self._folder / f"{client_id}.output",
            env={**os.environ, **self._case.variables},
        )
        self._logs[log] = client_id
        self._children[client_id] = child
        child.start()
        self._stack.callback(child.stop)
        return log

    def _change(self, kind: Kind, client_id: str, began_ns: int) -> Change:
        self._settle(f"the group is settled after the {kind} of {client_id}", began_ns)
        return Change(kind, client_id, began_ns, time.monotonic_ns())

    def _settle(self, what: str, since_ns: int) -> None:
        """Wait until the consumers that run have handed out messages of equally many queues for a while."""
        most, fewest = -(-QUEUES // len(self._children)), QUEUES // len(self._children)
        held: dict[int, str] = {}
        held_since = 0.0

        def is_settled() -> bool:
            nonlocal held, held_since
            now = {one.queue_id: one.client_id for one in self._tail.last.values() if one.ns >= since_ns}
            shares = [list(now.values()).count(client_id) for client_id in self._children]
            is_even = len(now) == QUEUES == sum(shares) and fewest <= min(shares) and max(shares) <= most
            if not is_even or now != held:
                held, held_since = now, time.monotonic()
            return is_even and time.monotonic() - held_since >= STABLE_S

        self._until(what, is_settled)

    def _until(self, what: str, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._limit_s
        while True:
            self._tail.follow(self._logs)
            for child in self._children.values():
                if not child.is_running:
                    raise NotSettled(f"{child.name} ended with code {child.returncode}; see {child.log}")
            if true():
                return
            if time.monotonic() > deadline:
                raise NotSettled(f"{self._case.name}: not true within {self._limit_s:g} s: {what}; see {self._folder}")
            time.sleep(_POLL_S)
