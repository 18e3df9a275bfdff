"""Requests of an operator to whole shards. No decision confirms them: a shard's state shows their effect."""

import time
from collections.abc import Callable, Mapping, Sequence

from wakeroll.connection import Connection
from wakeroll.errors import WakerollError
from wakeroll_model.events import KeyChange, Level
from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.signing import Key
from wakeroll_pipeline.cli.output import Output
from wakeroll_pipeline.kafka.shard_records import append_to_shards

_ANSWER_S = 30.0
"""Longest wait until the appended records have taken effect (s)."""
_LOOK_S = 0.05


def carry_out(
    connection: Connection,
    key: Key,
    event: Level | KeyChange,
    places: Sequence[ControlPartition],
    late: Callable[[], Sequence[ControlPartition]],
    out: Output,
) -> dict[ControlPartition, int]:
    """Append an event to control partitions, and wait until it has taken effect.

    Args:
        connection: the brokers.
        key: the operator key that signs.
        event: the event.
        places: the partitions.
        late: returns the partitions in whose shards the event has no effect yet; partitions without a record are
            ignored.
        out: shows a spinner meanwhile.

    Returns:
        Partition -> offset of the record.

    Raises:
        NotReachable: a partition did not acknowledge its record in time.
        WakerollError: a shard has not accepted its record.
    """
    offsets = append_to_shards(connection, key, event, places)
    deadline = time.monotonic() + _ANSWER_S
    with out.status("waiting for the shards"):
        while behind := sorted(offsets.keys() & set(late())):
            if time.monotonic() > deadline:
                topic, partition = behind[0]
                raise WakerollError(
                    f"the record at offset {offsets[behind[0]]} of {topic}-{partition} has no effect after "
                    f"{_ANSWER_S:.0f} s; the view `rejections` has the reason if the coordinator rejected it, such as "
                    "another operator key"
                )
            time.sleep(_LOOK_S)
    return offsets


def text_of(offsets: Mapping[ControlPartition, int]) -> str:
    """Return partitions and offsets as a text."""
    return ", ".join(f"{topic}-{partition} at {offset}" for (topic, partition), offset in sorted(offsets.items()))
