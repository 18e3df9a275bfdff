"""A member of one of Kafka's own groups, as a process: it reads, commits every 0.2 s and leaves at SIGTERM."""

import json
import signal
import sys
from pathlib import Path
from types import FrameType

from confluent_kafka import Consumer

from wakeroll_pipeline.local.child_process import Child


def member(folder: Path, bootstrap: str, group_id: str, topic: str, client_id: str, **settings: str | int) -> Child:
    """Return a member that is not started yet; `kill` is a crash, `stop` a leave."""
    said = {
        "bootstrap.servers": bootstrap,
        "group.id": group_id,
        "client.id": client_id,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    return Child(
        client_id,
        [sys.executable, "-m", "tests.support.systems.kafka_member", topic, json.dumps(said)],
        log=folder / f"{client_id}.log",
    )


def main() -> None:
    """Read until SIGTERM."""
    topic, settings = sys.argv[1:]
    stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    consumer = Consumer(json.loads(settings))
    consumer.subscribe([topic])
    while not stopping:
        consumer.poll(0.1)
    consumer.close()


if __name__ == "__main__":
    main()
