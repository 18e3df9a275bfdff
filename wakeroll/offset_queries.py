"""Queries of an application about the offsets of queues: in Kafka, and the committed ones of its group."""

from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import datetime
from typing import Literal

from wakeroll.connection import Connection
from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage
from wakeroll.partition_offsets import Positions
from wakeroll_model.queue import Queue

OffsetTarget = int | Literal["first", "last"] | EpochMs | datetime
"""A place in a queue: an offset, the first message, the end, or the first message at or after a time."""

_LARGEST = 2**63 - 1


def target_of(place: object) -> int | Literal["first", "last"] | EpochMs:
    """Check a place in a queue and return it; convert a datetime to `EpochMs`.

    Raises:
        InvalidUsage: the argument is not a valid place.
    """
    match place:
        case datetime():
            return EpochMs.of(place)
        case "first" | "last" | EpochMs():
            return place
        case int() if not isinstance(place, bool) and 0 <= place <= _LARGEST:
            return place
        case _:
            raise InvalidUsage(
                f"offset is {place!r}; it must be an offset from 0, 'first', 'last', a datetime with a zone, or EpochMs"
            )


class OffsetQueries:
    """Queries that open a connection of their own, so that any thread may make them."""

    def __init__(self, connection: Connection, group_id: str) -> None:
        """Prepare."""
        self._connection = connection
        self._group_id = group_id

    def at(self, places: Mapping[Queue, OffsetTarget], timeout: float) -> dict[Queue, int]:
        """Return the offsets of places; for a time after the last message, the end.

        Raises:
            InvalidUsage: a place is not valid.
            NotReachable: Kafka does not answer within `timeout` seconds, or has no such queue.
        """
        targets = {queue: target_of(place) for queue, place in places.items()}
        found = {queue: int(target) for queue, target in targets.items() if type(target) is int}
        asked = {queue: target for queue, target in targets.items() if queue not in found}
        if asked:
            with self._connection.answering(timeout), closing(self._connection.operators_consumer()) as consumer:
                positions = Positions(consumer, timeout)
                for target in ("first", "last"):
                    there = [queue for queue, place in asked.items() if place == target]
                    offsets = positions.at(target, {queue.whole for queue in there})
                    found |= {queue: offsets[queue.whole] for queue in there}
                found |= _at_times(positions, {queue: at for queue, at in asked.items() if isinstance(at, EpochMs)})
        return {queue: found[queue] for queue in places}

    def committed(self, queue: Queue, client_id: str, timeout: float) -> int | None:
        """Return a queue's committed offset in the group, by the decisions that still exist; None if there is none.

        For a partition that is cut into slices, it is the lowest committed offset of its slices.

        Args:
            queue: any queue.
            client_id: the client in a broadcasting group.
            timeout: seconds to wait for each answer of Kafka.

        Raises:
            AccessDenied: the principal may not read the decisions.
            NotReachable: Kafka does not answer.
        """
        from wakeroll.decision_log import DecisionLog  # here, because few consumers need it
        from wakeroll.group_summary import History

        with self._connection.answering(timeout), closing(self._connection.operators_consumer()) as consumer:
            log = DecisionLog.of_group(self._connection, consumer, self._group_id, timeout)
            log.from_the_start()
            history = History.of(log.until_now())
        owner = client_id if history.mode == "broadcasting" else ""
        return history.lowest.get((owner, queue))


def _at_times(positions: Positions, times: Mapping[Queue, EpochMs]) -> dict[Queue, int]:
    """Return the offsets for times. Slices have the offset of their partition, which is queried only once."""
    found = dict[Queue, int]()
    while times:
        asked = {queue.whole: time for queue, time in times.items()}
        offsets = positions.at_times(asked)
        found |= {queue: offsets[queue.whole] for queue, time in times.items() if asked[queue.whole] == time}
        times = {queue: time for queue, time in times.items() if asked[queue.whole] != time}
    return found


def as_times(times: Mapping[Queue, int | datetime] | Iterable[tuple[Queue, int | datetime]]) -> dict[Queue, EpochMs]:
    """Return times in epoch ms, or with a zone, as `EpochMs`.

    Raises:
        InvalidUsage: a time has no zone, or is not a time.
    """
    found = {}
    for queue, time in dict(times).items():
        if not isinstance(time, int | datetime) or isinstance(time, bool):
            raise InvalidUsage(f"the time of {queue} is {time!r}; it must be epoch ms, or a datetime with a zone")
        found[queue] = EpochMs.of(time) if isinstance(time, datetime) else EpochMs(time)
    return found
