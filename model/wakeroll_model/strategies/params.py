"""Typed access to the parameters of a strategy.  They are JSON from a client; an invalid value raises a clear error."""

from collections.abc import Mapping, Sequence
from typing import Any

from wakeroll_model.queue import Queue


class StrategyError(ValueError):
    """A strategy cannot assign these queues; the message gives the reason to the operator of the group."""


def whole_number(params: Mapping[str, Any], name: str, default: int) -> int:
    """Return an integer parameter; the default if it is absent.

    Raises:
        StrategyError: the value is not an integer.
    """
    given = params.get(name)
    if given is None:
        return default
    if not isinstance(given, int) or isinstance(given, bool):
        raise StrategyError(f"{name} is {shown(given)}; it must be a whole number")
    return given


def texts(params: Mapping[str, Any], name: str) -> frozenset[str] | None:
    """Return a list of strings as a set; None if it is absent.

    Raises:
        StrategyError: the value is not a list of strings.
    """
    given = params.get(name)
    if given is None:
        return None
    if not isinstance(given, list | tuple | set | frozenset) or not all(isinstance(one, str) for one in given):
        raise StrategyError(f"{name} is {shown(given)}; it must be a list of texts")
    return frozenset(given)


def mapping(params: Mapping[str, Any], name: str) -> Mapping[Any, Any] | None:
    """Return a mapping, without a check of its keys and values; None if it is absent.

    Raises:
        StrategyError: the value is not a mapping.
    """
    given = params.get(name)
    if given is not None and not isinstance(given, Mapping):
        raise StrategyError(f"{name} is {shown(given)}; it must be an object of names and values")
    return given


def text_in(given: Mapping[Any, Any] | None, name: str, key: str | Queue) -> str:
    """Return the value of a key in a mapping; "" if the key or the mapping is absent.

    Raises:
        StrategyError: the value is not a string.
    """
    found = given.get(key) if given is not None else None
    if found is not None and not isinstance(found, str):
        raise StrategyError(f"{name} has {shown(found)} for {key}; it must be a text")
    return found or ""


def texts_in(given: Mapping[Any, Any] | None, name: str, keys: Sequence[str]) -> Sequence[str]:
    """Return the values of many keys in a mapping; "" for a key that is absent, or if the mapping is.

    Raises:
        StrategyError: a value is not a string.
    """
    found: list[Any] = list(map(given.get, keys)) if given is not None else []
    if set(map(type, found)) == {str}:
        return found
    return [text_in(given, name, key) for key in keys]


def queue_list(params: Mapping[str, Any], name: str, topic: str) -> list[Queue]:
    """Return a list of queues; empty if it is absent.

    A queue is a `Queue`, ``{"topic", "broker", "queue_id"}`` (without a broker for a Kafka topic), or
    ``[broker, queue_id]`` for a queue of `topic`.

    Raises:
        StrategyError: the value is not a list, or an item is not a queue.
    """
    given = params.get(name)
    if given is None:
        return []
    if not isinstance(given, list | tuple):
        raise StrategyError(f"{name} is {shown(given)}; it must be a list of queues")
    return [_queue(one, name, topic) for one in given]


def _queue(given: object, name: str, topic: str) -> Queue:
    match given:
        case Queue():
            return given
        case {"topic": str(its_topic), "broker": str(broker), "queue_id": int(queue_id)}:
            return Queue(its_topic, broker, queue_id)
        case {"topic": str(its_topic), "queue_id": int(queue_id), **rest} if "broker" not in rest:
            return Queue(its_topic, "", queue_id)
        case [str(broker), int(queue_id)]:
            return Queue(topic, broker, queue_id)
    forms = "a queue is an object of topic, broker and queue_id, or [broker, queue_id]"
    raise StrategyError(f"{name} has {shown(given)}; {forms}")


def shown(given: object) -> str:
    """Return a value as text of at most 100 characters for an error message."""
    text = repr(given)
    return text if len(text) <= 100 else f"{text[:97]}..."
