"""Waiting for the answers to the requests of Kafka's admin client."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

_Key = TypeVar("_Key")
_Answer = TypeVar("_Answer")

_SLICE_S = 0.1


def wait_for(
    futures: Mapping[_Key, Future[_Answer]], timeout_s: float, meanwhile: Callable[[], object] = lambda: None
) -> dict[_Key, _Answer | KafkaError] | None:
    """Wait for all answers to a request, which arrive together.

    The client's own `request_timeout` is not enough: until it has once connected to a broker, some requests wait for
    ever (confluent-kafka 2.16).

    Args:
        futures: the result of a method of an admin client.
        timeout_s: how long to wait at most (s).
        meanwhile: called every 0.1 s; it may raise an exception to end the wait.

    Returns:
        The answer to each part of the request, or the error that a broker or Kafka's client reports for it; None: not
        all came in time.
    """
    deadline = time.monotonic() + timeout_s
    while wait(futures.values(), _SLICE_S).not_done:
        meanwhile()
        if time.monotonic() > deadline:
            return None
    answers: dict[_Key, _Answer | KafkaError] = {}
    for key, future in futures.items():
        try:
            answers[key] = future.result()
        except KafkaException as problem:
            answers[key] = problem.args[0]
    return answers
