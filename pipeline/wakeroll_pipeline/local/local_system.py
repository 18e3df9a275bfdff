"""The control plane on one machine: broker, observer and jobs, started and stopped in order."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from msgspec import structs

from wakeroll_pipeline.kafka.new_deployment import ensure_deployment
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.runtime.run_status import read_status
from wakeroll_pipeline.settings import Settings

READY_S = 300.0
"""Longest wait for the first batch (s). It takes some 10 s on 2 idle cores, and may take minutes on busy ones."""


class Stopped(Exception):
    """The start was interrupted, because the user requested a stop."""


class LocalSystem:
    """Observer and jobs as separate processes, with a running broker."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        # The jobs have `metrics_port`, the observer the next one; 0 means none.
        after = structs.replace(settings, metrics_port=settings.metrics_port and settings.metrics_port + 1)
        self.observer = self._child("observe", after, grace_s=10)
        self.jobs = self._child("run", settings, grace_s=90)

    def start(self, stop: threading.Event) -> None:
        """Create the topics, start observer and jobs, and wait for the first batch.

        Raises:
            Stopped: `stop` was set meanwhile.
            ChildFailed: a process ended, or the first batch did not finish in time.
            InvalidTopics: the broker has the topics with other settings.
            NotReachable: no broker answered.
        """
        ensure_deployment(self.settings)
        self.observer.start()
        self.jobs.start()
        self.jobs.wait_until(lambda: self._decides(stop), READY_S)

    def check(self) -> None:
        """Raise `ChildFailed` if a process has ended by itself; the message has the reason."""
        for child in (self.observer, self.jobs):
            child.check()

    def stop(self) -> None:
        """Stop the jobs between two batches, then the observer."""
        self.jobs.stop()
        self.observer.stop()

    def _decides(self, stop: threading.Event) -> bool:
        if stop.is_set():
            raise Stopped
        status = read_status(self.settings.work_folder)
        return (
            status is not None
            and status.pid == self.jobs.pid
            and all(query.batch >= 0 for query in status.queries.values())
        )

    def _child(self, command: str, settings: Settings, grace_s: float) -> Child:
        return Child(
            f"wakeroll {command}",
            [sys.executable, "-m", "wakeroll_pipeline.cli", command, "--bootstrap", settings.bootstrap],
            log=settings.logs / f"{command}.log",
            env={**os.environ, **settings.environment()},
            grace_s=grace_s,
        )


@contextmanager
def local_system(settings: Settings, stop: threading.Event) -> Iterator[LocalSystem]:
    """Run a whole system during a `with` block, on the configured broker or else on an embedded one.

    Raises:
        Stopped: `stop` was set before the system was ready.
    """
    with ExitStack() as stack:
        if not settings.bootstrap:
            broker = EmbeddedBroker(settings.work_folder / "broker")
            stack.enter_context(broker)
            settings = structs.replace(settings, bootstrap=broker.bootstrap)
        system = LocalSystem(settings)
        stack.callback(system.stop)
        system.start(stop)
        yield system
