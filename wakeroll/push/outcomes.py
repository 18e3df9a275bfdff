"""The outcome of a call of a handler: the messages that failed, and the treatment of each."""

import reprlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import Message

from wakeroll.argument_checks import checked
from wakeroll.errors import InvalidUsage
from wakeroll.origin import Origin
from wakeroll_model.retry_topics import DELAYS_S

MAX_ERROR_BYTES = 1_024
"""Maximum length of the error in the header of a failed message (bytes of UTF-8); a database's error often has several
lines."""
MAX_TYPE_BYTES = 255
"""Maximum length of the name of an exception's type in such a header (bytes of UTF-8)."""


@dataclass(frozen=True)
class Retry:
    """A result of a handler: messages failed, and are to be delivered again later.

    Raises:
        InvalidUsage: there is no such level, the messages are no sequence, or the reason is no text.
    """

    level: int = 0
    """Delay level, 1 to 18: 1 s, 5 s, 10 s, 30 s, 1 to 10 min, 20 min, 30 min, 1 h, 2 h; 0: by the attempt."""
    messages: Sequence[Message] | None = None
    """Messages of the call that failed; None: all of them."""
    reason: str = ""
    """For the header, the log and the tables; at most 1,024 bytes of UTF-8 are kept, in the tables 256
    characters."""

    def __post_init__(self) -> None:
        if not 0 <= checked("level", self.level, int) <= len(DELAYS_S):
            raise InvalidUsage(f"level is {self.level}; it must be 1 to {len(DELAYS_S)}, or 0 to choose by the attempt")
        _check(self)


@dataclass(frozen=True)
class DeadLetter:
    """A result of a handler: messages failed and are not to be delivered again; they become dead letters.

    Raises:
        InvalidUsage: the messages are no sequence, or the reason is no text.
    """

    messages: Sequence[Message] | None = None
    """Messages of the call that failed; None: all of them."""
    reason: str = ""
    """For the header, the log and the tables; at most 1,024 bytes of UTF-8 are kept, in the tables 256
    characters."""

    def __post_init__(self) -> None:
        _check(self)


OnDeadLetter = Callable[[Message, Origin, BaseException | None], Awaitable[bool | None] | bool | None]
"""Called with a message that is not retried any more, with its origin as the dead letter will have it, and with the
exception of its last call, if that raised one. It returns True if the application has taken the message."""
Result = Retry | DeadLetter | Sequence[Retry | DeadLetter] | None
"""None: all messages of the call are processed."""
Handler = Callable[[list[Message]], Result | Awaitable[Result]]
"""Receives messages of one queue in order of offset; it may be an ``async`` function."""
AsyncHandler = Callable[[list[Message]], Awaitable[Result]]
"""A handler that is an ``async`` function."""


class Failed(NamedTuple):
    """A message that a handler did not process."""

    message: Message
    level: int
    """Delay level that the handler wants; 0: by the attempt."""
    is_hopeless: bool
    """Whether the message is not to be delivered again."""
    error: str
    """Beginning of the error, at most `MAX_ERROR_BYTES` of UTF-8."""
    problem: BaseException | None = None
    """The exception of the call, if it raised one."""

    @property
    def error_type(self) -> str:
        """Type of that exception, with its module; empty if there is none."""
        return "" if self.problem is None else _type_of(self.problem)


def failed_in(messages: Sequence[Message], result: object) -> list[Failed]:
    """Return the messages of a call that failed, in order.

    Args:
        messages: all messages of the call.
        result: result of the handler, or the exception that it raised.

    Raises:
        InvalidUsage: the result is neither None nor a `Retry`, a `DeadLetter` or a list of these, or it names a message
            that is not of this call, or one twice.
    """
    if result is None:
        return []
    if isinstance(result, BaseException):
        error = _text_of(result)
        return [Failed(message, 0, False, error, result) for message in messages]
    places = {id(message): at for at, message in enumerate(messages)}
    found: dict[int, Failed] = {}
    for outcome in _outcomes(result):
        for message in messages if outcome.messages is None else outcome.messages:
            at = places.get(id(message))
            if at is None:
                raise InvalidUsage(f"the handler returned {reprlib.repr(outcome)}: a message in it is not of this call")
            if at in found:
                raise InvalidUsage(f"the handler returned offset {message.offset()} twice, as failed")
            level = outcome.level if isinstance(outcome, Retry) else 0
            found[at] = Failed(message, level, isinstance(outcome, DeadLetter), _readable(outcome.reason))
    return [found[at] for at in sorted(found)]


def _check(outcome: Retry | DeadLetter) -> None:
    checked("reason", outcome.reason, str)
    if outcome.messages is not None and not isinstance(outcome.messages, list | tuple):
        raise InvalidUsage(f"messages is {reprlib.repr(outcome.messages)}; it must be a list of messages, or None")


def _text_of(problem: BaseException) -> str:
    """Return type and text of an exception, even if its own code raises."""
    try:
        text = str(problem)
    except Exception:
        text = "its text cannot be read"
    return _readable(f"{type(problem).__name__}: {text}".removesuffix(": "))


def _type_of(problem: BaseException) -> str:
    kind = type(problem)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return _readable(f"{module}{kind.__qualname__}", MAX_TYPE_BYTES)


def _readable(text: str, most: int = MAX_ERROR_BYTES) -> str:
    """Return the first bytes of a text, at most `most` in UTF-8, without characters that UTF-8 cannot encode."""
    # A character has at least one byte: more characters than bytes are never needed.
    return text[:most].encode(errors="replace")[:most].decode(errors="ignore")


def _outcomes(result: object) -> Iterator[Retry | DeadLetter]:
    listed: Iterable[object] = result if isinstance(result, list | tuple) else [result]
    for outcome in listed:
        if not isinstance(outcome, Retry | DeadLetter):
            raise InvalidUsage(
                f"the handler returned {reprlib.repr(outcome)}; it must return None, Retry, DeadLetter, or a list of "
                "these"
            )
        yield outcome
