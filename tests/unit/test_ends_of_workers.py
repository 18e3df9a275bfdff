"""Whatever a handler raises or returns: `run` ends with it, or its messages have failed; no worker ends in silence."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from wakeroll import Consumer, InvalidUsage, WakerollError
from wakeroll.testing import MemoryBroker


class Wild(BaseException):
    """No `Exception`."""


class MuteError(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise ValueError("no text")


class WildTextError(Exception):
    """An exception whose text raises no `Exception`."""

    def __str__(self) -> str:
        raise Wild


class WildResult:
    """A result that cannot be shown."""

    def __repr__(self) -> str:
        raise Wild


class MuteResult:
    """A result that cannot be shown."""

    def __repr__(self) -> str:
        raise ValueError("no text")


def raising(problem: BaseException) -> Callable[[Any], object]:
    def handle(_: Any) -> object:
        raise problem

    return handle


def returning(result: object) -> Callable[[Any], object]:
    return lambda _: result


def as_async(handler: Callable[[Any], object]) -> Callable[[Any], object]:
    async def handle(messages: Any) -> object:
        return handler(messages)

    return handle


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        broker.create_topic("orders")
        broker.send("orders", "1")
        yield broker


@pytest.mark.parametrize("kind", [lambda handler: handler, as_async], ids=["function", "async"])
@pytest.mark.parametrize("on_error", ["retry", "raise"])
@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (raising(Wild()), Wild),
        (raising(SystemExit(3)), SystemExit),
        (returning(WildResult()), Wild),
        (returning(MuteResult()), InvalidUsage),
    ],
    ids=["BaseException", "SystemExit", "repr raises BaseException", "repr raises"],
)
def test_run_ends_with_the_problem(broker, kind, on_error, handler, expected):
    """Its message is not committed: the next member receives it again."""
    with Consumer("billing", ["orders"], broker.bootstrap, consume_from="first") as consumer:
        with pytest.raises(expected):
            consumer.run(kind(handler), on_error=on_error, workers=1)
        message = consumer.poll(30)
        assert message is not None
        assert message.offset() == 0


@pytest.mark.parametrize("kind", [lambda handler: handler, as_async], ids=["function", "async"])
def test_run_ends_if_the_text_of_an_exception_ends_the_program(broker, kind):
    with Consumer("billing", ["orders"], broker.bootstrap, consume_from="first") as consumer:
        with pytest.raises(Wild):
            consumer.run(kind(raising(WildTextError())), workers=1)
        assert consumer.poll(30).offset() == 0


@pytest.mark.parametrize("kind", [lambda handler: handler, as_async], ids=["function", "async"])
def test_a_message_whose_exception_has_no_text_has_failed(broker, kind):
    broker.join("billing", ["orders"], kind(raising(MuteError())), max_retries=0)
    broker.run_until_done()

    assert [letter.origin.error for letter in broker.dead_letters("billing")] == ["MuteError: its text cannot be read"]


def test_a_callback_that_ends_the_program_ends_the_control_thread_with_a_word(broker):
    """For example a handler of the log that raises SystemExit."""
    with Consumer("billing", ["orders"], broker.bootstrap) as consumer:
        consumer._control._on_answer = raising(SystemExit())  # type: ignore[method-assign,assignment]
        consumer._fetcher.hear = consumer._control._on_answer  # type: ignore[method-assign]
        with pytest.raises(WakerollError, match="SystemExit"):
            consumer.fetch(("orders", 0), 1, wait=30)
