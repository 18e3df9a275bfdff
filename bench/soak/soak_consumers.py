"""Consumers of the soak: a process with several clients, one thread each, that logs each message that they handled.

The clients are those of the SDK, and share the process's connections to Kafka: see `bench.soak.shared_clients`.

The log has one line per message, ``client topic partition offset start_ns end_ns delay_ms``. Times are those of the
monotonic clock, which all processes of a machine share; the delay is that from the message's time to its handling.
"""

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path

from bench.soak.shared_clients import SharedClients
from wakeroll import Consumer, ConsumerFenced, NotReachable

FETCH_WAIT_MS = 1_000
"""A broker holds a fetch that finds nothing for so long (ms): hundreds of consumers leave the machine some time."""
SHORTEST_WAIT_S = 0.25
"""How long a client waits for messages at least (s), instead of the SDK's 0.05 s: it notices a revocation that much
later. Measured with 100 threads, on a machine that did other work too: 0.06 of a core instead of 0.11."""
_POLL_S = 1.0
_CONNECT_S = 60.0
_PAUSE_S = 1.0
_NICE = 10
"""Broker and coordinators come first: consumers are on other machines in practice, and take none of their CPU."""


def main(arguments: list[str]) -> int:
    """Consume until SIGTERM, then leave the groups."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak.soak_consumers", description=__doc__.splitlines()[0])
    for name in ("--bootstrap", "--prefix"):
        parser.add_argument(name, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("members", nargs="+", metavar="CLIENT=GROUP", help="a group reads the topic of the same name")
    given = parser.parse_args(arguments)
    os.nice(_NICE)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    # Unbuffered: the log is complete even if the process is killed right after a message.
    log = os.open(given.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    threads = []
    for member in given.members:
        client_id, _, group_id = member.partition("=")
        names = (given.bootstrap, given.prefix, group_id, client_id)
        threads.append(threading.Thread(target=_work, args=(*names, log, stopping), name=client_id))
    with SharedClients(given.bootstrap, SHORTEST_WAIT_S):
        for thread in threads:
            thread.start()
        stopping.wait()
        for thread in threads:
            thread.join()
    return 0


def _work(bootstrap: str, prefix: str, group_id: str, client_id: str, log: int, stopping: threading.Event) -> None:
    """Consume as one client; join again after a time in which no broker answered, and after the end as a duplicate."""
    while not stopping.is_set():
        try:
            with Consumer(
                group_id,
                [group_id],
                bootstrap,
                prefix=prefix,
                client_id=client_id,
                consume_from="first",
                connect_timeout=_CONNECT_S,
                kafka_config={"fetch.wait.max.ms": str(FETCH_WAIT_MS), "log_level": "2"},
            ) as consumer:
                _consume(consumer, client_id, log, stopping)
        except (NotReachable, ConsumerFenced) as problem:
            print(f"{client_id}: {problem}", flush=True)
            stopping.wait(_PAUSE_S)


def _consume(consumer: Consumer, client_id: str, log: int, stopping: threading.Event) -> None:
    while not stopping.is_set():
        message = consumer.poll(_POLL_S)
        if message is not None and message.error() is None:
            start_ns = time.monotonic_ns()
            delay_ms = round(time.time() * 1_000) - message.timestamp()[1]
            where = f"{message.topic()} {message.partition()} {message.offset()}"
            os.write(log, f"{client_id} {where} {start_ns} {time.monotonic_ns()} {delay_ms}\n".encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
