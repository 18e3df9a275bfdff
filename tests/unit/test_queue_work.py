"""The work of push consumption on one queue: order, what counts as processed, and what is left to the next owner."""

from collections import defaultdict

from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from wakeroll.push.queue_work import Batch, QueueWork, offset_of
from wakeroll_model.client_actions import Give
from wakeroll_model.decisions import Start
from wakeroll_model.queue import Queue

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
    queue.begin(ready[0])
    following = queue.finish(ready[0])
    assert following is not None
    assert offsets([following]) == [[2, 3]]


def test_a_batch_that_waits_is_filled_up():
    """Otherwise a handler that is slower than the messages come would get each of them in a call of its own."""
    queue = work(batch_size=3, orderly=True)
    running, *_ = queue.add([message(0)], end=1)
    queue.begin(running)
    for offset in range(1, 6):
        assert queue.add([message(offset, value=b"22")], end=offset + 1) == []
    assert (queue.messages, queue.bytes, queue.position) == (6, 11, 0)

    calls = []
    while running is not None:
        running = queue.finish(running)
        if running is not None:
            queue.begin(running)
            calls += offsets([running])

    assert calls == [[1, 2, 3], [4, 5]]
    assert (queue.messages, queue.bytes, queue.position) == (0, 0, 6)


def test_a_batch_is_not_filled_up_across_lanes():
    """Messages of a key are in one call at a time; those without a key wait for no other."""
    queue = work(batch_size=3, lanes=50)
    ready = queue.add([message(0, b"a"), message(1, b"b"), message(2)], end=3)
    more = queue.add([message(3, b"a"), message(4), message(5, b"c")], end=6)

    assert offsets(ready) == [[0, 3], [1], [2, 4]]
    assert offsets(more) == [[5]]


def test_an_unprocessed_message_holds_the_position():
    """Those after it are processed, and are not committed: after a crash they are delivered again."""
    queue = work()
    first, second = queue.add([message(offset) for offset in range(4)], end=4)
    for batch in (first, second):
        queue.begin(batch)

    queue.finish(second)
    assert (queue.position, queue.span, queue.messages) == (0, 4, 2)
    queue.finish(first)
    assert (queue.position, queue.span, queue.messages) == (4, 0, 0)


def test_messages_that_do_not_match_the_filter_are_processed():
    queue = work()
    [batch] = queue.add([message(3)], end=9)

    assert queue.position == 3
    queue.begin(batch)
    queue.finish(batch)
    assert queue.position == 9
    assert queue.add([], end=12) == []
    assert queue.position == 12


def test_when_it_stops_what_no_call_has_is_left_to_others():
    queue = work()
    first, second, third = queue.add([message(offset) for offset in range(6)], end=6)
    queue.begin(first)
    queue.begin(second)

    left = queue.stop()
    assert (left, queue.begin(third), queue.add([message(6)], end=7)) == (2, False, [])
    for batch in (second, first):
        assert not queue.is_settled
        queue.finish(batch)
    assert (queue.position, queue.is_settled) == (4, True)


def test_when_it_stops_messages_before_a_processed_one_are_still_handled():
    """Or the processed one would be delivered again. Later messages of their batches are left to others."""
    queue = work(batch_size=9, lanes=1)
    [keyed, others] = queue.add([message(0, b"k"), message(1), message(2, b"k"), message(3), message(4, b"k")], end=5)
    queue.begin(others)
    queue.finish(others)

    assert queue.stop() == 1
    assert queue.begin(keyed)
    assert [one.offset() for one in keyed.messages] == [0, 2]
    queue.finish(keyed)
    assert (queue.position, queue.messages, queue.bytes, queue.is_settled) == (4, 0, 0, True)


def test_a_batch_that_was_abandoned_is_not_processed_nor_are_those_after_it():
    queue = work(7, orderly=True, batch_size=1)
    [batch] = queue.add([message(7), message(8)], end=9)
    queue.begin(batch)

    queue.abandon(batch)
    queue.stop()

    assert (queue.position, queue.running, queue.is_settled) == (7, 0, True)


def test_when_it_halts_no_batch_begins():
    queue = work(batch_size=9, lanes=1)
    [keyed, others] = queue.add([message(0, b"k"), message(1)], end=2)
    queue.begin(others)

    queue.stop()
    queue.halt()

    assert not queue.begin(keyed)
    queue.finish(others)
    assert (queue.position, queue.is_settled) == (0, True)


