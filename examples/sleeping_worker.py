"""A worker that ends when there is nothing to do; `wakeroll wake` starts it again at the next message.

    wakeroll wake billing --topic orders --exec 'python examples/sleeping_worker.py localhost:9092 orders'

It commits and leaves the group before it ends, so nobody waits for its session.
"""

import os
import sys
import time

from confluent_kafka import Message

from wakeroll import Consumer

IDLE_S = 5.0
"""How long to wait for another message (s). A longer time costs idle processes, a shorter one more starts."""


def handle(message: Message) -> None:
    """Do the work for one message."""
    print(f"{message.topic()}-{message.partition()} at {message.offset()}: {message.value()!r}", flush=True)


def main(bootstrap: str, topic: str) -> None:
    """Handle messages until none comes for a while."""
    group = os.environ.get("WOKEN_GROUP", "billing")
    with Consumer(group, [topic], bootstrap, consume_from="first") as consumer:
        idle_since = time.monotonic()
        while time.monotonic() - idle_since < IDLE_S:
            if not consumer.assignment():
                idle_since = time.monotonic()  # joining takes a moment
            if (message := consumer.poll(0.5)) is not None:
                handle(message)
                idle_since = time.monotonic()


if __name__ == "__main__":
    main(*sys.argv[1:])
