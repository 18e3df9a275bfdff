"""Reading dead letters as programs do: slowly, with other calls inside the loop, and only in part."""

import time
from collections.abc import Iterator

import pytest

from wakeroll import DeadLetter, DeadLetters, InvalidUsage, dead_letters
from wakeroll.testing import MemoryBroker

LETTERS = 250


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        broker.create_topic("orders")
        for number in range(LETTERS):
            broker.send("orders", b"%d" % number)
        broker.join("billing", ["orders"], lambda _messages: DeadLetter(reason="x"))
        broker.run_until_done()
        yield broker


@pytest.fixture
def letters(broker: MemoryBroker) -> Iterator[DeadLetters]:
    with DeadLetters("billing", broker.bootstrap, connect_timeout=1.0) as letters:
        yield letters


def test_a_caller_may_be_slower_than_the_timeout(letters, monkeypatch):
    """The timeout is for an answer of Kafka. A person who reads a letter takes longer."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    seen = 0

    for _ in letters.open():
        seen += 1
        clock[0] += 3_600

    assert seen == LETTERS


def test_letters_may_be_settled_while_they_are_listed(letters):
    """The usual program: look at each letter, and settle it."""
    seen = [letter.number for letter in letters.open() if letters.drop([letter.number])]

    assert len(seen) == LETTERS
    assert list(letters.open()) == []


def test_a_letter_that_is_settled_in_the_loop_is_not_yielded_any_more(letters):
    """Otherwise a program would settle it again, which is an error."""
    numbers = [letter.number for letter in letters.open()]
    seen = []
    for letter in letters.open():
        seen.append(letter.number)
        if len(seen) == 5:
            letters.drop(numbers[2:200])
        assert letters.get(numbers[-1]).number == numbers[-1]

    assert seen == [*numbers[:5], *numbers[200:]]


def test_two_loops_may_run_in_turn(letters):
    pairs = list(zip(letters.open(), letters.open(), strict=True))

    assert len(pairs) == LETTERS
    assert all(one.number == other.number for one, other in pairs)


def test_a_loop_that_is_left_does_not_disturb_the_next(letters):
    first = letters.open()
    next(first)
    second = letters.open()
    next(second)
    first.close()

    assert sum(1 for _ in second) == LETTERS - 1


@pytest.mark.parametrize("settle", [DeadLetters.resend, DeadLetters.drop])
def test_settling_no_letters_does_nothing(letters, settle):
    """A program passes on the numbers that it has chosen, which may be none."""
    assert settle(letters, []) == 0
    assert sum(1 for _ in letters.open()) == LETTERS


@pytest.mark.parametrize("numbers", [5, "5", "All", None, ["5"], [1.5], b"all"])
def test_other_numbers_are_refused(letters, numbers):
    """The text '12' must not settle the letters 1 and 2."""
    with pytest.raises(InvalidUsage, match=r"^numbers is .*; it must be 'all', or a list of numbers of letters"):
        letters.drop(numbers)


@pytest.mark.parametrize("wanted", ["all", "every second"])
def test_marks_are_written_in_chunks(letters, monkeypatch, wanted):
    """One mark of a million letters would be larger than Kafka's messages may be."""
    monkeypatch.setattr(dead_letters, "CHUNK", 100)
    numbers = [letter.number for letter in letters.open()]
    chosen = numbers if wanted == "all" else numbers[::2]
    marks = []
    write = letters._mark
    monkeypatch.setattr(letters, "_mark", lambda mark: [marks.append(mark), write(mark)])

    assert letters.drop("all" if wanted == "all" else chosen) == len(chosen)

    assert [sum(last - first + 1 for first, last in mark.numbers) for mark in marks] == (
        [100, 100, 50] if wanted == "all" else [100, 25]
    )
    assert [letter.number for letter in letters.open()] == [one for one in numbers if one not in chosen]
