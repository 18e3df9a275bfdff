"""The target of `reset-offsets`, from the options of the command."""

import csv
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from wakeroll.admin import Admin
from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage
from wakeroll.reset import ResetPlan, ResetTarget, Shift
from wakeroll_model.queue import Queue

_COLUMNS = 3

Plan = Callable[[Admin], ResetPlan]
"""Makes the plan of a reset."""


class Targets(Struct, frozen=True, kw_only=True):
    """The options that name a target; exactly one of them is given."""

    to_first: bool
    to_last: bool
    to_current: bool
    to_offset: int | None
    to_time: int | None
    """The time, epoch ms."""
    by_duration: int | None
    """The present time minus the duration, epoch ms."""
    shift_by: int | None
    from_file: Path | None
    like: str | None

    def plan_for(self, group_id: str, topic: str | None, queue: Queue | None) -> Plan:
        """Return the function that makes the plan for a group.

        Raises:
            InvalidUsage: not exactly one target is named, or the file cannot be read.
        """
        # An offset of 0 is given, too.
        given = [
            name for name in self.__struct_fields__ if not (getattr(self, name) is None or getattr(self, name) is False)
        ]
        if len(given) != 1:
            every = ", ".join(f"--{name.replace('_', '-')}" for name in self.__struct_fields__)
            raise InvalidUsage(f"{len(given)} targets are named; use exactly one of {every}")
        if self.from_file is not None:
            if topic is not None or queue is not None:
                raise InvalidUsage("--from-file names its queues; leave out --topic and --queue")
            offsets, asked = read_offsets(self.from_file), f"to the offsets in {self.from_file.name}"
            return lambda admin: admin.plan_offsets(group_id, offsets, asked)
        if (like := self.like) is not None:
            return lambda admin: admin.plan_like(group_id, like, topic=topic, queue=queue)
        where = self._where()
        return lambda admin: admin.plan_reset(group_id, where, topic=topic, queue=queue)

    def _where(self) -> ResetTarget:
        if self.to_first:
            return "first"
        if self.to_last:
            return "last"
        if self.to_offset is not None:
            return self.to_offset
        if self.shift_by is not None:
            return Shift(self.shift_by)
        at_ms = self.to_time if self.by_duration is None else self.by_duration
        return "current" if at_ms is None else EpochMs(at_ms)


def read_offsets(path: Path) -> dict[Queue, int]:
    """Return queue -> offset from a CSV file with topic, partition and offset in each line, the format of Kafka's tool.

    Raises:
        InvalidUsage: the file cannot be read, or a line is not valid; the message names the first one.
    """
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidUsage(f"cannot read the offsets in {path}: {error}") from None
    found: dict[Queue, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        topic, *numbers = (word.strip() for word in line)
        if len(line) != _COLUMNS or not topic or not all(word.isascii() and word.isdigit() for word in numbers):
            raise InvalidUsage(f"{path} line {number} is {','.join(line)!r}; it must be topic,partition,offset")
        queue = Queue(topic, "", int(numbers[0]))
        if queue in found:
            raise InvalidUsage(f"{path} line {number} names {queue} again; each queue may have one offset")
        found[queue] = int(numbers[1])
    if not found:
        raise InvalidUsage(f"{path} has no offsets; each line must be topic,partition,offset")
    return found
