"""Consumers of a measurement: a process with clients, one thread each, that logs what their application gets.

The log has one line per message, ``client topic partition offset start_ns end_ns delay_ms``, and the lines
``client began ns`` and ``client leaving ns``. Times are those of the monotonic clock, which all processes of a machine
share; the delay is that from the message's time to its handling.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Message

from bench.soak.shared_clients import SharedClients
from wakeroll import Consumer, ConsumerFenced, NotReachable

SHORTEST_WAIT_S = 0.25
"""How long each of many clients waits for messages at least (s), instead of the SDK's 0.05 s: it notices a revocation
that much later. Measured with 100 threads, on a machine that did other work too: 0.06 of a core instead of 0.11."""
_POLL_S = 0.05
_POLL_OF_MANY_S = 1.0
_PAUSE_S = 1.0
_NICE = 10
"""Broker and coordinators come first: consumers are on other machines in practice, and take none of their CPU."""

Poll = Callable[[float], Message | None]


class _Log:
    """A file of lines that are complete even if the process is killed right after one."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, *fields: object) -> None:
        os.write(self._file, f"{' '.join(map(str, fields))}\n".encode())


def main(arguments: list[str]) -> int:
    """Consume until SIGTERM, then leave the groups."""
    parser = argparse.ArgumentParser(prog="python -m bench.consumers", description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--prefix", help="of the topics of wakeroll's control plane")
    parser.add_argument("--kafka", help="settings of a consumer of Kafka's own groups, as JSON; not with --prefix")
    parser.add_argument(
        "--many", action="store_true", help="share the connections, leave the CPU to others, join again after outages"
    )
    parser.add_argument("--poll", type=float, help="seconds that a poll waits for a message")
    parser.add_argument("members", nargs="+", metavar="CLIENT=GROUP", help="a group reads the topic of the same name")
    given = parser.parse_args(arguments)
    stopping, log = threading.Event(), _Log(given.log)
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    if given.many:
        os.nice(_NICE)
    with (
        SharedClients(given.bootstrap, SHORTEST_WAIT_S) if given.many else nullcontext(),
        ThreadPoolExecutor(len(given.members)) as threads,
    ):
        working = [
            threads.submit(_work, given, client_id, group_id, log, stopping)
            for client_id, _, group_id in (member.partition("=") for member in given.members)
        ]
        wait(working, return_when=FIRST_EXCEPTION)
        stopping.set()
    for one in working:
        one.result()
    return 0


def _work(given: argparse.Namespace, client_id: str, group_id: str, log: _Log, stopping: threading.Event) -> None:
    """Consume as one client."""
    log.write(client_id, "began", time.monotonic_ns())
    consumer_of = _kafkas if given.kafka else _ours
    poll_s = given.poll or (_POLL_OF_MANY_S if given.many else _POLL_S)
    while not stopping.is_set():
        try:
            with consumer_of(given, client_id, group_id) as poll:
                while not stopping.is_set():
                    message = poll(poll_s)
                    if message is not None and message.error() is None:
                        start_ns = time.monotonic_ns()
                        delay_ms = round(time.time() * 1_000) - message.timestamp()[1]
                        where = (message.topic(), message.partition(), message.offset())
                        log.write(client_id, *where, start_ns, time.monotonic_ns(), delay_ms)
                log.write(client_id, "leaving", time.monotonic_ns())
        except (NotReachable, ConsumerFenced) as problem:
            if not given.many:
                raise
            # No broker answered for a while, or another client has this name: join again.
            print(f"{client_id}: {problem}", flush=True)
            stopping.wait(_PAUSE_S)


@contextmanager
def _ours(given: argparse.Namespace, client_id: str, group_id: str) -> Iterator[Poll]:
    # A broker holds a fetch that finds nothing for a second: hundreds of consumers leave the machine some time.
    patience: dict[str, Any] = {
        "connect_timeout": 60.0,
        "kafka_config": {"fetch.wait.max.ms": "1000", "log_level": "2"},
    }
    with Consumer(
        group_id,
        [group_id],
        given.bootstrap,
        prefix=given.prefix,
        client_id=client_id,
        consume_from="first",
        **(patience if given.many else {}),
    ) as consumer:
        yield consumer.poll


@contextmanager
def _kafkas(given: argparse.Namespace, client_id: str, group_id: str) -> Iterator[Poll]:
    names = {"bootstrap.servers": given.bootstrap, "group.id": group_id, "client.id": client_id}
    settings = msgspec.json.decode(given.kafka, type=dict[str, str])
    consumer = KafkaConsumer({"auto.offset.reset": "earliest", **names, **settings})
    consumer.subscribe([group_id])
    try:
        yield consumer.poll
    finally:
        consumer.close()  # commits what was handed out


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
