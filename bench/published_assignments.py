"""A reader of the probe's assignments that several coordinators publish: of each one, the first record counts."""

import time
from itertools import pairwise
from types import TracebackType
from typing import Self

import msgspec
from confluent_kafka import OFFSET_END, TopicPartition

from wakeroll.connection import Connection, take
from wakeroll.headers import WRITER_HEADER
from wakeroll_model.decisions import AnyDecision, Assignment
from wakeroll_pipeline.local.traffic import PROBE_GROUP

_AT_ONCE = 500
_decode = msgspec.json.Decoder(AnyDecision).decode


class PublishedAssignments:
    """Reads the decisions topic from now on, during a `with` block."""

    def __init__(self, connection: Connection, partitions: int) -> None:
        self._consumer = connection.consumer(**{"fetch.wait.max.ms": 20, "log_level": 0})
        topic = connection.topics.decisions
        self._consumer.assign([TopicPartition(topic, number, OFFSET_END) for number in range(partitions)])
        self._newest = 0
        """Highest seq so far; the probe's group has one shard, and no era begins."""
        self._found: list[tuple[int, int]] = []
        """Append time of each assignment (epoch ms), and its latency (ms)."""
        self._last_of: dict[str, int] = {}
        """Replica -> append time of its last assignment, repeated or not (epoch ms)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def listen(self, seconds: float) -> None:
        """Read for so long."""
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            for message in take(self._consumer, _AT_ONCE, min(left_s, 0.05)):
                if message.error() is not None or message.key() != PROBE_GROUP.encode():
                    continue
                said, at_ms = _decode(message.value() or b""), message.timestamp()[1]
                if not isinstance(said, Assignment):
                    continue
                writer = dict(message.headers() or [])[WRITER_HEADER]
                assert isinstance(writer, bytes), "a coordinator names itself"
                self._last_of[writer.decode().partition("@")[0]] = at_ms
                if said.seq > self._newest:
                    self._newest = said.seq
                    self._found.append((at_ms, at_ms - said.at_ms))

    def forget(self) -> None:
        """Forget what was read so far."""
        self._found = self._found[-1:]

    def last_of(self, replica: str) -> int:
        """Return when a replica last published an assignment (epoch ms); 0 if it never did."""
        return self._last_of.get(replica, 0)

    def next_after(self, moment_ms: int) -> int | None:
        """Return when the first new assignment after a moment was published (epoch ms); None if there is none yet."""
        return next((at_ms for at_ms, _ in self._found if at_ms > moment_ms), None)

    def latencies_ms(self) -> list[int]:
        """Return the times from a heartbeat's append to that of its assignment, in ms."""
        return [latency_ms for _, latency_ms in self._found[1:]]

    def gaps_ms(self, since_ms: int = 0) -> list[int]:
        """Return the times between two successive assignments in ms, from a moment on (epoch ms)."""
        times = [at_ms for at_ms, _ in self._found]
        return [after - before for before, after in pairwise(times) if after >= since_ms]
