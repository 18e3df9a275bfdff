"""When a message of the retry topic is due, whatever the clocks say."""

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, Message
from hypothesis import given
from hypothesis import strategies as some

from wakeroll.push.delayed_messages import DelayedMessages
from wakeroll.push.queue_work import QueueWork
from wakeroll_model.client_actions import Give
from wakeroll_model.decisions import Start
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import DELAYS_S, MAX_RETRIES, delay_ms_of, level_after

HOUR_MS = 3_600_000
LEVEL_3 = 2
"""Queue of level 3, whose messages wait for 10 s."""


def work_of(queue_id: int) -> QueueWork:
    give = Give(Queue("retry.billing", "", queue_id), Start(offset=0), 1, "a#1")
    return QueueWork(give, 0, batch_size=1, lanes=1, orderly=False)


def stored_at(ms: int, offset: int = 0) -> Message:
    return Message(topic="retry.billing", partition=LEVEL_3, offset=offset, timestamp=(TIMESTAMP_LOG_APPEND_TIME, ms))


def due_at(message: Message, wall_ms: int) -> int:
    """Return when a message that is read at 0 is due, to the ms."""
    delayed, work = DelayedMessages(), work_of(LEVEL_3)
    delayed.add(work, [message], 0, wall_ms)
    return next(at for at in range(20_000) if list(delayed.due(at)))


def test_a_message_is_due_when_its_delay_has_passed_since_it_was_stored():
    assert due_at(stored_at(5_000), wall_ms=5_000) == 10_000
    assert due_at(stored_at(5_000), wall_ms=9_000) == 6_000
    assert due_at(stored_at(5_000), wall_ms=5_000 + HOUR_MS) == 0


def test_a_clock_that_is_an_hour_slow_delays_a_message_by_its_delay_at_most():
    assert due_at(stored_at(5_000 + HOUR_MS), wall_ms=5_000) == 10_000


def test_a_message_without_a_timestamp_waits_from_when_it_was_read():
    message = Message(topic="retry.billing", partition=LEVEL_3, offset=0, timestamp=(TIMESTAMP_NOT_AVAILABLE, 0))

    assert due_at(message, wall_ms=5_000) == 10_000


@given(
    some.lists(some.tuples(some.integers(0, 60_000), some.integers(0, 2_000), some.integers(0, 120_000)), max_size=20)
)
def test_messages_leave_in_the_order_of_their_offsets_and_each_once(steps):
    """However the clocks of the broker and of this machine jump."""
    delayed, work = DelayedMessages(), work_of(LEVEL_3)
    now, left = 0, []
    for offset, (stored_ms, passed_ms, wall_ms) in enumerate(steps):
        delayed.add(work, [stored_at(stored_ms, offset)], now, wall_ms)
        now += passed_ms
        left += [message.offset() for _, messages in delayed.due(now) for message in messages]
    left += [message.offset() for _, messages in delayed.due(now + 10_000) for message in messages]

    assert left == list(range(len(steps)))
    assert work.give.queue not in delayed


def test_messages_of_a_queue_that_was_revoked_are_not_handed_out():
    delayed, lost, kept = DelayedMessages(), work_of(1), work_of(2)
    delayed.add(lost, [stored_at(0)], 0, 0)
    delayed.add(kept, [stored_at(0)], 0, 0)
    delayed.drop(lost.give.queue)

    assert [work for work, _ in delayed.due(HOUR_MS)] == [kept]


def test_the_levels_are_those_of_rocketmq():
    """Its messageDelayLevel, and the delays of its sixteen retries."""
    levels = [
        "1s",
        "5s",
        "10s",
        "30s",
        "1m",
        "2m",
        "3m",
        "4m",
        "5m",
        "6m",
        "7m",
        "8m",
        "9m",
        "10m",
        "20m",
        "30m",
        "1h",
        "2h",
    ]
    units = {"s": 1, "m": 60, "h": 3_600}

    assert [int(level[:-1]) * units[level[-1]] for level in levels] == list(DELAYS_S)
    assert [level_after(attempt) for attempt in range(1, MAX_RETRIES + 1)] == list(range(3, 19))
    assert delay_ms_of(99) == 7_200_000  # somebody added partitions
