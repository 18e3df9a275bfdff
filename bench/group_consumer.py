"""A consumer of `bench.group_changes`: a process that logs each message when the application has it.

The log has one line per message, ``ns topic partition offset``, and the lines ``ns began`` and ``ns leaving``. Times
are those of the monotonic clock, which all processes of a machine share.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Message

from wakeroll import Consumer

POLL_S = 0.05
Poll = Callable[[float], Message | None]


class Log:
    """A file of lines that are complete even if the process is killed right after one."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, what: str) -> None:
        """Append a line with the time of now."""
        os.write(self._file, f"{time.monotonic_ns()} {what}\n".encode())


def main(arguments: list[str]) -> int:
    """Consume until SIGTERM, then leave the group."""
    parser = argparse.ArgumentParser(prog="python -m bench.group_consumer", description=__doc__.splitlines()[0])
    for name in ("--bootstrap", "--group", "--client", "--topic"):
        parser.add_argument(name, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--prefix", help="of the topics of wakeroll's control plane")
    parser.add_argument("--kafka", help="settings of a consumer of Kafka's own groups, as JSON; not with --prefix")
    given = parser.parse_args(arguments)
    stopping = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    log = Log(given.log)
    log.write("began")
    with _kafkas(given) if given.prefix is None else _ours(given) as poll:
        while not stopping:
            message = poll(POLL_S)
            if message is not None and message.error() is None:
                log.write(f"{message.topic()} {message.partition()} {message.offset()}")
        log.write("leaving")
    return 0


@contextmanager
def _ours(given: argparse.Namespace) -> Iterator[Poll]:
    with Consumer(
        given.group,
        [given.topic],
        given.bootstrap,
        prefix=given.prefix,
        client_id=given.client,
        consume_from="first",
    ) as consumer:
        yield consumer.poll


@contextmanager
def _kafkas(given: argparse.Namespace) -> Iterator[Poll]:
    names = {"bootstrap.servers": given.bootstrap, "group.id": given.group, "client.id": given.client}
    settings = msgspec.json.decode(given.kafka, type=dict[str, str])
    consumer = KafkaConsumer({"auto.offset.reset": "earliest", **names, **settings})
    consumer.subscribe([given.topic])
    try:
        yield consumer.poll
    finally:
        consumer.close()  # commits what was handed out


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
