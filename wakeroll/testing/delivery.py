"""The deliveries of a group: each message that a handler received, and the result of the call."""

import threading
from collections import Counter
from typing import NamedTuple

from confluent_kafka import Message

from wakeroll.errors import InvalidUsage
from wakeroll.origin import Origin, origin_of
from wakeroll.push.outcomes import failed_in


class Delivery(NamedTuple):
    """A message that a handler received, in a call that has ended."""

    message: Message
    """The message as the handler received it."""
    origin: Origin
    """Where the message was first delivered from, and which attempt this was; see `origin_of`."""
    number: int
    """Number of this delivery of the message to the group, from 1; unlike the attempt, it counts repetitions too."""
    client_id: str
    """The member that received it."""
    at_s: float
    """When the call began: seconds by the broker's clock since the broker was created."""
    error: str
    """Error of the call, or reason of its `Retry` or `DeadLetter`; empty if the message was processed."""
    failed: bool
    """Whether the message was not processed."""


class Deliveries:
    """All deliveries of all groups, in the order in which their calls ended. Any thread may use it."""

    def __init__(self) -> None:
        """Begin without deliveries."""
        self._lock = threading.Lock()
        self._all: dict[str, list[Delivery]] = {}
        self._counts: Counter[tuple[str, str, int, int]] = Counter()

    def note(self, group_id: str, client_id: str, messages: list[Message], at_s: float, result: object) -> None:
        """Add the messages of a call that has ended with this result or exception."""
        try:
            failed = {id(one.message): one.error for one in failed_in(messages, result)}
        except InvalidUsage:  # the result has no meaning: `run` ends with this error
            return
        with self._lock:
            deliveries = self._all.setdefault(group_id, [])
            for message in messages:
                origin = origin_of(message)
                place = group_id, origin.topic, origin.partition, origin.offset
                self._counts[place] += 1
                error = failed.get(id(message))
                number = self._counts[place]
                deliveries.append(
                    Delivery(message, origin, number, client_id, at_s, error or "", failed=error is not None)
                )

    def of(self, group_id: str) -> list[Delivery]:
        """Return the deliveries of a group."""
        with self._lock:
            return list(self._all.get(group_id, ()))
