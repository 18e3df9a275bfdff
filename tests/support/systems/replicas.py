"""Coordinators that run at once: their processes, and what they publish."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition
from msgspec import structs

from wakeroll.headers import WRITER_HEADER
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.settings import Settings


def coordinator(settings: Settings, *options: str, name: str = "") -> Child:
    """Describe a process of `wakeroll run`; its log has the name of its replica, or this name."""
    return Child(
        f"wakeroll run {settings.replica}",
        [sys.executable, "-m", "wakeroll_pipeline.cli", "run", "--bootstrap", settings.bootstrap, *options],
        log=settings.logs / f"run-{name or settings.replica}.log",
        env={**os.environ, **settings.environment()},
        grace_s=90,
    )


def replica_of(settings: Settings, name: str) -> Settings:
    """Return the settings of another replica."""
    return structs.replace(settings, replica=name)


def pause(child: Child) -> None:
    """Suspend a process with its JVM and its workers, as a machine that sleeps does."""
    os.killpg(os.getpgid(child.pid), signal.SIGSTOP)


def wake(child: Child) -> None:
    """Let a suspended process continue."""
    os.killpg(os.getpgid(child.pid), signal.SIGCONT)


def log_of(child: Child) -> str:
    """Return all that a process wrote to its log since its start."""
    return child.log_tail(lines=100_000)


class Publications:
    """Reads who publishes decisions."""

    def __init__(self, settings: Settings, *, from_now: bool = False) -> None:
        self._consumer = settings.connection.consumer()
        place = OFFSET_END if from_now else OFFSET_BEGINNING
        topic = settings.connection.topics.decisions
        self._consumer.assign([TopicPartition(topic, number, place) for number in range(settings.partitions)])

    def read(self, timeout_s: float = 0.2) -> Iterator[tuple[str, bytes]]:
        """Yield replica and value of decisions until none comes for so long; the replica is empty if it has no name."""
        while (message := self._consumer.poll(timeout_s)) is not None:
            if message.error() is None:
                writer = dict(message.headers() or [])[WRITER_HEADER].decode()
                yield writer.partition("@")[0] if "@" in writer else "", message.value() or b""

    def has(self, replica: str) -> bool:
        """Return whether this replica has published a decision since the last call."""
        return any(name == replica for name, _ in self.read())

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def publications(settings: Settings, *, from_now: bool = False) -> Iterator[Publications]:
    """Read publications during a `with` block."""
    reader = Publications(settings, from_now=from_now)
    try:
        yield reader
    finally:
        reader.close()
