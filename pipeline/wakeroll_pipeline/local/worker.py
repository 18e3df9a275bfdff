"""A consumer of the demo: a process that uses the SDK like an application, and logs the handled messages.

The log has one line per message, written after handling: ``queue_id,offset,start_ns,end_ns``, by this machine's clock.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from wakeroll import Consumer
from wakeroll.client_properties import read_properties


def main(arguments: list[str]) -> int:
    """Consume until SIGTERM, then leave the group."""
    parser = argparse.ArgumentParser()
    for name in ("--bootstrap", "--prefix", "--group", "--client", "--topic", "--log"):
        parser.add_argument(name, required=True)
    parser.add_argument("--kafka-config", type=Path)
    parser.add_argument("--no-last-will", action="store_true")
    given = parser.parse_args(arguments)
    stopping = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    # Unbuffered: the log is complete even if the process is killed right after a message.
    log = os.open(given.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    consumer = Consumer(
        given.group,
        [given.topic],
        given.bootstrap,
        prefix=given.prefix,
        kafka_config=read_properties(given.kafka_config) if given.kafka_config else None,
        client_id=given.client,
        consume_from="first",
        last_will=not given.no_last_will,
    )
    with consumer:
        while not stopping:
            message = consumer.poll(0.2)
            if message is not None:
                start_ns = time.time_ns()
                os.write(log, f"{message.partition()},{message.offset()},{start_ns},{time.time_ns()}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
