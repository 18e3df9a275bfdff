"""The public interface of wakeroll's SDK: the consumer, the producer, and the tools of an operator.

A name is imported when it is first used: a command that only needs an error would otherwise wait for the Kafka client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wakeroll.admin import Admin
    from wakeroll.async_consumer import AsyncConsumer
    from wakeroll.consumer import Consumer
    from wakeroll.dead_letters import DeadLetters
    from wakeroll.epoch_ms import EpochMs
    from wakeroll.errors import (
        ConsumerFenced,
        InvalidUsage,
        NotReachable,
        RequestRefused,
        RequestUnanswered,
        WakerollError,
    )
    from wakeroll.fetch import Fetched
    from wakeroll.origin import Origin, origin_of
    from wakeroll.producer import Producer
    from wakeroll.push.outcomes import DeadLetter, Retry
    from wakeroll.reset import Shift
    from wakeroll.topic_filters import Sql92
    from wakeroll.topic_subscriptions import Subscribed
    from wakeroll_model.queue import Queue

_MODULES = {
    "Admin": "wakeroll.admin",
    "AsyncConsumer": "wakeroll.async_consumer",
    "Consumer": "wakeroll.consumer",
    "ConsumerFenced": "wakeroll.errors",
    "DeadLetter": "wakeroll.push.outcomes",
    "DeadLetters": "wakeroll.dead_letters",
    "EpochMs": "wakeroll.epoch_ms",
    "Fetched": "wakeroll.fetch",
    "InvalidUsage": "wakeroll.errors",
    "NotReachable": "wakeroll.errors",
    "Origin": "wakeroll.origin",
    "Producer": "wakeroll.producer",
    "Queue": "wakeroll_model.queue",
    "RequestRefused": "wakeroll.errors",
    "RequestUnanswered": "wakeroll.errors",
    "Retry": "wakeroll.push.outcomes",
    "Shift": "wakeroll.reset",
    "Sql92": "wakeroll.topic_filters",
    "Subscribed": "wakeroll.topic_subscriptions",
    "WakerollError": "wakeroll.errors",
    "origin_of": "wakeroll.origin",
}

__all__ = [
    "Admin",
    "AsyncConsumer",
    "Consumer",
    "ConsumerFenced",
    "DeadLetter",
    "DeadLetters",
    "EpochMs",
    "Fetched",
    "InvalidUsage",
    "NotReachable",
    "Origin",
    "Producer",
    "Queue",
    "RequestRefused",
    "RequestUnanswered",
    "Retry",
    "Shift",
    "Sql92",
    "Subscribed",
    "WakerollError",
    "origin_of",
]


def __getattr__(name: str) -> Any:
    """Import a public name (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
