"""How a producer is closed whose callbacks, or whose fatal errors, raise while Kafka's client serves them."""

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.support.closed_port import closed_port
from wakeroll.connection import close_producer
from wakeroll_pipeline.local.ports import HOST

FATAL = KafkaException(KafkaError(KafkaError._FATAL, "cluster authorization failed"))
"""What Kafka's client raises in the place of the callback, for a principal that may write nothing."""


def test_errors_in_callbacks_do_not_escape_and_no_callback_is_lost():
    """Each record that is dropped is reported, although others before it have raised."""
    reported: list[KafkaError | None] = []

    def raises(error: KafkaError | None, _: Message) -> None:
        reported.append(error)
        raise FATAL

    with closed_port() as port:
        producer = Producer({"bootstrap.servers": f"{HOST}:{port}", "log_level": 0})
        for number in range(6):
            callback = raises if number % 3 == 0 else lambda error, _: reported.append(error)
            producer.produce("orders", b"x", on_delivery=callback)

        close_producer(producer, 0)

    assert [error.code() for error in reported if error is not None] == [KafkaError._PURGE_QUEUE] * 6
