"""Tables that were lost: `record` writes them again, from the records that Kafka still has."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from wakeroll.connection import Topics
from wakeroll.errors import InvalidUsage, NotReachable
from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.rows import CHAINED, DECISIONS, EVENTS, RECORDED
from wakeroll_pipeline.kafka.published_lines import forget_published
from wakeroll_pipeline.ledger.chains import newest_line
from wakeroll_pipeline.ledger.delta_files import is_delta, open_delta
from wakeroll_pipeline.ledger.tables import path_of
from wakeroll_pipeline.recovery.batch_files import offsets_in
from wakeroll_pipeline.recovery.checkpoint_state import latest_recording, progress_of
from wakeroll_pipeline.recovery.record_turn import begin_recording_again
from wakeroll_pipeline.runtime.process_name import process_name
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.place import Place


def lost_tables(settings: Settings) -> list[str]:
    """Return the tables that do not exist, or have no rows any more, although `record` has read records for them.

    Emptied `assignments` and `offsets` are not lost, because `wakeroll repair` makes them again from `decisions`.
    """
    checkpoint = settings.checkpoint(latest_recording(settings))
    progress = progress_of(checkpoint)
    if progress is None:
        return []
    topics = settings.connection.topics if settings.bootstrap else Topics(settings.prefix)
    its_topics = {EVENTS.name: topics.control, DECISIONS.name: (topics.decisions,)}
    lost = []
    for table in RECORDED:
        place = path_of(settings.warehouse, table)
        # Retention never deletes the newest row of a stream.
        if not is_delta(place) or (
            table.name in its_topics
            and _has_read(checkpoint, progress.next, its_topics[table.name])
            and _is_empty(place)
        ):
            lost.append(table.name)
    return lost


def _has_read(checkpoint: Place, reached: Mapping[ControlPartition, int], topics: Sequence[str]) -> bool:
    """Return whether committed batches, which have reached these offsets, have read a record of these topics."""
    if not small_files.exists(checkpoint.child(*_FIRST.split("/"))):
        return False
    first = offsets_in(checkpoint, _FIRST)
    return any(offset > first.get(place, offset) for place, offset in reached.items() if place[0] in topics)


_FIRST = "sources/0/0"
"""File with the offsets at which a query began."""


def _is_empty(place: Place) -> bool:
    """Return whether a table certainly has no row, by its log."""
    rows: Any = open_delta(place).get_add_actions(flatten=True).column("num_records")
    return all(value.as_py() == 0 for value in rows)


def refuse_lost_tables(settings: Settings) -> None:
    """Reject a start of `record` that would leave out what the lost tables had.

    Raises:
        InvalidUsage: a table does not exist, or has no rows, although records were read for it; the message names the
            remedy.
    """
    if lost := lost_tables(settings):
        raise InvalidUsage(
            f"{settings.warehouse} has no table {', '.join(lost)}, or no row of it, but "
            f"{settings.checkpoint(latest_recording(settings))} has read records for it: if the tables were lost, "
            "`wakeroll restore` lets the next run write them again, from the records that Kafka still has; if they are "
            "elsewhere, set --home"
        )


def restore_tables(settings: Settings, stack: ExitStack) -> list[str]:
    """Let `record` begin again with the first records that Kafka has, if tables were lost.

    The other tables keep their rows: `record` drops what a table already has.

    Args:
        settings: settings of the deployment.
        stack: keeps the lock of `record` until the caller is done.

    Returns:
        Sentences for the operator; none if no table was lost.

    Raises:
        InvalidUsage: a process still writes the tables.
    """
    lost = lost_tables(settings)
    if not lost:
        return []
    begin_recording_again(settings, stack)
    return [
        f"record writes {', '.join(lost)} again, from the first records that Kafka has; rows from records that Kafka "
        "has deleted are lost",
        *_forget_lost_chains(settings),
    ]


def _forget_lost_chains(settings: Settings) -> list[str]:
    """Publish that lines of chains which were lost too do not count any more; return sentences for the operator.

    A chain that the table `chain` still has continues: its lines stay in it.
    """
    begun = [table.name for table in CHAINED if newest_line(settings.warehouse, table.name) is None]
    topic = settings.connection.topics.chain
    try:
        forgotten = forget_published(settings.connection, begun, "the tables were lost", process_name("restore"))
    except NotReachable as error:
        return [
            f"the lines that were published in {topic} count as before, so `wakeroll check --bootstrap` will miss "
            f"them: {error}"
        ]
    if not forgotten:
        return []
    return [f"the chains of {', '.join(forgotten)} begin again; their lines in {topic} do not count any more"]
