"""The cost of one Kafka transaction per batch, and how long an open one blocks the readers of its partition.

``python -m bench.transaction_cost`` prints the figures of docs/decisions/0011. It takes about a minute.
"""

import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer, TopicPartition

from bench.machine import this_machine
from bench.running_system import make_topic
from wakeroll.connection import Connection
from wakeroll_pipeline.local.broker import EmbeddedBroker

FOLDER = Path(".wakeroll/bench/transactions")
VALUE = b"x" * 100
BATCHES = 300
ROUNDS = 5
TIMEOUT_MS = 10_000
"""Transaction timeout of the producer that dies with an open transaction; Kafka's default is 60 s."""
ANSWER_S = 30.0


def main() -> int:
    """Measure and print."""
    print(this_machine())
    shutil.rmtree(FOLDER, ignore_errors=True)
    with EmbeddedBroker(FOLDER) as broker:
        connection = Connection(broker.bootstrap)
        make_topic(connection, "output", 1)
        plain = connection.producer()
        transactional = connection.producer(**{"transactional.id": "bench"})
        transactional.init_transactions(ANSWER_S)
        for size in (1, 32, 500):
            ways: dict[str, Callable[[], float]] = {
                "flush": lambda size=size: _seconds(lambda: _flushed(plain, size)),  # type: ignore[misc]
                "transaction": lambda size=size: _seconds(lambda: _committed(transactional, size)),  # type: ignore[misc]
            }
            took = {name: [] for name in ways}  # type: dict[str, list[float]]
            for _ in range(ROUNDS):
                for name, way in ways.items():
                    took[name].append(way() / BATCHES * 1_000)
            flush, transaction = (statistics.median(took[name]) for name in ways)
            print(f"batch of {size}: flush {flush:.2f} ms, transaction {transaction:.2f} ms, {transaction / flush:.1f}")
        print(f"a record behind an open transaction was readable after {_blocked_s(connection):.1f} s")
    return 0


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    for _ in range(BATCHES):
        work()
    return time.perf_counter() - began


def _flushed(producer: Producer, size: int) -> None:
    for _ in range(size):
        producer.produce("output", VALUE)
    producer.flush(ANSWER_S)


def _committed(producer: Producer, size: int) -> None:
    producer.begin_transaction()
    for _ in range(size):
        producer.produce("output", VALUE)
    producer.commit_transaction(ANSWER_S)


def _blocked_s(connection: Connection) -> float:
    """Return how long a record of one producer waits for the transaction of another one, which has died."""
    make_topic(connection, "control", 1)
    dying = connection.producer(**{"transactional.id": "dying", "transaction.timeout.ms": TIMEOUT_MS})
    dying.init_transactions(ANSWER_S)
    dying.begin_transaction()
    dying.produce("control", b"commit of a client")
    dying.flush(ANSWER_S)
    reader = connection.consumer(**{"isolation.level": "read_committed"})
    reader.assign([TopicPartition("control", 0, 0)])
    other = connection.producer()
    other.produce("control", b"heartbeat of another client")
    other.flush(ANSWER_S)
    began = time.perf_counter()
    while (message := reader.poll(1.0)) is None or message.error() is not None:
        pass
    reader.close()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
