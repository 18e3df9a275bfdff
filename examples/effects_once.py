"""Every message takes effect exactly once, however often it is delivered: sums of orders per customer, in SQLite.

The effect of a message and the offset behind it are stored in one transaction of the database. A message that is
delivered again, after a crash or a hand-over, has an offset below the stored one and is skipped. With ``orderly``, one
row per queue is enough; without it, store (topic, partition, offset) of every message under a unique key instead.

    python examples/effects_once.py localhost:9092 sums.db
"""

import sqlite3
import sys
from contextlib import closing

from confluent_kafka import Message

from wakeroll import Consumer, origin_of

TABLES = """
create table if not exists progress (topic text, number integer, next_offset integer, primary key (topic, number));
create table if not exists sums (customer text primary key, amount integer);
"""


def handle(database: sqlite3.Connection, messages: list[Message]) -> int:
    """Add the amounts of some orders of one queue; return how many of them had been added before."""
    origins = [origin_of(message) for message in messages]
    topic, number = origins[0].topic, origins[0].partition
    with database:
        row = database.execute("select next_offset from progress where (topic, number) = (?, ?)", (topic, number))
        (done,) = row.fetchone() or (0,)
        for origin, message in zip(origins, messages, strict=True):
            if origin.offset >= done:
                customer, amount = (message.key() or b"").decode(), int(message.value() or 0)
                database.execute(
                    "insert into sums values (?, ?) on conflict do update set amount = amount + excluded.amount",
                    (customer, amount),
                )
        behind = max(done, origins[-1].offset + 1)
        database.execute("insert or replace into progress values (?, ?, ?)", (topic, number, behind))
    return sum(origin.offset < done for origin in origins)


def main(bootstrap: str, path: str) -> None:
    """Run until the process is stopped."""

    def handle_batch(messages: list[Message]) -> None:
        with closing(sqlite3.connect(path, timeout=60)) as database:  # a connection belongs to one thread
            repeated = handle(database, messages)
        print(f"messages: {len(messages)}, of which repeated: {repeated}", flush=True)

    with closing(sqlite3.connect(path, timeout=60)) as database:
        database.executescript(TABLES)
    with Consumer("sums", ["orders"], bootstrap, consume_from="first", orderly=True) as consumer:
        consumer.run(handle_batch)


if __name__ == "__main__":
    main(*sys.argv[1:])
