"""The public interface of wakeroll's SDK: the consumer, the producer, and the tools of an operator."""

from wakeroll.admin import Admin
from wakeroll.async_consumer import AsyncConsumer
from wakeroll.consumer import Consumer
from wakeroll.dead_letters import DeadLetters
from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import ConsumerFenced, InvalidUsage, NotReachable, WakerollError
from wakeroll.fetch import Fetched
from wakeroll.operator_requests import RequestRefused, RequestUnanswered
from wakeroll.origin import Origin, origin_of
from wakeroll.producer import Producer
from wakeroll.push.outcomes import DeadLetter, Retry
from wakeroll.reset import Shift
from wakeroll.topic_filters import Sql92
from wakeroll_model.queue import Queue

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
    "WakerollError",
    "origin_of",
]
