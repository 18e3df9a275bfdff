"""Where a query continues, compared with the log that Kafka has."""

import pytest

from wakeroll_pipeline.recovery.checkpoint_state import Progress
from wakeroll_pipeline.recovery.initial_state import Log
from wakeroll_pipeline.recovery.log_gaps import Ahead

AT = ("wakeroll.queues", 0)


def ahead(committed: int, planned: int, log: Log) -> Ahead:
    return Ahead(Progress({AT: committed}, {AT: planned}), {AT: log})


@pytest.mark.parametrize(
    ("committed", "planned", "end"),
    [
        (28, 28, 25),  # the log has lost what was read
        (28, 30, 29),  # or a part of what was planned
        (28, 25, 25),
        # It has grown again since the last batch was planned, which can never run: Spark rejects an end before the
        # begin.
        (28, 25, 40),
    ],
)
def test_a_log_that_lost_records_is_recognized(committed, planned, end):
    assert ahead(committed, planned, Log(0, end)).shortened == [AT]


@pytest.mark.parametrize(("committed", "planned", "end"), [(28, 28, 28), (28, 28, 40), (28, 30, 30), (28, 30, 40)])
def test_a_log_that_only_grows_is_not(committed, planned, end):
    assert ahead(committed, planned, Log(0, end)).shortened == []
