"""The callbacks of an application: queues were assigned, revoked or lost."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from wakeroll.errors import InvalidUsage
from wakeroll.offset_queries import OffsetTarget
from wakeroll_model.queue import Queue

if TYPE_CHECKING:
    from wakeroll.async_consumer import AsyncConsumer
    from wakeroll.consumer import Consumer

QueueName = Queue | tuple[str, int]
"""A `Queue`, or a topic and a number."""
_Value = TypeVar("_Value")
ByQueue = Mapping[Queue, _Value] | Mapping[tuple[str, int], _Value] | Mapping[QueueName, _Value]
"""Mapping whose keys are queues. Type checkers do not accept a mapping with one kind of key as a mapping with both."""
Starts = ByQueue[OffsetTarget]
"""Queue -> where to start reading it, as for `Consumer.seek`."""

OnAssigned = Callable[["Consumer", list[Queue]], Starts | None]
"""Called with the consumer and newly assigned queues; returns where to start some of them, or None."""
OnEnded = Callable[["Consumer", list[Queue]], object]
"""Called with the consumer and queues that are revoked or lost."""
AsyncOnAssigned = Callable[["AsyncConsumer", list[Queue]], Starts | Awaitable[Starts | None] | None]
"""The same for an `AsyncConsumer`; it may be an ``async`` function."""
AsyncOnEnded = Callable[["AsyncConsumer", list[Queue]], object]
"""The same for an `AsyncConsumer`; it may be an ``async`` function."""


def is_async_function(call: object) -> bool:
    """Return whether this is an ``async`` function, or an object whose call returns a coroutine."""
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)


def check_callback(name: str, callback: Any, *, may_be_async: bool) -> None:
    """Check that a callback can be called with a consumer and queues, as far as its signature shows; None is accepted.

    Args:
        name: name of the argument.
        callback: the application's argument.
        may_be_async: whether it may be an ``async`` function.

    Raises:
        InvalidUsage: it cannot be called like that.
    """
    if callback is None:
        return
    if not callable(callback):
        raise InvalidUsage(
            f"{name} is {callback!r}; it must be a function of the consumer and a list of queues, or None"
        )
    if is_async_function(callback) and not may_be_async:
        raise InvalidUsage(f"{name} is an async function, which only AsyncConsumer awaits; pass an ordinary one")
    try:
        inspect.signature(callback).bind(None, [])
    except ValueError:  # it has no signature that could be checked
        return
    except TypeError:
        raise InvalidUsage(
            f"{name} is {callback!r}, which cannot be called with two arguments; since this release, it is called with "
            "the consumer and the list of queues"
        ) from None
