"""The judge of a soak: it compares the consumers' own logs with the topics and with the published assignments."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from bench.growing_logs import GrowingLogs
from wakeroll_pipeline.local.story_checks import Handled, doubly_owned

QueueId = tuple[str, int]
"""Topic and number of a queue; the group that reads a topic has its name."""


class Delivery(NamedTuple):
    """A message that a consumer handled."""

    handled: Handled
    delay_ms: int
    """From the message's time to its handling."""


class HandledLogs:
    """The logs of all consumer processes, read on as they grow."""

    def __init__(self) -> None:
        self.deliveries: dict[QueueId, list[Delivery]] = defaultdict(list)
        """Those of one process are in order."""
        self._offsets: dict[QueueId, set[int]] = defaultdict(set)
        self._logs = GrowingLogs()

    def follow(self, logs: Iterable[Path]) -> None:
        """Read what was added."""
        for path in logs:
            for line in self._logs.new_lines(path):
                client_id, topic, *numbers = line.split()
                queue_id, offset, start_ns, end_ns, delay_ms = map(int, numbers)
                one = Delivery(Handled(client_id, queue_id, offset, start_ns, end_ns), delay_ms)
                self.deliveries[topic, queue_id].append(one)
                self._offsets[topic, queue_id].add(offset)

    def missing(self, ends: Mapping[QueueId, int]) -> dict[QueueId, int]:
        """Return the number of messages that nobody has handled, by queue; queues without any are left out.

        Args:
            ends: end offset of each queue; its first message has offset 0.
        """
        counts = {queue: end - len(self._offsets[queue]) for queue, end in ends.items()}
        return {queue: count for queue, count in counts.items() if count}

    def in_order(self) -> list[Delivery]:
        """Return all deliveries by the time of their handling."""
        every = (one for of_queue in self.deliveries.values() for one in of_queue)
        return sorted(every, key=lambda one: one.handled.start_ns)

    def repeats(self) -> list[int]:
        """Return when messages were handled again (monotonic ns), in order."""
        found = []
        for of_queue in self.deliveries.values():
            seen = set[int]()
            for one in sorted(of_queue, key=lambda one: one.handled.start_ns):
                if one.handled.offset in seen:
                    found.append(one.handled.start_ns)
                seen.add(one.handled.offset)
        return sorted(found)

    def two_owners(self, grants: Mapping[QueueId, int]) -> list[QueueId]:
        """Return the queues that two clients owned at the same time, sorted; see `doubly_owned`.

        Args:
            grants: number of times that each queue was assigned.
        """
        found = []
        for (topic, queue_id), of_queue in self.deliveries.items():
            handled = sorted((one.handled for one in of_queue), key=lambda one: one.start_ns)
            if doubly_owned(handled, Counter({queue_id: grants.get((topic, queue_id), 0)})):
                found.append((topic, queue_id))
        return sorted(found)
