"""The thread that makes calls for others: their order, their results, and what happens after its end."""

import threading

import pytest

from wakeroll.call_thread import CallThread

PATIENCE_S = 30.0


@pytest.fixture
def thread():
    thread = CallThread("wakeroll-test")
    yield thread
    thread.end()
    thread.join(PATIENCE_S)


def name_of_the_thread() -> str:
    return threading.current_thread().name


def raising() -> None:
    raise SystemExit(3)


def test_calls_are_made_in_the_thread_one_after_the_other(thread):
    made: list[object] = []
    for number in range(3):
        thread.do(lambda number=number: made.append((number, name_of_the_thread())))

    assert thread.ask(name_of_the_thread) == "wakeroll-test"
    assert made == [(0, "wakeroll-test"), (1, "wakeroll-test"), (2, "wakeroll-test")]
    assert thread.submit(lambda: 7).result(PATIENCE_S) == 7


def test_whoever_waits_receives_the_exception_and_the_thread_goes_on(thread):
    with pytest.raises(SystemExit):
        thread.ask(raising)
    assert isinstance(thread.submit(raising).exception(PATIENCE_S), SystemExit)
    assert thread.ask(name_of_the_thread) == "wakeroll-test"


def test_calls_before_the_end_are_made(thread):
    goes_on, made = threading.Event(), []
    thread.do(lambda: goes_on.wait(PATIENCE_S) and None)
    thread.do(lambda: made.append("done"))
    submitted = thread.submit(lambda: 7)
    thread.end()
    goes_on.set()

    assert submitted.result(PATIENCE_S) == 7
    assert made == ["done"]


@pytest.mark.parametrize("was_used", [True, False], ids=["used", "never used"])
def test_after_the_end_a_call_without_a_waiter_is_dropped(thread, was_used):
    """For example `Control.abandon` by the garbage collector, after `close`: the member has left."""
    made: list[object] = []
    if was_used:
        thread.ask(name_of_the_thread)
    thread.end()
    thread.join(PATIENCE_S)
    thread.do(lambda: made.append("dropped"))

    assert thread.ask(lambda: made) == []


def test_after_the_end_a_future_has_failed_at_once(thread):
    """A task that waited for it would wait for ever."""
    thread.ask(name_of_the_thread)
    thread.end()

    assert str(thread.submit(lambda: 7).exception(0)) == "thread wakeroll-test has ended; it makes no call any more"


def test_after_the_end_whoever_asks_makes_the_call(thread):
    """The second `close` of a consumer, and methods that only read."""
    thread.ask(name_of_the_thread)
    thread.end()
    answers: list[str] = []

    def ask() -> None:
        answers.append(thread.ask(name_of_the_thread))

    askers = [threading.Thread(target=ask, name="asker", daemon=True) for _ in range(8)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(PATIENCE_S)

    assert answers == ["asker"] * 8, "each has an answer, also if another one made the call"


def test_a_second_end_does_nothing(thread):
    thread.ask(name_of_the_thread)
    thread.end()
    thread.end()
    thread.join(PATIENCE_S)

    with pytest.raises(SystemExit):
        thread.ask(raising)
