"""Consumers whose group has cut a topic into slices: what each of their methods does with a slice."""

import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message

from tests.support.waiting import wait_until
from wakeroll import Admin, Consumer, DeadLetter, InvalidUsage, Queue, Retry
from wakeroll.testing import MemoryBroker
from wakeroll_model.slices import slice_of

GROUP, ORDERS = "billing", "orders"
KEYS = 24
WHOLE = Queue(ORDERS, "", 0)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """A broker with one partition, which the group has cut into four slices."""
    with MemoryBroker() as broker:
        broker.create_topic(ORDERS)
        broker.cut(GROUP, ORDERS, 4)
        yield broker


def part(number: int, slices: int = 4) -> Queue:
    return Queue(ORDERS, "", 0, slices, number)


PARTS = [part(number) for number in range(4)]


def part_of(message: Message, slices: int = 4) -> Queue:
    key = message.key()
    assert isinstance(key, bytes)
    return part(slice_of(key, slices), slices)


def send(broker: MemoryBroker, count: int, begin: int = 0, **settings: object) -> None:
    """Send messages whose values count those of their key, the first of all that are sent as number `begin`."""
    for number in range(begin, begin + count):
        broker.send(ORDERS, str(number // KEYS), key=f"key-{number % KEYS}", queue=0, **settings)


def member(broker: MemoryBroker, **settings: object) -> Consumer:
    return Consumer(GROUP, [ORDERS], broker.bootstrap, consume_from="first", **settings)


def polled(consumer: Consumer, count: int, *others: Consumer) -> list[Message]:
    """Poll until a consumer has so many messages; others poll meanwhile, for what they must release."""
    found: list[Message] = []

    def poll() -> None:
        if len(found) < count and (message := consumer.poll(0.02)) is not None:
            found.append(message)
        for other in others:
            assert other.poll(0.02) is None

    wait_until(lambda: len(found) == count, "the messages come", between=poll, state=lambda: len(found))
    return found


def has(consumer: Consumer, queues: list[Queue]) -> None:
    """Poll until these are the slices of a consumer without messages."""
    wait_until(
        lambda: consumer.assignment() == queues,
        f"{queues} are assigned",
        between=lambda: consumer.poll(0.02),
        state=consumer.assignment,
    )


def values(messages: list[Message]) -> dict[bytes, list[int]]:
    """Return the values of each key, in order."""
    found: defaultdict[bytes, list[int]] = defaultdict(list)
    for message in messages:
        found[message.key()].append(int(message.value()))
    return dict(found)


def everything(count: int) -> dict[bytes, list[int]]:
    numbers: defaultdict[bytes, list[int]] = defaultdict(list)
    for number in range(count):
        numbers[f"key-{number % KEYS}".encode()].append(number // KEYS)
    return dict(numbers)


@pytest.mark.parametrize("way", ["poll", "for", "consume"])
def test_messages_of_a_key_are_delivered_in_order(broker, way):
    """One member has all slices: it reads the partition once, and gets each message once."""
    send(broker, 480)
    found: list[Message] = []
    with member(broker) as consumer:
        match way:
            case "poll":
                found = polled(consumer, 480)
            case "for":
                for message in consumer:
                    found.append(message)
                    if len(found) == 480:
                        break
            case _:
                wait_until(
                    lambda: len(found) == 480, "all come", between=lambda: found.extend(consumer.consume(70, 0.02))
                )
        assert consumer.assignment() == PARTS
        assert {consumer.queue_of(message) for message in found} == set(PARTS)

    assert values(found) == everything(480)
    assert broker.committed(GROUP) == dict.fromkeys(PARTS, 480)


def test_members_share_the_slices_of_one_partition(broker):
    """Four members of one partition, which would otherwise have work for one."""
    send(broker, 240)
    seen: defaultdict[int, list[Message]] = defaultdict(list)
    lock = threading.Lock()

    def note(number: int, messages: list[Message]) -> None:
        with lock:
            seen[number] += messages

    for number in range(4):
        broker.join(GROUP, [ORDERS], lambda messages, number=number: note(number, messages))
    broker.settle()
    assert sorted(queue for queues in broker.assignment(GROUP).values() for queue in queues) == PARTS
    broker.run_until_done()
    send(broker, 240)
    broker.run_until_done()

    assert {
        number: len({part_of(one) for one in messages[-20:]}) for number, messages in seen.items()
    } == dict.fromkeys(range(4), 1)
    assert sum(map(len, seen.values())) == 480
    assert broker.committed(GROUP) == dict.fromkeys(PARTS, 480)


@pytest.mark.parametrize("slices", [8, 2, 1])
def test_another_number_of_slices_repeats_and_loses_nothing(broker, slices):
    """The new slices begin where the former ones were processed, each at its own offset."""
    send(broker, 240)
    with member(broker) as consumer:
        found = polled(consumer, 101)
        broker.cut(GROUP, ORDERS, slices)
        found += polled(consumer, 139)
        wanted = [part(number, slices) if slices > 1 else WHOLE for number in range(slices)]
        has(consumer, wanted)
        send(broker, 24)
        rest = polled(consumer, 24)

    assert values(found) == everything(240)
    assert len(values(rest)) == KEYS
    assert broker.committed(GROUP) == dict.fromkeys(wanted, 264)


def test_a_former_slice_that_was_ahead_is_not_repeated(broker):
    """Two slices become one: it begins at the lower offset, and leaves out what the other one has done."""
    send(broker, 240)
    with member(broker, on_assigned=pause_even) as consumer:
        found = polled(consumer, sum(part_of_key(number) in (part(1), part(3)) for number in range(240)))
        broker.cut(GROUP, ORDERS, 2)
        found += polled(consumer, 240 - len(found))
        assert consumer.poll(0.1) is None
        assert consumer.assignment() == [part(0, 2), part(1, 2)]

    assert values(found) == everything(240)


def pause_even(consumer: Consumer, queues: list[Queue]) -> None:
    consumer.pause([queue for queue in queues if queue in (part(0), part(2))])


def part_of_key(number: int) -> Queue:
    return part(slice_of(f"key-{number % KEYS}".encode(), 4))


def test_pause_seek_and_position_are_of_a_slice_or_of_all(broker):
    """A whole partition stands for its slices here."""
    send(broker, 120)
    with member(broker) as consumer:
        found = polled(consumer, 120)
        consumer.poll(0.05)
        consumer.seek(part(1), 0)
        again = polled(consumer, len([one for one in found if part_of(one) == part(1)]))
        assert {part_of(one) for one in again} == {part(1)}
        consumer.pause([(ORDERS, 0)])
        assert consumer.paused() == PARTS
        send(broker, 24)
        assert consumer.poll(0.2) is None
        consumer.resume([part(2)])
        assert {part_of(one) for one in polled(consumer, len(of_slice(2)))} == {part(2)}
        consumer.resume([WHOLE])
        rest = polled(consumer, 24 - len(of_slice(2)))
        assert part(2) not in set(map(part_of, rest))
        consumer.seek(WHOLE, 120)
        assert len(polled(consumer, 24)) == 24
        assert consumer.position((ORDERS, 0)) == 144
        with pytest.raises(InvalidUsage, match="orders-0/5of8"):
            consumer.seek(part(5, 8), 0)


def of_slice(number: int) -> list[bytes]:
    """Return the keys of one of four slices."""
    return [key for key in everything(KEYS) if slice_of(key, 4) == number]


def test_commits_are_of_a_slice_or_of_all(broker):
    """The message of a commit names its slice; a whole partition, all slices, as far as they were delivered."""
    send(broker, 48)
    with member(broker, commit_interval=None) as consumer:
        found = polled(consumer, 48)
        fifth = found[5]
        assert consumer.commit(message=fifth)
        mine = consumer.queue_of(fifth)
        offset = (fifth.offset() or 0) + 1
        assert {queue: consumer.committed(queue) for queue in PARTS} == {**dict.fromkeys(PARTS, 0), mine: offset}
        with pytest.raises(InvalidUsage, match="beyond what was delivered"):
            consumer.commit(offsets={part(0): 1_000})
        assert consumer.commit(offsets={(ORDERS, 0): 1_000})
        assert {queue: consumer.committed(queue) for queue in PARTS} == dict.fromkeys(PARTS, 48)
        assert consumer.committed((ORDERS, 0)) == 48
        assert consumer.lag() == dict.fromkeys(PARTS, 0)
        of_part = sorted(one.offset() or 0 for one in found if part_of(one) == part(3))
        assert (fetched(consumer, part(3)), fetched(consumer, WHOLE)) == (of_part, list(range(48)))


def fetched(consumer: Consumer, queue: Queue) -> list[int]:
    """Fetch all messages of a queue or slice, and return their offsets."""
    offsets, at = list[int](), 0
    while at < 48:
        messages, at = consumer.fetch(queue, at, 1)
        offsets += [message.offset() or 0 for message in messages]
    return offsets


def test_marks_are_of_their_slices(broker):
    """A message that is not done holds the committed offset of its slice, and of no other."""
    send(broker, 48)
    with member(broker, marks_done=True) as consumer:
        found = polled(consumer, 48)
        late = [one for one in found if part_of(one) == part(1)][1]
        assert consumer.done(*(one for one in found if one is not late))
        consumer.commit()
        assert {queue: consumer.committed(queue) for queue in PARTS} == {
            **dict.fromkeys(PARTS, 48),
            part(1): late.offset(),
        }
        assert consumer.done(late)

    assert broker.committed(GROUP) == dict.fromkeys(PARTS, 48)


def test_a_full_slice_does_not_stop_the_others(broker):
    """One key hangs; with a buffer of four messages, its slice is full at once, and the other ones go on."""
    send(broker, 960)
    hung, stuck = threading.Event(), of_slice(0)[0]
    seen: list[Message] = []

    def handle(messages: list[Message]) -> None:
        if messages[0].key() == stuck:
            assert hung.wait(120)
        seen.extend(messages)

    consumer = broker.join(GROUP, [ORDERS], handle, orderly=True, prefetch=4)
    others = [number for number in range(960) if part_of_key(number) != part(0)]
    broker.wait_until(lambda: len([one for one in tuple(seen) if part_of(one) != part(0)]) == len(others))
    work = consumer.consumer._loop._work[part(0)]
    assert work.messages <= 4
    hung.set()
    broker.run_until_done()

    assert values(seen) == everything(960)


@pytest.mark.parametrize("handover", ["cooperative", "eager"])
def test_a_new_slice_waits_for_calls_of_those_that_it_comes_from(broker, handover):
    """Also if the coordinator assigns it at once: its owner would handle a key in two calls at a time."""
    hung, stuck = threading.Event(), of_slice(0)[0]
    seen: list[Message] = []

    def handle(messages: list[Message]) -> None:
        if messages[0].key() == stuck and messages[0].value() == b"0":
            assert hung.wait(120)
        seen.extend(messages)

    with Admin(broker.bootstrap) as admin:
        admin.configure(GROUP, handover=handover)
    first = broker.join(GROUP, [ORDERS], handle, orderly=True, batch_size=1)
    send(broker, KEYS)
    broker.wait_until(lambda: first.calls == 1 and len(seen) == KEYS - len(of_slice(0)))
    broker.cut(GROUP, ORDERS, 2)
    broker.wait_until(lambda: part(1, 2) in first.assignment)
    send(broker, KEYS, begin=KEYS)
    broker.wait_until(lambda: len([one for one in tuple(seen) if part_of(one, 2) == part(1, 2)]) == 2 * others_of(0))
    assert not [one for one in seen if one.key() == stuck]
    assert part(0, 2) not in first.assignment
    hung.set()
    broker.run_until_done()

    handled = values(seen)
    assert all(sorted(numbers) == numbers for numbers in handled.values())
    assert {key: sorted(set(numbers)) for key, numbers in handled.items()} == everything(2 * KEYS)


def others_of(number: int) -> int:
    """Return how many keys are not in one of two slices."""
    return sum(slice_of(key, 2) != number for key in everything(KEYS))


@pytest.mark.parametrize("orderly", [False, True])
def test_failed_messages_are_retried_and_buried_per_slice(broker, orderly):
    """In place if it is orderly, so that the key keeps its order; otherwise through the retry topic, which is whole."""
    send(broker, 48)
    tries: defaultdict[bytes, int] = defaultdict(int)
    seen: list[Message] = []

    def handle(messages: list[Message]) -> object:
        [message] = messages
        if message.key() == b"key-1" and message.value() == b"0":
            tries[message.key()] += 1
            if tries[message.key()] < 3:
                return Retry(messages=messages)
        if message.key() == b"key-2" and message.value() == b"0":
            return DeadLetter(messages, "hopeless")
        seen.append(message)
        return None

    broker.join(GROUP, [ORDERS], handle, orderly=orderly, batch_size=1)
    broker.run_until_done()

    wanted = everything(48)
    wanted[b"key-2"] = [1]
    if not orderly:
        wanted[b"key-1"] = [1, 0]  # the retried one comes later
    assert values(seen) == wanted
    assert [letter.message.key() for letter in broker.dead_letters(GROUP)] == [b"key-2"]
    assert broker.committed(GROUP) == dict.fromkeys(PARTS, 48)


def test_filters_hold_for_slices(broker):
    """A message that does not match counts as processed for its slice."""
    send(broker, 48, tags="paid")
    send(broker, 48, tags="open")
    with Consumer(GROUP, {ORDERS: "paid"}, broker.bootstrap, consume_from="first") as consumer:
        found = polled(consumer, 48)
        assert consumer.poll(0.1) is None

    assert values(found) == everything(48)
    assert broker.committed(GROUP) == dict.fromkeys(PARTS, 96)


def test_a_broadcasting_group_is_not_sliced(broker):
    """Each member reads everything anyway."""
    send(broker, 24)
    with Consumer(GROUP, [ORDERS], broker.bootstrap, consume_from="first", mode="broadcasting") as consumer:
        assert len(polled(consumer, 24)) == 24
        assert consumer.assignment() == [WHOLE]


def test_a_callback_may_start_slices_elsewhere(broker):
    """It is called with the slices; a whole partition that it names stands for them."""
    send(broker, 96)
    told: list[list[Queue]] = []

    def begin(_: Consumer, queues: list[Queue]) -> dict[tuple[str, int], int]:
        told.append(queues)
        return {(ORDERS, 0): 48}

    with member(broker, on_assigned=begin) as consumer:
        assert min(one.offset() or 0 for one in polled(consumer, 48)) == 48

    assert told == [PARTS]


def test_a_header_orders_messages_if_all_members_name_it(broker):
    """The oldest member decides; one that cuts by something else gets none, rather than messages of others."""
    for number in range(40):
        broker.send(ORDERS, str(number), queue=0, properties={"customer": f"c{number % 8}"})
    with member(broker, slice_by="customer") as consumer, member(broker) as other:
        found = polled(consumer, 40, other)
        assert other.assignment() == []
    of_customer: defaultdict[bytes, list[int]] = defaultdict(list)
    for message in found:
        of_customer[dict(message.headers())["customer"]].append(message.offset() or 0)

    assert all(offsets == sorted(offsets) for offsets in of_customer.values())
    assert sorted(offset for offsets in of_customer.values() for offset in offsets) == list(range(40))


def test_the_program_of_the_page_runs(capsys):
    """docs/slices.md shows how to try slices."""
    page = (Path(__file__).parents[2] / "docs" / "slices.md").read_text(encoding="utf-8")
    [program] = re.findall(r"```python\n(from wakeroll.testing.*?)```", page, flags=re.DOTALL)

    exec(compile(program, "docs/slices.md", "exec"), {})

    assert sorted(re.findall(r"orders-0/\dof4", capsys.readouterr().out)) == [str(one) for one in PARTS]


@pytest.mark.parametrize("number", [0, 3, 65, "8"])
def test_a_number_of_slices_that_is_no_power_of_two_is_refused(number):
    with MemoryBroker() as broker:
        broker.create_topic(ORDERS)
        with pytest.raises(InvalidUsage, match=f"slices: {ORDERS} is {number!r}; it must be a "):
            broker.cut(GROUP, ORDERS, number)
