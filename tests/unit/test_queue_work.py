"""The work of push consumption on one queue: order, what counts as processed, and what is left to the next owner."""

from collections import defaultdict

from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from model.client_actions import Give
from model.decisions import Start
from model.queue import Queue
from wakeroll.push.queue_work import Batch, QueueWork

QUEUE = Queue("orders", "", 0)


def message(offset: int, key: bytes | None = None, value: bytes = b"v") -> Message:
    return Message(topic="orders", partition=0, offset=offset, key=key, value=value)


def work(start: int = 0, *, batch_size: int = 2, lanes: int = 4, orderly: bool = False) -> QueueWork:
    give = Give(QUEUE, Start("last", start, None), 1, "i1")
    return QueueWork(give, start, batch_size=batch_size, lanes=lanes, orderly=orderly)


def offsets(batches: list[Batch]) -> list[list[int | None]]:
    return [[one.offset() for one in batch.messages] for batch in batches]


def test_messages_without_a_key_wait_for_nobody():
    queue = work(10)

    ready = queue.add([message(offset) for offset in range(10, 15)], end=15)

    assert offsets(ready) == [[10, 11], [12, 13], [14]]


def test_in_order_there_is_one_call_at_a_time():
    queue = work(orderly=True)
    ready = queue.add([message(offset) for offset in range(4)], end=4)
    later = queue.add([message(4)], end=5)

    assert (offsets(ready), later) == ([[0, 1]], [])
    queue.begin()
    following = queue.finish(ready[0])
    assert following is not None
    assert offsets([following]) == [[2, 3]]


def test_an_unprocessed_message_holds_the_position():
    """Those after it are processed, and are not committed: after a crash they are delivered again."""
    queue = work()
    first, second = queue.add([message(offset) for offset in range(4)], end=4)
    for _ in range(2):
        queue.begin()

    queue.finish(second)
    assert (queue.position, queue.span, queue.messages) == (0, 4, 2)
    queue.finish(first)
    assert (queue.position, queue.span, queue.messages) == (4, 0, 0)


def test_messages_that_do_not_match_the_filter_are_processed():
    queue = work()
    [batch] = queue.add([message(3)], end=9)

    assert queue.position == 3
    queue.begin()
    queue.finish(batch)
    assert queue.position == 9
    assert queue.add([], end=12) == []
    assert queue.position == 12


def test_when_it_stops_calls_at_work_still_count():
    queue = work()
    first, second = queue.add([message(offset) for offset in range(4)], end=4)
    queue.begin()

    left = queue.stop()
    assert (left, queue.begin(), queue.add([message(4)], end=5)) == (4, False, [])
    assert queue.finish(first) is None
    assert (queue.position, queue.running) == (2, 0)
    assert second.first == 2


def test_a_batch_that_was_abandoned_is_not_processed():
    queue = work()
    [batch] = queue.add([message(7)], end=8)
    queue.begin()

    queue.abandon()

    assert (queue.position, queue.running, batch.is_finished) == (7, 0, False)


def test_bytes_are_counted_until_a_message_is_processed():
    queue = work(batch_size=1)
    first, _ = queue.add([message(0, value=b"12345"), message(1, value=b"678")], end=2)
    assert queue.bytes == 8
    queue.begin()
    queue.finish(first)
    assert queue.bytes == 3


_keys = st.sampled_from([None, b"a", b"b", b"c", b""])
_moves = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.tuples(_keys, st.booleans()), min_size=1, max_size=7)),
        st.tuples(st.just("begin"), st.integers(0, 20)),
        st.tuples(st.just("finish"), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(moves=_moves, size=st.integers(1, 4), lanes=st.integers(1, 3), orderly=st.booleans())
def test_whatever_happens_order_and_position_are_right(moves, size, lanes, orderly):
    """Equal keys in order, one call at a time; nothing below the position is unprocessed, and nothing is left out."""
    queue = work(batch_size=size, lanes=lanes, orderly=orderly)
    ready: list[Batch] = []
    running: list[tuple[Batch, list[Message]]] = []
    wanted: set[int] = set()
    processed: set[int] = set()
    begun: dict[object, list[int]] = defaultdict(list)
    end = 0

    def begin(batch: Batch) -> None:
        assert queue.begin()
        assert 0 < len(batch.messages) <= size
        alone = {None if orderly else one.key() for one in batch.messages}
        for _, others in running:
            assert not orderly
            assert not (alone & {one.key() for one in others}) - {None}
        for one in batch.messages:
            begun["all" if orderly else one.key()].append(one.offset() or 0)
        running.append((batch, list(batch.messages)))

    def finish(batch: Batch, messages: list[Message]) -> None:
        processed.update(one.offset() or 0 for one in messages)
        following = queue.finish(batch)
        if following is not None:
            ready.append(following)

    for move, detail in moves:
        if move == "add":
            page = [message(end + at, key) for at, (key, matches) in enumerate(detail) if matches]
            wanted |= {one.offset() or 0 for one in page}
            end += len(detail)
            ready += queue.add(page, end)
        elif move == "begin" and ready:
            begin(ready.pop(detail % len(ready)))
        elif move == "finish" and running:
            finish(*running.pop(detail % len(running)))
        open_ones = wanted - processed
        assert queue.position == min((one.first for one in _open(ready, running, queue)), default=end)
        assert queue.position <= min(open_ones, default=end)
        assert (queue.messages, queue.running) == (len(open_ones), len(running))
    while ready or running:
        while ready:
            begin(ready.pop())
        finish(*running.pop(0))
    assert processed == wanted
    assert queue.position == end
    assert all(seen == sorted(seen) for key, seen in begun.items() if key is not None)


def _open(ready: list[Batch], running: list[tuple[Batch, list[Message]]], queue: QueueWork) -> list[Batch]:
    waiting = [batch for lane in queue._waiting.values() for batch in lane]
    return [*ready, *(batch for batch, _ in running), *waiting]
