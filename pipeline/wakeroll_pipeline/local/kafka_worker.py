"""A member of one of Kafka's own groups in the demo: a process with Kafka's client and without wakeroll.

The log has the lines of `worker`.
"""

import argparse
import json
import os
import signal
import sys
import time

from confluent_kafka import Consumer


def main(arguments: list[str]) -> int:
    """Consume until SIGTERM, then leave the group."""
    parser = argparse.ArgumentParser()
    for name in ("--topic", "--log", "--config"):
        parser.add_argument(name, required=True)
    given = parser.parse_args(arguments)
    stopping = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    log = os.open(given.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    consumer = Consumer(json.loads(given.config))
    consumer.subscribe([given.topic])
    while not stopping:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            start_ns = time.time_ns()
            os.write(log, f"{message.partition()},{message.offset()},{start_ns},{time.time_ns()}\n".encode())
    consumer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
