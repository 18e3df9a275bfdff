"""Ctrl-C in a delivery report: whichever step it meets, the program gets its KeyboardInterrupt."""

import os
import signal
import threading

import pytest

from wakeroll.steady_clients import SteadyProducer

BROKER_IN_LIBRDKAFKA = {"test.mock.num.brokers": 1}


@pytest.mark.parametrize("waits", [SteadyProducer.flush, SteadyProducer.poll], ids=["flush", "poll"])
def test_an_interrupt_in_a_delivery_report_ends_the_wait(waits):
    """In the main thread, confluent-kafka would lose the exception, and raise SystemError."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
    producer, reports = SteadyProducer(BROKER_IN_LIBRDKAFKA), []

    def interrupt(*report):
        os.kill(os.getpid(), signal.SIGINT)
        reports.append(report)

    producer.produce("orders", b"1", on_delivery=interrupt)
    with pytest.raises(KeyboardInterrupt):
        waits(producer, 60)

    signal.signal(signal.SIGINT, former)
    producer.flush(10)
    assert len(reports) == 1


def test_no_thread_is_left_after_a_call():
    producer = SteadyProducer(BROKER_IN_LIBRDKAFKA)

    producer.flush(1)

    for thread in threading.enumerate():
        if thread.name == "wakeroll-delivery":
            thread.join(10)
            assert not thread.is_alive()


def test_an_error_of_a_report_comes_out_of_the_wait():
    producer = SteadyProducer(BROKER_IN_LIBRDKAFKA)

    def fail(*_):
        raise ValueError("a report that nobody can read")

    producer.produce("orders", b"1", on_delivery=fail)
    with pytest.raises(ValueError, match="nobody can read"):
        producer.flush(10)
