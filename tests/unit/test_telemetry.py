"""Spans of handlers, with the real SDK of OpenTelemetry and a broker in memory."""

import asyncio
import gc

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from wakeroll import Consumer, DeadLetter, InvalidUsage, Retry
from wakeroll.telemetry import measure, trace_properties, traced
from wakeroll.testing import MemoryBroker


class Traces:
    """A provider whose spans stay in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def traces() -> Traces:
    return Traces()


def consume(traces: Traces, handler: object, count: int = 1, **options: object) -> None:
    """Send messages, each in a span of its own, and handle them in one call."""
    tracer = trace.get_tracer("application", tracer_provider=traces.provider)
    with MemoryBroker() as broker:
        broker.create_topic("orders")
        for _ in range(count):
            with tracer.start_as_current_span("order"):
                broker.send("orders", b"17", properties=trace_properties())
        broker.join("billing", ["orders"], traced(handler, "billing", provider=traces.provider), **options)
        broker.run_until_done()


def test_a_call_is_a_span_that_is_linked_to_those_of_its_producers(traces):
    consume(traces, lambda _: None, count=3)

    [span] = traces.spans("process orders")
    assert [link.context.span_id for link in span.links] == [
        sent.get_span_context().span_id for sent in traces.spans("order")
    ]
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
        "messaging.consumer.group.name": "billing",
        "messaging.batch.message_count": 3,
        "wakeroll.attempt": 1,
        "wakeroll.failed": 0,
    }


def test_a_retried_message_keeps_its_link_and_its_topic(traces):
    outcomes = [Retry(reason="no taxes"), None]
    consume(traces, lambda _: outcomes.pop(0))

    first, second = traces.spans("process orders")
    assert first.links[0].context == second.links[0].context
    assert [span.attributes["wakeroll.attempt"] for span in (first, second)] == [1, 2]
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, "no taxes")
    assert second.status.status_code is StatusCode.UNSET


def test_an_exception_and_a_dead_letter_are_errors(traces):
    outcomes = [ValueError("wrong"), DeadLetter(reason="hopeless")]

    def handle(_: object) -> object:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    consume(traces, handle)

    raised, hopeless = traces.spans("process orders")
    assert (raised.status.status_code, raised.events[0].name) == (StatusCode.ERROR, "exception")
    assert (hopeless.status.description, hopeless.attributes["wakeroll.failed"]) == ("hopeless", 1)


def test_an_async_handler_stays_one_and_its_own_spans_are_children(traces):
    tracer = trace.get_tracer("application", tracer_provider=traces.provider)

    async def handle(_: object) -> None:
        with tracer.start_as_current_span("tax"):
            await asyncio.sleep(0)

    consume(traces, handle)

    [call], [tax] = traces.spans("process orders"), traces.spans("tax")
    assert tax.parent.span_id == call.get_span_context().span_id


def test_a_wrong_result_still_ends_the_run(traces):
    with pytest.raises(InvalidUsage):
        consume(traces, lambda _: 7)

    [span] = traces.spans("process orders")
    assert span.status.status_code is StatusCode.ERROR


def test_messages_without_a_span_have_no_link(traces):
    with MemoryBroker() as broker:
        broker.create_topic("orders")
        broker.send("orders", b"17")
        broker.join("billing", ["orders"], traced(lambda _: None, "billing", provider=traces.provider))
        broker.run_until_done()

    assert [len(span.links) for span in traces.spans("process orders")] == [0]
    assert trace_properties() == {}


def test_the_gauge_has_one_value_per_consumer_while_it_exists():
    """Its value is that of `Consumer.refused`, which tests/e2e/test_refused_letters.py shows."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])

    def values() -> dict[object, object]:
        found = reader.get_metrics_data()
        metrics = [] if found is None else found.resource_metrics[0].scope_metrics[0].metrics
        return {
            point.attributes["messaging.client.id"]: point.value
            for metric in metrics
            if metric.name == "wakeroll.refused_messages"
            for point in metric.data.data_points
        }

    with MemoryBroker() as broker:
        broker.create_topic("orders")
        with Consumer("billing", ["orders"], broker.bootstrap, client_id="one") as one:
            measure(one, provider=provider)
            with Consumer("billing", ["orders"], broker.bootstrap, client_id="two") as two:
                measure(two, provider=provider)
                assert values() == {"one": 0, "two": 0}
            del two
            gc.collect()
            assert values() == {"one": 0}
    provider.shutdown()
