"""Tables that were lost: `record` writes them again, from the records that Kafka still has."""

from contextlib import ExitStack

from wakeroll.errors import InvalidUsage
from wakeroll_model.rows import RECORDED
from wakeroll_pipeline.ledger.delta_files import is_delta
from wakeroll_pipeline.ledger.tables import path_of
from wakeroll_pipeline.recovery.checkpoint_state import latest_recording, progress_of
from wakeroll_pipeline.recovery.record_turn import begin_recording_again
from wakeroll_pipeline.settings import Settings


def lost_tables(settings: Settings) -> list[str]:
    """Return the tables that do not exist although `record` has read records for them."""
    if progress_of(settings.checkpoint(latest_recording(settings))) is None:
        return []
    places = {table.name: path_of(settings.warehouse, table) for table in RECORDED}
    return [name for name, place in places.items() if not is_delta(place)]


def refuse_lost_tables(settings: Settings) -> None:
    """Reject a start of `record` that would leave out what the lost tables had.

    Raises:
        InvalidUsage: a table does not exist although records were read for it; the message names the remedy.
    """
    if lost := lost_tables(settings):
        raise InvalidUsage(
            f"{settings.warehouse} has no table {', '.join(lost)}, but "
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
        "has deleted are lost"
    ]
