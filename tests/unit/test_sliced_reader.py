"""The reader of slices: each message reaches its slice once and in order, however slices come, go, fill and go back."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from random import Random

import pytest
from confluent_kafka import Message

from tests.support.waiting import wait_until
from wakeroll import InvalidUsage, Queue
from wakeroll.connection import Connection
from wakeroll.reader import Reader
from wakeroll.slice_by import key_of, slice_key
from wakeroll.sliced_reader import SlicedReader
from wakeroll.testing import MemoryBroker
from wakeroll_model.client_actions import Give
from wakeroll_model.decisions import Done, Start
from wakeroll_model.slices import slice_of

ORDERS = "orders"
SEEDS = 30


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """A broker with two partitions."""
    with MemoryBroker() as broker:
        broker.create_topic(ORDERS, 2)
        yield broker


@pytest.fixture
def reader(broker: MemoryBroker) -> Iterator[SlicedReader]:
    """A reader without queues."""
    reader = reader_of(broker)
    yield reader
    reader.close()


@pytest.fixture
def went_back(reader: SlicedReader) -> list[object]:
    """The times at which the reader was set back in a partition."""
    inner = reader._reader
    calls: list[object] = []
    set_back = inner.set_back

    def noted(positions: list[tuple[Give, int]]) -> None:
        calls.append(positions)
        set_back(positions)

    inner.set_back = noted  # type: ignore[method-assign]
    return calls


def reader_of(broker: MemoryBroker, slice_by: object = None) -> SlicedReader:
    return SlicedReader(Reader(Connection(broker.bootstrap)), slice_key(slice_by))


def part(number: int, slices: int, partition: int = 0) -> Queue:
    return Queue(ORDERS, "", partition, slices, number)


def give(queue: Queue, offset: int | None = 0, epoch: int = 1, **start: object) -> Give:
    return Give(queue, Start(offset=offset, **start), epoch, "i")


def send(broker: MemoryBroker, count: int, partition: int = 0, keys: int = 40) -> None:
    for number in range(count):
        broker.send(ORDERS, "", key=f"key-{number % keys}" if number % 7 else None, queue=partition)


def offsets_of(queue: Queue, messages: list[Message], key_of: Callable[[Message], bytes] = key_of) -> list[int]:
    """Return the offsets of the messages that are in a slice."""
    return [
        message.offset() or 0
        for message in messages
        if message.partition() == queue.queue_id and slice_of(key_of(message), queue.slices) == queue.slice
    ]


def all_messages(broker: MemoryBroker) -> list[Message]:
    """Return what the partitions have, read without slices."""
    reader = Reader(Connection(broker.bootstrap))
    reader.start([give(Queue(ORDERS, "", number)) for number in range(2)])
    found, quiet = list[Message](), 0
    while quiet < 3:
        runs = reader.take(1_000, 0)
        quiet = 0 if runs else quiet + 1
        found += [message for _, some in runs for message in some]
    reader.close()
    return found


class Slices:
    """What slices were handed, and what became of their positions."""

    def __init__(self, reader: SlicedReader, key_of: Callable[[Message], bytes] = key_of) -> None:
        self.reader = reader
        self.key_of = key_of
        self.offsets: defaultdict[Queue, list[int]] = defaultdict(list)
        self.moves: dict[Queue, int] = {}

    def take(self, most: int = 500, times: int = 1) -> None:
        for _ in range(times):
            for one, messages in self.reader.take(most, 0):
                offsets = [message.offset() or 0 for message in messages]
                assert offsets_of(one.queue, messages, self.key_of) == offsets, f"messages of others in {one.queue}"
                self.offsets[one.queue] += offsets
            self.moves |= {move.give.queue: move.offset for move in self.reader.moves}
            self.reader.moves = []


def test_each_slice_gets_its_messages_in_order(broker, reader):
    """All slices of a partition together get every message once, those without a key by their offset."""
    send(broker, 300)
    gives = [give(part(number, 8)) for number in range(8)]
    reader.start(gives)
    slices = Slices(reader)

    slices.take(50, 20)

    everything = all_messages(broker)
    assert {queue: offsets for queue, offsets in slices.offsets.items() if offsets} == {
        one.queue: offsets for one in gives if (offsets := offsets_of(one.queue, everything))
    }
    assert sum(map(len, slices.offsets.values())) == 300
    assert [reader.position(one.queue) for one in gives] == [300] * 8


def test_the_position_follows_messages_of_others(broker, reader):
    """A slice without messages would otherwise look as if it lagged behind."""
    send(broker, 30, keys=1)
    mine = next(part(number, 8) for number in range(8) if number != slice_of(b"key-0", 8))
    reader.start([give(mine)])
    slices = Slices(reader)

    slices.take(30, 5)

    assert (reader.position(mine), slices.moves[mine], reader.lag(1)) == (30, 30, {mine: 0})


def test_a_slice_that_begins_lower_is_caught_up(broker, reader):
    """The others skip what they have had meanwhile."""
    send(broker, 200)
    first, second = part(0, 2), part(1, 2)
    reader.start([give(first, 120)])
    slices = Slices(reader)
    slices.take(40, 5)
    reader.start([give(second, 10)])

    slices.take(40, 20)

    everything = all_messages(broker)
    assert slices.offsets == {
        first: [offset for offset in offsets_of(first, everything) if offset >= 120],
        second: [offset for offset in offsets_of(second, everything) if offset >= 10],
    }


def test_a_full_slice_does_not_stop_the_others(broker, reader):
    """Only some of it is kept in memory: the others are passed over, and read again when it has room."""
    send(broker, 5_000)
    full, other = part(0, 2), part(1, 2)
    reader.start([give(full), give(other)])
    slices = Slices(reader)
    slices.take(40)
    had = len(slices.offsets[full])
    reader.hold_back([full])

    slices.take(40, 200)
    assert len(slices.offsets[full]) == had
    assert reader.position(other) == 5_000
    reader.go_on([full])
    slices.take(40, 200)

    everything = all_messages(broker)
    assert slices.offsets == {queue: offsets_of(queue, everything) for queue in (full, other)}


def test_a_full_slice_keeps_some_messages(broker, reader, went_back):
    """Going back to them would delay the other slices each time that the full one has some room."""
    send(broker, 600)
    full, other = part(0, 2), part(1, 2)
    reader.start([give(full), give(other)])
    slices = Slices(reader)
    slices.take(40)
    for _ in range(8):
        reader.hold_back([full])
        slices.take(40, 10)
        reader.go_on([full])
        slices.take(25)
    slices.take(40, 30)

    everything = all_messages(broker)
    assert slices.offsets == {queue: offsets_of(queue, everything) for queue in (full, other)}
    assert not went_back


@pytest.mark.parametrize(("size", "most"), [(0, 1_000), (100_000, 10)])
def test_what_a_slice_keeps_is_bounded(broker, reader, went_back, size, most):
    """By the number of messages, and by their size."""
    for _ in range(3_000 if size == 0 else 30):
        broker.send(ORDERS, "x" * size, key="key-0", queue=0)
    full = part(slice_of(b"key-0", 2), 2)
    other = part(1 - full.slice, 2)
    reader.start([give(full), give(other)])
    reader.hold_back([full])
    slices = Slices(reader)
    slices.take(5, 700)
    reader.go_on([full])

    had = 0
    while not went_back:
        had = len(slices.offsets[full])
        slices.take(5)
    assert 0 < had <= most
    slices.take(40, 200)

    assert slices.offsets == {full: offsets_of(full, all_messages(broker))}


def test_the_position_is_not_told_beyond_what_is_kept(broker, reader):
    """What is told is committed: after a crash, the messages before it are not delivered again."""
    heavy, mine = b"key-0", slice_of(b"key-0", 2)
    broker.send(ORDERS, "", key=heavy.decode(), queue=0)
    send(broker, 3_000)
    full, other = part(mine, 2), part(1 - mine, 2)
    reader.start([give(full), give(other)])
    reader.hold_back([full])
    slices = Slices(reader)

    slices.take(40, 200)

    assert (reader.position(full), slices.moves.get(full, 0)) == (0, 0)
    assert reader.lag(1)[full] == 3_001


def test_a_lost_tail_takes_what_is_kept_of_it(broker, reader):
    """The log has other messages at these offsets now."""
    send(broker, 100)
    full, other = part(0, 2), part(1, 2)
    reader.start([give(full), give(other)])
    reader.hold_back([full])
    slices = Slices(reader)
    slices.take(100, 5)
    before = all_messages(broker)
    broker.truncate((ORDERS, 0), 50)
    send(broker, 90, keys=7)
    slices.take(100, 30)
    reader.go_on([full])

    slices.take(100, 40)

    everything = all_messages(broker)
    assert slices.offsets[full] == offsets_of(full, everything)
    had = offsets_of(other, before)
    assert slices.offsets[other] == had + [offset for offset in offsets_of(other, everything) if offset >= 50]


def test_what_is_kept_counts_for_the_messages_that_are_asked_for(broker, reader):
    """Of all slices together, or of each."""
    send(broker, 100)
    queues = [part(number, 4) for number in range(4)]
    reader.start([give(queue) for queue in queues])
    slices = Slices(reader)
    reader.hold_back(queues[1:])
    slices.take(100, 5)
    reader.go_on(queues[1:])

    together, each = reader.take(2, 0), reader.take(2, 0, each=True)

    assert [sum(len(messages) for _, messages in runs) for runs in (together, each)] == [2, 6]


def test_what_is_kept_comes_before_what_is_read_later(broker, reader):
    """Also if another thread resumes a slice while its messages are read."""
    send(broker, 100)
    queues = [part(0, 2), part(1, 2)]
    reader.start([give(queue) for queue in queues])
    reader.hold_back(queues[:1])
    slices = Slices(reader)
    slices.take(50)
    reader.pause(queues[:1])
    reader.go_on(queues[:1])
    inner = reader._reader
    take = inner.take

    def resumed(most: int, timeout: float) -> list[tuple[Give, list[Message]]]:
        reader.resume(queues[:1])
        return take(most, timeout)

    inner.take = resumed  # type: ignore[method-assign]
    slices.take(50)
    inner.take = take  # type: ignore[method-assign]
    slices.take(50, 5)

    assert slices.offsets[queues[0]] == offsets_of(queues[0], all_messages(broker))


def test_a_paused_group_gets_nothing_of_what_is_kept(broker, reader):
    """It is handed out when the group goes on."""
    send(broker, 100)
    queues = [part(0, 2), part(1, 2)]
    reader.start([give(queue) for queue in queues])
    reader.hold_back(queues[:1])
    slices = Slices(reader)
    slices.take(100, 5)
    reader.stop(True)
    reader.go_on(queues[:1])
    slices.take(100, 5)
    assert queues[0] not in slices.offsets
    reader.stop(False)

    assert not reader.is_idle
    slices.take(100, 5)

    assert slices.offsets[queues[0]] == offsets_of(queues[0], all_messages(broker))


def test_a_partition_stops_when_all_its_slices_are_held(broker, reader):
    """It is not read, and not fetched, for nobody."""
    send(broker, 100)
    queues = [part(0, 2), part(1, 2)]
    reader.start([give(queue) for queue in queues])
    reader.hold_back(queues)
    slices = Slices(reader)

    slices.take(40, 5)

    assert not slices.offsets
    assert [reader.position(queue) for queue in queues] == [0, 0]


def test_messages_of_former_slices_are_skipped(broker, reader):
    """After 4 slices became 2, each new one begins at the lower offset of its two; one of them was further."""
    send(broker, 200)
    merged = part(1, 2)
    done = (Done(4, 2, 150), Done(4, 3, 20))
    reader.start([give(merged, 20, done=done)])
    slices = Slices(reader)

    slices.take(40, 10)
    reader.set_back([(reader.assigned()[merged], 20)])
    slices.take(40, 10)

    everything = all_messages(broker)
    wanted = sorted(
        [offset for offset in offsets_of(part(2, 4), everything) if offset >= 150]
        + [offset for offset in offsets_of(part(3, 4), everything) if offset >= 20]
    )
    assert slices.offsets[merged] == wanted * 2


def test_a_whole_queue_skips_what_former_slices_have_done(broker, reader):
    """A partition that is not cut any more is read like any other, without what was processed before."""
    send(broker, 100)
    whole = Queue(ORDERS, "", 0)
    reader.start([give(whole, 0, done=(Done(2, 0, 60),)), give(Queue(ORDERS, "", 1))])
    slices = Slices(reader)

    slices.take(40, 10)

    everything = all_messages(broker)
    wanted = sorted(
        [offset for offset in offsets_of(part(0, 2), everything) if offset >= 60] + offsets_of(part(1, 2), everything)
    )
    assert slices.offsets == {whole: wanted}
    assert reader.queues == [whole, Queue(ORDERS, "", 1)]


def test_messages_after_a_lost_tail_are_not_taken_for_those_that_were_done(broker, reader):
    """The log has other messages at these offsets, of a later leader epoch."""
    send(broker, 100)
    first, second = part(0, 2), part(1, 2)
    reader.start([give(first, 0)])
    slices = Slices(reader)
    epochs: dict[tuple[Queue, int], int | None] = {(second, 90): 0}
    reader.leader_epoch_at = lambda one, offset: epochs.get((one.queue, offset))
    slices.take(40, 10)
    broker.truncate((ORDERS, 0), 50)
    send(broker, 100)
    reader.start([give(second, 90, leader_epoch=0)])

    slices.take(40, 40)

    everything = all_messages(broker)
    assert [offset for offset in slices.offsets[first] if offset < 50] == [
        offset for offset in offsets_of(first, everything) if offset < 50
    ]
    for queue in (first, second):
        new = [offset for offset in offsets_of(queue, everything) if offset >= 50]
        assert slices.offsets[queue][-len(new) :] == new


def test_a_seek_moves_one_slice(broker, reader):
    """What the others have had is not returned again."""
    send(broker, 100)
    queues = [part(0, 2), part(1, 2)]
    reader.start([give(queue) for queue in queues])
    slices = Slices(reader)
    slices.take(40, 10)
    reader.seek(queues[0], 30)

    slices.take(40, 10)

    mine, others = (offsets_of(queue, all_messages(broker)) for queue in queues)
    assert slices.offsets == {queues[0]: [*mine, *(offset for offset in mine if offset >= 30)], queues[1]: others}


def test_a_slice_starts_where_its_rule_says_or_lower(broker, reader):
    """A part of it has an offset, and for another part a rule applies: nothing of either may be lost."""
    send(broker, 50)
    both, last = part(0, 4), part(1, 4)
    found = reader.start([give(both, 20, policy="last"), give(last, None, policy="last")])

    assert [(one.queue, offset) for one, offset in found] == [(both, 20), (last, 50)]


def test_a_header_or_a_function_may_order_messages(broker):
    """All members must agree on it; for a message without the header, the key counts."""
    for number in range(60):
        customer = {"customer": f"c{number % 9}"} if number % 5 else {}
        broker.send(ORDERS, "", key="c1", queue=0, properties=customer)
    found = []
    for by in ("customer", customer_of):
        reader = reader_of(broker, by)
        reader.start([give(part(number, 4)) for number in range(4)])
        slices = Slices(reader, slice_key(by).key_of)
        slices.take(100, 5)
        found.append(slices.offsets)
        reader.close()

    assert found[0] == found[1]
    assert sorted(offset for offsets in found[0].values() for offset in offsets) == list(range(60))
    of_key = found[0][part(slice_of(b"c1", 4), 4)]
    assert {number for number in range(60) if number % 5 == 0 or number % 9 == 1} <= set(of_key)


def customer_of(message: Message) -> bytes | None:
    return dict(message.headers() or []).get("customer")


@pytest.mark.parametrize(
    ("slice_by", "words"), [("", "slice_by"), (lambda _: "", "has a name"), (7, "slice_by is 7"), ("a\n", "slice_by")]
)
def test_what_cannot_be_told_to_others_is_refused(slice_by, words):
    """Members compare it by name."""
    with pytest.raises(InvalidUsage, match=words):
        slice_key(slice_by)


def test_a_function_must_return_a_key(broker):
    """Otherwise two members could take one message for theirs."""
    send(broker, 3)
    reader = reader_of(broker, wrong_key)
    reader.start([give(part(0, 2))])

    with pytest.raises(InvalidUsage, match=r"wrong_key\(\), returned 7; it must return text, bytes or None"):
        reader.take(10, 0)
    reader.close()


def wrong_key(_message: Message) -> int:
    return 7


def test_a_slice_that_is_not_read_is_refused(reader):
    """A whole partition is expanded before, to the slices that are read."""
    reader.start([give(part(0, 2))])

    assert reader.named(Queue(ORDERS, "", 0)) == [part(0, 2)]
    with pytest.raises(InvalidUsage, match="orders-0/1of2"):
        reader.pause([part(1, 2)])
    with pytest.raises(InvalidUsage, match="orders-0 now"):
        reader.seek(Queue(ORDERS, "", 0), 3)
    with pytest.raises(InvalidUsage, match="orders-1"):
        reader.position(Queue(ORDERS, "", 1))


class World:
    """A reader whose slices come and go, fill, are paused and go back."""

    def __init__(self, broker: MemoryBroker, seed: int) -> None:
        self.broker, self.rng, self.reader = broker, Random(seed), reader_of(broker)
        self.next_offset = Counter[Queue]()
        """From where on a slice must get its messages."""
        self.held, self.paused, self.epoch = set[Queue](), set[Queue](), 1
        self.is_stopped = False
        for partition in (0, 1):
            send(broker, self.rng.choice([0, 40, 1_000]), partition, self.rng.choice([1, 5, 200]))
        self.everything = all_messages(broker)

    def left(self, queue: Queue) -> list[int]:
        """Return the offsets that a slice is still to get."""
        return [at for at in offsets_of(queue, self.everything) if at >= self.next_offset[queue]]

    def take(self, most: int) -> None:
        each = self.rng.random() < 0.5
        runs = self.reader.take(most, 0, each=each)
        counts = Counter[Queue]()
        for one, messages in runs:
            counts[one.queue] += len(messages)
        assert (max(counts.values(), default=0) if each else counts.total()) <= most
        for one, messages in runs:
            offsets = [message.offset() or 0 for message in messages]
            assert not self.is_stopped
            assert one.queue not in self.held | self.paused
            assert offsets == self.left(one.queue)[: len(offsets)], f"{one.queue}: not from {self.next_offset}"
            self.next_offset[one.queue] = offsets[-1] + 1
        for move in self.reader.moves:
            assert not any(at < move.offset for at in self.left(move.give.queue)), f"{move} loses messages"
            self.next_offset[move.give.queue] = max(self.next_offset[move.give.queue], move.offset)
        self.reader.moves = []

    def send(self) -> None:
        send(self.broker, self.rng.choice([1, 50, 700]), self.rng.randrange(2), self.rng.choice([1, 5, 200]))
        self.everything = all_messages(self.broker)

    def assign(self) -> None:
        """Take some slices away, and give others, of any number: only those of one number are there at once."""
        rng, known = self.rng, self.reader.assigned()
        wanted = {queue: one for queue, one in known.items() if rng.random() < 0.6}
        self.epoch += 1
        slices = rng.choice([1, 2, 4, 8])
        for queue in [part(number, slices, partition) for partition in (0, 1) for number in range(slices)]:
            if rng.random() < 0.5 and not any(overlap(queue, other) for other in wanted):
                end = sum(message.partition() == queue.queue_id for message in self.everything)
                self.next_offset[queue] = rng.choice([0, self.next_offset[queue], min(end, 20)])
                wanted[queue] = give(queue, self.next_offset[queue], self.epoch)
        self.reader.stop_all_but(wanted)
        kept = {queue for queue, one in wanted.items() if known.get(queue) == one}
        self.reader.start([one for queue, one in wanted.items() if queue not in kept])
        self.held, self.paused = self.held & kept, self.paused & kept

    def hold(self, queue: Queue) -> None:
        self.reader.hold_back([queue])
        self.held.add(queue)

    def pause(self, queue: Queue) -> None:
        self.reader.pause([queue])
        self.paused.add(queue)

    def set_back(self, queue: Queue) -> None:
        self.next_offset[queue] = self.rng.randrange(self.next_offset[queue] + 1)
        self.reader.set_back([(self.reader.assigned()[queue], self.next_offset[queue])])

    def seek(self, queue: Queue) -> None:
        self.next_offset[queue] = self.rng.randrange(self.next_offset[queue] + 1)
        self.reader.seek(queue, self.next_offset[queue])

    def recover(self) -> None:
        """Read from the first unprocessed message on, as after an exception."""
        places = [(one, self.next_offset[queue]) for queue, one in self.reader.assigned().items()]
        for place in places:
            self.reader.reach(place)
        self.reader.recover()
        self.held = set()

    def stop(self) -> None:
        """Pause the group, or let it go on."""
        self.is_stopped = not self.is_stopped
        self.reader.stop(self.is_stopped)

    def let_go(self) -> None:
        """Let all slices be read on."""
        if self.is_stopped:
            self.stop()
        self.reader.go_on(sorted(self.held))
        self.reader.resume(sorted(self.paused))
        self.held, self.paused = set(), set()

    def step(self) -> None:
        rng, queues = self.rng, self.reader.queues
        of_slices = [self.hold, self.pause, self.set_back, self.seek] if queues else []
        step = rng.choice(["take"] * 6 + ["send", "assign", "let go", "stop", "recover", *of_slices])
        match step:
            case "take":
                self.take(rng.choice([1, 30, 500]))
            case "send":
                self.send()
            case "assign":
                self.assign()
            case "let go":
                self.let_go()
            case "stop":
                self.stop()
            case "recover":
                self.recover()
            case of_one:
                of_one(rng.choice(queues))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_lost_or_repeated_in_any_history(broker, monkeypatch, seed):
    """Each slice gets what is there from its position on, once, whatever happens to it and to the others."""
    monkeypatch.setattr("wakeroll.sliced_reader.MOST_KEPT", [0, 3, 40, 1_000][seed % 4])
    world = World(broker, seed)
    for _ in range(40):
        world.step()
    world.let_go()

    wait_until(
        lambda: not any(map(world.left, world.reader.queues)),
        "all slices have all messages",
        between=lambda: world.take(500),
        state=lambda: {str(queue): world.left(queue)[:3] for queue in world.reader.queues},
    )
    world.reader.close()


def overlap(one: Queue, other: Queue) -> bool:
    """Return whether two slices of a partition have messages in common."""
    if one.whole != other.whole:
        return False
    wide, narrow = sorted((one, other), key=lambda queue: queue.slices)
    return narrow.slice * wide.slices // narrow.slices == wide.slice
