"""Kafka's clients: a consumer whose waits do not depend on the wall clock, a producer that Ctrl-C may interrupt."""

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer

from wakeroll.call_thread import CallThread

SHORTEST_S = 0.001
LONGEST_S = 0.05
SHARE = 50
"""The consumer checks for a message again after this share of the time since the last message, within these limits (s).
So a message is returned late by at most 2 % of the time since the message before, and at most 50 ms. While no message
arrives, the checks use little of a core: each takes 55 to 75 us, and a waiting consumer has two threads that check."""

UNUSED_GROUP = "wakeroll-unused"
"""The `group.id` of consumers that join no group of Kafka, because Kafka's client requires one."""


class SteadyConsumer(Consumer):
    """A consumer whose `poll` returns in time even if the wall clock is set back meanwhile.

    librdkafka waits until a time of the wall clock. If that is set back by an hour during a wait of 50 ms, the wait
    lasts an hour, unless a message comes: no heartbeat is sent, and no retry is delivered. So this class polls
    librdkafka without a timeout, and waits by the monotonic clock itself.

    It drops one error: the brokers deny the principal to describe `UNUSED_GROUP`. librdkafka looks up the coordinator
    of every group, even of one that is never joined.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        """Create a consumer with librdkafka's settings."""
        super().__init__(config)
        self._joins = config.get("group.id") != UNUSED_GROUP
        self._quiet_since_s: float | None = None
        """Start of the first wait since the last message, by the monotonic clock (s); None: there was no wait."""

    def poll(self, timeout: float = -1) -> Message | None:
        """Return the next message or error; wait for it at most `timeout` seconds, for ever if that is negative."""
        message = self._next()
        if message is None and timeout:
            message = self._wait(timeout)
        if message is not None:
            self._quiet_since_s = None
        return message

    def _wait(self, timeout: float) -> Message | None:
        message, now_s = None, time.monotonic()
        if self._quiet_since_s is None:
            self._quiet_since_s = now_s
        deadline = math.inf if timeout < 0 else now_s + timeout
        while message is None and now_s < deadline:
            pause_s = min(max((now_s - self._quiet_since_s) / SHARE, SHORTEST_S), LONGEST_S)
            time.sleep(min(pause_s, deadline - now_s))
            message, now_s = self._next(), time.monotonic()
        return message

    def consume(self, *args: Any, **kwargs: Any) -> list[Message]:
        """Return several messages and errors; see `confluent_kafka.Consumer.consume`."""
        messages: list[Message] = super().consume(*args, **kwargs)
        if self._joins or not any(map(Message.error, messages)):
            return messages
        return [message for message in messages if not _is_about_a_group(message)]

    def _next(self) -> Message | None:
        message = super().poll(0)
        return None if message is not None and not self._joins and _is_about_a_group(message) else message


def _is_about_a_group(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


class SteadyProducer(Producer):
    """A producer whose `poll` and `flush` may be interrupted by a signal while a delivery report is processed.

    Python calls signal handlers in the main thread, between two steps of a function. If that function is a callback of
    confluent-kafka, the exception of the handler, such as KeyboardInterrupt, is lost, and `poll` raises SystemError. So
    another thread makes each such call of the main thread.
    """

    def poll(self, timeout: float = -1) -> int:
        """Process delivery reports; see `confluent_kafka.Producer.poll`."""
        return _not_in_main(partial(super().poll, timeout))

    def flush(self, timeout: float = -1) -> int:
        """Wait for delivery reports; see `confluent_kafka.Producer.flush`."""
        return _not_in_main(partial(super().flush, timeout))


def _not_in_main(call: Callable[[], int]) -> int:
    if threading.current_thread() is not threading.main_thread():
        return call()
    thread = CallThread("wakeroll-delivery")
    try:
        return thread.ask(call)
    finally:
        thread.end()
