"""OpenTelemetry spans for the calls of a handler, and a metric. Optional: install the extra ``telemetry``.

The application configures OpenTelemetry; without a configuration, the spans cost little and are dropped. Names and
attributes follow OpenTelemetry's semantic conventions for messaging.

>>> from wakeroll.telemetry import trace_properties, traced  # doctest: +SKIP
>>> producer.send("orders", b"17", properties=trace_properties())  # doctest: +SKIP
>>> consumer.run(traced(handle, "billing"))  # doctest: +SKIP
"""

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import cast

from confluent_kafka import Message
from opentelemetry import metrics, propagate, trace
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from wakeroll.callbacks import is_async_function
from wakeroll.consumer import Consumer
from wakeroll.errors import InvalidUsage
from wakeroll.headers import pairs_of, texts_of
from wakeroll.origin import origin_of
from wakeroll.push.outcomes import AsyncHandler, Handler, Result, failed_in

__all__ = ["measure", "trace_properties", "traced"]

SYSTEM = "kafka"


class _Global:
    """Stands for the global provider of meters, which the application may set later."""


_GLOBAL = _Global()
_measured: weakref.WeakKeyDictionary[MeterProvider | _Global, weakref.WeakSet[Consumer]] = weakref.WeakKeyDictionary()
"""Provider -> the consumers of its gauge: OpenTelemetry ignores a second gauge of the same name."""
_lock = threading.Lock()
"""Lock of `_measured`, which the thread of an exporter reads."""


def trace_properties() -> dict[str, str]:
    """Return the current span as properties of a message, for `Producer.send`; empty if there is no span.

    A handler of `traced` links its span to it, also when the message is retried.
    """
    properties: dict[str, str] = {}
    propagate.inject(properties)
    return properties


def measure(consumer: Consumer, *, provider: MeterProvider | None = None) -> None:
    """Measure a consumer until it is garbage-collected: the gauge ``wakeroll.refused_messages``.

    Its value is that of `Consumer.refused`; its attributes are the group and the client.

    Args:
        consumer: the consumer.
        provider: provider of the meter; None: the global one.
    """
    owner = _GLOBAL if provider is None else provider
    with _lock:
        if (known := _measured.get(owner)) is not None:
            known.add(consumer)
            return
        measured = _measured[owner] = weakref.WeakSet([consumer])

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        with _lock:
            consumers = list(measured)
        return [
            Observation(
                consumer.refused(),
                {"messaging.consumer.group.name": consumer.group_id, "messaging.client.id": consumer.client_id},
            )
            for consumer in consumers
        ]

    metrics.get_meter("wakeroll", meter_provider=provider).create_observable_gauge(
        "wakeroll.refused_messages",
        [observe],
        unit="{message}",
        description="Failed messages that wait in place, because the retry or dead letter topic does not take them.",
    )


def traced(handler: Handler, group_id: str, *, provider: TracerProvider | None = None) -> Handler:
    """Return a handler for `Consumer.run` whose calls are spans; it is ``async`` if the given one is.

    A span is linked to the spans in which its messages were produced. It has the status error if the call raises, or if
    the handler returns that messages failed; the attribute ``wakeroll.failed`` is their number.

    Args:
        handler: the handler.
        group_id: the consumer's group, for the attribute ``messaging.consumer.group.name``.
        provider: provider of the tracer; None: the global one.
    """
    tracer = trace.get_tracer("wakeroll", tracer_provider=provider)

    @contextmanager
    def span_of(messages: list[Message]) -> Iterator[Callable[[Result], Result]]:
        first = origin_of(messages[0])
        attributes: dict[str, str | int] = {
            "messaging.system": SYSTEM,
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.destination.name": first.topic,
            "messaging.destination.partition.id": str(first.partition),
            "messaging.kafka.offset": first.offset,
            "messaging.consumer.group.name": group_id,
            "messaging.batch.message_count": len(messages),
            "wakeroll.attempt": max(origin_of(message).attempt for message in messages),
        }
        links = [link for message in messages if (link := _link_to(message)) is not None]
        with tracer.start_as_current_span(
            f"process {first.topic}", kind=SpanKind.CONSUMER, attributes=attributes, links=links
        ) as span:
            yield lambda result: _note(span, messages, result)

    if is_async_function(handler):
        call_async = cast(AsyncHandler, handler)

        @functools.wraps(call_async)
        async def handle_async(messages: list[Message]) -> Result:
            with span_of(messages) as note:
                return note(await call_async(messages))

        return handle_async

    call = cast("Callable[[list[Message]], Result]", handler)

    @functools.wraps(call)
    def handle(messages: list[Message]) -> Result:
        with span_of(messages) as note:
            return note(call(messages))

    return handle


def _link_to(message: Message) -> Link | None:
    """Return a link to the span that produced a message; None if the headers name no span."""
    headers = {name: text for name, text in texts_of(pairs_of(message)).items() if text is not None}
    context = trace.get_current_span(propagate.extract(headers)).get_span_context()
    return Link(context) if context.is_valid else None


def _note(span: Span, messages: list[Message], result: Result) -> Result:
    """Note the messages that failed, and return the result."""
    try:
        failed = failed_in(messages, result)
    except InvalidUsage as problem:  # `run` will end with it
        span.record_exception(problem)
        span.set_status(Status(StatusCode.ERROR, str(problem)))
        return result
    span.set_attribute("wakeroll.failed", len(failed))
    if failed:
        span.set_status(Status(StatusCode.ERROR, failed[0].error))
    return result