def test_bytes_are_counted_until_a_message_is_processed():
    queue = work(batch_size=1)
    first, _ = queue.add([message(0, value=b"12345"), message(1, value=b"678")], end=2)
    assert queue.bytes == 8
    queue.begin(first)
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


class Play:
    """One queue, whose batches begin and end in any order."""

    def __init__(self, size: int, lanes: int, *, orderly: bool) -> None:
        self.queue = work(batch_size=size, lanes=lanes, orderly=orderly)
        self.ready: list[Batch] = []
        self.running: list[tuple[Batch, list[Message]]] = []
        self.wanted: set[int] = set()
        self.processed: set[int] = set()
        self.begun: dict[object, list[int]] = defaultdict(list)
        """Key, or nothing if all are in order -> offsets, as their calls began."""
        self.end = 0
        self._size = size
        self._orderly = orderly

    def add(self, page: list[tuple[bytes | None, bool]]) -> None:
        """Add messages: key, and whether it matches the filter."""
        matching = [message(self.end + at, key) for at, (key, matches) in enumerate(page) if matches]
        self.wanted |= set(map(offset_of, matching))
        self.end += len(page)
        self.ready += self.queue.add(matching, self.end)

    def begin(self, at: int) -> None:
        """Begin one that may be handled."""
        if not self.ready:
            return
        batch = self.ready.pop(at % len(self.ready))
        assert self.queue.begin(batch)
        assert 0 < len(batch.messages) <= self._size
        lanes = set(map(self._lane, batch.messages)) - {None}
        assert not any(lanes & set(map(self._lane, others)) for _, others in self.running)
        for one in batch.messages:
            self.begun[self._lane(one)].append(offset_of(one))
        self.running.append((batch, list(batch.messages)))

    def finish(self, at: int) -> None:
        """End a call."""
        if not self.running:
            return
        batch, messages = self.running.pop(at % len(self.running))
        self.processed.update(map(offset_of, messages))
        following = self.queue.finish(batch)
        self.ready += [] if following is None else [following]

    def stop(self) -> None:
        """Leave the rest to others."""
        self.queue.stop()
        self.end = self.queue._end
        self.wanted = {offset for offset in self.wanted if offset < self.end}
        self.ready = [batch for batch in self.ready if batch.state == "waiting"]

    def finish_all(self) -> None:
        """Handle all that is left."""
        while self.ready or self.running:
            while self.ready:
                self.begin(-1)
            self.finish(0)

    def _lane(self, one: Message) -> object:
        return "all" if self._orderly else one.key()


@given(moves=_moves, size=st.integers(1, 4), lanes=st.integers(1, 3), orderly=st.booleans(), stops=st.booleans())
def test_whatever_happens_order_and_position_are_right(moves, size, lanes, orderly, stops):
    """Equal keys in order, one call at a time; nothing below the position is unprocessed, and nothing is left out."""
    play = Play(size, lanes, orderly=orderly)
    queue = play.queue
    for move, detail in moves:
        getattr(play, move)(detail)
        unprocessed = play.wanted - play.processed
        assert queue.position <= min(unprocessed, default=play.end)
        assert (queue.messages, queue.running) == (len(unprocessed), len(play.running))
    if stops:
        play.stop()
        assert play.processed <= play.wanted

    play.finish_all()

    assert play.processed == play.wanted
    assert (queue.position, queue.messages, queue.bytes, queue.is_settled) == (play.end, 0, 0, True)
    assert all(offsets == sorted(offsets) for key, offsets in play.begun.items() if key is not None)


def test_messages_that_wait_on_elsewhere_are_handled_by_no_call_and_hold_the_position_until_they_are_stored():
    """When the queue stops, those before them are still handled: otherwise both would be delivered again."""
    queue = work()
    other = next(key for key in (b"b", b"c", b"d", b"e", b"f", b"g", b"h") if hash(key) % 4 != hash(b"a") % 4)
    first, second = queue.add([message(0, b"a"), message(1, other), message(2, other)], end=3)
    apart = queue.set_apart([message(3, b"a")], end=4)
    assert apart is not None
    assert (queue.position, queue.messages, queue.running) == (0, 4, 1)

    queue.begin(first)
    queue.finish(first)
    assert queue.stop() == 0
    assert queue.begin(second)
    queue.finish(second)
    assert (queue.position, queue.is_settled) == (3, False)
    queue.finish(apart)
    assert (queue.position, queue.is_settled, queue.messages) == (4, True, 0)
    assert queue.set_apart([message(4)], end=5) is None
